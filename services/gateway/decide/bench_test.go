package decide_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
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

// BenchmarkMatch measures finding the winners of a request among a million
// overrides, and says what a rule costs in memory.
func BenchmarkMatch(b *testing.B) {
	book, size := fullBook()
	q := rule.Request{Tenant: "tenant-4711", Plan: "gold", Service: "payments", Endpoint: "pay"}
	s := book.Current()
	won := make([]*rule.Rule, 0, 8)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		won = s.AppendWinners(won[:0], &q, t0)
	}
	b.ReportMetric(float64(size)/million, "B/rule")
	if len(won) != 1 {
		b.Fatalf("%d winners, want 1", len(won))
	}
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
