package usage_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// overKafka is a Usage with a client of its own, over a broker.
func overKafka(t testing.TB, b *kafkatest.Broker, dir string) *rig {
	t.Helper()
	c, err := kafka.New(usage.Producing(kafka.Config{Brokers: b.Brokers, SchemaRegistry: b.RegistryURL}), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cluster: newCluster(), metrics: prometheus.NewRegistry(), lines: &lines{}}
	r.cfg = usage.Config{Gateway: "gw-1", Buffer: 32 << 20, Dir: dir, Spool: 1 << 30, Linger: 5 * time.Millisecond, Sync: time.Second}
	r.Usage, err = usage.New(r.cfg, c, c.Registry(), slog.New(slog.NewJSONHandler(r.lines, nil)), r.metrics)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // after Run has ended
	r.run()
	return r
}

// stored are the events on the topic, in the order of their partitions.
func stored(t testing.TB, b *kafkatest.Broker) (events []usagev1.Event) {
	t.Helper()
	d := usagev1.NewDecoder(wire.NewIDs(kafka.NewRegistry(b.RegistryURL), usagev1.Subject))
	for _, rec := range b.Consume(usagev1.Topic) {
		e, err := d.Decode(context.WithoutCancel(t.Context()), []byte(rec.Key), rec.Value)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// TestBrokerAway guarantees that an outage of a real protocol costs nothing:
// events of before, of the outage, over the disk, and of afterwards are on the
// topic, numbered without gap, and what came twice is told by its number.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	b, dir := kafkatest.Start(t), t.TempDir()
	r := overKafka(t, b, dir)
	r.tell(2000)
	r.until("the events of before", func() bool { return r.metric("acknowledged_total") == 2000 })
	b.Stop()
	r.tell(3000)
	r.until("all partitions on disk", func() bool { return r.metric("spooling_partitions") > 0 && r.metric("buffer_bytes") < 1<<20 })
	r.tell(3000)
	b.Start()
	r.until("the events of the outage", func() bool { return r.metric("acknowledged_total") >= 8000 })
	r.tell(1000)
	r.until("the events of afterwards", func() bool { return r.metric("acknowledged_total") >= 9000 && r.metric("spooling_partitions") == 0 })
	events, repeats := distinct(t, stored(t, b))
	exactly(t, events, 9000)
	if lost := r.metric("lost_total", "memory_full"); lost > 0 || len(files(t, dir)) > 0 {
		t.Errorf("%v lost, files %v (%d repeats)", lost, files(t, dir), repeats)
	}
}

// TestFC34OverKafka is TestFC34 with a broker that refuses while it is paused,
// and its client.
func TestFC34OverKafka(t *testing.T) {
	t.Parallel()
	const queued = 436
	pause := func(b *kafkatest.Broker) (mend func()) {
		var faults []*kafkatest.Fault
		for p := range int32(usagev1.Partitions) {
			faults = append(faults, b.PauseProduce(usagev1.Topic, p))
		}
		return func() {
			for _, f := range faults {
				f.Mend()
			}
		}
	}
	queue := func(r *rig) {
		r.until("the topic", func() bool { return r.metric("acknowledged_total") == 0 && topicKnown(r.cfg.Dir) })
		r.tell(queued)
	}
	t.Run("the broker resumes after 3 s", func(t *testing.T) {
		t.Parallel()
		b, dir := kafkatest.Start(t), t.TempDir()
		b.CreateTopic(usagev1.Topic, usagev1.Partitions)
		mend := pause(b)
		r := overKafka(t, b, dir)
		queue(r)
		time.AfterFunc(3*time.Second, mend)
		if err := r.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		events, _ := distinct(t, stored(t, b)) // the broker may resume just as a batch is given up and goes to disk
		exactly(t, events, queued)
	})
	t.Run("the broker never resumes", func(t *testing.T) {
		t.Parallel()
		b, dir := kafkatest.Start(t), t.TempDir()
		b.CreateTopic(usagev1.Topic, usagev1.Partitions)
		mend := pause(b)
		r := overKafka(t, b, dir)
		queue(r)
		began := time.Now()
		if err := r.stop(); !errors.Is(err, context.Canceled) || time.Since(began) > 15*time.Second {
			t.Errorf("Run = %v after %v", err, time.Since(began))
		}
		if n := len(stored(t, b)); n != 0 || len(files(t, dir)) == 0 {
			t.Fatalf("%d events are stored, files %v", n, files(t, dir))
		}
		mend()
		r = overKafka(t, b, dir)
		r.until("what was on disk", func() bool { return r.metric("acknowledged_total") >= queued && r.metric("spool_bytes") == 0 })
		events, _ := distinct(t, stored(t, b)) // the first client may have had its say after the broker resumed
		exactly(t, events, queued)
	})
}

// TestLostAnswers guarantees that an answer of the broker which does not arrive
// makes no repeat on the topic: the client is idempotent, and the sender waits.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic(usagev1.Topic, usagev1.Partitions)
	var faults []*kafkatest.Fault
	for p := range int32(usagev1.Partitions) {
		faults = append(faults, b.LoseAcks(usagev1.Topic, p))
	}
	r := overKafka(t, b, t.TempDir())
	r.tell(1000)
	faults[0].Wait(3)
	for _, f := range faults {
		f.Mend()
	}
	r.until("all events", func() bool { return r.metric("acknowledged_total") == 1000 && r.metric("spool_bytes") == 0 })
	exactly(t, stored(t, b), 1000)
}

// BenchmarkKafka measures events from the request path until a broker in this
// process has them, and what a spool gives back.
func BenchmarkKafka(b *testing.B) {
	broker := kafkatest.Start(b)
	r := overKafka(b, broker, b.TempDir())
	u := ordinary(b)
	tenants := []string{"acme", "globex", "initech", "umbrella", "hooli", "stark", "wayne", "tyrell", "cyberdyne", "soylent"}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		for i%1000 == 0 && r.metric("buffer_bytes") > 8<<20 {
			<-tick.C
		}
		u.Tenant = tenants[i%len(tenants)]
		r.Record(u)
	}
	r.until("all events", func() bool { return r.metric("acknowledged_total") == float64(b.N) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// topicKnown reports whether a Usage has learned of its topic.
func topicKnown(dir string) bool {
	return slices.Contains(names(dir), "state.json")
}
