package topics_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/usage-indexer/topics"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// TestEventsBecomeDocuments guarantees the plain way: each event is a document
// under its id on its day, and committed; a second indexer begins where the first
// one stopped.
func TestEventsBecomeDocuments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	yesterday := event(2)
	yesterday.TS -= (24 * time.Hour).Microseconds()
	r.send(0, event(1), yesterday)
	r.send(1, event(3))
	kafkatest.Eventually(t, func() bool { return r.index.count() == 3 }, "3 documents")
	r.committed()
	doc := r.index.doc(event(1).EventID)
	for field, want := range map[string]any{
		"tenantId": "acme", "decision": "DENY", "statusCode": 429.0, "ruleId": "acme-burst", "algo": "gcra", "cost": 1.0, "sequence": 1.0,
	} {
		if doc[field] != want {
			t.Errorf("%s is %v, want %v", field, doc[field], want)
		}
	}
	if got, want := r.index.days[yesterday.EventID], r.index.days[event(1).EventID]-1; got != want {
		t.Errorf("yesterday's event is kept on day %v, want %v", got, want)
	}
	r.end()
	r.send(0, event(4))
	r.run()
	kafkatest.Eventually(t, func() bool { return r.index.count() == 4 }, "the fourth document")
	r.committed()
	if held := r.broker.Consume(topics.Aside); len(held) != 0 {
		t.Errorf("set aside: %+v", held)
	}
}

// TestRecordsAreSetAside guarantees that what can never be a document is kept once
// in a topic of its own, as it came, with the reason and where it was; that what
// stands beside it is indexed; and that all of it is committed.
func TestRecordsAreSetAside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.index.refuse = func(doc map[string]any) string {
		if doc["userId"] == "mallory" {
			return "document_parsing_exception: failed to parse field [userId] of value 'mallory'"
		}
		return ""
	}
	old, ahead, refused := event(10), event(11), event(12)
	old.TS -= (40 * 24 * time.Hour).Microseconds()
	ahead.TS += (25 * time.Hour).Microseconds()
	refused.User = "mallory"
	bad := event(13)
	bad.Cost = -1
	records := []*kafkatest.Record{
		{Key: "acme", Value: []byte("not Avro"), Headers: map[string]string{"trace": "t-1"}},
		{Key: "acme"},
		{Key: "acme", Value: wire.Frame(nil, 4711, []byte("x"))},
		{Key: "acme", Value: r.value(bad)},
		{Key: "other", Value: r.value(event(14))},
		{Key: "acme", Value: r.value(old)},
		{Key: "acme", Value: r.value(ahead)},
		{Key: "acme", Value: r.value(refused)},
		{Key: "acme", Value: r.value(event(1))},
	}
	reasons := []usagedoc.Reason{
		usagedoc.Undecodable, usagedoc.Undecodable, usagedoc.UnknownSchema, usagedoc.Undecodable, usagedoc.Undecodable,
		usagedoc.TooOld, usagedoc.TooNew, usagedoc.Refused,
	}
	for _, rec := range records {
		rec.Topic, rec.Partition = usagev1.Topic, 1
	}
	r.broker.Produce(records...)
	r.run()
	kafkatest.Eventually(t, func() bool { return r.index.count() == 1 }, "the good document")
	r.committed()
	held := r.broker.Consume(topics.Aside)
	if len(held) != len(reasons) {
		t.Fatalf("%d records are set aside, want %d", len(held), len(reasons))
	}
	for i, h := range held {
		from := records[i]
		if h.Key != from.Key || !bytes.Equal(h.Value, from.Value) || (h.Value == nil) != (from.Value == nil) {
			t.Errorf("record %d is kept as %q %q, want as it came", i, h.Key, h.Value)
		}
		for header, want := range map[string]string{
			topics.HeaderReason: string(reasons[i]), topics.HeaderTopic: usagev1.Topic, topics.HeaderPartition: "1",
			topics.HeaderOffset: strconv.FormatInt(from.Offset, 10), "trace": from.Headers["trace"],
		} {
			if h.Headers[header] != want {
				t.Errorf("record %d has %s %q, want %q", i, header, h.Headers[header], want)
			}
		}
		if h.Headers[topics.HeaderDetail] == "" {
			t.Errorf("record %d, %s, says nothing more", i, reasons[i])
		}
	}
	r.wants(map[string]float64{
		"penstock_usage_indexer_set_aside_total{reason=undecodable}": 4, "penstock_usage_indexer_set_aside_total{reason=unknown_schema}": 1,
		"penstock_usage_indexer_set_aside_total{reason=too_old}": 1, "penstock_usage_indexer_set_aside_total{reason=too_new}": 1,
		"penstock_usage_indexer_set_aside_total{reason=refused}": 1,
	})
}

// TestNothingIsCommittedWhileTheStoreWaits guarantees that a batch which is not
// durable is not committed, that the lag shows meanwhile, and that an indexer which
// is stopped in the middle leaves the batch to the next one.
func TestNothingIsCommittedWhileTheStoreWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.index.stop = make(chan struct{})
	r.send(0, event(1), event(2))
	r.run()
	kafkatest.Eventually(t, func() bool { return r.metric("penstock_usage_indexer_lag_seconds") > 0.2 }, "the lag to grow")
	if lag := r.lag(); lag == 0 {
		t.Error("committed before the store had it")
	}
	r.end()
	if lag := r.lag(); lag == 0 {
		t.Error("committed by stopping")
	}
	close(r.index.stop)
	r.run()
	kafkatest.Eventually(t, func() bool { return r.index.count() == 2 }, "2 documents")
	r.committed()
	r.wants(map[string]float64{"penstock_usage_indexer_lag_seconds": 0})
}

