package period_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/internal/period"
)

// zones have clock changes of every sort: at midnight, of half an hour, of a
// whole day, by two hours, south of the equator, none at all, and none so far.
var zones = []string{
	"UTC", "Europe/Istanbul", "America/New_York", "America/Santiago", "America/Havana", "Africa/Cairo",
	"Australia/Lord_Howe", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham", "Asia/Kolkata", "Asia/Kathmandu",
	"America/St_Johns", "America/Sao_Paulo", "Asia/Tehran", "Asia/Amman", "Africa/Casablanca", "Antarctica/Troll",
	"Pacific/Kwajalein", "America/Caracas", "Asia/Pyongyang", "Europe/Dublin", "Antarctica/Casey", "Pacific/Kiritimati",
}

var units = []period.Unit{period.Hour, period.Day, period.Week, period.Month, period.Year}

func instants(from, to int) *rapid.Generator[time.Time] {
	first := time.Date(from, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	last := time.Date(to, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	return rapid.Map(rapid.Int64Range(first, last), func(us int64) time.Time { return time.UnixMicro(us).UTC() })
}

// near draws an instant of the zone, half of the time within two days of a
// clock change.
func near(t *rapid.T, zone *time.Location) time.Time {
	when := instants(1971, 2100).Draw(t, "when")
	if rapid.Bool().Draw(t, "near a clock change") {
		if start, _ := when.In(zone).ZoneBounds(); start.Year() >= 1970 {
			when = start.Add(time.Duration(rapid.Int64Range(-48*3600, 48*3600).Draw(t, "s")) * time.Second)
		}
	}
	return when
}

func spec(t *rapid.T) period.Spec {
	zone, err := period.Zone(rapid.SampledFrom(zones).Draw(t, "zone"))
	if err != nil {
		t.Fatal(err)
	}
	s := period.Spec{
		Unit:      rapid.SampledFrom(units).Draw(t, "unit"),
		Count:     rapid.OneOf(rapid.Just(1), rapid.IntRange(1, 12)).Draw(t, "count"),
		Alignment: rapid.SampledFrom([]period.Alignment{period.Calendar, period.Anniversary}).Draw(t, "alignment"),
		Zone:      zone,
	}
	if s.Alignment == period.Anniversary {
		s.Anchor = near(t, zone)
	}
	return s
}

// TestPeriodsTouch guarantees for every definition that each instant lies in
// exactly one period: At's span contains it, is the same for its first and
// last instant, and ends where the next begins.
func TestPeriodsTouch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := spec(t)
		touching(t, s.At, near(t, s.Zone))
	})
}

// TestLastDayOfLeapYears guarantees periods on a day for which the standard
// library's zone bounds end before they begin.
func TestLastDayOfLeapYears(t *testing.T) {
	t.Parallel()
	s := calendar(t, period.Day, 1, "America/New_York")
	want(t, s.At, "2040-12-31T12:00:00Z", "2040-12-31T05:00:00Z", "2041-01-01T05:00:00Z")
	want(t, s.At, "2041-01-01T04:59:59Z", "2040-12-31T05:00:00Z", "2041-01-01T05:00:00Z")
	want(t, s.At, "2041-01-01T05:00:00Z", "2041-01-01T05:00:00Z", "2041-01-02T05:00:00Z")
}

// TestTimelinesTouch guarantees the same across changes of the definition.
func TestTimelinesTouch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := period.Timeline{Current: spec(t)}
		when := instants(2000, 2040).Draw(t, "t")
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			l.Former = append(l.Former, period.Former{Spec: spec(t), Until: when})
			when = when.Add(time.Duration(rapid.Int64Range(0, 5_000_000).Draw(t, "s")) * time.Second)
		}
		touching(t, l.At, when.Add(time.Duration(rapid.Int64Range(-20_000_000, 20_000_000).Draw(t, "about"))*time.Second))
	})
}

func touching(t *rapid.T, at func(time.Time) (period.Span, error), when time.Time) {
	ask := func(when time.Time) period.Span {
		span, err := at(when)
		if err != nil {
			t.Fatal(err)
		}
		if !span.Contains(when) {
			t.Fatalf("At(%v) = %v, which does not contain it", when, span)
		}
		return span
	}
	span := ask(when)
	for range 3 {
		if got := ask(span.Start); got != span {
			t.Fatalf("At(start) = %v, want %v", got, span)
		}
		if got := ask(span.End.Add(-time.Nanosecond)); got != span {
			t.Fatalf("At(end - 1ns) = %v, want %v", got, span)
		}
		next := ask(span.End)
		if next.Start != span.End || !next.End.After(next.Start) {
			t.Fatalf("%v is followed by %v", span, next)
		}
		span = next
	}
}

