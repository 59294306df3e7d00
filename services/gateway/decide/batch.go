package decide

import (
	"context"
	"slices"
	"time"

	"penstock.dev/services/internal/limit"
)

// A Batch is queries that are decided together, and what became of each. The
// zero Batch is an empty one.
//
// Its memory serves one batch after another: from Reset on nothing of its
// decisions is valid any more, but what Usage returned of them.
type Batch struct {
	Queries   []*Query
	Decisions []Decision // of each query
	Errs      []error    // of each query: those of Service.Decide

	inquiries []inquiry
	asking    []int            // inquiries that the store is asked about
	questions []limit.Decision // of these
	charges   []limit.Charge   // of all inquiries, as is what follows
	said      []Limit
}

// Reset makes b an empty batch.
func (b *Batch) Reset() {
	b.Queries, b.Decisions, b.Errs = empty(b.Queries), empty(b.Decisions), empty(b.Errs)
	b.inquiries, b.asking, b.questions = empty(b.inquiries), b.asking[:0], empty(b.questions)
	b.charges, b.said = empty(b.charges), empty(b.said)
}

// empty keeps nothing alive.
func empty[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// room is s with n elements, whatever is in them.
func room[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// DecideAll answers every query of b by the rules in force when it is called, in
// order and in as few calls to the store as can be.
func (s *Service) DecideAll(ctx context.Context, b *Batch) {
	now := s.now()
	b.begin(s, now)
	for round, at := 1, now; len(b.asking) > 0; round++ {
		b.questions = room(b.questions, len(b.asking))
		for n, i := range b.asking {
			b.questions[n] = b.inquiries[i].question(at)
		}
		answers, failures := s.decideAll(ctx, b.questions)
		again, failed := b.asking[:0], false
		for n, i := range b.asking {
			a, err := &answers[n], failures[n]
			failed = failed || err != nil
			if err == nil && a.Stale {
				if at = a.Now; round < rounds {
					again = append(again, i)
					continue
				}
				err = errStale
			}
			b.Decisions[i], b.Errs[i] = s.answer(ctx, &b.inquiries[i], a, err)
		}
		b.asking = again
		if failed { // the store may look at what it was asked even now
			b.questions, b.charges = nil, nil
		}
	}
}

// begin finds the rules of every query.
func (b *Batch) begin(s *Service, now time.Time) {
	n, rules, charges := len(b.Queries), s.book.Current(), 0
	b.Decisions, b.Errs, b.inquiries, b.asking = room(b.Decisions, n), room(b.Errs, n), room(b.inquiries, n), b.asking[:0]
	for i, q := range b.Queries {
		in := &b.inquiries[i]
		if b.Errs[i] = s.inquire(in, rules, q, now); b.Errs[i] != nil {
			b.Decisions[i] = Decision{}
			continue
		}
		if !in.asks() {
			b.Decisions[i] = in.uncounted()
			continue
		}
		b.asking, charges = append(b.asking, i), charges+len(in.winners)
	}
	b.charges, b.said = room(b.charges, charges), room(b.said, charges)
	charges = 0
	for _, i := range b.asking {
		in := &b.inquiries[i]
		end := charges + len(in.winners)
		in.asked.Charges, in.said = b.charges[charges:end:end], b.said[charges:end:end]
		charges = end
	}
}

// decideAll is the store's, but that one decision is asked for as such.
func (s *Service) decideAll(ctx context.Context, questions []limit.Decision) ([]limit.Answer, []error) {
	if len(questions) > 1 {
		return s.store.DecideAll(ctx, questions)
	}
	a, err := s.store.Decide(ctx, questions[0])
	return []limit.Answer{a}, []error{err}
}
