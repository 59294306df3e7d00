package httpapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

var version7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// TestDecision guarantees the answer's exact form, for one that passes, one
// that is refused and the numbers of each limit.
func TestDecision(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("acme-burst", rule.Tenant, 3, nil)
	f.monthly("acme-month", 1000)
	f.rate("try", rule.Tenant, 2, func(r *rule.Rule) { r.Mode = rule.Shadow })

	const question = `{"tenant": "acme", "cost": 2}`
	if d := f.decided(question); d.Outcome != "ALLOW" || d.Status != 200 || !version7.MatchString(d.DecisionID) || d.RulesVersion != 3 || len(d.Limits) != 3 {
		t.Errorf("first: %+v", d)
	}
	e := f.ask(question)
	id := regexp.MustCompile(`[0-9a-f-]{36}`).FindString(e.body)
	receipt := regexp.MustCompile(`"receipt":"([\w-]+)"`).FindStringSubmatch(e.body)
	if receipt == nil {
		t.Fatalf("no receipt in %s", e.body)
	}
	want := `{"decision_id":"` + id + `","outcome":"DENY","status":429,"code":"rate-limited","rule_id":"acme-burst",` +
		`"retry_after_seconds":20,"degraded":false,"cost":2,"rules_version":3,"receipt":"` + receipt[1] + `","limits":[` +
		`{"rule_id":"acme-burst","kind":"rate","algorithm":"gcra","meter":"api-calls","mode":"enforce","limit":3,"remaining":1,"reset_seconds":20,"passed":false},` +
		`{"rule_id":"acme-month","kind":"quota","algorithm":"quota","meter":"api-calls","mode":"enforce","limit":1000,"consumed":2,"refunded":0,` +
		`"remaining":998,"reset_seconds":3600,"passed":true,"period_start":"2026-11-01T00:00:00Z","period_end":"2026-12-01T00:00:00Z"},` +
		`{"rule_id":"try","kind":"rate","algorithm":"gcra","meter":"api-calls","mode":"shadow","limit":2,"remaining":0,"reset_seconds":30,"passed":false}]}` + "\n"
	if e.body != want || e.header.Get("Content-Type") != "application/json" {
		t.Errorf("answered\n%swant\n%s", e.body, want)
	}
}

// TestOutcomes guarantees that every decision is answered with 200, and when
// the wait is left out.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 10, nil)
	f.rate("never", rule.Tenant, 0, func(r *rule.Rule) { r.Match.Tenant, r.Window = "initech", time.Hour })
	f.monthly("month", 1)
	f.put(decide.RuleKind, "bad", &rule.Rule{
		ID: "bad", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{Tenant: "evil"}, OnFailure: rule.Open,
	})
	tests := []struct {
		question, outcome, code, rule string
		status                        int
		retry                         int64 // 0: none
	}{
		{`{"tenant": "acme"}`, "ALLOW", "", "", 200, 0},
		{`{"tenant": "acme"}`, "DENY", "quota-exceeded", "month", 429, 3600},
		{`{"tenant": "acme", "cost": 0}`, "ALLOW", "", "", 200, 0},
		{`{"tenant": "acme", "cost": 11}`, "DENY", "cost-exceeds-limit", "burst", 429, 0},
		{`{"tenant": "initech"}`, "DENY", "cost-exceeds-limit", "never", 429, 0},
		{`{"tenant": "evil"}`, "BLOCKED", "blocked", "bad", 403, 0},
		{`{}`, "ALLOW", "", "", 200, 0},
		{`{"api_key": "nope"}`, "DENY", "unknown-key", "", 401, 0},
		{`{"api_key": "nope", "cost": 7, "tenant": "acme"}`, "DENY", "unknown-key", "", 401, 0},
	}
	for _, tt := range tests {
		d := f.decided(tt.question)
		retry := int64(0)
		if d.RetryAfter != nil {
			retry = *d.RetryAfter
		}
		if d.Outcome != tt.outcome || d.Code != tt.code || d.RuleID != tt.rule || d.Status != tt.status || retry != tt.retry || d.Degraded {
			t.Errorf("%s: %+v (retry %d), want %+v", tt.question, d, retry, tt)
		}
	}
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	if d := f.decided(`{"tenant": "acme"}`); !d.Degraded || d.Status != 503 || d.Code != "store-unavailable" || d.RetryAfter == nil || *d.RetryAfter != 1 || len(d.Limits) != 0 {
		t.Errorf("without the store: %+v", d)
	}
}

