//go:build integration

package decide_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// redisStore is the real store on a Redis of the test's own.
func redisStore(t testing.TB, url string) *counters.Store {
	t.Helper()
	return openStore(t, counters.Config{URL: url})
}

// openStore opens a real store. Its budget is generous: these tests are about
// numbers, not about time.
func openStore(t testing.TB, cfg counters.Config) *counters.Store {
	t.Helper()
	cfg.Budget, cfg.Adopt = 5*time.Second, true
	store, err := counters.Open(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// TestIntegrationFC08 guarantees on a real Redis what TestFC08 does of the
// model; and so on.
func TestIntegrationFC08(t *testing.T) { overRedis(t, caseFC08) }

// TestIntegrationFC15 is TestFC15 on a real Redis.
func TestIntegrationFC15(t *testing.T) { overRedis(t, caseFC15) }

// TestIntegrationC1 is TestC1 on a real Redis.
func TestIntegrationC1(t *testing.T) { overRedis(t, caseC1) }

// TestIntegrationC3 is TestC3 on a real Redis.
func TestIntegrationC3(t *testing.T) { overRedis(t, caseC3) }

// TestIntegrationE1 is TestE1 on a real Redis.
func TestIntegrationE1(t *testing.T) { overRedis(t, caseE1) }

// TestIntegrationFC10 is TestFC10 on a real Redis.
func TestIntegrationFC10(t *testing.T) { overRedis(t, caseFC10) }

// TestIntegrationW1 is TestW1 on a real Redis.
func TestIntegrationW1(t *testing.T) { overRedis(t, caseW1) }

// TestIntegrationW2 is TestW2 on a real Redis.
func TestIntegrationW2(t *testing.T) { overRedis(t, caseW2) }

// TestIntegrationEveryWay guarantees on a real Redis what the tests of every
// algorithm do of the model.
func TestIntegrationEveryWay(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*testing.T, *rig, *way){
		"FC-15": caseFC15Way, "C1": caseC1Way, "C3": caseC3Way, "E3": caseE3Way, "refund": caseRefundWay, "settle": caseSettleWay,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := redistest.Start(t).URL
			for i := range ways {
				t.Run(ways[i].name, func(t *testing.T) {
					store := redisStore(t, fmt.Sprintf("%s/%d", strings.TrimSuffix(url, "/0"), i)) // a database of its own
					run(t, newRig(t, store, store.Now), &ways[i])
				})
			}
		})
	}
}

func overRedis(t *testing.T, run func(*testing.T, *rig)) {
	t.Parallel()
	store := redisStore(t, redistest.Start(t).URL)
	run(t, newRig(t, store, store.Now))
}

// TestIntegrationE2 guarantees that three gateways sell a limit of 100 exactly:
// of 1,000 requests at once, 100 pass and 900 do not.
func TestIntegrationE2(t *testing.T) {
	t.Parallel()

	url := redistest.Start(t).URL
	var gateways []*rig
	for range 3 {
		store := redisStore(t, url)
		gateways = append(gateways, newRig(t, store, store.Now, quota("month", 100)))
	}
	var allowed, denied atomic.Int64
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			d, err := gateways[i%len(gateways)].Decide(t.Context(), decide.Query{Tenant: "acme"})
			switch {
			case err != nil || d.Degraded:
				t.Errorf("request %d: %+v %v", i, d, err)
			case d.Outcome == decide.Allow:
				allowed.Add(1)
			default:
				denied.Add(1)
			}
		})
	}
	all.Wait()
	peek := gateways[0].ask(decide.Query{Tenant: "acme", Cost: units(0)})
	if allowed.Load() != 100 || denied.Load() != 900 || peek.Limits[0].Consumed != 100 {
		t.Errorf("%d allowed, %d denied, %d used; want 100, 900, 100", allowed.Load(), denied.Load(), peek.Limits[0].Consumed)
	}
}

