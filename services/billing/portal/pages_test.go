package portal_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/portal"
	"penstock.dev/services/billing/portal/portaltest"
	"penstock.dev/services/internal/period"
)

// A site is the portal with what is behind it.
type site struct {
	t     *testing.T
	h     http.Handler
	gate  *portaltest.Gate
	book  *portaltest.Book
	audit *portaltest.Audit
	log   *bytes.Buffer
}

func newSite(t *testing.T, names portaltest.Names, change ...func(*portal.Config)) *site {
	t.Helper()
	s := &site{t: t, gate: &portaltest.Gate{}, book: &portaltest.Book{Names: names, Down: map[string]bool{}}, audit: &portaltest.Audit{Key: names.Key}, log: &bytes.Buffer{}}
	cfg := portal.Config{Gate: s.gate, Reader: s.book, Audit: s.audit, Now: portaltest.Now, Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(s.log, nil))}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if s.h, err = portal.Handler(cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask sends a request: headers are given by pairs of name and value.
func (s *site) ask(method, path string, headers ...string) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "http://portal.example"+path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, r)
	return w
}

// see loads a page as acme.
func (s *site) see(path, language string) *httptest.ResponseRecorder {
	s.t.Helper()
	return s.ask(http.MethodGet, path, "Cookie", "penstock_portal="+portaltest.TokenA, "Accept-Language", language)
}

var pages = []string{
	"/portal", "/portal/", "/portal/usage", "/portal/usage?month=2026-06", "/portal/usage?meter=exports", "/portal/usage/live", "/portal/cuts", "/portal/cuts?reason=rate-limited",
	"/portal/cuts/live", "/portal/wallet", "/portal/invoices", "/portal/invoices/" + portaltest.DraftA, "/portal/invoices/" + portaltest.FinalA,
}

var (
	inline  = regexp.MustCompile(`(?i)<[a-z][^>]*\s(?:style|on[a-z]+|hx-on[^=]*)\s*=|<style`)
	quoted  = regexp.MustCompile(`="[^"]*"`)
	script  = regexp.MustCompile(`<script[^>]*>([^<]*)`)
	field   = regexp.MustCompile(`<(?:select|input|textarea)\b[^>]*>`)
	id      = regexp.MustCompile(`\sid="([^"]+)"`)
	heading = regexp.MustCompile(`<h1[ >]`)
	here    = regexp.MustCompile(`aria-current="page"`)
	table   = regexp.MustCompile(`<table[^>]*>`)
	picture = regexp.MustCompile(`<svg[^>]*>`)
)

// held holds a page to what every page keeps.
func held(t *testing.T, what, body string) {
	t.Helper()
	if m := inline.FindString(quoted.ReplaceAllString(body, `=""`)); m != "" {
		t.Errorf("%s: inline style or script: %s", what, m)
	}
	for _, m := range script.FindAllStringSubmatch(body, -1) {
		if !strings.Contains(m[0], ` src="/portal/assets/`) || m[1] != "" {
			t.Errorf("%s: script %s", what, m[0])
		}
	}
	for _, f := range field.FindAllString(body, -1) {
		m := id.FindStringSubmatch(f)
		if !strings.Contains(f, `type="hidden"`) && (m == nil || !strings.Contains(body, `<label class="sr" for="`+m[1]+`"`) && !strings.Contains(body, ` for="`+m[1]+`"`)) {
			t.Errorf("%s: field without a label: %s", what, f)
		}
	}
	for _, p := range picture.FindAllString(body, -1) {
		if strings.Contains(p, `role="img"`) != strings.Contains(p, "aria-label=") {
			t.Errorf("%s: a picture without words: %s", what, p)
		}
	}
	for _, m := range table.FindAllString(body, -1) {
		if strings.Contains(m, "cards") && !strings.Contains(m, `role="table"`) {
			t.Errorf("%s: a table of cards that says not that it is one: %s", what, m)
		}
	}
	for _, wrong := range []string{"%!", "<no value>", "NaN", "Inf", "ZgotmplZ", "javascript:", "text-transform"} {
		if strings.Contains(body, wrong) {
			t.Errorf("%s has %q", what, wrong)
		}
	}
}

