package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
)

// TestAfter guarantees that the data port does not open before there are rules,
// and that waiting for them ends with the process.
func TestAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ready, began := make(chan struct{}), false
		part := after(ready, boot.Part{Name: "http", Run: func(ctx context.Context) error {
			began = true
			<-ctx.Done()
			return ctx.Err()
		}})
		for _, open := range []bool{false, true} {
			if open {
				close(ready)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- part.Run(ctx) }()
			synctest.Wait()
			if began != open {
				t.Errorf("rules %v, port open %v", open, began)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run = %v, want canceled", err)
			}
		}
	})
}

// TestOnceReady guarantees that a gateway that never reached its counter store
// is not ready, and that one that lost it is, and says so: its rules know what
// to do then.
func TestOnceReady(t *testing.T) {
	t.Parallel()

	away := errors.New("connection refused")
	state := away
	check := onceReady(func(context.Context) error { return state })
	if err := check(t.Context()); !errors.Is(err, away) {
		t.Errorf("never reached: %v, want not ready", err)
	}
	state = nil
	if err := check(t.Context()); err != nil {
		t.Errorf("reached: %v", err)
	}
	state = away
	var remark admin.Remark
	if err := check(t.Context()); !errors.As(err, &remark) {
		t.Errorf("lost: %v, want a remark", err)
	}
}

// TestVouched guarantees that a gateway says so while nobody vouches for its
// counter store, or it may lose what it counts, and stays ready; a store that is
// away matters more.
func TestVouched(t *testing.T) {
	t.Parallel()
	var state error
	vouches, unsafe := true, []string(nil)
	check := vouched(func(context.Context) error { return state }, func() bool { return vouches }, func() []string { return unsafe })
	if err := check(t.Context()); err != nil {
		t.Errorf("all is well: %v", err)
	}
	vouches = false
	var remark admin.Remark
	if err := check(t.Context()); !errors.As(err, &remark) || !strings.Contains(err.Error(), "vouches") {
		t.Errorf("nobody vouches: %v, want a remark", err)
	}
	unsafe = []string{"it forgets"}
	if err := check(t.Context()); !errors.As(err, &remark) || !strings.Contains(err.Error(), "vouches") || !strings.Contains(err.Error(), "it forgets") {
		t.Errorf("nor is it safe: %v, want both", err)
	}
	vouches = true
	if err := check(t.Context()); !errors.As(err, &remark) || err.Error() != "it forgets" {
		t.Errorf("only unsafe: %v, want a remark", err)
	}
	state = errors.New("connection refused")
	if err := check(t.Context()); !errors.Is(err, state) {
		t.Errorf("away: %v", err)
	}
}

// TestAccepts guarantees that the check tells an open port from a closed one.
func TestAccepts(t *testing.T) {
	t.Parallel()

	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	check := accepts(l.Addr().String())
	if err := check(t.Context()); err != nil {
		t.Errorf("open: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if check(t.Context()) == nil {
		t.Error("closed, and the check passes")
	}
}

// TestRemarkedNeverFails guarantees that a gateway which has lost what it can do
// without stays ready, and says so.
func TestRemarkedNeverFails(t *testing.T) {
	t.Parallel()
	state := errors.New("no broker")
	check := remarked("rule changes do not arrive", func(context.Context) error { return state })
	var remark admin.Remark
	if err := check(t.Context()); !errors.As(err, &remark) || !strings.Contains(err.Error(), "no broker") {
		t.Errorf("check = %v, want a remark", err)
	}
	state = nil
	if err := check(t.Context()); err != nil {
		t.Errorf("check = %v, want nil", err)
	}
}
