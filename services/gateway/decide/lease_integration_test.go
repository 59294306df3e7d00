//go:build integration

package decide_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// A realTenure is a gateway with leases of a real store.
type realTenure struct {
	*rig
	leases *decide.Leases
}

func newRealTenure(t *testing.T, cfg counters.Config, rules ...*rule.Rule) *realTenure {
	t.Helper()
	store := openStore(t, cfg)
	for deadline := time.Now().Add(20 * time.Second); store.Ready(t.Context()) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the store is not ready")
		}
	}
	v := &realTenure{}
	v.leases = decide.NewLeases(decide.NewDenials(store, 1024, time.Now), func(id limit.Identity) decide.Holder { return store.Hold(id) }, 1000, time.Now)
	v.rig = newRig(t, v.leases, store.Now, rules...)
	return v
}

// ofAYear is a rule of n a year that may be leased.
func ofAYear(a rule.Algorithm, n, units int64, ttl time.Duration) *rule.Rule {
	r := leased(a, n, units, ttl)
	r.Window = rule.MaxWindow
	return r
}

// sellOut asks gateways for keys, from many goroutines at once, until each key has
// been refused often in a row everywhere. It returns what was sold of each key.
func sellOut(t *testing.T, all []*realTenure, keys int) []int64 {
	t.Helper()
	sold := make([]atomic.Int64, keys)
	var asking sync.WaitGroup
	for g := range 4 * len(all) {
		asking.Go(func() {
			for refused := 0; refused < 3*keys; {
				key := (refused + g) % keys
				d, err := all[g%len(all)].Decide(t.Context(), decide.Query{Tenant: fmt.Sprint("t", key)})
				switch {
				case err != nil || d.Degraded:
					t.Errorf("%+v, %v", d, err)
					return
				case d.Outcome == decide.Allow:
					sold[key].Add(1)
				default:
					refused++
				}
			}
		})
	}
	asking.Wait()
	counts := make([]int64, keys)
	for i := range sold {
		counts[i] = sold[i].Load()
	}
	return counts
}

// TestIntegrationLeasesSellExactly guarantees that gateways which lease one
// counter on a real Redis sell its limit of 1,000 exactly: never more, and all of
// it when what they held has gone back; whatever counts.
func TestIntegrationLeasesSellExactly(t *testing.T) {
	t.Parallel()
	cfg := counters.Config{URL: redistest.Start(t).URL}
	for _, a := range rates {
		for name, ttl := range map[string]time.Duration{"": time.Hour, ", for a moment": 20 * time.Millisecond} {
			t.Run(string(a)+name, func(t *testing.T) { exactly(t, cfg, a, ttl) })
		}
	}
}

// TestIntegrationLeasesOfAClusterSellExactly is the same on a real cluster.
func TestIntegrationLeasesOfAClusterSellExactly(t *testing.T) {
	t.Parallel()
	cfg := counters.Config{URL: redistest.StartCluster(t).URL, Cluster: true}
	for _, a := range []rule.Algorithm{rule.FixedWindow, rule.GCRA} {
		t.Run(string(a), func(t *testing.T) { exactly(t, cfg, a, time.Hour) })
	}
}

func exactly(t *testing.T, cfg counters.Config, a rule.Algorithm, ttl time.Duration) {
	const keys, most = 10, 1000
	r := ofAYear(a, most, 30, ttl)
	r.Meter = fmt.Sprint("of-", ttl.Milliseconds())
	all := []*realTenure{newRealTenure(t, cfg, r), newRealTenure(t, cfg, r), newRealTenure(t, cfg, r)}
	sold := sellOut(t, all, keys)
	spent := int64(0)
	for _, v := range all {
		if err := v.leases.Close(); err != nil {
			t.Error(err)
		}
		u := v.leases.Units()
		if spent += u.Spent; u.Taken != u.Spent+u.Returned+u.Lost || u.Lost > 0 {
			t.Errorf("%+v: more or less than was taken", u)
		}
	}
	asked := *r
	asked.Lease = nil
	rest := sellOut(t, []*realTenure{newRealTenure(t, cfg, &asked)}, keys)
	for key := range keys {
		if sold[key] > most || sold[key]+rest[key] != most {
			t.Errorf("t%d: %d sold with leases and %d after them, want %d together", key, sold[key], rest[key], most)
		}
	}
	t.Logf("%d units of %d were spent from leases", spent, keys*most)
	if ttl == time.Hour && spent < keys*most/50 {
		t.Errorf("%d units were spent from leases: too few to tell", spent)
	}
}

