//go:build acceptance

package acceptance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// churned is the tenant whose rules the tests of this file change.
const churned = "churn"

// ruleOf is the i-th rule that is changed. It binds one user, so that a peek as
// that user shows what a gateway enforces of it.
func ruleOf(i int, limit int64) (id string, o estate.Object) {
	rule := gcra(churned, limit, "60m", limit)
	rule["subject"] = []string{"tenant", "user"}
	rule["match"] = estate.Object{"tenant": churned, "user": "u" + strconv.Itoa(i)}
	return "churn-" + strconv.Itoa(i), rule
}

func peekOf(i int) estate.Object {
	return estate.Object{"tenant": churned, "user": "u" + strconv.Itoa(i), "cost": 0}
}

// agree waits until what every gateway enforces of the first n rules equals
// what rule-admin's database holds. A change whose caller was gone may still be
// committed, so the database is read anew where they differ.
func (s system) agree(n int) {
	s.Helper()
	var want map[string]int64
	read := func() error {
		want = map[string]int64{}
		return s.list("rules", func(o estate.Object) {
			id, _ := o["id"].(string)
			limit, _ := o["limit"].(float64)
			want[id] = int64(limit)
		})
	}
	s.within(30*time.Second, "rule-admin to list the rules", read)
	for g := range s.gateways() {
		for i := range n {
			id, _ := ruleOf(i, 0)
			s.within(30*time.Second, fmt.Sprintf("gateway %d to agree on %s", g, id), func() error {
				d, err := s.ask(g, peekOf(i))
				if err != nil {
					return err
				}
				limit, exists := want[id]
				if got, _, _, ok := d.limit(id); ok != exists || got != limit {
					return errors.Join(fmt.Errorf("it enforces %d (%v), the database holds %d (%v)", got, ok, limit, exists), read())
				}
				return nil
			})
		}
	}
}

// list calls f for every object of a kind.
func (s system) list(kind string, f func(estate.Object)) error {
	for cursor := ""; ; {
		r, err := s.try(http.MethodGet, s.Env["ADMIN_URL"]+"/v1/"+kind+"?limit=500&cursor="+cursor, "Authorization", "Bearer "+s.Env["READONLY_TOKEN"])
		if err != nil {
			return err
		}
		if r.status != http.StatusOK {
			return fmt.Errorf("%d %s", r.status, r.body)
		}
		var page struct {
			Items      []estate.Object `json:"items"`
			NextCursor string          `json:"next_cursor"`
		}
		if err := json.Unmarshal([]byte(r.body), &page); err != nil {
			return err
		}
		for _, o := range page.Items {
			f(o)
		}
		if cursor = page.NextCursor; cursor == "" {
			return nil
		}
	}
}

// killAndRestart ends a process as a crash would and brings it back.
func (s system) killAndRestart(name string) error {
	p := s.Process(name)
	if err := p.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	if err := p.Restart(s.Context()); err != nil {
		return fmt.Errorf("restart %s: %w", name, err)
	}
	return nil
}

