//go:build integration

package counters_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
)

// BenchmarkDecide publishes what a decision costs: wall time of one caller
// after another and of many at once, and of the server the script's time
// (script-µs/op, from INFO commandstats) and all CPU (server-µs/op, from INFO
// cpu).
func BenchmarkDecide(b *testing.B) {
	for _, bench := range []struct {
		name string
		n    int
		ask  func(n, i int) limit.Decision
	}{
		{"1 rate", 1, benchRates},
		{"6 rates", 6, benchRates},
		{"4 rates and 2 quotas", 6, benchDecision},
	} {
		b.Run(bench.name, func(b *testing.B) {
			store, client := benchStore(b)
			b.ReportAllocs()
			before := cpu(b, client)
			for i := 0; b.Loop(); i++ {
				if _, err := store.Decide(b.Context(), bench.ask(bench.n, i)); err != nil {
					b.Fatal(err)
				}
			}
			report(b, client, before)
		})
		b.Run(bench.name+", 64 callers", func(b *testing.B) {
			store, client := benchStore(b)
			b.ReportAllocs()
			b.SetParallelism(32)
			var i atomic.Int64
			before := cpu(b, client)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if _, err := store.Decide(b.Context(), bench.ask(bench.n, int(i.Add(1)))); err != nil {
						b.Error(err)
						return
					}
				}
			})
			report(b, client, before)
		})
	}
}

// BenchmarkDecideAll publishes what a decision costs where 16 are asked for at
// once, as a read of a connection brings them.
func BenchmarkDecideAll(b *testing.B) {
	const together = 16
	for _, n := range []int{1, 6} {
		b.Run(strconv.Itoa(n)+" rates", func(b *testing.B) {
			store, client := benchStore(b)
			decisions := make([]limit.Decision, together)
			b.ReportAllocs()
			before := cpu(b, client)
			for i := 0; i < b.N; i += together {
				for k := range decisions {
					decisions[k] = benchRates(n, i+k)
				}
				_, errs := store.DecideAll(b.Context(), decisions)
				if err := errors.Join(errs...); err != nil {
					b.Fatal(err)
				}
			}
			report(b, client, before)
		})
	}
}

// BenchmarkFrozen publishes how long callers wait while Redis is frozen: 2,000
// at 200 at once, with the default budget of 50 ms.
func BenchmarkFrozen(b *testing.B) {
	server := redistest.Start(b)
	s := openStore(b, server.URL, counters.DefaultBudget)
	q := quota("acme", month(time.Now()), 1_000_000, 1)
	eventually(b, 5*time.Second, "ready", func() bool { return s.Ready(b.Context()) == nil })
	var took []time.Duration
	for b.Loop() {
		server.Freeze()
		some, _ := besiege(b, s, q, 2000, 10)
		took = append(took, some...)
		server.Thaw()
		eventually(b, 5*time.Second, "ready", func() bool { return s.Ready(b.Context()) == nil })
	}
	slices.Sort(took)
	for name, share := range map[string]int{"p50-ms": 500, "p99-ms": 990, "p99.9-ms": 999} {
		b.ReportMetric(float64(took[len(took)*share/1000].Microseconds())/1000, name)
	}
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}

func benchStore(b testing.TB) (*counters.Store, *redis.Client) {
	b.Helper()
	server := redistest.Start(b)
	store := openStore(b, server.URL, generous)
	if err := store.Ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	client := server.Client()
	if err := client.ConfigResetStat(b.Context()).Err(); err != nil {
		b.Fatal(err)
	}
	return store, client
}

// benchDecision asks n counters of one of 10,000 tenants: two thirds rates,
// one third quotas.
func benchDecision(n, i int) limit.Decision {
	span := month(time.Now())
	who := "tenant-" + strconv.Itoa(i%10_000)
	d := limit.Decision{Charges: make([]limit.Charge, n)}
	for k := range d.Charges {
		if k%3 == 2 {
			d.Charges[k] = quota(who, span, 1_000_000_000, 1)
			d.Charges[k].Counter.Meter = "meter-" + strconv.Itoa(k)
		} else {
			d.Charges[k] = gcra(who, 1_000_000, time.Duration(k+1)*time.Second, 1_000_000, 1)
		}
	}
	return d
}

// benchRates asks n rates of one of 10,000 tenants.
func benchRates(n, i int) limit.Decision {
	who := "tenant-" + strconv.Itoa(i%10_000)
	d := limit.Decision{Charges: make([]limit.Charge, n)}
	for k := range d.Charges {
		d.Charges[k] = gcra(who, 1_000_000, time.Duration(k+1)*time.Second, 1_000_000, 1)
	}
	return d
}

// cpu is what the server has used, in seconds.
func cpu(b *testing.B, client *redis.Client) (seconds float64) {
	b.Helper()
	info, err := client.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			used, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			seconds += used
		}
	}
	return seconds
}

// report reads the server's time per decision.
func report(b *testing.B, client *redis.Client, before float64) {
	b.Helper()
	b.ReportMetric((cpu(b, client)-before)*1e6/float64(b.N), "server-µs/op")
	evals := commandOf(b, client, "evalsha")
	b.ReportMetric(evals["usec"]/float64(b.N), "script-µs/op")
	b.ReportMetric(float64(b.N)/evals["calls"], "decisions/call")
}

// commandOf is what the server has counted of a command: calls, usec and more.
func commandOf(t testing.TB, client *redis.Client, name string) map[string]float64 {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for line := range strings.Lines(info) {
		rest, ok := strings.CutPrefix(line, "cmdstat_"+name+":")
		if !ok {
			continue
		}
		for _, f := range strings.Split(strings.TrimSpace(rest), ",") {
			name, value, _ := strings.Cut(f, "=")
			if counted[name], err = strconv.ParseFloat(value, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return counted
}
