//go:build integration

package redistest_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/redistest"
)

// TestIntegrationServersArePrivate guarantees that what one test writes, another
// does not see.
func TestIntegrationServersArePrivate(t *testing.T) {
	t.Parallel()

	a, b := redistest.Client(t), redistest.Client(t)
	if err := a.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := b.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("the other server answers %v, want no such key", err)
	}
}

// TestIntegrationServerDiesFreezesAndComesBack guarantees that a test can take
// the server away in each of the ways that production does.
func TestIntegrationServerDiesFreezesAndComesBack(t *testing.T) {
	t.Parallel()

	s := redistest.Start(t)
	c := s.Client()
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}

	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Get(ctx, "k").Err(); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("GET of a frozen server: %v, want a timeout", err)
	}
	s.Thaw()
	if got, err := c.Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Errorf("after Thaw, GET = %q, %v; want v", got, err)
	}

	pid := s.PID()
	s.Kill()
	if err := c.Get(t.Context(), "k").Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if s.PID() == pid {
		t.Error("the pid is the same after a restart")
	}
	if err := c.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("after the restart GET = %v, want an empty server at the same address", err)
	}
}

// TestIntegrationArgumentsReachTheServer guarantees that data can be kept over
// a restart.
func TestIntegrationArgumentsReachTheServer(t *testing.T) {
	t.Parallel()

	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	if err := s.Client().Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Restart()
	if got, err := s.Client().Get(t.Context(), "k").Result(); err != nil || got != "v" {
		t.Errorf("GET = %q, %v; want v", got, err)
	}
}
