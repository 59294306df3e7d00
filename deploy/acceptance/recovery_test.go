//go:build acceptance

package acceptance_test

import (
	"context"
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
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/schemas/usagev1"
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

// TestReconcileAfterKills guarantees that where a gateway is killed under traffic reconcile
// accounts for every unit of the counter: it is of an event, or shown as unattributed, and
// the exit code says which; no event tells of more than was charged.
func TestReconcileAfterKills(t *testing.T) {
	t.Parallel()
	s := own(t, estate.Options{Gateways: 2, Search: estate.WithoutSearch})
	tenant := s.tenant(nil)
	rule := tenant + "-month"
	s.put("rules", rule, monthly(tenant, 1_000_000))
	q := estate.Object{"tenant": tenant}
	s.enforced(q, rule, 1_000_000)
	ctx, stop := context.WithCancel(t.Context())
	var answered atomic.Int64
	var all sync.WaitGroup
	for c := range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if d, err := s.ask(c%2, q); err == nil && d.allowed() && !d.Degraded {
					answered.Add(1)
				}
			}
		})
	}
	for kill := range int64(3) {
		s.within(time.Minute, "traffic", func() error {
			if n := answered.Load(); n < 200*(kill+1) {
				return fmt.Errorf("%d calls", n)
			}
			return nil
		})
		if err := s.killAndRestart(estate.Gateway2); err != nil {
			t.Error(err)
		}
	}
	stop()
	all.Wait()
	_, _, used, _ := s.decided(0, estate.Object{"tenant": tenant, "cost": 0}).limit(rule)
	var found, sum struct {
		Consumed, Events, Unattributed, Missing int64
		Differing                               int
	}
	s.within(time.Minute, "reconcile to account for all that is used", func() error {
		told := s.told(tenant, rule)
		lines, differs := s.drift("-all")
		for _, line := range lines {
			if strings.Contains(line, "{t:"+tenant+"}") {
				if err := json.Unmarshal([]byte(line), &found); err != nil {
					return err
				}
			}
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil {
			return fmt.Errorf("%w: %s", err, lines)
		}
		if found.Consumed != used || found.Events != told || found.Unattributed != used-told || told > used || found.Missing != 0 {
			return fmt.Errorf("%d used, %d told: %+v", used, told, found)
		}
		if (differs != nil) != (sum.Differing > 0) || sum.Unattributed < found.Unattributed {
			return fmt.Errorf("it ends with %q and says %+v", fmt.Sprint(differs), sum)
		}
		return nil
	})
	if used < answered.Load() {
		t.Errorf("%d used, and %d answered as charged", used, answered.Load())
	}
	t.Logf("%d calls answered, %d units on the counter, %d told, %d unattributed", answered.Load(), used, found.Events, found.Unattributed)
}

// told is the units that distinct events on usage.v1 say a rule's counter was charged.
func (s system) told(tenant, rule string) (units int64) {
	s.Helper()
	seen := map[usagev1.UUID]bool{}
	for _, e := range s.usage() {
		if e.Tenant != tenant || seen[e.EventID] {
			continue
		}
		seen[e.EventID] = true
		for _, c := range e.Counters {
			if c.RuleID == rule {
				units += c.Units
			}
		}
	}
	return units
}

// drift runs the checkpointer's reconcile on the estate, and returns the lines that
// it printed.
func (s system) drift(more ...string) ([]string, error) {
	s.Helper()
	args := append([]string{
		"reconcile", "-json", "-database-url", s.Env["DATABASE_URL"], "-redis-url", s.Env["REDIS_URL"],
		"-kafka-brokers", s.Env["KAFKA_BROKERS"], "-schema-registry", s.Env["SCHEMA_REGISTRY_URL"],
	}, more...)
	cmd := exec.CommandContext(s.Context(), filepath.Join(s.root(), "bin", estate.Checkpointer), args...)
	out, err := cmd.Output()
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err
}
