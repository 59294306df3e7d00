package counters

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/internal/limit"
)

// A spread is a decision over the slots of a cluster. Its groups are asked one
// after another; what they charged is given back when a later one refuses.
type spread struct {
	decision *limit.Decision
	groups   []group // the tenant's last
	answer   limit.Answer
	err      error
	over     bool // nothing more is to be asked
	refused  bool // what is asked from now on is only weighed
}

// A group is what a decision charges in one slot.
type group struct {
	slot    int
	rank    rank
	charges []int // of the decision
	part    part
	sub     limit.Decision
	answer  limit.Answer
}

// A rank says when a group is asked: what many share first, so that it is given
// back soonest; the tenant's last, for it alone knows request ids and quotas.
type rank int

const (
	rankGlobal rank = iota
	rankAddress
	rankTenant
	rankRequest
)

// newSpread sorts the charges of a decision into groups. The error wraps
// limit.ErrBounds.
func newSpread(d *limit.Decision) (*spread, error) {
	sp := &spread{decision: d}
	var tag, last []byte
	var g *group
	for i := range d.Charges {
		id := d.Charges[i].Counter.Canonical()
		if tag = appendTag(tag[:0], id); g == nil || !bytes.Equal(tag, last) {
			g = sp.group(slotOf(string(tag[1:len(tag)-1])), rankOf(tag))
			last = append(last[:0], tag...)
		}
		g.charges = append(g.charges, i)
	}
	if d.Request.ID != "" {
		sp.group(slotOf(requestTag(d.Request)), rankRequest)
	}
	if len(sp.groups) == 0 {
		sp.group(0, rankTenant)
	}
	slices.SortFunc(sp.groups, func(a, b group) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.slot, b.slot)) })
	for i := range sp.groups {
		g := &sp.groups[i]
		slices.Sort(g.charges)
		g.sub = limit.Decision{Weigh: d.Weigh, Charges: d.Charges}
		if len(sp.groups) > 1 {
			g.sub.Charges = make([]limit.Charge, len(g.charges))
			for k, place := range g.charges {
				g.sub.Charges[k] = d.Charges[place]
			}
		}
		if i == len(sp.groups)-1 {
			g.sub.Request = d.Request
		}
		var err error
		if g.part, err = newPart(&g.sub); err != nil {
			return nil, err
		}
	}
	return sp, nil
}

// requestTag is the hash tag of a request's key.
func requestTag(q limit.Request) string {
	key := requestKey(q)
	return key[1:strings.IndexByte(key, '}')]
}

// counterTag is the hash tag of a counter's key.
func counterTag(id limit.Identity) string {
	tag := appendTag(nil, id.Canonical())
	return string(tag[1 : len(tag)-1])
}

// group returns the group of a slot, of at least that rank. It is good until
// the next.
func (sp *spread) group(slot int, r rank) *group {
	for i := range sp.groups {
		if g := &sp.groups[i]; g.slot == slot {
			g.rank = max(g.rank, r)
			return g
		}
	}
	sp.groups = append(sp.groups, group{slot: slot, rank: r})
	return &sp.groups[len(sp.groups)-1]
}

func rankOf(tag []byte) rank {
	switch tag[1] {
	case 't':
		return rankTenant
	case 'a':
		return rankAddress
	default:
		return rankGlobal
	}
}

// decideSpread decides decisions on a cluster: their groups in stages, the last
// of each in the last, and in a stage those of one slot in order and together.
func (s *Store) decideSpread(ctx context.Context, decisions []limit.Decision, deadline time.Time) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(decisions)), make([]error, len(decisions))
	all, places, most := make([]*spread, 0, len(decisions)), make([]int, 0, len(decisions)), 0
	for i := range decisions {
		sp, err := newSpread(&decisions[i])
		if errs[i] = err; err == nil {
			all, places, most = append(all, sp), append(places, i), max(most, len(sp.groups))
		}
	}
	for stage := range most {
		s.askStage(ctx, all, most-stage, deadline)
	}
	s.giveBack(ctx, all)
	for i, sp := range all {
		answers[places[i]], errs[places[i]] = sp.answer, s.wrap(ctx, sp.err)
	}
	return answers, errs
}

// askStage asks the group of each decision that left groups, itself included,
// are left of.
func (s *Store) askStage(ctx context.Context, all []*spread, left int, deadline time.Time) {
	bySlot := map[int][]*spread{}
	for _, sp := range all {
		if i := len(sp.groups) - left; i >= 0 && !sp.over {
			sp.prepare(i)
			bySlot[sp.groups[i].slot] = append(bySlot[sp.groups[i].slot], sp)
		}
	}
	var asking sync.WaitGroup
	for slot, asked := range bySlot {
		ask := func() {
			parts := make([]part, len(asked))
			for k, sp := range asked {
				parts[k] = sp.groups[len(sp.groups)-left].part
			}
			for k, a := range s.shard(slot).askAll(ctx, parts, deadline) {
				asked[k].take(len(asked[k].groups)-left, a)
			}
		}
		if len(bySlot) == 1 {
			ask()
		} else {
			asking.Go(ask)
		}
	}
	asking.Wait()
}

// prepare makes a group's part what is to be asked by now.
func (sp *spread) prepare(i int) {
	g := &sp.groups[i]
	if sp.refused {
		g.sub.Weigh = true
	}
	if i == len(sp.groups)-1 && g.part.key != "" {
		g.part.request[1] += string(sp.appendEarlier(nil))
	}
}

