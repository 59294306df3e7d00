package proxyapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// An item is a member of a structured field list: a string with integer
// parameters.
type item struct {
	name   string
	params map[string]int64
}

// parseList reads a structured field list (RFC 9651) of strings with integer
// parameters, as strictly as the RFC does.
func parseList(s string) (items []item, err error) {
	for {
		var it item
		if it, s, err = parseItem(s); err != nil {
			return nil, err
		}
		items = append(items, it)
		if s = strings.TrimLeft(s, " \t"); s == "" {
			return items, nil
		}
		if s[0] != ',' {
			return nil, fmt.Errorf("want a comma at %q", s)
		}
		if s = strings.TrimLeft(s[1:], " \t"); s == "" {
			return nil, fmt.Errorf("a comma at the end")
		}
	}
}

func parseItem(s string) (it item, rest string, err error) {
	it.params = map[string]int64{}
	if s == "" || s[0] != '"' {
		return it, s, fmt.Errorf("want a string at %q", s)
	}
	for i := 1; ; i++ {
		switch {
		case i >= len(s) || s[i] < ' ' || s[i] > '~':
			return it, s, fmt.Errorf("bad string in %q", s)
		case s[i] == '\\':
			i++
			if i >= len(s) || s[i] != '"' && s[i] != '\\' {
				return it, s, fmt.Errorf("bad escape in %q", s)
			}
			it.name += s[i : i+1]
			continue
		case s[i] != '"':
			it.name += s[i : i+1]
			continue
		}
		s = s[i+1:]
		break
	}
	for strings.HasPrefix(s, ";") {
		key, after, ok := strings.Cut(strings.TrimLeft(s[1:], " "), "=")
		if !ok || key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz") != "" {
			return it, s, fmt.Errorf("bad parameter in %q", s)
		}
		digits := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || len(digits) > 15 {
			return it, s, fmt.Errorf("bad integer in %q", s)
		}
		it.params[key], s = n, after[len(digits):]
	}
	return it, s, nil
}

// TestLimits guarantees the headers of an answer: the tightest limit for
// today's clients, all of them as structured fields for tomorrow's, times in
// whole seconds rounded up, and no rule in shadow.
func TestLimits(t *testing.T) {
	t.Parallel()
	d := decide.Decision{Limits: []decide.Limit{
		{RuleID: "burst", Kind: rule.Rate, Mode: rule.Enforce, Limit: 30, Remaining: 2, Reset: 1400 * time.Millisecond, Window: time.Minute},
		{RuleID: "month", Kind: rule.Quota, Mode: rule.Enforce, Limit: 1000, Remaining: 2, Reset: 24 * time.Hour, Window: 30 * 24 * time.Hour},
		{RuleID: "none", Kind: rule.Quota, Mode: rule.Enforce, Limit: rule.Unlimited, Remaining: rule.Unlimited, Window: time.Hour},
		{RuleID: "quick", Kind: rule.Rate, Mode: rule.Enforce, Limit: 5, Remaining: 5, Window: 100 * time.Millisecond},
		{RuleID: "shadow", Kind: rule.Rate, Mode: rule.Shadow, Limit: 1, Remaining: 0, Reset: time.Hour, Window: time.Hour},
		{RuleID: "soft", Kind: rule.Rate, Mode: rule.Enforce, Soft: true, Limit: 1, Remaining: 0, Reset: time.Hour, Window: time.Hour},
	}}
	h := http.Header{}
	proxyapi.SetLimits(h, &d)
	for name, want := range map[string]string{"X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "86400"} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %s, want %s, of the tightest", name, got, want)
		}
	}
	policy, err := parseList(h.Get("RateLimit-Policy"))
	if err != nil {
		t.Fatalf("RateLimit-Policy: %s: %v", h.Get("RateLimit-Policy"), err)
	}
	state, err := parseList(h.Get("RateLimit"))
	if err != nil {
		t.Fatalf("RateLimit: %s: %v", h.Get("RateLimit"), err)
	}
	const most = 999_999_999_999_999 // what a structured field can hold
	if got, want := fmt.Sprint(policy), fmt.Sprint([]item{
		{"burst", map[string]int64{"q": 30, "w": 60}},
		{"month", map[string]int64{"q": 1000, "w": 2592000}},
		{"none", map[string]int64{"q": most, "w": 3600}},
		{"quick", map[string]int64{"q": 5, "w": 1}},
		{"soft", map[string]int64{"q": 1, "w": 3600}},
	}); got != want {
		t.Errorf("RateLimit-Policy is %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(state), fmt.Sprint([]item{
		{"burst", map[string]int64{"r": 2, "t": 2}},
		{"month", map[string]int64{"r": 2, "t": 86400}},
		{"none", map[string]int64{"r": most, "t": 0}},
		{"quick", map[string]int64{"r": 5, "t": 0}},
		{"soft", map[string]int64{"r": 0, "t": 3600}},
	}); got != want {
		t.Errorf("RateLimit is %s, want %s", got, want)
	}
}

