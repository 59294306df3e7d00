package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/proxyapi"
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
	store limit.State
	down  bool
	seen  int
}

// Decide is the store.
func (s *told) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	if s.down {
		return limit.Answer{}, errors.New("away")
	}
	return limit.Decide(s.store, noon, d)
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
	put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 3})
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

	decider := decide.NewService(book, s, func() time.Time { return noon }, decide.NewID)
	api := httpapi.New(httpapi.Config{Tokens: []string{decisionToken}}, httpapi.Deps{
		Catalogue: func() httpapi.Catalogue { return book.Current() }, Decider: decider, Recorder: u, Log: slog.New(slog.DiscardHandler),
	})
	s.gate = proxyapi.New(proxyapi.Config{}, proxyapi.Deps{
		Catalogue: func() proxyapi.Catalogue { return book.Current() }, Decider: decider, Own: api, Recorder: u, Log: slog.New(slog.DiscardHandler),
	})
	return s
}

// event is the one that a request makes.
func (s *told) event(r *http.Request) usagev1.Event {
	s.t.Helper()
	r.RemoteAddr = "203.0.113.9:4711"
	s.gate.ServeHTTP(httptest.NewRecorder(), r)
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
