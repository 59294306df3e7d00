package counters

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"penstock.dev/services/internal/limit"
)

// Bounds of a queue.
const (
	maxFlying  = 2    // calls under way: the store works on one while the next arrives
	maxBatch   = 64   // decisions in a call, but of one caller: what one caller waits for all of
	maxCharges = 1024 // charges in a call of several decisions
	maxWaiting = 8192 // callers that wait in all queues of a store: more than it can answer within a budget
)

// An answered is one decision's part of a reply.
type answered struct {
	answer limit.Answer
	err    error
}

// errUnsent reports a decision that gave up before it was sent. Nothing was
// charged.
var errUnsent = errors.New("no turn within the budget")

// errCrowd reports a decision that was not sent because too many wait. Nothing
// was charged.
var errCrowd = errors.New("too many wait for the store")

// A queue batches decisions naturally: while fewer than maxFlying calls are
// under way a decision is sent at once, and those that come meanwhile are sent
// together when one returns. Nothing waits for a timer.
//
// There is no goroutine of its own. Who finds a free place sends its batch
// itself, and passes the place on to one of those that wait.
type queue struct {
	transmit sender
	crowd    *crowd

	mu          sync.Mutex
	flying      int
	first, last *asker // that wait, the oldest first
}

// A crowd counts the callers that wait in the queues of a store.
type crowd struct{ waiting atomic.Int64 }

// An asker is one caller of ask.
type asker struct {
	parts    []part  // decided in order
	one      [1]part // what parts is of, for most ask one
	charges  int
	deadline time.Time
	useful   time.Time // after it the deadline is too near to send anything
	turn     chan turn // of one

	waiting    bool
	prev, next *asker // in the queue
}

// A turn wakes an asker: with its answers, or with a batch to send, its own
// decisions last.
type turn struct {
	answers []answered
	err     error
	batch   []*asker
}

// sender sends a batch once, by the deadline.
type sender func(ctx context.Context, parts []part, deadline time.Time) ([]answered, error)

// askOne asks for one decision.
func (a *asker) askOne(p part, deadline time.Time) *asker {
	a.one[0] = p
	return a.ask(a.one[:], deadline)
}

// ask asks for decisions, of maxCharges charges at most unless it is one.
func (a *asker) ask(parts []part, deadline time.Time) *asker {
	a.parts, a.deadline = parts, deadline
	for i := range parts {
		a.charges += len(parts[i].charges)
	}
	return a
}

// ask gets me decided by the deadline. It returns by then, give or take what
// the scheduler takes, also when ctx ends or the store does not answer.
func (q *queue) ask(ctx context.Context, me *asker) ([]answered, error) {
	left := time.Until(me.deadline)
	me.useful = me.deadline.Add(-left / 10)
	placed, err := q.enter(me)
	if err != nil {
		return nil, err
	}
	if placed {
		return q.send(ctx, []*asker{me})
	}
	timeout := time.NewTimer(left)
	defer timeout.Stop()
	var t turn
	select {
	case t = <-me.turn:
	case <-timeout.C:
		if q.leave(me) {
			return nil, errUnsent
		}
		t = me.hurry()
	case <-ctx.Done():
		if q.leave(me) {
			return nil, ctx.Err()
		}
		t = me.hurry()
	}
	if t.batch == nil {
		return t.answers, t.err
	}
	return q.send(ctx, t.batch)
}

// hurry is for an asker that cannot wait any longer but is in a batch: if that
// is its own to send it must still do so, for the others in it.
func (a *asker) hurry() turn {
	select {
	case t := <-a.turn:
		return t
	default:
		return turn{err: context.DeadlineExceeded}
	}
}

// enter takes a place in flight, or else waits. It returns errCrowd where too
// many wait already.
func (q *queue) enter(a *asker) (placed bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flying < maxFlying {
		q.flying++
		return true, nil
	}
	if q.crowd.waiting.Add(1) > maxWaiting {
		q.crowd.waiting.Add(-1)
		return false, errCrowd
	}
	a.turn = make(chan turn, 1)
	a.waiting, a.prev = true, q.last
	if q.last == nil {
		q.first = a
	} else {
		q.last.next = a
	}
	q.last = a
	return false, nil
}

// leave reports whether a was still waiting; then it no longer does.
func (q *queue) leave(a *asker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !a.waiting {
		return false
	}
	q.remove(a)
	return true
}

// remove takes a out of those that wait. The caller has the lock.
func (q *queue) remove(a *asker) {
	if a.prev == nil {
		q.first = a.next
	} else {
		a.prev.next = a.next
	}
	if a.next == nil {
		q.last = a.prev
	} else {
		a.next.prev = a.prev
	}
	a.waiting, a.prev, a.next = false, nil, nil
	q.crowd.waiting.Add(-1)
}

// send sends a batch, the caller's own decisions last in it, passes the place
// on, and wakes the others.
func (q *queue) send(ctx context.Context, batch []*asker) ([]answered, error) {
	last := len(batch) - 1
	parts, deadline := batch[last].parts, batch[last].deadline
	if last > 0 {
		parts = make([]part, 0, len(batch))
		for _, a := range batch {
			parts = append(parts, a.parts...)
			if a.deadline.After(deadline) {
				deadline = a.deadline
			}
		}
	}
	answers, err := q.transmit(ctx, parts, deadline)
	q.pass()
	for _, a := range batch[:last] {
		t := turn{err: err}
		if err == nil {
			t.answers, answers = answers[:len(a.parts)], answers[len(a.parts):]
		}
		a.turn <- t
	}
	return answers, err
}

// pass gives the place in flight to those that wait, the oldest first; the
// newest of a batch sends it, for it has the most time left. Whose time is all
// but up is passed over: under overload the others can still be answered.
func (q *queue) pass() {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*asker
	decisions, charges := 0, 0
	for a := q.first; a != nil && decisions < maxBatch; {
		next := a.next
		fits := len(batch) == 0 || decisions+len(a.parts) <= maxBatch && charges+a.charges <= maxCharges
		if fits && !a.useful.Before(now) {
			batch, decisions, charges = append(batch, a), decisions+len(a.parts), charges+a.charges
			q.remove(a)
		}
		a = next
	}
	if len(batch) == 0 {
		q.flying--
		return
	}
	batch[len(batch)-1].turn <- turn{batch: batch}
}
