package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// TestReadLogReplaysThenFollows guarantees the whole of what a replay delivers:
// every record once, ascending by offset within its partition, tombstones and
// empty values told apart, headers kept; then CaughtUp, once; then what is
// written later.
func TestReadLogReplaysThenFollows(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("rules", 3)
	b.Produce(
		&kafkatest.Record{Topic: "rules", Partition: 2, Key: "c", Value: []byte("3"), Headers: map[string]string{"version": "7"}},
		&kafkatest.Record{Topic: "rules", Partition: 0, Key: "a", Value: []byte("1")},
		&kafkatest.Record{Topic: "rules", Partition: 0, Key: "a"},
		&kafkatest.Record{Topic: "rules", Partition: 0, Key: "b", Value: []byte{}},
	)
	var mu sync.Mutex
	var got []kafka.Record
	caughtUp := -1 // records seen before CaughtUp
	calls := 0
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- open(t, b).ReadLog(ctx, "rules", kafka.LogHandler{
			Records: func(rs []kafka.Record) error {
				mu.Lock()
				defer mu.Unlock()
				if len(rs) == 0 || !slices.IsSortedFunc(rs, func(a, b kafka.Record) int { return int(a.Partition - b.Partition) }) {
					t.Errorf("batch %+v: want one that is not empty, ascending by partition", rs)
				}
				got = append(got, rs...)
				return nil
			},
			CaughtUp: func() {
				mu.Lock()
				defer mu.Unlock()
				caughtUp, calls = len(got), calls+1
			},
		})
	}()
	kafkatest.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return caughtUp >= 0 }, "CaughtUp")
	b.Produce(&kafkatest.Record{Topic: "rules", Partition: 1, Key: "d", Value: []byte("4")})
	kafkatest.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 5 }, "the record written later")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ReadLog = %v, want context.Canceled", err)
	}
	if caughtUp != 4 || calls != 1 {
		t.Errorf("CaughtUp after %d records, %d times; want after 4, once", caughtUp, calls)
	}
	if last := got[4]; string(last.Key) != "d" || last.Partition != 1 || last.Offset != 0 || last.Timestamp.IsZero() || last.Topic != "rules" {
		t.Errorf("record written later = %+v", last)
	}
	slices.SortStableFunc(got, func(a, b kafka.Record) int { return int(a.Partition - b.Partition) })
	for i, want := range []struct {
		key, value string
		tombstone  bool
	}{{"a", "1", false}, {"a", "", true}, {"b", "", false}} {
		if r := got[i]; string(r.Key) != want.key || string(r.Value) != want.value || (r.Value == nil) != want.tombstone || r.Offset != int64(i) {
			t.Errorf("record %d of partition 0 = %+v, want %+v", i, r, want)
		}
	}
	if h := got[4].Headers; len(h) != 1 || h[0].Key != "version" || string(h[0].Value) != "7" {
		t.Errorf("headers = %+v, want version 7", h)
	}
}

// A tail is how a partition may end such that the broker's end offset is not
// one after the last record. A loop that counts records waits there in vain.
type tail struct {
	name       string
	partitions int32
	fill       func(b *kafkatest.Broker, topic string)
	want       []string
}

var tails = []tail{
	{"an empty topic", 1, func(*kafkatest.Broker, string) {}, nil},
	{"an empty topic of many partitions", 6, func(*kafkatest.Broker, string) {}, nil},
	{"some partitions are empty", 4, func(b *kafkatest.Broker, log string) { put(b, log, "a", "1") }, []string{"a=1"}},
	{"the tail is the marker of a rolled back transaction", 1, func(b *kafkatest.Broker, log string) {
		put(b, log, "a", "1")
		b.Abort(kafkatest.Record{Topic: log, Key: "a", Value: []byte("never")})
	}, []string{"a=1"}},
	{"everything was rolled back", 1, func(b *kafkatest.Broker, log string) {
		b.Abort(kafkatest.Record{Topic: log, Key: "a", Value: []byte("never")})
	}, nil},
	{"every record was deleted", 1, func(b *kafkatest.Broker, log string) {
		put(b, log, "a", "1", "b", "2")
		b.DeleteRecords(log, 0, 2)
	}, nil},
	{"the oldest records were deleted", 1, func(b *kafkatest.Broker, log string) {
		put(b, log, "a", "1", "b", "2")
		b.DeleteRecords(log, 0, 1)
	}, []string{"b=2"}},
}

