package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/gateway/receipt"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// noon is when all tests of events decide.
var noon = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

// A topic is Kafka and its registry, for one schema.
type topic struct {
	mu      sync.Mutex
	text    string
	records []kafka.Record
}

func (p *topic) TryProduceTo(_ context.Context, _ int32, r kafka.Record, done func(error)) {
	p.mu.Lock()
	r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	p.records = append(p.records, r)
	p.mu.Unlock()
	done(nil)
}

func (p *topic) EnsureTopics(context.Context, []kafka.Topic) error { return nil }

func (p *topic) Partitions(context.Context, string) (int32, error) { return usagev1.Partitions, nil }

func (p *topic) Register(_ context.Context, _, text string) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
	return 1, nil
}

func (p *topic) Schema(context.Context, uint32) (string, []string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text, []string{usagev1.Subject}, nil
}

// A told is both faces over one store, and what they tell.
type told struct {
	t     *testing.T
	gate  *proxyapi.Gate
	topic *topic
	mu    sync.Mutex
	store limit.State
	down  bool
	seen  int
}

// Decide is the store.
func (s *told) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return limit.Answer{}, errors.New("away")
	}
	return limit.Decide(s.store, noon, d)
}

// DecideAll is the store.
func (s *told) DecideAll(ctx context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(ds)), make([]error, len(ds))
	for i := range ds {
		answers[i], errs[i] = s.Decide(ctx, ds[i])
	}
	return answers, errs
}

// Correct is the store.
func (s *told) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return limit.Correct(s.store, noon, c)
}

// newTold wires the faces and the events as run does, over a catalogue with one
// service, and for each tenant the rules of one outcome.
func newTold(t *testing.T, upstream string) *told {
	t.Helper()
	s := &told{t: t, topic: &topic{}, store: limit.NewState()}
	u, err := usage.New(usage.Config{Gateway: "gw-7", Buffer: 4 << 20, Linger: time.Millisecond}, s.topic, s.topic, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = u.Run(ctx) // canceled
	}()
	t.Cleanup(func() { cancel(); <-done })

	book := decide.NewBook()
	version := int64(0)
	put := func(kind decide.Kind, id string, object any) {
		version++
		book.Apply([]decide.Change{{Kind: kind, ID: id, Version: version, Object: object}})
	}
	put(decide.ServiceKind, "payments", &decide.ServiceDef{ID: "payments", Upstream: upstream, PathPrefix: "/payments", StripPrefix: true})
	put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 3, RefundOn: []string{"5xx"}})
	for _, tenant := range []string{"free", "full", "shadowed", "open", "closed", "banned"} {
		put(decide.KeyKind, tenant+"-1", &decide.Key{ID: tenant + "-1", Tenant: tenant, Application: "web", User: "u1", Digest: sha256.Sum256([]byte("secret of " + tenant))})
	}
	monthly := func(tenant string, n int64, change func(*rule.Rule)) {
		r := &rule.Rule{
			ID: tenant + "-month", Version: 5, Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant,
			Match: rule.Match{Tenant: tenant}, Meter: "api-calls", Limit: n, OnFailure: rule.Open,
			Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}, Thresholds: rule.Thresholds{Percent: []int32{80, 100}},
		}
		if change != nil {
			change(r)
		}
		put(decide.RuleKind, r.ID, r)
	}
	monthly("free", 1000, nil)
	monthly("full", 2, nil)
	monthly("shadowed", 2, func(r *rule.Rule) { r.Mode = rule.Shadow })
	monthly("open", 1000, nil)
	monthly("closed", 1000, func(r *rule.Rule) { r.OnFailure = rule.Closed })
	put(decide.RuleKind, "banned", &rule.Rule{
		ID: "banned", Version: 5, Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{Tenant: "banned"}, OnFailure: rule.Open,
	})

	decider := decide.NewService(book, s, func() time.Time { return noon }, decide.NewID, decide.Options{})
	keys, err := receipt.ParseKeys("2026-11:secret-of-november")
	if err != nil {
		t.Fatal(err)
	}
	api := httpapi.New(ask.New(ask.Config{Tokens: []string{decisionToken}, Receipts: keys}, ask.Deps{
		Catalogue: func() ask.Catalogue { return book.Current() }, Decider: decider, Recorder: u,
		Now: func() time.Time { return noon },
	}), slog.New(slog.DiscardHandler))
	s.gate = proxyapi.New(proxyapi.Config{}, proxyapi.Deps{
		Catalogue: func() proxyapi.Catalogue { return book.Current() }, Decider: decider, Own: api, Recorder: u, Log: slog.New(slog.DiscardHandler),
	})
	return s
}

