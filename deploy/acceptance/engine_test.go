//go:build acceptance

package acceptance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/schemas/usagev1"
)

// rate is a rate rule of the tenant. Buckets hold as much as they sell a
// window.
func rate(tenant, algorithm string, limit int64, window string) estate.Object {
	return estate.Object{
		"kind": "rate", "algorithm": algorithm, "subject": []string{"tenant"}, "match": estate.Object{"tenant": tenant},
		"limit": limit, "window": window,
	}
}

// prepaid is a wallet rule of the tenant.
func prepaid(tenant string) estate.Object {
	return estate.Object{
		"kind": "wallet", "algorithm": "overdraft_wallet", "wallet": "prepaid", "subject": []string{"tenant"},
		"match": estate.Object{"tenant": tenant}, "meter": "credits", "on_failure": "closed",
	}
}

// post sends a body with a token, and returns the answer with its members.
func (s system) post(url, token string, body any, headers ...string) (reply, map[string]any) {
	s.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.Fatal(err)
	}
	r := s.send(http.MethodPost, url, string(b), append(headers, "Authorization", "Bearer "+token, "Content-Type", "application/json")...)
	members := map[string]any{}
	if err := json.Unmarshal([]byte(r.body), &members); err != nil {
		s.Fatalf("%d %s: %v", r.status, r.body, err)
	}
	return r, members
}

// topUp buys units of a wallet.
func (s system) topUp(tenant, key string, units int64) (reply, map[string]any) {
	s.Helper()
	return s.post(s.Env["ADMIN_URL"]+"/v1/tenants/"+tenant+"/topups", s.Env["ADMIN_TOKEN"],
		estate.Object{"meter": "credits", "units": units, "reason": "order " + key}, "Idempotency-Key", key)
}

// balance waits until every gateway shows that balance of the wallet.
func (s system) balance(q estate.Object, rule string, want int64) {
	s.Helper()
	peek := maps.Clone(q)
	peek["cost"] = 0
	for g := range s.gateways() {
		s.within(inForce, fmt.Sprintf("gateway %d to show a balance of %d", g, want), func() error {
			d, err := s.ask(g, peek)
			if err != nil {
				return err
			}
			for _, l := range d.Limits {
				if l.RuleID == rule && l.Balance == want {
					return nil
				}
			}
			return fmt.Errorf("it answers %+v", d)
		})
	}
}

// correct asks gateway g for a refund or a settlement of a decision.
func (s system) correct(g int, d decision, what string, body estate.Object) (reply, map[string]any) {
	s.Helper()
	body = maps.Clone(body)
	if _, there := body["receipt"]; !there {
		body["receipt"] = d.Receipt
	}
	return s.post(s.gateways()[g]+"/v1/decisions/"+d.DecisionID+"/"+what, s.Env["DECISION_TOKEN"], body)
}

// TestEveryRateCuts guarantees that each algorithm is enforced by two gateways
// as one: a window of 5 lets 5 of 12 through, says after how long the next may
// pass, and tells a request that can never fit that no wait helps.
func TestEveryRateCuts(t *testing.T) {
	t.Parallel()
	s := common(t)
	for _, algorithm := range []string{
		"fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra",
	} {
		t.Run(algorithm, func(t *testing.T) {
			s := system{t, s.Estate, s.admin}
			tenant := s.tenant(nil)
			q := estate.Object{"tenant": tenant}
			id := "every-" + strings.ReplaceAll(algorithm, "_", "-")
			s.put("rules", id, rate(tenant, algorithm, 5, "24h"))
			s.enforced(q, id, 5)
			allowed := 0
			for i := range 12 {
				d := s.decided(i%2, q)
				_, remaining, _, _ := d.limit(id)
				if d.allowed() {
					allowed++
				} else if d.Code != "rate-limited" || d.RetryAfter == nil || d.RuleID != id {
					t.Errorf("a refusal says %+v", d)
				}
				if want := int64(max(0, 5-i-1)); remaining != want {
					t.Errorf("after %d requests %d remain, want %d", i+1, remaining, want)
				}
			}
			if allowed != 5 {
				t.Errorf("%d of 12 passed, want 5", allowed)
			}
			large := maps.Clone(q)
			large["cost"] = 6
			if d := s.decided(0, large); d.allowed() || d.Code != "cost-exceeds-limit" || d.RetryAfter != nil {
				t.Errorf("6 of 5: %+v", d)
			}
		})
	}
}

