package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
)

// A meter introduces the gate to the metrics.
type meter struct{ requests *observe.Requests }

// Proxied is what the gate calls.
func (m meter) Proxied(x proxyapi.Exchange) {
	m.requests.Answered(observe.Answer{Status: x.Status, Took: x.Took, Queued: x.Queued, Upstream: x.Waited, Cut: x.Cut})
}

// Refunded is what the gate calls.
func (m meter) Refunded(ok bool) { m.requests.Refunded(ok) }

// after is a part that begins once ready is closed. The data port does not
// open before there are rules: without any, everything would pass.
func after(ready <-chan struct{}, part boot.Part) boot.Part {
	return boot.Part{Name: part.Name, Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ready:
			return part.Run(ctx)
		}
	}}
}

// faces is the gate, and the gRPC faces where they have an address.
func faces(cfg config, gate boot.Part, desk *ask.Desk, ready admin.Ready, log *slog.Logger) boot.Part {
	if cfg.grpcListen == "" {
		return gate
	}
	ready["grpc"] = accepts(cfg.grpcListen)
	return together("faces", gate, grpcapi.Serve(cfg.grpc(), grpcapi.New(desk, cfg.proxies, log)))
}

// together is parts that stop at the same time: one's patience with its last
// requests must not be added to another's. The first that ends early ends all.
func together(name string, parts ...boot.Part) boot.Part {
	return boot.Part{Name: name, Run: func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		errs := make([]error, len(parts))
		var running sync.WaitGroup
		for i, part := range parts {
			running.Go(func() {
				defer cancel()
				if errs[i] = part.Run(ctx); errs[i] != nil {
					errs[i] = fmt.Errorf("%s: %w", part.Name, errs[i])
				}
			})
		}
		running.Wait()
		return errors.Join(errs...)
	}}
}

// accepts is a check that the port at addr takes connections.
func accepts(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		return c.Close()
	}
}

// remarked is a check that never fails, and remarks what would be missing: a
// gateway without it decides as before.
func remarked(what string, check func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return admin.Remark(what + ": " + err.Error())
		}
		return nil
	}
}

// onceReady is a check that fails until it has passed once. From then on it
// remarks: a gateway that has lost its counter store answers by the rules'
// failure modes, and taking all gateways out of service at once would answer
// nobody.
func onceReady(check func(context.Context) error) func(context.Context) error {
	var passed atomic.Bool
	return func(ctx context.Context) error {
		err := check(ctx)
		switch {
		case err == nil:
			passed.Store(true)
			return nil
		case passed.Load():
			return admin.Remark("the rules' failure modes decide: " + err.Error())
		default:
			return err
		}
	}
}

// vouched adds to a check of the counter store the remarks that nobody vouches for
// what it holds, where a gateway decides rates, and the rest by failure modes; and
// that it may lose what it counts.
func vouched(check func(context.Context) error, vouches func() bool, unsafe func() []string) func(context.Context) error {
	return func(ctx context.Context) error {
		err := check(ctx)
		why := unsafe()
		switch {
		case err != nil:
			return err
		case !vouches():
			why = append([]string{"quotas and wallets are left to their failure modes: the counter store was emptied, replaced or restarted, and nobody vouches for what it holds"}, why...)
		case len(why) == 0:
			return nil
		}
		return admin.Remark(strings.Join(why, "; "))
	}
}

// openStore opens the counter store, what remembers its denials, and what holds
// leases of it.
func openStore(cfg config, p boot.Process) (*counters.Store, *decide.Leases, error) {
	store, err := counters.Open(cfg.counters(), p.Log, p.Metrics)
	if err != nil {
		return nil, nil, err
	}
	denials := decide.NewDenials(store, cfg.denyCache, time.Now)
	leases := decide.NewLeases(denials, func(id limit.Identity) decide.Holder { return store.Hold(id) }, cfg.leases, time.Now)
	return store, leases, errors.Join(observe.Repeated(p.Metrics, denials.Hits), observe.Leased(p.Metrics, leases))
}

// A safety watches how the counter store keeps what it holds.
type safety struct {
	store   *counters.Store
	wallets func() bool // some are to be kept
	refuse  bool        // to serve with one that is unsafe at the start
	log     *slog.Logger
	serving chan struct{} // closed when the gate may open
}

func newSafety(store *counters.Store, wallets func() bool, refuse bool, log *slog.Logger) *safety {
	s := &safety{store: store, wallets: wallets, refuse: refuse, log: log, serving: make(chan struct{})}
	if !refuse { // the gate opens without a word of the store
		close(s.serving)
	}
	return s
}

// unsafe returns why the store may lose what it counts.
func (s *safety) unsafe() []string { return s.store.Unsafe(s.wallets()) }

var errUnsafe = errors.New("the counter store is unsafe, and -unsafe-store=refuse")

func (s *safety) run(ctx context.Context) error {
	return s.store.Watch(ctx, func() error {
		if why := s.unsafe(); len(why) > 0 {
			text := strings.Join(why, "; ")
			s.log.WarnContext(ctx, "the counter store may lose what it counts", "why", text)
			if s.refuse {
				return fmt.Errorf("%w: %s", errUnsafe, text)
			}
		}
		if s.refuse {
			close(s.serving)
		}
		return nil
	})
}
