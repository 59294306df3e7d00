package topics

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// nowhere takes every document at once.
type nowhere struct{ outcomes []usagedoc.Outcome }

func (n nowhere) Write(_ context.Context, entries []usagedoc.Entry) ([]usagedoc.Outcome, error) {
	return n.outcomes[:len(entries)], nil
}

// BenchmarkPipeline is what the service does between Kafka and the store, per
// event: read the record, check it, write the document.
func BenchmarkPipeline(b *testing.B) {
	const batch = 5000
	ids := wire.NewIDs(nil, usagev1.Subject)
	ids.Seed(map[uint32]string{1: schemas.UsageV1})
	n := nowhere{make([]usagedoc.Outcome, batch)}
	for i := range n.outcomes {
		n.outcomes[i].Verdict = usagedoc.Created
	}
	p := newPipeline(Config{Retention: 30, Batch: batch, Writers: 1}, nil, n, slog.New(slog.DiscardHandler), time.Now)
	p.decoder = usagev1.NewDecoder(ids)
	for name, counters := range map[string]int{"rate": 0, "rate-and-quota": 1} {
		e := usagev1.Event{
			EventID: usagev1.UUID{6: 0x70, 8: 0x80}, DecisionID: usagev1.UUID{6: 0x70, 8: 0x80}, TS: time.Now().UnixMicro(),
			StreamID: usagev1.UUID{1}, Sequence: 184467, Decision: usagev1.DecisionAllow, Status: 200,
			Tenant: "acme", Application: "web", User: "u1", APIKey: "acme-1", APIKeyHash: []byte("0123456789abcdef"), ClientAddress: "203.0.113.9",
			Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay", RuleID: "acme-burst", Algorithm: "gcra",
			Cost: 1, LatencyUS: 412, GatewayID: "gw-1", RulesVersion: 812, Upstream: &usagev1.Upstream{Status: 200, DurationUS: 18250},
		}
		for range counters {
			e.Counters = append(e.Counters, usagev1.Counter{
				Key: "{t:acme}:e:q:t:api-calls:g:1month:1793480400", Observed: true, PeriodStart: 1793480400_000000, PeriodEnd: 1796072400_000000,
				Limit: 1000, Units: 1, Consumed: 900, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "api-calls",
				RuleID: "acme-month", RuleVersion: 3, ThresholdsPercent: []int32{80, 100},
			})
		}
		records := make([]kafka.Record, batch)
		for i := range records {
			e.Sequence++
			records[i] = kafka.Record{Topic: usagev1.Topic, Key: []byte("acme"), Value: wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e))}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fates, err := p.run(b.Context(), records)
				if err != nil || fates[0].reason != "" {
					b.Fatal(err, fates[0])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/doc")
		})
	}
}
