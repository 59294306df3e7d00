package proof

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPageStandsAlone guarantees that the page shows every result with its
// figures, escapes what was measured, and needs neither a script nor another file.
func TestPageStandsAlone(t *testing.T) {
	t.Parallel()

	page := Page{
		Began: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Place: ".run/demo",
		Results: []Result{
			{Number: 1, Title: "It holds", Took: time.Second, Finding: Finding{
				Done: "one request", Expected: "200", Measured: "200", Held: true, Badges: []Badge{{"passed", "1 of 1", Good}},
				Bars: []Bar{{"Naive", 40, 20, 0}, {"Gateway", 30, 20, 10}},
			}},
			{Number: 2, Title: "It fails", Took: 2 * time.Second, Finding: Finding{Done: "two", Expected: "200", Measured: "<b>503</b> & no more"}},
			{Number: 3, Title: "It breaks", Err: errors.New("no route to host")},
		},
		Left: [][2]string{{"It is not run", "a search store"}},
	}
	path := filepath.Join(t.TempDir(), "run", "proof.html")
	if err := page.Write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		"2 of 3 proofs failed", "1. It holds", `<span class="tag ok">passed <b class="num">1 of 1</b></span>`, "✓ held",
		"✗ failed", "&lt;b&gt;503&lt;/b&gt; &amp; no more", "could not be finished: no route to host", "3.0 s", "0 ms",
		"needs a search store",
		`aria-label="Naive: 40 passed, the limit is 20"`, `x="50.00%" y="4" width="50.00%"`, `class="fill" y="4" width="75.00%"`, `<svg x="50.00%">`, "1 May 2026, 12:00:00 UTC", "--page:", ".panel{",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, refused := range []string{"<script", "<link", "<img", "src=", "href=\"http", "url(h", "@import", "ZgotmplZ", "style=\""} {
		if strings.Contains(text, refused) {
			t.Errorf("the page has %q", refused)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(left) != 1 {
		t.Errorf("beside the page lie %v, %v", left, err)
	}
}

// TestAnswerOfAPage guarantees the sentence that the page opens with.
func TestAnswerOfAPage(t *testing.T) {
	t.Parallel()

	held, failed := Result{Finding: Finding{Held: true}}, Result{}
	tests := []struct {
		page Page
		want string
	}{
		{Page{}, "No proof was run"},
		{Page{Results: []Result{held, held}}, "All 2 proofs held"},
		{Page{Results: []Result{held, failed}}, "1 of 2 proofs failed"},
		{Page{Results: []Result{held}, Stopped: "redis has died"}, "1 of 1 proofs held, then the run stopped"},
	}
	for _, tt := range tests {
		if got := tt.page.Answer(); got != tt.want {
			t.Errorf("answer %q, want %q", got, tt.want)
		}
	}
}
