package topics_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/usage-indexer/topics"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// An index is a store inside the test.
type index struct {
	mu     sync.Mutex
	docs   map[[16]byte]map[string]any
	days   map[[16]byte]usagedoc.Day
	refuse func(doc map[string]any) string // why a document is refused; empty: it is not
	stop   chan struct{}                   // while not closed, nothing is taken; nil: everything is
}

func newIndex() *index {
	return &index{docs: map[[16]byte]map[string]any{}, days: map[[16]byte]usagedoc.Day{}}
}

func (x *index) Write(ctx context.Context, entries []usagedoc.Entry) ([]usagedoc.Outcome, error) {
	if x.stop != nil {
		select {
		case <-x.stop:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	outcomes := make([]usagedoc.Outcome, len(entries))
	for i, e := range entries {
		var doc map[string]any
		if err := json.Unmarshal(e.Doc, &doc); err != nil {
			return nil, err
		}
		outcomes[i].Verdict = usagedoc.Created
		if x.refuse != nil {
			if outcomes[i].Cause = x.refuse(doc); outcomes[i].Cause != "" {
				outcomes[i].Verdict = usagedoc.Rejected
				continue
			}
		}
		if x.docs[e.ID] != nil {
			outcomes[i].Verdict = usagedoc.Duplicate
		}
		x.docs[e.ID], x.days[e.ID] = doc, e.Day
	}
	return outcomes, nil
}

func (x *index) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.docs)
}

func (x *index) doc(id [16]byte) map[string]any {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.docs[id]
}

// A rig is an indexer on a broker.
type rig struct {
	*topics.Indexer
	t      *testing.T
	broker *kafkatest.Broker
	client *kafka.Client
	index  *index
	reg    *prometheus.Registry
	schema uint32
	stop   func()
	done   chan error
}

// newRig makes an indexer that does not run yet, on an empty topic of two
// partitions.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, broker: kafkatest.Start(t), index: newIndex(), reg: prometheus.NewRegistry()}
	r.broker.CreateTopic(usagev1.Topic, 2)
	r.client = open(t, r.broker)
	var err error
	if r.schema, err = r.client.Registry().Register(t.Context(), usagev1.Subject, schemas.UsageV1); err != nil {
		t.Fatal(err)
	}
	r.Indexer, err = topics.New(config, r.client, topics.Aside, 1, r.client.Registry(), r.index, slog.New(slog.DiscardHandler), r.reg, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var config = topics.Config{Retention: 30, Batch: 100, Writers: 2}

func open(t *testing.T, b *kafkatest.Broker) *kafka.Client {
	t.Helper()
	c, err := kafka.New(kafka.Config{Brokers: b.Brokers, SchemaRegistry: b.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// run runs the indexer until end, or the end of the test.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	r.done = make(chan error, 1)
	done := r.done
	go func() { done <- r.Run(ctx) }()
	r.stop = cancel
	r.t.Cleanup(r.end)
}

// end stops the indexer and waits for it.
func (r *rig) end() {
	if r.stop != nil {
		r.stop()
		if err := <-r.done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run = %v", err)
		}
		r.stop = nil
	}
}

// committed polls until everything in the topic is committed.
func (r *rig) committed() {
	r.t.Helper()
	kafkatest.Eventually(r.t, func() bool { return r.lag() == 0 }, "everything to be committed")
}

// lag is how many records are not committed, -1 when it is not known.
func (r *rig) lag() int64 {
	lag, err := r.client.Lag(r.t.Context(), topics.Group, usagev1.Topic)
	if err != nil || len(lag) == 0 {
		return -1
	}
	var sum int64
	for _, n := range lag {
		sum += n
	}
	return sum
}

// event is event n of the stream, a second ago.
func event(n int64) usagev1.Event {
	e := usagev1.Event{
		EventID: usagev1.UUID{6: 0x70, 8: 0x80, 14: byte(n >> 8), 15: byte(n)}, TS: time.Now().Add(-time.Second).UnixMicro(),
		StreamID: usagev1.UUID{15: 1}, Sequence: n, Decision: usagev1.DecisionDeny, Status: 429, Tenant: "acme", Cost: n,
		RuleID: "acme-burst", Algorithm: "gcra", GatewayID: "gw-1", LabelsJSON: `{"region":"eu"}`,
	}
	e.DecisionID = e.EventID
	return e
}

// value is e as it is on the topic.
func (r *rig) value(e usagev1.Event) []byte {
	return wire.Frame(nil, r.schema, usagev1.AppendEvent(nil, &e))
}

// send writes events to a partition.
func (r *rig) send(partition int32, events ...usagev1.Event) []*kafkatest.Record {
	r.t.Helper()
	var out []*kafkatest.Record
	for _, e := range events {
		out = append(out, &kafkatest.Record{Topic: usagev1.Topic, Partition: partition, Key: usagev1.Key(e.Tenant, e.ClientAddress), Value: r.value(e)})
	}
	r.broker.Produce(out...)
	return out
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
