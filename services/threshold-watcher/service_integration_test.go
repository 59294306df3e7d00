//go:build integration

package main

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"penstock.dev/deploy/local/server"
	"penstock.dev/schemas"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
)

var buildWatcher = sync.OnceValues(func() (string, error) {
	root, err := server.Root()
	if err != nil {
		return "", err
	}
	return server.Build(context.Background(), root, "services/threshold-watcher", ".", server.Run{})
})

// start runs the built service. One that is killed leaves its partitions and what it
// was writing as soon as brokers allow.
func start(t *testing.T, b *kafkatest.Broker, instance string) *server.Process {
	t.Helper()
	path, err := buildWatcher()
	if err != nil {
		t.Fatal(err)
	}
	port, err := server.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin := "127.0.0.1:" + strconv.Itoa(port)
	p, err := server.Start(t.Context(), server.Spec{
		Name: "threshold-watcher", Path: path, Dir: t.TempDir(), Ready: server.Answers200("http://" + admin + "/live"),
		Args: []string{
			"-admin-listen", admin, "-kafka-brokers", strings.Join(b.Brokers, ","), "-schema-registry", b.RegistryURL, "-instance", instance,
			"-batch", "7", "-session-timeout", "6s", "-transaction-timeout", "6s", "-topic-replicas", "1",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Tail())
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// A stage is usage.v1 with tenants on it, each with a quota that is raised when it is
// used up, and what quota-events.v1 should hold of them.
type stage struct {
	t       *testing.T
	b       *kafkatest.Broker
	schema  uint32
	decoder *quotaeventsv1.Decoder
	sent    []*kafkatest.Record
}

// tenants is how many there are, over two partitions; every one crosses three levels
// of a limit of 10, has it raised to 20, and crosses them again.
const (
	tenants   = 8
	decisions = 20
	perTenant = 3 + 3 + 3
)

func newStage(t *testing.T, b *kafkatest.Broker) *stage {
	t.Helper()
	c, err := kafka.New(kafka.Config{Brokers: b.Brokers, SchemaRegistry: b.RegistryURL}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s := &stage{t: t, b: b, decoder: quotaeventsv1.NewDecoder(wire.NewIDs(c.Registry(), quotaeventsv1.Subject))}
	if s.schema, err = c.Registry().Register(t.Context(), usagev1.Subject, schemas.UsageV1); err != nil {
		t.Fatal(err)
	}
	b.CreateTopic(usagev1.Topic, 2)
	return s
}

// record is decision n, from 1, of a tenant.
func (s *stage) record(tenant, n int) *kafkatest.Record {
	name := "tenant-" + strconv.Itoa(tenant)
	now := time.Now()
	year := time.Date(now.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	e := usagev1.Event{
		EventID: usagev1.UUID{6: 0x70, 8: 0x80, 13: byte(tenant), 15: byte(n)}, TS: now.UnixMicro(), StreamID: usagev1.UUID{15: byte(1 + tenant)},
		Sequence: int64(n), Decision: usagev1.DecisionAllow, Status: 200, Tenant: name, Cost: 1, GatewayID: "gw-1", RulesVersion: 1,
		Counters: []usagev1.Counter{{
			Key: "{t:" + name + "}:e:q:t:calls:g:1year:1", Observed: true, PeriodStart: year.UnixMicro(), PeriodEnd: year.AddDate(1, 0, 0).UnixMicro(),
			Limit: 10, Units: 1, Consumed: int64(n), Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "calls",
			RuleID: "year", RuleVersion: 1, ThresholdsPercent: []int32{80, 100}, ThresholdsLeft: []int64{1},
		}},
	}
	e.DecisionID = e.EventID
	if n > 10 {
		e.RulesVersion, e.Counters[0].RuleVersion, e.Counters[0].Limit = 2, 2, 20
	}
	return &kafkatest.Record{
		Topic: usagev1.Topic, Partition: int32(tenant % 2), Key: name, Value: wire.Frame(nil, s.schema, usagev1.AppendEvent(nil, &e)),
	}
}

// decide sends the decisions from, …, to of every tenant.
func (s *stage) decide(from, to int) {
	var records []*kafkatest.Record
	for n := from; n <= to; n++ {
		for tenant := range tenants {
			records = append(records, s.record(tenant, n))
		}
	}
	s.b.Produce(records...)
	s.sent = append(s.sent, records...)
}

// replay sends everything once more.
func (s *stage) replay() {
	for _, r := range s.sent {
		again := *r
		s.b.Produce(&again)
	}
}

// events are the ids that readers of what is committed see, and how often.
func (s *stage) events() map[string]int {
	s.t.Helper()
	ids := map[string]int{}
	for _, r := range s.b.Consume(quotaeventsv1.Topic) {
		e, err := s.decoder.Decode(s.t.Context(), []byte(r.Key), r.Value)
		if err != nil {
			s.t.Fatal(err)
		}
		ids[e.EventID]++
	}
	return ids
}

// once waits until n events are there and usage.v1 is read to its end, and fails the
// test unless every id is there once.
func (s *stage) once(n int) {
	s.t.Helper()
	kafkatest.Eventually(s.t, func() bool { return len(s.events()) >= n }, "%d events", n)
	kafkatest.Eventually(s.t, func() bool { return s.behind() == 0 }, "usage.v1 to be read")
	ids := s.events()
	for id, times := range ids {
		if times != 1 {
			s.t.Errorf("event %s is there %d times", id, times)
		}
	}
	if len(ids) != n {
		s.t.Errorf("%d events, want %d", len(ids), n)
	}
}

// behind is how many offsets of usage.v1 are not committed.
func (s *stage) behind() int64 {
	at := s.b.Committed("threshold-watcher", usagev1.Topic)
	var n int64
	for p := range int32(2) {
		n += s.b.End(usagev1.Topic, p) - at[p]
	}
	return n
}

func kill(t *testing.T, p *server.Process) {
	t.Helper()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
}

func restart(t *testing.T, p *server.Process) {
	t.Helper()
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// killedEverywhere has two watchers killed under traffic again and again, during
// rebalances too, and usage.v1 replayed three times, with kills.
func killedEverywhere(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	s := newStage(t, b)
	first, second := start(t, b, "first"), start(t, b, "second")
	s.decide(1, 8)
	kafkatest.Eventually(t, func() bool { return len(s.events()) > 0 }, "the first events")
	kill(t, first)
	s.decide(9, 10)
	restart(t, first) // and joins while the second may be in the middle
	s.decide(11, 14)
	kill(t, second)
	restart(t, second)
	s.decide(15, decisions)
	s.once(tenants * perTenant)
	s.replay()
	s.replay()
	kill(t, first)
	restart(t, first)
	s.replay()
	s.once(tenants * perTenant)
}

// TestIntegrationT3KilledEverywhereEmbedded guarantees on the development broker that
// whatever is killed when, and however often usage.v1 comes again, readers of what
// is committed see every event once, ever.
func TestIntegrationT3KilledEverywhereEmbedded(t *testing.T) {
	t.Parallel()
	killedEverywhere(t, kafkatest.Start(t))
}

// TestIntegrationT3KilledEverywhereKafka guarantees the same on Apache Kafka.
func TestIntegrationT3KilledEverywhereKafka(t *testing.T) {
	t.Parallel()
	b := kafkatest.StartReal(t)
	b.RegistryURL = kafkatest.Start(t).RegistryURL
	killedEverywhere(t, b)
}

// TestIntegrationT3KilledInTheMiddle guarantees the same for a watcher that is killed
// exactly before its events are stored, after that and before its offsets are, and
// while it commits.
func TestIntegrationT3KilledInTheMiddle(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]kmsg.Key{"before produce": kmsg.Produce, "before commit": kmsg.TxnOffsetCommit, "while it commits": kmsg.EndTxn} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := kafkatest.Start(t)
			s := newStage(t, b)
			s.decide(1, 12)
			held, release := b.Stall(at)
			first := start(t, b, "first")
			<-held
			kill(t, first)
			release()
			start(t, b, "second")
			s.decide(13, decisions)
			s.once(tenants * perTenant)
			s.replay()
			s.once(tenants * perTenant)
		})
	}
}

// TestIntegrationStops guarantees that a watcher which is told to stop gives its
// partitions back and ends well.
func TestIntegrationStops(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	s := newStage(t, b)
	p := start(t, b, "only")
	s.decide(1, 8)
	s.once(tenants)
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Errorf("SIGTERM ended the service with %v, want exit code 0", err)
	}
}
