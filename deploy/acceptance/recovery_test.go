//go:build acceptance

package acceptance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestReconcileWithoutKills guarantees that in a run without kills the counter store,
// the checkpoints and the events agree on every counter, corrections and refusals
// included.
func TestReconcileWithoutKills(t *testing.T) {
	t.Parallel()
	s := own(t, estate.Options{Gateways: 2, Search: estate.WithoutSearch})
	tenant := s.tenant(nil)
	rule := tenant + "-month"
	s.put("rules", rule, monthly(tenant, 150))
	q := estate.Object{"tenant": tenant}
	s.enforced(q, rule, 150)
	for i := range 200 {
		d := s.decided(i%2, q)
		if d.allowed() && i%10 == 0 {
			if r, _ := s.correct(i%2, d, "refund", estate.Object{"refund_id": fmt.Sprint("r-", i)}); r.status != http.StatusOK {
				t.Fatalf("%+v", r)
			}
		}
	}
	var sum struct {
		Counters, Differing int
		Unattributed        int64
	}
	s.within(20*time.Second, "reconcile to find no difference", func() error {
		lines, err := s.drift()
		if err != nil {
			return fmt.Errorf("%w: %s", err, lines)
		}
		return json.Unmarshal([]byte(lines[len(lines)-1]), &sum)
	})
	if sum.Counters == 0 || sum.Differing != 0 || sum.Unattributed != 0 {
		t.Errorf("%+v", sum)
	}
}

// drift runs the checkpointer's reconcile on the estate, and returns the lines that
// it printed.
func (s system) drift() ([]string, error) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), filepath.Join(s.root(), "bin", estate.Checkpointer), "reconcile", "-json",
		"-database-url", s.Env["DATABASE_URL"], "-redis-url", s.Env["REDIS_URL"],
		"-kafka-brokers", s.Env["KAFKA_BROKERS"], "-schema-registry", s.Env["SCHEMA_REGISTRY_URL"])
	out, err := cmd.Output()
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err
}
