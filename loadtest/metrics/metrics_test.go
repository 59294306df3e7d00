package metrics

import (
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
		h, err := Histograms(t.Context(), srv.URL, metric)
		if err != nil {
			t.Fatal(err)
		}
		return h[metric]
	}
	const name = metric + "_bucket"
	before := read(name + "{le=\"0.001\"} 1000\n" + name + "{le=\"0.002\"} 1000\n" + name + "{le=\"+Inf\"} 1000\n")
	after := read("# HELP\n" + name + "{le=\"0.001\"} 1100\n" + name + "{le=\"0.002\"} 1200\n" + name + "{le=\"+Inf\"} 1201\nother 1\n")
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
	text = "nothing"
	if _, err := Histograms(t.Context(), srv.URL, metric); err == nil {
		t.Error("a gateway without the histogram is accepted")
	}
}
