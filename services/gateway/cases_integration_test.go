//go:build integration

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/internal/kafkatest"
	"penstock.dev/services/internal/redistest"
)

// rate writes a rate of a tenant.
func (e *estate) rate(id, tenant string, algorithm rulesv1.Algorithm, window time.Duration, n int64, mode rulesv1.OnFailure) {
	e.t.Helper()
	r := &rulesv1.Rule{
		Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindRate, Algorithm: algorithm,
		Subject: []rulesv1.Dimension{rulesv1.DimensionTenant}, Match: &rulesv1.Match{Tenant: tenant}, Meter: "api-calls", Limit: &n,
		WindowUS: window.Microseconds(), OnFailure: mode, Wallet: rulesv1.WalletModeNone,
	}
	if algorithm == rulesv1.AlgorithmGCRA {
		r.Burst = &n
	}
	e.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: id, Rule: r})
}

// An answer is a decision as its caller reads it.
type answer struct {
	Outcome, Code string
	RuleID        string `json:"rule_id"`
	Status        int
	Degraded      bool
	Limits        []struct {
		RuleID              string `json:"rule_id"`
		Remaining, Consumed int64
		ResetSeconds        int64 `json:"reset_seconds"`
	}
}

func (g *gateway) ask(question string) (a answer) {
	g.t.Helper()
	code, body := g.decide(question)
	if err := json.Unmarshal([]byte(body), &a); err != nil || code != 200 {
		g.t.Errorf("%s: %d %s", question, code, body)
	}
	return a
}

// TestIntegrationE3 guarantees the case's numbers for two gateways: used 10, one
// request id and a cost of 5 three times at once, 15 used, and three answers
// that are the same to the byte, with the same decision and the same receipt.
func TestIntegrationE3(t *testing.T) {
	t.Parallel()

	e := newEstate(t)
	e.seed("http://127.0.0.1:1", 1000)
	e.month(1000)
	const keys = "2026-12:secret-of-december"
	gateways := []*gateway{
		e.start("-receipt-keys", keys), e.start("-receipt-keys", keys, "-gateway-id", "gateway-2", "-data-dir", t.TempDir()),
	}
	for _, g := range gateways {
		g.ready()
	}
	if a := gateways[0].ask(`{"tenant": "acme", "cost": 10}`); a.Outcome != "ALLOW" || a.Degraded {
		t.Fatalf("10 used: %+v", a)
	}
	var bodies [3]string
	var all sync.WaitGroup
	for i := range bodies {
		all.Go(func() { _, bodies[i] = gateways[i%2].decide(`{"tenant": "acme", "request_id": "r-1", "cost": 5}`) })
	}
	all.Wait()
	if !strings.Contains(bodies[0], `"receipt":"`) || !strings.Contains(bodies[0], `"consumed":15,`) {
		t.Errorf("answered %s, want 15 used and a receipt", bodies[0])
	}
	for _, body := range bodies[1:] {
		if body != bodies[0] {
			t.Errorf("two answers:\n%s%s", bodies[0], body)
		}
	}
	if a := gateways[1].ask(`{"tenant": "acme", "cost": 0}`); a.Limits[1].Consumed != 15 {
		t.Errorf("%+v, want 15 used", a)
	}
}

// TestIntegrationFC13 guarantees the case's numbers for a whole gateway: a fixed
// window of 5 in 60 s, three decisions, a flushed script cache, three more in a
// batch, a restart of the store with its data, and one more. Five pass, nobody
// is told of an error, and readiness knew that the store was away.
func TestIntegrationFC13(t *testing.T) {
	t.Parallel()

	e := newEstate(t)
	e.redis = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	e.rate("five", "acme", rulesv1.AlgorithmFixedWindow, time.Minute, 5, rulesv1.OnFailureClosed)
	g := e.start()
	g.ready()
	kafkatest.Eventually(t, func() bool {
		peek := g.ask(`{"tenant": "acme", "cost": 0}`)
		return len(peek.Limits) == 1 && peek.Limits[0].ResetSeconds > 15
	}, "a window that does not end soon")

	var got []answer
	for range 3 {
		got = append(got, g.ask(`{"tenant": "acme"}`))
	}
	if err := e.redis.Client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_, body := g.post("/v1/decisions:batch", `{"decisions": [{"tenant": "acme"}, {"tenant": "acme"}, {"tenant": "acme"}]}`)
	var batch struct{ Decisions []answer }
	if err := json.Unmarshal([]byte(body), &batch); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	got = append(got, batch.Decisions...)
	e.redis.Kill()
	if code, _, page := g.get(g.admin + "/ready"); code != 200 || !strings.Contains(page, "failure modes decide") {
		t.Errorf("ready without the store: %d %s, want a remark", code, page)
	}
	e.redis.Restart()
	g.ready()
	got = append(got, g.ask(`{"tenant": "acme"}`))
	var outcomes []string
	for _, a := range got {
		outcomes = append(outcomes, a.Outcome)
		if a.Degraded || len(a.Limits) != 1 {
			t.Errorf("answered %+v, want the store's answer", a)
		}
	}
	if want := []string{"ALLOW", "ALLOW", "ALLOW", "ALLOW", "ALLOW", "DENY", "DENY"}; !slices.Equal(outcomes, want) {
		t.Errorf("outcomes %v, want %v", outcomes, want)
	}
	if peek := g.ask(`{"tenant": "acme", "cost": 0}`); peek.Limits[0].Remaining != 0 {
		t.Errorf("%+v, want nothing left", peek)
	}
}

