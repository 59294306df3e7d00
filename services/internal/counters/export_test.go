package counters

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/limit"
)

// DecideText is the deciding script, for tests to plant faults in.
var DecideText = decideText

// RequestKey is where a request id is kept.
var RequestKey = requestKey

// New returns a store that runs text on client.
func New(client redis.UniversalClient, text string, budget time.Duration) (*Store, error) {
	return open(client, newScript(text), budget, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// Client returns a client as Open makes it.
func Client(cfg Config) (*redis.Client, error) {
	o, err := cfg.options()
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}

// At decides a batch in one call, with the script's clock at now.
func (s *Store) At(ctx context.Context, now time.Time, decisions ...limit.Decision) ([]limit.Answer, error) {
	parts := make([]part, len(decisions))
	for i := range decisions {
		p, err := newPart(&decisions[i])
		if err != nil {
			return nil, err
		}
		parts[i] = p
	}
	answered, err := s.run(ctx, micros(now), parts, time.Now().Add(s.budget))
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	answers := make([]limit.Answer, len(answered))
	for i, a := range answered {
		if a.err != nil {
			return nil, s.wrap(ctx, a.err)
		}
		answers[i] = a.answer
	}
	return answers, nil
}

// Refund sets what was refunded of a quota that was charged.
func (s *Store) Refund(ctx context.Context, id limit.Identity, refunded int64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], math.Float64bits(float64(refunded)))
	return s.redis.SetRange(ctx, Key(id), 9, string(b[:])).Err()
}

// The queue, for tests in virtual time.
type (
	Queue    = queue
	Part     = part
	Answered = answered
)

// Bounds of the queue and the breaker.
const (
	MaxFlying      = maxFlying
	MaxBatch       = maxBatch
	MaxCharges     = maxCharges
	BreakerMisses  = breakerMisses
	BreakerMinWait = breakerMinWait
	BreakerMaxWait = breakerMaxWait
)

// ErrUnsent is what a decision that was never sent gets.
var ErrUnsent = errUnsent

// NewPart encodes a decision.
func NewPart(d *limit.Decision) (Part, error) { return newPart(d) }

// Decision is what p encodes.
func (p *part) Decision() *limit.Decision { return p.decision }

// Ask is queue.ask.
func (q *queue) Ask(ctx context.Context, p part, deadline time.Time, send func(context.Context, []Part, time.Time) ([]Answered, error)) (limit.Answer, error) {
	return q.ask(ctx, p, deadline, send)
}

// NewAnswered is a reply to one decision.
func NewAnswered(a limit.Answer, err error) Answered { return answered{a, err} }

// Flying is the number of calls under way, Waiting of those that wait.
func (q *queue) Flying() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.flying
}

// Waiting is the number of callers that wait for their turn.
func (q *queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// Breaker is the breaker.
type Breaker = breaker

// Allow is breaker.allow.
func (b *breaker) Allow(now time.Time) bool { return b.allow(now) }

// Hit is breaker.hit.
func (b *breaker) Hit() bool { return b.hit() }

// Miss is breaker.miss.
func (b *breaker) Miss(sent, now time.Time) bool { return b.miss(sent, now) }

// Clock is the clock.
type Clock = clock

// Learn is clock.learn.
func (c *clock) Learn(store, sent, received time.Time) { c.learn(store, sent, received) }

// Offset is clock.offset.
func (c *clock) Offset() time.Duration { return c.offset() }

// ParseAnswer reads one decision's part of a reply.
var ParseAnswer = parseAnswer

// ErrReply is what an unreadable reply gets.
var ErrReply = errReply

// Each decides a batch in one call and returns each decision's error.
func (s *Store) Each(ctx context.Context, decisions ...limit.Decision) ([]error, error) {
	parts := make([]part, len(decisions))
	for i := range decisions {
		p, err := newPart(&decisions[i])
		if err != nil {
			return nil, err
		}
		parts[i] = p
	}
	answers, err := s.run(ctx, "", parts, time.Now().Add(s.budget))
	errs := make([]error, len(answers))
	for i, a := range answers {
		errs[i] = a.err
	}
	return errs, err
}
