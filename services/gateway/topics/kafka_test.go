package topics_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// client is a gateway's own client of a broker.
func client(t testing.TB, b *kafkatest.Broker) *kafka.Client {
	t.Helper()
	c, err := kafka.New(kafka.Config{Brokers: b.Brokers, SchemaRegistry: b.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// produce stores records in order and waits until the broker has them.
func produce(t testing.TB, b *kafkatest.Broker, records ...kafka.Record) {
	t.Helper()
	for _, r := range records {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		b.Produce(&kafkatest.Record{Topic: rulesv1.Topic, Key: string(r.Key), Value: r.Value, Headers: headers})
	}
}

// TestFC16OverKafka is TestFC16 with a broker, a registry and real compaction.
func TestFC16OverKafka(t *testing.T) {
	t.Parallel()

	b := kafkatest.Start(t)
	b.CreateTopic(rulesv1.Topic, 1, "cleanup.policy", "compact")
	c := client(t, b)
	dir, a := t.TempDir(), newAuthor(t, c.Registry())
	produce(t, b, a.rule("a", 5), a.rule("c", 9))
	r := start(t, setup{dir: dir, log: c, registry: c.Registry()})
	r.ready()
	began := time.Now()
	produce(t, b, garbage("rule/a"), a.rule("b", 7), a.gone("rule/c"))
	r.until("rule b and no rule c", func() bool { return maps.Equal(r.limits(), map[string]int64{"a": 5, "b": 7}) })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v, want 5s at most", took)
	}
	if got := r.metric("penstock_gateway_rules_poison_total", "undecodable"); got != 1 {
		t.Errorf("the poison counter reads %v, want 1", got)
	}
	r.stop()

	b.Compact()
	if left := keys(b); strings.Count(strings.Join(left, " "), "rule/a") != 1 {
		t.Fatalf("the topic still has the good record of A: %v", left)
	}
	again := start(t, setup{dir: dir, log: client(t, b), registry: c.Registry()})
	again.ready()
	want(t, again, map[string]int64{"a": 5, "b": 7})

	bare := start(t, setup{log: client(t, b), registry: c.Registry()})
	bare.until("the log's end", func() bool { return bare.metric("penstock_gateway_rules_caught_up") == 1 })
	if err := bare.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "rule/a") || bare.isServing() {
		t.Errorf("Ready = %v, serving %v; want rule/a named and nothing served", err, bare.isServing())
	}
}

func keys(b *kafkatest.Broker) []string {
	var out []string
	for _, r := range b.Consume(rulesv1.Topic) {
		out = append(out, r.Key)
	}
	return out
}

// TestBrokerAway guarantees that a gateway starts while broker and registry are
// away, from its snapshot, and that the log takes over when they are back.
func TestBrokerAway(t *testing.T) {
	t.Parallel()

	b := kafkatest.Start(t)
	b.CreateTopic(rulesv1.Topic, 1, "cleanup.policy", "compact")
	dir := t.TempDir()
	c := client(t, b)
	a := newAuthor(t, c.Registry())
	produce(t, b, a.rule("a", 5), a.rule("b", 7))
	r := start(t, setup{dir: dir, log: c, registry: c.Registry()})
	r.ready()
	r.stop()

	change := a.rule("b", 8)
	b.Stop()
	c = client(t, b)
	r = start(t, setup{dir: dir, log: c, registry: c.Registry(), wait: 50 * time.Millisecond})
	<-r.Serving()
	want(t, r, map[string]int64{"a": 5, "b": 7})
	if got := r.metric("penstock_gateway_snapshot_serving"); got != 1 {
		t.Errorf("snapshot_serving reads %v, want 1", got)
	}
	b.Start()
	produce(t, b, change)
	r.ready()
	r.until("rule b as it is now", func() bool { return r.limits()["b"] == 8 })
	b.Stop()
	want(t, r, map[string]int64{"a": 5, "b": 8})
}

// BenchmarkPropagation measures from the call that produces a rule until it is
// in force in another client's book, over a broker in this process. It reports
// quantiles of single changes, one at a time.
func BenchmarkPropagation(b *testing.B) {
	broker := kafkatest.Start(b)
	broker.CreateTopic(rulesv1.Topic, 1, "cleanup.policy", "compact")
	c := client(b, broker)
	a := newAuthor(b, c.Registry())
	r := start(b, setup{dir: b.TempDir(), log: client(b, broker), registry: c.Registry()})
	r.ready()
	records := make([]kafka.Record, b.N)
	for i := range records {
		records[i] = a.rule(fmt.Sprintf("r%d", i%1000), int64(i+1))
		records[i].Topic = rulesv1.Topic
	}
	took := make([]time.Duration, b.N)
	tick := time.NewTicker(20 * time.Microsecond)
	defer tick.Stop()
	b.ResetTimer()
	for i := range records {
		began := time.Now()
		c.Produce(b.Context(), records[i], func(err error) {
			if err != nil {
				b.Error(err)
			}
		})
		for r.book.Current().Revision() < int64(i+1) {
			<-tick.C
		}
		took[i] = time.Since(began)
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
}

var _ topics.Log = (*kafka.Client)(nil)