// catchesUp reads a topic with such a tail to its end and beyond.
func (tt tail) catchesUp(t *testing.T, b *kafkatest.Broker, topic string, config ...string) {
	t.Helper()
	b.CreateTopic(topic, tt.partitions, config...)
	tt.fill(b, topic)
	j := read(t, open(t, b), topic)
	j.wait(t, append(tt.want, "caught up")...)
	put(b, topic, "z", "9") // and it goes on from there
	j.wait(t, append(tt.want, "caught up", "z=9")...)
}

// TestReadLogCatchesUpOnOddTails guarantees that the end is found on each.
func TestReadLogCatchesUpOnOddTails(t *testing.T) {
	t.Parallel()
	for _, tt := range append(tails, tail{"compaction left gaps", 1, func(b *kafkatest.Broker, log string) {
		put(b, log, "a", "1", "a", "2", "b", "nil", "c", "3", "c", "nil", "a", "4", "d", "5")
		b.Compact()
	}, []string{"a=4", "d=5"}}) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.catchesUp(t, kafkatest.Start(t), "log", "cleanup.policy", "compact", "delete.retention.ms", "0")
		})
	}
}

// TestReadLogCatchesUpWhenTheTailIsGone guarantees that the end is found where
// the newest records were removed and the offsets stayed, as after a tombstone
// expired: in brokers that answer with an empty batch, with nothing, and in one
// that lost its newest records in a crash.
func TestReadLogCatchesUpWhenTheTailIsGone(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		tail func(b *kafkatest.Broker)
	}{
		{"an empty batch holds the offsets", func(b *kafkatest.Broker) { b.HideTail("log", 0, 2, true) }},
		{"nothing holds the offsets", func(b *kafkatest.Broker) { b.HideTail("log", 0, 2, false) }},
		{"the end moved back after it was asked for", func(b *kafkatest.Broker) { b.OverstateEnd("log", 0, 5) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t)
			b.CreateTopic("log", 1)
			put(b, "log", "a", "1", "b", "2")
			tt.tail(b)
			read(t, open(t, b), "log").wait(t, "a=1", "b=2", "caught up")
		})
	}
}

// TestReadLogWaitsForSlowRecords guarantees that a broker which is merely slow
// is not mistaken for one that has nothing: CaughtUp waits for its records.
func TestReadLogWaitsForSlowRecords(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 1)
	put(b, "log", "a", "1", "b", "2")
	f := b.FailFetch("log")
	j := read(t, open(t, b), "log")
	f.Wait(5)
	if got := j.all(); len(got) != 0 {
		t.Fatalf("journal %v while nothing can be read, want nothing", got)
	}
	f.Mend()
	j.wait(t, "a=1", "b=2", "caught up")
}

// TestReadLogWaitsForTheTopic guarantees that a topic made after the service
// started is found, and that the wait is said in the log.
func TestReadLogWaitsForTheTopic(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	var log safeBuffer
	j := read(t, openLogging(t, b, slog.New(slog.NewTextHandler(&log, nil))), "late")
	kafkatest.Eventually(t, func() bool { return strings.Contains(log.String(), "topic does not exist") }, "the wait in the log")
	if got := j.all(); len(got) != 0 {
		t.Fatalf("journal %v before the topic exists, want nothing", got)
	}
	b.CreateTopic("late", 2)
	put(b, "late", "a", "1")
	kafkatest.Eventually(t, func() bool { return slices.Contains(j.all(), "a=1") && slices.Contains(j.all(), "caught up") }, "the record and the end")
}

// TestReadLogWaitsForTheBroker guarantees that a service may start before its
// broker does.
func TestReadLogWaitsForTheBroker(t *testing.T) {
	t.Parallel()
	b := kafkatest.Reserve(t)
	var log safeBuffer
	j := read(t, openLogging(t, b, slog.New(slog.NewTextHandler(&log, nil))), "log")
	kafkatest.Eventually(t, func() bool { return strings.Contains(log.String(), "waiting for a broker") }, "the wait in the log")
	b.Start()
	b.CreateTopic("log", 1)
	kafkatest.Eventually(t, func() bool { return slices.Contains(j.all(), "caught up") }, "the end of the topic")
}

