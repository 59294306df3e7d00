//go:build integration

package counters_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
)

// TestIntegrationMetrics guarantees what each metric counts, by the value that
// it exposes.
func TestIntegrationMetrics(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	registry := prometheus.NewRegistry()
	s, err := counters.Open(counters.Config{URL: server.URL, Budget: budget}, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	read := func(name, label string) float64 { return value(t, registry, name, label) }
	ask := func() error {
		_, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, 1)}})
		return err
	}
	eventually(t, 10*time.Second, "three decisions", func() bool { _ = ask(); return read("penstock_counters_calls_total", "answered") >= 3 })
	if got := read("penstock_counters_script_loads_total", ""); got < 1 {
		t.Errorf("script loads %v", got)
	}
	calls := read("penstock_counters_calls_total", "answered")
	if d := read("penstock_counters_decisions_total", ""); d < calls {
		t.Errorf("%v decisions in %v calls", d, calls)
	}
	if n := read("penstock_counters_call_duration_seconds", ""); n != calls {
		t.Errorf("%v calls were timed, want %v", n, calls)
	}
	if off := read("penstock_counters_clock_offset_seconds", ""); off < -1 || off > 1 {
		t.Errorf("clock offset %v s of a server on this machine", off)
	}
	if open := read("penstock_counters_breaker_open", ""); open != 0 {
		t.Errorf("breaker open %v", open)
	}

	server.Freeze()
	eventually(t, 10*time.Second, "the breaker opens", func() bool { _ = ask(); return read("penstock_counters_breaker_open", "") == 1 })
	if misses := read("penstock_counters_calls_total", "timeout"); misses < counters.BreakerMisses {
		t.Errorf("opened after %v timeouts", misses)
	}
	eventually(t, 10*time.Second, "callers are spared", func() bool { _ = ask(); return read("penstock_counters_spared_total", "breaker") > 0 })
	server.Thaw()
	eventually(t, 10*time.Second, "the breaker closes", func() bool { _ = ask(); return read("penstock_counters_breaker_open", "") == 0 })
	server.Kill()
	eventually(t, 10*time.Second, "the connection is refused", func() bool { _ = ask(); return read("penstock_counters_calls_total", "connection") > 0 })
}

// value reads a metric, or the number of a histogram's observations.
func value(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Fatalf("no metric %s with %q", name, label)
	return 0
}

// TestIntegrationUsage guarantees what display reads: every quota of a page in
// one call, zero where nothing was used, and nothing guessed.
func TestIntegrationUsage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server.URL, generous)
	span := month(time.Now())
	a, b, none := quota("a", span, 100, 7), quota("b", span, 100, 9), quota("none", span, 100, 1)
	decide(t, s, a, b)
	if err := s.Refund(t.Context(), b.Counter, 4); err != nil {
		t.Fatal(err)
	}
	ids := []limit.Identity{b.Counter, none.Counter, a.Counter}
	got, err := s.Usage(t.Context(), ids)
	if diff := cmp.Diff([]limit.Totals{{Consumed: 9, Refunded: 4}, {}, {Consumed: 7}}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if err := server.Client().Set(t.Context(), counters.Key(none.Counter), "\x02", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Usage(t.Context(), ids); err == nil {
		t.Errorf("a value of another version was read as %v", got)
	}
	if got, err := s.Usage(t.Context(), nil); err != nil || got != nil {
		t.Errorf("no counters: %v, %v", got, err)
	}
}
