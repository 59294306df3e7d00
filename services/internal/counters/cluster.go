package counters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds of a cluster's client.
const (
	maxNodeCalls  = 32                     // calls under way to a node
	maxRedirects  = 5                      // of a call, before it waits: nodes contradict each other for a moment
	refreshPause  = 100 * time.Millisecond // between looks at the topology, at least
	refreshWithin = 2 * time.Second        // for one look in the background
	refreshEvery  = 10 * time.Second       // a look at the topology by Ready
)

// errNoRoute reports a slot that nobody is known to serve. Nothing was sent.
var errNoRoute = errors.New("no node is known to serve the slot")

// A cluster knows which node serves which slot. It learns from the first node
// that answers, and again when a node points elsewhere or does not answer.
type cluster struct {
	options func(addr string) *redis.Options
	seeds   []string
	budget  time.Duration
	log     *slog.Logger

	slots  [slots]atomic.Pointer[node]
	looked atomic.Int64  // when the topology was last asked for, µs since the epoch
	asking chan struct{} // of one: who asks for the topology
	looks  sync.WaitGroup

	mu      sync.Mutex
	nodes   map[string]*node // by address
	masters []master
	served  int // slots
	closed  bool
}

// A master is a node with one of the slots that it serves.
type master struct {
	*node
	slot int
}

func newCluster(seeds []string, budget time.Duration, log *slog.Logger, options func(addr string) *redis.Options) *cluster {
	return &cluster{
		options: options, seeds: seeds, budget: budget, log: log,
		asking: make(chan struct{}, 1), nodes: map[string]*node{},
	}
}

// node returns the node at an address.
func (c *cluster) node(addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[addr]
	if n == nil {
		n = newNode(c.options(addr), maxNodeCalls, c.log)
		n.closed = c.closed
		c.nodes[addr] = n
	}
	return n
}

// all returns the nodes.
func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*node, 0, len(c.nodes))
	for _, n := range c.nodes {
		all = append(all, n)
	}
	return all
}

// route returns the node that serves a slot.
func (c *cluster) route(ctx context.Context, slot int) (*node, error) {
	if n := c.slots[slot].Load(); n != nil {
		return n, nil
	}
	if err := c.look(ctx, func() bool { return c.slots[slot].Load() != nil }); err != nil {
		return nil, err
	}
	if n := c.slots[slot].Load(); n != nil {
		return n, nil
	}
	return nil, errNoRoute
}

// suspect has the topology looked at, not too often, without waiting for it.
func (c *cluster) suspect(ctx context.Context) {
	last, now := c.looked.Load(), time.Now().UnixMicro()
	if now-last < refreshPause.Microseconds() || !c.looked.CompareAndSwap(last, now) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.looks.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshWithin)
		defer cancel()
		_ = c.look(ctx, func() bool { return false }) // the calls that it is for say what is wrong
	})
}

// look asks for the topology unless known says that somebody else just has.
func (c *cluster) look(ctx context.Context, known func() bool) error {
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if known() {
		return nil
	}
	c.looked.Store(time.Now().UnixMicro())
	var errs []error
	for _, addr := range c.candidates() {
		err := c.lookAt(ctx, addr)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("topology of the cluster: %w", errors.Join(errs...))
}

// candidates are the addresses to ask for the topology: masters, then the
// configured, each in any order.
func (c *cluster) candidates() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var addrs []string
	known := map[string]bool{}
	for _, i := range rand.Perm(len(c.masters)) {
		addrs = append(addrs, c.masters[i].addr)
		known[c.masters[i].addr] = true
	}
	for _, i := range rand.Perm(len(c.seeds)) {
		if !known[c.seeds[i]] {
			addrs = append(addrs, c.seeds[i])
		}
	}
	return addrs
}

// lookAt asks one node. It may take a third of the budget: others may answer.
func (c *cluster) lookAt(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, c.budget/3)
	defer cancel()
	var ranges []redis.ClusterSlot
	l, err := c.node(addr).connect(ctx)
	if err == nil {
		ranges, err = l.client.ClusterSlots(ctx).Result() //nolint:staticcheck // what replaces it is unknown before Redis 7 and to managed stores
	}
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	if len(ranges) == 0 {
		return fmt.Errorf("%s: %w", addr, errNoRoute)
	}
	c.learn(addr, ranges)
	return nil
}

// learn takes in a topology. Nodes that serve nothing any more are closed when
// calls under way to them must be over.
func (c *cluster) learn(from string, ranges []redis.ClusterSlot) {
	var served [slots]*node
	masters, count := make([]master, 0, len(ranges)), 0
	serving := map[*node]bool{}
	for _, r := range ranges {
		if len(r.Nodes) == 0 || r.Start < 0 || r.End >= slots || r.Start > r.End {
			continue
		}
		n := c.node(reachable(r.Nodes[0].Addr, from))
		if !serving[n] {
			masters, serving[n] = append(masters, master{n, r.Start}), true
		}
		for slot := r.Start; slot <= r.End; slot++ {
			served[slot] = n
			count++
		}
	}
	for slot, n := range served {
		if n != nil { // else who served it last may be asked: it says what is wrong
			c.slots[slot].Store(n)
		} else if old := c.slots[slot].Load(); old != nil {
			serving[old] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.masters, c.served = masters, count
	for addr, n := range c.nodes {
		if serving[n] {
			continue
		}
		delete(c.nodes, addr)
		time.AfterFunc(2*c.budget, func() { _ = n.close() })
	}
}

// reachable is a node's address as it is reached from here: who does not know
// its own, or thinks that it is local, is where the one that told us is.
func reachable(addr, from string) string {
	host, port, err := net.SplitHostPort(addr)
	origin, _, originErr := net.SplitHostPort(from)
	if err != nil || originErr != nil {
		return addr
	}
	ip := net.ParseIP(host)
	if host == "" || host == "?" || ip != nil && ip.IsLoopback() {
		return net.JoinHostPort(origin, port)
	}
	return addr
}

// A cue is what a node's reply says about where or when to ask.
type cue int

const (
	cueNone  cue = iota
	cueMoved     // ask another node from now on
	cueAsk       // ask another node this once
	cueWait      // ask again a little later
)

// cueOf reads an error. A call that got a cue did not run.
func cueOf(err error) (what cue, addr string) {
	if addr, moved := redis.IsMovedError(err); moved {
		return cueMoved, addr
	}
	if addr, ask := redis.IsAskError(err); ask {
		return cueAsk, addr
	}
	if redis.IsTryAgainError(err) || redis.IsClusterDownError(err) {
		return cueWait, ""
	}
	return cueNone, ""
}

// follow calls do with the node that serves a slot, and follows what the
// replies say: a call that was pointed elsewhere did not run.
func (c *cluster) follow(ctx context.Context, slot int, do func(n *node, asking bool) error) error {
	n, err := c.route(ctx, slot)
	if err != nil {
		return err
	}
	asking, pause, redirects := false, time.Millisecond, 0
	for {
		err := do(n, asking)
		what, addr := cueOf(err)
		switch {
		case what == cueNone:
			var reply redis.Error
			if err != nil && !errors.As(err, &reply) {
				c.suspect(ctx)
			}
			return err
		case what == cueWait || redirects >= maxRedirects:
			c.suspect(ctx)
			if !wait(ctx, pause) {
				return err
			}
			pause, redirects = 2*pause, 0
			if n, err = c.route(ctx, slot); err != nil {
				return err
			}
			asking = false
		default:
			redirects++
			n, asking = c.node(reachable(addr, n.addr)), what == cueAsk
			if what == cueMoved {
				c.slots[slot].Store(n)
				c.suspect(ctx)
			}
		}
	}
}

// wait returns false when ctx ends before the pause.
func wait(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// clusterReady has every master run the deciding script, and says which slots have
// none.
func (s *Store) clusterReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	c := s.cluster
	if time.Now().UnixMicro()-c.looked.Load() > refreshEvery.Microseconds() {
		if err := c.look(ctx, func() bool { return false }); err != nil {
			return err
		}
	}
	c.mu.Lock()
	masters, served := c.masters, c.served
	c.mu.Unlock()
	errs := make([]error, len(masters), len(masters)+1)
	var asking sync.WaitGroup
	for i, m := range masters {
		asking.Go(func() {
			if err := s.shard(m.slot).ready(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", m.addr, err)
				c.suspect(ctx)
			}
		})
	}
	asking.Wait()
	if served < slots {
		c.suspect(ctx)
		errs = append(errs, fmt.Errorf("%d of %d slots: %w", slots-served, slots, errNoRoute))
	}
	return errors.Join(errs...)
}

// close closes all nodes.
func (c *cluster) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	var errs []error
	for _, n := range c.all() {
		errs = append(errs, n.close())
	}
	c.looks.Wait()
	return errors.Join(errs...)
}
