//go:build integration

package main

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"

	"penstock.dev/services/checkpointer/topics"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// TestIntegrationNamesAreBytes guarantees that an id of a user or of a refund which is no
// text to PostgreSQL is in the books like any other, and keeps nobody else out of them.
func TestIntegrationNamesAreBytes(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, plain, odd := h.gate(), quota("acme", 1000, 10), quota("acme", 1000, 20)
	odd.Counter.Subject, odd.Counter.User = rule.Tenant|rule.User, "u\x00\\x41 \x7f"
	g.sell(odd)
	g.sell(plain)
	h.tell(odd, usagev1.Event{Decision: usagev1.DecisionRefund, DecisionID: newID(), RefundID: "r\x00", Cost: 5}, -5, limit.Totals{Consumed: 20, Refunded: 5})
	h.awaitStored(odd, 20, 15)
	h.awaitStored(plain, 10, 10)
	h.flush()
	fresh := h.gate()
	if used, other := fresh.used(odd), fresh.used(plain); used != 15 || other != 10 {
		t.Errorf("%d and %d used, want 15 and 10", used, other)
	}
	if n := s.metric("failures_total"); n != 0 {
		t.Errorf("%v failures", n)
	}
}

// TestIntegrationSetByHand guarantees that a value which no counter comes to, and a key
// which no gateway makes, are an alarm and keep no other counter out of the books, nor
// from being healed.
func TestIntegrationSetByHand(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, broken, q := h.gate(), quota("acme", 1000, 10), quota("beta", 1000, 10)
	g.sell(broken)
	g.sell(q)
	h.awaitStored(broken, 10, 10)
	h.awaitStored(q, 10, 10)
	redis := h.redis.Client()
	for _, key := range []string{"{t:a\xff}:e:quota:t:m:g:month*1:0", "{t:" + strings.Repeat("a", 3000) + "}:e:quota:t:m:g:month*1:0"} {
		if err := redis.Copy(t.Context(), counters.Key(q.Counter), key, 0, true).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []float64{1e18, 1e300, -1, 0.5, math.NaN(), math.Inf(1)} {
		if err := redis.SetRange(t.Context(), counters.Key(broken.Counter), 1, string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)))).Err(); err != nil {
			t.Fatal(err)
		}
		before := s.metric("lowered_total")
		eventually(t, "an alarm", func() bool { return s.metric("lowered_total") > before })
		if err := redis.Del(t.Context(), counters.Key(q.Counter)).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other counter is healed", func() bool { return h.gate().used(q) >= 10 })
		consumed, _, told := h.stored(q)
		h.tell(broken, usagev1.Event{Decision: usagev1.DecisionAllow, Status: 200, Cost: 1}, 1, limit.Totals{Consumed: 11})
		g.sell(q)
		h.awaitStored(q, consumed+10, told+10)
	}
	if n := s.metric("failures_total"); n != 0 {
		t.Errorf("%v failures", n)
	}
	var out strings.Builder
	p := boot.Process{Service: "checkpointer", Getenv: none, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}
	if err := reconcile(context.WithoutCancel(t.Context()), p, h.flags(), &out); err == nil || !strings.Contains(out.String(), "11 missing in the store") {
		t.Errorf("reconcile: %v: %s", err, out.String())
	}
}

// TestIntegrationEmptiedBooks guarantees that books which are emptied while the service
// runs are filled anew from all that usage.v1 has, and not from then on alone.
func TestIntegrationEmptiedBooks(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.start("-sweep-every", "1h")
	g, q, other := h.gate(), quota("acme", 1000, 10), wallet("acme", 1000, 30)
	g.sell(q)
	g.sell(other)
	h.awaitStored(q, 10, 10)
	h.awaitStored(other, 30, 30)
	conn, err := pgx.Connect(t.Context(), h.db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `TRUNCATE checkpointer.counters, checkpointer.partitions, checkpointer.streams, checkpointer.corrections`); err != nil {
		t.Fatal(err)
	}
	g.sell(q)
	h.awaitStored(q, 20, 20)
	h.awaitStored(other, 30, 30)
	h.flush()
	if used := h.gate().used(other); used != 30 {
		t.Errorf("%d used, want 30", used)
	}
}

// A beside is a broker that has something done before it is read by offsets.
type beside struct {
	*kafka.Client
	first func()
}

func (b beside) ReadRangeFrom(ctx context.Context, topic string, from, to map[int32]int64, begin func(map[int32]kafka.Range) error, handle func([]kafka.Record) error) error {
	b.first()
	return b.Client.ReadRangeFrom(ctx, topic, from, to, begin, handle)
}

// TestIntegrationReconcileBesideCheckpoint guarantees that a checkpoint which is made
// between the reading of offsets and of counters is no drift.
func TestIntegrationReconcileBesideCheckpoint(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	if err := h.parts().keeper.Look(t.Context()); err != nil { // the store is kept from now on
		t.Fatal(err)
	}
	h.gate().sell(quota("acme", 1000, 10))
	keeping, judging := h.parts(), h.parts()
	keeping.reader.Assigned(map[string][]int32{usagev1.Topic: {0, 1}})
	saved := 0
	var err error
	judging.reader, err = topics.New(beside{judging.broker, func() {
		if saved++; saved == 1 {
			if err := keeping.reader.Checkpoint(t.Context(), keeping.keeper.SaveParts); err != nil {
				t.Error(err)
			}
		}
	}}, judging.broker.Registry(), judging.books.Parts, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := judging.reconcile(t.Context(), &config{all: true}, &out); err != nil || !strings.Contains(out.String(), "used 10, checkpoint 10, events 10: 0 unattributed") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestIntegrationCorrectionInAHole guarantees that a refund of which usage.v1 lost the
// event is not made again, however often the store is restored whole after that.
func TestIntegrationCorrectionInAHole(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := h.start()
	g, q := h.gate(), quota("acme", 1000, 100)
	a, made := g.sell(q), newID()
	h.awaitStored(q, 100, 100)
	s.end()
	refund := func(g *gate) limit.Effect {
		t.Helper()
		var got limit.CorrectionAnswer
		eventually(t, "a correction", func() (ok bool) {
			var err error
			got, err = g.store.Correct(t.Context(), limit.Correction{
				Tenant: "acme", DecisionID: made, At: a.Now, Cost: 100, Items: []limit.Item{{Charge: q}}, Refund: "r-1", Units: 30,
			})
			return err == nil
		})
		return got.Effect
	}
	if got := refund(g); got != limit.Corrected {
		t.Fatalf("%v", got)
	}
	h.tell(q, usagev1.Event{Decision: usagev1.DecisionRefund, DecisionID: made, RefundID: "r-1", Cost: 30}, -30, limit.Totals{Consumed: 100, Refunded: 30})
	for p := range int32(2) {
		h.kafka.DeleteRecords(usagev1.Topic, p, h.kafka.End(usagev1.Topic, p))
	}
	h.flush()
	s = h.start()
	if n := s.metric(`restores_total{tail="partial"}`); n != 1 {
		t.Errorf("%v restores of what was left", n)
	}
	g.sell(quota("acme", 1000, 1)) // the books go on beyond the hole
	h.awaitStored(q, 101, 101)
	for restores := range 2 {
		if got := refund(h.gate()); got != limit.Forgotten {
			t.Errorf("after %d whole restores: %v", restores, got)
		}
		h.flush()
		eventually(t, "a whole restore", func() bool { return s.metric(`restores_total{tail="whole"}`) == float64(restores+1) })
	}
}
