package topics_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/threshold-watcher/topics"
)

// TestWatches guarantees the plain life of a watcher: what is announced is in the
// partition of its cause, complete, and once; what was announced is known after a
// restart; and the numbers say so.
func TestWatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	r.send(1, event(1, 7, 10), event(2, 8, 10), event(3, 10, 10))
	events := r.publishes(3)
	first := events[0]
	if first.Type != quotaeventsv1.EventTypeThresholdReached || *first.ThresholdPercent != 80 || first.Consumed != 8 || first.Limit != 10 || first.Arm != 1 ||
		first.TenantID != "acme" || first.RuleID != "acme-month" || first.Meter != "api-calls" || first.CounterKey != event(1, 0, 0).Counters[0].Key ||
		first.CauseDecisionID != event(2, 0, 0).DecisionID.String() || *first.PeriodStart != event(1, 0, 0).Counters[0].PeriodStart/1000 || len(first.EventID) != 32 {
		t.Errorf("the first event is %+v", first)
	}
	if *events[1].ThresholdLeft != 1 || events[2].Type != quotaeventsv1.EventTypeExhausted || *events[2].ThresholdPercent != 100 {
		t.Errorf("the others are %+v", events[1:])
	}
	for _, rec := range r.broker.Consume(quotaeventsv1.Topic) {
		if rec.Partition != 1 || rec.Headers[topics.HeaderRuleVersion] != "1" || rec.Headers[topics.HeaderRulesVersion] != "7" || rec.Headers[topics.HeaderRefunded] != "0" {
			t.Errorf("a record of partition %d with %v", rec.Partition, rec.Headers)
		}
	}
	r.committed()
	r.wants(map[string]float64{
		"penstock_threshold_watcher_announced_total{type=threshold_reached}": 2, "penstock_threshold_watcher_announced_total{type=exhausted}": 1,
		"penstock_threshold_watcher_announced_total{type=replenished}": 0, "penstock_threshold_watcher_delay_seconds": 3,
		"penstock_threshold_watcher_counters": 1, "penstock_threshold_watcher_partitions": 2, "penstock_threshold_watcher_rebuild_seconds": 2,
		"penstock_threshold_watcher_lag_seconds": 0,
	})
	if err := r.Ready(t.Context()); err != nil {
		t.Errorf("Ready = %v", err)
	}
	r.end()
	r.wants(map[string]float64{"penstock_threshold_watcher_counters": 0, "penstock_threshold_watcher_partitions": 0})

	raised := event(4, 10, 20)
	raised.Counters[0].RuleVersion = 2
	r.send(1, event(1, 7, 10), event(2, 8, 10), event(3, 10, 10), raised)
	r.fresh()
	r.run()
	again := r.publishes(6)[3:]
	for i, want := range []string{"80", "left", "100"} {
		if again[i].Type != quotaeventsv1.EventTypeReplenished || again[i].Arm != 2 {
			t.Errorf("%s: %+v, want it armed again", want, again[i])
		}
	}
}

// TestNothingIsAnnouncedOf guarantees that shadow rules, counters that were not
// observed, refunds, settlements that give back, unknown kinds and periods that
// are long over announce nothing, and that settlements that charge do.
func TestNothingIsAnnouncedOf(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	change := func(n int64, change func(e *usagev1.Event, c *usagev1.Counter)) usagev1.Event {
		e := event(n, 10, 10)
		change(&e, &e.Counters[0])
		return e
	}
	corrected := func(d usagev1.Decision, units int64) func(*usagev1.Event, *usagev1.Counter) {
		return func(e *usagev1.Event, c *usagev1.Counter) {
			e.Decision, e.Status, c.Units = d, 0, units
			e.DecisionID[0] = 1
			if d == usagev1.DecisionRefund {
				e.RefundID = "r"
			}
		}
	}
	r.send(0,
		change(1, func(_ *usagev1.Event, c *usagev1.Counter) { c.Mode = usagev1.ModeShadow }),
		change(2, func(_ *usagev1.Event, c *usagev1.Counter) {
			c.Observed, c.Consumed, c.ThresholdsLeft = false, 0, []int64{10}
		}),
		change(3, corrected(usagev1.DecisionRefund, -1)),
		change(4, corrected(usagev1.DecisionSettle, -1)),
		change(5, func(_ *usagev1.Event, c *usagev1.Counter) { c.Kind = usagev1.CounterKindUnknown }),
		change(6, func(_ *usagev1.Event, c *usagev1.Counter) {
			c.PeriodStart, c.PeriodEnd = c.PeriodStart-100*24*3600e6, c.PeriodEnd-100*24*3600e6
		}),
		change(7, func(e *usagev1.Event, _ *usagev1.Counter) { e.Counters = nil }),
	)
	r.committed()
	if got := r.published(); len(got) != 0 {
		t.Fatalf("announced %+v", got)
	}
	r.wants(map[string]float64{"penstock_threshold_watcher_late_total": 1})
	r.send(0, change(8, corrected(usagev1.DecisionSettle, 1)))
	r.publishes(3)
}