// TestLeakyQueue guarantees that a leaky bucket with max_delay lets requests
// wait instead of refusing them, and refuses those that would wait for longer.
func TestLeakyQueue(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := estate.Object{"tenant": tenant}
	queue := rate(tenant, "leaky_bucket", 60, "60s")
	queue["burst"], queue["max_delay"] = 10, "3s"
	s.put("rules", "queue", queue)
	s.enforced(q, "queue", 60)
	var delays []int64
	for range 8 {
		d := s.decided(0, q)
		if !d.allowed() {
			break
		}
		delays = append(delays, d.Delay)
	}
	if len(delays) < 4 || len(delays) > 6 {
		t.Fatalf("%d passed with delays of %v ms, want 4 at once: the fifth would wait 4 s", len(delays), delays)
	}
	for i := 1; i < len(delays); i++ {
		if delays[i] > 3000 || delays[i] < delays[i-1]-1000 {
			t.Errorf("delays of %v ms", delays)
		}
	}
}

// TestW1W2Wallets guarantees cases W1 and W2 through the product's faces: a balance
// may be overdrawn once, no wait helps then, a top-up does, and two at once
// cannot both overdraw it.
func TestW1W2Wallets(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := func(cost int64) estate.Object { return estate.Object{"tenant": tenant, "cost": cost} }
	s.put("rules", "wallet", prepaid(tenant))
	if r, m := s.topUp(tenant, "1", 5); r.status != http.StatusCreated || m["granted_total"] != 5.0 {
		t.Fatalf("the first top-up: %d %s", r.status, r.body)
	}
	s.balance(q(0), "wallet", 5)
	for _, step := range []struct {
		topUp, cost, balance int64
		passes               bool
	}{{0, 8, -3, true}, {0, 1, -3, false}, {3, 1, 0, false}, {10, 1, 9, true}} {
		if step.topUp > 0 {
			s.topUp(tenant, fmt.Sprint("more ", step.topUp), step.topUp)
			before := step.balance
			if step.passes {
				before += step.cost
			}
			s.balance(q(0), "wallet", before)
		}
		d := s.decided(0, q(step.cost))
		l := d.Limits[0]
		if d.allowed() != step.passes || l.Balance != step.balance || l.Remaining != max(0, step.balance) {
			t.Fatalf("%+v: %+v", step, d)
		}
		if !step.passes && (d.Status != http.StatusTooManyRequests || d.Code != "wallet-empty" || d.RetryAfter != nil) {
			t.Errorf("a refusal says %+v", d)
		}
	}

	second := s.tenant(nil) + "-2"
	s.put("tenants", second, estate.Object{"name": "W2"})
	s.put("rules", "wallet-2", prepaid(second))
	s.topUp(second, "1", 5)
	both := estate.Object{"tenant": second, "cost": 8}
	s.balance(both, "wallet-2", 5)
	var wg sync.WaitGroup
	var answers [2]decision
	for g := range answers {
		wg.Go(func() { answers[g] = s.decided(g, both) })
	}
	wg.Wait()
	if answers[0].allowed() == answers[1].allowed() {
		t.Errorf("two at once: %+v and %+v, want one to pass", answers[0], answers[1])
	}
	s.balance(both, "wallet-2", -3)
}

