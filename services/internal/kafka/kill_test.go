package kafka_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

// victimBroker names the environment variable that makes a test binary a member
// of mortal's group, at the broker it holds.
const victimBroker = "PENSTOCK_KAFKA_TEST_VICTIM"

// mortal is a group whose dead are noticed as soon as brokers allow.
var mortal = kafka.Group{ID: "mortal", Topics: []string{"kills"}, MaxRecords: 10, SessionTimeout: 6 * time.Second}

// victim handles three batches, and half of the fourth: it then waits to be
// killed. What is durable is a line of its output.
func victim(addr string) int {
	c, err := kafka.New(kafka.Config{Brokers: []string{addr}}, slog.New(slog.NewTextHandler(os.Stderr, nil)), nil)
	if err == nil {
		batches := 0
		err = c.Consume(context.Background(), mortal, &worker{own: make(map[string]bool), ledger: &ledger{}, handle: func(ctx context.Context, rs []kafka.Record) error {
			batches++
			if batches == 4 {
				rs = rs[:len(rs)/2]
			}
			for _, r := range rs {
				fmt.Println(string(r.Value))
			}
			if batches == 4 {
				fmt.Println("stuck")
				<-ctx.Done()
			}
			return ctx.Err()
		}})
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestConsumeSurvivesAKill guarantees that a member which is killed in the
// middle of a batch loses nothing: another one has its partitions once the
// session expired, and handles again what had not been committed, and only that.
func TestConsumeSurvivesAKill(t *testing.T) {
	t.Parallel()
	kills(t, kafkatest.Start(t))
}

func kills(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	const total, partitions = 200, 4
	b.CreateTopic("kills", partitions)
	fill(b, "kills", partitions, 0, total)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimBroker+"="+b.Brokers[0])
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	durable := make(map[string]int)
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "stuck" {
		durable[lines.Text()]++
	}
	var l ledger
	w := join(t, open(t, b), mortal, &worker{ledger: &l}) // waits for the one that is stuck
	kafkatest.Eventually(t, func() bool { return b.GroupState(mortal.ID) == "PreparingRebalance" }, "the second member to join")
	at := b.Committed(mortal.ID, "kills")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if len(durable) < 30 || len(durable) >= total {
		t.Fatalf("the victim handled %d records, want some of %d:\n%s", len(durable), total, said.String())
	}
	w.owns(t, partitions)
	committed(t, open(t, b), mortal.ID, "kills")

	again := 0
	for v := range l.values() {
		again += durable[v]
	}
	uncommitted := total
	for _, next := range at {
		uncommitted -= int(next)
	}
	if got := l.count(); got != uncommitted {
		t.Errorf("%d records are handled after the kill, want the %d that were not committed", got, uncommitted)
	}
	if got := len(l.values()) + len(durable) - again; got != total {
		t.Errorf("%d records were handled in all, want %d", got, total)
	}
	if want := len(durable) - (total - uncommitted); again != want {
		t.Errorf("%d records were handled twice, want the %d of the batch that was cut", again, want)
	}
}
