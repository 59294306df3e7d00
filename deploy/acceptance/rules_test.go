//go:build acceptance

package acceptance_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// TestRuleCutsTraffic guarantees what the product is for: under 30 a minute
// with a burst of 10, ten of forty requests reach the upstream and thirty are
// cut, with all that a client needs to come back at the right moment, while the
// same requests to the unprotected port all pass.
func TestRuleCutsTraffic(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	key := s.key(tenant)
	q := estate.Object{"tenant": tenant, "service": "payments", "method": "POST", "path": "/v1/pay"}
	rule := gcra(tenant, 30, "60s", 10)
	rule["match"] = estate.Object{"tenant": tenant, "service": "payments", "endpoint": "pay"}
	s.put("rules", "cut-burst", rule)
	s.enforced(q, "cut-burst", 30)

	passed := map[int]int{}
	var cut reply
	for range 40 {
		r := s.send(http.MethodPost, s.Env["GATEWAY_URL"]+"/payments/v1/pay", "{}", "X-API-Key", key)
		if passed[r.status]++; r.status == http.StatusTooManyRequests {
			cut = r
		}
		if r.header.Get("X-RateLimit-Limit") == "" || r.header.Get("RateLimit") == "" {
			t.Fatalf("an answer without limits: %d %v", r.status, r.header)
		}
	}
	if passed[200] != 10 || passed[429] != 30 {
		t.Errorf("statuses %v, want 10 × 200 and 30 × 429", passed)
	}
	for range 40 {
		if r := s.send(http.MethodPost, s.Env["UNPROTECTED_URL"]+"/payments/v1/pay", "{}"); r.status != 200 {
			t.Fatalf("the unprotected port answered %d", r.status)
		}
	}

	wait, err := strconv.Atoi(cut.header.Get("Retry-After"))
	if err != nil || wait < 1 || wait > 2 {
		t.Fatalf("Retry-After %q, want 1 or 2: one unit in two seconds", cut.header.Get("Retry-After"))
	}
	var problem struct{ Type, Title, Detail, Code string }
	if err := json.Unmarshal([]byte(cut.body), &problem); err != nil || problem.Code != "rate-limited" ||
		cut.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("the refusal says %s (%s), %v", cut.body, cut.header.Get("Content-Type"), err)
	}
	<-time.After(time.Duration(wait) * time.Second)
	if r := s.send(http.MethodPost, s.Env["GATEWAY_URL"]+"/payments/v1/pay", "{}", "X-API-Key", key); r.status != 200 {
		t.Errorf("after waiting Retry-After: %d %s", r.status, r.body)
	}
}