// TestFC11 guarantees that a cost of exactly the capacity is told to wait, and
// that one above it is told why no wait helps.
func TestFC11(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []rule.Algorithm{rule.GCRA, rule.TokenBucket} {
		f := newFace(t)
		f.rate("ten", rule.Tenant, 10, func(r *rule.Rule) { r.Algorithm, r.Window = algorithm, 10*time.Second })
		const ten = `{"tenant": "acme", "cost": 10}`
		f.decided(ten)
		if d := f.decided(ten); d.Code != "rate-limited" || d.RetryAfter == nil || *d.RetryAfter != 10 {
			t.Errorf("%s: cost 10: %+v", algorithm, d)
		}
		if d := f.decided(`{"tenant": "acme", "cost": 11}`); d.Status != 429 || d.Code != "cost-exceeds-limit" || d.RetryAfter != nil {
			t.Errorf("%s: cost 11: %+v", algorithm, d)
		}
		f.advance(10 * time.Second)
		if d := f.decided(ten); d.Outcome != "ALLOW" || len(d.Limits) != 1 || d.Limits[0].Remaining != 0 {
			t.Errorf("%s: after the wait: %+v", algorithm, d)
		}
	}
}

// TestWallet guarantees what an answer says of a wallet: what was granted, the
// balance with its sign, what is left, and no period for a prepaid one.
func TestWallet(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.wallet("acme", 15)
	for _, want := range []string{
		`"limit":15,"consumed":10,"refunded":0,"balance":5,"remaining":5,"passed":true}]`,
		`"limit":15,"consumed":20,"refunded":0,"balance":-5,"remaining":0,"passed":true}]`,
		`"outcome":"DENY","status":429,"code":"wallet-empty","rule_id":"acme-wallet","degraded":false,`,
	} {
		if e := f.ask(`{"tenant": "acme", "cost": 10}`); !strings.Contains(e.body, want) || strings.Contains(e.body, "reset_seconds") || strings.Contains(e.body, "retry_after") {
			t.Errorf("answered %s, want %s", e.body, want)
		}
	}
	f.wallet("acme", 26)
	if e := f.ask(`{"tenant": "acme", "cost": 10}`); !strings.Contains(e.body, `"limit":26,"consumed":30,"refunded":0,"balance":-4,"remaining":0,"passed":true}]`) {
		t.Errorf("topped up: %s", e.body)
	}
	f.put(decide.RuleKind, "globex-wallet", &rule.Rule{
		ID: "globex-wallet", Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Wallet: rule.Renewable, Limit: 4,
		Subject: rule.Tenant, Match: rule.Match{Tenant: "globex"}, Meter: "credits", OnFailure: rule.Closed,
		Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar},
	})
	want := `"limit":4,"consumed":10,"refunded":0,"balance":-6,"remaining":0,"reset_seconds":3600,"passed":true,"period_start":"2026-11-01T00:00:00Z","period_end":"2026-12-01T00:00:00Z"}]`
	if e := f.ask(`{"tenant": "globex", "cost": 10}`); !strings.Contains(e.body, want) {
		t.Errorf("a renewable one: %s, want %s", e.body, want)
	}
	if d := f.decided(`{"tenant": "globex"}`); d.Code != "wallet-empty" || d.RetryAfter == nil || *d.RetryAfter != 3600 {
		t.Errorf("a renewable one: %+v", d)
	}
}

