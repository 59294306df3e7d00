package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestHistogramOfAWhile guarantees that quantiles are of what was observed
// between two scrapes, interpolated within the bucket that holds them.
func TestHistogramOfAWhile(t *testing.T) {
	t.Parallel()
	const metric = "ratelimit_decision_latency_seconds"
	text := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(text))
	}))
	defer srv.Close()
	read := func(s string) *Histogram {
		t.Helper()
		text = s
		page, err := Read(t.Context(), srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		h, err := page.Histogram(metric)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := page.Value(`other{of="this"}`); err != nil || n != 1 {
			t.Errorf("a series reads %v, %v; want 1", n, err)
		}
		return h
	}
	const name = metric + "_bucket"
	before := read(name + "{le=\"0.001\"} 1000\n" + name + "{le=\"0.002\"} 1000\n" + name + "{le=\"+Inf\"} 1000\nother{of=\"this\"} 1\n")
	after := read("# HELP\n" + name + "{le=\"0.001\"} 1100\n" + name + "{le=\"0.002\"} 1200\n" + name + "{le=\"+Inf\"} 1201\nother{of=\"this\"} 1\n")
	h := after.Since(before)
	if h.Count != 201 {
		t.Errorf("count = %d, want 201", h.Count)
	}
	for q, want := range map[float64]time.Duration{
		50.0 / 201: 500 * time.Microsecond, 150.0 / 201: 1500 * time.Microsecond, 1: 2 * time.Millisecond,
	} {
		if got := time.Duration(h.quantile(q)); got.Round(time.Microsecond) != want {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	if before.Since(before) != nil {
		t.Error("a while without observations has quantiles")
	}
	if _, err := (Page{"nothing"}).Histogram(metric); !errors.Is(err, ErrNone) {
		t.Errorf("a histogram that is not there: %v", err)
	}
	if _, err := (Page{"others 1"}).Value("other"); !errors.Is(err, ErrNone) {
		t.Errorf("a series that is not there: %v", err)
	}
}