// TestReadLogSurvivesABrokerRestart guarantees that reading goes on where it
// was: nothing is delivered again, CaughtUp is not called again, and what is
// written afterwards arrives.
func TestReadLogSurvivesABrokerRestart(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 2)
	put(b, "log", "a", "1")
	j := read(t, open(t, b), "log")
	j.wait(t, "a=1", "caught up")
	for _, v := range []string{"2", "3"} {
		b.Stop()
		b.Start()
		put(b, "log", "a", v)
	}
	j.wait(t, "a=1", "caught up", "a=2", "a=3")
}

// TestReadLogRestartDuringReplay guarantees that a broker that goes away before
// the end was reached does not lose the end.
func TestReadLogRestartDuringReplay(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 1)
	put(b, "log", "a", "1", "b", "2")
	f := b.FailFetch("log")
	j := read(t, open(t, b), "log")
	f.Wait(1)
	b.Stop() // the fault ends with this broker
	b.Start()
	j.wait(t, "a=1", "b=2", "caught up")
}

// TestReadLogNoticesANewTopic guarantees that a topic deleted and made anew is
// read from its start: with Recreated the handler can forget the old one and
// hears of the new one's end; without it the records simply follow.
func TestReadLogNoticesANewTopic(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 1)
	put(b, "log", "a", "1", "b", "2")
	c := open(t, b)
	told := read(t, c, "log")
	plain := &journal{ended: make(chan error, 1)}
	plain.run(t, c, "log", kafka.LogHandler{Records: plain.records, CaughtUp: func() { plain.add("caught up") }})
	told.wait(t, "a=1", "b=2", "caught up")
	plain.wait(t, "a=1", "b=2", "caught up")
	b.DeleteTopic("log")
	b.CreateTopic("log", 1)
	put(b, "log", "c", "3")
	begin := time.Now()
	told.wait(t, "a=1", "b=2", "caught up", "recreated", "c=3", "caught up")
	plain.wait(t, "a=1", "b=2", "caught up", "c=3")
	if took := time.Since(begin); took > 6*time.Second {
		t.Errorf("noticed after %v, want within a few seconds", took)
	}
}

// TestReadLogWaitsForADeletedTopic guarantees that between the deletion and the
// new topic the reader waits instead of failing.
func TestReadLogWaitsForADeletedTopic(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 1)
	var log safeBuffer
	j := read(t, openLogging(t, b, slog.New(slog.NewTextHandler(&log, nil))), "log")
	j.wait(t, "caught up")
	b.DeleteTopic("log")
	kafkatest.Eventually(t, func() bool { return strings.Contains(log.String(), "topic does not exist") }, "the wait in the log")
	b.CreateTopic("log", 1)
	j.wait(t, "caught up", "recreated", "caught up")
}

// TestReadLogReturnsTheHandlersError guarantees that a handler can stop it and
// gets its own error back.
func TestReadLogReturnsTheHandlersError(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("log", 1)
	put(b, "log", "a", "1")
	boom := errors.New("boom")
	err := open(t, b).ReadLog(t.Context(), "log", kafka.LogHandler{Records: func([]kafka.Record) error { return boom }})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "log") {
		t.Errorf("ReadLog = %v, want boom, naming the topic", err)
	}
}

// TestReadLogDoesNotSpin guarantees that neither waiting for records nor a
// broker that keeps refusing makes a busy loop.
func TestReadLogDoesNotSpin(t *testing.T) {
	t.Parallel()
	const span = 1500 * time.Millisecond
	tests := []struct {
		name string
		prep func(*kafkatest.Broker)
		key  kmsg.Key
		most int
	}{
		{"nothing new arrives", func(*kafkatest.Broker) {}, kmsg.Fetch, 6},
		{"every fetch is refused", func(b *kafkatest.Broker) { put(b, "log", "a", "1"); b.FailFetch("log") }, kmsg.Metadata, 60},
		{"the topic does not exist", func(b *kafkatest.Broker) { b.DeleteTopic("log") }, kmsg.Metadata, 30},
		{"the tail is gone", func(b *kafkatest.Broker) { b.OverstateEnd("log", 0, 1000) }, kmsg.Fetch, 12},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t)
			b.CreateTopic("log", 1)
			tt.prep(b)
			watch := b.Watch(tt.key)
			read(t, open(t, b), "log")
			begin := time.Now()
			kafkatest.Eventually(t, func() bool { return time.Since(begin) > span }, "time to pass")
			if got := watch.Hits(); got > tt.most {
				t.Errorf("%d requests in %v, want at most %d", got, span, tt.most)
			}
		})
	}
}

// safeBuffer is a bytes.Buffer for several goroutines.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
