//go:build integration

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/internal/redistest"
)

// An estate is what a gateway needs around it.
type estate struct {
	t      *testing.T
	broker *kafkatest.Broker
	redis  *redistest.Server
	dir    string
	writer *wire.Writer
	last   int64 // version
}

func newEstate(t *testing.T) *estate {
	e := &estate{t: t, broker: kafkatest.Start(t), redis: redistest.Start(t), dir: t.TempDir()}
	e.broker.CreateTopic(rulesv1.Topic, 1, "cleanup.policy", "compact")
	e.writer = wire.NewWriter(kafka.NewRegistry(e.broker.RegistryURL), rulesv1.Subject, schemas.RulesV1)
	return e
}

// put writes an object as rule-admin and the relay do.
func (e *estate) put(r rulesv1.Record) {
	e.t.Helper()
	e.last++
	r.Version, r.Revision, r.ChangedAt = e.last, e.last, time.Now().UnixMicro()
	body, err := rulesv1.AppendRecord(nil, &r)
	if err != nil {
		e.t.Fatal(err)
	}
	value, err := e.writer.Frame(e.t.Context(), body)
	if err != nil {
		e.t.Fatal(err)
	}
	e.broker.Produce(&kafkatest.Record{Topic: rulesv1.Topic, Key: rulesv1.Key(r.Kind, r.ID), Value: value})
}

// seed writes a tenant with a key, a service in front of upstream, and a rate.
func (e *estate) seed(upstream string, limit int64) {
	digest := sha256.Sum256([]byte("acme-secret-of-some-length"))
	e.put(rulesv1.Record{Kind: rulesv1.KindTenant, ID: "acme", Tenant: &rulesv1.Tenant{Name: "Acme", Zone: "Europe/Istanbul"}})
	e.put(rulesv1.Record{Kind: rulesv1.KindAPIKey, ID: "acme-1", APIKey: &rulesv1.APIKey{Tenant: "acme", Digest: digest[:]}})
	e.put(rulesv1.Record{Kind: rulesv1.KindService, ID: "payments", Service: &rulesv1.Service{
		Name: "Payments", Upstream: upstream, PathPrefix: "/payments", StripPrefix: true,
	}})
	e.limit(limit)
}

func (e *estate) limit(n int64) {
	e.t.Helper()
	e.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: "acme-burst", Rule: &rulesv1.Rule{
		Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindRate, Algorithm: rulesv1.AlgorithmGCRA,
		Subject: []rulesv1.Dimension{rulesv1.DimensionTenant}, Meter: "api-calls", Limit: &n, Burst: &n,
		WindowUS: time.Hour.Microseconds(), OnFailure: rulesv1.OnFailureOpen, Wallet: rulesv1.WalletModeNone,
	}})
}

// A gateway is one that runs.
type gateway struct {
	t          *testing.T
	url, admin string
	log        *tail
	stop       func() int // returns the exit code
}

func (e *estate) start(args ...string) *gateway {
	e.t.Helper()
	data, admin := freePort(e.t), freePort(e.t)
	g := &gateway{t: e.t, url: "http://" + data, admin: "http://" + admin, log: &tail{}}
	ctx, cancel := context.WithCancel(e.t.Context())
	done := make(chan int, 1)
	args = append([]string{
		"-listen", data, "-admin-listen", admin, "-kafka-brokers", strings.Join(e.broker.Brokers, ","),
		"-schema-registry", e.broker.RegistryURL, "-redis-url", e.redis.URL, "-redis-budget", "2s", "-data-dir", e.dir,
		"-adopt-store", // there is no checkpointer
	}, args...)
	go func() {
		done <- boot.Exec(ctx, "gateway", args, environment("PENSTOCK_DECISION_TOKENS", token), g.log, run)
	}()
	g.stop = sync.OnceValue(func() int { cancel(); return <-done })
	e.t.Cleanup(func() {
		g.stop()
		if e.t.Failed() {
			e.t.Log(g.log)
		}
	})
	return g
}

func (g *gateway) get(url string, header ...string) (int, http.Header, string) {
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(body)
}

