package decide_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

const million = 1_000_000

// fullBook is a book with a million overrides, made once for all benchmarks,
// and what it holds in bytes.
var fullBook = sync.OnceValues(func() (*decide.Book, uint64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	book := decide.NewBook()
	book.Apply(overrides(million))
	runtime.GC()
	runtime.ReadMemStats(&after)
	return book, after.HeapAlloc - before.HeapAlloc
})

// BenchmarkMatch measures finding the winners of single requests of any tenant
// among a million overrides: the mean, what one in a hundred takes longer than,
// and what a rule costs in memory. Then with a thousand temporary rules and a
// thousand networks of five lengths beside them, and then with five rules that
// have a condition, one of which every request is asked.
func BenchmarkMatch(b *testing.B) {
	book, size := fullBook()
	plain := book.Current()
	b.Run("overrides", func(b *testing.B) {
		if p99 := matchSingles(b, plain, 1); b.N >= 100_000 && p99 >= 2*time.Microsecond { // fewer are of a cold cache
			b.Errorf("one in a hundred takes %v, want less than 2 µs", p99)
		}
		b.ReportMetric(float64(size)/million, "B/rule")
	})
	more := decide.NewBook()
	more.Replace(book)
	defer book.Replace(more)
	more.Apply(temporaryRules())
	b.Run("temporary", func(b *testing.B) { matchSingles(b, more.Current(), 1) })
	more.Apply(conditions(b))
	b.Run("conditions", func(b *testing.B) { matchSingles(b, more.Current(), 2) })
	var gone []decide.Change
	for _, c := range append(temporaryRules(), conditions(b)...) {
		gone = append(gone, decide.Change{Kind: c.Kind, ID: c.ID})
	}
	more.Apply(gone)
}

// matchSingles times one match after another, each of another request. It
// returns what one in a hundred takes longer than.
func matchSingles(b *testing.B, s *decide.Snapshot, least int) (p99 time.Duration) {
	requests := make([]rule.Request, 4096)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range requests {
		requests[i] = rule.Request{
			Tenant: fmt.Sprintf("tenant-%d", rng.IntN(million)), Plan: "gold", Application: "web", User: "u1", Service: "payments", Endpoint: "pay",
			Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(rng.IntN(256))}), Method: "POST", Path: "/v1/pay/17",
			Labels: map[string]string{"region": "eu"}, Cost: 1 + rng.Int64N(10),
		}
	}
	won := make([]*rule.Rule, 0, 16)
	var took [100_000]int32 // by 10 ns
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		began := time.Now()
		won = s.AppendWinners(won[:0], &requests[i%len(requests)], t0)
		took[min(time.Since(began)/10, time.Duration(len(took)-1))]++
	}
	b.StopTimer()
	if len(won) < least {
		b.Fatalf("%d winners, want %d", len(won), least)
	}
	for _, p := range []float64{50, 99} {
		n, at := 0.0, 0
		for ; n < float64(b.N)*p/100; at++ {
			n += float64(took[at])
		}
		b.ReportMetric(float64(at)*10, fmt.Sprintf("p%.0f-ns", p))
		p99 = time.Duration(at) * 10
	}
	return p99
}

// temporaryRules are overrides, half of which are over, and rules of networks.
func temporaryRules() (changes []decide.Change) {
	for i := range 1000 {
		sale := override(fmt.Sprintf("sale-%d", i), fmt.Sprintf("tenant-%d", i))
		sale.Priority, sale.ValidTo = 1, t0.Add(time.Duration(i%2*2-1)*time.Hour)
		network := override(fmt.Sprintf("network-%d", i), "")
		at := uint32(i) * 2654435761 // spread over all addresses
		prefix, _ := netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)}).Prefix(16 + i%5*4)
		network.Subject, network.Match.Networks = rule.IP, []netip.Prefix{prefix}
		for _, r := range []*rule.Rule{sale, network} {
			changes = append(changes, decide.Change{Kind: decide.RuleKind, ID: r.ID, Version: million + 2, Object: r})
		}
	}
	return changes
}