// TestBoundariesFollowTheLocalClock guarantees that At finds the boundaries of
// the definition and no others: it agrees with a plain enumeration of local
// times, each looked up by trying every offset that the zone has near it.
func TestBoundariesFollowTheLocalClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := spec(t)
		when := near(t, s.Zone)
		got, err := s.At(when)
		if err != nil {
			t.Fatal(err)
		}
		if want := enumerate(s, when); got != want {
			t.Fatalf("%d %s %s %v: At(%v) = %v, want %v", s.Count, s.Unit, s.Alignment, s.Anchor, when, got, want)
		}
	})
}

// TestHoursOfALeftOutDay guarantees hours where more of them are left out than
// a period has: Samoa skipped 2011-12-30, Troll and Casey jump by 2 and 3 hours.
func TestHoursOfALeftOutDay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"Pacific/Apia": "2011-12-30T10:00:00Z", "Antarctica/Troll": "2026-03-29T01:00:00Z", "Antarctica/Casey": "2010-03-04T15:00:00Z",
	} {
		for count := 1; count <= 12; count++ {
			s := calendar(t, period.Hour, count, name)
			boundaries := boundariesAround(s, at(t, change), 150/count)
			for minutes := -48 * 60; minutes <= 48*60; minutes += 30 {
				when := at(t, change).Add(time.Duration(minutes) * time.Minute)
				got, err := s.At(when)
				if want := between(boundaries, when); err != nil || got != want {
					t.Fatalf("%s, %d hours: At(%v) = %v, %v, want %v", name, count, when, got, err, want)
				}
			}
		}
	}
}

// enumerate is At by hand: it lists boundaries around t.
func enumerate(s period.Spec, t time.Time) period.Span {
	return between(boundariesAround(s, t, 0), t)
}

func between(boundaries []time.Time, t time.Time) period.Span {
	i := slices.IndexFunc(boundaries, func(b time.Time) bool { return b.After(t) })
	return period.Span{Start: boundaries[i-1], End: boundaries[i]}
}

// boundariesAround lists boundaries on both sides of t, and more of them.
func boundariesAround(s period.Spec, t time.Time, more int) []time.Time {
	origin := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	if s.Unit == period.Week {
		origin = time.Date(1970, 1, 5, 0, 0, 0, 0, time.UTC)
	}
	if s.Alignment == period.Anniversary {
		a := s.Anchor.In(s.Zone)
		origin = time.Date(a.Year(), a.Month(), a.Day(), a.Hour(), a.Minute(), a.Second(), a.Nanosecond(), time.UTC)
	}
	length := map[period.Unit]time.Duration{
		period.Hour: time.Hour, period.Day: 24 * time.Hour, period.Week: 7 * 24 * time.Hour,
		period.Month: 30 * 24 * time.Hour, period.Year: 365 * 24 * time.Hour,
	}[s.Unit] * time.Duration(s.Count)
	guess := int(t.Sub(origin) / length)
	around := more + 4 + int(60*time.Hour/length)
	if s.Unit == period.Month || s.Unit == period.Year {
		around += max(guess, -guess)/50 + 4
	}
	boundaries := []time.Time{}
	for k := guess - around; k <= guess+around; k++ {
		boundaries = append(boundaries, lookUp(boundary(origin, s.Unit, k*s.Count), s.Zone))
	}
	slices.SortFunc(boundaries, time.Time.Compare)
	return boundaries
}

// boundary is origin plus n units by the local clock, written in UTC.
func boundary(origin time.Time, unit period.Unit, n int) time.Time {
	months := 0
	switch unit {
	case period.Hour:
		return origin.Add(time.Duration(n) * time.Hour)
	case period.Day:
		return origin.AddDate(0, 0, n)
	case period.Week:
		return origin.AddDate(0, 0, 7*n)
	case period.Month:
		months = n
	case period.Year:
		months = 12 * n
	}
	b := origin.AddDate(0, months, 0)
	if b.Day() != origin.Day() { // ran over into the next month
		b = b.AddDate(0, 0, -b.Day())
	}
	return b
}

// lookUp finds the instant at which the zone's clock reads local, which is
// written in UTC.
func lookUp(local time.Time, zone *time.Location) time.Time {
	offsets, before := map[time.Duration]bool{}, time.Duration(0)
	for u := local.Add(-27 * time.Hour); u.Before(local.Add(27 * time.Hour)); u = u.Add(5 * time.Minute) {
		_, seconds := u.In(zone).Zone()
		off := time.Duration(seconds) * time.Second
		offsets[off] = true
		if u.Add(off).Before(local) {
			before = off
		}
	}
	var first time.Time
	for off := range offsets {
		u := local.Add(-off)
		if _, seconds := u.In(zone).Zone(); time.Duration(seconds)*time.Second == off && (first.IsZero() || u.Before(first)) {
			first = u
		}
	}
	if first.IsZero() {
		return local.Add(-before)
	}
	return first
}
