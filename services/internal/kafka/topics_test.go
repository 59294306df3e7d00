package kafka_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// TestEnsureTopics guarantees that missing topics are made as asked, that
// asking again changes nothing, and that a topic which differs is left alone
// and named in the log.
func TestEnsureTopics(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	var log safeBuffer
	c := openLogging(t, b, slog.New(slog.NewTextHandler(&log, nil)))
	rules := kafka.Topic{Name: "rules.v1", Partitions: 1, Replication: 1, Config: map[string]string{"cleanup.policy": "compact"}}
	usage := kafka.Topic{Name: "usage.v1", Partitions: 6}
	for range 2 {
		if err := c.EnsureTopics(t.Context(), []kafka.Topic{rules, usage}); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(log.String(), "differs") {
		t.Errorf("log of a repeated call:\n%s", log.String())
	}
	for name, want := range map[string]int32{"rules.v1": 1, "usage.v1": 6} {
		if n, err := c.Partitions(t.Context(), name); n != want || err != nil {
			t.Errorf("Partitions(%s) = %d, %v, want %d", name, n, err, want)
		}
	}
	put(b, "rules.v1", "a", "1", "a", "2", "b", "3")
	b.Compact()
	if got := b.Consume("rules.v1"); len(got) != 2 {
		t.Errorf("%d records after compaction, want 2: the topic was not made compacted", len(got))
	}

	rules.Partitions, rules.Config["cleanup.policy"] = 3, "delete"
	if err := c.EnsureTopics(t.Context(), []kafka.Topic{rules}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"partitions is 1, want 3", `cleanup.policy is \"compact\", want \"delete\"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log misses %q:\n%s", want, log.String())
		}
	}
	if n, err := c.Partitions(t.Context(), "rules.v1"); n != 1 || err != nil {
		t.Errorf("Partitions = %d, %v, want it unchanged", n, err)
	}
	if _, err := c.Partitions(t.Context(), "nowhere"); !errors.Is(err, kafka.ErrNoTopic) {
		t.Errorf("Partitions of a missing topic = %v, want ErrNoTopic", err)
	}
}

// TestEnsureTopicsRefusals guarantees that what waiting cannot mend is returned
// at once, and that the wait for a broker ends with the context.
func TestEnsureTopicsRefusals(t *testing.T) {
	t.Parallel()
	t.Run("more replicas than brokers", func(t *testing.T) {
		t.Parallel()
		c := open(t, kafkatest.Start(t))
		err := c.EnsureTopics(t.Context(), []kafka.Topic{{Name: "rules.v1", Partitions: 1, Replication: 3}})
		if err == nil || !strings.Contains(err.Error(), "rules.v1") || !strings.Contains(err.Error(), "INVALID_REPLICATION_FACTOR") {
			t.Errorf("EnsureTopics = %v, want INVALID_REPLICATION_FACTOR, naming the topic", err)
		}
	})
	t.Run("no broker until the context ends", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := open(t, kafkatest.Reserve(t)).EnsureTopics(ctx, []kafka.Topic{{Name: "rules.v1"}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("EnsureTopics = %v, want DeadlineExceeded", err)
		}
	})
}
