package kafka_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// A ledger is the durable store of a test's group: what its members handled, by
// partition and in order, repeats included.
type ledger struct {
	mu   sync.Mutex
	seen map[string][]int64 // offsets, by "topic-partition"
	got  []kafka.Record
}

func (l *ledger) add(records []kafka.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = make(map[string][]int64)
	}
	for _, r := range records {
		at := fmt.Sprintf("%s-%d", r.Topic, r.Partition)
		l.seen[at] = append(l.seen[at], r.Offset)
	}
	l.got = append(l.got, records...)
}

// values are what was handled, each once.
func (l *ledger) values() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := make(map[string]int)
	for _, r := range l.got {
		values[string(r.Value)]++
	}
	return values
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.got)
}

// A worker is a member of a group that writes to a ledger.
type worker struct {
	ledger *ledger
	handle func(context.Context, []kafka.Record) error // nil: write to the ledger

	mu     sync.Mutex
	own    map[string]bool
	ended  chan error
	cancel context.CancelFunc
}

// join runs Consume in the background until the test ends.
func join(t *testing.T, c *kafka.Client, g kafka.Group, w *worker) *worker {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel, w.ended, w.own = cancel, make(chan error, 1), make(map[string]bool)
	go func() { w.ended <- c.Consume(ctx, g, w) }()
	t.Cleanup(func() { w.leave(t) })
	return w
}

// leave ends Consume and returns its error.
func (w *worker) leave(t *testing.T) error {
	t.Helper()
	w.cancel()
	return w.end(t)
}

// end waits for the end of Consume and returns its error.
func (w *worker) end(t *testing.T) error {
	t.Helper()
	var err error
	kafkatest.Eventually(t, func() bool {
		select {
		case err = <-w.ended:
			w.ended <- err
			return true
		default:
			return false
		}
	}, "Consume to return")
	if err == nil {
		t.Error("Consume returned nil: it goes on for ever or says why not")
	}
	if left := w.partitions(); len(left) > 0 {
		t.Errorf("Consume returned with partitions that were not revoked: %v", left)
	}
	return err
}

func (w *worker) Handle(ctx context.Context, records []kafka.Record) error {
	if w.handle != nil {
		if err := w.handle(ctx, records); err != nil {
			return err
		}
	}
	w.ledger.add(records)
	return nil
}

func (w *worker) Assigned(partitions map[string][]int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, ps := range partitions {
		for _, p := range ps {
			w.own[fmt.Sprintf("%s-%d", topic, p)] = true
		}
	}
}

func (w *worker) Revoked(partitions map[string][]int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, ps := range partitions {
		for _, p := range ps {
			delete(w.own, fmt.Sprintf("%s-%d", topic, p))
		}
	}
}

func (w *worker) partitions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.own))
}

// owns waits until the worker has n partitions.
func (w *worker) owns(t *testing.T, n int) {
	t.Helper()
	kafkatest.Eventually(t, func() bool { return len(w.partitions()) == n }, "%d partitions", n)
}

// fill stores n records with the values from, from+1, … spread over partitions.
func fill(b *kafkatest.Broker, topic string, partitions int32, from, n int) {
	records := make([]*kafkatest.Record, n)
	for i := range records {
		v := strconv.Itoa(from + i)
		records[i] = &kafkatest.Record{Topic: topic, Partition: int32(i) % partitions, Key: v, Value: []byte(v)}
	}
	b.Produce(records...)
}

// committed waits until the group has nothing left to read in the topic.
func committed(t *testing.T, c *kafka.Client, group, topic string) {
	t.Helper()
	kafkatest.Eventually(t, func() bool {
		lag, err := c.Lag(t.Context(), group, topic)
		var sum int64
		for _, n := range lag {
			sum += n
		}
		return err == nil && len(lag) > 0 && sum == 0
	}, "everything in %s to be committed", topic)
}

// TestConsumeGoesOnWhereItStopped guarantees the plain life of a group: a first
// member begins at the start, batches ascend by topic, partition and offset and
// keep to their size, and a later member handles only what came since.
func TestConsumeGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 3)
	b.CreateTopic("more", 1)
	fill(b, "usage", 3, 0, 30)
	fill(b, "more", 1, 100, 5)
	c := open(t, b)
	g := kafka.Group{ID: "indexer", Topics: []string{"usage", "more"}, MaxRecords: 7}
	var l ledger
	w := join(t, c, g, &worker{ledger: &l, handle: func(_ context.Context, rs []kafka.Record) error {
		ascending := slices.IsSortedFunc(rs, func(a, b kafka.Record) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
		})
		if len(rs) == 0 || len(rs) > 7 || !ascending {
			t.Errorf("a batch of %d records, ascending %v, want 1 to 7 that ascend", len(rs), ascending)
		}
		return nil
	}})
	committed(t, c, "indexer", "usage")
	committed(t, c, "indexer", "more")
	if err := w.leave(t); !errors.Is(err, context.Canceled) {
		t.Errorf("Consume = %v, want the end of its context", err)
	}
	fill(b, "usage", 3, 30, 3)
	join(t, c, g, &worker{ledger: &l})
	kafkatest.Eventually(t, func() bool { return l.count() >= 38 }, "38 records")
	committed(t, c, "indexer", "usage")
	for v, n := range l.values() {
		if n != 1 {
			t.Errorf("record %s was handled %d times, want once", v, n)
		}
	}
	if got := len(l.values()); got != 38 {
		t.Errorf("%d records were handled, want 38", got)
	}
}