// TestWrongInput guarantees that what cannot be is refused with the field that
// is wrong, and that nothing of it is kept.
func TestWrongInput(t *testing.T) {
	t.Parallel()
	s := common(t)
	rules := s.Env["ADMIN_URL"] + "/v1/rules/wrong"
	token := "Bearer " + s.Env["ADMIN_TOKEN"]
	tests := []struct {
		name, method, url, body, auth string
		status                        int
		field                         string
	}{
		{"bad JSON", "PUT", rules, `{"kind":`, token, 400, ""},
		{"an unknown field", "PUT", rules, `{"kind":"rate","limti":5}`, token, 400, "limti"},
		{"a wrong type", "PUT", rules, `{"kind":"rate","limit":"5"}`, token, 400, "limit"},
		{
			"a limit above 2^53-1 (case E4)", "PUT", rules,
			`{"kind":"quota","algorithm":"quota","subject":["tenant"],"limit":9007199254740992,"period":{"unit":"month","count":1,"alignment":"calendar"}}`,
			token, 422, "limit",
		},
		{
			"an unknown tenant", "PUT", rules,
			`{"kind":"rate","algorithm":"gcra","subject":["tenant"],"match":{"tenant":"nobody"},"limit":5,"window":"60s"}`,
			token, 422, "match.tenant",
		},
		{"no token", "PUT", rules, `{}`, "", 401, ""},
		{"a wrong token", "PUT", rules, `{}`, "Bearer nonsense", 401, ""},
		{"a token that may only read", "PUT", rules, `{}`, "Bearer " + s.Env["READONLY_TOKEN"], 403, ""},
		{"an unknown key at the gate", "GET", s.Env["GATEWAY_URL"] + "/search/v1/search", "", "Bearer psk_nonsense", 401, ""},
		{"an unknown service at the gate", "GET", s.Env["GATEWAY_URL"] + "/nowhere", "", "", 404, ""},
		{"a decision without a token", "POST", s.Env["GATEWAY_URL"] + "/v1/decisions", `{}`, "", 401, ""},
		{"a negative cost", "POST", s.Env["GATEWAY_URL"] + "/v1/decisions", `{"tenant":"acme","cost":-1}`, "Bearer " + s.Env["DECISION_TOKEN"], 400, "cost"},
		{"an unknown field of a decision", "POST", s.Env["GATEWAY_URL"] + "/v1/decisions", `{"tennant":"acme"}`, "Bearer " + s.Env["DECISION_TOKEN"], 400, "tennant"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := system{t, s.Estate, s.admin}
			headers := []string{"Content-Type", "application/json"}
			if tt.auth != "" {
				headers = append(headers, "Authorization", tt.auth)
			}
			r := s.send(tt.method, tt.url, tt.body, headers...)
			var problem struct {
				Type, Title, Detail, Code string
				Status                    int
				Errors                    []struct{ Field, Message string }
			}
			if err := json.Unmarshal([]byte(r.body), &problem); err != nil {
				t.Fatalf("%d %s: %v", r.status, r.body, err)
			}
			if r.status != tt.status || problem.Status != tt.status || problem.Code == "" ||
				r.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("answered %d %s %s, want %d", r.status, r.header.Get("Content-Type"), r.body, tt.status)
			}
			if tt.field == "" {
				return
			}
			if len(problem.Errors) != 1 || problem.Errors[0].Field != tt.field || problem.Errors[0].Message == "" {
				t.Errorf("errors %+v, want the field %s", problem.Errors, tt.field)
			}
		})
	}
	if _, _, err := s.admin.Get(t.Context(), "rules", "wrong"); err == nil {
		t.Error("a refused rule was kept")
	}
}

// TestFC03OneSpelling guarantees case FC-03 through the whole gate: seven
// spellings of one path are one endpoint on one counter, and ambiguous ones are
// refused.
func TestFC03OneSpelling(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	key := s.key(tenant)
	// HEAD of the endpoint's path is not what is counted, so a method of its own.
	s.put("endpoints", "fc03", estate.Object{"service": "export", "method": "GET", "path": "/v1/echo", "cost": 1})
	q := estate.Object{"tenant": tenant, "service": "export", "method": "GET", "path": "/v1/echo"}
	rule := gcra(tenant, 2, "60m", 2)
	rule["match"] = estate.Object{"tenant": tenant, "endpoint": "fc03", "service": "export"}
	s.put("rules", "fc03-two", rule)
	s.enforced(q, "fc03-two", 2)

	for i, path := range []string{"/v1/echo", "/v1//echo", "/v1/echo/", "/v1/./echo", "/v1/x/../echo", "/v1/%65cho", "/v1/echo;a=1"} {
		r := s.raw(s.Env["GATEWAY_URL"], "GET", "/export"+path, key)
		want := http.StatusTooManyRequests
		if i < 2 {
			want = http.StatusOK
		}
		if r.status != want {
			t.Errorf("%s: %d %s, want %d", path, r.status, r.body, want)
		}
	}
	for _, path := range []string{"/v1%2Fecho", "/v1/%252e%252e/v1/echo", "/../v1/echo", `/v1\echo`, "/v1/%00echo"} {
		if r := s.raw(s.Env["GATEWAY_URL"], "GET", "/export"+path, key); r.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s, want 400", path, r.status, r.body)
		}
	}
}