// TestW3ParallelTopUps guarantees case W3: fifty at once with one key are one
// top-up, and the key stays bound to its body.
func TestW3ParallelTopUps(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	s.put("rules", "w3", prepaid(tenant))
	var mu sync.Mutex
	ids, replayed := map[any]int{}, 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			r, m := s.topUp(tenant, "order", 100)
			mu.Lock()
			defer mu.Unlock()
			if r.status != http.StatusCreated {
				t.Errorf("%d %s", r.status, r.body)
			}
			ids[m["topup_id"]]++
			if r.header.Get("Idempotent-Replayed") == "true" {
				replayed++
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || replayed != 49 {
		t.Errorf("top-ups %v, %d marked as replayed", ids, replayed)
	}
	if r, _ := s.topUp(tenant, "order", 200); r.status != http.StatusUnprocessableEntity {
		t.Errorf("the same key with another body: %d %s", r.status, r.body)
	}
	s.balance(estate.Object{"tenant": tenant}, "w3", 100)
}

// TestWalletSurvivesRedis guarantees that 850 stay 850 when Redis is killed and
// comes back, for a wallet and the gateway that enforces it.
func TestWalletSurvivesRedis(t *testing.T) {
	s := own(t, estate.Options{Gateways: 1})
	s.put("tenants", "saver", estate.Object{"name": "Saver"})
	s.put("rules", "saved", prepaid("saver"))
	s.topUp("saver", "1", 1000)
	q := estate.Object{"tenant": "saver", "cost": 150}
	s.balance(q, "saved", 1000)
	if d := s.decided(0, q); !d.allowed() {
		t.Fatalf("%+v", d)
	}
	s.balance(q, "saved", 850)
	if err := s.killAndRestart(estate.Redis); err != nil {
		t.Fatal(err)
	}
	s.within(20*time.Second, "the gateway to decide again", func() error {
		d, err := s.ask(0, estate.Object{"tenant": "saver", "cost": 0})
		if err == nil && d.Degraded {
			err = errors.New("degraded")
		}
		return err
	})
	s.balance(q, "saved", 850)
}

// TestCorrections guarantees refunds and settlements as a caller meets them, on
// either gateway, case FC-10 among them, and that usage.v1 tells them.
func TestCorrections(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := func(cost int64) estate.Object { return estate.Object{"tenant": tenant, "cost": cost} }
	s.put("rules", "correct-month", monthly(tenant, 1000))
	s.put("rules", "correct-window", rate(tenant, "fixed_window", 10, "24h"))
	s.enforced(q(0), "correct-month", 1000)
	s.enforced(q(0), "correct-window", 10)

	full := s.decided(0, q(10))
	if full.Receipt == "" {
		t.Fatalf("no receipt: %+v", full)
	}
	refund := func(g int, body estate.Object) (reply, map[string]any) { return s.correct(g, full, "refund", body) }
	remaining := func() int64 {
		_, n, _, _ := s.decided(0, q(0)).limit("correct-window")
		return n
	}
	for range 2 { // the repeat has the same answer, on the other gateway too
		for g := range s.gateways() {
			r, m := refund(g, estate.Object{"refund_id": "r1", "units": 1})
			if r.status != http.StatusOK || m["units"] != 1.0 || m["refunded_total"] != 1.0 || m["refund_id"] != "r1" {
				t.Fatalf("r1: %d %s", r.status, r.body)
			}
		}
	}
	if n := remaining(); n != 1 {
		t.Errorf("%d remain after r1, want 1", n)
	}
	if d := s.decided(1, q(1)); !d.allowed() {
		t.Errorf("the unit that came back: %+v", d)
	}
	if d := s.decided(1, q(1)); d.allowed() {
		t.Errorf("one more: %+v", d)
	}
	if r, m := refund(0, estate.Object{"refund_id": "r2", "units": 50}); r.status != http.StatusConflict || m["code"] != "refund-exceeds-charge" {
		t.Errorf("r2: %d %s", r.status, r.body)
	}
	if r, m := refund(0, estate.Object{"receipt": full.Receipt[:len(full.Receipt)-2] + "AA"}); r.status != http.StatusForbidden || m["code"] != "receipt-invalid" {
		t.Errorf("an altered receipt: %d %s", r.status, r.body)
	}
	if n := remaining(); n != 0 {
		t.Errorf("%d remain, want 0", n)
	}
	if r, m := refund(1, estate.Object{}); r.status != http.StatusOK || m["units"] != 9.0 || m["refunded_total"] != 10.0 || m["refund_id"] != full.DecisionID {
		t.Errorf("all that is left: %d %s", r.status, r.body)
	}

	guessed := s.decided(0, q(2))
	for _, step := range []struct {
		cost   int64
		status int
		code   string
	}{{7, 200, ""}, {7, 200, ""}, {8, 409, "already-settled"}} {
		r, m := s.correct(0, guessed, "settle", estate.Object{"cost": step.cost})
		if code, _ := m["code"].(string); r.status != step.status || code != step.code {
			t.Errorf("settle at %d: %d %s", step.cost, r.status, r.body)
		}
	}
	past := s.decided(0, q(1)) // 1 of the window was used and 7 settled
	if r, _ := s.correct(0, past, "settle", estate.Object{"cost": 40}); r.status != http.StatusOK {
		t.Errorf("settle past the limit: %d %s", r.status, r.body)
	}
	if _, left, consumed, _ := s.decided(0, q(0)).limit("correct-month"); consumed != 10+1+7+40 || left != 1000-1-7-40 {
		t.Errorf("the month has consumed %d and %d remain, want 58 and 952", consumed, left)
	}

	want := map[usagev1.Decision]int{usagev1.DecisionRefund: 2, usagev1.DecisionSettle: 2}
	s.within(time.Minute, "usage.v1 to tell the corrections", func() error {
		got := map[usagev1.Decision]int{}
		net := int64(0)
		for _, e := range s.numbered(s.usage()) {
			if e.Tenant != tenant {
				continue
			}
			if e.Decision == usagev1.DecisionRefund || e.Decision == usagev1.DecisionSettle {
				got[e.Decision]++
			}
			for _, c := range e.Counters {
				net += c.Units
			}
		}
		if !maps.Equal(got, want) || net != 48 {
			return fmt.Errorf("%v with %d units in all, want %v with 48", got, net, want)
		}
		return nil
	})
}

// TestR1RefundOn guarantees case R1 at the proxy: that a call that the upstream failed is given back by
// the gate itself, once, and one that succeeded is not.
func TestR1RefundOn(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	key := s.key(tenant)
	s.put("endpoints", "status-of", estate.Object{
		"service": "search", "method": http.MethodGet, "path": "/v1/status/{code}", "cost": 5, "refund_on": []string{"5xx"},
	})
	q := estate.Object{"tenant": tenant, "cost": 0}
	s.put("rules", "refunded", monthly(tenant, 100))
	s.enforced(q, "refunded", 100)
	s.within(inForce, "the endpoint's cost", func() error {
		d := s.decide(0, estate.Object{"tenant": tenant, "service": "search", "method": "GET", "path": "/v1/status/200", "cost": 0})
		if _, _, _, ok := d.limit("refunded"); !ok {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
	for _, code := range []int{200, 502, 404, 503} {
		if r := s.send(http.MethodGet, fmt.Sprintf("%s/search/v1/status/%d", s.Env["GATEWAY_URL"], code), "", "X-API-Key", key); r.status != code {
			t.Fatalf("%d: answered %d %s", code, r.status, r.body)
		}
	}
	s.within(inForce, "two of four calls to be given back", func() error {
		d := s.decided(0, q)
		for _, l := range d.Limits {
			if l.RuleID == "refunded" && l.Consumed == 20 && l.Refunded == 10 {
				return nil
			}
		}
		return fmt.Errorf("%+v", d)
	})
}

// TestBatch guarantees that a batch is decided one by one and in order, and
// that one malformed question of it leaves all undecided.
func TestBatch(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := estate.Object{"tenant": tenant}
	s.put("rules", "batch", rate(tenant, "sliding_window_log", 60, "24h"))
	s.enforced(q, "batch", 60)
	url := s.Env["GATEWAY_URL"] + "/v1/decisions:batch"
	questions := make([]estate.Object, 100)
	for i := range questions {
		questions[i] = estate.Object{"tenant": tenant, "cost": 1}
	}
	bad := append([]estate.Object{}, questions[:3]...)
	r, m := s.post(url, s.Env["DECISION_TOKEN"], estate.Object{"decisions": append(bad, estate.Object{"tenant": tenant, "cost": -1})})
	if r.status != http.StatusBadRequest || !strings.Contains(r.body, `"decisions[3].cost"`) {
		t.Errorf("a malformed question: %d %v", r.status, m)
	}
	var answers struct{ Decisions []decision }
	for attempt := 0; ; attempt++ {
		r, _ = s.post(url, s.Env["DECISION_TOKEN"], estate.Object{"decisions": questions})
		if err := json.Unmarshal([]byte(r.body), &answers); err != nil || r.status != http.StatusOK || len(answers.Decisions) != 100 {
			t.Fatalf("%d %s: %v", r.status, r.body, err)
		}
		if !answers.Decisions[0].Degraded || attempt == 20 {
			break
		}
	}
	for i, d := range answers.Decisions {
		if d.allowed() != (i < 60) || d.DecisionID == "" {
			t.Fatalf("decision %d of 100: %+v", i, d)
		}
	}
}

// TestConditionsAndExplain guarantees that a condition is part of what a rule
// matches, and that rule-admin explains the same as the gateways do.
func TestConditionsAndExplain(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	eu := rate(tenant, "token_bucket", 5, "24h")
	eu["condition"] = `labels["region"] == "eu" && cost < 10`
	s.put("rules", "eu-only", eu)
	all := rate(tenant, "token_bucket", 50, "24h")
	s.put("rules", "everywhere", all)
	in := estate.Object{"tenant": tenant, "labels": estate.Object{"region": "eu"}, "cost": 1}
	out := estate.Object{"tenant": tenant, "labels": estate.Object{"region": "us"}, "cost": 1}
	s.enforced(in, "eu-only", 5)
	s.enforced(out, "everywhere", 50)
	for _, q := range []estate.Object{in, out} {
		d := s.decided(0, q)
		_, m := s.post(s.Env["ADMIN_URL"]+"/v1/explain", s.Env["READONLY_TOKEN"], q)
		text, err := json.Marshal(m)
		if err != nil || !strings.Contains(string(text), "eu-only") || !strings.Contains(string(text), "everywhere") {
			t.Errorf("explain: %s, %v", text, err)
		}
		if len(d.Limits) != 1 {
			t.Errorf("%+v", d)
		}
	}
	wrong := rate(tenant, "gcra", 5, "60s")
	wrong["condition"] = `labels["region"] = "eu"`
	if _, _, err := s.admin.Put(t.Context(), "rules", "wrong-condition", "", wrong); err == nil || !strings.Contains(err.Error(), "condition") {
		t.Errorf("a condition that is none: %v", err)
	}
}

// TestUsageOfTenants guarantees that operators see live consumption.
func TestUsageOfTenants(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := estate.Object{"tenant": tenant, "cost": 7}
	s.put("rules", "usage-month", monthly(tenant, 100))
	s.enforced(q, "usage-month", 100)
	if d := s.decided(0, q); !d.allowed() {
		t.Fatalf("%+v", d)
	}
	for _, path := range []string{"/v1/tenants/" + tenant + "/usage", "/v1/usage?limit=500"} {
		r := s.send(http.MethodGet, s.Env["ADMIN_URL"]+path, "", "Authorization", "Bearer "+s.Env["READONLY_TOKEN"])
		if r.status != http.StatusOK || !strings.Contains(r.body, `"usage-month"`) || !strings.Contains(r.body, `"consumed":7`) {
			t.Errorf("%s: %d %.400s", path, r.status, r.body)
		}
	}
}

// TestFailureModesSideBySide guarantees that each rule says what happens while
// Redis hangs: one passes, one is refused with 503, one is counted in the
// gateway, all within the budget and marked; and that all is as before once it
// runs again.
func TestFailureModesSideBySide(t *testing.T) {
	s := own(t, estate.Options{Gateways: 2})
	modes := []string{"open", "closed", "local"}
	for _, mode := range modes {
		s.put("tenants", mode, estate.Object{"name": mode})
		r := rate(mode, "token_bucket", 10, "24h")
		r["on_failure"] = mode
		s.put("rules", "mode-"+mode, r)
		s.enforced(estate.Object{"tenant": mode}, "mode-"+mode, 10)
	}
	for _, url := range []string{"GATEWAY_METRICS_URL", "GATEWAY_METRICS_URL_2"} {
		s.within(20*time.Second, "each gateway to know of the other", func() error {
			if n := s.metric(s.Env[url], "penstock_gateway_gateways"); n != 2 {
				return fmt.Errorf("%s says %v", url, n)
			}
			return nil
		})
	}
	if err := s.Process(estate.Redis).Freeze(); err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]int{}
	for _, mode := range modes {
		got[mode] = map[string]int{}
		for i := range 30 {
			began := time.Now()
			d := s.decide(i%2, estate.Object{"tenant": mode})
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s took %v", mode, took)
			}
			if !d.Degraded || len(d.Limits) > 0 {
				t.Fatalf("%s: %+v, want it marked and without numbers", mode, d)
			}
			got[mode][fmt.Sprint(d.Outcome, " ", d.Status)]++
		}
	}
	want := map[string]map[string]int{
		"open": {"ALLOW 200": 30}, "closed": {"DENY 503": 30}, "local": {"ALLOW 200": 10, "DENY 429": 20},
	}
	for _, mode := range modes {
		if !maps.Equal(got[mode], want[mode]) {
			t.Errorf("%s: %v, want %v", mode, got[mode], want[mode])
		}
	}
	if err := s.Process(estate.Redis).Thaw(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range modes {
		if d := s.decided(0, estate.Object{"tenant": mode}); !d.allowed() {
			t.Errorf("%s afterwards: %+v", mode, d)
		}
	}
}