// conditions are rules with a condition, the first of all requests.
func conditions(b *testing.B) (changes []decide.Change) {
	for i, text := range []string{
		`labels["region"] == "eu"`, `cost > 5`, `path.startsWith("/v1/pay/")`, `method in ["POST", "PUT"] && tenant != "tenant-1"`, `client_ip == "203.0.113.9"`,
	} {
		c, err := condition.Compile(text)
		if err != nil {
			b.Fatal(err)
		}
		r := override(fmt.Sprintf("condition-%d", i), "")
		r.Condition, r.Meter = c, fmt.Sprintf("meter-%d", i)
		if i > 0 {
			r.Match.Plan = fmt.Sprintf("plan-%d", i)
		}
		changes = append(changes, decide.Change{Kind: decide.RuleKind, ID: r.ID, Version: million + 2, Object: r})
	}
	return changes
}

// BenchmarkApply measures one change of a book with a million overrides, from
// the call until every request sees it.
func BenchmarkApply(b *testing.B) {
	book, _ := fullBook()
	changes := make([]decide.Change, b.N)
	for i := range changes {
		id := fmt.Sprintf("override-%d", i%million)
		changes[i] = decide.Change{
			Kind: decide.RuleKind, ID: id, Version: book.Current().Revision() + int64(i) + 1,
			Object: override(id, fmt.Sprintf("tenant-%d", i%million)),
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range changes {
		book.Apply(changes[i : i+1])
	}
}

// BenchmarkDecide measures a decision under a rate and a quota, all but the
// store.
func BenchmarkDecide(b *testing.B) {
	book := decide.NewBook()
	book.Apply([]decide.Change{
		{Kind: decide.RuleKind, ID: "burst", Version: 1, Object: rate("burst", rule.Tenant, 10)},
		{Kind: decide.RuleKind, ID: "month", Version: 2, Object: quota("month", 1000)},
		{Kind: decide.TenantKind, ID: "acme", Version: 3, Object: &decide.Tenant{ID: "acme", Plan: "gold"}},
		{Kind: decide.EndpointKind, ID: "pay", Version: 4, Object: &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay/{id}", Cost: 1}},
	})
	s := decide.NewService(book, yes, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	q := decide.Query{Tenant: "acme", Application: "web", User: "u1", Service: "payments", Method: "POST", Path: "/v1/pay/17"}
	b.ReportAllocs()
	for b.Loop() {
		if d, err := s.Decide(b.Context(), q); err != nil || len(d.Limits) != 2 {
			b.Fatal(d, err)
		}
	}
}

// yes is a store that lets everything pass at no cost.
var yes storeFunc = func(limit.Decision) (limit.Answer, error) {
	return limit.Answer{Allowed: true, Now: t0, Results: passes}, nil
}

var passes = make([]limit.Result, 2)

// BenchmarkLoad measures filling an empty book with a million overrides, as a
// replay does.
func BenchmarkLoad(b *testing.B) {
	changes := overrides(million)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		decide.NewBook().Apply(changes)
	}
}

// BenchmarkDecideAll measures eight of these decisions at once.
func BenchmarkDecideAll(b *testing.B) {
	book := decide.NewBook()
	book.Apply([]decide.Change{
		{Kind: decide.RuleKind, ID: "burst", Version: 1, Object: rate("burst", rule.Tenant, 10)},
		{Kind: decide.RuleKind, ID: "month", Version: 2, Object: quota("month", 1000)},
	})
	s := decide.NewService(book, yes, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	q := decide.Query{Tenant: "acme", Application: "web", User: "u1", Service: "payments", Method: "POST", Path: "/v1/pay/17"}
	var batch decide.Batch
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		for range 8 {
			batch.Queries = append(batch.Queries, &q)
		}
		if s.DecideAll(b.Context(), &batch); batch.Errs[7] != nil || len(batch.Decisions[7].Limits) != 2 {
			b.Fatal(batch.Decisions, batch.Errs)
		}
	}
}
