package topics_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
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

// A rig is a broker with usage.v1 on it, and a watcher.
type rig struct {
	*topics.Watcher
	t       *testing.T
	broker  *kafkatest.Broker
	client  *kafka.Client
	reg     *prometheus.Registry
	schema  uint32
	decoder *quotaeventsv1.Decoder
	cfg     topics.Config
	stop    func()
	done    chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, broker: kafkatest.Start(t), cfg: topics.Config{
		Instance: "one", Keep: 8 * 24 * time.Hour, Batch: 100, Aside: topics.Aside, Replicas: 1,
	}}
	r.broker.CreateTopic(usagev1.Topic, 2)
	r.client = open(t, r.broker)
	var err error
	if r.schema, err = r.client.Registry().Register(t.Context(), usagev1.Subject, schemas.UsageV1); err != nil {
		t.Fatal(err)
	}
	r.decoder = quotaeventsv1.NewDecoder(wire.NewIDs(r.client.Registry(), quotaeventsv1.Subject))
	r.fresh()
	return r
}

// fresh makes the watcher that run will run.
func (r *rig) fresh() {
	r.t.Helper()
	r.reg = prometheus.NewRegistry()
	var err error
	r.Watcher, err = topics.New(r.cfg, r.client, r.client.Registry(), slog.New(slog.DiscardHandler), r.reg, time.Now)
	if err != nil {
		r.t.Fatal(err)
	}
}

func open(t *testing.T, b *kafkatest.Broker) *kafka.Client {
	t.Helper()
	c, err := kafka.New(kafka.Config{Brokers: b.Brokers, SchemaRegistry: b.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// run runs the watcher until end, or the end of the test.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	w := r.Watcher
	go func() { done <- w.Run(ctx) }()
	r.stop, r.done = cancel, done
	r.t.Cleanup(r.end)
}

// end stops the watcher and waits for it.
func (r *rig) end() {
	if r.stop != nil {
		r.stop()
		if err := <-r.done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run = %v", err)
		}
		r.stop = nil
	}
}

// event is decision n of a month's quota with the thresholds 80, 100 and "1 left".
func event(n, consumed, limit int64) usagev1.Event {
	now := time.Now()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	e := usagev1.Event{
		EventID: usagev1.UUID{6: 0x70, 8: 0x80, 14: byte(n >> 8), 15: byte(n)}, TS: now.UnixMicro(), StreamID: usagev1.UUID{15: 1}, Sequence: n,
		Decision: usagev1.DecisionAllow, Status: 200, Tenant: "acme", Cost: 1, GatewayID: "gw-1", RulesVersion: 7,
		Counters: []usagev1.Counter{{
			Key: "{t:acme}:e:q:t:api-calls:g:1month:1", Observed: true, PeriodStart: month.UnixMicro(), PeriodEnd: month.AddDate(0, 1, 0).UnixMicro(),
			Limit: limit, Units: 1, Consumed: consumed, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "api-calls",
			RuleID: "acme-month", RuleVersion: 1, ThresholdsPercent: []int32{80, 100}, ThresholdsLeft: []int64{1},
		}},
	}
	e.DecisionID = e.EventID
	return e
}

// send writes events to a partition.
func (r *rig) send(partition int32, events ...usagev1.Event) {
	r.t.Helper()
	for i := range events {
		e := &events[i]
		r.broker.Produce(&kafkatest.Record{
			Topic: usagev1.Topic, Partition: partition, Key: usagev1.Key(e.Tenant, e.ClientAddress),
			Value: wire.Frame(nil, r.schema, usagev1.AppendEvent(nil, e)),
		})
	}
}

// published is what quota-events.v1 holds, committed only.
func (r *rig) published() []quotaeventsv1.Event {
	r.t.Helper()
	var events []quotaeventsv1.Event
	for _, rec := range r.broker.Consume(quotaeventsv1.Topic) {
		e, err := r.decoder.Decode(r.t.Context(), []byte(rec.Key), rec.Value)
		if err != nil {
			r.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// publishes waits for n events and returns them.
func (r *rig) publishes(n int) []quotaeventsv1.Event {
	r.t.Helper()
	var events []quotaeventsv1.Event
	kafkatest.Eventually(r.t, func() bool { events = r.published(); return len(events) >= n }, "%d events", n)
	if len(events) > n {
		r.t.Fatalf("%d events, want %d", len(events), n)
	}
	return events
}

// committed polls until everything in usage.v1 is committed.
func (r *rig) committed() {
	r.t.Helper()
	kafkatest.Eventually(r.t, func() bool {
		lag, err := r.client.Lag(r.t.Context(), topics.Group, usagev1.Topic)
		var sum int64
		for _, n := range lag {
			sum += n
		}
		return err == nil && len(lag) > 0 && sum == 0
	}, "everything to be committed")
}

// metric is the value of a series, written name or name{label=value}.
func (r *rig) metric(series string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	name, label, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if strings.Join(labels, ",") == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	r.t.Fatalf("there is no metric %s", series)
	return 0
}

// wants fails the test unless the series have the values.
func (r *rig) wants(series map[string]float64) {
	r.t.Helper()
	for name, want := range series {
		if got := r.metric(name); got != want {
			r.t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
