package counters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
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
	scripts scripts
	budget  time.Duration
	adopt   bool
	log     *slog.Logger
	metrics *metrics
	clock   clock
	floors  *floors
	crowd   crowd

	single  *shard   // all of a single Redis; nil for a cluster
	cluster *cluster // nil for a single Redis
	shards  []atomic.Pointer[shard]
	returns sync.WaitGroup // give-backs under way
}

// scripts are what a store runs.
type scripts struct{ decide, correct, presence script }

// A shard is what is decided in one call: all of a single Redis, or what lies
// in one slot of a cluster.
type shard struct {
	store *Store
	node  *node  // of a single Redis; else the cluster knows
	slot  int    // of a cluster
	epoch string // key
	queue queue
}

// Open returns a store on the Redis that cfg names. It does not wait for it:
// calls do. The error is cfg's, or says that r has such metrics already.
func Open(cfg Config, log *slog.Logger, r prometheus.Registerer) (*Store, error) {
	options, seeds, err := cfg.options()
	if err != nil {
		return nil, err
	}
	redis.SetLogger(quiet{log})
	s := &Store{scripts: newScripts(decideText()), budget: cfg.Budget, adopt: cfg.Adopt, log: log, floors: newFloors()}
	if s.metrics, err = newMetrics(r, s); err != nil {
		return nil, err
	}
	if cfg.Cluster {
		s.spread(options, seeds)
	} else {
		s.gather(options)
	}
	return s, nil
}

// gather makes s a store on a single Redis.
func (s *Store) gather(options *redis.Options) {
	s.single = s.newShard(newNode(options, 0, s.log), 0, epochPrefix)
}

// spread makes s a store on a cluster.
func (s *Store) spread(options *redis.Options, seeds []string) {
	s.shards = make([]atomic.Pointer[shard], slots)
	s.cluster = newCluster(seeds, s.budget, s.log, func(addr string) *redis.Options {
		o := *options
		o.Addr = addr
		return &o
	})
}

func (s *Store) newShard(n *node, slot int, epoch string) *shard {
	sh := &shard{store: s, node: n, slot: slot, epoch: epoch}
	sh.queue = queue{transmit: sh.batch, crowd: &s.crowd}
	return sh
}

// shard returns a slot's.
func (s *Store) shard(slot int) *shard {
	if s.single != nil {
		return s.single
	}
	if sh := s.shards[slot].Load(); sh != nil {
		return sh
	}
	s.shards[slot].CompareAndSwap(nil, s.newShard(nil, slot, epochKeys()[slot]))
	return s.shards[slot].Load()
}

// Close waits for what is being given back and closes the connections.
func (s *Store) Close() error {
	s.returns.Wait()
	if s.cluster != nil {
		return s.cluster.close()
	}
	return s.single.node.close()
}

// Now estimates the store's time from its answers. A decision's spans are
// chosen by it; an answer that is Stale says the true time.
func (s *Store) Now() time.Time { return time.Now().Add(s.clock.offset()) }

// Ready returns nil when the store runs the deciding script, on a decision
// without charges; of a cluster, when every master does, and all slots have
// one. It asks even while the breaker is open, and so closes it; and it learns
// the store's time.
func (s *Store) Ready(ctx context.Context) error {
	if s.cluster != nil {
		return s.wrap(ctx, s.clusterReady(ctx))
	}
	return s.wrap(ctx, s.single.ready(ctx))
}

func (sh *shard) ready(ctx context.Context) error {
	answers, err := sh.run(ctx, "", []part{{decision: &limit.Decision{}}}, time.Now().Add(sh.store.budget))
	if err == nil {
		err = answers[0].err
	}
	return err
}

// Decide decides d within the budget, and sends it at most once.
//
// The error wraps limit.ErrBounds when d cannot be counted, is ctx's own when
// ctx ended first, and else wraps ErrUnavailable.
func (s *Store) Decide(ctx context.Context, d limit.Decision) (limit.Answer, error) {
	deadline := time.Now().Add(s.budget)
	if s.cluster != nil {
		answers, errs := s.decideSpread(ctx, []limit.Decision{d}, deadline)
		return answers[0], errs[0]
	}
	p, err := newPart(&d)
	if err != nil {
		return limit.Answer{}, err
	}
	answers, err := s.single.ask(ctx, new(asker).askOne(p, deadline))
	if err != nil {
		return limit.Answer{}, s.wrap(ctx, err)
	}
	return answers[0].answer, s.wrap(ctx, answers[0].err)
}

// DecideAll decides each of decisions in order, in as few calls as possible
// and within one budget. Each has an answer and an error as Decide's.
func (s *Store) DecideAll(ctx context.Context, decisions []limit.Decision) ([]limit.Answer, []error) {
	deadline := time.Now().Add(s.budget)
	if s.cluster != nil {
		return s.decideSpread(ctx, decisions, deadline)
	}
	answers, errs := make([]limit.Answer, len(decisions)), make([]error, len(decisions))
	parts, places := make([]part, 0, len(decisions)), make([]int, 0, len(decisions))
	for i := range decisions {
		p, err := newPart(&decisions[i])
		if errs[i] = err; err == nil {
			parts, places = append(parts, p), append(places, i)
		}
	}
	for i, a := range s.single.askAll(ctx, parts, deadline) {
		answers[places[i]], errs[places[i]] = a.answer, s.wrap(ctx, a.err)
	}
	return answers, errs
}

