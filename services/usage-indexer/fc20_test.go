package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/usage-indexer/esindex/storetest"
	"penstock.dev/services/usage-indexer/topics"
)

// decisionOf is event n of stream 1, made now.
func decisionOf(n int) usagev1.Event {
	e := usagev1.Event{
		EventID: usagev1.UUID{6: 0x70, 8: 0x80, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}, TS: time.Now().UnixMicro(),
		StreamID: usagev1.UUID{15: 1}, Sequence: int64(n), Decision: usagev1.DecisionAllow, Status: 200, Tenant: "acme",
		Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay", RuleID: "acme-burst", Algorithm: "gcra",
		Cost: 1, LatencyUS: 412, GatewayID: "gw-1", RulesVersion: 812,
	}
	e.DecisionID = e.EventID
	return e
}

// produceDecisions writes events from to below to, all in one partition.
func produceDecisions(t testing.TB, b *kafkatest.Broker, partition int32, from, to int) {
	t.Helper()
	id, err := kafka.NewRegistry(b.RegistryURL).Register(t.Context(), usagev1.Subject, schemas.UsageV1)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kafka.New(kafka.Config{Brokers: b.Brokers}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	var failed atomic.Int64
	for n := from; n < to; n++ {
		e := decisionOf(n)
		e.StreamID[0] = byte(partition)
		r := kafka.Record{Topic: usagev1.Topic, Key: []byte(e.Tenant), Value: wire.Frame(nil, id, usagev1.AppendEvent(nil, &e))}
		client.ProduceTo(t.Context(), partition, r, func(err error) {
			if err != nil {
				failed.Add(1)
			}
		})
	}
	if err := client.Flush(t.Context()); err != nil || failed.Load() > 0 {
		t.Fatalf("%d events were not produced (%v)", failed.Load(), err)
	}
}

// A served is the service as a process would run it.
type served struct {
	t     *testing.T
	admin string
	stop  context.CancelFunc
	done  chan error
}

// serve runs the service until its end, or that of the test.
func serve(t *testing.T, b *kafkatest.Broker, store string, more ...string) *served {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	s := &served{t: t, admin: "http://" + addr, stop: cancel, done: make(chan error, 1)}
	p := boot.Process{
		Service: "usage-indexer", Getenv: none, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Stopping: ctx.Done(),
		Args: append([]string{
			"-admin-listen", addr, "-kafka-brokers", strings.Join(b.Brokers, ","), "-schema-registry", b.RegistryURL,
			"-elasticsearch-url", store, "-replicas", "0", "-topic-replicas", "1",
		}, more...),
	}
	go func() { s.done <- run(ctx, p) }()
	t.Cleanup(s.end)
	return s
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

// get returns the status and the body of a page of the admin port, 0 when it does
// not answer.
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
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err == nil {
				return v
			}
		}
	}
	return -1
}

