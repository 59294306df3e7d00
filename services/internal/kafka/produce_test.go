package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// TestPartitionOfAgreesWithJava guarantees that a key goes where the Java
// client would put it. The hashes are from the Kafka project's own UtilsTest.
func TestPartitionOfAgreesWithJava(t *testing.T) {
	t.Parallel()
	for key, hash := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
		"":    275646681,
	} {
		for _, n := range []int32{1, 6, 7, 1000} {
			want := (hash & 0x7fffffff) % n
			if got := kafka.PartitionOf([]byte(key), n); got != want {
				t.Errorf("PartitionOf(%q, %d) = %d, want %d", key, n, got, want)
			}
		}
	}
}

// TestProduceByKeyAndByHand guarantees that Produce follows the key, ProduceTo
// the caller, and that both store what they were given.
func TestProduceByKeyAndByHand(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 6)
	c := open(t, b)
	if n, err := c.Partitions(t.Context(), "usage"); n != 6 || err != nil {
		t.Fatalf("Partitions = %d, %v, want 6", n, err)
	}
	want := make(map[string]int32)
	for i := range 20 {
		key := "tenant-" + strconv.Itoa(i)
		want[key] = kafka.PartitionOf([]byte(key), 6)
		r := kafka.Record{Topic: "usage", Key: []byte(key), Value: []byte("v"), Headers: []kafka.Header{{Key: "id", Value: []byte("7")}}}
		if err := produce(t, c, r); err != nil {
			t.Fatal(err)
		}
	}
	want["by hand"] = 3
	if err := wait(t, func(done func(error)) {
		c.ProduceTo(t.Context(), 3, kafka.Record{Topic: "usage", Key: []byte("by hand"), Value: []byte("v"), Headers: []kafka.Header{{Key: "id", Value: []byte("7")}}}, done)
	}); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int32)
	for _, r := range b.Consume("usage") {
		got[r.Key] = r.Partition
		if string(r.Value) != "v" || r.Headers["id"] != "7" {
			t.Errorf("record %+v, want value v and id 7", r)
		}
	}
	for key, p := range want {
		if got[key] != p {
			t.Errorf("%q is in partition %d, want %d", key, got[key], p)
		}
	}
	if err := wait(t, func(done func(error)) { c.ProduceTo(t.Context(), 6, kafka.Record{Topic: "usage"}, done) }); err == nil {
		t.Error("ProduceTo a partition that does not exist = nil, want an error")
	}
}

