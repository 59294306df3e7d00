package counters_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
)

const budget = 50 * time.Millisecond

// A slowStore answers each batch after a while, with every decision's cost as
// what remains.
type slowStore struct {
	takes time.Duration

	mu      sync.Mutex
	batches []int // sizes
	most    int   // calls at once
	now     int
	sent    map[int64]int // decisions by cost
	err     error
}

func (s *slowStore) send(ctx context.Context, parts []counters.Part, deadline time.Time) ([]counters.Answered, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.batches = append(s.batches, len(parts))
	for i := range parts {
		s.sent[parts[i].Decision().Charges[0].Cost]++
	}
	err := s.err
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.now--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(s.takes):
	case <-time.After(time.Until(deadline)):
		return nil, context.DeadlineExceeded
	}
	if err != nil {
		return nil, err
	}
	answers := make([]counters.Answered, len(parts))
	for i := range parts {
		answers[i] = counters.NewAnswered(limit.Answer{Results: []limit.Result{{Remaining: parts[i].Decision().Charges[0].Cost}}}, nil)
	}
	return answers, ctx.Err()
}

func (s *slowStore) ask(ctx context.Context, t *testing.T, q *counters.Queue, cost int64) error {
	t.Helper()
	p, err := counters.NewPart(&limit.Decision{Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, cost)}})
	if err != nil {
		t.Error(err)
		return err
	}
	began := time.Now()
	answers, err := q.Ask(ctx, began.Add(budget), p)
	if took := time.Since(began); took > budget {
		t.Errorf("answered after %v", took)
	}
	if err == nil && answers[0].Results[0].Remaining != cost {
		t.Errorf("decision %d got the answer of %d", cost, answers[0].Results[0].Remaining)
	}
	return err
}

// TestQueueBatchesNaturally guarantees that a lone decision is sent at once
// and alone, that what comes while calls are under way is sent together when
// one returns, that each gets its own answer, and that no more than two calls
// are ever under way.
func TestQueueBatchesNaturally(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{takes: time.Millisecond, sent: map[int64]int{}}
		q := counters.NewQueue(s.send)
		if err := s.ask(t.Context(), t, q, 1); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range int64(200) {
			wg.Go(func() {
				if err := s.ask(t.Context(), t, q, 2+i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		// One alone; then two at once, and the other 198 in batches.
		if want := []int{1, 1, 1, 64, 64, 64, 6}; !equal(s.batches, want) {
			t.Errorf("batches %v, want %v", s.batches, want)
		}
		if s.most > counters.MaxFlying || q.Flying() != 0 || q.Waiting() != 0 {
			t.Errorf("%d calls at once; %d flying and %d waiting at the end", s.most, q.Flying(), q.Waiting())
		}
	})
}

// TestQueueKeepsDeadlines guarantees that nobody waits past the deadline when
// the store does not answer, that a decision is never sent twice, and that
// places in flight are not lost to callers that gave up.
func TestQueueKeepsDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{takes: time.Hour, sent: map[int64]int{}}
		q := counters.NewQueue(s.send)
		var wg sync.WaitGroup
		for i := range int64(300) {
			time.Sleep(time.Millisecond)
			wg.Go(func() {
				ctx := t.Context()
				if i%7 == 0 { // a caller that goes away
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(60))*time.Millisecond)
					defer cancel()
				}
				if err := s.ask(ctx, t, q, i); err == nil {
					t.Error("answered by a store that does not answer")
				}
			})
		}
		wg.Wait()
		if q.Flying() != 0 || q.Waiting() != 0 {
			t.Errorf("%d flying and %d waiting at the end", q.Flying(), q.Waiting())
		}
		for cost, n := range s.sent {
			if n > 1 {
				t.Errorf("decision %d was sent %d times", cost, n)
			}
		}
		s.takes = time.Millisecond
		if err := s.ask(t.Context(), t, q, 1); err != nil {
			t.Errorf("once the store answers: %v", err)
		}
	})
}

