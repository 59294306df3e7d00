package counters

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/limit"
)

// DecideText is the deciding script, for tests to plant faults in.
var DecideText = decideText

// CorrectText is the correcting script, for tests to plant faults in.
func CorrectText() string { return source("correct") }

// Source is a file of the scripts, as it is sent.
var Source = source

// MarkKey is where a decision's corrections are remembered.
var MarkKey = markKey

// RequestKey is where a request id is kept.
var RequestKey = requestKey

// New returns a store that runs text on the Redis of client, and remembers
// nothing of what it saw there.
func New(client *redis.Client, text string, budget time.Duration) (*Store, error) {
	s, err := OpenWith(Config{URL: "redis://" + client.Options().Addr, Budget: budget, Adopt: true}, text, nil)
	if err == nil {
		s.floors = nil
	}
	return s, err
}

// OpenWith is Open with another deciding script, unless text is empty, and with
// another way to dial, unless dial is nil.
func OpenWith(cfg Config, text string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Store, error) {
	s, err := Open(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	if text != "" {
		s.scripts.decide = newScript(text)
	}
	if dial != nil {
		options, seeds, err := cfg.options()
		if err != nil {
			return nil, err
		}
		options.Dialer = dial
		if cfg.Cluster {
			s.spread(options, seeds)
		} else {
			s.gather(options)
		}
	}
	return s, nil
}

// Options are go-redis's for a configuration.
func Options(cfg Config) (*redis.Options, error) {
	o, _, err := cfg.options()
	return o, err
}

// At decides a batch in one call, with the script's clock at now.
func (s *Store) At(ctx context.Context, now time.Time, decisions ...limit.Decision) ([]limit.Answer, error) {
	answered, err := s.together(ctx, micros(now), decisions)
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

// Adopt says whether s adopts a server that lost something.
func (s *Store) Adopt(yes bool) { s.adopt = yes }

// CorrectWith has s run another correcting script.
func (s *Store) CorrectWith(text string) { s.scripts.correct = newScript(text) }

// CorrectAt corrects with the script's clock at now.
func (s *Store) CorrectAt(ctx context.Context, now time.Time, c limit.Correction) (limit.CorrectionAnswer, error) {
	w, err := newCorrecting(s.single.epoch, kindOf(&c), &c, c.Items, nil, s.floors)
	if err != nil {
		return limit.CorrectionAnswer{}, err
	}
	a, _, err := s.single.correct(ctx, micros(now), w, time.Now().Add(s.budget))
	return a, s.wrap(ctx, err)
}

// MoveAt charges units of items, or gives back what was charged then, or up to
// slack before, with the script's clock at now.
func (s *Store) MoveAt(ctx context.Context, now, then time.Time, slack time.Duration, items []limit.Item, units []int64) (limit.CorrectionAnswer, error) {
	w, err := newCorrecting(s.single.epoch, kindMove, &limit.Correction{At: then, Units: slack.Microseconds()}, items, units, s.floors)
	if err != nil {
		return limit.CorrectionAnswer{}, err
	}
	a, _, err := s.single.correct(ctx, micros(now), w, time.Now().Add(s.budget))
	return a, s.wrap(ctx, err)
}

// Returned has the metric of what was given back, and nothing else.
func (s *Store) Returned() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(s.metrics.returned)
	return r
}

// Vouch sets the epoch: the store vouches for what it holds.
func (s *Store) Vouch(ctx context.Context) error {
	l, err := s.single.node.connect(ctx)
	if err != nil {
		return err
	}
	return l.client.Set(ctx, s.single.epoch, *l.run.Load(), 0).Err()
}

// Each decides a batch in one call and returns each decision's error.
func (s *Store) Each(ctx context.Context, decisions ...limit.Decision) ([]error, error) {
	answers, err := s.together(ctx, "", decisions)
	errs := make([]error, len(answers))
	for i, a := range answers {
		errs[i] = a.err
	}
	return errs, err
}

func (s *Store) together(ctx context.Context, now string, decisions []limit.Decision) ([]answered, error) {
	errs := make([]error, len(decisions))
	parts, _ := newParts(decisions, errs)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s.single.run(ctx, now, parts, time.Now().Add(s.budget))
}

// Refund sets what was refunded of a quota that was charged.
func (s *Store) Refund(ctx context.Context, id limit.Identity, refunded int64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], math.Float64bits(float64(refunded)))
	l, err := s.single.node.connect(ctx)
	if err != nil {
		return err
	}
	return l.client.SetRange(ctx, Key(id), 9, string(b[:])).Err()
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
	MaxWaiting     = maxWaiting
	BreakerMisses  = breakerMisses
	BreakerMinWait = breakerMinWait
	BreakerMaxWait = breakerMaxWait
)

// What a decision that was never sent gets.
var (
	ErrUnsent = errUnsent
	ErrCrowd  = errCrowd
)

// SlotOf is the slot of a hash tag.
var SlotOf = slotOf

// EpochKeys are a cluster's epoch keys, by slot.
var EpochKeys = epochKeys

// Keys that are not counters.
const (
	EpochKey    = epochPrefix // of a single Redis
	PresenceKey = presenceKey
)

// NewPart encodes a decision.
func NewPart(d *limit.Decision) (Part, error) { return newPart(d) }

// Decision is what p encodes.
func (p *part) Decision() *limit.Decision { return p.decision }

// NewQueue returns a queue that sends so.
func NewQueue(send func(context.Context, []Part, time.Time) ([]Answered, error)) *Queue {
	return &queue{transmit: send, crowd: new(crowd)}
}

// Ask is queue.ask.
func (q *queue) Ask(ctx context.Context, deadline time.Time, parts ...part) ([]limit.Answer, error) {
	answered, err := q.ask(ctx, new(asker).ask(parts, deadline))
	answers := make([]limit.Answer, len(answered))
	for i, a := range answered {
		answers[i] = a.answer
	}
	return answers, err
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
	n := 0
	for a := q.first; a != nil; a = a.next {
		n++
	}
	if int64(n) != q.crowd.waiting.Load() {
		return -1
	}
	return n
}

// Floors are the floors.
type Floors = floors

// NewFloors returns floors that know of nothing.
var NewFloors = newFloors

// Of is floors.of.
func (f *floors) Of(key string) limit.Totals { return f.of(key) }

// Learn is floors.learn.
func (f *floors) Learn(key string, seen limit.Totals) { f.learn(key, seen) }

// MaxFloors is how many counters floors remember at least, when evenly spread,
// and half of how many at most.
const MaxFloors = floorShards * floorKeys

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
func ParseAnswer(reply string, d *limit.Decision) (limit.Answer, error) {
	p, err := newPart(d)
	if err != nil {
		return limit.Answer{}, err
	}
	return parseAnswer(reply, &p, make([]limit.Result, len(d.Charges)))
}

// ParseCorrection reads the reply to a correction.
var ParseCorrection = parseCorrection

// ErrReply is what an unreadable reply gets.
var ErrReply = errReply

// RestoreAt is Custody.Restore with the script's clock at now.
func (c *Custody) RestoreAt(ctx context.Context, now time.Time, saved []Saved) ([]Restored, error) {
	return c.restoreAt(ctx, micros(now), saved)
}

// RestoreWith has s run another restoring script.
func (s *Store) RestoreWith(text string) { s.scripts.restore = newScript(text) }