// TestProduceKeepsTombstones guarantees that no value and an empty value stay
// two things on the way through the broker.
func TestProduceKeepsTombstones(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules", 1)
	c := open(t, b)
	for _, v := range [][]byte{nil, {}} {
		if err := produce(t, c, kafka.Record{Topic: "rules", Key: []byte("a"), Value: v}); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Consume("rules"); len(got) != 2 || got[0].Value != nil || got[1].Value == nil {
		t.Errorf("stored %+v, want a tombstone, then an empty value", got)
	}
}

// TestProduceAcknowledgesPartitionsApart guarantees what FC-18 builds on: while
// the leader of one partition is paused its records wait, and the others are
// acknowledged; afterwards they are stored in the order they were given.
func TestProduceAcknowledgesPartitionsApart(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules", 2)
	c := open(t, b)
	paused := b.PauseProduce("rules", 0)
	slow := make(chan error, 3)
	for i := range 3 {
		c.ProduceTo(t.Context(), 0, kafka.Record{Topic: "rules", Key: []byte("slow"), Value: []byte(strconv.Itoa(i))}, func(err error) { slow <- err })
	}
	for i := range 3 {
		if err := wait(t, func(done func(error)) {
			c.ProduceTo(t.Context(), 1, kafka.Record{Topic: "rules", Key: []byte("fast"), Value: []byte(strconv.Itoa(i))}, done)
		}); err != nil {
			t.Fatal(err)
		}
	}
	paused.Wait(2)
	if len(slow) != 0 {
		t.Errorf("%d records of the paused partition have a verdict, want none", len(slow))
	}
	paused.Mend()
	for range 3 {
		if err := <-slow; err != nil {
			t.Errorf("verdict after the pause = %v, want nil", err)
		}
	}
	var values []string
	for _, r := range b.Consume("rules") {
		values = append(values, r.Key+string(r.Value))
	}
	if want := []string{"slow0", "slow1", "slow2", "fast0", "fast1", "fast2"}; !slices.Equal(values, want) {
		t.Errorf("stored %v, want %v", values, want)
	}
}

// TestProduceStoresOnce guarantees that a lost acknowledgement does not store a
// record twice.
func TestProduceStoresOnce(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules", 1)
	c := open(t, b)
	lost := b.LoseAcks("rules", 0)
	verdict := make(chan error, 1)
	c.Produce(t.Context(), kafka.Record{Topic: "rules", Key: []byte("a"), Value: []byte("1")}, func(err error) { verdict <- err })
	lost.Wait(2)
	lost.Mend()
	if err := <-verdict; err != nil {
		t.Fatal(err)
	}
	if got := b.Consume("rules"); len(got) != 1 {
		t.Errorf("stored %d records, want 1: %+v", len(got), got)
	}
}

// TestProduceSurvivesBrokerRestarts guarantees that a producer started before
// its broker, and a broker restarted under load, lose nothing, double nothing
// and keep the order.
func TestProduceSurvivesBrokerRestarts(t *testing.T) {
	t.Parallel()
	const total = 3000
	b := kafkatest.Reserve(t)
	c := open(t, b)
	var mu sync.Mutex
	failed, stored := 0, 0
	send := func(from, to int) {
		for i := from; i < to; i++ {
			c.Produce(t.Context(), kafka.Record{Topic: "rules", Key: []byte("k"), Value: []byte(strconv.Itoa(i))}, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed++
				} else {
					stored++
				}
			})
		}
	}
	ensured := make(chan error, 1)
	go func() {
		ensured <- c.EnsureTopics(t.Context(), []kafka.Topic{{Name: "rules", Partitions: 1}})
	}()
	b.Start()
	if err := <-ensured; err != nil {
		t.Fatal(err)
	}
	send(0, total/3)
	b.Stop()
	send(total/3, 2*total/3)
	b.Start()
	send(2*total/3, total)
	ctx, cancel := context.WithTimeout(t.Context(), kafkatest.Patience)
	defer cancel()
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if stored != total || failed != 0 {
		t.Errorf("%d stored, %d failed, want %d stored", stored, failed, total)
	}
	got := b.Consume("rules")
	for i, r := range got {
		if string(r.Value) != strconv.Itoa(i) {
			t.Fatalf("record %d is %s: lost, doubled or out of order", i, r.Value)
		}
	}
	if len(got) != total {
		t.Errorf("%d records, want %d", len(got), total)
	}
}

