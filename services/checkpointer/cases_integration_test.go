//go:build integration

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
)

// parts are an instance of the service of which nothing runs by itself.
func (h *house) parts(more ...string) *wiring {
	h.t.Helper()
	cfg, err := parseConfig(h.flags(more...), none)
	if err != nil {
		h.t.Fatal(err)
	}
	w, err := assemble(h.t.Context(), &cfg, boot.Process{Service: "checkpointer", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = errors.Join(w.books.Close(), w.counters.Close(), w.broker.Close()) })
	if err := w.books.Prepare(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	return w
}

// TestIntegrationFC24 guarantees that two instances which restore at the same
// moment, without any lock, while requests come, restore once what was there: in
// each of 100 runs all are allowed, the counter ends at 705, and nobody was shown
// more than was left.
func TestIntegrationFC24(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	one, two := h.parts(), h.parts()
	if err := one.books.Begin(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	q := quota("acme", 1000, 1)
	if _, err := one.books.Raise(t.Context(), savedOf(q, 700, 0)); err != nil {
		t.Fatal(err)
	}
	for run := range 100 {
		h.flush()
		gates := []*gate{h.gate(), h.gate()}
		var all sync.WaitGroup
		for _, w := range []*wiring{one, two} {
			all.Go(func() {
				if err := w.keeper.Recover(t.Context(), []int{0}); err != nil {
					t.Error(err)
				}
			})
		}
		left := make([]int64, 5)
		for i := range left {
			all.Go(func() {
				a := gates[i%2].ask(q)
				if left[i] = a.Results[0].Remaining; !a.Allowed || a.Results[0].Consumed < 701 {
					t.Errorf("run %d: %+v", run, a)
				}
			})
		}
		all.Wait()
		lowest := left[0]
		for _, n := range left {
			lowest = min(lowest, n)
		}
		if used := gates[0].used(q); used != 705 || lowest != 295 {
			t.Fatalf("run %d: %d used, and at least %d shown to remain; want 705 and 295", run, used, lowest)
		}
		for _, g := range gates {
			if err := g.store.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestIntegrationLosses guarantees that a store which lost what it held, in
// whatever way, is restored before anything is decided by it, by one of two
// instances, and that what was used then is what it was.
func TestIntegrationLosses(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(h *house, key string){
		"killed, with nothing on disk": func(h *house, _ string) { h.redis.Kill(); h.redis.Restart() },
		"FLUSHALL":                     func(h *house, _ string) { h.flush() },
		"the counter and the epoch deleted": func(h *house, key string) {
			if err := h.redis.Client().Del(t.Context(), key, "epoch").Err(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			instances := []*served{h.start(), h.start()}
			g, q := h.gate(), quota("acme", 1000, 1)
			bulk := quota("acme", 1000, 700)
			g.sell(bulk)
			h.awaitStored(q, 700, 700)
			for range 3 {
				g.sell(q)
			}
			lose(h, counters.Key(q.Counter))
			fresh := h.gate()
			if a := fresh.ask(q); !a.Allowed || a.Results[0].Remaining != 296 {
				t.Errorf("%+v, want 296 to remain", a)
			}
			restores := 0.0
			for _, s := range instances {
				s.ready()
				restores += s.metric(`restores_total{tail="whole"}`)
			}
			if restores != 1 {
				t.Errorf("%v restores", restores)
			}
		})
	}
}

// TestIntegrationReplacedServer guarantees the same where another, empty server
// takes over the store's address.
func TestIntegrationReplacedServer(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.start()
	g, q := h.gate(), quota("acme", 1000, 1)
	g.sell(quota("acme", 1000, 700))
	h.awaitStored(q, 700, 700)
	port := h.redis.Addr[strings.LastIndexByte(h.redis.Addr, ':')+1:]
	h.redis.Kill()
	other := redistest.Start(t)
	if err := other.Client().ConfigSet(t.Context(), "port", port).Err(); err != nil {
		t.Fatal(err)
	}
	if a := h.gate().ask(q); !a.Allowed || a.Results[0].Remaining != 299 {
		t.Errorf("%+v, want 299 to remain", a)
	}
	if a := g.ask(q); !a.Allowed || a.Results[0].Remaining != 298 {
		t.Errorf("%+v, want 298 to remain", a)
	}
}

// TestIntegrationFailover guarantees that a replica which takes over, with counters of
// before and an epoch that names the run it copied, decides nothing until it has what it
// missed.
func TestIntegrationFailover(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, q := h.gate(), quota("acme", 1000, 1)
	g.sell(quota("acme", 1000, 700))
	h.awaitStored(q, 700, 700)
	port := h.redis.Addr[strings.LastIndexByte(h.redis.Addr, ':')+1:]
	replica := redistest.Start(t)
	follow := func(host, port string) {
		t.Helper()
		if err := replica.Client().ReplicaOf(t.Context(), host, port).Err(); err != nil {
			t.Fatal(err)
		}
	}
	follow("127.0.0.1", port)
	eventually(t, "a copy", func() bool {
		return replica.Client().Exists(t.Context(), counters.Key(q.Counter), "epoch").Val() == 2
	})
	follow("NO", "ONE")
	for range 40 {
		g.sell(q)
	}
	h.redis.Kill()
	if err := replica.Client().ConfigSet(t.Context(), "port", port).Err(); err != nil {
		t.Fatal(err)
	}
	fresh := h.gate()
	if a := fresh.ask(q); !a.Allowed || a.Results[0].Remaining != 259 {
		t.Errorf("%+v, want 259 to remain", a)
	}
	if a := g.ask(q); !a.Allowed || a.Results[0].Remaining != 258 {
		t.Errorf("who was there before: %+v, want 258 to remain", a)
	}
	if n := s.metric(`restores_total{tail="whole"}`); n != 1 {
		t.Errorf("%v restores", n)
	}
}

// TestIntegrationK1 guarantees that what usage.v1 tells beyond the checkpoint is
// restored: exactly what was left passes. Where the topic cannot be read, the
// checkpoint alone is, and that is said.
func TestIntegrationK1(t *testing.T) {
	t.Parallel()
	for _, readable := range []bool{true, false} {
		t.Run(fmt.Sprintf("usage.v1 readable %v", readable), func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			s := h.start()
			g, q := h.gate(), quota("acme", 10_500, 1)
			g.sell(quota("acme", 10_500, 10_000))
			h.awaitStored(q, 10_000, 10_000)
			s.end()
			s = h.start("-checkpoint-every", "1h", "-sweep-every", "1h", "-tail-patience", map[bool]string{true: "30s", false: "300ms"}[readable])
			for range 450 {
				g.sell(q)
			}
			want, series := int64(50), `restores_total{tail="whole"}`
			if !readable {
				want, series = 500, `restores_total{tail="missing"}`
				h.kafka.Stop()
			}
			h.flush()
			fresh := h.gate()
			if used := fresh.used(q); readable && used != 10_450 || !readable && used != 10_000 {
				t.Errorf("%d used", used)
			}
			passed := int64(0)
			for range 600 {
				if fresh.ask(q).Allowed {
					passed++
				}
			}
			if passed != want {
				t.Errorf("%d passed, want %d", passed, want)
			}
			if n := s.metric(series); n != 1 {
				t.Errorf("%s is %v", series, n)
			}
			if said := strings.Contains(s.log.String(), "restored to the checkpoint alone"); said == readable {
				t.Errorf("said to be the checkpoint alone: %v", said)
			}
			if !readable {
				h.kafka.Start()
			}
		})
	}
}

// TestIntegrationK2 guarantees that a store which says less than the books neither
// lowers them nor keeps saying so: an alarm, and it is raised. By a checkpoint, and
// by a sweep alone.
func TestIntegrationK2(t *testing.T) {
	t.Parallel()
	for name, knobs := range map[string][]string{
		"by a checkpoint": {"-sweep-every", "1h"}, "by a sweep": {"-checkpoint-every", "1h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			q := quota("acme", 20_000, 10_000)
			first := h.start()
			h.gate().sell(q)
			h.awaitStored(q, 10_000, 10_000)
			first.end()
			s := h.start(knobs...)
			low := quota("beta", 20_000, 40)
			h.gate().sell(low)
			if err := h.redis.Client().Copy(t.Context(), counters.Key(low.Counter), counters.Key(q.Counter), 0, true).Err(); err != nil {
				t.Fatal(err)
			}
			h.tell(q, usagev1.Event{Decision: usagev1.DecisionAllow, Status: 200, Cost: 40}, 40, limit.Totals{Consumed: 40})
			eventually(t, "an alarm", func() bool { return s.metric("lowered_total") == 1 })
			if consumed, _, _ := h.stored(q); consumed != 10_000 {
				t.Errorf("the books say %d", consumed)
			}
			if used := h.gate().used(q); used != 10_000 {
				t.Errorf("the store says %d", used)
			}
			if !strings.Contains(s.log.String(), "behind the service's back") {
				t.Error("nothing is said")
			}
		})
	}
}

// TestIntegrationK3 guarantees that what was given back is restored too, and that
// a refund which was made is not made again.
func TestIntegrationK3(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, q := h.gate(), quota("acme", 1000, 100)
	a, made := g.sell(q), newID()
	give := func(g *gate, id string) limit.CorrectionAnswer {
		t.Helper()
		var got limit.CorrectionAnswer
		eventually(t, "a correction", func() bool {
			var err error
			got, err = g.store.Correct(t.Context(), limit.Correction{
				Tenant: "acme", DecisionID: made, At: a.Now, Cost: 100, Items: []limit.Item{{Charge: q}}, Refund: id, Units: 30,
			})
			return err == nil && got.Effect != limit.Forgotten
		})
		return got
	}
	refund := func(after limit.Totals) {
		h.tell(q, usagev1.Event{Decision: usagev1.DecisionRefund, DecisionID: made, RefundID: "r-1", Cost: 30}, -30, after)
	}
	h.awaitStored(q, 100, 100) // so that what is given back comes on top of a checkpoint
	if got := give(g, "r-1"); got.Effect != limit.Corrected {
		t.Fatalf("%+v", got)
	}
	refund(limit.Totals{Consumed: 100, Refunded: 30})
	h.awaitStored(q, 100, 70)
	if _, refunded, _ := h.stored(q); refunded != 30 {
		t.Errorf("the books say that %d were given back, want 30", refunded)
	}
	for range 2 {
		h.flush()
		fresh := h.gate()
		if used := fresh.used(q); used != 70 {
			t.Errorf("%d used, want 70", used)
		}
		if got := give(fresh, "r-1"); got.Effect != limit.Repeated || got.Units != 30 || got.Left != 70 {
			t.Errorf("again: %+v", got)
		}
	}
	if n := s.metric(`restores_total{tail="whole"}`); n != 2 {
		t.Errorf("%v restores", n)
	}
}

// TestIntegrationK5 guarantees that of many calls which find the store wiped
// exactly as many pass as were left, and that two instances restore it once.
func TestIntegrationK5(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	instances := []*served{h.start(), h.start()}
	q := quota("acme", 100, 1)
	h.gate().sell(quota("acme", 100, 90))
	h.awaitStored(q, 90, 90)
	gates := []*gate{h.gate(), h.gate()}
	h.flush()
	var all sync.WaitGroup
	var mu sync.Mutex
	allowed := 0
	for i := range 1000 {
		all.Go(func() {
			if gates[i%2].ask(q).Allowed {
				mu.Lock()
				defer mu.Unlock()
				allowed++
			}
		})
	}
	all.Wait()
	restores := 0.0
	for _, s := range instances {
		restores += s.metric(`restores_total{tail="whole"}`)
	}
	if allowed != 10 || restores != 1 {
		t.Errorf("%d allowed and %v restores, want 10 and 1", allowed, restores)
	}
}

// TestIntegrationFC35a guarantees that a store which may lose what it counts is
// reported, also when that begins under open connections, or refused.
func TestIntegrationFC35a(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	client := h.redis.Client()
	set := func(name, value string) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, policy := range []string{"allkeys-lru", "volatile-lru"} {
		set("maxmemory-policy", policy)
		s := h.start()
		eventually(t, policy+" is said", func() bool {
			_, page := s.get("/ready")
			return strings.Contains(page, policy) && s.metric("store_unsafe") == 1
		})
		s.end()
		refused := h.begin("-unsafe-store", "refuse")
		if err := <-refused.done; err == nil || !strings.Contains(err.Error(), policy) {
			t.Errorf("it ended with %v", err)
		}
		refused.stop = nil
	}
	set("maxmemory-policy", "noeviction")
	s := h.start("-unsafe-store", "refuse")
	if n := s.metric("store_unsafe"); n != 0 {
		t.Errorf("unsafe is %v", n)
	}
	h.gate().sell(wallet("acme", 1000, 1))
	eventually(t, "a wallet without an append-only file", func() bool {
		_, page := s.get("/ready")
		return strings.Contains(page, "appendonly") && s.metric("store_unsafe") == 1
	})
	set("appendonly", "yes")
	eventually(t, "safe", func() bool { return s.metric("store_unsafe") == 0 })
	set("maxmemory-policy", "allkeys-random")
	eventually(t, "the policy that was changed", func() bool { return s.metric("store_unsafe") == 1 })
}

// TestIntegrationFC35c guarantees that a counter which is deleted behind the
// service's back goes on where it was: by whoever saw it, and by the sweep for a
// gateway that saw nothing.
func TestIntegrationFC35c(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, q := h.gate(), quota("acme", 1000, 1)
	g.sell(quota("acme", 1000, 700))
	h.awaitStored(q, 700, 700)
	del := func() {
		if err := h.redis.Client().Del(t.Context(), counters.Key(q.Counter)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	del()
	if a := g.sell(q); !a.Allowed || a.Results[0].Remaining != 299 {
		t.Errorf("who saw it: %+v, want 299 to remain", a)
	}
	h.awaitStored(q, 701, 701)
	before := s.metric("lowered_total")
	del()
	eventually(t, "the sweep", func() bool { return s.metric("lowered_total") > before })
	if a := h.gate().ask(q); !a.Allowed || a.Results[0].Remaining != 298 {
		t.Errorf("who saw nothing: %+v, want 298 to remain", a)
	}
}

// TestIntegrationWalletOutlivesRestart guarantees that a wallet of 850 in a store
// with an append-only file is one of 850 after a kill and a restart.
func TestIntegrationWalletOutlivesRestart(t *testing.T) {
	t.Parallel()
	h := newHouse(t, "--appendonly", "yes", "--appendfsync", "always")
	h.start()
	h.gate().sell(wallet("acme", 1000, 150))
	h.redis.Kill()
	h.redis.Restart()
	if a := h.gate().ask(wallet("acme", 1000, 0)); a.Results[0].Remaining != 850 {
		t.Errorf("%+v, want 850", a)
	}
}

// TestIntegrationToldOnce guarantees that what events tell is counted once however
// the partitions move between instances, and whoever ends in between.
func TestIntegrationToldOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	g := h.gate()
	one := h.start()
	tenants := []string{"acme", "beta", "gamma", "delta"}
	more := func() {
		for range 50 {
			for _, tenant := range tenants {
				g.sell(quota(tenant, 1000, 1))
			}
		}
	}
	more()
	two := h.start()
	more()
	one.end()
	more()
	three := h.start("-checkpoint-every", "1h")
	more()
	three.end()
	two.end()
	h.start()
	for _, tenant := range tenants {
		h.awaitStored(quota(tenant, 1000, 1), 200, 200)
	}
}

// TestIntegrationReconcile guarantees that in a run without kills the store, the
// checkpoint and the events agree, with what is beyond the checkpoint; and that
// what no event told of is shown as unattributed, by an error too.
func TestIntegrationReconcile(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, q := h.gate(), quota("acme", 1000, 10)
	g.sell(q)
	h.awaitStored(q, 10, 10)
	s.end()
	g.sell(q)
	g.sell(wallet("beta", 100, 5))
	prove := func(args ...string) (string, error) {
		var out strings.Builder
		p := boot.Process{Service: "checkpointer", Getenv: none, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
		err := reconcile(context.WithoutCancel(t.Context()), p, h.flags(args...), &out)
		return out.String(), err
	}
	if out, err := prove("-all"); err != nil || !strings.Contains(out, "used 20, checkpoint 10, events 20: 0 unattributed") || !strings.Contains(out, "2 counters, 0 differ") {
		t.Errorf("%v: %s", err, out)
	}
	g.ask(q)
	if out, err := prove("-json"); err == nil || !strings.Contains(out, `"events":20,"unattributed":10,"missing":0`) || !strings.Contains(out, `"differing":1,"unattributed":10`) {
		t.Errorf("%v: %s", err, out)
	}
}