// TestPages guarantees of every page, in both languages, of an account that is full, of
// one with names that would run as script (FC-32), and of an empty one: that it is made,
// that it has one heading and says where it is, that nothing is inline and no name is
// more than text.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, names := range []portaltest.Names{portaltest.Plain, portaltest.Hostile} {
		for _, empty := range []bool{false, true} {
			s := newSite(t, names)
			s.book.Empty = empty
			for _, language := range []string{"en", "tr"} {
				for _, path := range pages {
					if empty && strings.Contains(path, "/invoices/") || empty && strings.Contains(path, "meter") {
						continue
					}
					what := fmt.Sprintf("%s in %s of %s, empty %t", path, language, names.Tenant, empty)
					w := s.see(path, language)
					body := w.Body.String()
					if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
						t.Errorf("%s: %d %s %s", what, w.Code, w.Header().Get("Content-Type"), body)
						continue
					}
					held(t, what, body)
					for _, name := range []string{portaltest.TenantName, portaltest.KeyName, portaltest.RuleName} {
						if strings.Contains(body, name) {
							t.Errorf("%s: %q is not text", what, name)
						}
					}
					if strings.HasSuffix(path, "/live") {
						continue
					}
					if n := len(heading.FindAllString(body, -1)); n != 1 {
						t.Errorf("%s: %d headings", what, n)
					}
					if n := len(here.FindAllString(body, -1)); n < 1 {
						t.Errorf("%s does not say where it is", what)
					}
					if !strings.Contains(body, `<html lang="`+language+`">`) {
						t.Errorf("%s is not said to be", what)
					}
				}
			}
		}
	}
}

// TestFC32 guarantees that names which would run as script are shown as they are, on
// every page that shows them and in the files that can be had.
func TestFC32(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Hostile)
	escaped := map[string]string{
		portaltest.TenantName: "&lt;img src=x onerror=alert(1)&gt;",
		portaltest.KeyName:    "&lt;/script&gt;&lt;script&gt;alert(2)&lt;/script&gt;",
		portaltest.RuleName:   "&#34;onmouseover=&#34;alert(3)",
	}
	for path, shown := range map[string][]string{
		"/portal/usage":                         {portaltest.TenantName, portaltest.RuleName, portaltest.KeyName},
		"/portal/cuts":                          {portaltest.TenantName, portaltest.RuleName, portaltest.KeyName},
		"/portal/wallet":                        {portaltest.TenantName, portaltest.KeyName},
		"/portal/invoices":                      {portaltest.TenantName},
		"/portal/invoices/" + portaltest.FinalA: {portaltest.TenantName, portaltest.KeyName},
	} {
		body := s.see(path, "en").Body.String()
		for _, name := range shown {
			if !strings.Contains(body, escaped[name]) {
				t.Errorf("%s does not show %q", path, name)
			}
		}
	}
	for _, file := range []string{"/portal/usage.csv", "/portal/invoices/" + portaltest.FinalA + "/csv", "/portal/invoices/" + portaltest.FinalA + "/json"} {
		w := s.see(file, "en")
		kind := w.Header().Get("Content-Type")
		if w.Code != http.StatusOK || strings.Contains(kind, "html") || w.Header().Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(w.Header().Get("Content-Disposition"), "attachment") {
			t.Errorf("%s: %d %v", file, w.Code, w.Header())
		}
	}
	file := s.see("/portal/invoices/"+portaltest.FinalA+"/csv", "en").Body
	if rows, err := csv.NewReader(file).ReadAll(); err != nil || !slices.ContainsFunc(rows, func(row []string) bool { return slices.Contains(row, portaltest.KeyName) }) {
		t.Errorf("the file has not the name as it is: %v %q", err, rows)
	}
	for _, path := range []string{"/portal/cuts?reason=", "/portal/cuts?month=", "/portal/usage?meter=", "/portal/cuts?key=", "/portal/invoices/", "/portal/"} {
		hostile := url.QueryEscape(`"><script>alert(4)</script>`)
		w := s.see(path+strings.ReplaceAll(hostile, "%2F", "/"), "en")
		body := w.Body.String()
		if w.Code != http.StatusBadRequest && w.Code != http.StatusNotFound || strings.Contains(body, "alert(4)</script>") {
			t.Errorf("%s: %d, and what was asked for comes back: %s", path, w.Code, body)
		}
		held(t, path, body)
	}
}

// TestHeaders guarantees what every answer keeps, whatever it is.
func TestHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain, func(c *portal.Config) { c.Secure = true })
	answers := map[string]*httptest.ResponseRecorder{
		"page": s.see("/portal/usage", "en"), "nobody": s.ask(http.MethodGet, "/portal/usage"), "missing": s.see("/portal/nothing", "en"),
		"method": s.ask(http.MethodPut, "/portal/usage"), "parameter": s.see("/portal/usage?month=1999-01", "en"), "enter": s.ask(http.MethodGet, "/portal/enter?code=x"),
		"file": s.see("/portal/usage.csv", "en"), "asset": s.ask(http.MethodGet, "/portal/assets/none.css"), "token in the URL": s.see("/portal/usage?token=x", "en"),
		"from elsewhere": s.ask(http.MethodPost, "/portal/leave", "Sec-Fetch-Site", "cross-site"),
	}
	want := map[string]int{
		"page": 200, "nobody": 401, "missing": 404, "method": 405, "parameter": 400, "enter": 401, "file": 200, "asset": 404, "token in the URL": 401, "from elsewhere": 403,
	}
	for name, w := range answers {
		if w.Code != want[name] {
			t.Errorf("%s: %d, want %d", name, w.Code, want[name])
		}
		for header, value := range map[string]string{
			"Content-Security-Policy": portal.Policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cache-Control": "private, no-store", "Strict-Transport-Security": "max-age=31536000",
		} {
			if got := w.Header().Get(header); got != value {
				t.Errorf("%s: %s is %q, want %q", name, header, got, value)
			}
		}
		if w.Code != http.StatusOK && strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			held(t, name, w.Body.String())
			if n := len(heading.FindAllString(w.Body.String(), -1)); n != 1 {
				t.Errorf("%s: %d headings", name, n)
			}
		}
	}
	for _, unsafe := range []string{"unsafe-inline", "unsafe-eval", "*", "data:"} {
		if strings.Contains(portal.Policy, unsafe) {
			t.Errorf("the policy allows %s", unsafe)
		}
	}
	page := answers["page"].Body.String()
	for _, m := range regexp.MustCompile(`/portal/assets/[^"]+`).FindAllString(page, -1) {
		w := s.ask(http.MethodGet, m)
		if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") || w.Body.Len() == 0 {
			t.Errorf("%s: %d %v", m, w.Code, w.Header())
		}
	}
}

// TestFC30 guarantees that what is another tenant's and what is not there are one answer,
// body and headers, as a page and in every form, and that each is kept for the audit.
func TestFC30(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain)
	forms := []string{"", "/csv", "/json", "/pdf"}
	for _, form := range forms {
		foreign, missing := s.see("/portal/invoices/"+portaltest.FinalB+form, "en"), s.see("/portal/invoices/INV-999"+form, "en")
		if foreign.Code != http.StatusNotFound || foreign.Body.String() != missing.Body.String() || !reflect.DeepEqual(foreign.Header(), missing.Header()) || missing.Code != foreign.Code {
			t.Errorf("%q: foreign %d %v, missing %d %v", form, foreign.Code, foreign.Header(), missing.Code, missing.Header())
		}
	}
	foreign, missing := s.see("/portal/cuts?key=globex-1", "en"), s.see("/portal/cuts?key=none", "en")
	if foreign.Code != http.StatusNotFound || foreign.Body.String() != missing.Body.String() {
		t.Errorf("keys: %d and %d", foreign.Code, missing.Code)
	}
	denied := s.audit.All()
	if len(denied) != 2*len(forms)+2 || denied[0].Ref != portaltest.FinalB || denied[0].Tenant != "acme" || denied[0].Kind != access.KindInvoice || denied[len(denied)-1].Kind != access.KindAPIKey {
		t.Errorf("the audit has %+v", denied)
	}
	for _, form := range forms[:3] {
		if w := s.see("/portal/invoices/"+portaltest.FinalA+form, "en"); w.Code != http.StatusOK {
			t.Errorf("its own as %q: %d", form, w.Code)
		}
	}
	if w := s.see("/portal/cuts?key=acme-1", "en"); w.Code != http.StatusOK {
		t.Errorf("its own key: %d", w.Code)
	}
}

