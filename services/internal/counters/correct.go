package counters

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.dev/services/internal/limit"
)

// Kinds of a correction's plan; lua/correct.lua says what each byte means.
const (
	kindRefund = 'R'
	kindSettle = 'S'
	kindMove   = 'M'

	flagFixed = 1 // of an item

	sinceBegan = 1 // cost of a move that is only made where what was charged then has not been lost since
)

// Bytes of a correction's reply.
const (
	correctionHead = 1 + 1 + 5*8 // effect, whether fixed items moved, now, units, total, left, elsewhere
	movedBytes     = 3 * 8       // units, consumed, refunded
)

// effects are those that a reply names.
var effects = map[byte]limit.Effect{
	'C': limit.Corrected, 'R': limit.Repeated, 'X': limit.Exceeds, 'S': limit.Settled, 'T': limit.TooMany, 'L': limit.Forgotten,
}

// A correcting is a correction, or some moves, as the script wants it.
type correcting struct {
	keys   []string
	plan   []byte
	refund string
	anyRun bool // whoever's counters these are
	parts  []chargePart
	items  []limit.Item
}

// newCorrecting encodes what c asks of items, which are some of its own. Of a
// move their costs are what they move by, negative to give back, and c's Units
// are how many µs before At they may have been charged. The error wraps
// limit.ErrBounds.
func newCorrecting(epoch string, kind byte, c *limit.Correction, items []limit.Item, costs []int64, floors *floors) (*correcting, error) {
	if len(items) > math.MaxUint8 {
		return nil, fmt.Errorf("%d items, want at most %d: %w", len(items), math.MaxUint8, limit.ErrBounds)
	}
	w := &correcting{keys: []string{epoch}, anyRun: kind == kindMove, parts: make([]chargePart, len(items)), items: items}
	w.plan, w.refund = append(w.plan, kind), c.Refund
	units := c.Units
	if kind == kindSettle {
		units = c.Settle
	}
	if kind == kindMove {
		w.plan = append(w.plan, 0, 0)
	} else {
		w.number(markKey(c))
	}
	for _, v := range []int64{c.Cost, c.At.UnixMicro(), units} {
		w.plan = appendDouble(w.plan, v)
	}
	for i := range items {
		p := &w.parts[i]
		if err := p.encode(&items[i].Charge); err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
		p.key = Key(items[i].Counter)
		if floors != nil && totalled(&items[i].Charge) {
			p.raise(floors.of(p.key))
		}
		w.number(p.key)
		flags := byte(0)
		if items[i].Fixed {
			flags = flagFixed
		}
		w.plan = append(w.plan, flags, p.algorithm)
		if kind == kindMove {
			p.cost = costs[i]
		}
		w.plan = appendDouble(w.plan, p.cost)
		for _, v := range p.numbers {
			w.plan = appendDouble(w.plan, v)
		}
	}
	return w, nil
}

// number appends a key's number to the plan.
func (w *correcting) number(key string) {
	i := slices.Index(w.keys, key)
	if i < 0 {
		i = len(w.keys)
		w.keys = append(w.keys, key)
	}
	w.plan = binary.BigEndian.AppendUint16(w.plan, uint16(i+1))
}

// command returns the words of an EVALSHA or EVAL.
func (w *correcting) command(verb string, script *string, now string, run *string) []any {
	words := make([]any, 0, 3+len(w.keys)+4)
	words = append(words, verb, script, len(w.keys))
	for _, k := range w.keys {
		words = append(words, k)
	}
	expected := ""
	if run != nil && !w.anyRun {
		expected = *run
	}
	return append(words, now, expected, w.plan, w.refund)
}

// An elsewhere is what a correction moves outside its owner's slot.
type elsewhere struct {
	units int64 // of each item, negative to give back
	whole bool  // those of fixed cost are given back
}

// parseCorrection reads the reply to a correction of n items.
func parseCorrection(reply string, n int) (a limit.CorrectionAnswer, rest elsewhere, err error) {
	if len(reply) < correctionHead {
		return a, rest, errReply
	}
	if reply[0] == statusUnreadable {
		return a, rest, ErrValue
	}
	effect, known := effects[reply[0]]
	if !known {
		return a, rest, errReply
	}
	a = limit.CorrectionAnswer{
		Effect: effect, Now: time.UnixMicro(int64(double(reply[2:]))).UTC(),
		Units: int64(double(reply[10:])), RefundedTotal: int64(double(reply[18:])), Left: int64(double(reply[26:])),
	}
	if effect != limit.Corrected {
		n = 0
	}
	if len(reply) != correctionHead+n*movedBytes {
		return limit.CorrectionAnswer{}, rest, errReply
	}
	for i := range n {
		s := reply[correctionHead+i*movedBytes:]
		a.Items = append(a.Items, limit.Moved{
			Units: int64(double(s)), Totals: limit.Totals{Consumed: int64(double(s[8:])), Refunded: int64(double(s[16:]))},
		})
	}
	return a, elsewhere{units: int64(double(reply[34:])), whole: reply[1] == 1}, nil
}

