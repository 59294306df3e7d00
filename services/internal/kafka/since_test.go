package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// noon is the timestamp of value 0 in stamped topics; value n is n seconds later.
var noon = time.UnixMilli(1_767_009_600_000)

// stamped stores the values from, from+1, … over the first three partitions.
func stamped(b *kafkatest.Broker, topic string, from, n int) {
	for v := from; v < from+n; v++ {
		b.Produce(&kafkatest.Record{
			Topic: topic, Partition: int32(v % 3), Value: []byte(strconv.Itoa(v)),
			Timestamp: noon.Add(time.Duration(v) * time.Second),
		})
	}
}

// numbers are the values of records, ascending.
func numbers(records []kafka.Record) []int {
	var vs []int
	for _, r := range records {
		v, err := strconv.Atoi(string(r.Value))
		if err != nil {
			v = -1
		}
		vs = append(vs, v)
	}
	slices.Sort(vs)
	return vs
}

// TestReadSince guarantees that a replay sees every record from a point in time
// to the end it found, each once, and none that was written meanwhile; and that
// it returns although nothing follows, an empty partition and a tail without
// records included.
func TestReadSince(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	c := open(t, b)
	for i, tt := range []struct {
		name  string
		since time.Time
		from  int // the first value expected of 0 to 29
	}{
		{"everything", time.UnixMilli(0), 0},
		{"the second half", noon.Add(15 * time.Second), 15},
		{"between two records", noon.Add(15*time.Second - time.Millisecond), 15},
		{"the last one", noon.Add(29 * time.Second), 29},
		{"nothing is that new", noon.Add(time.Hour), 30},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			topic := "usage-" + strconv.Itoa(i)
			b.CreateTopic(topic, 4)
			stamped(b, topic, 0, 30)
			b.Abort(kafkatest.Record{Topic: topic, Partition: 0, Key: "a", Value: []byte("31")})
			replays(t, b, c, topic, tt.since, tt.from)
		})
	}
}

// replays reads topic, which holds 0 to 29, and expects from to 29.
func replays(t *testing.T, b *kafkatest.Broker, c *kafka.Client, topic string, since time.Time, from int) {
	t.Helper()
	var got []kafka.Record
	err := c.ReadSince(t.Context(), topic, since, func(rs []kafka.Record) error {
		if len(got) == 0 {
			stamped(b, topic, 40, 3)
		}
		got = append(got, rs...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var want []int
	for v := from; v < 30; v++ {
		want = append(want, v)
	}
	if vs := numbers(got); !slices.Equal(vs, want) {
		t.Errorf("read %v, want %d to 29, each once", vs, from)
	}
}

// TestReadSinceEnds guarantees that a replay says why it could not be done, and
// can be given up.
func TestReadSinceEnds(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("usage", 4)
	stamped(b, "usage", 0, 3)
	c := open(t, b)
	refusal := errors.New("full")
	refuse := func([]kafka.Record) error { return refusal }
	if err := c.ReadSince(t.Context(), "missing", noon, refuse); !errors.Is(err, kafka.ErrNoTopic) {
		t.Errorf("of a missing topic = %v, want ErrNoTopic", err)
	}
	if err := c.ReadSince(t.Context(), "usage", noon, refuse); !errors.Is(err, refusal) {
		t.Errorf("with a handler that fails = %v, want its error", err)
	}
	b.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.ReadSince(ctx, "usage", noon, refuse); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a broker = %v, want the error of its context", err)
	}
	_ = c.Close()
	if err := c.ReadSince(t.Context(), "usage", noon, refuse); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("after Close = %v, want ErrClosed", err)
	}
}