// TestS1 guarantees that the tenant is the token's, that every wrong token is the same
// 401, and that a token in a URL opens nothing.
func TestS1(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain)
	own := s.see("/portal/invoices", "en").Body.String()
	for _, q := range []string{"tenant=globex", "customer=globex", "customer_id=globex", "tenant_id=globex"} {
		body := s.see("/portal/invoices?"+q, "en").Body.String()
		for _, language := range []string{"en", "tr"} { // its links keep what the address has
			body = strings.ReplaceAll(body, `"?`+strings.Join(inOrder("lang="+language, q), "&amp;")+`"`, `"?lang=`+language+`"`)
		}
		if body != own || !strings.Contains(own, portaltest.FinalA) || strings.Contains(own, portaltest.FinalB) {
			t.Errorf("%s changes what is shown: %s", q, body)
		}
	}
	nobody := s.ask(http.MethodGet, "/portal/usage").Body.String()
	for name, headers := range map[string][]string{
		"unknown cookie": {"Cookie", "penstock_portal=x"}, "unknown bearer": {"Authorization", "Bearer x"}, "other scheme": {"Authorization", "Basic " + portaltest.TokenA},
		"two": {"Authorization", "Bearer " + portaltest.TokenA, "Authorization", "Bearer " + portaltest.TokenA}, "empty": {"Authorization", "Bearer "},
		"a bad bearer beside a good cookie": {"Authorization", "Bearer x", "Cookie", "penstock_portal=" + portaltest.TokenA},
	} {
		if w := s.ask(http.MethodGet, "/portal/usage", headers...); w.Code != http.StatusUnauthorized || w.Body.String() != nobody {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	for _, path := range []string{"/portal/usage?token=" + portaltest.TokenA, "/portal/usage?Access_Token=x", "/portal/eyJhbGciOiJub25lIn0.e30.x", "/portal/usage?x=eyJhbGciOiJub25lIn0.e30.x"} {
		if w := s.ask(http.MethodGet, path); w.Code != http.StatusUnauthorized || w.Body.String() != nobody {
			t.Errorf("%s: %d", path, w.Code)
		}
		if w := s.see(path, "en"); w.Code != http.StatusUnauthorized {
			t.Errorf("%s beside a good cookie: %d", path, w.Code)
		}
	}
	if w := s.ask(http.MethodGet, "/portal/usage", "Authorization", "bearer "+portaltest.TokenA); w.Code != http.StatusOK {
		t.Errorf("a good bearer: %d", w.Code)
	}
	if err := s.gate.Revoke(t.Context(), portaltest.TokenA, portaltest.Now()); err != nil {
		t.Fatal(err)
	}
	if w := s.see("/portal/usage", ""); w.Code != http.StatusUnauthorized || w.Body.String() != nobody {
		t.Errorf("revoked: %d", w.Code)
	}
}

// inOrder are the parameters as an address has them.
func inOrder(parameters ...string) []string {
	slices.Sort(parameters)
	return parameters
}

// issued is a register of tokens that were all issued and not revoked.
type issued struct{}

func (issued) Issue(context.Context, access.Grant, access.Code, time.Time) error { return nil }
func (issued) Good(context.Context, string) (bool, error)                        { return true, nil }
func (issued) Revoke(context.Context, string, time.Time) error                   { return nil }
func (issued) Redeem(context.Context, access.Code, string, time.Time) (access.Grant, error) {
	return access.Grant{}, access.ErrRefused
}

// TestFC31 guarantees, with the gate that signs and verifies for real, that the cookie and
// the bearer token are held to the same: a token of ours is 200, and whatever was done to
// it is 401, one body and the same headers for all.
func TestFC31(t *testing.T) {
	t.Parallel()
	seed := []byte(strings.Repeat("s", ed25519.SeedSize))
	key, err := access.NewKey("k1", seed)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := access.New([]access.Key{key}, issued{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, portaltest.Plain, func(c *portal.Config) { c.Gate = gate })
	ticket, err := gate.Issue(t.Context(), "acme", "u1", time.Hour, portaltest.Now())
	if err != nil {
		t.Fatal(err)
	}
	old, err := gate.Issue(t.Context(), "acme", "u1", time.Hour, portaltest.Now().Add(-time.Hour-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Split(ticket.Token, ".")
	head := func(alg string) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":%q,"typ":"JWT","kid":"k1"}`, alg))
	}
	symmetric := hmac.New(sha256.New, key.Public())
	symmetric.Write([]byte(head("HS256") + "." + part[1]))
	console := strings.Replace(string(decode(t, part[1])), access.Audience, "penstock.console", 1)
	text := part[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(console))
	flipped, signature := decode(t, part[1]), decode(t, part[2])
	flipped[len(flipped)/2] ^= 1
	nobody := s.ask(http.MethodGet, "/portal/usage")
	for name, token := range map[string]string{
		"none":                   head("none") + "." + part[1] + ".",
		"NoNe":                   head("NoNe") + "." + part[1] + ".",
		"symmetric":              head("HS256") + "." + part[1] + "." + base64.RawURLEncoding.EncodeToString(symmetric.Sum(nil)),
		"expired 1 s ago":        old.Token,
		"the console's audience": text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(ed25519.NewKeyFromSeed(seed), []byte(text))),
		"one bit flipped":        part[0] + "." + base64.RawURLEncoding.EncodeToString(flipped) + "." + part[2],
		"one byte cut off":       part[0] + "." + part[1] + "." + base64.RawURLEncoding.EncodeToString(signature[:len(signature)-1]),
	} {
		for _, carrier := range [][]string{{"Cookie", "penstock_portal=" + token}, {"Authorization", "Bearer " + token}} {
			w := s.ask(http.MethodGet, "/portal/usage", carrier...)
			if w.Code != http.StatusUnauthorized || w.Body.String() != nobody.Body.String() || !reflect.DeepEqual(w.Header(), nobody.Header()) {
				t.Errorf("%s as %s: %d %v", name, carrier[0], w.Code, w.Header())
			}
		}
	}
	for _, carrier := range [][]string{{"Cookie", "penstock_portal=" + ticket.Token}, {"Authorization", "Bearer " + ticket.Token}} {
		if w := s.ask(http.MethodGet, "/portal/usage", carrier...); w.Code != http.StatusOK {
			t.Errorf("as issued as %s: %d", carrier[0], w.Code)
		}
	}
}

func decode(t *testing.T, part string) []byte {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEnterAndLeave guarantees that a code opens the portal once, that it is no part of
// where the browser ends, and that leaving ends the session itself.
func TestEnterAndLeave(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain, func(c *portal.Config) { c.Secure = true })
	if w := s.ask(http.MethodHead, "/portal/enter?code=code-a"); len(w.Result().Cookies()) != 0 {
		t.Error("looking at a link uses it up")
	}
	w := s.ask(http.MethodGet, "/portal/enter?code=code-a")
	cookies := w.Result().Cookies()
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/portal/usage" || len(cookies) != 1 {
		t.Fatalf("entering: %d %v", w.Code, w.Header())
	}
	if c := cookies[0]; !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteLaxMode || c.Path != "/portal" || c.Domain != "" || !c.Expires.After(portaltest.Now()) {
		t.Errorf("the cookie is %+v", c)
	}
	for _, path := range []string{"/portal/enter?code=code-a", "/portal/enter?code=other", "/portal/enter"} {
		if w := s.ask(http.MethodGet, path); w.Code != http.StatusUnauthorized || len(w.Header().Values("Set-Cookie")) != 0 {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
	}
	w = s.ask(http.MethodPost, "/portal/leave", "Cookie", "penstock_portal="+portaltest.TokenA)
	if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("leaving: %d %v", w.Code, w.Header())
	}
	if w := s.see("/portal/usage", "en"); w.Code != http.StatusUnauthorized {
		t.Errorf("after leaving: %d", w.Code)
	}
}

// TestLanguage guarantees who decides the language, and that a switch leads nowhere else.
func TestLanguage(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain)
	for accept, want := range map[string]string{"": "en", "de, tr;q=0.4": "tr", "tr-TR,tr;q=0.9,en;q=0.8": "tr", "en;q=0.9, tr;q=0.2": "en", "tr;q=x": "en", "*": "en"} {
		if body := s.see("/portal/usage", accept).Body.String(); !strings.Contains(body, `<html lang="`+want+`">`) {
			t.Errorf("%q does not get %s", accept, want)
		}
	}
	w := s.see("/portal/cuts?reason=blocked&lang=tr", "en")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/portal/cuts?reason=blocked" || !strings.Contains(w.Header().Get("Set-Cookie"), "penstock_lang=tr") {
		t.Errorf("a switch: %d %v", w.Code, w.Header())
	}
	w = s.ask(http.MethodGet, "//elsewhere.example/portal/?lang=tr")
	if to := w.Header().Get("Location"); strings.HasPrefix(to, "//") || strings.HasPrefix(to, "http") && !strings.HasPrefix(to, "http://portal.example/") {
		t.Errorf("a switch leads to %q", to)
	}
	w = s.ask(http.MethodGet, "/portal/usage", "Cookie", "penstock_lang=tr; penstock_portal="+portaltest.TokenA, "Accept-Language", "en")
	if !strings.Contains(w.Body.String(), `<html lang="tr">`) {
		t.Error("the visitor's choice is not kept")
	}
}

