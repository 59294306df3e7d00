package counters

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// A message is a script and what it is asked, sent once, and the replies.
type message struct {
	script *script
	words  words
	now    string // "" for the server's clock
	only   *link  // that it may be sent on; nil: any

	link           *link // that the replies came on
	asking         bool  // the slot is on its way there
	replies        []any
	sent, received time.Time
}

// reply is the only one there is, or none.
func (m *message) reply() string {
	if len(m.replies) != 1 {
		return ""
	}
	text, _ := m.replies[0].(string)
	return text
}

// words are those of an EVALSHA or EVAL. run is the id of the server's run that
// is asked.
type words interface {
	command(verb string, script *string, now string, run *string) []any
}

// send sends m to the node that the shard is on, by the deadline. What is
// pointed elsewhere did not run, and is sent there.
func (sh *shard) send(ctx context.Context, m *message, deadline time.Time) error {
	if sh.node != nil {
		return sh.store.sendTo(ctx, sh.node, m, false, deadline)
	}
	return sh.store.cluster.follow(ctx, sh.slot, func(n *node, asking bool) error {
		return sh.store.sendTo(ctx, n, m, asking, deadline)
	})
}

func (s *Store) sendTo(ctx context.Context, n *node, m *message, asking bool, deadline time.Time) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	defer n.leave()
	m.sent, m.asking = time.Now(), asking
	var err error
	l := m.only
	if l == nil {
		l, err = n.connect(ctx)
	}
	if err == nil {
		err = s.eval(ctx, l, m)
	}
	if err == errForeign && m.only == nil { //nolint:errorlint // it is returned as it is, and nothing was sent
		if l, err = n.connect(ctx); err == nil {
			err = s.eval(ctx, l, m)
		}
	}
	m.link, m.received = l, time.Now()
	s.account(n, m.sent, m.received, deadline, err)
	return err
}

// eval runs the script once. NOSCRIPT means that it did not run, so then its
// text may be sent; no other error is followed by anything.
func (s *Store) eval(ctx context.Context, l *link, m *message) (err error) {
	run := l.run.Load()
	m.replies, err = s.once(ctx, l, m.words.command("evalsha", &m.script.sha, m.now, run), m.asking)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.metrics.loads.Inc()
		m.replies, err = s.once(ctx, l, m.words.command("eval", &m.script.text, m.now, run), m.asking)
	}
	return err
}

// A once is a command that go-redis does not repeat after a lost reply: it may
// have charged.
type once struct{ *redis.Cmd }

// NoRetry is what go-redis asks.
func (once) NoRetry() bool { return true }

// once sends a command; asking says that its slot is on its way to the node.
func (s *Store) once(ctx context.Context, l *link, words []any, asking bool) ([]any, error) {
	cmd := once{redis.NewCmd(ctx, words...)}
	if !asking {
		if err := l.client.Process(ctx, cmd); err != nil {
			return nil, err
		}
		return cmd.Slice()
	}
	both := l.client.Pipeline()
	ask := both.Do(ctx, "asking")
	_ = both.Process(ctx, cmd) // it is only queued
	_, _ = both.Exec(ctx)      // each has its own error
	if err := ask.Err(); err != nil {
		return nil, err
	}
	return cmd.Slice()
}

// account tells the breaker and the metrics how a call ended.
func (s *Store) account(n *node, sent, received, deadline time.Time, err error) {
	o := outcomeOf(err, received.Sub(deadline))
	s.metrics.calls.WithLabelValues(string(o)).Inc()
	switch o {
	case outcomeAnswered, outcomeRefused, outcomeRedirected:
		if o == outcomeAnswered {
			s.metrics.seconds.Observe(received.Sub(sent).Seconds())
		}
		if n.breaker.hit() {
			s.log.Info("counter store answers again", "address", n.addr)
		}
	case outcomeLate:
	case outcomeTimeout, outcomeConnection:
		if n.breaker.miss(sent, received) {
			s.log.Warn("counter store does not answer", "address", n.addr, "misses", breakerMisses, "error", err.Error())
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
	switch what, _ := cueOf(err); {
	case what != cueNone:
		return outcomeRedirected
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
