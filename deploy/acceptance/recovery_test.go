//go:build acceptance

package acceptance_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// TestBurntRedisGivesNothingAway guarantees that a Redis which was killed and whose
// data is gone is restored by itself: what was used is what it was, also to
// gateways that were restarted and remember nothing, whoever asks is answered by the
// rule's failure mode until then, and no more than the limit passes in all.
func TestBurntRedisGivesNothingAway(t *testing.T) {
	t.Parallel()
	const limit, spent, callers = 300, 200, 8
	s := own(t, estate.Options{Gateways: 2, Search: estate.WithoutSearch})
	tenant := s.tenant(nil)
	rule := tenant + "-month"
	quota := monthly(tenant, limit)
	quota["on_failure"] = "closed"
	s.put("rules", rule, quota)
	q := estate.Object{"tenant": tenant}
	s.enforced(q, rule, limit)
	passed := 0
	for i := range spent {
		if d := s.decided(i%2, withID(q, i)); d.allowed() {
			passed++
		}
	}
	for _, gateway := range []string{estate.Gateway, estate.Gateway2} { // what they know on their way out is told
		s.within(time.Minute, gateway+" again", func() error { return s.Without(s.Context(), gateway, func() error { return nil }) })
	}
	redis := s.Process(estate.Redis)
	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(s.Dir, "data", estate.Redis)
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(data, 0o755); err != nil { //nolint:gosec // as the estate makes it
		t.Fatal(err)
	}
	// They ask on while it is away, comes back empty, and is restored.
	var mu sync.Mutex
	var all sync.WaitGroup
	stop := make(chan struct{})
	refused, later := 0, 0
	for c := range callers {
		all.Go(func() {
			pause := time.NewTicker(2 * time.Millisecond)
			defer pause.Stop()
			for {
				d, err := s.ask(c%2, q)
				mu.Lock()
				switch {
				case err != nil || d.Degraded:
					refused++
				case d.allowed():
					later++
				}
				mu.Unlock()
				select {
				case <-stop:
					return
				case <-pause.C:
				}
			}
		})
	}
	if err := redis.Restart(s.Context()); err != nil {
		t.Fatal(err)
	}
	s.within(time.Minute, "all of the quota to be used", func() error {
		d, err := s.ask(0, estate.Object{"tenant": tenant, "cost": 0})
		if err != nil {
			return err
		}
		if _, remaining, _, ok := d.limit(rule); !ok || d.Degraded || remaining != 0 {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	close(stop)
	all.Wait()
	if passed != spent || later > limit-spent {
		t.Errorf("%d and %d of %d passed", passed, later, limit)
	}
	if refused == 0 {
		t.Error("nothing was refused while it was away: it was not")
	}
	for g := range s.gateways() {
		d := s.decided(g, estate.Object{"tenant": tenant, "cost": 0})
		if _, _, consumed, _ := d.limit(rule); consumed != limit {
			t.Errorf("gateway %d: %d used of %d", g, consumed, limit)
		}
	}
	t.Logf("%d passed before and %d after, %d were refused meanwhile", passed, later, refused)
	if later < limit-spent-callers*4 { // those whose reply was lost are charged
		t.Error(errors.New("too few passed after it"))
	}
}

// withID is a question with a request id of its own.
func withID(q estate.Object, n int) estate.Object {
	with := maps.Clone(q)
	with["request_id"] = fmt.Sprint("spent-", n)
	return with
}