func (g *gateway) ready() {
	g.t.Helper()
	kafkatest.Eventually(g.t, func() bool {
		code, _, body := g.get(g.admin + "/ready")
		return code == 200 && !strings.Contains(body, "remarks")
	}, "a gateway that is ready")
}

func (g *gateway) pay() (int, http.Header, string) {
	return g.get(g.url+"/payments/v1/pay", "X-API-Key", "acme-secret-of-some-length")
}

// token is that of a trusted caller.
const token = "a-token-of-some-length"

func (g *gateway) decide(question string) (int, string) {
	g.t.Helper()
	return g.post("/v1/decisions", question)
}

func (g *gateway) post(path, body string) (int, string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer)
}

// TestIntegrationGateway guarantees that the whole service holds together: a
// record on rules.v1 limits real traffic to a real upstream, a changed one does
// within moments, and what was used is kept.
func TestIntegrationGateway(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s for %s", r.URL.Path, r.Header.Get("X-Tenant-Id"))
	}))
	defer upstream.Close()
	e := newEstate(t)
	e.seed(upstream.URL, 3)
	g := e.start()
	g.ready()
	for i := range 4 {
		code, header, body := g.pay()
		switch {
		case i < 3 && (code != 200 || body != "/v1/pay for acme" || header.Get("X-RateLimit-Remaining") != fmt.Sprint(2-i)):
			t.Errorf("request %d: %d %s %v", i+1, code, body, header)
		case i == 3 && (code != 429 || header.Get("Retry-After") == ""):
			t.Errorf("request %d: %d %s %v", i+1, code, body, header)
		}
	}
	if code, _, _ := g.get(g.url+"/payments/v1/pay", "X-API-Key", "wrong"); code != 401 {
		t.Errorf("a wrong key gets %d, want 401", code)
	}
	e.limit(10)
	kafkatest.Eventually(t, func() bool { code, _, _ := g.pay(); return code == 200 }, "the raised limit in force")
	if code, body := g.decide(`{"tenant": "acme", "cost": 0}`); code != 200 || !strings.Contains(body, `"rule_id":"acme-burst"`) {
		t.Errorf("a question on the same port: %d %s", code, body)
	}
	_, _, page := g.get(g.admin + "/metrics")
	for _, series := range []string{
		`ratelimit_decisions_total{outcome="ALLOW"}`, "ratelimit_decision_latency_seconds_count", "ratelimit_redis_fallback_total 0",
		`penstock_gateway_requests_total{status="401"} 1`, `penstock_gateway_rules_objects{kind="rule"} 1`,
	} {
		if !strings.Contains(page, series) {
			t.Errorf("no %s on the page of metrics", series)
		}
	}
	if code := g.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	outcomes := map[string]int{}
	for _, ev := range e.told() {
		outcomes[fmt.Sprint(ev.Decision, " ", ev.Status, " ", ev.Tenant)]++
	}
	if outcomes["ALLOW 200 acme"] != 4 || outcomes["DENY 429 acme"] < 1 || outcomes["DENY 401 "] != 1 || len(outcomes) != 3 {
		t.Errorf("told on usage.v1: %v", outcomes)
	}
}

// told are the events on usage.v1, each once. Every stream must be numbered
// without a gap.
func (e *estate) told() (events []usagev1.Event) {
	e.t.Helper()
	d := usagev1.NewDecoder(wire.NewIDs(kafka.NewRegistry(e.broker.RegistryURL), usagev1.Subject))
	last := map[usagev1.UUID]int64{}
	for _, r := range e.broker.Consume(usagev1.Topic) {
		ev, err := d.Decode(e.t.Context(), []byte(r.Key), r.Value)
		if err != nil {
			e.t.Fatal(err)
		}
		switch next := last[ev.StreamID] + 1; {
		case ev.Sequence < next:
			continue
		case ev.Sequence > next:
			e.t.Errorf("stream %v goes from %d to %d", ev.StreamID, next-1, ev.Sequence)
		}
		last[ev.StreamID] = ev.Sequence
		events = append(events, ev)
	}
	return events
}

