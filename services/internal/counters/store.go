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
type scripts struct{ decide, adopt, correct, presence, claim, vouch, restore, remember script }

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
	parts, places := newParts(decisions, errs)
	for i, a := range s.single.askAll(ctx, parts, deadline) {
		answers[places[i]], errs[places[i]] = a.answer, s.wrap(ctx, a.err)
	}
	return answers, errs
}

// askAll gets parts decided in order, in calls as large as can be.
func (sh *shard) askAll(ctx context.Context, parts []part, deadline time.Time) []answered {
	var all []answered
	for len(parts) > 0 {
		n, charges := 1, len(parts[0].charges)
		for n < len(parts) && charges+len(parts[n].charges) <= maxCharges {
			charges += len(parts[n].charges)
			n++
		}
		answers, err := sh.ask(ctx, new(asker).ask(parts[:n:n], deadline))
		switch {
		case err != nil:
			for range n {
				all = append(all, answered{err: err})
			}
		case all == nil:
			all = answers[:n:n]
		default:
			all = append(all, answers...)
		}
		parts = parts[n:]
	}
	return all
}

// at is the node that the shard is on, as far as is known; nil if it is not.
func (sh *shard) at() *node {
	if sh.node != nil {
		return sh.node
	}
	return sh.store.cluster.slots[sh.slot].Load()
}

// allow reports whether the breaker of the shard's node lets a call through. One
// that does not makes a cluster look for its nodes anew.
func (sh *shard) allow(ctx context.Context) bool {
	n := sh.at()
	if n == nil || n.allow() {
		return true
	}
	if sh.store.cluster != nil {
		sh.store.cluster.suspect(ctx)
	}
	return false
}

// ask gets me decided, unless the breaker or the crowd spares it.
func (sh *shard) ask(ctx context.Context, me *asker) ([]answered, error) {
	s := sh.store
	if !sh.allow(ctx) {
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
	answers, charges := make([]answered, len(parts)), 0
	for i := range parts {
		charges += len(parts[i].charges)
	}
	room := make([]limit.Result, charges)
	for i := range parts {
		reply, _ := m.replies[i].(string)
		answers[i].answer, answers[i].err = parseAnswer(reply, &parts[i], room[:len(parts[i].charges)])
		room = room[len(parts[i].charges):]
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
