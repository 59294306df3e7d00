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

// A Service decides. It is safe for concurrent use.
type Service struct {
	book  *Book
	store Store
	now   func() time.Time
	ids   func(time.Time) [16]byte
}

// NewService returns a service that decides by the rules in book with the
// counters in store. Now is the best estimate of the store's clock; where it is
// wrong about a period, the store says so. Ids makes decision ids: NewID.
func NewService(book *Book, store Store, now func() time.Time, ids func(time.Time) [16]byte) *Service {
	return &Service{book: book, store: store, now: now, ids: ids}
}

// Decide answers q by the rules in force when it is called. A refusal is an
// answer, and so is a store that does not decide: then the rules' own failure
// modes do. Errors wrap ErrCost, ErrRequestIDReused, or are ctx's own.
func (s *Service) Decide(ctx context.Context, q Query) (Decision, error) {
	if q.Cost != nil && (*q.Cost < 0 || *q.Cost > rule.Unlimited) {
		return Decision{}, fmt.Errorf("%w: %d units, want 0 to %d", ErrCost, *q.Cost, rule.Unlimited)
	}
	now := s.now()
	in := newInquiry(s.book.Current(), &q, s.ids(now))
	in.at = now
	in.match(now)
	counted := len(in.winners) > 0
	if !counted && !in.remembers() {
		return in.uncounted(), nil
	}
	a, err := s.ask(ctx, in, now)
	switch {
	case err != nil && ctx.Err() != nil:
		return Decision{}, ctx.Err()
	case err != nil && !counted:
		return in.uncounted(), nil
	case err != nil:
		return in.degraded(), nil
	case a.Conflict:
		return Decision{}, fmt.Errorf("%w: %q", ErrRequestIDReused, q.RequestID)
	case a.Replayed:
		return in.replayed(&a), nil
	case !counted:
		return in.uncounted(), nil
	case len(a.Results) != len(in.winners):
		return in.degraded(), nil
	default:
		return in.decided(&a), nil
	}
}

// ask puts the question to the store. Where periods have moved on by the
// store's clock, it asks once more with the periods of that moment; a store
// that calls those stale too does not decide (docs/adr/0037).
func (s *Service) ask(ctx context.Context, in *inquiry, at time.Time) (limit.Answer, error) {
	for range 2 {
		a, err := s.store.Decide(ctx, in.question(at))
		if err != nil || !a.Stale {
			return a, err
		}
		at = a.Now
	}
	return limit.Answer{}, errStale
}
