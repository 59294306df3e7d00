package period_test

import (
	"errors"
	"testing"
	"time"

	"penstock.dev/services/internal/period"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := period.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func calendar(t *testing.T, unit period.Unit, count int, zoneName string) period.Spec {
	t.Helper()
	return period.Spec{Unit: unit, Count: count, Alignment: period.Calendar, Zone: zone(t, zoneName)}
}

func anniversary(t *testing.T, unit period.Unit, count int, zoneName, local string) period.Spec {
	t.Helper()
	z := zone(t, zoneName)
	anchor, err := time.ParseInLocation("2006-01-02 15:04", local, z)
	if err != nil {
		t.Fatal(err)
	}
	return period.Spec{Unit: unit, Count: count, Alignment: period.Anniversary, Zone: z, Anchor: anchor}
}

// want checks the period that contains t, given as RFC 3339.
func want(t *testing.T, at func(time.Time) (period.Span, error), when, start, end string) {
	t.Helper()
	moment, err := time.Parse(time.RFC3339Nano, when)
	if err != nil {
		t.Fatal(err)
	}
	got, err := at(moment)
	if err != nil {
		t.Fatalf("At(%s): %v", when, err)
	}
	if s, e := got.Start.Format(time.RFC3339Nano), got.End.Format(time.RFC3339Nano); s != start || e != end {
		t.Errorf("At(%s) = [%s, %s), want [%s, %s)", when, s, e, start, end)
	}
}

// TestP1IstanbulMonth guarantees that a month ends at local midnight, to the
// instant, in a zone without clock changes.
func TestP1IstanbulMonth(t *testing.T) {
	t.Parallel()
	s := calendar(t, period.Month, 1, "Europe/Istanbul")
	want(t, s.At, "2026-01-31T20:59:59.999999999Z", "2025-12-31T21:00:00Z", "2026-01-31T21:00:00Z")
	want(t, s.At, "2026-01-31T21:00:00Z", "2026-01-31T21:00:00Z", "2026-02-28T21:00:00Z")
	march, err := s.At(at(t, "2026-03-15T00:00:00Z"))
	if err != nil {
		t.Fatal(err)
	}
	if got := march.End.Sub(march.Start); got != 744*time.Hour {
		t.Errorf("March 2026 has %v, want 744h", got)
	}
}

// TestP2NewYorkEdges guarantees that months and days are as long as the local
// clock makes them.
func TestP2NewYorkEdges(t *testing.T) {
	t.Parallel()
	month, day := calendar(t, period.Month, 1, "America/New_York"), calendar(t, period.Day, 1, "America/New_York")
	want(t, month.At, "2026-03-31T12:00:00Z", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z") // 743 h
	want(t, month.At, "2026-11-01T04:00:00Z", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z") // 721 h
	want(t, day.At, "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z")   // 23 h
	want(t, day.At, "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z")   // 25 h
}

// TestP3AnchorDayIsKept guarantees that a month's anniversary on the 31st
// survives short months, and stays at its local hour.
func TestP3AnchorDayIsKept(t *testing.T) {
	t.Parallel()
	s := anniversary(t, period.Month, 1, "America/New_York", "2026-01-31 10:00")
	want(t, s.At, "2026-02-01T00:00:00Z", "2026-01-31T15:00:00Z", "2026-02-28T15:00:00Z")
	want(t, s.At, "2026-03-01T00:00:00Z", "2026-02-28T15:00:00Z", "2026-03-31T14:00:00Z")
	want(t, s.At, "2026-04-01T00:00:00Z", "2026-03-31T14:00:00Z", "2026-04-30T14:00:00Z")
	want(t, s.At, "2026-05-01T00:00:00Z", "2026-04-30T14:00:00Z", "2026-05-31T14:00:00Z")
}

// TestFC25AnniversaryOnTheLastDays guarantees the boundaries of subscriptions
// that began on the 30th and 31st.
func TestFC25AnniversaryOnTheLastDays(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		anchor     string
		boundaries []string
	}{
		{"2024-01-30 00:00", []string{"2024-01-30", "2024-02-29", "2024-03-30", "2024-04-30", "2024-05-30"}},
		{"2025-01-31 00:00", []string{"2025-01-31", "2025-02-28", "2025-03-31", "2025-04-30", "2025-05-31"}},
	} {
		s := anniversary(t, period.Month, 1, "UTC", tt.anchor)
		for i := range 4 {
			start, end := tt.boundaries[i]+"T00:00:00Z", tt.boundaries[i+1]+"T00:00:00Z"
			want(t, s.At, start, start, end)
		}
	}
}

// TestP5MidnightGap guarantees that a day whose midnight the clocks leave out
// begins where the gap does, and that left-out and doubled anchors follow
// RFC 5545.
func TestP5MidnightGap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ zone, when, start, end string }{
		{"America/Santiago", "2026-09-06T12:00:00Z", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"},
		{"America/Havana", "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},
		{"Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"},
	} {
		want(t, calendar(t, period.Day, 1, tt.zone).At, tt.when, tt.start, tt.end)
	}
	gap := anniversary(t, period.Day, 1, "America/New_York", "2026-03-01 02:30")
	want(t, gap.At, "2026-03-08T07:30:00Z", "2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z")
	want(t, gap.At, "2026-03-08T07:29:59.999999Z", "2026-03-07T07:30:00Z", "2026-03-08T07:30:00Z")
	twice := anniversary(t, period.Day, 1, "America/New_York", "2026-10-01 01:30")
	want(t, twice.At, "2026-11-01T05:30:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z")
	want(t, twice.At, "2026-11-01T05:29:59.999999Z", "2026-10-31T05:30:00Z", "2026-11-01T05:30:00Z")
}

// TestFC26AucklandMonth guarantees that a month begins at the customer's
// midnight, half a day before UTC's.
func TestFC26AucklandMonth(t *testing.T) {
	t.Parallel()
	s := calendar(t, period.Month, 1, "Pacific/Auckland")
	want(t, s.At, "2024-01-31T10:59:59Z", "2023-12-31T11:00:00Z", "2024-01-31T11:00:00Z")
	want(t, s.At, "2024-01-31T11:00:00Z", "2024-01-31T11:00:00Z", "2024-02-29T11:00:00Z")
}

// TestCountedFromAFixedEpoch guarantees where calendar periods of several
// units begin.
func TestCountedFromAFixedEpoch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		unit             period.Unit
		count            int
		zone             string
		when, start, end string
	}{
		{"a quarter", period.Month, 3, "UTC", "2026-05-17T00:00:00Z", "2026-04-01T00:00:00Z", "2026-07-01T00:00:00Z"},
		{"a decade", period.Year, 10, "UTC", "2026-05-17T00:00:00Z", "2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"},
		{"a week begins on Monday", period.Week, 1, "Europe/Istanbul", "2026-11-29T20:59:59Z", "2026-11-22T21:00:00Z", "2026-11-29T21:00:00Z"},
		{"two weeks, from Monday 1970-01-05", period.Week, 2, "UTC", "1970-01-06T00:00:00Z", "1970-01-05T00:00:00Z", "1970-01-19T00:00:00Z"},
		{"six hours by the local clock, in winter", period.Hour, 6, "America/New_York", "2026-01-10T12:00:00Z", "2026-01-10T11:00:00Z", "2026-01-10T17:00:00Z"},
		{"six hours by the local clock, in summer", period.Hour, 6, "America/New_York", "2026-07-10T12:00:00Z", "2026-07-10T10:00:00Z", "2026-07-10T16:00:00Z"},
		{"before the epoch", period.Month, 2, "UTC", "1969-12-31T00:00:00Z", "1969-11-01T00:00:00Z", "1970-01-01T00:00:00Z"},
		{"a century", period.Year, 100, "UTC", "2026-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2070-01-01T00:00:00Z"},
		{"a half-hour zone", period.Hour, 1, "Asia/Kolkata", "2026-01-10T12:00:00Z", "2026-01-10T11:30:00Z", "2026-01-10T12:30:00Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want(t, calendar(t, tt.unit, tt.count, tt.zone).At, tt.when, tt.start, tt.end)
		})
	}
}

