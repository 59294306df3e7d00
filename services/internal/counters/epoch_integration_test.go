//go:build integration

package counters_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
)

// losses are the ways in which a store comes to hold nothing, or something that
// nobody vouches for. Each is undone by none.
func losses(t *testing.T) map[string]func(s *redistest.Server) {
	do := func(s *redistest.Server, args ...any) {
		t.Helper()
		if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]func(s *redistest.Server){
		"FLUSHALL":             func(s *redistest.Server) { do(s, "flushall") },
		"DEL of the epoch":     func(s *redistest.Server) { do(s, "del", counters.EpochKey) },
		"a restart, emptied":   func(s *redistest.Server) { do(s, "config", "set", "appendonly", "no"); do(s, "flushall"); s.Restart() },
		"a restart, with data": func(s *redistest.Server) { s.Kill(); s.Restart() },
	}
}

// TestIntegrationEmptiedStore guarantees that no quota is decided against a
// store that was emptied or restarted, by any of several gateways and from the
// first request on, while rates and shadow quotas go on; and that it is decided
// again once somebody has set the epoch.
func TestIntegrationEmptiedStore(t *testing.T) {
	t.Parallel()
	for name, lose := range losses(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			span := month(time.Now())
			decide(t, openStore(t, server.URL, generous), quota("acme", span, 1000, 700))
			stores := []*counters.Store{
				open(t, counters.Config{URL: server.URL, Budget: generous}),
				open(t, counters.Config{URL: server.URL, Budget: generous}),
			}
			for _, s := range stores {
				if a := decide(t, s, quota("acme", span, 1000, 1)); !a.Allowed || a.Lost {
					t.Fatalf("before: %+v", a)
				}
			}

			lose(server)
			fresh := open(t, counters.Config{URL: server.URL, Budget: generous})
			for i, s := range append(stores, fresh) {
				eventually(t, 10*time.Second, "ready", func() bool { return s.Ready(t.Context()) == nil })
				for range 3 {
					if a := decide(t, s, gcra("acme", 1000, time.Hour, 1000, 1), quota("acme", span, 1000, 1)); !a.Lost || a.Allowed || a.Charged {
						t.Errorf("gateway %d, a quota: %+v, want lost", i, a)
					}
				}
				soft := quota("acme", span, 1000, 1)
				soft.Soft = true
				if a := decide(t, s, soft); !a.Lost {
					t.Errorf("gateway %d, a soft quota: %+v, want lost", i, a)
				}
				shadow := quota("acme", span, 1000, 1)
				shadow.Counter.Shadow = true
				if a := decide(t, s, gcra("acme", 1000, time.Hour, 1000, 1), shadow); a.Lost || !a.Allowed {
					t.Errorf("gateway %d, a rate and a shadow quota: %+v, want allowed", i, a)
				}
			}
			adopter := openStore(t, server.URL, generous)
			if a := decide(t, adopter, quota("other", span, 1000, 1)); !a.Allowed {
				t.Errorf("adopted: %+v", a)
			}
			for i, s := range append(stores, fresh) {
				if a := decide(t, s, quota("acme", span, 1000, 1)); !a.Allowed || i == 0 && a.Results[0].Consumed < 702 {
					t.Errorf("gateway %d, vouched for again: %+v, want at least 702 used: it has seen 701", i, a)
				}
			}
		})
	}
}

// TestIntegrationReplacedStore guarantees that another server at the store's
// address is noticed on the first connection to it, though the old one goes on
// answering on the connections that are open, and that nothing is decided
// against a mix of the two.
func TestIntegrationReplacedStore(t *testing.T) {
	t.Parallel()
	first, second := redistest.Start(t), redistest.Start(t)
	p := newProxy(t, first.Addr)
	span := month(time.Now())
	s := open(t, counters.Config{URL: "redis://" + p.addr, Budget: generous})
	decide(t, openStore(t, first.URL, generous), quota("acme", span, 1000, 700))
	if a := decide(t, s, quota("acme", span, 1000, 1)); !a.Allowed {
		t.Fatalf("before: %+v", a)
	}
	p.set(func() { p.upstream = second.Addr })
	if a := decide(t, s, quota("acme", span, 1000, 1)); !a.Allowed || a.Results[0].Consumed != 702 {
		t.Errorf("on the connection that is open: %+v, want 702 used at the first", a)
	}
	// Many at once need further connections, and those meet the second server.
	// Once one has, nobody is answered by the first.
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				_, _ = s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{quota("acme", span, 1000, 0)}})
			}
		})
	}
	wg.Wait()
	p.cut()
	eventually(t, 10*time.Second, "the other server is met", func() bool {
		a, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{quota("acme", span, 1000, 1)}})
		return err == nil && a.Lost
	})
	if n := second.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written to the second", n)
	}
	decide(t, openStore(t, second.URL, generous), quota("other", span, 1000, 1))
	if a := decide(t, s, quota("acme", span, 1000, 1)); !a.Allowed || a.Results[0].Consumed < 703 {
		t.Errorf("vouched for: %+v, want what was seen at the first, 702, and 1", a)
	}
}

