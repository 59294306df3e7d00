//go:build integration

package portal_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/services/billing/portal/portaltest"
	"penstock.dev/services/internal/browsertest"
)

// shots, when it is set, is where pictures of every page are kept for people to look at.
const shots = "PENSTOCK_TEST_SHOTS"

// behind serves the portal to a browser that was let in.
func behind(t *testing.T, names portaltest.Names, empty bool) string {
	t.Helper()
	s := newSite(t, names)
	s.book.Empty = empty
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+portaltest.TokenA)
		s.h.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	return site.URL
}

// TestIntegrationPagesInABrowser guarantees that every page, at both widths, in both
// languages and schemes, of every kind of account, loads without an error, a violation of
// the policy or a dialog (FC-32), is not wider than its window, and draws what it is
// there to draw.
func TestIntegrationPagesInABrowser(t *testing.T) {
	t.Parallel()
	b := browsertest.Start(t)
	draws := map[string]string{ // what a full account has on the page
		"usage": "main svg.bar, main .meter, main .plot", "cuts": "main .line-up, main .plot", "wallet": "main svg.bar, main table", "invoices": "main table",
		"invoices/" + portaltest.FinalA: "main table, main .stats", "invoices/" + portaltest.DraftA: "main table, main .stats",
	}
	for _, account := range []struct {
		name  string
		names portaltest.Names
		empty bool
	}{{"plain", portaltest.Plain, false}, {"hostile", portaltest.Hostile, false}, {"empty", portaltest.Plain, true}} {
		url := behind(t, account.names, account.empty)
		for _, look := range []browsertest.Look{
			{Width: 1440, Height: 900, Language: "en-US"},
			{Width: 390, Height: 844, Language: "tr-TR", Dark: true},
			{Width: 1440, Height: 900, Language: "tr-TR", Dark: true},
			{Width: 390, Height: 844, Language: "en-US", NoScript: true},
			{Width: 320, Height: 640, Language: "tr-TR"},
		} {
			p := b.Open(t, look)
			for page, drawn := range draws {
				if account.empty && strings.Contains(page, "/") {
					continue
				}
				p.Go(url + "/portal/" + page)
				what := fmt.Sprintf("%s of %s at %+v", page, account.name, look)
				if got := p.Problems(); len(got) > 0 || p.Dialogs() > 0 {
					t.Fatalf("%s: %d dialogs, %q", what, p.Dialogs(), got)
				}
				if dir := os.Getenv(shots); dir != "" {
					p.Shot(filepath.Join(dir, fmt.Sprintf("%s-%d-%s-%t-%s.png", strings.ReplaceAll(page, "/", "-"), look.Width, look.Language, look.Dark, account.name)))
				}
				if look.NoScript {
					continue // and nobody to ask
				}
				var seen struct {
					Wide, Window, Drawn, Images, Scripts int
					Title                                string
				}
				p.Eval(`({Wide: document.documentElement.scrollWidth, Window: innerWidth, Title: document.title,
					Drawn: document.querySelectorAll('`+drawn+`').length, Images: document.querySelectorAll('img').length,
					Scripts: document.querySelectorAll('script:not([src^="/portal/assets/"])').length})`, &seen)
				if seen.Wide > seen.Window || seen.Images > 0 || seen.Scripts > 0 || seen.Drawn == 0 && !account.empty || seen.Title == "" {
					t.Errorf("%s: %+v", what, seen)
				}
			}
		}
	}
}

// TestIntegrationPortalIsEntered guarantees the way in as a person goes it: a link, a
// page without the code in its address, another language, out, and not in again.
func TestIntegrationPortalIsEntered(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain)
	site := httptest.NewServer(s.h)
	t.Cleanup(site.Close)
	p := browsertest.Start(t).Open(t, browsertest.Look{Width: 1440, Height: 900, Language: "en-US"})
	address := func() (a string) {
		p.Eval("location.pathname + location.search", &a)
		return a
	}
	p.Go(site.URL + "/portal/enter?code=code-a")
	if a := address(); a != "/portal/usage" {
		t.Fatalf("the browser ends at %s", a)
	}
	var cookie string
	if p.Eval("document.cookie", &cookie); strings.Contains(cookie, portaltest.TokenA) {
		t.Error("a script can read the token")
	}
	p.Eval(`document.querySelector('nav.lang a[hreflang=tr]').click()`, nil)
	p.Loaded()
	var language string
	if p.Eval("document.documentElement.lang", &language); language != "tr" || address() != "/portal/usage" {
		t.Errorf("in %q at %s, want Turkish", language, address())
	}
	p.Eval(`document.querySelector('form[action="/portal/leave"] button').click()`, nil)
	p.Loaded()
	if p.Problems() != nil {
		t.Errorf("problems: %q", p.Problems())
	}
	if w := s.see("/portal/usage", "en"); w.Code != http.StatusUnauthorized {
		t.Errorf("after leaving the session answers %d", w.Code)
	}
}
