//go:build integration

package counters_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// openCluster opens a store on a cluster as a service does, which adopts what
// it finds.
func openCluster(t testing.TB, c *redistest.Cluster, budget time.Duration) *counters.Store {
	t.Helper()
	s := open(t, counters.Config{URL: c.URL, Cluster: true, Budget: budget, Adopt: true})
	eventually(t, 20*time.Second, "the cluster is ready", func() bool { return s.Ready(t.Context()) == nil })
	return s
}

// used is what a rate's counter holds.
func used(t testing.TB, s *counters.Store, c limit.Charge) int64 {
	t.Helper()
	c.Cost = 0
	return c.Burst - decide(t, s, c).Results[0].Remaining
}

// TestIntegrationCluster guarantees on a real cluster, which nothing happens
// to, what callers are promised.
func TestIntegrationCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for name, test := range map[string]func(*testing.T, *redistest.Cluster){
		"exact in a slot":    clusterExact,
		"usage and presence": clusterReads,
		"slots that move":    clusterMigrates,
		"an emptied master":  clusterEmptied,
		"a lost script":      clusterScripts,

		"returns":          clusterReturns,
		"given back":       clusterGivesBackWhatFailed,
		"compensation":     clusterCompensates,
		"never oversold":   clusterNeverOversells,
		"corrections":      clusterCorrects,
		"lost corrections": clusterLostCorrections,
		"holds":            clusterHolds,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// clusterMigrates moves slots, one at a time, for so an operator does it.
func clusterMigrates(t *testing.T, c *redistest.Cluster) {
	t.Run("under load", func(t *testing.T) { clusterMoves(t, c) })
	t.Run("corrections", func(t *testing.T) { clusterCorrectsMoving(t, c) })
	t.Run("lost replies", func(t *testing.T) { clusterLostReplies(t, c) })
	t.Run("holds", func(t *testing.T) { clusterLosesHolds(t, c) })
}

// clusterExact: 1,000 requests at once through three gateways buy exactly the
// 100 units that there are, whatever counts.
func clusterExact(t *testing.T, c *redistest.Cluster) {
	stores := []*counters.Store{openCluster(t, c, generous), openCluster(t, c, generous), openCluster(t, c, generous)}
	for _, k := range kinds {
		charge := k.charge("exact", time.Now(), 100, rule.MaxWindow, 1)
		allowed := crowd(t, 1000, func(i int) (limit.Answer, error) {
			return stores[i%3].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{charge}})
		})
		if allowed != 100 {
			t.Errorf("%s: %d allowed, want 100", k.name, allowed)
		}
	}
}

// crowd asks n times at once and counts what was allowed.
func crowd(t *testing.T, n int, ask func(i int) (limit.Answer, error)) int64 {
	t.Helper()
	var wg sync.WaitGroup
	var allowed atomic.Int64
	for i := range n {
		wg.Go(func() {
			a, err := ask(i)
			if err != nil {
				t.Error(err)
			}
			if a.Allowed {
				allowed.Add(1)
			}
		})
	}
	wg.Wait()
	return allowed.Load()
}

// clusterReads: totals of many tenants, and who is alive.
func clusterReads(t *testing.T, c *redistest.Cluster) {
	s, span := openCluster(t, c, generous), month(time.Now())
	var ids []limit.Identity
	var want []limit.Totals
	for i := range int64(40) {
		q := quota(fmt.Sprint("reads ", i), span, 100, i)
		decide(t, s, q)
		ids, want = append(ids, q.Counter), append(want, limit.Totals{Consumed: i})
	}
	got, err := openCluster(t, c, generous).Usage(t.Context(), ids)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for i, want := range []int{1, 2, 2} {
		if n, err := s.Presence(t.Context(), []string{"a", "b", "a"}[i]); err != nil || n != want {
			t.Errorf("%d alive, %v; want %d", n, err, want)
		}
	}
}