// TestParts guarantees that a part which cannot be read is said to be missing, with when
// it was last read, while the rest is shown; and that an account which cannot be read at
// all is 503.
func TestParts(t *testing.T) {
	t.Parallel()
	for part, path := range map[string]string{"usage": "/portal/usage", "quotas": "/portal/usage", "cuts": "/portal/cuts", "wallets": "/portal/wallet", "invoices": "/portal/invoices"} {
		s := newSite(t, portaltest.Plain)
		s.book.Down[part] = true
		never := s.see(path, "en")
		s.book.Down[part] = false
		whole := s.see(path, "en")
		s.book.Down[part] = true
		since := s.see(path, "en")
		if never.Code != http.StatusOK || since.Code != http.StatusOK || never.Body.String() == whole.Body.String() {
			t.Errorf("%s: %d %d", part, never.Code, since.Code)
		}
		if !strings.Contains(since.Body.String(), "14:32:05") || strings.Contains(since.Body.String(), portaltest.ErrDown.Error()) {
			t.Errorf("%s: when it was last read is not said, or why it cannot be is", part)
		}
		held(t, part, since.Body.String())
	}
	s := newSite(t, portaltest.Plain)
	s.book.Down["profile"] = true
	w := s.see("/portal/usage", "en")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || strings.Contains(w.Body.String(), "billing is") || !strings.Contains(s.log.String(), "billing is unavailable") {
		t.Errorf("no account: %d %v; logged %s", w.Code, w.Header(), s.log)
	}
}