// TestFC05RetryAfterOfAQuota guarantees case FC-05 for a month: the header is
// the whole seconds to the end of the tenant's month, rounded up, and the
// status is 429.
func TestFC05RetryAfterOfAQuota(t *testing.T) {
	t.Parallel()
	s := common(t)
	zone, err := time.LoadLocation("Pacific/Auckland")
	if err != nil {
		t.Fatal(err)
	}
	tenant := s.tenant(estate.Object{"zone": zone.String()})
	key := s.key(tenant)
	s.put("rules", "fc05-month", monthly(tenant, 1))
	s.enforced(estate.Object{"tenant": tenant}, "fc05-month", 1)
	url := s.Env["GATEWAY_URL"] + "/search/v1/search"
	if r := s.send("GET", url, "", "X-API-Key", key); r.status != 200 {
		t.Fatalf("the first: %d %s", r.status, r.body)
	}
	local := time.Now().In(zone)
	end := time.Date(local.Year(), local.Month()+1, 1, 0, 0, 0, 0, zone)
	r := s.send("GET", url, "", "X-API-Key", key)
	got, err := strconv.ParseInt(r.header.Get("Retry-After"), 10, 64)
	if want := int64(time.Until(end).Seconds()); err != nil || r.status != 429 || got < want || got > want+3 {
		t.Errorf("%d, Retry-After %q, want 429 and about %d", r.status, r.header.Get("Retry-After"), want)
	}
}

// TestFC08RefusalBurnsNothing guarantees case FC-08: what one rule refuses is
// not charged to another, whichever was written first.
func TestFC08RefusalBurnsNothing(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"organisation", "integrator"}, {"integrator", "organisation"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			t.Parallel()
			s := common(t)
			tenant := s.tenant(nil)
			for _, a := range []string{"a", "b"} {
				s.put("applications", tenant+"-"+a, estate.Object{"tenant": tenant, "name": a})
			}
			make := map[string]estate.Object{
				"organisation": gcra(tenant, 10, "60m", 10),
				"integrator":   gcra(tenant, 5, "60m", 5),
			}
			make["integrator"]["subject"] = []string{"tenant", "application"}
			for _, name := range order {
				s.put("rules", tenant+"-"+name, make[name])
			}
			q := func(app string, cost int) estate.Object {
				return estate.Object{"tenant": tenant, "application": tenant + "-" + app, "cost": cost}
			}
			s.enforced(q("a", 0), tenant+"-integrator", 5)
			s.enforced(q("a", 0), tenant+"-organisation", 10)
			allowed := func(app string, n int) (passed int) {
				for range n {
					if d := s.decide(0, q(app, 1)); d.allowed() {
						passed++
					} else if app == "a" && d.RuleID != tenant+"-integrator" {
						t.Errorf("refused by %s, want the integrator's rule", d.RuleID)
					}
				}
				return passed
			}
			if a, b, last := allowed("a", 8), allowed("b", 5), allowed("b", 1); a != 5 || b != 5 || last != 0 {
				t.Errorf("A %d, B %d, B again %d, want 5, 5, 0", a, b, last)
			}
			if _, left, _, _ := s.decide(1, q("a", 0)).limit(tenant + "-organisation"); left != 0 {
				t.Errorf("%d left of the organisation's 10, want 0", left)
			}
		})
	}
}

// TestFC15ChangedLimitKeepsWhatWasUsed guarantees case FC-15: what is left is
// derived, never stored, so a changed limit or name changes neither what was
// used nor when the period ends.
func TestFC15ChangedLimitKeepsWhatWasUsed(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := estate.Object{"tenant": tenant, "cost": 1}
	s.put("rules", "fc15", monthly(tenant, 5_000_000))
	s.enforced(q, "fc15", 5_000_000)
	used := s.decide(0, estate.Object{"tenant": tenant, "cost": 35})
	if _, _, consumed, _ := used.limit("fc15"); consumed != 35 {
		t.Fatalf("consumed %d, want 35", consumed)
	}
	end := used.Limits[0].PeriodEnd
	check := func(limit, wantLeft, wantUsed int64, allowed bool) {
		t.Helper()
		s.enforced(q, "fc15", limit)
		d := s.decide(1, q)
		if l, left, consumed, _ := d.limit("fc15"); d.allowed() != allowed || l != limit || left != wantLeft || consumed != wantUsed {
			t.Errorf("limit %d: %+v, want allowed %v, %d left, %d used", limit, d, allowed, wantLeft, wantUsed)
		}
		if !d.Limits[0].PeriodEnd.Equal(end) {
			t.Errorf("the period now ends at %v, want %v", d.Limits[0].PeriodEnd, end)
		}
	}
	s.put("rules", "fc15", monthly(tenant, 10))
	check(10, 0, 35, false)
	s.put("rules", "fc15", monthly(tenant, 100))
	check(100, 64, 36, true)
	renamed := monthly(tenant, 100)
	renamed["name"] = "renamed"
	s.put("rules", "fc15", renamed)
	check(100, 63, 37, true)
}

