package invoice_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/internal/period"
)

func zone(t rapid.TB, name string) *time.Location {
	t.Helper()
	z, err := period.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func at(t rapid.TB, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v.UTC()
}

// TestFC25 guarantees that monthly periods from the 29th to the 31st keep their day where
// the month has it, and touch without gap or overlap.
func TestFC25(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		anchor string
		bounds []string
	}{
		{"2024-01-30", []string{"2024-01-30", "2024-02-29", "2024-03-30", "2024-04-30", "2024-05-30"}},
		{"2025-01-31", []string{"2025-01-31", "2025-02-28", "2025-03-31", "2025-04-30", "2025-05-31"}},
	} {
		anchor := at(t, tt.anchor+"T00:00:00Z")
		p := invoice.NewPlacer(invoice.Terms{Zone: time.UTC, Anchor: anchor}, nil)
		last := at(t, tt.bounds[4]+"T00:00:00Z")
		spans, err := p.Fill(anchor, last.Add(-1))
		if err != nil || len(spans) != 4 {
			t.Fatalf("from %s: periods %v %v", tt.anchor, spans, err)
		}
		for i, s := range spans {
			if s.Start != at(t, tt.bounds[i]+"T00:00:00Z") || s.End != at(t, tt.bounds[i+1]+"T00:00:00Z") {
				t.Errorf("period %d of %s is %v, want %s to %s", i, tt.anchor, s, tt.bounds[i], tt.bounds[i+1])
			}
		}
		fifth, err := p.Fill(anchor, last)
		if err != nil || len(fifth) != 1 || fifth[0].Start != last {
			t.Errorf("the fifth period of %s: %v %v", tt.anchor, fifth, err)
		}
	}
}

// TestFC26Bounds guarantees that Auckland's January is that of Auckland's clock, and due
// at its end, not before.
func TestFC26Bounds(t *testing.T) {
	t.Parallel()

	p := invoice.NewPlacer(invoice.Terms{Zone: zone(t, "Pacific/Auckland")}, nil)
	end := at(t, "2024-01-31T11:00:00Z")
	if _, err := p.Fill(at(t, "2024-01-10T00:00:00Z"), end.Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if due := p.Due(end.Add(-time.Microsecond), 0); len(due) != 0 {
		t.Errorf("due before its end: %v", due)
	}
	due := p.Due(end, 0)
	if len(due) != 1 || due[0].Start != at(t, "2023-12-31T11:00:00Z") || due[0].End != end {
		t.Errorf("due at its end: %v", due)
	}
	if due := p.Due(end, time.Hour); len(due) != 0 {
		t.Errorf("due within the grace: %v", due)
	}
	for s, in := range map[string]bool{"2024-01-31T10:59:59Z": true, "2024-01-31T11:00:00Z": false, "2023-12-31T11:00:00Z": true, "2023-12-31T10:59:59Z": false} {
		if _, found := p.Find(at(t, s)); found != in {
			t.Errorf("%s is in January: %v, want %v", s, found, in)
		}
	}
}

// TestPeriodsTouch guarantees for any zone, anchor, change of terms and order of asking:
// periods in the books never overlap, none is empty, and filled ones leave no gap.
func TestPeriodsTouch(t *testing.T) {
	t.Parallel()

	cut := 0
	rapid.Check(t, func(t *rapid.T) {
		zones := []string{"UTC", "Europe/Istanbul", "America/New_York", "Pacific/Auckland", "Asia/Kathmandu", "America/Havana"}
		units := []period.Unit{period.Day, period.Week, period.Month, period.Year}
		terms := func() invoice.Terms {
			it := invoice.Terms{Zone: zone(t, rapid.SampledFrom(zones).Draw(t, "zone")), Unit: rapid.SampledFrom(units).Draw(t, "unit")}
			if rapid.Bool().Draw(t, "anniversary") {
				it.Anchor = time.Unix(rapid.Int64Range(1_700_000_000, 1_760_000_000).Draw(t, "anchor"), 0).UTC()
			}
			return it
		}
		from := at(t, "2026-01-01T00:00:00Z")
		p := invoice.NewPlacer(terms(), nil)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			for range rapid.IntRange(0, 4).Draw(t, "events") {
				when := from.Add(time.Duration(rapid.Int64Range(0, 400*24*3600).Draw(t, "at")) * time.Second)
				if _, found := p.Find(when); found {
					continue
				}
				s, err := p.New(when)
				if err != nil || !s.Contains(when) {
					t.Fatalf("period of %v is %v %v", when, s, err)
				}
				p.Add(s)
			}
			p = invoice.NewPlacer(terms(), p.Periods)
			cut += len(p.Periods)
		}
		if _, err := p.Fill(from, from.Add(400*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		for i, s := range p.Periods {
			if !s.Start.Before(s.End) {
				t.Fatalf("period %d is empty: %v", i, s)
			}
			if i > 0 && p.Periods[i-1].End != s.Start {
				t.Fatalf("periods %v and %v do not touch", p.Periods[i-1], s)
			}
		}
	})
	if cut == 0 {
		t.Error("no terms ever changed beside known periods: the property was not tried")
	}
}

// TestNoShortPeriod guarantees that a customer who moves to another zone pays no fee for
// the hours between the two midnights: they are part of the next period, whichever of its
// instants is asked for first.
func TestNoShortPeriod(t *testing.T) {
	t.Parallel()
	february := invoice.Period{Span: period.Span{Start: at(t, "2026-02-01T00:00:00Z"), End: at(t, "2026-03-01T00:00:00Z")}}
	terms := invoice.Terms{Zone: zone(t, "America/New_York"), Former: []invoice.Former{{Zone: time.UTC, Until: at(t, "2026-02-10T00:00:00Z")}}}
	forgotten := terms
	forgotten.Former = nil
	want := period.Span{Start: february.End, End: at(t, "2026-04-01T04:00:00Z")}
	for _, when := range []string{"2026-03-01T00:00:00Z", "2026-03-01T04:59:59Z", "2026-03-01T05:00:00Z", "2026-03-31T00:00:00Z"} {
		for name, p := range map[string]*invoice.Placer{
			"nothing in the books": invoice.NewPlacer(terms, nil), "February in the books": invoice.NewPlacer(terms, []invoice.Period{february}),
			"the change forgotten": invoice.NewPlacer(forgotten, []invoice.Period{february}),
		} {
			if got, err := p.New(at(t, when)); err != nil || got != want {
				t.Errorf("%s, at %s: %v %v, want %v", name, when, got, err, want)
			}
		}
	}
	after := invoice.NewPlacer(terms, []invoice.Period{{Span: want}})
	if got, err := after.New(want.End); err != nil || got.Start != want.End || got.End != at(t, "2026-05-01T04:00:00Z") {
		t.Errorf("the next is %v %v", got, err)
	}
}
