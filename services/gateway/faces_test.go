package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

const decisionToken = "0123456789abcdef"

// A model is the counter store, in memory.
type model struct {
	mu    sync.Mutex
	state limit.State
}

func (m *model) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return limit.Decide(m.state, time.Now(), d)
}

// newFaces wires both faces and their metrics as run does, over a catalogue
// with one service and one rule by client address.
func newFaces(t testing.TB, upstream string, units int64) (*proxyapi.Gate, *prometheus.Registry) {
	t.Helper()
	metrics := prometheus.NewRegistry()
	book := decide.NewBook()
	book.Apply([]decide.Change{
		{Kind: decide.ServiceKind, ID: "export", Version: 1, Object: &decide.ServiceDef{ID: "export", Upstream: upstream, PathPrefix: "/export"}},
		{Kind: decide.RuleKind, ID: "address", Version: 2, Object: &rule.Rule{
			ID: "address", Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: rule.IP, Meter: "api-calls",
			Limit: units, Window: time.Hour, Burst: units, OnFailure: rule.Open,
		}},
	})
	decisions, err := observe.NewDecisions(decide.NewService(book, &model{state: limit.NewState()}, time.Now, decide.NewID), metrics)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := observe.NewRequests(metrics)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	api := httpapi.New(httpapi.Config{Tokens: []string{decisionToken}}, httpapi.Deps{
		Catalogue: func() httpapi.Catalogue { return book.Current() }, Decider: decisions, Log: log,
	})
	return proxyapi.New(proxyapi.Config{}, proxyapi.Deps{
		Catalogue: func() proxyapi.Catalogue { return book.Current() }, Decider: decisions, Own: api, Meter: meter{requests}, Log: log,
	}), metrics
}

// series counts the lines that a scrape would have, and adds up the counters
// of a name.
func series(t *testing.T, metrics *prometheus.Registry, name string) (lines int, total float64) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			lines++
			if h := m.GetHistogram(); h != nil {
				lines += len(h.GetBucket()) + 2
			}
			if f.GetName() == name {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return lines, total
}

// TestFC33 guarantees that metrics and memory do not grow with paths, keys and
// methods: 21,000 different ones add no series and are all counted.
func TestFC33(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(up.Close)
	gate, metrics := newFaces(t, up.URL, 50)
	send := func(method, path, key string) {
		r := httptest.NewRequest(method, path, nil)
		r.RemoteAddr = "203.0.113.9:4711"
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		gate.ServeHTTP(httptest.NewRecorder(), r)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const requests = "penstock_gateway_requests_total"
	before, _ := series(t, metrics, requests)
	used := heap()
	for i := range 10_000 {
		send("GET", fmt.Sprintf("/export/%d", i), "")
		send("GET", "/export", fmt.Sprintf("key-%d", i))
		if i < 1_000 {
			send(fmt.Sprintf("INVENTED%d", i), "/export", "")
		}
	}
	after, total := series(t, metrics, requests)
	if after > before+200 || total != 21_000 {
		t.Errorf("%d series of %d, %v requests; want at most 200 more and 21000", after, before, total)
	}
	if grown := heap() - used; grown > 20<<20 {
		t.Errorf("memory grew by %d bytes, want at most 20 MiB", grown)
	}
}

// TestOneCounter guarantees that a question and a proxied request spend from
// the same counter, and that both are decisions on the metrics page.
func TestOneCounter(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(up.Close)
	gate, metrics := newFaces(t, up.URL, 3)
	ask := func() string {
		r := httptest.NewRequest("POST", "/v1/decisions", strings.NewReader(`{"client_ip": "203.0.113.9", "service": "export", "path": "/x"}`))
		r.Header.Set("Authorization", "Bearer "+decisionToken)
		w := httptest.NewRecorder()
		gate.ServeHTTP(w, r)
		return w.Body.String()
	}
	request := func() int {
		r := httptest.NewRequest("GET", "/export/x", nil)
		r.RemoteAddr = "203.0.113.9:4711"
		w := httptest.NewRecorder()
		gate.ServeHTTP(w, r)
		return w.Code
	}
	if body := ask(); !strings.Contains(body, `"remaining":2`) {
		t.Errorf("first question: %s", body)
	}
	if code := request(); code != 200 {
		t.Errorf("first request: %d", code)
	}
	if body := ask(); !strings.Contains(body, `"remaining":0`) {
		t.Errorf("second question: %s", body)
	}
	if code := request(); code != 429 {
		t.Errorf("second request: %d, want 429", code)
	}
	if _, total := series(t, metrics, "ratelimit_decisions_total"); total != 4 {
		t.Errorf("%v decisions counted, want 4", total)
	}
}
