package topics_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/topics"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// A book is the books inside the test.
type book struct {
	mu      sync.Mutex
	events  []metering.Event
	read    map[int32]metering.Position
	changes []catalog.Change
	away    int                        // how many calls fail as the database does
	refuse  func(metering.Event) error // why an event is refused for good
	reject  func(catalog.Change) error
}

func (b *book) Learn(_ context.Context, changes []catalog.Change, _ time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range changes {
		if b.reject != nil {
			if err := b.reject(c); err != nil {
				return err
			}
		}
	}
	b.changes = append(b.changes, changes...)
	return nil
}

func (b *book) Count(_ context.Context, events []metering.Event, read []metering.Position, _ time.Time) (metering.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away > 0 {
		b.away--
		return metering.Result{}, account.ErrUnavailable
	}
	for _, e := range events {
		if b.refuse != nil {
			if err := b.refuse(e); err != nil {
				return metering.Result{}, err
			}
		}
	}
	b.events = append(b.events, events...)
	for _, p := range read {
		b.read[p.Partition] = p
	}
	return metering.Result{Counted: len(events)}, nil
}

func (b *book) CountedTo(context.Context) (map[int32]time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[int32]time.Time{}
	for p, at := range b.read {
		out[p] = at.At
	}
	return out, nil
}

func (b *book) counted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events)
}

func (b *book) known() []catalog.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]catalog.Change(nil), b.changes...)
}

// A rig is a counter on a broker.
type rig struct {
	*topics.Counter
	t      *testing.T
	broker *kafkatest.Broker
	client *kafka.Client
	book   *book
	reg    *prometheus.Registry
	usage  uint32
	rules  uint32
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, broker: kafkatest.Start(t), book: &book{read: map[int32]metering.Position{}}, reg: prometheus.NewRegistry()}
	r.broker.CreateTopic(usagev1.Topic, 2)
	var err error
	r.client, err = kafka.New(kafka.Config{Brokers: r.broker.Brokers, SchemaRegistry: r.broker.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() })
	if r.usage, err = r.client.Registry().Register(t.Context(), usagev1.Subject, schemas.UsageV1); err != nil {
		t.Fatal(err)
	}
	if r.rules, err = r.client.Registry().Register(t.Context(), rulesv1.Subject, schemas.RulesV1); err != nil {
		t.Fatal(err)
	}
	cfg := topics.Config{Batch: 100, Replicas: 1, AtRisk: 5 * 24 * time.Hour}
	r.Counter, err = topics.New(cfg, r.client, r.client.Registry(), r.book, slog.New(slog.DiscardHandler), r.reg, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run runs the counter until the end of the test.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run = %v", err)
		}
	})
}

func event(n int64) usagev1.Event {
	e := usagev1.Event{
		EventID: usagev1.UUID{6: 0x70, 8: 0x80, 14: byte(n >> 8), 15: byte(n)}, TS: time.Now().Add(-time.Second).UnixMicro(),
		StreamID: usagev1.UUID{15: 1}, Sequence: n, Decision: usagev1.DecisionAllow, Status: 200, Tenant: "acme", Cost: n, GatewayID: "gw-1",
	}
	e.DecisionID = e.EventID
	return e
}

func (r *rig) value(e usagev1.Event) []byte {
	return wire.Frame(nil, r.usage, usagev1.AppendEvent(nil, &e))
}

func (r *rig) send(partition int32, events ...usagev1.Event) {
	r.t.Helper()
	var out []*kafkatest.Record
	for _, e := range events {
		out = append(out, &kafkatest.Record{Topic: usagev1.Topic, Partition: partition, Key: usagev1.Key(e.Tenant, e.ClientAddress), Value: r.value(e)})
	}
	r.broker.Produce(out...)
}

// put writes records of rules.v1.
func (r *rig) put(records ...rulesv1.Record) {
	r.t.Helper()
	for _, rec := range records {
		body, err := rulesv1.AppendRecord(nil, &rec)
		if err != nil {
			r.t.Fatal(err)
		}
		r.broker.Produce(&kafkatest.Record{Topic: rulesv1.Topic, Key: rulesv1.Key(rec.Kind, rec.ID), Value: wire.Frame(nil, r.rules, body)})
	}
}

func tenantRecord(id string, version int64) rulesv1.Record {
	return rulesv1.Record{
		Kind: rulesv1.KindTenant, ID: id, Version: version, Revision: version, ChangedAt: time.Now().UnixMicro(),
		Tenant: &rulesv1.Tenant{Name: id, Zone: "Europe/Istanbul", Currency: "USD"},
	}
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
