package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/counters"
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

func (m *model) DecideAll(ctx context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(ds)), make([]error, len(ds))
	for i := range ds {
		answers[i], errs[i] = m.Decide(ctx, ds[i])
	}
	return answers, errs
}

func (m *model) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return limit.Correct(m.state, time.Now(), c)
}

// newFaces wires both faces and their metrics as run does, over a catalogue
// with one service and one rule by client address.
func newFaces(t testing.TB, upstream string, units int64) (*proxyapi.Gate, *prometheus.Registry) {
	t.Helper()
	book := decide.NewBook()
	book.Apply([]decide.Change{
		{Kind: decide.ServiceKind, ID: "export", Version: 1, Object: &decide.ServiceDef{ID: "export", Upstream: upstream, PathPrefix: "/export"}},
		{Kind: decide.RuleKind, ID: "address", Version: 2, Object: &rule.Rule{
			ID: "address", Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: rule.IP, Meter: "api-calls",
			Limit: units, Window: time.Hour, Burst: units, OnFailure: rule.Open,
		}},
	})
	return facesOver(t, book, &model{state: limit.NewState()})
}

// facesOver is both faces over a catalogue and a counter store.
func facesOver(t testing.TB, book *decide.Book, store decide.Store) (*proxyapi.Gate, *prometheus.Registry) {
	t.Helper()
	metrics := prometheus.NewRegistry()
	decisions, err := observe.NewDecisions(decide.NewService(book, store, time.Now, decide.NewID, decide.Options{}), metrics)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := observe.NewRequests(metrics, func() int { return 1 })
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	api := httpapi.New(ask.New(ask.Config{Tokens: []string{decisionToken}}, ask.Deps{
		Catalogue: func() ask.Catalogue { return book.Current() }, Decider: decisions,
	}), log)
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

// A silent store is Redis that takes connections and answers nothing.
func silentStore(t *testing.T) *counters.Store {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			})
		}
	})
	store, err := counters.Open(counters.Config{URL: "redis://" + ln.Addr().String(), Budget: counters.DefaultBudget}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = store.Close()
		_ = ln.Close()
		serving.Wait()
	})
	return store
}

// inTime guarantees the 150 ms of FC-14 of nine answers in ten, beside the
// machine's own slack, and bounds the last, in one of five rounds of questions:
// a gate that waits for its store does so in each, a machine that runs other
// tests is late in some. loadtest frozen measures the 150 ms that are promised of all.
func inTime(t *testing.T, round func() []time.Duration) {
	t.Helper()
	var late []string
	for range 5 {
		stop := slack()
		took := slices.Sorted(slices.Values(round()))
		machine := 4 * stop()
		most, last := took[len(took)*9/10], took[len(took)-1]
		if most <= 150*time.Millisecond+machine && last <= 500*time.Millisecond+machine {
			return
		}
		late = append(late, fmt.Sprintf("nine in ten after %v and all after %v (the machine's own slack %v)", most, last, machine))
	}
	t.Errorf("answered %s, want 150 and 500 ms in one round", strings.Join(late, "; "))
}

// slack measures, until it is told to stop, how late this machine wakes who
// asked to be woken: what a bound on a time must allow it.
func slack() (stop func() time.Duration) {
	ended, worst := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		most, last := time.Duration(0), time.Now()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				now := time.Now()
				most, last = max(most, now.Sub(last)-5*time.Millisecond), now
			case <-ended:
				worst <- most
				return
			}
		}
	}()
	return func() time.Duration {
		close(ended)
		return <-worst
	}
}

// TestFC14 guarantees the case's numbers at the decision API, for a store that
// takes longer than the budget: 400 callers at once are answered in time,
// those of the open rule let through, those of the closed one refused, all
// marked, none with a number that nobody knows, and all counted.
func TestFC14(t *testing.T) { // alone: it is about time
	book := decide.NewBook()
	for i, mode := range []rule.FailureMode{rule.Open, rule.Closed} {
		book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: string(mode), Version: int64(i + 1), Object: &rule.Rule{
			ID: string(mode), Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: rule.Tenant, Match: rule.Match{Tenant: string(mode)},
			Meter: "api-calls", Limit: 10, Window: time.Hour, Burst: 10, OnFailure: mode,
		}}})
	}
	before := runtime.NumGoroutine()
	inTime(t, func() []time.Duration {
		gate, metrics := facesOver(t, book, silentStore(t)) // whose breaker has not opened
		var all sync.WaitGroup
		bodies, took := make([]string, 400), make([]time.Duration, 400)
		for i := range bodies {
			all.Go(func() {
				tenant := [...]rule.FailureMode{rule.Open, rule.Closed}[i%2]
				r := httptest.NewRequest("POST", "/v1/decisions", strings.NewReader(fmt.Sprintf(`{"tenant": %q}`, tenant)))
				r.Header.Set("Authorization", "Bearer "+decisionToken)
				w := httptest.NewRecorder()
				began := time.Now()
				gate.ServeHTTP(w, r)
				bodies[i], took[i] = w.Body.String(), time.Since(began)
			})
		}
		all.Wait()
		for i, body := range bodies {
			want := `"outcome":"ALLOW","status":200,"degraded":true`
			if i%2 == 1 {
				want = `"outcome":"DENY","status":503,"code":"store-unavailable","rule_id":"closed","retry_after_seconds":1,"degraded":true`
			}
			if !strings.Contains(body, want) || strings.Contains(body, "remaining") || !strings.Contains(body, `"limits":[]`) {
				t.Fatalf("question %d: %s, want %s", i, body, want)
			}
		}
		if _, total := series(t, metrics, "ratelimit_redis_fallback_total"); total != 400 {
			t.Errorf("the degraded counter reads %v, want 400", total)
		}
		return took
	})
	deadline := time.Now().Add(5 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > before+50 {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		<-tick.C
	}
}