// TestWalletLimits guarantees the headers of wallets: what was granted is the
// limit, what is left of it never below 0, and a prepaid one promises no time
// at which anything comes back.
func TestWalletLimits(t *testing.T) {
	t.Parallel()
	end := t0.Add(time.Hour)
	prepaid := decide.Limit{RuleID: "prepaid", Kind: rule.Wallet, Mode: rule.Enforce, Limit: 850, Balance: -3}
	renewable := decide.Limit{RuleID: "renewable", Kind: rule.Wallet, Mode: rule.Enforce, Limit: 100, Balance: 7, Remaining: 7, Reset: time.Hour, Window: 24 * time.Hour, PeriodEnd: end}
	for _, tt := range []struct {
		limits              []decide.Limit
		limit, left, reset  string
		policy, stateOfList string
	}{
		{[]decide.Limit{prepaid}, "850", "0", "", `"prepaid";q=850`, `"prepaid";r=0`},
		{[]decide.Limit{renewable}, "100", "7", "3600", `"renewable";q=100;w=86400`, `"renewable";r=7;t=3600`},
		{[]decide.Limit{prepaid, renewable}, "850", "0", "", `"prepaid";q=850, "renewable";q=100;w=86400`, `"prepaid";r=0, "renewable";r=7;t=3600`},
	} {
		h := http.Header{}
		proxyapi.SetLimits(h, &decide.Decision{Limits: tt.limits})
		for name, want := range map[string]string{
			"X-RateLimit-Limit": tt.limit, "X-RateLimit-Remaining": tt.left, "X-RateLimit-Reset": tt.reset,
			"RateLimit-Policy": tt.policy, "RateLimit": tt.stateOfList,
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			if _, there := h[http.CanonicalHeaderKey(name)]; there != (want != "") {
				t.Errorf("%s is there: %v", name, there)
			}
		}
	}
}

// TestWalletEmpty guarantees that a prepaid wallet passes the debit that takes
// it below zero, and then refuses without a wait: only a top-up helps.
func TestWalletEmpty(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.put(decide.EndpointKind, "heavy", &decide.EndpointDef{ID: "heavy", Service: "up", Path: "/heavy", Cost: 20})
	g.key("k1", "s3cret", "acme", "", "")
	g.wallet("acme", 15)
	send := func() *httptest.ResponseRecorder {
		return g.send("203.0.113.9", "GET", "/up/heavy", "X-Api-Key", "s3cret")
	}
	if w := send(); w.Code != 200 || w.Header().Get("X-RateLimit-Limit") != "15" || w.Header().Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("the debit below zero: %d %v", w.Code, w.Header())
	}
	w := send()
	p := refused(t, w.Code, w.Header(), w.Body.String(), 429, "wallet-empty")
	if !strings.Contains(p.Detail, "rule acme-wallet") || !strings.Contains(p.Detail, "-5 units") || w.Header().Get("Retry-After") != "" || w.Header().Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("an empty wallet: %v %s", w.Header(), w.Body)
	}
	g.wallet("acme", 26)
	if w := send(); w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("topped up: %d %v", w.Code, w.Header())
	}
}

// TestLocal guarantees that a rule which counts in this process while the store
// is away says so, with a wait and without numbers.
func TestLocal(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.rate("address", rule.IP, 2, func(r *rule.Rule) { r.OnFailure = rule.Local })
	g.stopStore(true)
	for i := range 3 {
		w := g.send("203.0.113.9", "GET", "/up/x")
		if w.Header().Get("X-RateLimit-Degraded") != "true" || w.Header().Get("X-RateLimit-Remaining") != "" || (w.Code == 200) != (i < 2) {
			t.Errorf("request %d: %d %v", i+1, w.Code, w.Header())
		}
		if i < 2 {
			continue
		}
		p := refused(t, w.Code, w.Header(), w.Body.String(), 429, "rate-limited")
		if !strings.Contains(p.Detail, "share") || w.Header().Get("Retry-After") != "30" || fmt.Sprint(p.Violated) != "[address]" {
			t.Errorf("refused: %v %s", w.Header(), w.Body)
		}
	}
}