// event is the one that a request makes.
func (s *told) event(r *http.Request) usagev1.Event {
	s.t.Helper()
	_ = s.answer(r)
	return s.next()
}

// answer is what a request is answered.
func (s *told) answer(r *http.Request) string {
	r.RemoteAddr = "203.0.113.9:4711"
	w := httptest.NewRecorder()
	s.gate.ServeHTTP(w, r)
	return w.Body.String()
}

// next is the next event on the topic.
func (s *told) next() usagev1.Event {
	s.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s.topic.mu.Lock()
		records := s.topic.records
		s.topic.mu.Unlock()
		if len(records) > s.seen {
			s.seen++
			e, err := usagev1.NewDecoder(wire.NewIDs(s.topic, usagev1.Subject)).Decode(s.t.Context(), records[s.seen-1].Key, records[s.seen-1].Value)
			if err != nil {
				s.t.Fatal(err)
			}
			return e
		}
		if time.Now().After(deadline) {
			s.t.Fatal("no event came")
		}
		<-tick.C
	}
}

// TestEvents guarantees every field of the event of each outcome, for a question
// and for a proxied request: they differ in nothing but what only one of them
// knows.
func TestEvents(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	t.Cleanup(up.Close)
	start, end := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	counter := func(tenant, mode string, n, units, consumed int64, observed bool) []usagev1.Counter {
		c := usagev1.Counter{
			Key: fmt.Sprintf("{t:%s}:%.1s:quota:t:api-calls:g:month*1:%d", tenant, mode, start), Observed: observed, PeriodStart: start, PeriodEnd: end,
			Limit: n, Units: units, Consumed: consumed, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "api-calls",
			RuleID: tenant + "-month", RuleVersion: 5, ThresholdsPercent: []int32{80, 100},
		}
		if mode == "shadow" {
			c.Mode = usagev1.ModeShadow
		}
		return []usagev1.Counter{c}
	}
	for _, tt := range []struct {
		tenant    string
		down      bool
		decision  usagev1.Decision
		status    int32
		rule      string
		algorithm string
		counters  func(consumed int64) []usagev1.Counter // given what two equal requests consume, the first and the second
	}{
		{"free", false, usagev1.DecisionAllow, 200, "free-month", "quota", func(n int64) []usagev1.Counter { return counter("free", "enforce", 1000, 3, n, true) }},
		{"full", false, usagev1.DecisionDeny, 429, "full-month", "quota", func(int64) []usagev1.Counter { return counter("full", "enforce", 2, 0, 0, true) }},
		{"shadowed", false, usagev1.DecisionShadowDeny, 200, "shadowed-month", "quota", func(int64) []usagev1.Counter { return counter("shadowed", "shadow", 2, 0, 0, true) }},
		{"open", true, usagev1.DecisionDegradedAllow, 200, "", "", func(int64) []usagev1.Counter { return counter("open", "enforce", 1000, 3, 0, false) }},
		{"closed", true, usagev1.DecisionDegradedDeny, 503, "closed-month", "quota", func(int64) []usagev1.Counter { return counter("closed", "enforce", 1000, 0, 0, false) }},
		{"banned", false, usagev1.DecisionBlocked, 403, "banned", "none", func(int64) []usagev1.Counter { return nil }},
		{"unknown", false, usagev1.DecisionDeny, 401, "", "", func(int64) []usagev1.Counter { return nil }},
	} {
		t.Run(tt.tenant, func(t *testing.T) {
			t.Parallel()
			s := newTold(t, up.URL)
			s.down = tt.down
			secret := "secret of " + tt.tenant
			digest := sha256.Sum256([]byte(secret))
			want := usagev1.Event{
				TS: noon.UnixMicro(), Decision: tt.decision, Status: tt.status, Tenant: tt.tenant, Application: "web", User: "u1", APIKey: tt.tenant + "-1",
				APIKeyHash: digest[:16], ClientAddress: "203.0.113.9", Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay/{id}",
				RuleID: tt.rule, Algorithm: tt.algorithm, Cost: 3, GatewayID: "gw-7", RulesVersion: 14, Counters: tt.counters(3), LabelsJSON: `{"region":"eu"}`,
			}
			if tt.tenant == "unknown" {
				want.Tenant, want.Application, want.User, want.APIKey = "", "", "", ""
			}
			check := func(face string, got usagev1.Event) {
				t.Helper()
				if got.EventID != got.DecisionID || got.LatencyUS < 0 || got.Upstream != nil && got.Upstream.DurationUS <= 0 {
					t.Errorf("%s: %+v", face, got)
				}
				ignored := cmpopts.IgnoreFields(usagev1.Event{}, "EventID", "DecisionID", "StreamID", "Sequence", "LatencyUS")
				times := cmpopts.IgnoreFields(usagev1.Event{}, "TS")
				if tt.tenant != "unknown" { // which is decided by this process's clock
					times = ignored
				}
				if diff := cmp.Diff(want, got, ignored, times, cmpopts.IgnoreFields(usagev1.Upstream{}, "DurationUS"), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s (-want +got)\n%s", face, diff)
				}
			}
			ask := httptest.NewRequest(http.MethodPost, "/v1/decisions", strings.NewReader(fmt.Sprintf(
				`{"api_key": %q, "client_ip": "203.0.113.9", "service": "payments", "method": "POST", "path": "/v1/pay/17", "labels": {"region": "eu"}}`, secret)))
			ask.Header.Set("Authorization", "Bearer "+decisionToken)
			check("a question", s.event(ask))

			send := httptest.NewRequest(http.MethodPost, "/payments/v1/pay/18", nil)
			send.Header.Set("X-API-Key", secret)
			want.LabelsJSON, want.Counters = "", tt.counters(6)
			if want.Status == 200 {
				want.Status, want.Upstream = 202, &usagev1.Upstream{Status: 202}
			}
			check("a request", s.event(send))
		})
	}
}