// TestQueue guarantees that an answer says how long its request has to wait in
// the queue of a leaky bucket, rounded up, and that one that does not pass has
// no such wait.
func TestQueue(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("queue", rule.Tenant, 3, func(r *rule.Rule) {
		r.Algorithm, r.Window, r.MaxDelay = rule.LeakyBucket, time.Second, 400*time.Millisecond
	})
	for i, want := range []int64{0, 334, -1} {
		d := f.decided(`{"tenant": "acme"}`)
		switch {
		case want < 0 && (d.Outcome != "DENY" || d.DelayMS != nil || d.Code != "rate-limited"):
			t.Errorf("question %d: %+v, want a refusal", i+1, d)
		case want >= 0 && (d.Outcome != "ALLOW" || d.DelayMS == nil || *d.DelayMS != want):
			t.Errorf("question %d: %+v, want %d ms", i+1, d, want)
		}
	}
	f.rate("queue", rule.Tenant, 3, nil)
	if d := f.decided(`{"tenant": "acme"}`); d.DelayMS != nil {
		t.Errorf("without a queue: %+v", d)
	}
}

// TestQuestion guarantees that each field reaches the decision as what it is:
// dimensions own counters, an API key resolves to them, a path is read as the
// proxy reads it, and one IPv6 /64 is one client.
func TestQuestion(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.key("k1", "s3cret", "acme", "web", "u1")
	f.key("k2", "bare", "globex", "", "")
	f.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay", Cost: 7})
	f.put(decide.EndpointKind, "item", &decide.EndpointDef{ID: "item", Service: "payments", Path: "/v1/items/{id}", Cost: 2})
	f.rate("all", rule.Tenant|rule.Application|rule.User|rule.APIKey|rule.IP, 100, nil)
	f.rate("user", rule.User, 100, nil)
	f.rate("address", rule.IP, 100, nil)
	f.rate("everything", 0, 1000, nil)
	// counter is the widest counter that a question was charged on, and its cost.
	counter := func(question string) string {
		if d := f.decided(question); d.Outcome != "ALLOW" {
			t.Errorf("%s: %+v", question, d)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		var id limitID
		for _, c := range f.last.Charges {
			if n := len(c.Counter.Subject.Names()); n >= id.names {
				id = limitID{n, fmt.Sprintf("%s/%s/%s/%s/%s", c.Counter.Tenant, c.Counter.Application, c.Counter.User, c.Counter.APIKey, c.Counter.Address), c.Cost}
			}
		}
		return fmt.Sprint(id.text, " ", id.cost)
	}
	for _, tt := range []struct{ question, want string }{
		{`{"api_key": "s3cret", "client_ip": "203.0.113.9"}`, "acme/web/u1/k1/203.0.113.9 1"},
		{`{"api_key": "s3cret", "tenant": "acme", "application": "web", "user": "u1", "client_ip": "203.0.113.9"}`, "acme/web/u1/k1/203.0.113.9 1"},
		{`{"api_key": "bare", "application": "any", "user": "u9", "client_ip": "::ffff:203.0.113.9"}`, "globex/any/u9/k2/203.0.113.9 1"},
		{`{"client_ip": "2001:DB8:1:2:0:0:0:7"}`, "////2001:db8:1:2::/64 1"},
		{`{"client_ip": "2001:db8:1:2::8", "cost": 9007199254740991, "tenant": ""}`, ""},
		{`{"service": "payments", "method": "POST", "path": "/v1/pay"}`, "//// 7"},
		{`{"service": "payments", "method": "post", "path": "/v1//x/../%70ay/;a=1?q=1"}`, "//// 7"},
		{`{"service": "payments", "method": "GET", "path": "/v1/items/4711/"}`, "//// 2"},
		{`{"service": "payments", "method": "GET", "path": "/v1/pay"}`, "//// 1"},
		{`{"service": "payments", "method": "POST", "path": "/v1/pay", "cost": 3}`, "//// 3"},
		{`{"service": "nobody-knows", "path": "/x", "labels": {"region": "eu", "": ""}}`, ""},
		{`{"tenant": "` + strings.Repeat("ü", 128) + `"}`, "//// 1"},
		{` { "tenant" : "\u0061\n\ud83d\ude00\"\/" , "labels":{ } } `, "//// 1"},
	} {
		if tt.want == "" {
			continue
		}
		if got := counter(tt.question); got != tt.want {
			t.Errorf("%s: charged %s, want %s", tt.question, got, tt.want)
		}
	}
}

type limitID struct {
	names int
	text  string
	cost  int64
}

// TestMalformed guarantees that a question which cannot be read or is out of
// bounds is refused, naming the field, and charges nothing.
func TestMalformed(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.key("k1", "s3cret", "acme", "web", "u1")
	f.rate("everything", 0, 1000, nil)
	long := strings.Repeat("a", 257)
	var many strings.Builder
	for i := range 65 {
		fmt.Fprintf(&many, `,"l%d":""`, i)
	}
	var unknown []string
	for i := range 17 {
		unknown = append(unknown, fmt.Sprintf("l%d", i))
	}
	tests := []struct {
		name, question string
		fields         []string
	}{
		{"nothing", ``, []string{"body"}},
		{"no object", `[]`, []string{"body"}},
		{"cut", `{"tenant": "acme"`, []string{"body"}},
		{"cut in a string", `{"tenant": "ac`, []string{"tenant"}},
		{"cut in a name", `{"tena`, []string{"body"}},
		{"two objects", `{}{}`, []string{"body"}},
		{"a comma at the end", `{"tenant": "acme",}`, []string{"body"}},
		{"no comma", `{"tenant": "acme" "user": "u"}`, []string{"body"}},
		{"no value", `{"tenant"}`, []string{"body"}},
		{"a comment", `{/**/}`, []string{"body"}},
		{"not UTF-8", "{\"tenant\": \"\xff\"}", []string{"body"}},
		{"an unknown field", `{"tennant": "acme"}`, []string{"tennant"}},
		{"a known field in another case", `{"Tenant": "acme"}`, []string{"Tenant"}},
		{"several wrong at once", `{"tennant": {"a": [1, "}"]}, "cost": -1, "user": null, "labels": 7, "method": ["G"], "client_ip": "x"}`, []string{"tennant", "cost", "user", "labels", "method", "client_ip"}},
		{"wrong, and then no JSON", `{"tennant": 1, "cost": 1.5, "user" "u"}`, []string{"tennant", "cost", "body"}},
		{"more wrong than is named", `{` + many.String()[1:] + `}`, unknown},
		{"a field twice", `{"tenant": "acme", "tenant": "globex"}`, []string{"tenant"}},
		{"a field twice, escaped", `{"tenant": "acme", "ten\u0061nt": "globex"}`, []string{"tenant"}},
		{"a number for a text", `{"tenant": 5}`, []string{"tenant"}},
		{"null", `{"tenant": null}`, []string{"tenant"}},
		{"a text for a number", `{"cost": "1"}`, []string{"cost"}},
		{"a fraction", `{"cost": 1.5}`, []string{"cost"}},
		{"an exponent", `{"cost": 1e3}`, []string{"cost"}},
		{"a leading zero", `{"cost": 01}`, []string{"cost"}},
		{"a plus", `{"cost": +1}`, []string{"cost"}},
		{"a negative cost", `{"cost": -1}`, []string{"cost"}},
		{"a cost above 2^53-1", `{"cost": 9007199254740992}`, []string{"cost"}},
		{"a cost above everything", `{"cost": 99999999999999999999}`, []string{"cost"}},
		{"a control character", "{\"tenant\": \"a\tb\"}", []string{"tenant"}},
		{"a wrong escape", `{"tenant": "\x"}`, []string{"tenant"}},
		{"half a surrogate pair", `{"tenant": "\ud83d"}`, []string{"tenant"}},
		{"two halves of none", `{"tenant": "\ud83d\u0061"}`, []string{"tenant"}},
		{"a long tenant", `{"tenant": "` + long + `"}`, []string{"tenant"}},
		{
			"everything too long",
			strings.ReplaceAll(`{"request_id": "$", "application": "$", "user": "$", "api_key": "$", "service": "$", "method": "$"}`, "$", long),
			[]string{"request_id", "application", "user", "api_key", "service", "method"},
		},
		{"a long path", `{"path": "/` + strings.Repeat("a", 8192) + `"}`, []string{"path"}},
		{"no path", `{"path": "v1/pay"}`, []string{"path"}},
		{"an ambiguous path", `{"path": "/v1%2fpay"}`, []string{"path"}},
		{"a climbing path", `{"path": "/../x"}`, []string{"path"}},
		{"no method", `{"method": "G T"}`, []string{"method"}},
		{"no address", `{"client_ip": "203.0.113"}`, []string{"client_ip"}},
		{"a network", `{"client_ip": "203.0.113.0/24"}`, []string{"client_ip"}},
		{"labels that are no object", `{"labels": []}`, []string{"labels"}},
		{"a label that is no text", `{"labels": {"region": 1}}`, []string{"labels.region"}},
		{"a label twice", `{"labels": {"region": "eu", "region": "us"}}`, []string{"labels.region"}},
		{"a long label", `{"labels": {"region": "` + long + `"}}`, []string{"labels.region"}},
		{"a label with a long name", `{"labels": {"` + long + `": "x"}}`, []string{"labels"}},
		{"a label without a name", `{"labels": {"": "x"}}`, []string{"labels"}},
		{"labels that are too long together", `{"labels": {` + wide(8191) + `}}`, []string{"labels"}},
		{"labels whose escapes are", `{"labels": {"a": "` + strings.Repeat(`\u0001`, 256) + `", ` + wide(8192-1500) + `}}`, []string{"labels"}},
		{"too many labels", `{"labels": {` + many.String()[1:] + `}}`, []string{"labels"}},
		{"contradictions", `{"api_key": "s3cret", "tenant": "globex", "application": "app", "user": "u2"}`, []string{"tenant", "application", "user"}},
	}
	for _, tt := range tests {
		if fields := refused(t, f.ask(tt.question), 400, "malformed"); !slices.Equal(fields, tt.fields) {
			t.Errorf("%s: names %v, want %v", tt.name, fields, tt.fields)
		}
	}
	if len(f.state.Counters) != 0 {
		t.Error("something was charged")
	}
}

// wide is members of labels that are so many bytes long as compact JSON, or a
// few more.
func wide(bytes int) string {
	var b strings.Builder
	for i := 0; b.Len() < bytes; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"l%d":"%s"`, i, strings.Repeat("x", min(256, max(0, bytes-b.Len()-8))))
	}
	return b.String()
}

// TestUsage guarantees what is told of a question: once of each that was
// decided, with the digest of its key and its labels, and nothing of one that
// was not, of a peek, and of a repeat. What a caller claims beside a key that
// nobody knows is not told.
func TestUsage(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.key("k1", "s3cret", "acme", "web", "u1")
	f.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 7})
	f.monthly("acme-month", 1000)
	told := func(question string) *decide.Usage {
		t.Helper()
		before := len(f.told)
		_ = f.ask(question)
		switch len(f.told) - before {
		case 0:
			return nil
		case 1:
			return &f.told[before]
		default:
			t.Fatalf("%s is told of more than once", question)
			return nil
		}
	}
	u := told(`{"api_key": "s3cret", "client_ip": "2001:db8:1:2::7", "service": "payments", "method": "POST", "path": "/v1/pay/17", ` +
		`"labels": {"region": "eu", "\u0001\"": "\n"}, "request_id": "r"}`)
	if u == nil || u.Verdict != decide.VerdictAllow || u.Status != 200 || u.Tenant != "acme" || u.Application != "web" || u.User != "u1" || u.APIKey != "k1" ||
		u.KeyDigest != sha256.Sum256([]byte("s3cret")) || u.Address.String() != "2001:db8:1:2::" || u.Endpoint != "pay" || u.Template != "/v1/pay/{id}" ||
		u.Method != "POST" || u.Cost != 7 || u.Latency <= 0 || u.Upstream.Reached || len(u.AppendCounters(nil)) != 1 {
		t.Fatalf("told %+v", u)
	}
	var labels map[string]string
	if err := json.Unmarshal([]byte(u.Labels), &labels); err != nil || len(labels) != 2 || labels["region"] != "eu" || labels["\x01\""] != "\n" {
		t.Errorf("labels %s: %v", u.Labels, err)
	}
	u = told(`{"api_key": "nope", "tenant": "acme", "user": "u1", "client_ip": "203.0.113.9", "service": "payments", "method": "POST", "path": "/v1/pay/17"}`)
	if u == nil || u.Verdict != decide.VerdictDeny || u.Status != 401 || u.Tenant+u.User+u.APIKey != "" || u.KeyDigest != sha256.Sum256([]byte("nope")) ||
		u.Address.String() != "203.0.113.9" || u.Endpoint != "pay" || u.Cost != 7 || len(u.AppendCounters(nil)) != 0 {
		t.Errorf("an unknown key is told as %+v", u)
	}
	if u = told(`{"tenant": "acme", "cost": 1001}`); u == nil || u.Verdict != decide.VerdictDeny || u.Status != 429 || u.KeyDigest != [32]byte{} || u.Labels != "" {
		t.Errorf("a refusal is told as %+v", u)
	}
	for _, question := range []string{
		`{"tenant": "acme", "cost": 0}`,
		`{"api_key": "nope", "cost": 0}`,
		`{"api_key": "s3cret", "client_ip": "2001:db8:1:2::7", "service": "payments", "method": "POST", "path": "/v1/pay/17", "request_id": "r"}`,
		`{"tenant": "acme", "request_id": "r"}`,
		`{"api_key": "s3cret", "tenant": "globex"}`,
		`{"tenant": "acme"`,
	} {
		if u := told(question); u != nil {
			t.Errorf("%s is told as %+v", question, u)
		}
	}
}

// TestLabelsThatFit guarantees that labels up to the bound are taken.
func TestLabelsThatFit(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.loose = true
	f.decided(`{"labels": {` + wide(8000) + `}}`)
	if n := len(f.told[0].Labels); n < 8000 || n > 8192 {
		t.Errorf("told %d bytes", n)
	}
}

// TestRequestID guarantees that a repeated question is answered again and
// charged once, and that the id of another question is refused.
func TestRequestID(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 10, nil)
	const question = `{"request_id": "r-1", "tenant": "acme", "cost": 4}`
	before := f.ask(question)
	first := f.decided(question)
	again := f.ask(question)
	if again.body != before.body || !strings.Contains(again.body, `"receipt":"`) || before.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("two answers:\n%s%s", before.body, again.body)
	}
	if again.header.Get("Idempotent-Replayed") != "true" || !strings.Contains(again.body, first.DecisionID) || !strings.Contains(again.body, `"remaining":6`) {
		t.Errorf("repeat: %v %s", again.header, again.body)
	}
	if fields := refused(t, f.ask(`{"request_id": "r-1", "tenant": "acme", "cost": 5}`), 409, "request-id-reused"); !slices.Equal(fields, []string{"request_id"}) {
		t.Errorf("names %v", fields)
	}
	if d := f.decided(`{"tenant": "acme", "cost": 6}`); d.Outcome != "ALLOW" {
		t.Errorf("after repeats: %+v, want 6 left", d)
	}
}

// TestWhoMayAsk guarantees that only a trusted caller's question is read.
func TestWhoMayAsk(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	for _, headers := range [][]string{
		nil,
		{"Authorization", ""},
		{"Authorization", "Bearer"},
		{"Authorization", "Bearer x"},
		{"Authorization", token},
		{"Authorization", "Basic " + token},
		{"Authorization", "Bearer " + token + "x"},
		{"Authorization", "Bearer " + token[1:]},
		{"Authorization", "Bearer " + token, "Authorization", "Bearer x"},
		{"X-API-Key", token},
	} {
		e := f.send("POST", "/v1/decisions", `{"broken`, append(headers, "Content-Type", "application/json")...)
		refused(t, e, 401, "unauthorized")
		if e.header.Get("WWW-Authenticate") != `Bearer realm="penstock"` {
			t.Errorf("%v: challenge %q", headers, e.header.Get("WWW-Authenticate"))
		}
	}
	for _, known := range []string{"Bearer " + token, "bearer another-0123456789"} {
		if e := f.send("POST", "/v1/decisions", `{}`, "Authorization", known, "Content-Type", "application/json"); e.status != 200 {
			t.Errorf("%s: %d %s", known, e.status, e.body)
		}
	}
}

// TestRequests guarantees what is answered to requests that are no questions.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	bearer := []string{"Authorization", "Bearer " + token}
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "application/jsonx", "a/b/c"} {
		refused(t, f.send("POST", "/v1/decisions", `{}`, append(bearer, "Content-Type", media)...), 415, "unsupported-media-type")
	}
	for _, media := range []string{"application/json", "application/json; charset=UTF-8", "APPLICATION/JSON;charset=utf-8"} {
		if e := f.send("POST", "/v1/decisions", `{}`, append(bearer, "Content-Type", media)...); e.status != 200 {
			t.Errorf("%s: %d %s", media, e.status, e.body)
		}
	}
	f.loose = true // the document asks for a content type
	if e := f.send("POST", "/v1/decisions", `{}`, bearer...); e.status != 200 {
		t.Errorf("no content type: %d %s", e.status, e.body)
	}
	f.loose = false
	refused(t, f.send("POST", "/v1/decisions", `{"tenant": "`+strings.Repeat("a", 70_000)+`"}`, append(bearer, "Content-Type", "application/json")...), 413, "too-large")
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS"} {
		e := f.send(method, "/v1/decisions", ``, bearer...)
		refused(t, e, 405, "method-not-allowed")
		if e.header.Get("Allow") != "POST" {
			t.Errorf("%s: Allow %q", method, e.header.Get("Allow"))
		}
	}
	e := f.send("POST", "/v1/openapi.json", ``)
	refused(t, e, 405, "method-not-allowed")
	refused(t, f.send("GET", "/v1/decision", ``), 404, "no-such-path")
	if e = f.send("GET", "/v1/openapi.json", ``); e.status != 200 || !json.Valid([]byte(e.body)) || !strings.Contains(e.body, `"openapi": "3.1.0"`) {
		t.Errorf("document: %d %.100s", e.status, e.body)
	}
	for path, want := range map[string]bool{
		"/v1/decisions": true, "/v1/openapi.json": true, "/v1/decisions/": false, "/v1/decisions/x": false, "/": false, "/v1/decision": false,
		"/v1/decisions:batch": true, "/v1/decisions:": false, "/v1/decisions:batch/": false, "/v1/decisions/x/refund": true, "/v1/decisions/x/settle": true,
		"/v1/decisions//refund": false, "/v1/decisions/x/refund/": false, "/v1/decisions/x/y/refund": false, "/v1/decisions/refund": false, "/v1/decisionsx/refund": false,
	} {
		if f.Serves(path) != want {
			t.Errorf("Serves(%s) = %v", path, !want)
		}
	}
}