// TestIntegrationFrozenPolicies guarantees what every failure mode and their
// mixes come to while Redis hangs: all are answered in time and marked;
// open passes, closed is 503, local passes its share and not one more, open
// rules add nothing to a local one, and a closed one closes all; and that the
// store decides again by itself. (What it was sent before it hung it may count
// when it goes on: nobody has had an answer to that.)
func TestIntegrationFrozenPolicies(t *testing.T) {
	t.Parallel()

	const each, share = 60, 20
	tenants := []string{"open", "closed", "local", "open-local", "all"}
	want := map[string]map[int]int{
		"open":       {200: each},
		"closed":     {503: each},
		"local":      {200: share, 429: each - share},
		"open-local": {200: share, 429: each - share},
		"all":        {503: each},
	}
	modes := map[string][]rulesv1.OnFailure{
		"open":       {rulesv1.OnFailureOpen},
		"closed":     {rulesv1.OnFailureClosed},
		"local":      {rulesv1.OnFailureLocal},
		"open-local": {rulesv1.OnFailureOpen, rulesv1.OnFailureLocal},
		"all":        {rulesv1.OnFailureOpen, rulesv1.OnFailureLocal, rulesv1.OnFailureClosed},
	}
	e := newEstate(t)
	for _, tenant := range tenants {
		for i, mode := range modes[tenant] { // of windows of their own: each is a group
			e.rate(fmt.Sprintf("%s-%d", tenant, i), tenant, rulesv1.AlgorithmGCRA, time.Duration(i+1)*24*time.Hour, share, mode)
		}
	}
	g := e.start("-redis-budget", "50ms")
	g.ready()
	decided := func(tenant string) bool {
		peek := g.ask(fmt.Sprintf(`{"tenant": %q, "cost": 0}`, tenant))
		return !peek.Degraded && len(peek.Limits) == len(modes[tenant])
	}
	for _, tenant := range tenants {
		kafkatest.Eventually(t, func() bool { return decided(tenant) }, "the rules of %s", tenant)
	}
	kafkatest.Eventually(t, func() bool {
		_, _, page := g.get(g.admin + "/metrics")
		return strings.Contains(page, "penstock_gateway_gateways 1\n")
	}, "a gateway that knows that it is alone")

	e.redis.Freeze()
	stop := slack()
	var all sync.WaitGroup
	answers := make([]answer, each*len(tenants))
	for i := range answers {
		all.Go(func() {
			answers[i] = g.ask(fmt.Sprintf(`{"tenant": %q}`, tenants[i%len(tenants)]))
		})
	}
	all.Wait()
	machine := 4 * stop()
	got := map[string]map[int]int{}
	for i, a := range answers {
		tenant := tenants[i%len(tenants)]
		if got[tenant] == nil {
			got[tenant] = map[int]int{}
		}
		got[tenant][a.Status]++
		if !a.Degraded || len(a.Limits) != 0 {
			t.Errorf("%s: %+v, want a degraded answer without numbers", tenant, a)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("statuses %v, want %v", got, want)
	}
	e.redis.Thaw()
	thawed := time.Now()
	for _, tenant := range tenants {
		kafkatest.Eventually(t, func() bool { return decided(tenant) }, "decisions of the store for %s", tenant)
	}
	if took := time.Since(thawed); took > 5*time.Second+machine {
		t.Errorf("decisions resumed after %v, want 5 s", took)
	}
}

// TestIntegrationFC35MemoryPolicy guarantees that a store which deletes counters
// when its memory is full (a of the case) is reported by /ready and a metric, also
// when its policy is changed under a running gateway, or refused at the start.
func TestIntegrationFC35MemoryPolicy(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	e.seed("http://127.0.0.1:1", 10)
	set := func(policy string) {
		t.Helper()
		if err := e.redis.Client().ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("allkeys-lru")
	refused := e.start("-unsafe-store", "refuse")
	kafkatest.Eventually(t, func() bool {
		return strings.Contains(refused.log.String(), "unsafe-store=refuse") && strings.Contains(refused.log.String(), "allkeys-lru")
	}, "the start is refused")
	if code := refused.stop(); code != 1 {
		t.Errorf("it ended with %d", code)
	}
	set("noeviction")
	g := e.start("-unsafe-store", "refuse")
	said := func(want bool, value string) {
		t.Helper()
		kafkatest.Eventually(t, func() bool {
			status, _, ready := g.get(g.admin + "/ready")
			_, _, metrics := g.get(g.admin + "/metrics")
			return status == 200 && strings.Contains(ready, "volatile-lru") == want && strings.Contains(metrics, "penstock_counters_evicting "+value+"\n")
		}, "unsafe is said: %v", want)
	}
	said(false, "0")
	set("volatile-lru")
	said(true, "1")
	set("noeviction")
	said(false, "0")
}

// TestIntegrationFC35FullStore guarantees what a Redis without memory comes to:
// what is used up stays refused, by the counter itself; what would have to be
// counted is left to the rule's failure mode, and marked; nothing that was
// counted is lost.
func TestIntegrationFC35FullStore(t *testing.T) {
	t.Parallel()

	const share = 5
	modes := map[string]rulesv1.OnFailure{"open": rulesv1.OnFailureOpen, "closed": rulesv1.OnFailureClosed, "local": rulesv1.OnFailureLocal}
	e := newEstate(t)
	e.rate("used-up", "used-up", rulesv1.AlgorithmFixedWindow, 366*24*time.Hour, 1, rulesv1.OnFailureOpen)
	for tenant, mode := range modes {
		e.rate(tenant, tenant, rulesv1.AlgorithmFixedWindow, 366*24*time.Hour, share, mode)
	}
	g := e.start()
	g.ready()
	for tenant := range modes {
		kafkatest.Eventually(t, func() bool {
			return len(g.ask(fmt.Sprintf(`{"tenant": %q, "cost": 0}`, tenant)).Limits) == 1
		}, "the rule of %s", tenant)
	}
	kafkatest.Eventually(t, func() bool {
		_, _, page := g.get(g.admin + "/metrics")
		return strings.Contains(page, "penstock_gateway_gateways 1\n")
	}, "a gateway that knows that it is alone")
	g.ask(`{"tenant": "used-up"}`)
	redis := e.redis.Client()
	memory := func(most string) {
		t.Helper()
		if err := redis.ConfigSet(t.Context(), "maxmemory", most).Err(); err != nil {
			t.Fatal(err)
		}
	}
	memory("1")
	if a := g.ask(`{"tenant": "used-up"}`); a.Degraded || a.Status != 429 || len(a.Limits) != 1 || a.Limits[0].Remaining != 0 {
		t.Errorf("used up: %+v, want the counter's own refusal", a)
	}
	got := map[string][]int{}
	for tenant := range modes {
		for range share + 2 {
			a := g.ask(fmt.Sprintf(`{"tenant": %q}`, tenant))
			if got[tenant] = append(got[tenant], a.Status); !a.Degraded {
				t.Errorf("%s: %+v, want it marked", tenant, a)
			}
		}
	}
	want := map[string][]int{
		"open": {200, 200, 200, 200, 200, 200, 200}, "closed": {503, 503, 503, 503, 503, 503, 503}, "local": {200, 200, 200, 200, 200, 429, 429},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("statuses %v, want %v", got, want)
	}
	memory("0")
	for tenant := range modes {
		kafkatest.Eventually(t, func() bool {
			a := g.ask(fmt.Sprintf(`{"tenant": %q, "cost": 0}`, tenant))
			return !a.Degraded && len(a.Limits) == 1 && a.Limits[0].Remaining == share
		}, "%s to be decided by the store, and untouched", tenant)
	}
}

// TestIntegrationLocalShares guarantees that two gateways which lose the store
// together let a local rule's limit through, each its half, also after one of
// them has been replaced by another run of it.
func TestIntegrationLocalShares(t *testing.T) {
	t.Parallel()

	const limit, asked = 20, 25
	e := newEstate(t)
	e.rate("local", "acme", rulesv1.AlgorithmFixedWindow, 366*24*time.Hour, limit, rulesv1.OnFailureLocal)
	second := []string{"-redis-budget", "50ms", "-gateway-id", "gateway-2", "-data-dir", t.TempDir()}
	gateways := []*gateway{e.start("-redis-budget", "50ms"), e.start(second...)}
	knowsTwo := func() {
		for _, g := range slices.Backward(gateways) { // the newer one knows last that a former run of it is gone
			g.ready()
			kafkatest.Eventually(t, func() bool {
				_, _, page := g.get(g.admin + "/metrics")
				return strings.Contains(page, "penstock_gateway_gateways 2\n")
			}, "two gateways that know of each other")
		}
	}
	knowsTwo()
	gateways[1].stop()
	gateways[1] = e.start(second...)
	knowsTwo()
	e.redis.Freeze()
	for i, g := range gateways {
		passed := 0
		for range asked {
			switch a := g.ask(`{"tenant": "acme"}`); {
			case !a.Degraded || a.Status == 429 && (a.RuleID != "local" || a.Code != "rate-limited"):
				t.Errorf("gateway %d: %+v, want a degraded answer of the local rule", i+1, a)
			case a.Status == 200:
				passed++
			}
		}
		if passed != limit/len(gateways) {
			t.Errorf("gateway %d lets %d through, want %d", i+1, passed, limit/len(gateways))
		}
	}
	e.redis.Thaw()
}