// TestRecordsAreSetAside guarantees that what is no event is kept once in a topic of
// its own, as it came, with the reason and where it was, and keeps up nothing.
func TestRecordsAreSetAside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	large := strings.Repeat("x", 900<<10)
	r.broker.Produce(
		&kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: []byte("not Avro"), Headers: map[string]string{"trace": "t-1"}},
		&kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: wire.Frame(nil, 4711, []byte("x"))},
		&kafkatest.Record{Topic: usagev1.Topic, Key: "acme"},
		&kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: []byte(large)},
	)
	r.send(0, event(1, 8, 10))
	r.run()
	r.publishes(1)
	r.committed()
	held := r.broker.Consume(topics.Aside)
	if len(held) != 4 {
		t.Fatalf("%d records are set aside, want 4", len(held))
	}
	for i, want := range []topics.Reason{topics.Undecodable, topics.UnknownSchema, topics.Undecodable, topics.Undecodable} {
		h := held[i]
		if h.Headers[topics.HeaderReason] != string(want) || h.Headers[topics.HeaderTopic] != usagev1.Topic || h.Headers[topics.HeaderPartition] != "0" ||
			h.Headers[topics.HeaderOffset] != string(rune('0'+i)) || h.Headers[topics.HeaderDetail] == "" || h.Key != "acme" {
			t.Errorf("record %d is kept with %v", i, h.Headers)
		}
	}
	if held[0].Headers["trace"] != "t-1" || string(held[0].Value) != "not Avro" || held[2].Value != nil || held[3].Headers[topics.HeaderCut] != "921600" {
		t.Error("they are not kept as they came")
	}
	r.wants(map[string]float64{
		"penstock_threshold_watcher_set_aside_total{reason=undecodable}": 3, "penstock_threshold_watcher_set_aside_total{reason=unknown_schema}": 1,
	})
}

// TestTakenBack guarantees that a transaction which the broker refuses changes
// nothing that is remembered: once it takes it, the same is announced.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	kafkatest.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, "the watcher to be ready")
	fault := r.broker.RefuseProduce(quotaeventsv1.Topic)
	r.send(0, event(1, 8, 10), event(2, 9, 10))
	fault.Wait(3)
	r.wants(map[string]float64{"penstock_threshold_watcher_announced_total{type=threshold_reached}": 0})
	fault.Mend()
	r.publishes(2)
	r.committed()
	r.wants(map[string]float64{"penstock_threshold_watcher_announced_total{type=threshold_reached}": 2, "penstock_threshold_watcher_counters": 1})
}