// askAll gets parts decided in order, in calls as large as can be.
func (sh *shard) askAll(ctx context.Context, parts []part, deadline time.Time) []answered {
	all := make([]answered, 0, len(parts))
	for len(parts) > 0 {
		n, charges := 1, len(parts[0].charges)
		for n < len(parts) && charges+len(parts[n].charges) <= maxCharges {
			charges += len(parts[n].charges)
			n++
		}
		answers, err := sh.ask(ctx, new(asker).ask(parts[:n:n], deadline))
		for range n {
			if err != nil {
				all = append(all, answered{err: err})
			} else {
				all, answers = append(all, answers[0]), answers[1:]
			}
		}
		parts = parts[n:]
	}
	return all
}

// ask gets me decided, unless the breaker or the crowd spares it.
func (sh *shard) ask(ctx context.Context, me *asker) ([]answered, error) {
	s := sh.store
	n := sh.node
	if s.cluster != nil {
		n = s.cluster.slots[sh.slot].Load()
	}
	if n != nil && !n.allow() {
		if s.cluster != nil {
			s.cluster.suspect(ctx)
		}
		s.metrics.spare(sparedBreaker, len(me.parts))
		return nil, errOpen
	}
	answers, err := sh.queue.ask(ctx, me)
	switch {
	case err == nil:
	case errors.Is(err, errUnsent):
		s.metrics.spare(sparedQueue, len(me.parts))
	case errors.Is(err, errCrowd):
		s.metrics.spare(sparedCrowd, len(me.parts))
	}
	return answers, err
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
func (sh *shard) batch(ctx context.Context, parts []part, deadline time.Time) ([]answered, error) {
	sh.store.metrics.decisions.Add(float64(len(parts)))
	return sh.run(context.WithoutCancel(ctx), "", parts, deadline)
}

// run sends one batch and returns an answer for each part; those that are lost
// are sent once more where the store may be adopted. now is "" for the server's
// clock.
func (sh *shard) run(ctx context.Context, now string, parts []part, deadline time.Time) ([]answered, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var adopted bool
	answers, err := sh.decide(ctx, now, parts, deadline, &adopted)
	if err != nil || !adopted {
		return answers, err
	}
	var again []part
	var places []int
	for i := range answers {
		if answers[i].answer.Lost {
			again, places = append(again, parts[i]), append(places, i)
		}
	}
	found, err := sh.decide(ctx, now, again, deadline, nil)
	for i, place := range places {
		if err != nil {
			answers[place] = answered{err: err}
		} else {
			answers[place] = found[i]
		}
	}
	return answers, nil
}

// decide sends one batch. Where an answer is lost and adopted is not nil, it
// adopts the store, if it may, and says so.
func (sh *shard) decide(ctx context.Context, now string, parts []part, deadline time.Time, adopted *bool) ([]answered, error) {
	s := sh.store
	if !time.Now().Before(deadline) {
		return nil, errUnsent
	}
	for i := range parts {
		s.floors.fill(&parts[i])
	}
	c := newCall(sh.epoch, parts)
	m := message{script: &s.scripts.decide, words: c, now: now}
	if err := sh.send(ctx, &m, deadline); err != nil {
		return nil, err
	}
	c.free()
	answers, err := s.read(parts, &m)
	if err != nil {
		return nil, err
	}
	if sh.lost(parts, answers, m.link) && adopted != nil {
		*adopted = s.adopts(ctx, &m, sh)
	}
	return answers, nil
}

// read returns the answers to a batch, and learns from them.
func (s *Store) read(parts []part, m *message) ([]answered, error) {
	if len(m.replies) != len(parts) {
		return nil, fmt.Errorf("%w: %d answers for %d decisions", errReply, len(m.replies), len(parts))
	}
	answers := make([]answered, len(parts))
	for i := range parts {
		reply, _ := m.replies[i].(string)
		answers[i].answer, answers[i].err = parseAnswer(reply, parts[i].decision)
		if answers[i].err == nil {
			s.floors.see(&parts[i], &answers[i].answer)
		}
	}
	if answers[0].err == nil && m.now == "" {
		s.clock.learn(answers[0].answer.Now, m.sent, m.received)
	}
	return answers, nil
}

// lost reports whether the store did not vouch for what it holds, and keeps in
// mind whether it did.
func (sh *shard) lost(parts []part, answers []answered, l *link) bool {
	for i := range answers {
		if answers[i].answer.Lost {
			l.lost.Store(true)
			return true
		}
	}
	if l.lost.Load() {
		for i := range parts {
			if answers[i].err == nil && parts[i].vouched() {
				l.lost.Store(false)
			}
		}
	}
	return false
}

// vouched reports whether p is decided only by a store that vouches for what it
// holds.
func (p *part) vouched() bool {
	for i := range p.charges {
		if c := &p.decision.Charges[i]; totalled(c) && !c.Counter.Shadow {
			return true
		}
	}
	return false
}

// A message is a script and what it is asked, sent once, and the replies.
type message struct {
	script *script
	words  words
	now    string // "" for the server's clock

	link           *link // that the replies came on
	asking         bool  // the slot is on its way there
	replies        []any
	sent, received time.Time
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
	l, err := n.connect(ctx)
	if err == nil {
		err = s.eval(ctx, l, m)
	}
	if err == errForeign { //nolint:errorlint // it is returned as it is, and nothing was sent
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

// nodes are those that have been asked.
func (s *Store) nodes() []*node {
	if s.cluster != nil {
		return s.cluster.all()
	}
	return []*node{s.single.node}
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