// FuzzLimitName guarantees that whatever a rule is called, the lists remain
// structured fields.
func FuzzLimitName(f *testing.F) {
	f.Add("acme-burst", int64(10), int64(time.Minute))
	f.Add(`q"u\o,t;e`, int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, id string, n, d int64) {
		if n < 0 || d < 0 {
			return // limits and times are not negative
		}
		l := decide.Limit{RuleID: id, Mode: rule.Enforce, Limit: n, Remaining: n, Window: time.Duration(d), Reset: time.Duration(d)}
		h := http.Header{}
		proxyapi.SetLimits(h, &decide.Decision{Limits: []decide.Limit{l, l}})
		for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
			if items, err := parseList(h.Get(name)); err != nil || len(items) != 2 {
				t.Fatalf("%s: %s is %v, %v", name, h.Get(name), items, err)
			}
		}
	})
}

// TestUpstreamsOwnLimits guarantees that an upstream's headers of these names
// are replaced where a rule was evaluated, and its own where none was.
func TestUpstreamsOwnLimits(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit", "RateLimit-Policy", "Retry-After"} {
			w.Header().Add(name, "77")
		}
		w.Header().Set("X-RateLimit-Degraded", "true")
		w.WriteHeader(http.StatusServiceUnavailable)
	}).URL, nil)
	w := g.send("203.0.113.9", "GET", "/up/")
	if got := w.Header()["X-Ratelimit-Limit"]; fmt.Sprint(got) != "[77]" {
		t.Errorf("without rules: %v, want the upstream's", got)
	}
	g.rate("by-address", rule.IP, 10, nil)
	w = g.send("203.0.113.9", "GET", "/up/")
	for name, want := range map[string]string{
		"X-Ratelimit-Limit": "[10]", "X-Ratelimit-Remaining": "[9]", "X-Ratelimit-Reset": "[6]",
		"Ratelimit": `["by-address";r=9;t=6]`, "Ratelimit-Policy": `["by-address";q=10;w=60]`,
		"Retry-After": "[77]", "X-Ratelimit-Degraded": "[]",
	} {
		if got := fmt.Sprint(w.Header()[name]); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if w.Code != 503 {
		t.Errorf("answered %d, want the upstream's 503", w.Code)
	}
}

// TestRefusals guarantees what each refusal says: its status and code, which
// rule, whether and when to come back, and no numbers that nobody knows.
func TestRefusals(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	for _, id := range []string{"export", "free"} {
		g.put(decide.EndpointKind, id, &decide.EndpointDef{ID: id, Service: "up", Path: "/" + id, Cost: 1})
	}
	g.put(decide.EndpointKind, "heavy", &decide.EndpointDef{ID: "heavy", Service: "up", Path: "/heavy", Cost: 20})
	g.rate("address", rule.IP, 10, nil)
	g.rate("zero", rule.IP, 0, func(r *rule.Rule) { r.Match.Endpoint = "free" })
	g.put(decide.RuleKind, "bad", &rule.Rule{
		ID: "bad", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{Endpoint: "export"}, OnFailure: rule.Open,
	})
	tests := []struct {
		target, rule, code string
		status             int
		limits, retry      bool
	}{
		{"/up/heavy", "address", "cost-exceeds-limit", 429, true, false},
		{"/up/free", "zero", "cost-exceeds-limit", 429, true, false},
		{"/up/export", "bad", "blocked", 403, false, false},
	}
	for _, tt := range tests {
		w := g.send("203.0.113.9", "GET", tt.target)
		p := refused(t, w.Code, w.Header(), w.Body.String(), tt.status, tt.code)
		if !strings.Contains(p.Detail, "rule "+tt.rule) || fmt.Sprint(p.Violated) != "["+tt.rule+"]" {
			t.Errorf("%s: does not name rule %s: %s", tt.target, tt.rule, w.Body)
		}
		if (w.Header().Get("X-RateLimit-Limit") != "") != tt.limits || (w.Header().Get("Retry-After") != "") != tt.retry {
			t.Errorf("%s: headers %v", tt.target, w.Header())
		}
	}
}

