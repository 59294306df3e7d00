//go:build integration

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/pgtest"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// generous is a budget that no busy machine exceeds.
const generous = 5 * time.Second

// A house has the servers of a test, and sells through gates as a gateway does.
type house struct {
	t      *testing.T
	redis  *redistest.Server
	kafka  *kafkatest.Broker
	db     string
	client *kafka.Client
	schema uint32
	stream usagev1.UUID
	number atomic.Int64
}

func newHouse(t *testing.T, redis ...string) *house {
	t.Helper()
	h := &house{t: t, redis: redistest.Start(t, redis...), kafka: kafkatest.Start(t), db: pgtest.Database(t)}
	h.kafka.CreateTopic(usagev1.Topic, 2)
	var err error
	if h.schema, err = kafka.NewRegistry(h.kafka.RegistryURL).Register(t.Context(), usagev1.Subject, schemas.UsageV1); err != nil {
		t.Fatal(err)
	}
	if h.client, err = kafka.New(kafka.Config{Brokers: h.kafka.Brokers}, slog.New(slog.DiscardHandler), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.client.Close() })
	h.stream = newID()
	return h
}

func newID() (id usagev1.UUID) {
	_, _ = rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

func (h *house) flags(more ...string) []string {
	return append([]string{
		"-kafka-brokers", strings.Join(h.kafka.Brokers, ","), "-schema-registry", h.kafka.RegistryURL,
		"-database-url", h.db, "-redis-url", h.redis.URL, "-redis-budget", generous.String(),
	}, more...)
}

// A served is the service as a process would run it.
type served struct {
	t     *testing.T
	admin string
	log   *syncBuffer
	stop  context.CancelFunc
	done  chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// begin runs the service, which looks, saves and sweeps often, until its end or
// that of the test.
func (h *house) begin(more ...string) *served {
	h.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(h.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(h.t.Context())
	s := &served{t: h.t, admin: "http://" + addr, log: &syncBuffer{}, stop: cancel, done: make(chan error, 1)}
	p := boot.Process{
		Service: "checkpointer", Getenv: none, Log: slog.New(slog.NewTextHandler(s.log, nil)), Metrics: prometheus.NewRegistry(), Stopping: ctx.Done(),
		Args: h.flags(append([]string{
			"-admin-listen", addr, "-watch-every", "20ms", "-checkpoint-every", "100ms", "-sweep-every", "200ms",
		}, more...)...),
	}
	go func() { s.done <- run(ctx, p) }()
	h.t.Cleanup(func() {
		s.end()
		if h.t.Failed() {
			h.t.Log(s.log.String())
		}
	})
	return s
}

// start is begin, and returns when the store is kept.
func (h *house) start(more ...string) *served {
	h.t.Helper()
	s := h.begin(more...)
	s.ready()
	return s
}

func (s *served) ready() {
	s.t.Helper()
	eventually(s.t, "ready", func() bool {
		status, _ := s.get("/ready")
		return status == http.StatusOK
	})
}

func (s *served) end() {
	s.t.Helper()
	if s.stop == nil {
		return
	}
	s.stop()
	s.stop = nil
	if err := <-s.done; err != nil {
		s.t.Errorf("the service ended with %v", err)
	}
}

func (s *served) get(path string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.admin+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// metric returns the value of a series as /metrics writes it, -1 when it is not
// there.
func (s *served) metric(series string) float64 {
	s.t.Helper()
	_, page := s.get("/metrics")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, "penstock_checkpointer_"+series+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err == nil {
				return v
			}
		}
	}
	return -1
}

// eventually polls until ok, for at most half a minute.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-tick.C:
		}
	}
}

// A gate decides as a gateway does that has seen nothing yet.
type gate struct {
	h     *house
	store *counters.Store
}

func (h *house) gate() *gate {
	h.t.Helper()
	s, err := counters.Open(counters.Config{URL: h.redis.URL, Budget: generous}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.Close() })
	return &gate{h, s}
}

func month() period.Span {
	now := time.Now().UTC()
	start := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	return period.Span{Start: start, End: start.AddDate(0, 1, 0)}
}

func quota(tenant string, most, cost int64) limit.Charge {
	span := month()
	return limit.Charge{
		Counter: limit.Identity{
			Kind: rule.Quota, Subject: rule.Tenant, Tenant: tenant, Meter: "api-calls", Unit: period.Month, Count: 1, Start: span.Start,
		},
		Algorithm: rule.CalendarQuota, Cost: cost, Limit: most, Span: span,
	}
}

