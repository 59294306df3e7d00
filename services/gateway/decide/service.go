package decide

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// errStale reports a store whose clock runs away from its own answers.
var errStale = errors.New("periods are stale by the store's clock, twice")

// degradedWait is what a caller is told to wait when the store does not answer:
// the least that can be said in whole seconds.
const degradedWait = time.Second

// errLost reports a store that was emptied or replaced.
var errLost = errors.New("the store does not vouch for what it holds")

// Options are what a Service may do without.
type Options struct {
	// Gateways is how many share the limits, as far as is known: at least 1.
	// Rules whose failure mode is local are split by it. Nil: 1.
	Gateways func() int
}

// A Service decides. It is safe for concurrent use.
type Service struct {
	book  *Book
	store Store
	now   func() time.Time
	ids   func(time.Time) [16]byte
	local *local
}

// NewService returns a service that decides by the rules in book with the
// counters in store. Now is the best estimate of the store's clock; where it is
// wrong about a period, the store says so. Ids makes decision ids: NewID.
func NewService(book *Book, store Store, now func() time.Time, ids func(time.Time) [16]byte, o Options) *Service {
	if o.Gateways == nil {
		o.Gateways = func() int { return 1 }
	}
	return &Service{book: book, store: store, now: now, ids: ids, local: newLocal(o.Gateways)}
}

// Decide answers q by the rules in force when it is called. A refusal is an
// answer, and so is a store that does not decide: then the rules' own failure
// modes do. Errors wrap ErrCost, ErrRequestIDReused, or are ctx's own.
func (s *Service) Decide(ctx context.Context, q Query) (Decision, error) {
	now := s.now()
	in := new(inquiry)
	if err := s.inquire(in, s.book.Current(), &q, now); err != nil {
		return Decision{}, err
	}
	if !in.asks() {
		return in.uncounted(), nil
	}
	a, err := s.ask(ctx, in, now)
	return s.answer(ctx, in, &a, err)
}

// inquire begins to answer q.
func (s *Service) inquire(in *inquiry, rules *Snapshot, q *Query, now time.Time) error {
	if q.Cost != nil && (*q.Cost < 0 || *q.Cost > rule.Unlimited) {
		return fmt.Errorf("%w: %d units, want 0 to %d", ErrCost, *q.Cost, rule.Unlimited)
	}
	in.begin(rules, q, s.ids(now))
	in.at = now
	in.match(now)
	return nil
}

// asks reports whether the store has a say.
func (in *inquiry) asks() bool { return len(in.winners) > 0 || in.remembers() }

// rounds is how often the store is asked: once more where periods have moved
// on by its clock.
const rounds = 2

// ask puts the question to the store. Where periods have moved on by the
// store's clock, it asks once more with the periods of that moment; a store
// that calls those stale too does not decide (docs/adr/0037).
func (s *Service) ask(ctx context.Context, in *inquiry, at time.Time) (limit.Answer, error) {
	for range rounds {
		a, err := s.store.Decide(ctx, in.question(at))
		if err != nil || !a.Stale {
			return a, err
		}
		at = a.Now
	}
	return limit.Answer{}, errStale
}

// answer is what the store's answer means, or that there is none.
func (s *Service) answer(ctx context.Context, in *inquiry, a *limit.Answer, err error) (Decision, error) {
	counted := len(in.winners) > 0
	if err == nil && a.Lost {
		err = errLost
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return Decision{}, ctx.Err()
	case err != nil && !counted:
		return in.uncounted(), nil
	case err != nil:
		return s.degraded(in), nil
	case a.Conflict:
		return Decision{}, fmt.Errorf("%w: %q", ErrRequestIDReused, in.query.RequestID)
	case a.Replayed:
		return in.replayed(a), nil
	case !counted:
		return in.uncounted(), nil
	case len(a.Results) != len(in.winners):
		return s.degraded(in), nil
	}
	if d, ok := in.decided(a); ok {
		return d, nil
	}
	return s.degraded(in), nil
}
