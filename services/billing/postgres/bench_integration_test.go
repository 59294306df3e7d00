//go:build integration

package postgres_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/internal/pgtest"
)

// BenchmarkIntegrationCount publishes how many events a second one partition's reader
// counts: Go and PostgreSQL take turns, so it is about what one core does. Each event has
// a quota counter; one in ten is refused, and in the second case one in ten pays a wallet.
func BenchmarkIntegrationCount(b *testing.B) {
	for _, bb := range []struct {
		name    string
		tenants int
		wallets bool
	}{{"one-tenant", 1, false}, {"hundred-tenants", 100, false}, {"hundred-tenants-and-wallets", 100, true}} {
		b.Run(bb.name, func(b *testing.B) {
			const batch = 5000
			s, err := postgres.Open(b.Context(), postgres.Config{URL: pgtest.Database(b), MaxConns: 2, Issuer: "x", Prefix: "INV"}, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			if err := s.Prepare(b.Context()); err != nil {
				b.Fatal(err)
			}
			now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
			events := make([]metering.Event, batch)
			n := int64(0)
			for b.Loop() {
				from := n
				for i := range events {
					n++
					events[i] = traffic(n, bb.tenants, bb.wallets, now)
				}
				if _, err := s.Count(b.Context(), events, []metering.Position{{Partition: 0, First: from, Next: n, At: now}}, now); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/event")
		})
	}
}

// traffic is event n of a stream: tenants in turn, ten endpoints, three keys.
func traffic(n int64, tenants int, wallets bool, now time.Time) metering.Event {
	var id metering.ID
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|7<<12)
	binary.BigEndian.PutUint64(id[8:], 2<<62|uint64(n))
	tenant := fmt.Sprintf("t%d", n%int64(tenants))
	e := metering.Event{
		ID: id, Decision: id, Stream: metering.ID{1}, Sequence: n, At: now, Arrived: now, Verdict: metering.Allow, Status: 200,
		Tenant: tenant, Application: "web", User: "u1", APIKey: fmt.Sprintf("k%d", n%3), Service: "payments", Endpoint: fmt.Sprintf("e%d", n/7%10), Cost: 1,
		Counters: []metering.Counter{{
			Key: "{t:" + tenant + "}:e:q:t:api-calls:g:1month:1780272000000000", Meter: "api-calls", Rule: "month", Enforced: true, Observed: true,
			Start: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), Limit: 1 << 40, Units: 1, Consumed: n,
		}},
	}
	switch {
	case n%10 == 0:
		e.Verdict, e.Status, e.Rule, e.Algorithm = metering.Deny, 429, "burst", "gcra"
		e.Counters[0].Units = 0
	case wallets && n%10 == 1:
		e.Counters = append(e.Counters, metering.Counter{
			Key: "{t:" + tenant + "}:e:w:t:credits:g", Meter: "credits", Rule: "wallet", Wallet: true, Enforced: true, Observed: true, Limit: 1 << 40, Units: 1, Consumed: n,
		})
	}
	return e
}
