package decide

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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

	ahead atomic.Int64 // how far the store's clock is ahead of now, in ns, by its last answer
}

// NewService returns a service that decides by the rules in book with the
// counters in store. Ids makes decision ids, which begin with the time: NewID.
func NewService(book *Book, store Store, now func() time.Time, ids func(time.Time) [16]byte) *Service {
	return &Service{book: book, store: store, now: now, ids: ids}
}

// Decide answers q by the rules in force when it is called. A refusal is an
// answer, and so is a store that does not decide: then the rules' own failure
// modes do. Errors are ErrCost, ErrRequestIDReused, and ctx's own.
func (s *Service) Decide(ctx context.Context, q Query) (Decision, error) {
	if q.Cost != nil && (*q.Cost < 0 || *q.Cost > rule.Unlimited) {
		return Decision{}, fmt.Errorf("%w: %d units, want 0 to %d", ErrCost, *q.Cost, rule.Unlimited)
	}
	now := s.now()
	in := newInquiry(s.book.Current(), &q, s.ids(now))
	in.match(now.Add(time.Duration(s.ahead.Load())))
	switch {
	case in.blocking != nil:
		return in.blocked(), nil
	case len(in.winners) == 0:
		return in.passed(), nil
	}
	a, err := s.ask(ctx, in)
	switch {
	case err == nil && a.Conflict:
		return Decision{}, fmt.Errorf("%w: %q", ErrRequestIDReused, q.RequestID)
	case err == nil && a.Replayed:
		return in.replayed(&a), nil
	case err == nil && len(a.Results) == len(in.winners):
		return in.decided(&a), nil
	case ctx.Err() != nil:
		return Decision{}, ctx.Err()
	default:
		return in.degraded(), nil
	}
}

// ask puts the question to the store. Where periods have moved on by the
// store's clock, it asks once more with the periods of that moment; a store
// that calls those stale too does not decide.
func (s *Service) ask(ctx context.Context, in *inquiry) (limit.Answer, error) {
	sent := s.now()
	at := sent.Add(time.Duration(s.ahead.Load()))
	var a limit.Answer
	for range 2 {
		var err error
		if a, err = s.store.Decide(ctx, in.question(at)); err != nil {
			return limit.Answer{}, err
		}
		s.follow(a.Now, sent)
		if !a.Stale {
			return a, nil
		}
		at, sent = a.Now, s.now()
	}
	return limit.Answer{}, errStale
}

// follow takes note of the store's clock. Its answer was made somewhere between
// sent and now; half way is the best guess, and at most half the round trip
// wrong.
func (s *Service) follow(store, sent time.Time) {
	if !store.IsZero() {
		s.ahead.Store(int64(store.Sub(sent) - s.now().Sub(sent)/2))
	}
}
