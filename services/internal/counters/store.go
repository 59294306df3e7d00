package counters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/limit"
)

// ErrUnavailable reports that the store did not decide. It wraps the cause.
// Whether anything was charged is then unknown, and what the caller is told is
// the rule's failure mode to say.
var ErrUnavailable = errors.New("counter store unavailable")

var errOpen = errors.New("breaker is open after repeated misses")

// A Store decides in Redis. It is safe for concurrent use.
type Store struct {
	redis   redis.UniversalClient
	script  script
	budget  time.Duration
	log     *slog.Logger
	metrics *metrics
	breaker breaker
	clock   clock
	queue   queue
}

// Open returns a store on the Redis that cfg names. It does not wait for it:
// calls do. The error is cfg's, or says that r has such metrics already.
func Open(cfg Config, log *slog.Logger, r prometheus.Registerer) (*Store, error) {
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	redis.SetLogger(quiet{log})
	client := redis.NewClient(options)
	s, err := open(client, newScript(decideText()), cfg.Budget, log, r)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return s, nil
}

func open(client redis.UniversalClient, s script, budget time.Duration, log *slog.Logger, r prometheus.Registerer) (*Store, error) {
	store := &Store{redis: client, script: s, budget: budget, log: log}
	m, err := newMetrics(r, store)
	if err != nil {
		return nil, err
	}
	store.metrics = m
	return store, nil
}

// Close closes the connections.
func (s *Store) Close() error { return s.redis.Close() }

// Now estimates the store's time from its answers. A decision's spans are
// chosen by it; an answer that is Stale says the true time.
func (s *Store) Now() time.Time { return time.Now().Add(s.clock.offset()) }

// Ready returns nil when the store runs the deciding script, on a decision
// without charges. It asks even while the breaker is open, and so closes it;
// and it learns the store's time.
func (s *Store) Ready(ctx context.Context) error {
	answers, err := s.run(ctx, "", []part{{decision: &limit.Decision{}}}, time.Now().Add(s.budget))
	if err == nil {
		err = answers[0].err
	}
	return s.wrap(ctx, err)
}

// Decide decides d within the budget, and sends it at most once.
//
// The error wraps limit.ErrBounds when d cannot be counted, is ctx's own when
// ctx ended first, and else wraps ErrUnavailable.
func (s *Store) Decide(ctx context.Context, d limit.Decision) (limit.Answer, error) {
	p, err := newPart(&d)
	if err != nil {
		return limit.Answer{}, err
	}
	now := time.Now()
	if !s.breaker.allow(now) {
		s.metrics.spared.WithLabelValues(string(sparedBreaker)).Inc()
		return limit.Answer{}, s.wrap(ctx, errOpen)
	}
	a, err := s.queue.ask(ctx, p, now.Add(s.budget), s.batch)
	if errors.Is(err, errUnsent) {
		s.metrics.spared.WithLabelValues(string(sparedQueue)).Inc()
	}
	return a, s.wrap(ctx, err)
}

// wrap is err as callers see it.
func (s *Store) wrap(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("counter store: %w", context.Cause(ctx))
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// batch runs a batch by the server's clock. It does not end with ctx: others
// wait for it too.
func (s *Store) batch(ctx context.Context, parts []part, deadline time.Time) ([]answered, error) {
	s.metrics.decisions.Add(float64(len(parts)))
	return s.run(context.WithoutCancel(ctx), "", parts, deadline)
}

// run sends one batch and returns an answer for each part. now is "" for the
// server's clock.
func (s *Store) run(ctx context.Context, now string, parts []part, deadline time.Time) ([]answered, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	sent := time.Now()
	if !sent.Before(deadline) {
		return nil, errUnsent
	}
	c := newCall(parts)
	replies, err := s.eval(ctx, c, now)
	received := time.Now()
	s.account(sent, received, deadline, err)
	if err != nil {
		return nil, err
	}
	c.free()
	if len(replies) != len(parts) {
		return nil, fmt.Errorf("%w: %d answers for %d decisions", errReply, len(replies), len(parts))
	}
	answers := make([]answered, len(parts))
	for i := range parts {
		reply, _ := replies[i].(string)
		answers[i].answer, answers[i].err = parseAnswer(reply, parts[i].decision)
	}
	if answers[0].err == nil && now == "" {
		s.clock.learn(answers[0].answer.Now, sent, received)
	}
	return answers, nil
}

// eval runs the script once. NOSCRIPT means that it did not run, so then its
// text may be sent; no other error is followed by anything.
func (s *Store) eval(ctx context.Context, c *call, now string) ([]any, error) {
	replies, err := s.once(ctx, c.command("evalsha", &s.script.sha, now))
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.metrics.loads.Inc()
		replies, err = s.once(ctx, c.command("eval", &s.script.text, now))
	}
	return replies, err
}

// A once is a command that go-redis does not repeat after a lost reply: it may
// have charged.
type once struct{ *redis.Cmd }

// NoRetry is what go-redis asks.
func (once) NoRetry() bool { return true }

func (s *Store) once(ctx context.Context, words []any) ([]any, error) {
	cmd := once{redis.NewCmd(ctx, words...)}
	if err := s.redis.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// account tells the breaker and the metrics how a call ended.
func (s *Store) account(sent, received, deadline time.Time, err error) {
	o := outcomeOf(err, received.Sub(deadline))
	s.metrics.calls.WithLabelValues(string(o)).Inc()
	switch o {
	case outcomeAnswered, outcomeRefused:
		if o == outcomeAnswered {
			s.metrics.seconds.Observe(received.Sub(sent).Seconds())
		}
		if s.breaker.hit() {
			s.log.Info("counter store answers again")
		}
	case outcomeLate:
	case outcomeTimeout, outcomeConnection:
		if s.breaker.miss(sent, received) {
			s.log.Warn("counter store does not answer", "misses", breakerMisses, "error", err.Error())
		}
	}
}

// lateness is how long after its deadline a call may end and still count as a
// miss. Beyond it this process slept, and the store may well have answered.
const lateness = 20 * time.Millisecond

func outcomeOf(err error, after time.Duration) outcome {
	if err == nil {
		return outcomeAnswered
	}
	var reply redis.Error
	switch {
	case errors.As(err, &reply):
		return outcomeRefused
	case after > lateness:
		return outcomeLate
	case after >= 0, errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout):
		return outcomeTimeout
	default:
		return outcomeConnection
	}
}

// quiet hands go-redis's own lines to our log. go-redis keeps one logger for
// the process; what matters of its errors comes back to the caller.
type quiet struct{ log *slog.Logger }

// Printf is what go-redis calls.
func (q quiet) Printf(ctx context.Context, format string, v ...any) {
	q.log.DebugContext(ctx, "redis client", "line", fmt.Sprintf(format, v...))
}

// micros is a time as the script takes it.
func micros(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }
