package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// A doubler is a TransactHandler that writes every even number that it reads.
type doubler struct {
	worker
	out     string
	mu      sync.Mutex
	settled map[bool]int
	refuse  func(records []kafka.Record) error // may be nil
}

func (d *doubler) Handle(_ context.Context, records []kafka.Record) ([]kafka.Record, error) {
	if d.refuse != nil {
		if err := d.refuse(records); err != nil {
			return nil, err
		}
	}
	var out []kafka.Record
	for _, r := range records {
		if n, err := strconv.Atoi(string(r.Value)); err == nil && n%2 == 0 {
			out = append(out, kafka.Record{Topic: d.out, Key: r.Key, Value: r.Value, Partition: r.Partition})
		}
	}
	return out, nil
}

func (d *doubler) Settled(committed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled == nil {
		d.settled = make(map[bool]int)
	}
	d.settled[committed]++
}

// transact runs Transact in the background until the test ends.
func transact(t *testing.T, c *kafka.Client, g kafka.Group, id string, d *doubler) *doubler {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d.cancel, d.ended, d.own = cancel, make(chan error, 1), make(map[string]bool)
	go func() { d.ended <- c.Transact(ctx, g, kafka.Transaction{ID: id}, d) }()
	t.Cleanup(func() { _ = d.leave(t) })
	return d
}

// evens fails t unless the topic holds, for readers of what is committed, every even
// number below n once, and by partition in order.
func evens(t *testing.T, b *kafkatest.Broker, topic string, n int) {
	t.Helper()
	kafkatest.Eventually(t, func() bool { return len(b.Consume(topic)) >= (n+1)/2 }, "%d results", (n+1)/2)
	seen := make(map[int]bool)
	last := make(map[int32]int)
	for _, r := range b.Consume(topic) {
		v, err := strconv.Atoi(string(r.Value))
		if err != nil || seen[v] || v%2 != 0 || last[r.Partition] > v {
			t.Errorf("%s-%d has %q: twice %v, after %d", topic, r.Partition, r.Value, seen[v], last[r.Partition])
		}
		seen[v], last[r.Partition] = true, v
	}
	if len(seen) != (n+1)/2 {
		t.Errorf("%d results, want %d", len(seen), (n+1)/2)
	}
}

// TestTransact guarantees the plain life of a group that writes: every result is
// there once and in order while members come and go, and what gave no result is
// committed too.
func TestTransact(t *testing.T) {
	t.Parallel()
	transacts(t, kafkatest.Start(t))
}