// TestProduceVerdicts guarantees that a caller can tell failures apart, and
// which of them another attempt cannot mend.
func TestProduceVerdicts(t *testing.T) {
	t.Parallel()
	big := func(c *kafka.Config) { c.MaxBufferedRecords = 1 }
	tests := []struct {
		name      string
		change    func(*kafka.Config)
		send      func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error
		want      error
		permanent bool
	}{
		{"a topic that does not exist", func(*kafka.Config) {}, func(t *testing.T, _ *kafkatest.Broker, c *kafka.Client) error {
			return produce(t, c, kafka.Record{Topic: "nowhere"})
		}, kafka.ErrNoTopic, false},
		{"a broker that finds it too large", func(*kafka.Config) {}, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			b.RefuseProduce("rules")
			return produce(t, c, kafka.Record{Topic: "rules"})
		}, kafka.ErrTooLarge, true},
		{"a record beyond what a batch may hold", func(*kafka.Config) {}, func(t *testing.T, _ *kafkatest.Broker, c *kafka.Client) error {
			return produce(t, c, kafka.Record{Topic: "rules", Value: make([]byte, 2<<20)})
		}, kafka.ErrTooLarge, true},
		{"a full buffer, for a caller that does not wait", big, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			b.PauseProduce("rules", 0)
			c.Produce(t.Context(), kafka.Record{Topic: "rules"}, nil)
			return wait(t, func(done func(error)) { c.TryProduce(t.Context(), kafka.Record{Topic: "rules"}, done) })
		}, kafka.ErrBufferFull, false},
		{"a full buffer, for one that numbers partitions", big, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			b.PauseProduce("rules", 0)
			c.Produce(t.Context(), kafka.Record{Topic: "rules"}, nil)
			return wait(t, func(done func(error)) { c.TryProduceTo(t.Context(), 0, kafka.Record{Topic: "rules"}, done) })
		}, kafka.ErrBufferFull, false},
		{"a full buffer, for one that waits until its context ends", big, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			b.PauseProduce("rules", 0)
			c.Produce(t.Context(), kafka.Record{Topic: "rules"}, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return wait(t, func(done func(error)) { c.Produce(ctx, kafka.Record{Topic: "rules"}, done) })
		}, context.DeadlineExceeded, false},
		{"no delivery in time", func(c *kafka.Config) { c.DeliveryTimeout = time.Second }, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			b.PauseProduce("rules", 0)
			return produce(t, c, kafka.Record{Topic: "rules"})
		}, kafka.ErrTimeout, false},
		{"no answer in time, for one that may give up what is under way", func(c *kafka.Config) {
			c.DeliveryTimeout, c.CancelInFlight = time.Second, true
		}, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			b.LoseAcks("rules", 0)
			return produce(t, c, kafka.Record{Topic: "rules"})
		}, kafka.ErrTimeout, false},
		{"the end of its context while it is under way", func(c *kafka.Config) { c.CancelInFlight = true }, func(t *testing.T, b *kafkatest.Broker, c *kafka.Client) error {
			lost := b.LoseAcks("rules", 0)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { lost.Wait(1); cancel() }()
			return wait(t, func(done func(error)) { c.Produce(ctx, kafka.Record{Topic: "rules"}, done) })
		}, context.Canceled, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t)
			b.CreateTopic("rules", 1)
			c := open(t, b, tt.change)
			err := tt.send(t, b, c)
			if !errors.Is(err, tt.want) {
				t.Errorf("verdict = %v, want %v", err, tt.want)
			}
			if got := kafka.Permanent(err); got != tt.permanent {
				t.Errorf("Permanent(%v) = %v, want %v", err, got, tt.permanent)
			}
		})
	}
}

// TestProduceToATopicMadeAnew guarantees that a producer outlives the topic it
// wrote to: what was on its way to the old one fails, and offering it again
// stores it in the new one.
func TestProduceToATopicMadeAnew(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules", 1)
	c := open(t, b)
	send := func(v string) error {
		return produce(t, c, kafka.Record{Topic: "rules", Key: []byte("a"), Value: []byte(v)})
	}
	if err := send("old"); err != nil {
		t.Fatal(err)
	}
	b.DeleteTopic("rules")
	b.CreateTopic("rules", 1)
	var verdicts []error
	kafkatest.Eventually(t, func() bool {
		err := send("new")
		verdicts = append(verdicts, err)
		return err == nil
	}, "a record in the new topic")
	for _, err := range verdicts[:len(verdicts)-1] {
		if !errors.Is(err, kafka.ErrNoTopic) || kafka.Permanent(err) {
			t.Errorf("verdict on the way = %v, want ErrNoTopic, not permanent", err)
		}
	}
	if got := b.Consume("rules"); len(got) == 0 || string(got[len(got)-1].Value) != "new" {
		t.Errorf("stored %+v, want new", got)
	}
}

// TestFlush guarantees that Flush returns only when every record has a verdict,
// or when its time is over.
func TestFlush(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules", 1)
	c := open(t, b)
	paused := b.PauseProduce("rules", 0)
	var mu sync.Mutex
	verdicts := 0
	for i := range 10 {
		c.Produce(t.Context(), kafka.Record{Topic: "rules", Value: fmt.Append(nil, i)}, func(error) {
			mu.Lock()
			defer mu.Unlock()
			verdicts++
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Flush of a paused partition = %v, want DeadlineExceeded", err)
	}
	paused.Mend()
	if err := c.Flush(t.Context()); err != nil {
		t.Errorf("Flush = %v, want nil", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if verdicts != 10 {
		t.Errorf("%d verdicts after Flush, want 10", verdicts)
	}
}
