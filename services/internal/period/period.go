// Package period knows where a quota's periods begin and end: calendar and
// anniversary periods in an IANA zone, and what happens when their definition
// changes while one is running.
package period

import "time"

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
const (
	Calendar    Alignment = "calendar"
	Anniversary Alignment = "anniversary"
)

// MaxCount is the most units a period may span.
const MaxCount = 1000

// A Spec defines a repeating span of calendar time.
type Spec struct {
	Unit      Unit
	Count     int // units per period, 1 to MaxCount
	Alignment Alignment
	Zone      *time.Location // nil: the tenant's
	Anchor    time.Time      // first instant of an anniversary period; zero: the tenant's
}

// A Span is one period, [Start, End). Both are in UTC.
type Span struct {
	Start, End time.Time
}

// A Former is a definition that was in force. The period that was running at
// Until under Spec ends as it was promised; End is that end when it is known,
// and otherwise it is derived from Until.
type Former struct {
	Spec  Spec
	Until time.Time // instant of the change
	End   time.Time // zero: the end of the period that contains Until
}

// Contains reports whether t lies in the span. The zero Span contains nothing.
func (s Span) Contains(t time.Time) bool { return !t.Before(s.Start) && t.Before(s.End) }
