//go:build integration

package main_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock.dev/schemas/rulesv1"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/internal/pgtest"
)

// keyOn returns a key of partition p of two.
func keyOn(p int32, not ...string) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("rule/%d", i)
		if kafka.PartitionOf([]byte(key), 2) == p && !slices.Contains(not, key) {
			return key
		}
	}
}

// during polls check every few milliseconds for d.
func during(d time.Duration, check func()) {
	end := time.After(d)
	for {
		check()
		select {
		case <-end:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// within polls ok until it returns true, and fails the test after d.
func within(t *testing.T, d time.Duration, ok func() bool, want string) {
	t.Helper()
	end := time.After(d)
	for !ok() {
		select {
		case <-end:
			t.Fatalf("not within %v: %s", d, want)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestIntegrationFC18PositionWaitsForTheSlowPartition guarantees case FC-18
// with the built binary and a topic of two partitions: while partition 0 has no
// leader, what partition 1 acknowledges does not move the confirmed position
// past the event for partition 0, and a relay that is killed then loses none.
func TestIntegrationFC18PositionWaitsForTheSlowPartition(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t)
	broker.CreateTopic(rulesv1.Topic, 2, "cleanup.policy", "compact")
	c := newCatalogue(t)
	slot := c.slotName("relay")
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	r := run(c, broker.Brokers, slot)
	kafkatest.Eventually(t, func() bool { return r.ready() && c.hasSlot(slot) }, "a relay that reads")

	slow, fast := keyOn(0), keyOn(1)
	c.mustChange(fast)
	before := c.position()
	kafkatest.Eventually(t, func() bool { return c.confirmedPast(slot, "0/0") && topic.holds(1) }, "e0")

	paused := broker.PauseProduce(rulesv1.Topic, 0)
	c.mustChange(slow)
	e1 := c.position()
	c.mustChange(fast)
	c.mustChange(fast)
	topic.until(10*time.Second, "e0, e2 and e3", func(have []kafka.Record) bool { return distinct(have) == 3 })
	during(2*time.Second, func() {
		if c.confirmedPast(slot, e1) {
			t.Fatalf("the slot confirmed more than %s, where e1 ends, which is not stored", e1)
		}
	})
	r.kill()
	if paused.Hits() == 0 {
		t.Error("e1 was never sent")
	}
	during(time.Second, func() {
		if c.confirmedPast(slot, e1) {
			t.Fatal("the slot moved on without a relay")
		}
	})
	paused.Mend()
	r.restart()
	have := topic.until(20*time.Second, "e1", func(have []kafka.Record) bool { return distinct(have) == 4 })
	kafkatest.Eventually(t, func() bool { return c.confirmedPast(slot, e1) }, "the position to follow")
	checkEnd(t, topic.all(), 4)
	if n := runs(versions(t, topic.all(), 1)); n > 2 {
		t.Errorf("partition 1 holds versions %v: a relay wrote out of order", versions(t, have, 1))
	}
	if !c.confirmedPast(slot, before) {
		t.Error("the position fell back")
	}
}

// TestIntegrationFC18SecondReplicaKeepsOrder guarantees the rest of case FC-18:
// a second relay publishes nothing while the first one reads; when that one is
// killed with an event outstanding, the second publishes it and what follows,
// in the order of versions.
func TestIntegrationFC18SecondReplicaKeepsOrder(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t)
	broker.CreateTopic(rulesv1.Topic, 2, "cleanup.policy", "compact")
	c := newCatalogue(t)
	slot := c.slotName("relay")
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	first := run(c, broker.Brokers, slot)
	kafkatest.Eventually(t, first.active, "the first relay to read")
	second := run(c, broker.Brokers, slot)
	kafkatest.Eventually(t, second.ready, "the second relay to stand by")

	slow, fast := keyOn(0), keyOn(1)
	var last int64
	for range 100 {
		last = c.mustChange(slow, fast, keyOn(0, slow))
	}
	have := topic.until(20*time.Second, "what was changed", func(have []kafka.Record) bool { return distinct(have) == int(last) })
	if len(have) != int(last) || runs(versions(t, have, 0)) != 1 || runs(versions(t, have, 1)) != 1 {
		t.Errorf("two relays wrote %d records of %d events, or out of order", len(have), last)
	}
	if second.active() {
		t.Fatal("both relays say that they read")
	}

	paused := broker.PauseProduce(rulesv1.Topic, 0)
	last = c.mustChange(slow)
	for range 10 {
		last = c.mustChange(fast)
	}
	topic.until(10*time.Second, "what partition 1 takes", func(have []kafka.Record) bool { return distinct(have) == int(last)-1 })
	first.kill()
	kafkatest.Eventually(t, second.active, "the second relay to read")
	last = c.mustChange(slow, fast)
	paused.Mend()
	first.restart() // and now stands by itself
	last = c.mustChange(slow, fast)
	have = topic.until(20*time.Second, "all of it", func(have []kafka.Record) bool { return distinct(have) == int(last) })
	checkEnd(t, have, last)
	for p := range int32(2) {
		if n := runs(versions(t, have, p)); n > 2 {
			t.Errorf("partition %d rises in %d pieces, want one per relay", p, n)
		}
	}
	if !second.active() || first.active() {
		t.Error("the relay that came back took the slot from the one that had it")
	}
}

// TestIntegrationFC18LostSlotPublishesNothingLate guarantees that a relay from
// which PostgreSQL took the slot, because it had not been heard for
// wal_sender_timeout, publishes nothing behind what its successor publishes:
// neither what it had sent and not delivered, nor what it had received and not
// read. Compaction would keep that instead of the newer version.
func TestIntegrationFC18LostSlotPublishesNothingLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		freeze bool   // the first relay, until the second one has published; else only its connection to the database
		gaveUp string // what the first relay says about it
	}{
		{"frozen, with one event refused and one not read", true, "this process did not run"},
		{"cut off, with one event refused", false, "not delivered in time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			broker := kafkatest.Start(t)
			broker.CreateTopic(rulesv1.Topic, 1, "cleanup.policy", "compact")
			c := catalogueIn(t, pgtest.Start(t).Database())
			// The default is 60 s; the relay's own bounds are 15 and 20 s.
			for _, sql := range []string{`ALTER SYSTEM SET wal_sender_timeout = '25s'`, `SELECT pg_reload_conf()`} {
				if _, err := c.db.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			slot := c.slotName("relay")
			topic := follow(t, broker.Brokers, rulesv1.Topic)
			between := cableTo(t, c.url)
			first := run(between.to(c), broker.Brokers, slot)
			kafkatest.Eventually(t, first.active, "the first relay to read")
			second := run(c, broker.Brokers, slot)
			kafkatest.Eventually(t, second.ready, "the second relay to stand by")
			c.mustChange("rule/k")
			topic.until(20*time.Second, "version 1", func(have []kafka.Record) bool { return len(have) == 1 })

			refused := broker.PauseProduce(rulesv1.Topic, 0)
			c.mustChange("rule/k")
			refused.Wait(2)
			if tt.freeze {
				if err := first.Freeze(); err != nil {
					t.Fatal(err)
				}
				c.mustChange("rule/k") // gets as far as the first relay's socket
			} else {
				between.cut()
			}
			within(t, time.Minute, second.active, "the second relay to read")
			if !tt.freeze && !first.said(tt.gaveUp) {
				t.Error("the second relay reads, and the first one has not given up what it sent")
			}
			refused.Mend()
			c.mustChange("rule/k")
			last := c.mustChange("rule/k")
			topic.until(20*time.Second, "every version", func(have []kafka.Record) bool { return distinct(have) == int(last) })
			if err := first.Thaw(); err != nil {
				t.Fatal(err)
			}
			between.mend()
			kafkatest.Eventually(t, func() bool { return first.ready() && !first.active() }, "the first relay to stand by")
			during(2*time.Second, func() {
				if have := versions(t, topic.all(), 0); have[len(have)-1] != last {
					t.Fatalf("versions are %v: the last came from the relay that had lost the slot", have)
				}
			})
			checkEnd(t, topic.all(), last)
			if !first.said(tt.gaveUp) {
				t.Errorf("the first relay never said %q", tt.gaveUp)
			}
		})
	}
}

// A writer commits changes at a steady rate until it is stopped.
type writer struct {
	c    catalogue
	stop context.CancelFunc
	done sync.WaitGroup
	last int64
}

// write commits 200 transactions of 5 rows a second, as far as the database
// keeps up.
func write(c catalogue) *writer {
	ctx, cancel := context.WithCancel(c.Context())
	w := &writer{c: c, stop: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			keys := make([]string, 5)
			for k := range keys {
				keys[k] = fmt.Sprintf("rule/%d", (5*i+k)%97)
			}
			last, err := c.change(context.WithoutCancel(ctx), keys...)
			if err != nil {
				c.Errorf("writer: %v", err)
				return
			}
			w.last = last
		}
	})
	c.Cleanup(func() { _ = w.end() })
	return w
}