// TestC1UpgradeKeepsConsumption guarantees case C1: moving to a plan with a
// larger quota in the middle of a period leaves what was used and when it ends.
func TestC1UpgradeKeepsConsumption(t *testing.T) {
	t.Parallel()
	s := common(t)
	for plan, limit := range map[string]int64{"c1-basic": 1000, "c1-pro": 5000} {
		s.put("plans", plan, estate.Object{"name": plan})
		rule := monthly("", limit)
		rule["match"] = estate.Object{"plan": plan}
		s.put("rules", plan+"-month", rule)
	}
	tenant := s.tenant(estate.Object{"plan": "c1-basic"})
	q := estate.Object{"tenant": tenant}
	s.enforced(q, "c1-basic-month", 1000)
	before := s.decide(0, estate.Object{"tenant": tenant, "cost": 900})
	s.put("tenants", tenant, estate.Object{"name": t.Name(), "plan": "c1-pro"})
	s.enforced(q, "c1-pro-month", 5000)
	after := s.decide(1, estate.Object{"tenant": tenant, "cost": 0})
	if _, left, _, _ := after.limit("c1-pro-month"); left != 4100 {
		t.Errorf("%d left after the upgrade, want 4100", left)
	}
	if !after.Limits[0].PeriodEnd.Equal(before.Limits[0].PeriodEnd) {
		t.Errorf("the period ends at %v, before the upgrade at %v", after.Limits[0].PeriodEnd, before.Limits[0].PeriodEnd)
	}
}

// TestC3RecreatedRuleKeepsConsumption guarantees case C3: a counter is what it
// measures, so deleting a rule and making it anew under another id hands out
// nothing.
func TestC3RecreatedRuleKeepsConsumption(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	q := estate.Object{"tenant": tenant, "cost": 1}
	s.put("rules", "c3-old", monthly(tenant, 100))
	s.enforced(q, "c3-old", 100)
	s.decide(0, estate.Object{"tenant": tenant, "cost": 60})
	if err := s.admin.Delete(t.Context(), "rules", "c3-old"); err != nil {
		t.Fatal(err)
	}
	s.gone(q, "c3-old")
	s.put("rules", "c3-new", monthly(tenant, 100))
	s.enforced(q, "c3-new", 100)
	allowed := 0
	for range 41 {
		if s.decide(1, q).allowed() {
			allowed++
		}
	}
	if allowed != 40 {
		t.Errorf("%d of 41 allowed, want 40", allowed)
	}
}

// TestE1LastUnit guarantees case E1: a cost that does not fit charges nothing,
// and the last unit is sold.
func TestE1LastUnit(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	s.put("rules", "e1", monthly(tenant, 100))
	ask := func(cost int) decision { return s.decide(0, estate.Object{"tenant": tenant, "cost": cost}) }
	s.enforced(estate.Object{"tenant": tenant}, "e1", 100)
	ask(99)
	if d := ask(2); d.allowed() || d.Limits[0].Consumed != 99 {
		t.Errorf("cost 2 at 99 of 100: %+v", d)
	}
	if d := ask(1); !d.allowed() || d.Limits[0].Consumed != 100 {
		t.Errorf("cost 1 at 99 of 100: %+v", d)
	}
}