// clusterMoves: while a slot is moved to another master, what is counted is
// decided on, exactly.
func clusterMoves(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	stores := []*counters.Store{openCluster(t, c, generous), openCluster(t, c, generous)}
	q, r := quota("moves", span, 1_000_000, 1), gcra("moves", 1, rule.MaxWindow, 1_000_000, 1)
	key := counters.Key(q.Counter)
	decide(t, stores[0], q, r)
	decide(t, stores[1], q, r)
	var asked atomic.Int64
	asked.Store(2)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := stores[i%2].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{q, r}})
				if err != nil || !a.Allowed {
					t.Errorf("%+v, %v", a, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	more := func() {
		from := asked.Load()
		eventually(t, 10*time.Second, "decisions go on", func() bool { return asked.Load() > from+200 })
	}
	for range 3 {
		to := c.Nodes[0]
		if c.Master(key) == to {
			to = c.Nodes[1]
		}
		m := c.Migrate(key, to)
		more()
		m.Keys() // from now on ASK
		more()
		m.End() // and now MOVED
		more()
	}
	close(stop)
	wg.Wait()
	got, err := stores[0].Usage(t.Context(), []limit.Identity{q.Counter})
	if err != nil || got[0].Consumed != asked.Load() {
		t.Errorf("used %v, %v; want %d", got, err, asked.Load())
	}
	if n := used(t, stores[1], r); n != asked.Load() {
		t.Errorf("the rate holds %d, want %d", n, asked.Load())
	}
}

// proxied opens a store that reaches every node through a proxy of its own.
func proxied(t *testing.T, c *redistest.Cluster, budget time.Duration) (*counters.Store, map[string]*proxy) {
	t.Helper()
	proxies := map[string]*proxy{}
	for _, n := range c.Nodes {
		proxies[n.Addr] = newProxy(t, n.Addr)
	}
	s, err := counters.OpenWith(counters.Config{URL: c.URL, Cluster: true, Budget: budget, Adopt: true}, "", func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, proxies[addr].addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	eventually(t, 20*time.Second, "the cluster is ready", func() bool { return s.Ready(t.Context()) == nil })
	return s, proxies
}

// clusterLostReplies: a decision whose reply is lost has charged at most once
// in each slot, and is not sent again, also behind a redirection.
func clusterLostReplies(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	s, proxies := proxied(t, c, time.Second)
	direct := openCluster(t, c, generous)
	evals := func() (n int) {
		for _, p := range proxies {
			n += p.sent("evalsha") + p.sent("$4\r\neval\r\n")
		}
		return n
	}
	lose := func(yes bool) {
		for _, p := range proxies {
			p.set(func() {
				if p.lose = nil; yes {
					p.lose = scriptReply
				}
			})
		}
	}
	for i := range 6 {
		who := fmt.Sprint("lost ", i)
		q := quota(who, span, 100, 1)
		decide(t, direct, q)
		decide(t, s, q)
		if i >= 3 { // to a node that the store does not know to have the slot
			to := c.Nodes[0]
			if c.Master(counters.Key(q.Counter)) == to {
				to = c.Nodes[1]
			}
			c.Migrate(counters.Key(q.Counter), to).End()
			decide(t, direct, quota(who, span, 100, 0)) // adopts it there
			proxies[to.Addr].set(func() { proxies[to.Addr].lose = scriptReply })
		} else {
			lose(true)
		}
		before := evals()
		_, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{q}})
		sent := evals() - before
		lose(false)
		if !errors.Is(err, counters.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", who, err)
		}
		if want := []int{1, 2}[i/3]; sent > want+1 || sent < want {
			t.Errorf("%s: sent %d times, want %d", who, sent, want)
		}
		if got, err := direct.Usage(t.Context(), []limit.Identity{q.Counter}); err != nil || got[0].Consumed != 3 {
			t.Errorf("%s: %v used, %v; want 3: it was charged once", who, got, err)
		}
	}
}

// clusterEmptied: what was deleted behind the service's back in one slot is
// noticed there, and elsewhere nothing.
func clusterEmptied(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	s := openCluster(t, c, generous)
	wary := open(t, counters.Config{URL: c.URL, Cluster: true, Budget: generous})
	here, there := quota("emptied", span, 10, 1), quota("untouched", span, 10, 1)
	decide(t, s, here)
	decide(t, s, there)
	epoch := counters.EpochKeys()[counters.SlotOf("t:emptied")]
	if err := c.Client().Del(t.Context(), epoch, counters.Key(here.Counter)).Err(); err != nil {
		t.Fatal(err)
	}
	if a := decide(t, wary, here); !a.Lost || a.Allowed {
		t.Errorf("emptied: %+v, want lost", a)
	}
	if a := decide(t, wary, there); a.Lost || !a.Allowed {
		t.Errorf("elsewhere: %+v, want allowed", a)
	}
	if a := decide(t, s, here); !a.Allowed || a.Results[0].Consumed != 2 {
		t.Errorf("adopted by who saw it: %+v, want 2 used", a)
	}
}

// clusterScripts: no caller sees that a node's script cache was flushed.
func clusterScripts(t *testing.T, c *redistest.Cluster) {
	s, span := openCluster(t, c, generous), month(time.Now())
	for i := range int64(20) {
		if i%5 == 0 {
			for _, n := range c.Nodes[:3] {
				if err := n.Client().ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if a := decide(t, s, quota(fmt.Sprint("scripts ", i%4), span, 100, 1)); a.Results[0].Consumed != i/4+1 {
			t.Errorf("decision %d: %+v", i, a)
		}
	}
}