// TestIntegrationAdoption guarantees what an adopting store says of it: one
// warning and one count per loss, however many ask at once and through however
// many gateways; and that nobody waits longer for it.
func TestIntegrationAdoption(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	var log syncBuffer
	var stores []*counters.Store
	var registries []*prometheus.Registry
	for range 3 {
		registries = append(registries, prometheus.NewRegistry())
		s, err := counters.Open(counters.Config{URL: server.URL, Budget: generous, Adopt: true}, slog.New(slog.NewTextHandler(&log, nil)), registries[len(registries)-1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		stores = append(stores, s)
	}
	for round := range 2 {
		if round > 0 {
			if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				a, err := stores[i%3].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{quota("acme", span, 1_000_000, 1)}})
				if err != nil || a.Lost || !a.Allowed {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
		wg.Wait()
		adopted := 0.0
		for _, r := range registries {
			adopted += value(t, r, "penstock_counters_adopted_total", "")
			if v := value(t, r, "penstock_counters_vouched", ""); v != 1 {
				t.Errorf("vouched is %v", v)
			}
		}
		if int(adopted) != round+1 {
			t.Errorf("round %d: %v adoptions counted", round, adopted)
		}
	}
	if n := strings.Count(log.String(), "adopted as it is"); n < 1 || n > 2 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
	if used := decide(t, stores[0], quota("acme", span, 1_000_000, 0)).Results[0].Consumed; used < 500 || used > 600 {
		t.Errorf("used %d by 600 requests of cost 1, want what the gateways saw of the first 300, and the others", used)
	}
}

// TestIntegrationVouched guarantees the gauge of a store that nobody vouches
// for.
func TestIntegrationVouched(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	registry := prometheus.NewRegistry()
	s, err := counters.Open(counters.Config{URL: server.URL, Budget: generous}, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	span := month(time.Now())
	for _, want := range []float64{0, 1} {
		if a := decide(t, s, quota("acme", span, 10, 1)); a.Lost != (want == 0) {
			t.Errorf("%+v", a)
		}
		if got := value(t, registry, "penstock_counters_vouched", ""); got != want {
			t.Errorf("vouched is %v, want %v", got, want)
		}
		decide(t, openStore(t, server.URL, generous), quota("acme", span, 10, 0))
	}
}

// TestIntegrationFC35DeletedCounter guarantees that a counter which was deleted
// behind the service's back is healed by whoever saw it, and by one gateway for
// all.
func TestIntegrationFC35DeletedCounter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	seen, blind := openStore(t, server.URL, generous), openStore(t, server.URL, generous)
	decide(t, seen, quota("acme", span, 1000, 700))
	if err := server.Client().Del(t.Context(), counters.Key(quota("acme", span, 1000, 1).Counter)).Err(); err != nil {
		t.Fatal(err)
	}
	if a := decide(t, seen, quota("acme", span, 1000, 1)); !a.Allowed || a.Results[0].Remaining != 299 || a.Results[0].Consumed != 701 {
		t.Errorf("%+v, want 299 remaining", a)
	}
	if a := decide(t, blind, quota("acme", span, 1000, 1)); !a.Allowed || a.Results[0].Remaining != 298 {
		t.Errorf("another gateway: %+v, want 298 remaining", a)
	}
	if a := decide(t, seen, quota("acme", span, 1000, 299)); a.Allowed || a.Results[0].Remaining != 298 {
		t.Errorf("one too many: %+v", a)
	}
}

// TestIntegrationFC35MemoryPolicy guarantees that a policy which deletes
// counters is said: in the log, and by a metric that reads 1.
func TestIntegrationFC35MemoryPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "noeviction"} {
		server := redistest.Start(t, "--maxmemory-policy", policy)
		registry := prometheus.NewRegistry()
		var log syncBuffer
		s, err := counters.Open(counters.Config{URL: server.URL, Budget: generous}, slog.New(slog.NewTextHandler(&log, nil)), registry)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		unsafe := policy != "noeviction"
		if got := value(t, registry, "penstock_counters_evicting", ""); got == 1 != unsafe {
			t.Errorf("%s: evicting is %v", policy, got)
		}
		if strings.Contains(log.String(), "policy="+policy) != unsafe {
			t.Errorf("%s: %s", policy, log.String())
		}
	}
}

// A syncBuffer is a log that several may write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