// TestEventsOfCorrections guarantees every field of the events of a refund, of a
// settlement and of a charge that refund_on gives back: the decision that each
// corrects, and its counters as they are then.
func TestEventsOfCorrections(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(up.Close)
	s := newTold(t, up.URL)
	post := func(path, body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+decisionToken)
		return r
	}
	ask := func() (id, receipt string, decision usagev1.Event) {
		var d struct {
			DecisionID string `json:"decision_id"`
			Receipt    string
		}
		if err := json.Unmarshal([]byte(s.answer(post("/v1/decisions", `{"api_key": "secret of free", "client_ip": "203.0.113.9", "service": "payments", "method": "POST", "path": "/v1/pay/17"}`))), &d); err != nil {
			t.Fatal(err)
		}
		return d.DecisionID, d.Receipt, s.next()
	}
	// corrects holds an event of a correction to the decision that it corrects.
	corrects := func(name string, e, d usagev1.Event, verdict usagev1.Decision, refund string, cost, units, consumed, refunded int64) {
		t.Helper()
		want := d
		want.RefundID = refund
		want.Decision, want.Cost, want.RuleID, want.Algorithm, want.APIKeyHash = verdict, cost, "", "", nil
		want.Counters = slices.Clone(d.Counters)
		want.Counters[0].Units, want.Counters[0].Consumed, want.Counters[0].Refunded = units, consumed, refunded
		if e.EventID == e.DecisionID || e.DecisionID != d.EventID || e.LatencyUS < 0 {
			t.Errorf("%s: %+v", name, e)
		}
		if diff := cmp.Diff(want, e, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(usagev1.Event{}, "EventID", "DecisionID", "StreamID", "Sequence", "LatencyUS", "Status", "Upstream")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	id, receipt, d := ask()
	corrects("a refund", s.event(post("/v1/decisions/"+id+"/refund", fmt.Sprintf(`{"receipt": %q, "refund_id": "f-1", "units": 2}`, receipt))), d, usagev1.DecisionRefund, "f-1", 2, -2, 3, 2)
	id, receipt, d = ask()
	corrects("a settlement", s.event(post("/v1/decisions/"+id+"/settle", fmt.Sprintf(`{"receipt": %q, "cost": 7}`, receipt))), d, usagev1.DecisionSettle, "", 7, 4, 10, 2)

	r := httptest.NewRequest(http.MethodPost, "/payments/v1/pay/18", nil)
	r.Header.Set("X-API-Key", "secret of free")
	d = s.event(r)
	if d.Decision != usagev1.DecisionAllow || d.Status != 503 {
		t.Errorf("the request: %+v", d)
	}
	e := s.next()
	corrects("refund_on", e, d, usagev1.DecisionRefund, e.RefundID, 3, -3, 13, 5)
	if want := d.EventID.String(); e.RefundID != want {
		t.Errorf("refund_on: the refund is %s, want the decision's id %s", e.RefundID, want)
	}
}
