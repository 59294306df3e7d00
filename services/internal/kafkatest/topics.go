package kafkatest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Record is a record as the broker holds it.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       string
	Value     []byte // nil is a tombstone
	Headers   map[string]string
	Timestamp time.Time // zero has Produce stamp it with now
}

// client returns a plain client that lives as long as the call that uses it.
func (b *Broker) client(opts ...kgo.Opt) (*kgo.Client, context.Context, func()) {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.Brokers...),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.ProducerLinger(0),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.DisableClientMetrics(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, slices.Concat(b.options, opts)...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.t.Context()), Patience)
	return cl, ctx, func() { cancel(); cl.Close() }
}

// CreateTopic makes a topic. Pairs of config follow: "cleanup.policy",
// "compact".
func (b *Broker) CreateTopic(topic string, partitions int32, config ...string) {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	configs := make(map[string]*string)
	for pair := range slices.Chunk(config, 2) {
		configs[pair[0]] = &pair[1]
	}
	admin := kadm.NewClient(cl)
	if _, err := admin.CreateTopic(ctx, partitions, 1, configs, topic); err != nil {
		b.t.Fatalf("create %s: %v", topic, err)
	}
	Eventually(b.t, func() bool { // a real broker hears of it a little later
		ends, err := admin.ListEndOffsets(ctx, topic)
		return err == nil && ends.Error() == nil && len(ends[topic]) == int(partitions)
	}, "leaders of %s", topic)
}

// AddPartitions gives a topic n more partitions.
func (b *Broker) AddPartitions(topic string, n int) {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	admin := kadm.NewClient(cl)
	before, err := admin.ListTopics(ctx, topic)
	if err != nil {
		b.t.Fatalf("partitions of %s: %v", topic, err)
	}
	resps, err := admin.CreatePartitions(ctx, n, topic)
	if err == nil {
		err = resps.Error()
	}
	if err != nil {
		b.t.Fatalf("partitions of %s: %v", topic, err)
	}
	want := len(before[topic].Partitions) + n
	Eventually(b.t, func() bool {
		ends, err := admin.ListEndOffsets(ctx, topic)
		return err == nil && ends.Error() == nil && len(ends[topic]) == want
	}, "leaders of %s", topic)
}

// DeleteTopic removes a topic and its records.
func (b *Broker) DeleteTopic(topic string) {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	if _, err := kadm.NewClient(cl).DeleteTopic(ctx, topic); err != nil {
		b.t.Fatalf("delete %s: %v", topic, err)
	}
}

// Produce stores records, each in a batch of its own, and fills in their
// offsets. Topic and Partition are taken as they are.
func (b *Broker) Produce(records ...*Record) {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	for _, r := range records {
		out := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: []byte(r.Key), Value: r.Value, Timestamp: r.Timestamp}
		for _, k := range slices.Sorted(maps.Keys(r.Headers)) {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: k, Value: []byte(r.Headers[k])})
		}
		if err := cl.ProduceSync(ctx, out).FirstErr(); err != nil {
			b.t.Fatalf("produce to %s: %v", r.Topic, err)
		}
		r.Offset = out.Offset
	}
}

// Abort writes a record in a transaction and rolls it back, which leaves the
// partition's end on a marker that is no record.
func (b *Broker) Abort(r Record) {
	b.t.Helper()
	cl, ctx, done := b.client(kgo.TransactionalID("kafkatest"))
	defer done()
	err := cl.BeginTransaction()
	if err == nil {
		err = cl.ProduceSync(ctx, &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: []byte(r.Key), Value: r.Value}).FirstErr()
	}
	if err == nil {
		err = cl.EndTransaction(ctx, kgo.TryAbort)
	}
	if err != nil {
		b.t.Fatalf("abort in %s: %v", r.Topic, err)
	}
}

// Open writes a record in a transaction and leaves it open until the returned
// function commits it.
func (b *Broker) Open(r Record) (commit func()) {
	b.t.Helper()
	cl, ctx, done := b.client(kgo.TransactionalID("kafkatest-open"))
	b.t.Cleanup(done)
	err := cl.BeginTransaction()
	if err == nil {
		err = cl.ProduceSync(ctx, &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: []byte(r.Key), Value: r.Value}).FirstErr()
	}
	b.must(err)
	return func() { b.must(cl.EndTransaction(ctx, kgo.TryCommit)) }
}

// Consume returns what the topic holds now, committed records only, by
// partition and offset. A topic that does not exist holds nothing.
func (b *Broker) Consume(topic string) []Record {
	b.t.Helper()
	cl, ctx, done := b.client(kgo.ConsumeTopics(topic), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer done()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, topic)
	if err != nil {
		b.t.Fatalf("ends of %s: %v", topic, err)
	}
	left := make(map[int32]int64)
	for p, end := range ends[topic] {
		if end.Err == kerr.UnknownTopicOrPartition { //nolint:errorlint // kadm puts the bare error there
			return nil
		}
		if end.Offset > 0 {
			left[p] = end.Offset
		}
	}
	starts, err := kadm.NewClient(cl).ListStartOffsets(ctx, topic)
	if err != nil {
		b.t.Fatalf("starts of %s: %v", topic, err)
	}
	starts.Each(func(o kadm.ListedOffset) {
		if o.Offset >= left[o.Partition] {
			delete(left, o.Partition)
		}
	})
	var records []Record
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			b.t.Fatalf("%s was not read to its end within %v: still missing up to %v", topic, Patience, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				records = append(records, shown(r))
			}
		})
	}
	slices.SortFunc(records, func(a, b Record) int {
		if a.Partition != b.Partition {
			return int(a.Partition - b.Partition)
		}
		return int(a.Offset - b.Offset)
	})
	return records
}

func shown(r *kgo.Record) Record {
	out := Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: string(r.Key), Value: r.Value, Timestamp: r.Timestamp}
	if len(r.Headers) > 0 {
		out.Headers = make(map[string]string, len(r.Headers))
		for _, h := range r.Headers {
			out.Headers[h.Key] = string(h.Value)
		}
	}
	return out
}

// WaitFor polls the topic until it holds at least n records and returns them.
func (b *Broker) WaitFor(topic string, n int) []Record {
	b.t.Helper()
	var records []Record
	Eventually(b.t, func() bool {
		records = b.Consume(topic)
		return len(records) >= n
	}, "%d records in %s", n, topic)
	return records
}

// DeleteRecords removes everything below an offset from a partition.
func (b *Broker) DeleteRecords(topic string, partition int32, below int64) {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: topic, Partition: partition, At: below})
	resps, err := kadm.NewClient(cl).DeleteRecords(ctx, offsets)
	if err == nil {
		err = resps.Error()
	}
	if err != nil {
		b.t.Fatalf("delete records of %s: %v", topic, err)
	}
}

// Config is the configuration of a topic.
func (b *Broker) Config(topic string) map[string]string {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	configs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, topic)
	if err != nil {
		b.t.Fatalf("configuration of %s: %v", topic, err)
	}
	out := make(map[string]string)
	for _, rc := range configs {
		for _, c := range rc.Configs {
			out[c.Key] = c.MaybeValue()
		}
	}
	return out
}

// End is the offset after the last committed record of a partition.
func (b *Broker) End(topic string, partition int32) int64 {
	b.t.Helper()
	cl, ctx, done := b.client()
	defer done()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(ctx, topic)
	if err != nil {
		b.t.Fatalf("end of %s: %v", topic, err)
	}
	o, ok := ends.Lookup(topic, partition)
	if !ok || o.Err != nil {
		b.t.Fatalf("end of %s-%d: %+v", topic, partition, o)
	}
	return o.Offset
}
