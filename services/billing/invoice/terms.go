// Package invoice knows when a tenant's billing periods are, which of them are due,
// and what an invoice says.
//
// A period is a calendar period in the tenant's zone, or an anniversary period where
// the tenant has an anchor. Boundaries are computed from the calendar or the anchor
// each time, never from the last invoice's date, and never in UTC. A period is billed
// once: it is identified by its first instant, and whoever keeps the books holds that
// to be unique.
package invoice

import (
	"fmt"
	"time"

	"penstock.dev/services/internal/period"
)

// Terms are what a tenant's calendar is made of.
type Terms struct {
	Zone   *time.Location
	Anchor time.Time   // zero: calendar periods
	Unit   period.Unit // of the plan's fee; empty: month
	Former []Former    // zones and anchors before a change
}

// A Former is a zone and an anchor that were in force until a change. The period that
// was running then ends as it was promised.
type Former struct {
	Zone   *time.Location
	Anchor time.Time
	Until  time.Time
}

// Timeline is the billing periods.
func (t Terms) Timeline() period.Timeline {
	l := period.Timeline{Current: t.spec(t.Zone, t.Anchor)}
	for _, f := range t.Former {
		l.Former = append(l.Former, period.Former{Spec: t.spec(f.Zone, f.Anchor), Until: f.Until})
	}
	return l
}

// Days is the days of the zone that the tenant had then: a day that was counted stays the
// same day whatever the zone becomes.
func (t Terms) Days() period.Timeline {
	l := period.Timeline{Current: day(t.Zone)}
	for _, f := range t.Former {
		l.Former = append(l.Former, period.Former{Spec: day(f.Zone), Until: f.Until})
	}
	return l
}

func day(zone *time.Location) period.Spec {
	return period.Spec{Unit: period.Day, Count: 1, Alignment: period.Calendar, Zone: zone}
}

func (t Terms) spec(zone *time.Location, anchor time.Time) period.Spec {
	s := period.Spec{Unit: t.unit(), Count: 1, Alignment: period.Calendar, Zone: zone}
	if !anchor.IsZero() {
		s.Alignment, s.Anchor = period.Anniversary, anchor
	}
	return s
}

func (t Terms) unit() period.Unit {
	if t.Unit == "" {
		return period.Month
	}
	return t.Unit
}

// A Placer is a tenant's calendar with the periods that are already there. A period
// that is there keeps its bounds whatever the terms become; between and after them the
// terms say. It is not safe for concurrent use.
type Placer struct {
	Periods  []Period // ascending, without overlap
	timeline *period.Memo
	days     *period.Memo
	half     time.Duration
	last     int
}

// A Period is a billing period that is in the books.
type Period struct {
	period.Span
	Final bool
}

// NewPlacer returns the calendar of the terms with the periods that are there.
func NewPlacer(t Terms, periods []Period) *Placer {
	return &Placer{Periods: periods, timeline: period.NewMemo(t.Timeline()), days: period.NewMemo(t.Days()), half: halves[t.unit()]}
}

// Day is the first instant of the tenant's day.
func (p *Placer) Day(at time.Time) (time.Time, error) {
	s, err := p.days.At(at)
	return s.Start, err
}

// Find returns the index of the period that contains the instant, or false.
func (p *Placer) Find(at time.Time) (int, bool) {
	if p.last < len(p.Periods) && p.Periods[p.last].Contains(at) {
		return p.last, true
	}
	for i := len(p.Periods) - 1; i >= 0; i-- {
		if p.Periods[i].Contains(at) {
			p.last = i
			return i, true
		}
	}
	return 0, false
}

// New is the period that contains the instant where none is in the books: what the terms
// say, cut where others are. A rest that a change of terms leaves, shorter than half a
// period, is no period of its own, for it would cost a whole fee: it is the beginning of
// the next.
func (p *Placer) New(at time.Time) (period.Span, error) {
	s, err := p.timeline.At(at)
	if err != nil {
		return period.Span{}, fmt.Errorf("billing period at %s: %w", at.Format(time.RFC3339), err)
	}
	free := p.free(at)
	begins := s.Start
	s = cut(s, free)
	if p.short(s) {
		next, err := p.timeline.At(s.End)
		s.End = next.End
		return cut(s, free), err
	}
	if s.Start.Equal(begins) {
		before, err := p.timeline.At(s.Start.Add(-time.Microsecond))
		if err != nil {
			return s, err
		}
		if before = cut(before, free); before.Start.Before(before.End) && p.short(before) {
			s.Start = before.Start
		}
	}
	return s, nil
}

// free is the room about an instant that no period has.
func (p *Placer) free(at time.Time) period.Span {
	room := period.Span{End: at.AddDate(1000, 0, 0)}
	for _, other := range p.Periods {
		if !other.End.After(at) && other.End.After(room.Start) {
			room.Start = other.End
		}
		if other.Start.After(at) && other.Start.Before(room.End) {
			room.End = other.Start
		}
	}
	return room
}

// cut is the part of s that lies in the room.
func cut(s, room period.Span) period.Span {
	if s.Start.Before(room.Start) {
		s.Start = room.Start
	}
	if s.End.After(room.End) {
		s.End = room.End
	}
	return s
}

// short reports whether a span is less than half of a period.
func (p *Placer) short(s period.Span) bool { return s.End.Sub(s.Start) < p.half }

// halves are half of the shortest period of each unit.
var halves = map[period.Unit]time.Duration{
	period.Hour: 30 * time.Minute, period.Day: 11 * time.Hour, period.Week: 83 * time.Hour, period.Month: 14*24*time.Hour - time.Hour, period.Year: 182 * 24 * time.Hour,
}

// Add puts a period into its place.
func (p *Placer) Add(s period.Span) {
	i := len(p.Periods)
	for i > 0 && p.Periods[i-1].Start.After(s.Start) {
		i--
	}
	p.Periods = append(p.Periods, Period{})
	copy(p.Periods[i+1:], p.Periods[i:])
	p.Periods[i] = Period{Span: s}
	p.last = 0
}

// Into is the period whose invoice takes what belongs to period i: itself while it is
// open, else the first open one. It is false when that is not in the books yet.
func (p *Placer) Into(i int) (int, bool) {
	if !p.Periods[i].Final {
		return i, true
	}
	for j := range p.Periods {
		if !p.Periods[j].Final {
			return j, true
		}
	}
	return 0, false
}

// Fill returns the periods that are missing from since up to the one that runs at now,
// in order: what is billed has no gap.
func (p *Placer) Fill(since, now time.Time) ([]period.Span, error) {
	var out []period.Span
	at := since
	if len(p.Periods) > 0 && p.Periods[0].Start.Before(at) {
		at = p.Periods[0].Start
	}
	for !at.After(now) {
		if i, ok := p.Find(at); ok {
			at = p.Periods[i].End
			continue
		}
		s, err := p.New(at)
		if err != nil {
			return nil, err
		}
		p.Add(s)
		out = append(out, s)
		at = s.End
	}
	return out, nil
}

// Due are the periods that have ended long enough ago to become final, the oldest first.
func (p *Placer) Due(now time.Time, grace time.Duration) []period.Span {
	var out []period.Span
	for _, one := range p.Periods {
		if !one.Final && !now.Before(one.End.Add(grace)) {
			out = append(out, one.Span)
		}
	}
	return out
}
