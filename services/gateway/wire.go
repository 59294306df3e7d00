package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
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

// vouched adds to a check of the counter store the remark that nobody vouches
// for what it holds: a gateway decides rates then, and the rest by failure modes.
func vouched(check func(context.Context) error, vouches func() bool) func(context.Context) error {
	return func(ctx context.Context) error {
		err := check(ctx)
		if err == nil && !vouches() {
			return admin.Remark("quotas and wallets are left to their failure modes: the counter store was emptied, replaced or restarted, and nobody vouches for what it holds")
		}
		return err
	}
}