// TestKillOneOfThemUnderLoad guarantees that any one process may be killed
// while rules change and traffic flows: no committed rule change is lost, and
// no decision is charged twice. What was charged lies between the decisions
// that were answered and those that were sent.
func TestKillOneOfThemUnderLoad(t *testing.T) {
	s := own(t, estate.Options{Gateways: 2})
	s.put("tenants", churned, estate.Object{"name": "Churn"})
	const rules = 40
	for _, name := range []string{
		estate.Gateway, estate.OutboxRelay, estate.RuleAdmin, estate.Kafka, estate.Postgres, estate.Redis,
	} {
		t.Run(name, func(t *testing.T) {
			s := system{t, s.Estate, s.admin}
			// One quota per victim; with request ids, so that a caller may repeat.
			quota := monthly(churned, 1_000_000)
			quota["meter"] = "kill-" + name
			s.put("rules", "quota-"+name, quota)
			s.enforced(estate.Object{"tenant": churned}, "quota-"+name, 1_000_000)

			ctx, stop := context.WithCancel(t.Context())
			var sent, charged, changed atomic.Int64
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() { // decisions, each sent once
					for i := 0; ctx.Err() == nil; i++ {
						sent.Add(1)
						d, err := s.ask(w%2, estate.Object{"tenant": churned, "cost": 1, "request_id": fmt.Sprintf("%s-%d-%d", name, w, i)})
						if err == nil && d.allowed() && !d.Degraded {
							charged.Add(1)
						}
					}
				})
			}
			wg.Go(func() { // rule changes
				rng := rand.New(rand.NewPCG(1, 2))
				for ctx.Err() == nil {
					id, rule := ruleOf(rng.IntN(rules), 1+rng.Int64N(1_000_000))
					if _, _, err := s.admin.Put(ctx, "rules", id, "*", rule); err == nil {
						changed.Add(1)
					} else if _, _, err := s.admin.Put(ctx, "rules", id, "", rule); err == nil {
						changed.Add(1)
					}
				}
			})
			load := func(d time.Duration) { <-time.After(d) }
			load(time.Second)
			before := changed.Load()
			if err := s.killAndRestart(name); err != nil {
				t.Error(err)
			}
			s.within(20*time.Second, "rules to change again", func() error {
				if changed.Load() == before {
					return errors.New("none has changed since")
				}
				return nil
			})
			load(time.Second)
			stop()
			wg.Wait()

			s.agree(rules)
			var used int64
			for g := range s.gateways() {
				s.within(10*time.Second, "the store to decide", func() error {
					d, err := s.ask(g, estate.Object{"tenant": churned, "cost": 0})
					if err == nil && d.Degraded {
						err = errors.New("degraded")
					}
					_, _, used, _ = d.limit("quota-" + name)
					return err
				})
			}
			if used > sent.Load() || used < charged.Load() { // Redis writes its append-only file before it answers
				t.Errorf("%d units charged, %d decisions sent, %d answered as charged", used, sent.Load(), charged.Load())
			}
			t.Logf("%d decisions sent, %d answered as charged, %d units on the counter, %d rule changes", sent.Load(), charged.Load(), used, changed.Load())
		})
	}
}

// TestRandomChangesWithRandomKills guarantees that after 10,000 random changes,
// while every process of the way from the operator to the gateways is killed at
// random, the gateways enforce exactly what the database holds.
func TestRandomChangesWithRandomKills(t *testing.T) {
	const (
		changes  = 10_000 // at least; more until there have been enough kills
		minKills = 20
		rules    = 200
		writers  = 4
	)
	s := own(t, estate.Options{Gateways: 2})
	s.put("tenants", churned, estate.Object{"name": "Churn"})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)

	ctx, stop := context.WithCancel(t.Context())
	var killing sync.WaitGroup
	var kills atomic.Int64
	killing.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 0))
		victims := []string{estate.RuleAdmin, estate.OutboxRelay, estate.Kafka, estate.Postgres, estate.Gateway, estate.Gateway2}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(300+rng.IntN(1000)) * time.Millisecond):
			}
			if err := s.killAndRestart(victims[rng.IntN(len(victims))]); err != nil && t.Context().Err() == nil {
				t.Error(err)
				return
			}
			kills.Add(1)
		}
	})

	var done, failed atomic.Int64
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)+1))
			for (done.Load() < changes || kills.Load() < minKills) && t.Context().Err() == nil && !t.Failed() {
				id, rule := ruleOf(rng.IntN(rules), 1+rng.Int64N(1_000_000))
				var err error
				if rng.IntN(4) == 0 {
					err = s.admin.Delete(t.Context(), "rules", id)
				} else if _, _, err = s.admin.Put(t.Context(), "rules", id, "*", rule); err != nil {
					_, _, err = s.admin.Put(t.Context(), "rules", id, "", rule)
				}
				switch {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, estate.ErrNotFound):
					failed.Add(1)
					<-time.After(5 * time.Millisecond) // rule-admin or its database is down
				}
			}
		})
	}
	wg.Wait()
	stop()
	killing.Wait()
	s.agree(rules)
	t.Logf("%d changes committed, %d refused or unanswered, %d kills", done.Load(), failed.Load(), kills.Load())
}
