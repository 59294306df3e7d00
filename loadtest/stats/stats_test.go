package stats_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"penstock.dev/loadtest/stats"
)

// TestQuantilesAreExact guarantees the nearest rank: a quantile is one of the
// durations, and at least that share of them does not exceed it.
func TestQuantilesAreExact(t *testing.T) {
	t.Parallel()
	var ds []time.Duration
	for i := 1000; i >= 1; i-- {
		ds = append(ds, time.Duration(i)*time.Millisecond)
	}
	got := stats.Of(ds)
	want := stats.Summary{
		Count: 1000, P50: stats.Millis(500 * time.Millisecond), P90: stats.Millis(900 * time.Millisecond),
		P99: stats.Millis(990 * time.Millisecond), P999: stats.Millis(999 * time.Millisecond), Max: stats.Millis(time.Second),
	}
	if got != want {
		t.Errorf("Of(1..1000 ms) = %+v, want %+v", got, want)
	}
	if ds[0] != time.Second {
		t.Error("Of changed its argument")
	}
	one := stats.Of(ds[:1])
	if one.P50 != one.Max || one.P50 != stats.Millis(time.Second) {
		t.Errorf("of one duration: %+v", one)
	}
	if none := stats.Of(nil); none != (stats.Summary{}) {
		t.Errorf("of none: %+v", none)
	}
}

// TestSummaryIsReadable guarantees milliseconds in JSON and in the table.
func TestSummaryIsReadable(t *testing.T) {
	t.Parallel()
	s := stats.Of([]time.Duration{1500 * time.Microsecond})
	b, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(b), `"p50_ms":1.500`) {
		t.Errorf("JSON = %s (%v), want p50_ms 1.500", b, err)
	}
	var table strings.Builder
	if err := stats.Table(&table, []stats.Row{{Name: "a row", Summary: s}}); err != nil {
		t.Fatal(err)
	}
	if got := table.String(); !strings.Contains(got, "a row") || !strings.Contains(got, "1.50") {
		t.Errorf("table:\n%s", got)
	}
}
