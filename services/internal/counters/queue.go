package counters

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"penstock.dev/services/internal/limit"
)

// Bounds of a queue.
const (
	maxFlying  = 2    // calls under way: the store works on one while the next arrives
	maxBatch   = 64   // decisions in a call: what one caller waits for all of
	maxCharges = 1024 // charges in a call of several decisions
)

// errUnsent reports a decision that gave up before it was sent. Nothing was
// charged.
var errUnsent = errors.New("no turn within the budget")

// A queue batches decisions naturally: while fewer than maxFlying calls are
// under way a decision is sent at once, and those that come meanwhile are sent
// together when one returns. Nothing waits for a timer.
//
// There is no goroutine of its own. Who finds a free place sends its batch
// itself, and passes the place on to one of those that wait.
type queue struct {
	mu      sync.Mutex
	flying  int
	waiting []*asker // oldest first
}

// An asker is one caller of ask.
type asker struct {
	part     [1]part // an array, for most batches are of one
	deadline time.Time
	useful   time.Time // after it the deadline is too near to send anything
	turn     chan turn // of one
}

// A turn wakes an asker: with its answer, or with a batch to send, its own
// decision last.
type turn struct {
	answered
	batch []*asker
}

// An answered is one decision's part of a reply.
type answered struct {
	answer limit.Answer
	err    error
}

// sender sends a batch once, by the deadline.
type sender func(ctx context.Context, parts []part, deadline time.Time) ([]answered, error)

// ask gets p decided by the deadline. It returns by then, give or take what
// the scheduler takes, also when ctx ends or the store does not answer.
func (q *queue) ask(ctx context.Context, p part, deadline time.Time, send sender) (limit.Answer, error) {
	left := time.Until(deadline)
	me := &asker{part: [1]part{p}, deadline: deadline, useful: deadline.Add(-left / 10)}
	if q.enter(me) {
		return q.send(ctx, []*asker{me}, send)
	}
	timeout := time.NewTimer(left)
	defer timeout.Stop()
	var t turn
	select {
	case t = <-me.turn:
	case <-timeout.C:
		if q.leave(me) {
			return limit.Answer{}, errUnsent
		}
		t = me.hurry()
	case <-ctx.Done():
		if q.leave(me) {
			return limit.Answer{}, ctx.Err()
		}
		t = me.hurry()
	}
	if t.batch == nil {
		return t.answer, t.err
	}
	return q.send(ctx, t.batch, send)
}

// hurry is for an asker that cannot wait any longer but is in a batch: if that
// is its own to send it must still do so, for the others in it.
func (a *asker) hurry() turn {
	select {
	case t := <-a.turn:
		return t
	default:
		return turn{answered: answered{err: context.DeadlineExceeded}}
	}
}

// enter takes a place in flight, or else waits.
func (q *queue) enter(a *asker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flying < maxFlying {
		q.flying++
		return true
	}
	a.turn = make(chan turn, 1)
	q.waiting = append(q.waiting, a)
	return false
}

// leave reports whether a was still waiting; then it no longer does.
func (q *queue) leave(a *asker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, a)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// send sends a batch, the caller's own decision last in it, passes the place
// on, and wakes the others.
func (q *queue) send(ctx context.Context, batch []*asker, send sender) (limit.Answer, error) {
	last := len(batch) - 1
	parts, deadline := batch[last].part[:], batch[last].deadline
	if last > 0 {
		parts = make([]part, len(batch))
	}
	for i, a := range batch {
		parts[i] = a.part[0]
		if a.deadline.After(deadline) {
			deadline = a.deadline
		}
	}
	answers, err := send(ctx, parts, deadline)
	q.pass()
	for i, a := range batch[:last] {
		t := turn{answered: answered{err: err}}
		if err == nil {
			t.answered = answers[i]
		}
		a.turn <- t
	}
	if err != nil {
		return limit.Answer{}, err
	}
	return answers[last].answer, answers[last].err
}

// pass gives the place in flight to those that wait, the oldest first; the
// newest of a batch sends it, for it has the most time left. Whose time is all
// but up is passed over: under overload the others can still be answered.
func (q *queue) pass() {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*asker
	charges := 0
	rest := q.waiting[:0]
	for _, a := range q.waiting {
		n := len(a.part[0].charges)
		if a.useful.Before(now) || len(batch) == maxBatch || len(batch) > 0 && charges+n > maxCharges {
			rest = append(rest, a)
			continue
		}
		batch, charges = append(batch, a), charges+n
	}
	clear(q.waiting[len(rest):])
	q.waiting = rest
	if len(batch) == 0 {
		q.flying--
		return
	}
	batch[len(batch)-1].turn <- turn{batch: batch}
}