// TestIntegrationUsageWithoutKafka guarantees that decisions which were made
// while Kafka was away are told once it is back: by the gateway that made them,
// or where that was stopped by the next one. Nobody waits for it, and the
// process ends well.
func TestIntegrationUsageWithoutKafka(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	e := newEstate(t)
	e.seed(upstream.URL, 1_000_000)
	g := e.start()
	g.ready()
	pay := func(n int) {
		t.Helper()
		for range n {
			if code, _, body := g.pay(); code != 200 {
				t.Fatalf("request: %d %s", code, body)
			}
		}
	}
	pay(10)
	e.broker.Stop()
	pay(20)
	kafkatest.Eventually(t, func() bool {
		code, _, body := g.get(g.admin + "/ready")
		return code == 200 && strings.Contains(body, "go to disk")
	}, "a remark that events go to disk")
	pay(20)
	e.broker.Start()
	g.ready()
	if n := len(e.told()); n != 50 {
		t.Errorf("%d events once Kafka is back, want 50", n)
	}

	e.broker.Stop()
	pay(30)
	if code := g.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if !strings.Contains(g.log.String(), `"on_disk":30,"lost":0`) {
		t.Error("the log does not say how many events are on disk")
	}
	e.broker.Start()
	if n := len(e.told()); n != 50 {
		t.Errorf("%d events without a gateway, want 50", n)
	}
	g = e.start()
	kafkatest.Eventually(t, func() bool { return len(e.told()) == 80 }, "80 events")
	g.ready()
	pay(5)
	kafkatest.Eventually(t, func() bool { return len(e.told()) == 85 }, "85 events")
}

// TestIntegrationStartWithoutKafka guarantees that a gateway that ran before
// enforces its rules while Kafka and the registry are away, says so, and lets
// nothing pass while it has none; and that one without rules does not listen.
func TestIntegrationStartWithoutKafka(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	e := newEstate(t)
	e.seed(upstream.URL, 2)
	first := e.start()
	first.ready()
	if code := first.stop(); code != 0 {
		t.Fatalf("exit code %d, want 0", code)
	}
	e.broker.Stop()

	g := e.start("-snapshot-wait", "100ms")
	kafkatest.Eventually(t, func() bool { code, _, _ := g.get(g.admin + "/ready"); return code == 200 }, "a gateway that serves its snapshot")
	_, _, body := g.get(g.admin + "/ready")
	var ready struct{ Remarks map[string]string }
	if err := json.Unmarshal([]byte(body), &ready); err != nil || !strings.Contains(ready.Remarks["rules"], "serving the snapshot of") {
		t.Errorf("ready says %s", body)
	}
	if _, _, page := g.get(g.admin + "/metrics"); !strings.Contains(page, "penstock_gateway_snapshot_serving 1") {
		t.Error("no metric says that the snapshot is served")
	}
	for i, want := range []int{200, 200, 429} {
		if code, _, body := g.pay(); code != want {
			t.Errorf("request %d: %d %s, want %d", i+1, code, body, want)
		}
	}

	e.dir = t.TempDir()
	bare := e.start("-snapshot-wait", "1ms")
	kafkatest.Eventually(t, func() bool { code, _, _ := bare.get(bare.admin + "/live"); return code == 200 }, "a live gateway")
	if code, _, body := bare.get(bare.admin + "/ready"); code != 503 || !strings.Contains(body, "reading rules.v1") {
		t.Errorf("without rules: %d %s, want 503", code, body)
	}
	if code, _, body := bare.pay(); code != 0 {
		t.Errorf("without rules, a request got %d %s", code, body)
	}

	e.broker.Start()
	g.ready()
}

