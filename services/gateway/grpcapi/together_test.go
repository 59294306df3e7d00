package grpcapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// together is how many calls one read brings: 64 in flight over 8 connections.
const together = 8

// BenchmarkTogether measures one of the calls that one read of a connection
// brought, from its message to its answer's, with a store that costs nothing:
// under one rule, under six, and refused from memory.
func BenchmarkTogether(b *testing.B) {
	for _, bench := range []struct {
		name  string
		rules int
		store decide.Store
	}{{"1rule", 1, cheapStore{allows: true}}, {"6rules", 6, cheapStore{allows: true}}, {"denied", 1, cheapStore{}}} {
		b.Run(bench.name, func(b *testing.B) {
			face := faceOver(b.Context(), bench.rules, bench.store)
			messages := make([][]byte, together)
			for i := range messages {
				in := oneDescriptor("tenant", "bench-07", "user", fmt.Sprintf("u1-%05d", i), "application", "a1-00042", "remote_address", "2001:db8:1:2a::1")
				in.Domain = "bench"
				var err error
				if messages[i], err = proto.Marshal(in); err != nil {
					b.Fatal(err)
				}
			}
			answer := face.Together(b.Context(), messages)
			written := answer()
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += together {
				if n := answer(); n < written-100 {
					b.Fatalf("%d bytes, at first %d", n, written)
				}
			}
		})
	}
}

// faceOver is a face over so many rules and a store.
func faceOver(ctx context.Context, rules int, store decide.Store) *grpcapi.Face {
	book := decide.NewBook()
	subjects := []rule.Subject{
		rule.Tenant | rule.User, rule.Tenant | rule.IP, rule.Tenant | rule.Application,
		rule.Tenant | rule.Application | rule.User, rule.Tenant | rule.User | rule.IP, rule.Tenant | rule.Application | rule.IP,
	}
	for i := range rules {
		id := fmt.Sprintf("bench-%d", i)
		book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: id, Version: int64(i) + 1, Object: &rule.Rule{
			ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: subjects[i], Meter: "api-calls",
			Match: rule.Match{Service: "bench"}, Limit: 100, Window: time.Hour, Burst: 1000, OnFailure: rule.Open,
		}}})
	}
	now := func() time.Time { return t0 }
	leases := decide.NewLeases(decide.NewDenials(store, 1<<16, now), nil, 1000, now)
	context.AfterFunc(ctx, func() { _ = leases.Close() })
	desk := ask.New(ask.Config{}, ask.Deps{
		Catalogue: func() ask.Catalogue { return book.Current() }, Recorder: deaf{},
		Decider: decide.NewService(book, leases, now, decide.NewID, decide.Options{}),
	})
	return grpcapi.New(desk, nil, slog.New(slog.DiscardHandler))
}

// deaf is a recorder that reads what it is told, and forgets it.
type deaf struct{}

// Record is ask.Recorder's.
func (deaf) Record(u decide.Usage) {
	var few [8]decide.Counter
	u.AppendCounters(few[:0])
}

// A cheapStore allows or refuses everything.
type cheapStore struct {
	decide.Store
	allows bool
}

var (
	passing  = slices.Repeat([]limit.Result{{Passed: true, Remaining: 999, Reset: time.Hour}}, 6)
	refusing = []limit.Result{{RetryAfter: time.Hour, Reset: time.Hour}}
)

// DecideAll is decide.Store's.
func (s cheapStore) DecideAll(_ context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	answers := make([]limit.Answer, len(ds))
	for i := range answers {
		answers[i] = limit.Answer{Allowed: s.allows, Charged: s.allows, Now: t0, Results: refusing}
		if s.allows {
			answers[i].Results = passing[:len(ds[i].Charges)]
		}
	}
	return answers, make([]error, len(ds))
}