// TestGapsAndRepeats guarantees that a consumer sees by the numbers what came
// twice and what did not come, and takes neither a partition that it takes over
// nor a new stream for a gap.
func TestGapsAndRepeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	other := event(3)
	other.StreamID, other.EventID[0], other.DecisionID[0] = usagev1.UUID{15: 2}, 9, 9
	r.send(0, event(41), event(42), event(42), event(46), event(44), other)
	r.committed()
	r.wants(map[string]float64{
		"penstock_usage_indexer_sequence_repeats_total": 1,
		"penstock_usage_indexer_sequence_missing":       2,
		"penstock_usage_indexer_sequence_gaps_total":    0,
	})
	r.Revoked(map[string][]int32{usagev1.Topic: {0}})
	r.wants(map[string]float64{"penstock_usage_indexer_sequence_gaps_total": 2, "penstock_usage_indexer_sequence_missing": 0})
}

// TestRegistryAway guarantees that a registry which does not answer makes no event
// poison: the indexer waits, says so, and goes on.
func TestRegistryAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send(0, event(1))
	registry := &registry{away: make(chan struct{}), Registry: r.client.Registry()}
	x, err := topics.New(config, r.client, topics.Aside, 1, registry, r.index, slog.New(slog.DiscardHandler), nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r.Indexer = x
	r.run()
	kafkatest.Eventually(t, func() bool { return x.Ready(t.Context()) != nil }, "the indexer to say that it waits")
	if err := x.Ready(t.Context()); !strings.Contains(err.Error(), "no route") {
		t.Errorf("Ready = %v, want the reason", err)
	}
	close(registry.away)
	kafkatest.Eventually(t, func() bool { return r.index.count() == 1 && x.Ready(t.Context()) == nil }, "the document, and a ready indexer")
	r.committed()
}

// A registry is away until its channel is closed.
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

// TestAsideWaits guarantees that a record which cannot be set aside is not lost:
// nothing is committed until it is.
func TestAsideWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.CreateTopic(topics.Aside, 1)
	paused := r.broker.PauseProduce(topics.Aside, 0)
	r.broker.Produce(&kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: []byte("not Avro")})
	r.run()
	paused.Wait(1)
	if r.lag() == 0 {
		t.Error("committed before it was set aside")
	}
	paused.Mend()
	r.broker.WaitFor(topics.Aside, 1)
	r.committed()
}

// TestReplay guarantees that a replay makes the documents that are missing under
// the same ids, leaves those that are there, keeps to its span, and moves no
// offset, while an indexer runs beside it.
func TestReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run()
	now := time.Now()
	sent := r.send(0, event(1), event(2), event(3))
	r.broker.Produce(&kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: []byte("not Avro")})
	late := &kafkatest.Record{Topic: usagev1.Topic, Key: "acme", Value: r.value(event(4)), Timestamp: now.Add(time.Hour)}
	early := &kafkatest.Record{Topic: usagev1.Topic, Partition: 1, Key: "acme", Value: r.value(event(5)), Timestamp: now.Add(-48 * time.Hour)}
	r.broker.Produce(late, early)
	kafkatest.Eventually(t, func() bool { return r.index.count() == 5 }, "5 documents")
	r.committed()
	aside := len(r.broker.WaitFor(topics.Aside, 1))

	r.index.mu.Lock()
	delete(r.index.docs, event(2).EventID)
	delete(r.index.docs, event(4).EventID)
	delete(r.index.docs, event(5).EventID)
	r.index.mu.Unlock()
	span := topics.Span{From: now.Add(-24 * time.Hour), To: now.Add(time.Minute)}
	replay := func() topics.Tally {
		tally, err := topics.Replay(t.Context(), config, span, open(t, r.broker), r.client.Registry(), r.index, slog.New(slog.DiscardHandler), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		return tally
	}
	got := replay()
	if got.Read != 4 || got.Created != 1 || got.There != 2 || got.Refused[usagedoc.Undecodable] != 1 {
		t.Errorf("replayed: %v, want 4 read, 1 created, 2 there, 1 undecodable", got)
	}
	if !strings.Contains(got.String(), "4 events read: 1 documents created, 2 were there, 1 not taken (undecodable)") {
		t.Errorf("the tally reads %q", got)
	}
	if n := r.index.count(); n != 3 {
		t.Errorf("%d documents, want 3: the span was not kept", n)
	}
	if got := replay(); got.Created != 0 || got.There != 3 {
		t.Errorf("replayed again: %v, want nothing created", got)
	}
	if n := len(r.broker.Consume(topics.Aside)); n != aside {
		t.Errorf("a replay set %d records aside", n-aside)
	}
	r.end()
	r.committed()
	if sent[0].Offset != 0 {
		t.Error("the case is not what it says")
	}
}

// TestReplayPace guarantees that a replay does not go faster than it is told.
func TestReplayPace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var events []usagev1.Event
	for n := range int64(50) {
		events = append(events, event(n+1))
	}
	r.send(0, events...)
	span := topics.Span{From: time.Now().Add(-time.Hour), Rate: 100}
	tally, err := topics.Replay(t.Context(), config, span, r.client, r.client.Registry(), r.index, slog.New(slog.DiscardHandler), time.Now)
	if err != nil || tally.Created != 50 || tally.Took < 400*time.Millisecond {
		t.Errorf("%v (%v), want 50 events at 100 a second", tally, err)
	}
	if got := topics.Tally.String(topics.Tally{}); !strings.HasPrefix(got, "0 events read: 0 documents created, 0 were there; 0.0 s") {
		t.Errorf("nothing reads %q", got)
	}
}