// TestIntegrationRedisGone guarantees that a gateway that loses its counter
// store stays in service, answers by the rules' failure modes, and counts that.
func TestIntegrationRedisGone(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	e := newEstate(t)
	e.seed(upstream.URL, 1)
	g := e.start("-redis-budget", "50ms")
	g.ready()
	e.redis.Kill()
	for range 3 {
		if code, _, body := g.pay(); code != 200 {
			t.Errorf("an open rule without the store: %d %s, want 200", code, body)
		}
	}
	if code, _, body := g.get(g.admin + "/ready"); code != 200 || !strings.Contains(body, "failure modes") {
		t.Errorf("ready: %d %s, want 200 with a remark", code, body)
	}
	if _, _, page := g.get(g.admin + "/metrics"); !strings.Contains(page, "ratelimit_redis_fallback_total 3") {
		t.Error("the fallback counter does not read 3")
	}
}

// month writes a monthly quota of acme's.
func (e *estate) month(n int64) {
	e.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: "acme-month", Rule: &rulesv1.Rule{
		Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindQuota, Algorithm: rulesv1.AlgorithmQuota,
		Subject: []rulesv1.Dimension{rulesv1.DimensionTenant}, Meter: "api-calls", Limit: &n,
		Period:    &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar},
		OnFailure: rulesv1.OnFailureClosed, Wallet: rulesv1.WalletModeNone,
	}})
}

// TestIntegrationCorrections guarantees that what one gateway charged another
// gives back and settles, while their keys are rotated; that a batch is decided
// in one go; that an upstream's failure gives back by itself; that every
// correction is told once; and that the gateways know how many they are.
func TestIntegrationCorrections(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer upstream.Close()
	e := newEstate(t)
	e.seed(upstream.URL, 1000)
	e.month(1000)
	e.put(rulesv1.Record{Kind: rulesv1.KindEndpoint, ID: "pay", Endpoint: &rulesv1.Endpoint{
		Service: "payments", Method: "GET", Path: "/v1/pay", Cost: 5, RefundOn: []string{"5xx"},
	}})
	const november, december = "2026-11:secret-of-november", "2026-12:secret-of-december"
	a := e.start("-receipt-keys", november+","+december)
	b := e.start("-receipt-keys", december+","+november, "-gateway-id", "gateway-2", "-data-dir", t.TempDir())
	a.ready()
	b.ready()

	type decision struct {
		ID      string `json:"decision_id"`
		Outcome string
		Receipt string
	}
	code, body := a.post("/v1/decisions:batch", `{"decisions": [{"tenant": "acme", "cost": 10}, {"tenant": "acme", "cost": 2000}, {"tenant": "acme", "cost": 10}]}`)
	var batch struct{ Decisions []decision }
	if err := json.Unmarshal([]byte(body), &batch); err != nil || code != 200 || len(batch.Decisions) != 3 {
		t.Fatalf("batch: %d %s", code, body)
	}
	if d := batch.Decisions; d[0].Outcome != "ALLOW" || d[1].Outcome != "DENY" || d[2].Outcome != "ALLOW" {
		t.Errorf("batch: %s", body)
	}
	correct := func(g *gateway, d decision, verb, rest string, status int, want string) {
		t.Helper()
		code, body := g.post("/v1/decisions/"+d.ID+"/"+verb, fmt.Sprintf(`{"receipt": %q%s}`, d.Receipt, rest))
		if code != status || !strings.Contains(body, want) {
			t.Errorf("%s%s: %d %s, want %d %s", verb, rest, code, body, status, want)
		}
	}
	first, refused, second := batch.Decisions[0], batch.Decisions[1], batch.Decisions[2]
	correct(b, first, "refund", `, "refund_id": "f-1", "units": 4`, 200, `{"refund_id":"f-1","units":4,"refunded_total":4}`)
	correct(a, first, "refund", `, "refund_id": "f-1", "units": 4`, 200, `{"refund_id":"f-1","units":4,"refunded_total":4}`)
	correct(a, first, "refund", `, "refund_id": "f-2", "units": 7`, 409, "refund-exceeds-charge")
	correct(b, second, "settle", `, "cost": 17`, 200, `"cost":17,"units":7,"refunded_total":0}`)
	correct(a, second, "settle", `, "cost": 16`, 409, "already-settled")
	correct(a, refused, "refund", ``, 409, "nothing-charged")
	correct(a, decision{ID: first.ID, Receipt: second.Receipt}, "refund", ``, 403, "receipt-invalid")
	if code, _, _ := a.pay(); code != 503 {
		t.Errorf("the upstream's own answer is %d", code)
	}
	kafkatest.Eventually(t, func() bool {
		_, body := b.decide(`{"tenant": "acme", "cost": 0}`)
		return strings.Contains(body, `"consumed":32,"refunded":9,"remaining":977`)
	}, "27 consumed by decisions and 5 by the request, 4 and 5 of it given back")
	for _, g := range []*gateway{a, b} {
		kafkatest.Eventually(t, func() bool {
			_, _, page := g.get(g.admin + "/metrics")
			return strings.Contains(page, "penstock_gateway_gateways 2\n")
		}, "two gateways that know of each other")
	}
	if _, _, page := a.get(a.admin + "/metrics"); !strings.Contains(page, `penstock_gateway_upstream_refunds_total{result="given"} 1`) {
		t.Error("the charge that was given back is not counted")
	}
	if code := a.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code := b.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	kinds := map[usagev1.Decision]int{}
	for _, ev := range e.told() {
		kinds[ev.Decision]++
	}
	if kinds[usagev1.DecisionAllow] != 3 || kinds[usagev1.DecisionDeny] != 1 || kinds[usagev1.DecisionRefund] != 2 || kinds[usagev1.DecisionSettle] != 1 {
		t.Errorf("told %v", kinds)
	}
}