func transacts(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	b.CreateTopic("numbers", 4)
	b.CreateTopic("evens", 4)
	fill(b, "numbers", 4, 0, 100)
	g := kafka.Group{ID: "doubling", Topics: []string{"numbers"}, MaxRecords: 7}
	first := transact(t, open(t, b), g, "first", &doubler{out: "evens"})
	first.owns(t, 4)
	second := transact(t, open(t, b), g, "second", &doubler{out: "evens"})
	fill(b, "numbers", 4, 100, 100)
	second.owns(t, 2)
	first.owns(t, 2)
	fill(b, "numbers", 4, 200, 100)
	committed(t, open(t, b), g.ID, "numbers")
	if err := second.leave(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	first.owns(t, 4)
	fill(b, "numbers", 4, 300, 101)
	evens(t, b, "evens", 401)
	b.Produce(&kafkatest.Record{Topic: "numbers", Value: []byte("1")})
	committed(t, open(t, b), g.ID, "numbers") // although it gave no result
	first.mu.Lock()
	defer first.mu.Unlock()
	if first.settled[true] == 0 {
		t.Error("nobody was told that a transaction was committed")
	}
}

// TestTransactHandleFails guarantees that a Handle that fails ends Transact with its
// error, and that neither results nor offsets of its batch are stored.
func TestTransactHandleFails(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("numbers", 1)
	b.CreateTopic("evens", 1)
	fill(b, "numbers", 1, 0, 10)
	refusal := errors.New("no")
	g := kafka.Group{ID: "doubling", Topics: []string{"numbers"}}
	d := transact(t, open(t, b), g, "one", &doubler{out: "evens", refuse: func([]kafka.Record) error { return refusal }})
	if err := d.end(t); !errors.Is(err, refusal) {
		t.Errorf("Transact = %v, want the handler's error", err)
	}
	transact(t, open(t, b), g, "one", &doubler{out: "evens"})
	evens(t, b, "evens", 10)
	for _, bad := range []kafka.Transaction{{}, {ID: "x", Timeout: -1}} {
		if err := open(t, b).Transact(t.Context(), g, bad, &doubler{}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// TestTransactRefused guarantees that a transaction whose records are refused is
// taken back as a whole, and made again until it succeeds.
func TestTransactRefused(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("numbers", 2)
	b.CreateTopic("evens", 2)
	fault := b.RefuseProduce("evens")
	fill(b, "numbers", 2, 0, 20)
	d := transact(t, open(t, b), kafka.Group{ID: "doubling", Topics: []string{"numbers"}}, "one", &doubler{out: "evens"})
	fault.Wait(3)
	if got := b.Consume("evens"); len(got) != 0 {
		t.Errorf("%d results are there, and the topic takes none", len(got))
	}
	fault.Mend()
	evens(t, b, "evens", 20)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled[false] == 0 {
		t.Error("nobody was told that a transaction was taken back")
	}
}

// writing is a group whose members die in the middle of a transaction.
var writing = kafka.Group{ID: "writing", Topics: []string{"numbers"}, MaxRecords: 10, SessionTimeout: 6 * time.Second}

// victimWriter names the environment variable that makes a test binary a member of
// writing, at the broker it holds.
const victimWriter = "PENSTOCK_KAFKA_TEST_WRITER"

func dyingWriter(addr string) int {
	c, err := kafka.New(kafka.Config{Brokers: []string{addr}}, slog.New(slog.NewTextHandler(os.Stderr, nil)), nil)
	if err == nil {
		err = c.Transact(context.Background(), writing, kafka.Transaction{ID: fmt.Sprint("writer-", os.Getpid()), Timeout: 6 * time.Second},
			&doubler{worker: worker{own: make(map[string]bool)}, out: "evens"})
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestTransactSurvivesAKill guarantees that a member which is killed in the middle of
// a transaction, whatever the brokers had of it, leaves nothing that readers of
// committed records see twice, and nothing that they miss.
func TestTransactSurvivesAKill(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]kmsg.Key{
		"before its results are stored": kmsg.Produce, "before its offsets are": kmsg.TxnOffsetCommit, "while it commits": kmsg.EndTxn,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t)
			b.CreateTopic("numbers", 2)
			b.CreateTopic("evens", 2)
			fill(b, "numbers", 2, 0, 50)
			held, release := b.Stall(at)
			killed := startWriter(t, b)
			<-held
			killed()
			release()
			transact(t, open(t, b), writing, "heir", &doubler{out: "evens"})
			fill(b, "numbers", 2, 50, 20)
			evens(t, b, "evens", 70)
		})
	}
}

// startWriter starts a member that is a process of its own, and returns how to kill
// it.
func startWriter(t *testing.T, b *kafkatest.Broker) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimWriter+"="+b.Brokers[0])
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}
}

// TestReadPartition guarantees that one partition is read to its end and no further,
// that what was rolled back is not seen, and that a transaction which is open is
// waited for, and seen when it is committed.
func TestReadPartition(t *testing.T) {
	t.Parallel()
	readsPartitions(t, kafkatest.Start(t))
}

func readsPartitions(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	b.CreateTopic("state", 2)
	c := open(t, b)
	reads := func(partition int32) ([]string, error) {
		var got []string
		err := c.ReadPartition(t.Context(), "state", partition, func(rs []kafka.Record) error {
			for _, r := range rs {
				got = append(got, string(r.Value))
			}
			return nil
		})
		return got, err
	}
	if got, err := reads(0); err != nil || len(got) != 0 {
		t.Errorf("an empty partition: %v, %v", got, err)
	}
	b.Produce(&kafkatest.Record{Topic: "state", Value: []byte("a")}, &kafkatest.Record{Topic: "state", Partition: 1, Value: []byte("other")})
	b.Abort(kafkatest.Record{Topic: "state", Value: []byte("never")})
	if got, err := reads(0); err != nil || !slices.Equal(got, []string{"a"}) {
		t.Errorf("read %v, %v, want a", got, err)
	}
	commit := b.Open(kafkatest.Record{Topic: "state", Value: []byte("b")})
	b.Produce(&kafkatest.Record{Topic: "state", Value: []byte("c")})
	type answer struct {
		got []string
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		got, err := reads(0)
		answers <- answer{got, err}
	}()
	var early bool
	kafkatest.Eventually(t, func() bool { // it has looked, and looks again
		select {
		case a := <-answers:
			early = true
			answers <- a
			return true
		default:
			return len(b.Consume("state")) == 2
		}
	}, "the reader to wait")
	if early {
		t.Error("it did not wait for the open transaction")
	}
	commit()
	if a := <-answers; a.err != nil || !slices.Equal(a.got, []string{"a", "b", "c"}) {
		t.Errorf("read %v, %v, want a b c", a.got, a.err)
	}
	if _, err := reads(2); !errors.Is(err, kafka.ErrNoTopic) {
		t.Errorf("a partition that is not there: %v, want ErrNoTopic", err)
	}
	failure := errors.New("no")
	if err := c.ReadPartition(t.Context(), "state", 1, func([]kafka.Record) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("ReadPartition = %v, want the handler's error", err)
	}
}