// TestBrokenBody guarantees that a caller who does not send its question whole
// is told so, and that its connection ends.
func TestBrokenBody(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	for name, rest := range map[string]string{
		"cut short":          "Content-Length: 100\r\n\r\n{",
		"cut between chunks": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"no chunk":           "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = fmt.Fprintf(conn, "POST /v1/decisions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s", token, rest)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(all); !strings.HasPrefix(s, "HTTP/1.1 400 ") || !strings.Contains(s, `"malformed"`) || !strings.Contains(s, "Connection: close") {
			t.Errorf("%s: answered %s", name, s)
		}
	}
}

// TestLateBody guarantees that a question which does not arrive in time is
// told apart from one that cannot be read.
func TestLateBody(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	late := fmt.Errorf("read tcp: %w", os.ErrDeadlineExceeded)
	r := httptest.NewRequest(http.MethodPost, "/v1/decisions", io.MultiReader(strings.NewReader(`{"tenant": `), iotest.ErrReader(late)))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	refused(t, exchange{w.Code, w.Header(), w.Body.String()}, 408, "request-timeout")
	if w.Header().Get("Connection") != "close" {
		t.Error("the connection goes on")
	}
}

// FuzzQuestion guarantees that the scanner reads what encoding/json reads, and
// is only ever stricter.
func FuzzQuestion(f *testing.F) {
	for _, q := range []string{
		`{"request_id": "r-1", "tenant": "acme", "application": "web", "user": "u1", "client_ip": "203.0.113.9", "service": "payments", "method": "POST", "path": "/v1/pay", "cost": 1, "labels": {"region": "eu"}}`,
		`{"tenant": "\u00e4\ud83d\ude00\n"}`, `{"cost": -0}`, `{"cost": 1e2}`, `{"labels": {"a": "b", "a": "c"}}`, ` { } `, `{"tenant":"a"}x`,
	} {
		f.Add(q)
	}
	face := newFace(f)
	face.loose = true
	f.Fuzz(func(t *testing.T, q string) {
		face.t = t
		e := face.ask(q)
		if e.status != http.StatusOK && e.status != http.StatusBadRequest {
			t.Fatalf("%q: %d %s", q, e.status, e.body)
		}
		if e.status == http.StatusBadRequest {
			return
		}
		var want struct {
			RequestID   string `json:"request_id"`
			APIKey      string `json:"api_key"`
			ClientIP    string `json:"client_ip"`
			Tenant      string
			Application string
			User        string
			Service     string
			Method      string
			Path        string
			Cost        *int64
			Labels      map[string]string
		}
		dec := json.NewDecoder(strings.NewReader(q))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&want); err != nil {
			t.Fatalf("%q was answered, and encoding/json refuses it: %v", q, err)
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			t.Fatalf("%q was answered, and has something behind its end", q)
		}
		var got decision
		if err := json.Unmarshal([]byte(e.body), &got); err != nil {
			t.Fatalf("%q: %s: %v", q, e.body, err)
		}
		if cost := want.Cost; cost != nil && *cost != got.Cost || cost == nil && got.Cost != 1 {
			t.Fatalf("%q: cost %d", q, got.Cost)
		}
	})
}