// TestGateIsDown guarantees that a gate which cannot look is not a refusal.
func TestGateIsDown(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain, func(c *portal.Config) { c.Gate = broken{c.Gate} })
	if w := s.see("/portal/usage", "en"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d, want 503", w.Code)
	}
}

type broken struct{ portal.Gate }

var errAway = errors.New("away")

func (broken) Verify(context.Context, string, time.Time) (access.Grant, error) {
	return access.Grant{}, errAway
}

// A hang is an account that does not answer.
type hang struct{ *portaltest.Book }

func (hang) Profile(ctx context.Context, _ string) (account.Profile, error) {
	<-ctx.Done()
	return account.Profile{}, ctx.Err()
}

// TestTimeout guarantees that a page does not wait for an account that does not answer for
// longer than it may, and says so.
func TestTimeout(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain, func(c *portal.Config) {
		c.Reader, c.Timeout = hang{&portaltest.Book{}}, time.Millisecond
	})
	for _, page := range pages {
		if w := s.see(page, "en"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "<h1") {
			t.Errorf("%s answers %d %v", page, w.Code, w.Header())
		}
	}
	if !strings.Contains(s.log.String(), "the account could not be read for the portal") {
		t.Errorf("the log says %s", s.log)
	}
}

// other is an account whose quotas or invoices are others.
type other struct {
	*portaltest.Book
	quotas   []account.Quota
	invoices int
}

