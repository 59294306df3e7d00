package topics

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/internal/kafka"
)

// nowhere counts everything at once.
type nowhere struct{}

func (nowhere) Learn(context.Context, []catalog.Change, time.Time) error { return nil }

func (nowhere) Count(_ context.Context, events []metering.Event, _ []metering.Position, _ time.Time) (metering.Result, error) {
	return metering.Result{Counted: len(events)}, nil
}

func (nowhere) CountedTo(context.Context) (map[int32]time.Time, error) { return nil, nil }

// BenchmarkRead publishes what reading an event costs before it is counted.
func BenchmarkRead(b *testing.B) {
	const batch = 5000
	ids := wire.NewIDs(nil, usagev1.Subject)
	ids.Seed(map[uint32]string{1: schemas.UsageV1})
	c, err := New(Config{Batch: batch}, nil, nil, nowhere{}, slog.New(slog.DiscardHandler), nil, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	c.decoder = usagev1.NewDecoder(ids)
	e := usagev1.Event{
		EventID: usagev1.UUID{6: 0x70, 8: 0x80}, DecisionID: usagev1.UUID{6: 0x70, 8: 0x80}, TS: time.Now().UnixMicro(),
		StreamID: usagev1.UUID{1}, Decision: usagev1.DecisionAllow, Status: 200, Tenant: "acme", Application: "web", User: "u1", APIKey: "acme-1",
		Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay", RuleID: "acme-burst", Algorithm: "gcra", Cost: 1, GatewayID: "gw-1",
		Counters: []usagev1.Counter{{
			Key: "{t:acme}:e:q:t:api-calls:g:1month:1793480400", Observed: true, PeriodStart: 1793480400_000000, PeriodEnd: 1796072400_000000,
			Limit: 1000, Units: 1, Consumed: 900, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "api-calls",
			RuleID: "acme-month", RuleVersion: 3, ThresholdsPercent: []int32{80, 100},
		}},
	}
	records := make([]kafka.Record, batch)
	for i := range records {
		e.Sequence++
		records[i] = kafka.Record{Topic: usagev1.Topic, Key: []byte("acme"), Timestamp: time.Now(), Value: wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e))}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Handle(b.Context(), records); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/event")
}