// TestIntegrationFC14 guarantees the case's numbers for a whole gateway whose
// Redis hangs: 400 questions at once are answered in time, by each rule's
// failure mode, and normal decisions resume by themselves.
func TestIntegrationFC14(t *testing.T) {
	t.Parallel()

	e := newEstate(t)
	n := int64(1_000_000)
	for tenant, mode := range map[string]rulesv1.OnFailure{"open": rulesv1.OnFailureOpen, "closed": rulesv1.OnFailureClosed} {
		e.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: tenant, Rule: &rulesv1.Rule{
			Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindRate, Algorithm: rulesv1.AlgorithmGCRA,
			Subject: []rulesv1.Dimension{rulesv1.DimensionTenant}, Match: &rulesv1.Match{Tenant: tenant}, Meter: "api-calls", Limit: &n, Burst: &n,
			WindowUS: time.Hour.Microseconds(), OnFailure: mode, Wallet: rulesv1.WalletModeNone,
		}})
	}
	g := e.start("-redis-budget", "50ms")
	g.ready()
	ask := func(tenant string) string {
		_, body := g.decide(fmt.Sprintf(`{"tenant": %q}`, tenant))
		return body
	}
	for _, tenant := range []string{"open", "closed"} {
		kafkatest.Eventually(t, func() bool { return strings.Contains(ask(tenant), `"degraded":false`) }, "decisions of the store")
	}
	asked := 0
	inTime(t, func() []time.Duration {
		e.redis.Freeze()
		var all sync.WaitGroup
		took, wrong := make([]time.Duration, 400), make([]string, 400)
		for i := range took {
			all.Go(func() {
				began := time.Now()
				body := ask([]string{"open", "closed"}[i%2])
				took[i] = time.Since(began)
				want := []string{`"outcome":"ALLOW","status":200,"degraded":true`, `"status":503,"code":"store-unavailable"`}[i%2]
				if !strings.Contains(body, want) || strings.Contains(body, "remaining") {
					wrong[i] = body
				}
			})
		}
		all.Wait()
		asked += len(took)
		if i := slices.IndexFunc(wrong, func(s string) bool { return s != "" }); i >= 0 {
			t.Errorf("answered %s", wrong[i])
		}
		if _, _, page := g.get(g.admin + "/metrics"); !strings.Contains(page, fmt.Sprintf("ratelimit_redis_fallback_total %d\n", asked)) {
			t.Errorf("the degraded counter does not read %d", asked)
		}
		e.redis.Thaw()
		kafkatest.Eventually(t, func() bool {
			body := ask("closed")
			if strings.Contains(body, `"outcome":"ALLOW"`) {
				return true
			}
			asked++
			return false
		}, "decisions to resume")
		return took
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// A tail collects a log.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
