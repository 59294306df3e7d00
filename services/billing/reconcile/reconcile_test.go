package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"penstock.dev/services/billing/reconcile"
)

// TestCompare guarantees that a line that either side lacks or counts otherwise is a
// difference, in order, and that days before the topic's remaining ones are not compared.
func TestCompare(t *testing.T) {
	t.Parallel()
	day := func(d int) reconcile.Line {
		at := time.Date(2026, 6, d, 0, 0, 0, 0, time.UTC)
		return reconcile.Line{Tenant: "acme", Meter: "api-calls", Period: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), Day: at}
	}
	books := map[reconcile.Line]reconcile.Sum{day(1): {Calls: 9}, day(2): {Calls: 2, Units: 5}, day(3): {Calls: 1}, day(5): {Calls: 4}}
	events := map[reconcile.Line]reconcile.Sum{day(2): {Calls: 2, Units: 5}, day(3): {Calls: 2}, day(4): {Calls: 7}}
	got, compared := reconcile.Compare(books, events, day(2).Day)
	if compared != 4 || len(got) != 3 || got[0].Line != day(3) || got[1].Line != day(4) || got[1].Events.Calls != 7 || got[2].Line != day(5) || got[2].Books.Calls != 4 {
		t.Errorf("compared %d, found %+v", compared, got)
	}
	if got, compared := reconcile.Compare(books, events, time.Time{}); compared != 5 || len(got) != 4 {
		t.Errorf("with all days: compared %d, found %+v", compared, got)
	}
	r := reconcile.Report{Read: 10, Differences: got, Lost: 3, Totals: []reconcile.Totals{{Tenant: "acme", Meter: "api-calls", Net: 5, Unattributed: 2}}}
	text := strings.Join(r.Text(), "\n")
	for _, want := range []string{"read 10 events", "lost, by their numbers: 3", "unattributed 2", "DIFFERENCE acme api-calls", "3 differences, 0 faults"} {
		if r.OK() || !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
	if ok := (&reconcile.Report{}).Text(); ok[len(ok)-1] != "everything adds up" {
		t.Errorf("a report without fault says %v", ok)
	}
}