// TestIntegrationKilledGateway guarantees that a gateway that ends without a word
// leaves at most one lease of a counter unsold, wherever it was with its leases.
func TestIntegrationKilledGateway(t *testing.T) {
	t.Parallel()
	const keys, most, size = 10, 1000, 30
	cfg := counters.Config{URL: redistest.Start(t).URL}
	r := ofAYear(rule.FixedWindow, most, size, time.Hour)
	killed := newRealTenure(t, cfg, r)
	sold := make([]int64, keys)
	for key := range keys {
		for range 100 + 3*key { // others are left each time
			if killed.ask(decide.Query{Tenant: fmt.Sprint("t", key)}).Outcome == decide.Allow {
				sold[key]++
			}
		}
	}
	if killed.leases.Len() == 0 {
		t.Fatal("it held nothing")
	}
	asked := *r
	asked.Lease = nil
	rest := sellOut(t, []*realTenure{newRealTenure(t, cfg, &asked)}, keys)
	unsold := int64(0)
	for key := range keys {
		left := most - sold[key] - rest[key]
		if unsold += left; left < 0 || left > size {
			t.Errorf("t%d: %d and %d sold, want %d to %d together", key, sold[key], rest[key], most-size, most)
		}
	}
	if unsold == 0 {
		t.Error("nothing was unsold: nothing is told")
	}
	if err := killed.leases.Close(); err != nil { // only now, and by the test
		t.Error(err)
	}
}

// TestIntegrationRefundOfALeasedDecision guarantees on a real Redis that a refund
// of what was spent from a lease goes to the counter, once, whatever counts.
func TestIntegrationRefundOfALeasedDecision(t *testing.T) {
	t.Parallel()
	cfg := counters.Config{URL: redistest.Start(t).URL}
	for _, a := range rates {
		t.Run(string(a), func(t *testing.T) {
			v := newRealTenure(t, cfg, ofAYear(a, 1000, 30, time.Hour))
			var receipt decide.Receipt
			total := int64(0)
			for told := (decide.Usage{}); !receipt.At.Before(told.At); total++ { // what was charged before it was decided was leased
				if total == 1000 {
					t.Fatal("nothing was leased")
				}
				d := v.ask(globex)
				told, _ = d.Usage()
				receipt, _ = d.Receipt()
			}
			for range 2 {
				if c, err := v.Refund(t.Context(), receipt, "", 0); err != nil || c.Units != 1 {
					t.Errorf("%+v, %v", c, err)
				}
			}
			if err := v.leases.Close(); err != nil {
				t.Error(err)
			}
			if got := left(v.ask(decide.Query{Tenant: "globex", Cost: units(0)}), "leased"); got != 1000-total+1 {
				t.Errorf("%d left after %d were sold and one was given back", got, total)
			}
		})
	}
}

// BenchmarkLeasesOnRedis measures decisions about 100 busy counters by 64 callers
// at once, each asked of a real Redis, and with leases of 50 units.
func BenchmarkLeasesOnRedis(b *testing.B) {
	for name, most := range map[string]int{"asked": 0, "leased": 1000} {
		b.Run(name, func(b *testing.B) {
			store := redisStore(b, redistest.Start(b).URL)
			r := leased(rule.GCRA, 1_000_000, 50, 500*time.Millisecond)
			r.Window = time.Second
			book := decide.NewBook()
			book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: r.ID, Version: 1, Object: r}})
			leases := decide.NewLeases(decide.NewDenials(store, 1024, time.Now), func(id limit.Identity) decide.Holder { return store.Hold(id) }, most, time.Now)
			s := decide.NewService(book, leases, store.Now, decide.NewID, decide.Options{})
			queries := make([]decide.Query, 100)
			for i := range queries {
				queries[i].Tenant = fmt.Sprint("t", i)
			}
			var next atomic.Int64
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := int(next.Add(7)); pb.Next(); i++ {
					if d, err := s.Decide(b.Context(), queries[i%len(queries)]); err != nil || d.Outcome != decide.Allow || d.Degraded {
						b.Errorf("%+v, %v", d, err)
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			if err := leases.Close(); err != nil {
				b.Error(err)
			}
			u := leases.Units()
			b.ReportMetric(100*float64(u.Spent)/float64(b.N), "%leased")
		})
	}
}