// behind returns how many records the group has not committed, -1 when it has
// committed nothing.
func behind(t testing.TB, b *kafkatest.Broker) int64 {
	t.Helper()
	client, err := kafka.New(kafka.Config{Brokers: b.Brokers}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	lag, err := client.Lag(t.Context(), topics.Group, usagev1.Topic)
	if err != nil {
		return -1
	}
	var sum int64
	for _, n := range lag {
		sum += n
	}
	return sum
}

// TestFC20TheWholeWay guarantees case FC-20 from the topic to the index: of ten
// events in one request, 4 and 7 are refused for now and 9 for good; exactly 4 and
// 7 are sent again, nine documents are there, the tenth record is in the
// dead-letter topic once, and the offset moves past the batch only after all that.
func TestFC20TheWholeWay(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic(usagev1.Topic, 1)
	produceDecisions(t, b, 0, 1, 11)
	fake := storetest.New()
	committedEarly := false
	fake.Script(func(call int, docs []storetest.Doc) storetest.Answer {
		if len(docs) == 0 {
			return storetest.Answer{}
		}
		committedEarly = committedEarly || behind(t, b) == 0
		if call > 1 {
			return storetest.Answer{}
		}
		full := storetest.Item{Status: 429, Type: "es_rejected_execution_exception", Reason: "queue full"}
		return storetest.Answer{Items: map[int]storetest.Item{
			3: full, 6: full, 8: {Status: 400, Type: "document_parsing_exception", Reason: "failed to parse field [cost]"},
		}}
	})
	srv := httptest.NewServer(fake)
	t.Cleanup(srv.Close)
	s := serve(t, b, srv.URL)
	kafkatest.Eventually(t, func() bool { return behind(t, b) == 0 }, "the batch to be committed")
	if committedEarly {
		t.Error("the offset moved before the batch was done")
	}
	calls := fake.Calls()
	if len(calls) != 2 || !slices.Equal(sequences(calls[1]), []int{4, 7}) {
		t.Errorf("%d calls, the last of %v, want a second one of exactly 4 and 7", len(calls), sequences(calls[len(calls)-1]))
	}
	if n := len(fake.Docs()); n != 9 {
		t.Errorf("the index holds %d documents, want 9", n)
	}
	held := b.Consume(topics.Aside)
	if len(held) != 1 || held[0].Headers[topics.HeaderOffset] != "8" || held[0].Headers[topics.HeaderReason] != "refused" {
		t.Errorf("the dead-letter topic holds %+v, want record 9 once", held)
	}
	if status, page := s.get("/ready"); status != http.StatusOK {
		t.Errorf("/ready answers %d: %s", status, page)
	}
}

// sequences are the events of a call by their numbers.
func sequences(docs []storetest.Doc) []int {
	var all []int
	for _, d := range docs {
		var doc struct{ Sequence int }
		if json.Unmarshal(d.Body, &doc) != nil {
			doc.Sequence = -1
		}
		all = append(all, doc.Sequence)
	}
	return all
}

// TestFC20FullForEver guarantees the end of case FC-20: with 429 for ever the offset
// stays, the lag grows, /ready says why, and the service can be stopped; once the
// store takes documents, all of them are there.
func TestFC20FullForEver(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t)
	b.CreateTopic(usagev1.Topic, 1)
	produceDecisions(t, b, 0, 1, 11)
	fake := storetest.New()
	var full atomic.Bool
	full.Store(true)
	fake.Script(func(_ int, docs []storetest.Doc) storetest.Answer {
		if !full.Load() {
			return storetest.Answer{}
		}
		items := map[int]storetest.Item{}
		for i := range docs {
			items[i] = storetest.Item{Status: 429, Type: "es_rejected_execution_exception", Reason: "queue full"}
		}
		return storetest.Answer{Items: items}
	})
	srv := httptest.NewServer(fake)
	t.Cleanup(srv.Close)
	s := serve(t, b, srv.URL)
	kafkatest.Eventually(t, func() bool {
		return s.metric(`penstock_usage_indexer_store_state{state="retrying"}`) == 1 && s.metric("penstock_usage_indexer_lag_seconds") > 0
	}, "the trouble to show")
	before := s.metric("penstock_usage_indexer_lag_seconds")
	kafkatest.Eventually(t, func() bool {
		status, page := s.get("/ready")
		return status == http.StatusServiceUnavailable && strings.Contains(page, "queue full")
	}, "/ready to say why")
	if after := s.metric("penstock_usage_indexer_lag_seconds"); after < before+5 {
		t.Errorf("the lag went from %v s to %v s, want it to grow", before, after)
	}
	if n := behind(t, b); n == 0 {
		t.Error("the offset moved")
	}
	s.end()
	full.Store(false)
	serve(t, b, srv.URL)
	kafkatest.Eventually(t, func() bool { return behind(t, b) == 0 }, "the batch to be committed")
	if n := len(fake.Docs()); n != 10 {
		t.Errorf("the index holds %d documents, want 10", n)
	}
}
