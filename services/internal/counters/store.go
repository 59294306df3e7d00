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
}

// Open returns a store on the Redis that cfg names. It does not dial: the
// first call does. The error is cfg's.
func Open(cfg Config, log *slog.Logger, r prometheus.Registerer) (*Store, error) {
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	redis.SetLogger(quiet{log})
	return open(redis.NewClient(options), newScript(decideText()), cfg.Budget, log, r)
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

// Ready returns nil when the store runs the deciding script. It asks even
// while the breaker is open, and so closes it.
func (s *Store) Ready(ctx context.Context) error {
	_, err := s.run(ctx, "", nil)
	return err
}

// Decide decides d within the budget, and sends it at most once.
//
// The error wraps limit.ErrBounds when d cannot be counted, ctx's own when ctx
// ended first, and else ErrUnavailable.
func (s *Store) Decide(ctx context.Context, d limit.Decision) (limit.Answer, error) {
	if !s.breaker.allow(time.Now()) {
		s.metrics.spared.Inc()
		return limit.Answer{}, fmt.Errorf("%w: %w", ErrUnavailable, errOpen)
	}
	answers, err := s.run(ctx, "", []limit.Decision{d})
	if err != nil {
		return limit.Answer{}, err
	}
	return answers[0].answer, answers[0].err
}

// An answered is one decision's part of a reply.
type answered struct {
	answer limit.Answer
	err    error
}

// run sends one batch and returns an answer for each decision. now is "" for
// the server's clock.
func (s *Store) run(ctx context.Context, now string, decisions []limit.Decision) ([]answered, error) {
	c, err := newCall(decisions)
	if err != nil {
		s.breaker.late()
		return nil, err
	}
	sent := time.Now()
	deadline := sent.Add(s.budget)
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	s.metrics.decisions.Add(float64(len(decisions)))
	replies, err := s.eval(bounded, c, now)
	received := time.Now()
	s.account(sent, received, deadline, err)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("counter store: %w", context.Cause(ctx))
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if len(replies) != len(decisions) {
		return nil, fmt.Errorf("%w: %w: %d answers for %d decisions", ErrUnavailable, errReply, len(replies), len(decisions))
	}
	answers := make([]answered, len(decisions))
	for i := range decisions {
		answers[i].answer, answers[i].err = parseAnswer(replies[i], &decisions[i])
		if answers[i].err != nil {
			answers[i].err = fmt.Errorf("%w: %w", ErrUnavailable, answers[i].err)
		} else if now == "" {
			s.clock.learn(answers[i].answer.Now, sent, received)
		}
	}
	return answers, nil
}

// eval runs the script once. NOSCRIPT means that it did not run, so then its
// text may be sent; no other error is followed by anything.
func (s *Store) eval(ctx context.Context, c *call, now string) ([]string, error) {
	replies, err := s.once(ctx, c.command("evalsha", s.script.sha, now))
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.metrics.loads.Inc()
		replies, err = s.once(ctx, c.command("eval", s.script.text, now))
	}
	return replies, err
}

// A once is a command that go-redis does not repeat after a lost reply: it may
// have charged.
type once struct{ *redis.Cmd }

// NoRetry is what go-redis asks.
func (once) NoRetry() bool { return true }

func (s *Store) once(ctx context.Context, words []any) ([]string, error) {
	cmd := once{redis.NewCmd(ctx, words...)}
	if err := s.redis.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.StringSlice()
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
		s.breaker.late()
	case outcomeTimeout, outcomeConnection:
		if s.breaker.miss(received) {
			s.log.Warn("counter store does not answer", "misses", breakerMisses, "error", err.Error())
		}
	}
}

// lateness is how long after its deadline a call may end and still count as a
// miss. Beyond it this process slept, and the store may well have answered.
const lateness = 20 * time.Millisecond

func outcomeOf(err error, after time.Duration) outcome {
	var reply redis.Error
	switch {
	case err == nil:
		return outcomeAnswered
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

func (q quiet) Printf(ctx context.Context, format string, v ...any) {
	q.log.DebugContext(ctx, "redis client", "line", fmt.Sprintf(format, v...))
}

// micros is a time as the script takes it.
func micros(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }
