package counters

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A node is one Redis, by its address.
type node struct {
	addr     string
	options  *redis.Options
	log      *slog.Logger
	breaker  breaker
	places   chan struct{}          // of calls under way; nil: any number
	policy   atomic.Pointer[string] // when its memory is full; nil before it was asked
	volatile atomic.Bool            // it keeps no append-only file

	mu     sync.Mutex
	link   atomic.Pointer[link] // nil until it is asked, and when closed
	closed bool
}

// A link is connections to one run of one server: whoever answers on it is who
// answered first.
type link struct {
	client  *redis.Client
	run     atomic.Pointer[string] // run id; nil before the first connection
	foreign atomic.Bool            // another run has been met at the address
	lost    atomic.Bool            // it did not vouch for what it holds, when last asked
	adopted atomic.Int64           // when it was last adopted, µs since 1970
}

// errForeign reports a connection to another run of the server than the link's.
// Nothing was sent on it. It is returned as it is.
var errForeign = errors.New("another server answers at the store's address")

func newNode(options *redis.Options, calls int, log *slog.Logger) *node {
	n := &node{addr: options.Addr, options: options, log: log}
	if calls > 0 {
		n.places = make(chan struct{}, calls)
	}
	return n
}

// connect returns the link, dialled: its run is known.
func (n *node) connect(ctx context.Context) (*link, error) {
	l := n.link.Load()
	if l == nil || l.foreign.Load() {
		var err error
		if l, err = n.relink(); err != nil {
			return nil, err
		}
	}
	if l.run.Load() == nil {
		if err := l.client.Ping(ctx).Err(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// relink makes a link where there is none, or where it leads to a server that
// is no more. Calls under way on that fail.
func (n *node) relink() (*link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.link.Load()
	switch {
	case n.closed:
		return nil, redis.ErrClosed
	case old != nil && !old.foreign.Load():
		return old, nil
	case old != nil:
		_ = old.client.Close() // what it says is of connections that are given up
	}
	l, options := &link{}, *n.options
	options.OnConnect = func(ctx context.Context, cn *redis.Conn) error { return l.meet(ctx, cn, n) }
	l.client = redis.NewClient(&options)
	n.link.Store(l)
	return l, nil
}

// meet learns who answers on a new connection.
func (l *link) meet(ctx context.Context, cn *redis.Conn, n *node) error {
	text, err := cn.Info(ctx).Result()
	if err != nil {
		return err
	}
	info, err := parseInfo(text)
	if err != nil {
		return err
	}
	if !l.run.CompareAndSwap(nil, &info.run) && *l.run.Load() != info.run {
		l.foreign.Store(true)
		return errForeign
	}
	n.learn(info)
	return nil
}

// enter takes a place for a call, and leave gives it back.
func (n *node) enter(ctx context.Context) error {
	if n.places == nil {
		return nil
	}
	select {
	case n.places <- struct{}{}:
		return nil
	default:
	}
	select {
	case n.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errUnsent
	}
}

func (n *node) leave() {
	if n.places != nil {
		<-n.places
	}
}

// allow reports whether the breaker lets a call through.
func (n *node) allow() bool { return n.breaker.allow(time.Now()) }

// isLost reports whether the server did not vouch for what it holds.
func (n *node) isLost() bool {
	l := n.link.Load()
	return l != nil && l.lost.Load()
}

func (n *node) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if l := n.link.Swap(nil); l != nil {
		return l.client.Close()
	}
	return nil
}