// end stops writing and returns the newest version.
func (w *writer) end() int64 {
	w.stop()
	w.done.Wait()
	return w.last
}

// TestIntegrationKilledRelayLosesNothing guarantees that a relay which is
// killed again and again under about 1,000 rows a second loses none, and that
// the topic ends with the newest version of every key.
func TestIntegrationKilledRelayLosesNothing(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t)
	c := newCatalogue(t)
	slot := c.slotName("relay")
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	r := run(c, broker.Brokers, slot)
	began := time.Now()
	w := write(c)
	const kills = 8
	for i := range kills {
		have := distinct(topic.all())
		topic.until(20*time.Second, "the relay at work", func(now []kafka.Record) bool { return distinct(now) > have+100*i })
		r.kill()
		r.restart()
	}
	last := w.end()
	rate := float64(last) / time.Since(began).Seconds()
	have := topic.until(30*time.Second, "every version", func(have []kafka.Record) bool { return distinct(have) >= int(last) })
	checkEnd(t, have, last)
	if n := runs(versions(t, have, 0)); n > kills+1 {
		t.Errorf("the topic rises in %d pieces, want at most one per life of the relay", n)
	}
	t.Logf("%d rows at %.0f a second, %d kills: %d records, %d of them repeats", last, rate, kills, len(have), len(have)-int(last))
}