// TestIntegrationFC12 guarantees that the store's clock decides, and no
// gateway's: with B's clock 10 s behind A's, or ahead of it, a bucket of 4 that
// earns 2 a second sells 4 at once, and 2 more a second later.
func TestIntegrationFC12(t *testing.T) {
	t.Parallel()

	url := redistest.Start(t).URL
	for name, skew := range map[string]time.Duration{"behind": -10 * time.Second, "ahead": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := redisStore(t, url)
			bucket := rate("bucket", rule.Tenant, 4)
			bucket.Algorithm, bucket.Window, bucket.Burst = rule.TokenBucket, 2*time.Second, 4
			a := newRig(t, store, store.Now, bucket)
			b := newRig(t, store, func() time.Time { return store.Now().Add(skew) }, bucket)
			q := decide.Query{Tenant: name}
			began, allowed := time.Now(), int64(0)
			for i := range 9 {
				r := a
				if i == 4 {
					r = b
				}
				if r.ask(q).Outcome == decide.Allow {
					allowed++
				}
			}
			// Who was held up for half a second has earned one more.
			if most := 4 + int64(2*time.Since(began)/time.Second); allowed < 4 || allowed > most {
				t.Errorf("%d of 9 allowed at once, want 4 to %d", allowed, most)
			}
			peek := decide.Query{Tenant: name, Cost: units(0)}
			for deadline := time.Now().Add(10 * time.Second); left(a.ask(peek), "bucket") < 2; {
				if left(b.ask(peek), "bucket") > 2 || time.Now().After(deadline) {
					t.Fatal("two have not been earned")
				}
			}
			for range 3 {
				if a.ask(q).Outcome == decide.Allow {
					allowed++
				}
			}
			if most := 4 + int64(2*time.Since(began)/time.Second); allowed < 6 || allowed > most {
				t.Errorf("%d allowed within %v, want 6 to %d", allowed, time.Since(began), most)
			}
		})
	}
}

// TestIntegrationE3 guarantees that one request id, three times at once, is one
// decision and three equal answers.
func TestIntegrationE3(t *testing.T) {
	t.Parallel()

	store := redisStore(t, redistest.Start(t).URL)
	r := newRig(t, store, store.Now, quota("month", 100), rate("burst", rule.Tenant, 100))
	r.ask(decide.Query{Tenant: "acme", Cost: units(10)})
	var answers [3]decide.Decision
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = r.Decide(t.Context(), decide.Query{RequestID: "r-1", Tenant: "acme", Cost: units(5)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	replayed := 0
	for i := range answers {
		if answers[i].Replayed {
			replayed++
			answers[i].Replayed = false
		}
		if diff := cmp.Diff(answers[0], answers[i], cmpopts.IgnoreUnexported(decide.Decision{})); diff != "" {
			t.Errorf("answers differ (-first +%d):\n%s", i, diff)
		}
	}
	if used := answers[0].Limits[1].Consumed; replayed != 2 || used != 15 {
		t.Errorf("%d replayed, %d used; want 2 and 15", replayed, used)
	}
}

// TestIntegrationStoreGone guarantees that a store that does not answer is an
// answer, within its budget, and that decisions resume with it.
func TestIntegrationStoreGone(t *testing.T) {
	t.Parallel()

	server := redistest.Start(t)
	store, err := counters.Open(counters.Config{URL: server.URL, Budget: 200 * time.Millisecond, Adopt: true}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	r := newRig(t, store, store.Now, rate("open", rule.Tenant, 10))
	server.Freeze()
	began := time.Now()
	if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Allow || !d.Degraded {
		t.Errorf("open rule: %+v, want a degraded pass", d)
	}
	r.rule(quota("closed", 10))
	if d := r.ask(decide.Query{Tenant: "acme"}); d.Status != 503 || d.Code != decide.StoreUnavailable {
		t.Errorf("closed rule: %+v, want 503", d)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("two answers took %v", took)
	}
	server.Thaw()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		d := r.ask(decide.Query{Tenant: "acme"})
		if !d.Degraded {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("decisions did not resume")
		}
	}
}