// take takes in a group's answer.
func (sp *spread) take(i int, a answered) {
	g := &sp.groups[i]
	g.answer = a.answer
	last := i == len(sp.groups)-1
	switch {
	case a.err != nil:
		sp.err, sp.over = a.err, true
	case a.answer.Stale || a.answer.Lost || a.answer.Conflict:
		sp.answer, sp.over = a.answer, true
	case a.answer.Replayed:
		sp.answer, sp.over = a.answer, true
		sp.err = recallEarlier(&sp.answer)
	case !a.answer.Allowed:
		sp.refused = true
	}
	if last && !sp.over {
		sp.over = true
		sp.compose()
	}
}

// compose makes one answer of the groups'.
func (sp *spread) compose() {
	last := &sp.groups[len(sp.groups)-1]
	if len(sp.groups) == 1 {
		sp.answer = last.answer
		return
	}
	a := limit.Answer{Allowed: !sp.refused, Now: last.answer.Now, Results: make([]limit.Result, len(sp.decision.Charges))}
	for i := range sp.groups {
		g := &sp.groups[i]
		a.Charged = a.Charged || g.answer.Charged && a.Allowed
		for k, place := range g.charges {
			a.Results[place] = g.answer.Results[k]
		}
	}
	if last.answer.Charged && a.Allowed {
		a.DecisionID = last.answer.DecisionID
	}
	sp.answer = a
}

// What the earlier groups of a decision came to is kept with its request id,
// after the note: for each charge 1 and its result, or 0 where that is the last
// group's, and then the length of it all (2 bytes).

// appendEarlier appends what is to be kept.
func (sp *spread) appendEarlier(b []byte) []byte {
	from := len(b)
	if len(sp.groups) > 1 {
		earlier := make([]*limit.Result, len(sp.decision.Charges))
		for i := range sp.groups[:len(sp.groups)-1] {
			g := &sp.groups[i]
			for k, place := range g.charges {
				earlier[place] = &g.answer.Results[k]
			}
		}
		for _, r := range earlier {
			b = appendResult(b, r)
		}
	}
	return binary.BigEndian.AppendUint16(b, uint16(len(b)-from))
}

func appendResult(b []byte, r *limit.Result) []byte {
	if r == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	for _, v := range resultNumbers(r) {
		b = binary.AppendVarint(b, *v)
	}
	return b
}

// resultNumbers are the numbers of a result; its flags are the first.
func resultNumbers(r *limit.Result) [7]*int64 {
	flags := int64(0)
	if r.Passed {
		flags |= resultPassed
	}
	if r.Clipped {
		flags |= resultClipped
	}
	return [7]*int64{
		&flags, &r.Remaining, (*int64)(&r.RetryAfter), (*int64)(&r.Reset), (*int64)(&r.Delay), &r.Consumed, &r.Refunded,
	}
}

// recallEarlier takes what was kept out of a replay's note, and puts the
// results in the order of the first decision's charges.
func recallEarlier(a *limit.Answer) error {
	n := len(a.Note) - 2
	if n < 0 {
		return errReply
	}
	size := int(binary.BigEndian.Uint16(a.Note[n:]))
	if size > n {
		return errReply
	}
	kept, results := a.Note[n-size:n], a.Results
	a.Note = a.Note[: n-size : n-size]
	if size == 0 {
		return nil
	}
	a.Results = nil
	for len(kept) > 0 {
		here := kept[0] == 1
		kept = kept[1:]
		if !here {
			if len(results) == 0 {
				return errReply
			}
			a.Results, results = append(a.Results, results[0]), results[1:]
			continue
		}
		var r limit.Result
		numbers := resultNumbers(&r)
		for _, v := range numbers {
			number, used := binary.Varint(kept)
			if used <= 0 {
				return errReply
			}
			*v, kept = number, kept[used:]
		}
		r.Passed, r.Clipped = *numbers[0]&resultPassed != 0, *numbers[0]&resultClipped != 0
		a.Results = append(a.Results, r)
	}
	if len(results) > 0 {
		return errReply
	}
	return nil
}

// giveBack gives back what decisions charged that are not to be charged. It
// does so behind the answer: what fails is logged, and can only refuse too much.
func (s *Store) giveBack(ctx context.Context, all []*spread) {
	for _, sp := range all {
		if len(sp.groups) < 2 || sp.err == nil && sp.answer.Charged {
			continue
		}
		for i := range sp.groups {
			if g := &sp.groups[i]; g.answer.Charged {
				s.returns.Go(func() { s.returnGroup(context.WithoutCancel(ctx), g) })
			}
		}
	}
}

// returnGroup gives back what a group charged.
func (s *Store) returnGroup(ctx context.Context, g *group) {
	var items []limit.Item
	var units []int64
	for k := range g.sub.Charges {
		c := &g.sub.Charges[k]
		if r := &g.answer.Results[k]; c.Cost > 0 && (r.Passed || c.Soft) && !r.Clipped {
			items, units = append(items, limit.Item{Charge: *c}), append(units, -c.Cost)
		}
	}
	if len(items) == 0 {
		return
	}
	deadline := time.Now().Add(s.budget)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	_, err := s.move(ctx, g.slot, limit.Correction{At: g.answer.Now}, items, units, deadline)
	if err == nil {
		s.metrics.returned.WithLabelValues(string(givenBack)).Inc()
	} else {
		s.metrics.returned.WithLabelValues(string(givenNot)).Inc()
		s.log.WarnContext(ctx, "what a refused decision charged was not given back", "slot", g.slot, "error", err.Error())
	}
}