// BenchmarkDecide measures a question from the handler to the recorder, with
// the model for a store.
func BenchmarkDecide(b *testing.B) {
	f := newFace(b)
	f.key("k1", "s3cret", "acme", "web", "u1")
	f.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay", Cost: 1})
	f.rate("acme-burst", rule.Tenant, 1000, nil)
	f.monthly("acme-month", 1<<50)
	const question = `{"tenant": "acme", "application": "web", "user": "u1", "client_ip": "203.0.113.9", "service": "payments", "method": "POST", "path": "/v1/pay", "cost": 1}`
	r := httptest.NewRequest("POST", "/v1/decisions", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	b.ReportAllocs()
	for b.Loop() {
		r.Body = io.NopCloser(strings.NewReader(question))
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		if w.Code != 200 {
			b.Fatal(w.Code)
		}
	}
}

// TestErrors guarantees what a caller is told when there is no decision, and
// that it is not told what only the log should say.
func TestErrors(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		err    error
		status int
		code   string
		fields []string
	}{
		{"a cost that the domain refuses", t.Context(), fmt.Errorf("%w: -1", decide.ErrCost), 400, "malformed", []string{"cost"}},
		{"a request id of another question", t.Context(), fmt.Errorf("%w: r-1", decide.ErrRequestIDReused), 409, "request-id-reused", []string{"request_id"}},
		{"a fault of ours", t.Context(), errors.New("password of the store"), 500, "internal", nil},
		{"a caller who has gone", gone, context.Canceled, 499, "client-gone", nil},
	} {
		f := newFace(t)
		f.API = f.with(broken{Decider: f.service, err: tt.err}, "")
		f.ctx = tt.ctx
		e := f.ask(`{"tenant": "acme"}`)
		if fields := refused(t, e, tt.status, tt.code); !slices.Equal(fields, tt.fields) || strings.Contains(e.body, "password") {
			t.Errorf("%s: %s, want the fields %v", tt.name, e.body, tt.fields)
		}
	}
}

// A broken decider does not decide, nor correct.
type broken struct {
	ask.Decider
	err error
}

func (b broken) Decide(context.Context, decide.Query) (decide.Decision, error) {
	return decide.Decision{}, b.err
}

func (b broken) DecideAll(_ context.Context, all *decide.Batch) {
	n := len(all.Queries)
	all.Decisions, all.Errs = make([]decide.Decision, n), slices.Repeat([]error{b.err}, n)
}

func (b broken) Refund(context.Context, decide.Receipt, string, int64) (decide.Correction, error) {
	return decide.Correction{}, b.err
}

func (b broken) Settle(context.Context, decide.Receipt, int64) (decide.Correction, error) {
	return decide.Correction{}, b.err
}