// TestIntegrationKeptRowsComeInOrderOfVersions guarantees that what a relay
// without a slot publishes first rises by version as a number: 9 comes before
// 10, or compaction would keep 9.
func TestIntegrationKeptRowsComeInOrderOfVersions(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t)
	c := newCatalogue(t)
	var last int64
	for range 120 {
		last = c.mustChange("rule/kept")
	}
	startRelay(t, c, broker.Brokers, c.slotName("relay"))
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	have := topic.until(20*time.Second, "the kept rows", func(have []kafka.Record) bool { return len(have) >= int(last) })
	if got := versions(t, have, 0); runs(got) != 1 {
		t.Errorf("versions came as %v", got)
	}
}

// TestIntegrationBrokerAway guarantees that a relay starts without a broker, is
// live and not ready, and delivers everything once there is one; and that a
// broker which restarts in the middle of a load costs nothing.
func TestIntegrationBrokerAway(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Reserve(t)
	c := newCatalogue(t)
	r := run(c, broker.Brokers, c.slotName("relay"))
	c.mustChange("rule/before")
	if r.ready() {
		t.Error("ready without a broker")
	}
	broker.Start()
	kafkatest.Eventually(t, r.ready, "ready with a broker")
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	w := write(c)
	for range 3 {
		have := len(topic.all())
		topic.until(20*time.Second, "the relay at work", func(now []kafka.Record) bool { return len(now) > have+300 })
		broker.Stop()
		during(300*time.Millisecond, func() {})
		broker.Start()
	}
	last := w.end()
	have := topic.until(30*time.Second, "every version", func(have []kafka.Record) bool { return distinct(have) >= int(last) })
	checkEnd(t, have, last)
	t.Logf("%d rows, 3 restarts: %d records, %d of them repeats", last, len(have), len(have)-int(last))
}

// TestIntegrationStoppedRelayRepeatsNothing guarantees that SIGTERM under load
// ends the relay with exit code 0, and that its successor goes on exactly where
// it stopped.
func TestIntegrationStoppedRelayRepeatsNothing(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Start(t)
	c := newCatalogue(t)
	slot := c.slotName("relay")
	topic := follow(t, broker.Brokers, rulesv1.Topic)
	r := run(c, broker.Brokers, slot)
	kafkatest.Eventually(t, func() bool { return c.hasSlot(slot) }, "slot %s", slot)
	w := write(c)
	for range 3 {
		have := len(topic.all())
		topic.until(20*time.Second, "the relay at work", func(now []kafka.Record) bool { return len(now) > have+300 })
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Wait(t.Context()); err != nil {
			t.Errorf("the relay ended with %v, want exit code 0", err)
		}
		r.restart()
	}
	last := w.end()
	have := topic.until(30*time.Second, "every version", func(have []kafka.Record) bool { return distinct(have) >= int(last) })
	checkEnd(t, have, last)
	if len(have) != int(last) {
		t.Errorf("%d records of %d rows: %d repeats after orderly stops", len(have), last, len(have)-int(last))
	}
}
