package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A rollCall is the counter store, which counts whom it has heard of within
// five seconds.
type rollCall struct {
	mu    sync.Mutex
	heard map[string]time.Time
	calls int
	down  bool
}

func (r *rollCall) Presence(_ context.Context, id string) (alive int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.down {
		return 0, errors.New("away")
	}
	r.heard[id] = time.Now()
	for _, at := range r.heard {
		if time.Since(at) < 5*time.Second {
			alive++
		}
	}
	return alive, nil
}

// TestPresence guarantees that gateways find out how many they are, two of one
// name included, every second, and that one which cannot ask remembers it.
func TestPresence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &rollCall{heard: map[string]time.Time{}}
		start := func(name string) (*presence, func()) {
			p := &presence{}
			if p.count() != 1 {
				t.Errorf("%d gateways before anything is known, want 1", p.count())
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.part(store, name, slog.New(slog.DiscardHandler)).Run(ctx) }()
			return p, func() {
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("Run = %v, want canceled", err)
				}
			}
		}
		a, stopA := start("gateway")
		b, stopB := start("gateway")
		wait := func(d time.Duration) { <-time.After(d) } // in virtual time
		wait(1100 * time.Millisecond)
		store.mu.Lock()
		if a.count() != 2 || b.count() != 2 || store.calls != 4 {
			t.Errorf("%d and %d gateways after %d calls, want 2 and 2 after 4", a.count(), b.count(), store.calls)
		}
		for id := range store.heard {
			if !strings.HasPrefix(id, "gateway.") {
				t.Errorf("on the roll as %q", id)
			}
		}
		store.mu.Unlock()
		stopB()
		wait(6 * time.Second)
		if a.count() != 1 {
			t.Errorf("%d gateways once the other is gone, want 1", a.count())
		}
		c, stopC := start("gateway-2")
		wait(1100 * time.Millisecond)
		store.mu.Lock()
		store.down = true
		store.mu.Unlock()
		wait(time.Minute)
		if a.count() != 2 || c.count() != 2 {
			t.Errorf("%d and %d gateways while the store is away, want what was known: 2", a.count(), c.count())
		}
		stopA()
		stopC()
	})
}