// TestTopics guarantees that the topic is made with 400 days and as many partitions as
// usage.v1, which is waited for; and that one with another number is not written
// to, which /ready says.
func TestTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.DeleteTopic(usagev1.Topic)
	r.run()
	kafkatest.Eventually(t, func() bool {
		err := r.Ready(t.Context())
		return err != nil && strings.Contains(err.Error(), usagev1.Topic)
	}, "the watcher to wait")
	r.broker.CreateTopic(usagev1.Topic, 3)
	kafkatest.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, "the watcher to be ready")
	n, err := r.client.Partitions(t.Context(), quotaeventsv1.Topic)
	if err != nil || n != 3 {
		t.Errorf("%d partitions (%v), want 3", n, err)
	}
	if got := r.broker.Config(quotaeventsv1.Topic)["retention.ms"]; got != "34560000000" {
		t.Errorf("retention.ms is %s, want 400 days", got)
	}
	r.end()

	r = newRig(t)
	r.broker.CreateTopic(quotaeventsv1.Topic, 5)
	r.run()
	kafkatest.Eventually(t, func() bool {
		err := r.Ready(t.Context())
		return err != nil && strings.Contains(err.Error(), "usage.v1 has 2 partitions and quota-events.v1 has 5")
	}, "the watcher to say what is wrong")
}

// TestRegistryAway guarantees that a registry which does not answer makes nothing
// poison, neither what is read nor what is read back.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send(0, event(1, 8, 10))
	r.run()
	r.publishes(1)
	r.committed()
	r.end()
	away := &registry{Registry: r.client.Registry(), away: make(chan struct{})}
	w, err := topics.New(r.cfg, r.client, away, slog.New(slog.DiscardHandler), nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r.Watcher = w
	r.send(0, event(1, 8, 10), event(2, 9, 10))
	r.run()
	kafkatest.Eventually(t, func() bool {
		err := r.Ready(t.Context())
		return err != nil && strings.Contains(err.Error(), "reading back")
	}, "the watcher to wait")
	close(away.away)
	events := r.publishes(2)
	if *events[1].ThresholdLeft != 1 || r.Ready(t.Context()) != nil {
		t.Errorf("then %+v, ready %v", events[1], r.Ready(t.Context()))
	}
}

// A registry knows no schema until its channel is closed.
type registry struct {
	away chan struct{}
	wire.Registry
}

func (r *registry) Schema(ctx context.Context, id uint32) (string, []string, error) {
	select {
	case <-r.away:
		return r.Registry.Schema(ctx, id)
	default:
		return "", nil, errors.New("no route")
	}
}

// TestUnreadableEvents guarantees that what others wrote to quota-events.v1 keeps no
// watcher from starting, and is counted.
func TestUnreadableEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	r.send(0, event(1, 8, 10))
	r.publishes(1)
	r.committed()
	r.end()
	good := r.broker.Consume(quotaeventsv1.Topic)[0]
	good.Headers = map[string]string{topics.HeaderRefunded: "many"}
	r.broker.Produce(&good, &kafkatest.Record{Topic: quotaeventsv1.Topic, Key: "x", Value: []byte("not Avro")}, &kafkatest.Record{Topic: quotaeventsv1.Topic, Key: "x"})
	r.fresh()
	r.run()
	kafkatest.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, "the watcher to be ready")
	r.wants(map[string]float64{"penstock_threshold_watcher_unreadable_events_total": 2, "penstock_threshold_watcher_counters": 1})
}

// TestTwoWatchers guarantees that partitions move between watchers with what was
// announced in them: nothing is announced twice.
func TestTwoWatchers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	r.send(0, event(1, 8, 10))
	r.send(1, event(2, 8, 10))
	r.publishes(2)
	other := &rig{t: t, broker: r.broker, client: open(t, r.broker), decoder: r.decoder, schema: r.schema, cfg: r.cfg}
	other.cfg.Instance = "two"
	other.fresh()
	other.run()
	kafkatest.Eventually(t, func() bool {
		return r.metric("penstock_threshold_watcher_partitions") == 1 && other.metric("penstock_threshold_watcher_partitions") == 1
	}, "each to have a partition")
	r.send(0, event(1, 8, 10), event(3, 9, 10))
	r.send(1, event(2, 8, 10), event(4, 9, 10))
	r.publishes(4)
	r.end()
	r.send(0, event(3, 9, 10), event(5, 10, 10))
	r.send(1, event(4, 9, 10), event(6, 10, 10))
	events := r.publishes(6)
	var ids []string
	for _, e := range events {
		ids = append(ids, e.EventID)
	}
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != 3 {
		t.Errorf("%d ids, want those of three levels: the counter is the same in both partitions", n)
	}
}