// TestQueueUnderOverload guarantees that a store which can answer some of the
// callers in time does: those whose time is up are passed over, unsent.
func TestQueueUnderOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{takes: 4 * time.Millisecond, sent: map[int64]int{}}
		q := counters.NewQueue(s.send)
		var wg sync.WaitGroup
		var mu sync.Mutex
		outcomes := map[string]int{}
		for i := range int64(4000) { // 64,000 a second; the store can do 32,000
			if i%64 == 0 {
				time.Sleep(time.Millisecond)
			}
			wg.Go(func() {
				err := s.ask(t.Context(), t, q, i)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					outcomes["answered"]++
				case errors.Is(err, counters.ErrUnsent):
					outcomes["unsent"]++
				default:
					outcomes["unknown"]++
				}
			})
		}
		wg.Wait()
		if outcomes["answered"] < 1800 || outcomes["unknown"] > 200 {
			t.Errorf("%v, want about half answered and hardly any unknown", outcomes)
		}
	})
}

// TestQueueSharesErrors guarantees that a call that failed fails for all that
// were in it.
func TestQueueSharesErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{takes: time.Millisecond, sent: map[int64]int{}, err: errors.New("no")}
		q := counters.NewQueue(s.send)
		var wg sync.WaitGroup
		for i := range int64(50) {
			wg.Go(func() {
				if err := s.ask(t.Context(), t, q, i); !errors.Is(err, s.err) {
					t.Errorf("%v, want the call's error", err)
				}
			})
		}
		wg.Wait()
	})
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestQueueBoundsTheCrowd guarantees that beyond a number of callers that wait
// a decision is refused at once, unsent, and that the others are answered.
func TestQueueBoundsTheCrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{takes: time.Millisecond, sent: map[int64]int{}}
		q := counters.NewQueue(s.send)
		const more = 100
		var wg sync.WaitGroup
		var mu sync.Mutex
		refused, answered := 0, 0
		began := time.Now()
		for i := range int64(counters.MaxFlying + counters.MaxWaiting + more) {
			wg.Go(func() {
				err := s.ask(t.Context(), t, q, i)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, counters.ErrCrowd):
					refused++
					if time.Since(began) > 0 {
						t.Errorf("refused after %v", time.Since(began))
					}
				case err == nil:
					answered++
				case !errors.Is(err, counters.ErrUnsent):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if refused != more || answered < 2000 || q.Waiting() != 0 {
			t.Errorf("%d refused, want %d; %d answered; %d still wait", refused, more, answered, q.Waiting())
		}
	})
}

// TestQueueKeepsCallersTogether guarantees that the decisions of one caller
// stay in order and in one call, that each caller gets its own answers, and
// that a call is not filled beyond its bounds.
func TestQueueKeepsCallersTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{takes: time.Millisecond, sent: map[int64]int{}}
		q := counters.NewQueue(s.send)
		var wg sync.WaitGroup
		for caller := range int64(40) {
			wg.Go(func() {
				var parts []counters.Part
				for i := range caller%7 + 1 {
					p, err := counters.NewPart(&limit.Decision{Charges: []limit.Charge{gcra("acme", 10, time.Second, 10, 100*caller+i)}})
					if err != nil {
						t.Error(err)
					}
					parts = append(parts, p)
				}
				answers, err := q.Ask(t.Context(), time.Now().Add(budget), parts...)
				if err != nil || len(answers) != len(parts) {
					t.Errorf("caller %d: %d answers, %v", caller, len(answers), err)
					return
				}
				for i, a := range answers {
					if got := a.Results[0].Remaining; got != 100*caller+int64(i) {
						t.Errorf("caller %d: answer %d is that of decision %d", caller, i, got)
					}
				}
			})
		}
		wg.Wait()
		for _, n := range s.batches {
			if n > counters.MaxBatch {
				t.Errorf("%d decisions in a call", n)
			}
		}
		if len(s.batches) > 6 {
			t.Errorf("%d calls for 157 decisions: %v", len(s.batches), s.batches)
		}
	})
}
