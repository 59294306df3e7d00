package topics_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/threshold-watcher/topics"
)

// BenchmarkRebuild is how long a watcher needs until it is ready, when 200,000 events
// of as many counters were announced before.
func BenchmarkRebuild(b *testing.B) {
	const events = 200_000
	broker := kafkatest.Start(b)
	broker.CreateTopic(usagev1.Topic, 1)
	broker.CreateTopic(quotaeventsv1.Topic, 1)
	client, err := kafka.New(kafka.Config{Brokers: broker.Brokers, SchemaRegistry: broker.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	schema, err := client.Registry().Register(b.Context(), quotaeventsv1.Subject, schemas.QuotaEventsV1)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range events {
		percent := int32(80)
		e := quotaeventsv1.Event{
			EventID: hex.EncodeToString(fmt.Appendf(nil, "%016d", n)), Type: quotaeventsv1.EventTypeThresholdReached, TenantID: "acme", RuleID: "acme-month",
			Meter: "api-calls", CounterKey: fmt.Sprintf("{t:acme}:e:q:t+u:%d:api-calls:g:1month:1793480400", n), ThresholdPercent: &percent,
			Limit: 1000, Consumed: 800, Arm: 1, CauseDecisionID: "01998d3a-5e43-7c11-9a52-3f0d6be0c1a7", TS: time.Now().UnixMilli(),
		}
		body, err := quotaeventsv1.AppendEvent(nil, &e)
		if err != nil {
			b.Fatal(err)
		}
		wg.Add(1)
		client.Produce(b.Context(), kafka.Record{Topic: quotaeventsv1.Topic, Key: []byte("acme"), Value: wire.Frame(nil, schema, body)}, func(err error) {
			if err != nil {
				b.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	for b.Loop() {
		w, err := topics.New(topics.Config{Instance: "one", Keep: time.Hour, Batch: 100, Aside: topics.Aside, Replicas: 1},
			client, client.Registry(), slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		kafkatest.Eventually(b, func() bool { return w.Ready(b.Context()) == nil }, "the watcher to be ready")
		b.ReportMetric(events/time.Since(began).Seconds(), "events/s")
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
	}
}
