package limit

import (
	"fmt"
	"slices"
	"time"

	"penstock.dev/services/internal/rule"
)

type markKey struct {
	tenant, address string
	decision        [16]byte
}

// A mark is what a store remembers of a decision that was corrected.
type mark struct {
	until    time.Time
	cost     int64 // units that the decision charged
	refunded int64 // in all
	settled  *made // nil: not
	to       int64 // the cost it was settled at
	fixed    bool  // the items of fixed cost were given back
	refunds  []made
	lost     []int64 // by item, units of the settlement that its counter had no room for
}

// A made is a correction that was made, and its answer.
type made struct {
	id                 string
	units, total, left int64
}

func (m made) answer(e Effect, now time.Time) CorrectionAnswer {
	return CorrectionAnswer{Effect: e, Now: now, Units: m.units, RefundedTotal: m.total, Left: m.left}
}

// left is what can still be given back.
func (m *mark) left() int64 {
	cost := m.cost
	if m.settled != nil {
		cost = m.to
	}
	return max(0, cost-m.refunded)
}

func (m *mark) key(c *Correction) markKey {
	if c.Tenant != "" {
		return markKey{tenant: c.Tenant, decision: c.DecisionID}
	}
	return markKey{address: c.Address, decision: c.DecisionID}
}

// MaxRefundID bounds a Refund's id, in bytes.
const MaxRefundID = 128