func wallet(tenant string, granted, cost int64) limit.Charge {
	return limit.Charge{
		Counter:   limit.Identity{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: tenant, Meter: "credits"},
		Algorithm: rule.OverdraftWallet, Cost: cost, Limit: granted,
	}
}

// ask asks until the store decides: what is lost was not decided.
func (g *gate) ask(c limit.Charge) limit.Answer {
	g.h.t.Helper()
	var a limit.Answer
	eventually(g.h.t, "a decision", func() bool {
		var err error
		a, err = g.store.Decide(g.h.t.Context(), limit.Decision{Charges: []limit.Charge{c}})
		if err != nil && !errors.Is(err, counters.ErrUnavailable) {
			g.h.t.Error(err)
			return true
		}
		return err == nil && !a.Lost
	})
	return a
}

// used reads what a counter says was used.
func (g *gate) used(c limit.Charge) int64 {
	c.Cost = 0
	r := g.ask(c).Results[0]
	return r.Consumed - r.Refunded
}

// sell charges and tells of it.
func (g *gate) sell(c limit.Charge) limit.Answer {
	g.h.t.Helper()
	a := g.ask(c)
	if !a.Allowed {
		g.h.t.Fatalf("%+v", a)
	}
	g.h.tell(c, usagev1.Event{Decision: usagev1.DecisionAllow, Status: 200, Cost: c.Cost}, c.Cost, limit.Totals{Consumed: a.Results[0].Consumed, Refunded: a.Results[0].Refunded})
	return a
}

// tell writes an event.
func (h *house) tell(c limit.Charge, e usagev1.Event, units int64, after limit.Totals) {
	h.t.Helper()
	e.EventID, e.StreamID, e.Sequence, e.TS = newID(), h.stream, h.number.Add(1), time.Now().UnixMicro()
	if e.DecisionID == (usagev1.UUID{}) {
		e.DecisionID = e.EventID
	}
	e.Tenant, e.GatewayID, e.Algorithm, e.RuleID = c.Counter.Tenant, "gw-1", string(c.Algorithm), "sold"
	told := usagev1.Counter{
		Key: counters.Key(c.Counter), Observed: true, Limit: c.Limit, Units: units, Consumed: after.Consumed, Refunded: after.Refunded,
		Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: c.Counter.Meter, RuleID: "sold", RuleVersion: 1,
	}
	if c.Counter.Kind == rule.Wallet {
		told.Kind = usagev1.CounterKindWallet
	}
	if !c.Span.End.IsZero() {
		told.PeriodStart, told.PeriodEnd = c.Span.Start.UnixMicro(), c.Span.End.UnixMicro()
	}
	e.Counters = []usagev1.Counter{told}
	done := make(chan error, 1)
	h.client.Produce(h.t.Context(), kafka.Record{
		Topic: usagev1.Topic, Key: []byte(e.Tenant), Value: wire.Frame(nil, h.schema, usagev1.AppendEvent(nil, &e)),
	}, func(err error) { done <- err })
	if err := <-done; err != nil {
		h.t.Fatal(err)
	}
}

// stored is what the books say of a counter.
func (h *house) stored(c limit.Charge) (consumed, refunded, told int64) {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), h.db)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(h.t.Context())) }()
	err = conn.QueryRow(h.t.Context(), `SELECT consumed, refunded, told FROM checkpointer.counters WHERE key = $1`, []byte(counters.Key(c.Counter))).Scan(&consumed, &refunded, &told)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		h.t.Fatal(err)
	}
	return consumed, refunded, told
}

// awaitStored waits until the books have what events told.
func (h *house) awaitStored(c limit.Charge, consumed, told int64) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("a checkpoint of %d", consumed), func() bool {
		got, _, counted := h.stored(c)
		return got == consumed && counted == told
	})
}

// flush empties the store.
func (h *house) flush() {
	h.t.Helper()
	if err := h.redis.Client().FlushAll(h.t.Context()).Err(); err != nil {
		h.t.Fatal(err)
	}
}

// savedOf is a counter as the books are told of it.
func savedOf(c limit.Charge, consumed, refunded int64) []checkpoint.Saved {
	return []checkpoint.Saved{{Key: counters.Key(c.Counter), Saved: limit.Saved{
		Totals: limit.Totals{Consumed: consumed, Refunded: refunded}, Expiry: c.Span.End.Add(checkpoint.KeepFor),
	}}}
}