// TestClockChangesInsideHours guarantees that the hour that comes twice is one
// period, that the hour left out is none, and that a day left out (Samoa,
// 2011-12-30) is none.
func TestClockChangesInsideHours(t *testing.T) {
	t.Parallel()
	hour := calendar(t, period.Hour, 1, "America/New_York")
	want(t, hour.At, "2026-11-01T06:30:00Z", "2026-11-01T05:00:00Z", "2026-11-01T07:00:00Z")
	want(t, hour.At, "2026-03-08T06:59:59Z", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z")
	want(t, hour.At, "2026-03-08T07:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z")
	day := calendar(t, period.Day, 1, "Pacific/Apia")
	want(t, day.At, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z")
	want(t, day.At, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z")
	samoa := calendar(t, period.Hour, 1, "Pacific/Apia")
	want(t, samoa.At, "2011-12-30T12:30:00Z", "2011-12-30T12:00:00Z", "2011-12-30T13:00:00Z")
}

// TestChangeWhileAPeriodRuns guarantees that a running period ends as it was
// promised and the next begins there.
func TestChangeWhileAPeriodRuns(t *testing.T) {
	t.Parallel()
	utc, istanbul := calendar(t, period.Month, 1, "UTC"), calendar(t, period.Month, 1, "Europe/Istanbul")
	day := calendar(t, period.Day, 1, "UTC")
	change := func(s period.Spec, until string) period.Former { return period.Former{Spec: s, Until: at(t, until)} }

	t.Run("the zone moves east", func(t *testing.T) {
		t.Parallel()
		l := period.Timeline{Former: []period.Former{change(utc, "2026-05-10T00:00:00Z")}, Current: istanbul}
		want(t, l.At, "2026-05-01T00:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
		want(t, l.At, "2026-05-31T22:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
		want(t, l.At, "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-06-30T21:00:00Z")
		want(t, l.At, "2026-07-01T00:00:00Z", "2026-06-30T21:00:00Z", "2026-07-31T21:00:00Z")
		want(t, l.At, "2026-04-30T23:59:59Z", "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z")
	})
	t.Run("the zone moves west, leaving a stub", func(t *testing.T) {
		t.Parallel()
		l := period.Timeline{Former: []period.Former{change(istanbul, "2026-05-10T00:00:00Z")}, Current: utc}
		want(t, l.At, "2026-05-31T20:59:59Z", "2026-04-30T21:00:00Z", "2026-05-31T21:00:00Z")
		want(t, l.At, "2026-05-31T21:00:00Z", "2026-05-31T21:00:00Z", "2026-06-01T00:00:00Z")
		want(t, l.At, "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-07-01T00:00:00Z")
	})
	t.Run("what never came into force is skipped", func(t *testing.T) {
		t.Parallel()
		l := period.Timeline{Former: []period.Former{
			change(utc, "2026-05-10T00:00:00Z"), change(day, "2026-05-20T00:00:00Z"),
		}, Current: istanbul}
		want(t, l.At, "2026-05-25T00:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
		want(t, l.At, "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-06-30T21:00:00Z")
	})
	t.Run("two changes, each in force for a while, in any order", func(t *testing.T) {
		t.Parallel()
		l := period.Timeline{Former: []period.Former{
			change(day, "2026-06-05T12:00:00Z"), change(utc, "2026-05-10T00:00:00Z"),
		}, Current: istanbul}
		want(t, l.At, "2026-05-25T00:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
		want(t, l.At, "2026-06-05T13:00:00Z", "2026-06-05T00:00:00Z", "2026-06-06T00:00:00Z")
		want(t, l.At, "2026-06-06T00:00:00Z", "2026-06-06T00:00:00Z", "2026-06-30T21:00:00Z")
	})
	t.Run("a change in the very instant in which a late period begins is felt at its end", func(t *testing.T) {
		t.Parallel()
		l := period.Timeline{Former: []period.Former{
			change(utc, "2026-05-10T00:00:00Z"), change(istanbul, "2026-06-01T00:00:00Z"),
		}, Current: day}
		want(t, l.At, "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-06-30T21:00:00Z")
		want(t, l.At, "2026-07-01T00:00:00Z", "2026-07-01T00:00:00Z", "2026-07-02T00:00:00Z")
	})
	t.Run("an end that is known holds", func(t *testing.T) {
		t.Parallel()
		f := change(utc, "2026-05-10T00:00:00Z")
		f.End = at(t, "2026-05-31T21:00:00Z")
		l := period.Timeline{Former: []period.Former{f}, Current: istanbul}
		want(t, l.At, "2026-05-15T00:00:00Z", "2026-05-01T00:00:00Z", "2026-05-31T21:00:00Z")
		want(t, l.At, "2026-05-31T21:00:00Z", "2026-05-31T21:00:00Z", "2026-06-30T21:00:00Z")
	})
	t.Run("a memo says the same", func(t *testing.T) {
		t.Parallel()
		m := period.NewMemo(period.Timeline{Former: []period.Former{change(utc, "2026-05-10T00:00:00Z")}, Current: istanbul})
		for range 2 {
			want(t, m.At, "2026-05-31T22:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
			want(t, m.At, "2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-06-30T21:00:00Z")
			want(t, m.At, "2026-05-31T22:00:00Z", "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z")
		}
	})
}

// TestRefusedDefinitions guarantees that a definition without periods is an
// error that names the field.
func TestRefusedDefinitions(t *testing.T) {
	t.Parallel()
	good := calendar(t, period.Month, 1, "UTC")
	for name, spoil := range map[string]func(*period.Spec){
		"unit":         func(s *period.Spec) { s.Unit = "fortnight" },
		"count of 0":   func(s *period.Spec) { s.Count = 0 },
		"count":        func(s *period.Spec) { s.Count = period.MaxCount + 1 },
		"years":        func(s *period.Spec) { s.Unit, s.Count = period.Year, period.MaxYears+1 },
		"alignment":    func(s *period.Spec) { s.Alignment = "" },
		"zone":         func(s *period.Spec) { s.Zone = nil },
		"anchor":       func(s *period.Spec) { s.Alignment = period.Anniversary },
		"early anchor": func(s *period.Spec) { s.Alignment, s.Anchor = period.Anniversary, at(t, "1066-01-01T00:00:00Z") },
	} {
		s := good
		spoil(&s)
		if _, err := s.At(at(t, "2026-01-01T00:00:00Z")); !errors.Is(err, period.ErrSpec) {
			t.Errorf("%s: At = %v, want ErrSpec", name, err)
		}
		if _, err := (period.Timeline{Former: []period.Former{{Spec: s, Until: at(t, "2027-01-01T00:00:00Z")}}, Current: good}).At(at(t, "2026-01-01T00:00:00Z")); !errors.Is(err, period.ErrSpec) {
			t.Errorf("%s: Timeline.At = %v, want ErrSpec", name, err)
		}
	}
	if _, err := good.At(at(t, "2151-06-01T00:00:00Z")); !errors.Is(err, period.ErrSpec) {
		t.Errorf("the year 2151: At = %v, want ErrSpec", err)
	}
	if s := (period.Spec{Unit: period.Day, Count: 1, Alignment: period.Anniversary}).In(good.Zone, at(t, "2026-01-01T06:00:00Z")); s.Validate() != nil {
		t.Errorf("the tenant's zone and anchor did not fill the definition: %v", s.Validate())
	} else {
		want(t, s.At, "2026-05-01T00:00:00Z", "2026-04-30T06:00:00Z", "2026-05-01T06:00:00Z")
	}
}

// TestZoneNames guarantees that a zone means the same on every machine.
func TestZoneNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "Local", "Mars/Olympus", "../etc/passwd", "Europe", "Europe/", "/Europe/Paris", "europe/paris"} {
		if _, err := period.Zone(name); !errors.Is(err, period.ErrSpec) {
			t.Errorf("Zone(%q) = %v, want ErrSpec", name, err)
		}
	}
	for range 2 {
		for _, name := range []string{"UTC", "Europe/Paris", "Etc/GMT+5", "America/Argentina/Buenos_Aires"} {
			if z := zone(t, name); z.String() != name {
				t.Errorf("Zone(%s) = %v", name, z)
			}
		}
	}
	if z := zone(t, "UTC"); z != time.UTC {
		t.Error("UTC is not time.UTC")
	}
}