// Validate returns an error that wraps ErrBounds where a correction cannot be
// counted.
func (c *Correction) Validate() error {
	switch {
	case c.Cost < 1 || c.Cost > rule.Unlimited:
		return fmt.Errorf("cost of %d, want 1 to %d: %w", c.Cost, rule.Unlimited, ErrBounds)
	case c.Units < 0 || c.Units > rule.Unlimited:
		return fmt.Errorf("refund of %d, want 0 to %d: %w", c.Units, rule.Unlimited, ErrBounds)
	case c.Settle < 0 || c.Settle > rule.Unlimited:
		return fmt.Errorf("cost of %d, want 0 to %d: %w", c.Settle, rule.Unlimited, ErrBounds)
	case len(c.Refund) > MaxRefundID:
		return fmt.Errorf("refund id of %d bytes, want at most %d: %w", len(c.Refund), MaxRefundID, ErrBounds)
	}
	if at := c.At.UnixMicro(); at < 0 || at > maxExact {
		return fmt.Errorf("decided at %v: %w", c.At, ErrBounds)
	}
	for i := range c.Items {
		if err := c.Items[i].Validate(); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// Correct is the model of a whole correction at the store's time now, and the
// reference for the script of package counters.
//
// What is left of a decision is the cost it was settled at, else the cost it
// charged, less all its refunds. A refund gives back what it asks for or
// nothing. A settlement gives back what the decision cost too much, as far as
// refunds have left it, or charges the rest, past any limit.
//
// Units go back to the counters that were charged. Quotas and wallets refund
// them in their period. Windows and logs give them back while the charge
// counts, and count what a settlement adds at the decision's time; buckets move
// back as far as they owe. Items of fixed cost move once and all at once: when a
// refund or a settlement leaves nothing.
//
// A counter gives back no more than it counts: what it had no room for, when a
// settlement added it, is what later refunds give back first.
//
// The store that was emptied at Emptied knows nothing of corrections before, so
// it corrects no decision of before.
//
// The error wraps ErrBounds; nothing is changed then.
func Correct(s State, now time.Time, c Correction) (CorrectionAnswer, error) {
	now = time.UnixMicro(now.UnixMicro()).UTC()
	if err := c.Validate(); err != nil {
		return CorrectionAnswer{}, err
	}
	models := make([]algorithm, len(c.Items))
	for i := range c.Items {
		m, err := model(&c.Items[i].Charge)
		if err != nil {
			return CorrectionAnswer{}, fmt.Errorf("item %d: %w", i, err)
		}
		models[i] = m
	}
	if s.Lost || c.At.Before(s.Emptied) {
		return CorrectionAnswer{Effect: Forgotten, Now: now}, nil
	}
	m, known := s.marks[new(mark).key(&c)]
	if !known || !now.Before(m.until) {
		m = mark{cost: c.Cost}
	}
	m.refunds = slices.Clone(m.refunds)
	a, whole := m.correct(now, &c)
	if a.Effect != Corrected {
		return a, nil
	}
	if c.Refund == "" {
		m.lost = make([]int64, len(c.Items))
	}
	a.Items = make([]Moved, len(c.Items))
	for i, alg := range models {
		item := &c.Items[i]
		units := a.Units // to charge, or negative
		switch {
		case item.Fixed && whole:
			units = -item.Cost
		case item.Fixed:
			units = 0
		case c.Refund != "":
			units = -m.owed(a.Units, i)
		}
		a.Items[i] = s.move(alg, &item.Charge, units, c.At.UnixMicro(), now.UnixMicro())
		if c.Refund == "" && units > 0 {
			m.lost[i] = units - a.Items[i].Units
		}
	}
	m.until = now.Add(RememberCorrections)
	s.marks[m.key(&c)] = m
	return a, nil
}

// correct takes c into the mark where it is to be made. Whole says that items
// of fixed cost move.
func (m *mark) correct(now time.Time, c *Correction) (a CorrectionAnswer, whole bool) {
	if c.Refund == "" {
		return m.settle(now, c.Settle)
	}
	for _, r := range m.refunds {
		if r.id == c.Refund {
			return r.answer(Repeated, now), false
		}
	}
	left, units := m.left(), c.Units
	if units == 0 {
		units = left
	}
	switch {
	case left == 0 || units > left:
		return CorrectionAnswer{Effect: Exceeds, Now: now, RefundedTotal: m.refunded, Left: left}, false
	case len(m.refunds) >= MaxRefunds:
		return CorrectionAnswer{Effect: TooMany, Now: now, RefundedTotal: m.refunded, Left: left}, false
	}
	m.refunded += units
	r := made{id: c.Refund, units: units, total: m.refunded, left: left - units}
	m.refunds = append(m.refunds, r)
	whole = r.left == 0 && !m.fixed
	m.fixed = m.fixed || whole
	return r.answer(Corrected, now), whole
}

// owed is how many of the units of the last refund item i's counter has counted.
func (m *mark) owed(units int64, i int) int64 {
	if m.settled == nil || i >= len(m.lost) {
		return units
	}
	since := m.refunded - m.settled.total // by refunds after the settlement, this one included
	return max(0, since-m.lost[i]) - max(0, since-units-m.lost[i])
}

func (m *mark) settle(now time.Time, cost int64) (a CorrectionAnswer, whole bool) {
	switch {
	case m.settled != nil && m.to == cost:
		return m.settled.answer(Repeated, now), false
	case m.settled != nil:
		return CorrectionAnswer{Effect: Settled, Now: now, RefundedTotal: m.refunded, Left: m.left()}, false
	}
	units := max(cost-m.cost, -max(0, m.cost-m.refunded))
	m.settled, m.to = &made{units: units, total: m.refunded}, cost
	m.settled.left = m.left()
	whole = m.settled.left == 0 && !m.fixed
	m.fixed = m.fixed || whole
	return m.settled.answer(Corrected, now), whole
}

// move charges units of one counter, whatever its limit, or gives them back
// where they are negative.
func (s State) move(m algorithm, c *Charge, units, at, now int64) Moved {
	id := c.Counter.Canonical()
	v, moved := s.Counters[id], units
	switch {
	case units > 0:
		v, moved = m.add(v, units, at, now)
	case units < 0:
		var given int64
		v, given = m.give(v, -units, at, now)
		moved = -given
	}
	if moved != 0 {
		s.Counters[id] = v
	}
	var r Result
	m.show(v, now, &r)
	return Moved{Units: moved, Totals: Totals{Consumed: r.Consumed, Refunded: r.Refunded}}
}