// TestDegraded guarantees that an answer which the store did not give is marked
// and has no numbers: passed where the rule is open, 503 with a wait where it is
// closed.
func TestDegraded(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.key("k1", "s3cret", "acme", "", "")
	g.rate("address", rule.IP, 10, nil)
	g.monthly("acme-month", 10)
	g.mu.Lock()
	g.down = true
	g.mu.Unlock()
	w := g.send("203.0.113.9", "GET", "/up/")
	if w.Code != 200 || w.Header().Get("X-RateLimit-Degraded") != "true" || w.Header().Get("X-RateLimit-Remaining") != "" || w.Header().Get("RateLimit") != "" {
		t.Errorf("open: %d %v", w.Code, w.Header())
	}
	w = g.send("203.0.113.9", "GET", "/up/", "X-Api-Key", "s3cret")
	p := refused(t, w.Code, w.Header(), w.Body.String(), 503, "store-unavailable")
	if w.Header().Get("Retry-After") != "1" || w.Header().Get("X-RateLimit-Remaining") != "" || w.Header().Get("X-RateLimit-Degraded") != "true" || !strings.Contains(p.Detail, "on_failure") {
		t.Errorf("closed: %v %s", w.Header(), w.Body)
	}
}

// TestDocumentNamesEveryCode guarantees that whoever matches codes of refusals
// finds all of them in the document that the gateway serves.
func TestDocumentNamesEveryCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../httpapi/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(string(text), func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
	for _, code := range proxyapi.Codes() {
		if !slices.Contains(words, code) {
			t.Errorf("the document does not name %s", code)
		}
	}
}

// TestCORS guarantees that preflights are the gateway's to answer, for allowed
// origins and at no charge, and that scripts of such origins may read answers
// and limits, refusals included.
func TestCORS(t *testing.T) {
	t.Parallel()
	calls := make(chan string, 16)
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		calls <- r.Method
		w.Header().Set("Access-Control-Allow-Origin", "https://upstream.example")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Access-Control-Expose-Headers", "X-Own")
		w.Header().Set("Vary", "Accept")
	}).URL
	g := newGate(t, proxyapi.Config{})
	g.service("open", up, func(s *decide.ServiceDef) { s.CORS = &decide.CORS{AllowedOrigins: []string{"*"}} })
	g.service("some", up, func(s *decide.ServiceDef) { s.CORS = &decide.CORS{AllowedOrigins: []string{"https://a.example"}} })
	g.service("own", up, nil)
	g.rate("address", rule.IP, 2, nil)
	preflight := func(service, origin string) http.Header {
		w := g.send("203.0.113.9", "OPTIONS", "/"+service+"/x", "Origin", origin, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "authorization, x-api-key")
		if w.Code != http.StatusNoContent {
			t.Errorf("preflight of %s from %s: %d", service, origin, w.Code)
		}
		return w.Header()
	}
	for _, tt := range []struct{ service, origin, want string }{
		{"open", "https://a.example", "*"}, {"some", "https://a.example", "https://a.example"}, {"some", "https://b.example", ""},
	} {
		h := preflight(tt.service, tt.origin)
		method, headers := "PUT", "authorization, x-api-key"
		if tt.want == "" {
			method, headers = "", ""
		}
		if h.Get("Access-Control-Allow-Origin") != tt.want || h.Get("Access-Control-Allow-Methods") != method ||
			h.Get("Access-Control-Allow-Headers") != headers || !strings.Contains(h.Get("Vary"), "Origin") {
			t.Errorf("preflight of %s from %s: %v", tt.service, tt.origin, h)
		}
	}
	if len(calls) != 0 || g.counters() != 0 {
		t.Errorf("preflights were charged or passed on: %d calls, %d counters", len(calls), g.counters())
	}
	for i, want := range []int{200, 200, 429} {
		w := g.send("203.0.113.9", "GET", "/some/x", "Origin", "https://a.example")
		h := w.Header()
		exposed := strings.Join(h["Access-Control-Expose-Headers"], ", ")
		if w.Code != want || fmt.Sprint(h["Access-Control-Allow-Origin"]) != "[https://a.example]" || h.Get("Access-Control-Allow-Credentials") != "" ||
			!strings.Contains(exposed, "RateLimit-Policy") || !strings.Contains(exposed, "Retry-After") || want == 200 && !strings.Contains(exposed, "X-Own") ||
			!strings.Contains(strings.Join(h["Vary"], ", "), "Origin") {
			t.Errorf("request %d: %d %v", i+1, w.Code, h)
		}
	}
	if h := g.send("203.0.113.10", "GET", "/some/x", "Origin", "https://b.example").Header(); h.Get("Access-Control-Allow-Origin") != "" || h.Get("Vary") == "" {
		t.Errorf("another origin: %v", h)
	}
	for len(calls) > 0 {
		<-calls
	}
	w := g.send("203.0.113.11", "OPTIONS", "/own/x", "Origin", "https://a.example", "Access-Control-Request-Method", "PUT")
	if w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != "https://upstream.example" || receive(t, calls) != "OPTIONS" || w.Header().Get("X-RateLimit-Remaining") != "1" {
		t.Errorf("a service without CORS answers for itself, charged: %d %v", w.Code, w.Header())
	}
	w = g.send("203.0.113.11", "OPTIONS", "/open/x")
	if w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("an OPTIONS that is no preflight is charged: %d %v", w.Code, w.Header())
	}
}

