//go:build integration

package browsertest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/services/internal/browsertest"
)

// TestIntegrationBrowserNotices guarantees that the kit sees what it is there to
// see: a dialog, an error on the console, an exception, a violated policy, and
// what a person prefers.
func TestIntegrationBrowserNotices(t *testing.T) {
	t.Parallel()

	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		switch r.URL.Path {
		case "/quiet":
			w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'")
		case "/policy":
			w.Header().Set("Content-Security-Policy", "default-src 'none'; img-src 'self'")
			_, _ = fmt.Fprint(w, `<script>alert(1)</script>`)
		case "/alert":
			_, _ = fmt.Fprint(w, `<script>alert(1)</script>`)
		case "/error":
			_, _ = fmt.Fprint(w, `<script>console.error('wrong')</script>`)
		case "/throw":
			_, _ = fmt.Fprint(w, `<script>throw new Error('thrown')</script>`)
		case "/favicon.ico":
			w.WriteHeader(http.StatusNoContent)
		}
		_, _ = fmt.Fprintf(w, `<p id="lang">%s</p>`, r.Header.Get("Accept-Language"))
	}))
	t.Cleanup(site.Close)
	b := browsertest.Start(t)
	tests := []struct {
		path    string
		dialogs int
		problem string // part of the only one; empty: none
	}{
		{"/quiet", 0, ""},
		{"/alert", 1, ""},
		{"/error", 0, "wrong"},
		{"/throw", 0, "thrown"},
		{"/policy", 0, "Content Security Policy"},
	}
	for _, tt := range tests {
		p := b.Open(t, browsertest.Look{Width: 390, Height: 800, Dark: true, Language: "tr-TR"})
		p.Go(site.URL + tt.path)
		var seen struct {
			Width int
			Dark  bool
			Lang  string
		}
		p.Eval(`({Width: innerWidth, Dark: matchMedia('(prefers-color-scheme: dark)').matches, Lang: document.getElementById('lang').textContent})`, &seen)
		if got := p.Problems(); p.Dialogs() != tt.dialogs || (tt.problem == "") != (len(got) == 0) || !strings.Contains(strings.Join(got, "\n"), tt.problem) {
			t.Errorf("%s: %d dialogs, problems %q, want %d and %q", tt.path, p.Dialogs(), got, tt.dialogs, tt.problem)
		}
		if !seen.Dark || !strings.HasPrefix(seen.Lang, "tr") || tt.path == "/quiet" && seen.Width < 390 {
			t.Errorf("%s: the page sees %+v", tt.path, seen)
		}
		shot := filepath.Join(t.TempDir(), "page.png")
		p.Shot(shot)
		if info, err := os.Stat(shot); err != nil || info.Size() == 0 {
			t.Errorf("%s: picture: %v", tt.path, err)
		}
	}
}
