package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// open returns a client of b that is closed when the test ends.
func open(t *testing.T, b *kafkatest.Broker, change ...func(*kafka.Config)) *kafka.Client {
	t.Helper()
	return openLogging(t, b, slog.New(slog.DiscardHandler), change...)
}

func openLogging(t *testing.T, b *kafkatest.Broker, log *slog.Logger, change ...func(*kafka.Config)) *kafka.Client {
	t.Helper()
	cfg := kafka.Config{Brokers: b.Brokers, SchemaRegistry: b.RegistryURL}
	for _, c := range change {
		c(&cfg)
	}
	c, err := kafka.New(cfg, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// journal keeps what a log handler was told, in order: "key=value" of a record,
// "key=nil" of a tombstone, and "caught up" and "recreated".
type journal struct {
	mu     sync.Mutex
	lines  []string
	fail   error // returned by Records
	ended  chan error
	cancel context.CancelFunc
}

// read runs ReadLog in the background until the test ends.
func read(t *testing.T, c *kafka.Client, topic string) *journal {
	t.Helper()
	j := &journal{ended: make(chan error, 1)}
	j.run(t, c, topic, kafka.LogHandler{
		Records:   j.records,
		CaughtUp:  func() { j.add("caught up") },
		Recreated: func() { j.add("recreated") },
	})
	return j
}

func (j *journal) run(t *testing.T, c *kafka.Client, topic string, h kafka.LogHandler) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	j.cancel = cancel
	go func() { j.ended <- c.ReadLog(ctx, topic, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-j.ended; err == nil {
			t.Error("ReadLog returned nil: it goes on for ever or says why not")
		}
	})
}

func (j *journal) records(rs []kafka.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range rs {
		v := string(r.Value)
		if r.Value == nil {
			v = "nil"
		}
		j.lines = append(j.lines, fmt.Sprintf("%s=%s", r.Key, v))
	}
	return j.fail
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// wait waits until the journal holds these lines and no others, in this order.
func (j *journal) wait(t *testing.T, want ...string) {
	t.Helper()
	kafkatest.Eventually(t, func() bool { return len(j.all()) >= len(want) }, "%d lines in the journal: %v", len(want), want)
	if got := j.all(); !slices.Equal(got, want) {
		t.Fatalf("journal %v, want %v", got, want)
	}
}

// end returns what ReadLog returned.
func (j *journal) end(t *testing.T) error {
	t.Helper()
	var err error
	kafkatest.Eventually(t, func() bool {
		select {
		case err = <-j.ended:
			j.ended <- err // for the clean-up
			return true
		default:
			return false
		}
	}, "ReadLog to return")
	return err
}

// produce sends one record and waits for its verdict.
func produce(t *testing.T, c *kafka.Client, r kafka.Record) error {
	t.Helper()
	return wait(t, func(done func(error)) { c.Produce(t.Context(), r, done) })
}

// wait runs send and waits for the verdict it passes on.
func wait(t *testing.T, send func(func(error))) error {
	t.Helper()
	verdict := make(chan error, 1)
	send(func(err error) { verdict <- err })
	var err error
	kafkatest.Eventually(t, func() bool {
		select {
		case err = <-verdict:
			return true
		default:
			return false
		}
	}, "a verdict on a record")
	return err
}

// put stores records of partition 0.
func put(b *kafkatest.Broker, topic string, pairs ...string) {
	for p := range slices.Chunk(pairs, 2) {
		r := &kafkatest.Record{Topic: topic, Key: p[0], Value: []byte(p[1])}
		if p[1] == "nil" {
			r.Value = nil
		}
		b.Produce(r)
	}
}

// TestNewRefusesBadConfigs guarantees that a wrong address is found at once and
// that every fault is named.
func TestNewRefusesBadConfigs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  kafka.Config
	}{
		{"no broker", kafka.Config{}},
		{"an empty broker", kafka.Config{Brokers: []string{""}}},
		{"a broker without a sensible port", kafka.Config{Brokers: []string{"localhost:kafka"}}},
		{"a registry that is no URL", kafka.Config{Brokers: []string{"localhost:9092"}, SchemaRegistry: "localhost:8081"}},
		{"a negative linger", kafka.Config{Brokers: []string{"localhost:9092"}, Linger: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := kafka.New(tt.cfg, slog.New(slog.DiscardHandler), nil); err == nil {
				t.Error("New = nil error, want a refusal")
			}
		})
	}
}

// TestCloseEndsEverything guarantees that Close gives up what is buffered with
// ErrClosed, ends a ReadLog with the same, and may be repeated; afterwards the
// client refuses, and does not hang.
func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("things", 1)
	c := open(t, b)
	j := read(t, c, "things")
	j.wait(t, "caught up")
	b.PauseProduce("things", 0)
	verdict := make(chan error, 1)
	c.Produce(t.Context(), kafka.Record{Topic: "things", Key: []byte("a")}, func(err error) { verdict <- err })
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Errorf("Close = %v, want nil", err)
	}
	if err := <-verdict; !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("verdict on a buffered record = %v, want ErrClosed", err)
	}
	if err := j.end(t); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("ReadLog = %v, want ErrClosed", err)
	}
	if err := c.ReadLog(t.Context(), "things", kafka.LogHandler{}); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("ReadLog after Close = %v, want ErrClosed", err)
	}
	if err := produce(t, c, kafka.Record{Topic: "things"}); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("Produce after Close = %v, want ErrClosed", err)
	}
}

// TestCloseWithoutBroker guarantees that a process can stop although its broker
// is away, well within its grace.
func TestCloseWithoutBroker(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic("things", 1)
	c := open(t, b)
	read(t, c, "things").wait(t, "caught up")
	if err := produce(t, c, kafka.Record{Topic: "things"}); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	begin := time.Now()
	c.Produce(t.Context(), kafka.Record{Topic: "things"}, nil)
	if err := c.Close(); err != nil {
		t.Errorf("Close = %v, want nil", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// TestPing guarantees that readiness can tell a broker that is there from one
// that is not.
func TestPing(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	c := open(t, b)
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("Ping = %v, want nil", err)
	}
	b.Stop()
	if err := c.Ping(t.Context()); err == nil {
		t.Error("Ping of a stopped broker = nil, want an error")
	}
}