// Correct gives back what a decision charged, or charges the rest, within the
// budget. It is sent at most once; whoever does not learn how it ended may ask
// again, for a correction that was made is answered again.
//
// On a cluster what lies in the owner's slot is corrected and remembered at
// once, and what lies elsewhere, global and address rates, follows; that it may
// fail to is logged.
//
// The error wraps limit.ErrBounds when c cannot be counted, is ctx's own when
// ctx ended first, and else wraps ErrUnavailable.
func (s *Store) Correct(ctx context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	if err := c.Validate(); err != nil {
		return limit.CorrectionAnswer{}, err
	}
	slot, at := s.owned(&c)
	items := make([]limit.Item, len(at))
	for k, i := range at {
		items[k] = c.Items[i]
	}
	deadline := time.Now().Add(s.budget)
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	sh := s.shard(slot)
	w, err := newCorrecting(sh.epoch, kindOf(&c), &c, items, nil, s.floors)
	if err != nil {
		return limit.CorrectionAnswer{}, err
	}
	a, rest, err := sh.correct(within, "", w, deadline)
	if err != nil {
		return limit.CorrectionAnswer{}, s.wrap(ctx, err)
	}
	if len(at) == len(c.Items) || a.Effect != limit.Corrected {
		return a, nil
	}
	return s.follow(within, &c, a, at, rest, deadline), nil
}

func kindOf(c *limit.Correction) byte {
	if c.Refund == "" {
		return kindSettle
	}
	return kindRefund
}

// owned returns the slot of a correction's owner and which of its items lie
// there: on a single Redis, all.
func (s *Store) owned(c *limit.Correction) (slot int, at []int) {
	if s.cluster != nil {
		tag := appendOwner(nil, c.Tenant, c.Address)
		slot = slotOf(string(tag[1 : len(tag)-1]))
	}
	for i := range c.Items {
		if s.cluster == nil || slotOf(counterTag(c.Items[i].Counter)) == slot {
			at = append(at, i)
		}
	}
	return slot, at
}

// follow moves the items of a correction that lie outside its owner's slot, and
// returns the answer for all. Those were charged before the decision's time,
// within its budget.
func (s *Store) follow(ctx context.Context, c *limit.Correction, a limit.CorrectionAnswer, at []int, rest elsewhere, deadline time.Time) limit.CorrectionAnswer {
	all := make([]limit.Moved, len(c.Items))
	for k, i := range at {
		all[i] = a.Items[k]
	}
	a.Items = all
	bySlot := map[int][]int{}
	for i := range c.Items {
		if !slices.Contains(at, i) {
			slot := slotOf(counterTag(c.Items[i].Counter))
			bySlot[slot] = append(bySlot[slot], i)
		}
	}
	for slot, places := range bySlot {
		items, units := make([]limit.Item, len(places)), make([]int64, len(places))
		for k, i := range places {
			items[k], units[k] = c.Items[i], rest.units
			switch {
			case c.Items[i].Fixed && rest.whole:
				units[k] = -c.Items[i].Cost
			case c.Items[i].Fixed:
				units[k] = 0
			}
		}
		moved, err := s.move(ctx, slot, limit.Correction{At: c.At, Units: s.budget.Microseconds()}, items, units, deadline)
		if err != nil {
			s.log.WarnContext(ctx, "a correction did not reach counters outside its tenant's slot", "slot", slot, "error", err.Error())
			continue
		}
		for k, i := range places {
			all[i] = moved[k]
		}
	}
	return a
}

// move charges units of items in a slot, past any limit, or gives back what was
// charged at about c's time, where they are negative. Nothing is remembered of
// it.
func (s *Store) move(ctx context.Context, slot int, c limit.Correction, items []limit.Item, units []int64, deadline time.Time) ([]limit.Moved, error) {
	sh := s.shard(slot)
	w, err := newCorrecting(sh.epoch, kindMove, &c, items, units, s.floors)
	if err != nil {
		return nil, err
	}
	a, _, err := sh.correct(ctx, "", w, deadline)
	return a.Items, err
}

// correct sends w once, and once more where the store was lost and may be
// adopted.
func (sh *shard) correct(ctx context.Context, now string, w *correcting, deadline time.Time) (limit.CorrectionAnswer, elsewhere, error) {
	for adopted := false; ; {
		m := message{script: &sh.store.scripts.correct, words: w, now: now}
		a, rest, err := sh.correctOnce(ctx, &m, w, deadline)
		if err != nil || a.Effect != limit.Forgotten || adopted || !sh.store.adopts(ctx, &m, sh) {
			return a, rest, err
		}
		adopted = true
	}
}

func (sh *shard) correctOnce(ctx context.Context, m *message, w *correcting, deadline time.Time) (limit.CorrectionAnswer, elsewhere, error) {
	s := sh.store
	if !sh.allow(ctx) {
		return limit.CorrectionAnswer{}, elsewhere{}, errOpen
	}
	if err := sh.send(ctx, m, deadline); err != nil {
		return limit.CorrectionAnswer{}, elsewhere{}, err
	}
	a, rest, err := parseCorrection(m.reply(), len(w.items))
	if err == nil && s.floors != nil {
		for i, moved := range a.Items {
			if totalled(&w.items[i].Charge) {
				s.floors.learn(w.parts[i].key, moved.Totals)
			}
		}
	}
	return a, rest, err
}
