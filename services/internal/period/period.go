// Package period knows where a quota's periods begin and end: calendar and
// anniversary periods in an IANA zone, and what happens when their definition
// changes while one is running.
//
// Boundaries are local times, computed from the epoch or the anchor each time,
// so a 31st survives a February. A local time that a clock change leaves out
// takes the offset before the gap, and one that comes twice is the first
// (RFC 5545). Every instant lies in exactly one period: a period ends where
// the next begins. So a local day has 23 or 25 hours where the clocks change,
// the hour that comes twice is one period of two hours, and a day that a zone
// left out altogether is none.
package period

import (
	"errors"
	"fmt"
	"time"
)

// A Unit is the length that a period repeats by.
type Unit string

// The units of a period, from the shortest.
const (
	Hour  Unit = "hour"
	Day   Unit = "day"
	Week  Unit = "week"
	Month Unit = "month"
	Year  Unit = "year"
)

// An Alignment says where periods begin.
type Alignment string

// Calendar periods begin where the calendar does (a month on the 1st, a week
// on Monday, in the zone); anniversary periods begin at an anchor.
//
// Calendar periods of several units are counted from the first of 1970 in the
// zone, weeks from Monday, 5 January 1970: two months are January and
// February, ten years begin in 2020.
const (
	Calendar    Alignment = "calendar"
	Anniversary Alignment = "anniversary"
)

// MaxCount is the most units a period may span, MaxYears the most years.
const (
	MaxCount = 1000
	MaxYears = 100
)

// A Spec defines a repeating span of calendar time.
type Spec struct {
	Unit      Unit
	Count     int // units per period, 1 to MaxCount (years: to MaxYears)
	Alignment Alignment
	Zone      *time.Location // nil: the tenant's
	Anchor    time.Time      // first instant of an anniversary period, to the microsecond; zero: the tenant's
}

// ErrSpec reports a definition that has no periods. The text says which field
// is wrong, by its name on the wire.
var ErrSpec = errors.New("invalid period")

// Validate returns an error that wraps ErrSpec, or nil. Zone and Anchor may be
// left to the tenant.
func (s Spec) Validate() error {
	most := MaxCount
	switch s.Unit {
	case Hour, Day, Week, Month:
	case Year:
		most = MaxYears
	default:
		return fmt.Errorf("%w: unit %q is not hour, day, week, month or year", ErrSpec, s.Unit)
	}
	if s.Count < 1 || s.Count > most {
		return fmt.Errorf("%w: count is %d %ss, want 1 to %d", ErrSpec, s.Count, s.Unit, most)
	}
	if s.Alignment != Calendar && s.Alignment != Anniversary {
		return fmt.Errorf("%w: alignment %q is not calendar or anniversary", ErrSpec, s.Alignment)
	}
	return nil
}

// In is the definition with the tenant's zone and anchor where it has none of
// its own.
func (s Spec) In(zone *time.Location, anchor time.Time) Spec {
	if s.Zone == nil {
		s.Zone = zone
	}
	if s.Anchor.IsZero() {
		s.Anchor = anchor
	}
	return s
}

// A Span is one period, [Start, End). Both are in UTC.
type Span struct {
	Start, End time.Time
}

// Contains reports whether t lies in the span. The zero Span contains nothing.
func (s Span) Contains(t time.Time) bool { return !t.Before(s.Start) && t.Before(s.End) }

// The years that At answers for. Beyond them clocks and counters disagree
// about whole numbers of microseconds.
const (
	minYear = 1900
	maxYear = 2150
)

// At returns the period that contains t. The error wraps ErrSpec.
//
// It costs less than a microsecond (BenchmarkAt), but for a zone's first use,
// which tabulates the zone. The answer holds until its End: a caller on a hot
// path keeps it, or asks a Memo.
func (s Spec) At(t time.Time) (Span, error) {
	if err := s.Validate(); err != nil {
		return Span{}, err
	}
	switch {
	case s.Zone == nil:
		return Span{}, fmt.Errorf("%w: zone is missing", ErrSpec)
	case s.Alignment == Anniversary && s.Anchor.IsZero():
		return Span{}, fmt.Errorf("%w: anchor is missing", ErrSpec)
	case s.Alignment == Anniversary && (s.Anchor.Year() < minYear || s.Anchor.Year() > maxYear):
		return Span{}, fmt.Errorf("%w: anchor is in the year %d, want %d to %d", ErrSpec, s.Anchor.Year(), minYear, maxYear)
	case t.Year() < minYear || t.Year() > maxYear:
		return Span{}, fmt.Errorf("%w: asked for the year %d, want %d to %d", ErrSpec, t.Year(), minYear, maxYear)
	}
	z := offsetsOf(s.Zone)
	start, end := s.grid(z).around(t.UnixMicro(), z)
	return Span{Start: time.UnixMicro(start).UTC(), End: time.UnixMicro(end).UTC()}, nil
}