func (o *other) Quotas(context.Context, string, time.Time) ([]account.Quota, error) {
	return o.quotas, nil
}

// Invoices are one a month.
func (o *other) Invoices(_ context.Context, _ string, now, before time.Time, most int) ([]account.Invoice, error) {
	var out []account.Invoice
	for n := range o.invoices {
		start := time.Date(now.Year(), now.Month()-time.Month(n), 1, 0, 0, 0, 0, time.UTC)
		if (before.IsZero() || start.Before(before)) && len(out) < most {
			id := fmt.Sprintf("INV-%d", o.invoices-n)
			out = append(out, account.Invoice{ID: id, Number: id, State: account.Final, Period: period.Span{Start: start, End: start.AddDate(0, 1, 0)}})
		}
	}
	return out, nil
}

// TestUnitsBesideTheirQuota guarantees that the share of a quota is never shown as that of
// units which the quota does not count all of: 114 units are not 100% of 50.
func TestUnitsBesideTheirQuota(t *testing.T) {
	t.Parallel()
	books := &other{Book: &portaltest.Book{Names: portaltest.Plain}}
	s := newSite(t, portaltest.Plain, func(c *portal.Config) { c.Reader = books })
	month := account.Quota{Rule: "acme-month", Meter: "api-calls", Limit: 1_000_000, Consumed: 812_406, Unit: period.Month, Count: 1}
	later := month
	later.Limit, later.Consumed = 50, 50
	for want, quota := range map[string]account.Quota{"<p class=\"num\">of 1,000,000 · 81.2% used</p>": month, "<p class=\"num\">quota: 50 of 50 · 100% used</p>": later} {
		quota.Period = period.Span{Start: portaltest.Now().AddDate(0, 0, -20), End: portaltest.Now().AddDate(0, 0, 10)}
		books.quotas = []account.Quota{quota}
		if body := s.see("/portal/usage", "en").Body.String(); !strings.Contains(body, want) {
			t.Errorf("the page does not say %q:\n%s", want, regexp.MustCompile(`(?s)<div class="stats">.*?</div></div>`).FindString(body))
		}
	}
}

// TestInvoicePages guarantees that all invoices can be reached, a hundred to a page, and that
// one that is older than those beside it is beside it too.
func TestInvoicePages(t *testing.T) {
	t.Parallel()
	s := newSite(t, portaltest.Plain, func(c *portal.Config) {
		c.Reader = &other{Book: &portaltest.Book{Names: portaltest.Plain}, invoices: 130}
	})
	older := regexp.MustCompile(`href="(/portal/invoices\?before=\d+)"`)
	number := regexp.MustCompile(`<th scope="row" role="rowheader"><span><a href="/portal/invoices/INV-(\d+)"`)
	var seen []string
	for at := "/portal/invoices"; at != ""; {
		body := s.see(at, "en").Body.String()
		held(t, at, body)
		for _, m := range number.FindAllStringSubmatch(body, -1) {
			seen = append(seen, m[1])
		}
		if first := strings.Contains(body, `href="/portal/invoices">Newest</a>`); first == (at == "/portal/invoices") {
			t.Errorf("%s leads back to the newest: %t", at, first)
		}
		m := older.FindStringSubmatch(body)
		if at = ""; m != nil {
			at = m[1]
		}
	}
	if len(seen) != 130 || seen[0] != "130" || seen[99] != "31" || seen[129] != "1" {
		t.Errorf("%d invoices on all pages: %v", len(seen), seen)
	}
	if w := s.see("/portal/invoices?before=never", "en"); w.Code != http.StatusBadRequest {
		t.Errorf("before=never is %d", w.Code)
	}
	if body := s.see("/portal/invoices/"+portaltest.FinalA, "en").Body.String(); !strings.Contains(body, `<tr aria-current="true">`) || strings.Count(body, `href="/portal/invoices/INV-`) < 13 {
		t.Errorf("an old invoice is not beside the newest twelve:\n%s", body)
	}
}