// TestE2ExactUnderContention guarantees case E2: a thousand requests at once on
// two gateways share a hundred units exactly.
func TestE2ExactUnderContention(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	s.put("rules", "e2", monthly(tenant, 100))
	q := estate.Object{"tenant": tenant, "cost": 1}
	s.enforced(q, "e2", 100)
	var allowed, denied atomic.Int64
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range 100 { // each asks ten times
		wg.Go(func() {
			<-begin
			for n := range 10 {
				q := maps.Clone(q)
				q["request_id"] = fmt.Sprintf("e2-%d-%d", i, n)
				d := s.decided(i%2, q)
				if d.allowed() {
					allowed.Add(1)
				} else {
					denied.Add(1)
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	_, _, used, _ := s.decide(0, estate.Object{"tenant": tenant, "cost": 0}).limit("e2")
	if allowed.Load() != 100 || denied.Load() != 900 || used != 100 {
		t.Errorf("%d allowed, %d denied, %d used, want 100, 900, 100", allowed.Load(), denied.Load(), used)
	}
}

// TestRepeatedRequestIDChargesOnce guarantees that a caller that is not sure
// may ask again: the same decision, charged once (case E3).
func TestRepeatedRequestIDChargesOnce(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	s.put("rules", "e3", monthly(tenant, 100))
	s.enforced(estate.Object{"tenant": tenant}, "e3", 100)
	s.decide(0, estate.Object{"tenant": tenant, "cost": 10})
	answers := make([]decision, 3)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = s.decide(i%2, estate.Object{"tenant": tenant, "cost": 5, "request_id": "r-1"})
		})
	}
	wg.Wait()
	for _, a := range answers {
		if !a.allowed() || a.DecisionID != answers[0].DecisionID || fmt.Sprint(a.Limits) != fmt.Sprint(answers[0].Limits) {
			t.Errorf("answers differ: %+v and %+v", a, answers[0])
		}
	}
	if _, _, used, _ := s.decide(0, estate.Object{"tenant": tenant, "cost": 0}).limit("e3"); used != 15 {
		t.Errorf("used %d, want 15", used)
	}
	if _, err := s.ask(0, estate.Object{"tenant": tenant, "cost": 6, "request_id": "r-1"}); err == nil {
		t.Error("the id was taken for another cost")
	}
	off := monthly(tenant, 100)
	off["enabled"] = false
	s.put("rules", "e3", off)
	s.gone(estate.Object{"tenant": tenant}, "e3")
	if d := s.decided(1, estate.Object{"tenant": tenant, "cost": 5, "request_id": "r-1"}); d.DecisionID != answers[0].DecisionID {
		t.Errorf("with the rule off: %+v, want %s", d, answers[0].DecisionID)
	}
}

// TestChangedUnitHandsNothingOut guarantees that a quota whose period changes
// its unit keeps what was used until the running period ends.
func TestChangedUnitHandsNothingOut(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	s.put("rules", "unit", monthly(tenant, 50))
	s.enforced(estate.Object{"tenant": tenant}, "unit", 50)
	s.decide(0, estate.Object{"tenant": tenant, "cost": 20})
	daily := monthly(tenant, 60)
	daily["period"] = estate.Object{"unit": "day", "count": 1, "alignment": "calendar"}
	s.put("rules", "unit", daily)
	s.enforced(estate.Object{"tenant": tenant}, "unit", 60)
	if _, left, used, _ := s.decide(1, estate.Object{"tenant": tenant, "cost": 0}).limit("unit"); used != 20 || left != 40 {
		t.Errorf("%d used, %d left, want 20 and 40", used, left)
	}
}

// TestFC33SeriesAreBounded guarantees case FC-33: paths, keys and methods that
// clients invent add no series, and every request is counted.
func TestFC33SeriesAreBounded(t *testing.T) {
	t.Parallel()
	s := own(t, estate.Options{Samples: true})
	base := s.Env["GATEWAY_METRICS_URL"]
	series, requests := s.series(base), s.metric(base, "penstock_gateway_requests_total")
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := w; i < 21_000; i += 20 {
				method, path, key := "GET", fmt.Sprintf("/search/v1/p%d", i), ""
				switch {
				case i < 10_000:
				case i < 20_000:
					path, key = "/search/v1/search", fmt.Sprintf("invented-%d", i)
				default:
					method = fmt.Sprintf("INVENT%d", i)
				}
				headers := []string{}
				if key != "" {
					headers = append(headers, "X-API-Key", key)
				}
				s.send(method, s.Env["GATEWAY_URL"]+path, "", headers...)
			}
		})
	}
	wg.Wait()
	if now := s.series(base); now > series+200 {
		t.Errorf("%d series, %d before", now, series)
	}
	if got := s.metric(base, "penstock_gateway_requests_total") - requests; got != 21_000 {
		t.Errorf("%v requests counted, want 21000", got)
	}
}