// TestRefusalsNameTheirKnobs guarantees that a refusal names what can be
// changed about it, and nothing that its rule does not have.
func TestRefusalsNameTheirKnobs(t *testing.T) {
	t.Parallel()
	one := int64(1)
	window := func(a rule.Algorithm) func(*rule.Rule) {
		return func(r *rule.Rule) { r.Algorithm, r.Burst = a, 0 }
	}
	bucket := func(r *rule.Rule) { r.Burst = 1 }
	queue := func(r *rule.Rule) { r.Algorithm, r.Burst, r.MaxDelay = rule.LeakyBucket, 2, time.Millisecond }
	quota := func(r *rule.Rule) {
		r.Kind, r.Algorithm, r.Window, r.Burst = rule.Quota, rule.CalendarQuota, 0, 0
		r.Period = &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}
	}
	fixed := func(units int64, change func(*rule.Rule)) func(*rule.Rule) {
		return func(r *rule.Rule) {
			change(r)
			r.Cost = &units
		}
	}
	for _, tt := range []struct {
		name, path, want string
		change           func(*rule.Rule)
	}{
		{"a window", "light", "(its limit and window)", window(rule.FixedWindow)},
		{"a log", "light", "(its limit and window)", window(rule.SlidingWindowLog)},
		{"a bucket", "light", "(its limit, window and burst)", bucket},
		{"a queue", "light", "(its limit, window, burst and max_delay)", queue},
		{"a quota", "light", "(its limit and period)", quota},
		{"a heavy call of a window", "heavy", "(its limit, and the endpoint's cost)", window(rule.FixedWindow)},
		{"a heavy call of a bucket", "heavy", "(its limit and burst, and the endpoint's cost)", bucket},
		{"a heavy call of a quota", "heavy", "(its limit, and the endpoint's cost)", quota},
		{"a window's own cost", "light", "(its limit and cost)", fixed(5, window(rule.FixedWindow))},
		{"a bucket's own cost", "light", "(its limit, burst and cost)", fixed(5, bucket)},
	} {
		g := newGate(t, proxyapi.Config{})
		g.service("up", newEcho(t).URL, nil)
		g.put(decide.EndpointKind, "light", &decide.EndpointDef{ID: "light", Service: "up", Path: "/light", Cost: one})
		g.put(decide.EndpointKind, "heavy", &decide.EndpointDef{ID: "heavy", Service: "up", Path: "/heavy", Cost: 20})
		g.key("k1", "s3cret", "acme", "", "")
		g.rate("r", rule.Tenant, one, tt.change)
		g.send("203.0.113.9", "GET", "/up/light", "X-Api-Key", "s3cret")
		w := g.send("203.0.113.9", "GET", "/up/"+tt.path, "X-Api-Key", "s3cret")
		var p struct{ Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 429 || !strings.Contains(p.Detail, tt.want) {
			t.Errorf("%s: %d %s, want it to end in %s", tt.name, w.Code, w.Body, tt.want)
		}
	}
}
