package httpapi_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
	"penstock.dev/services/rule-admin/httpapi"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/ledger/ledgertest"
)

var t0 = time.Date(2026, 11, 15, 12, 0, 0, 123456000, time.UTC)

// calls collects what the face reports.
type calls struct {
	mu  sync.Mutex
	all []httpapi.Call
}

func (c *calls) note(call httpapi.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

func configOf(store catalogtest.Store, c *calls) httpapi.Config {
	return httpapi.Config{
		Catalogue: catalog.New(store, rand.Reader, condition.Compile), Audit: store.Audit, Timeout: 5 * time.Second,
		Tokens: []httpapi.Token{
			{Actor: "ops", Role: httpapi.RoleAdmin, Secret: adminToken},
			{Actor: "dash", Role: httpapi.RoleReadonly, Secret: readonlyToken},
		},
		Ledger: ledger.New(ledgertest.NewMemory(t0), nil, nil), Now: func() time.Time { return t0 },
		Log: slog.New(slog.DiscardHandler), Observe: c.note,
	}
}

func memoryFace(t *testing.T, c *contract) (*face, *catalogtest.Memory, *calls) {
	t.Helper()
	store, seen := catalogtest.NewMemory(t0), &calls{}
	return newFace(t, configOf(store, seen), c), store, seen
}

// paths of the kinds.
var collection = map[catalog.Kind]string{
	catalog.KindTenant: "tenants", catalog.KindApplication: "applications", catalog.KindUser: "users", catalog.KindAPIKey: "api-keys",
	catalog.KindService: "services", catalog.KindEndpoint: "endpoints", catalog.KindPlan: "plans", catalog.KindRule: "rules",
}

func pathOf(kind catalog.Kind, id string) string { return "/v1/" + collection[kind] + "/" + id }

func (f *face) seed() {
	f.t.Helper()
	for _, s := range catalogtest.Samples {
		f.want(201, f.do("PUT", pathOf(s.Kind, s.ID), s.Text))
	}
}

// TestContract guarantees that the document and the server say the same: it
// makes the server give every answer that the document has, for every path, and
// every request and answer on the way is held to the document.
func TestContract(t *testing.T) {
	t.Parallel()
	c := newContract(t)
	store, books, counters := catalogtest.NewMemory(t0), ledgertest.NewMemory(t0, "acme"), ledgertest.NewCounters()
	cfg := configOf(store, &calls{})
	cfg.Ledger = ledger.New(books, counters, func(string, error) {})
	cfg.Totals = counters.Usage
	f := newFace(t, cfg, c)
	f.seed()
	f.do("PUT", "/v1/tenants/initech", `{"anchor":"2026-01-31T10:00:00Z"}`)
	f.do("PUT", "/v1/rules/anniversary", `{"kind":"quota","subject":["tenant"],"limit":5,"match":{"tenant":"initech"},"period":{"unit":"month","alignment":"anniversary"}}`)
	boom := errors.New("boom")
	elsewhere := strings.NewReplacer(`"/payments"`, `"/payments-2"`, `"/v1/pay"`, `"/v1/pay-2"`)
	for _, s := range catalogtest.Samples[:len(catalogtest.Samples)-1] {
		list, path := "/v1/"+collection[s.Kind], pathOf(s.Kind, s.ID)
		f.want(200, f.do("GET", list, ""))
		tag := f.want(200, f.do("GET", path, "")).header.Get("ETag")
		f.want(304, f.do("GET", path, "", "If-None-Match", tag))
		f.want(200, f.do("PUT", path, s.Text, "If-Match", tag))
		f.want(201, f.do("PUT", pathOf(s.Kind, s.ID+"-2"), elsewhere.Replace(s.Text), "If-None-Match", "*"))
		f.want(204, f.do("DELETE", pathOf(s.Kind, s.ID+"-2"), "", "If-Match", "*"))

		f.want(400, f.refused("PUT", path, `{"nonsense":1}`))
		f.want(400, f.do("GET", list+"?nonsense=1", ""))
		f.want(400, f.do("GET", path+"?nonsense=1", ""))
		f.want(400, f.do("DELETE", path+"?nonsense=1", ""))
		f.want(412, f.do("PUT", path, s.Text, "If-Match", `"1000000"`))
		f.want(412, f.do("DELETE", path, "", "If-Match", `"1000000"`))
		f.want(413, f.do("PUT", path, `{"name":"`+strings.Repeat("x", 65<<10)+`"}`))
		f.want(422, f.refused("PUT", path, strings.Replace(strings.Replace(s.Text, `{`, `{"id":"/",`, 1), `,}`, `}`, 1)))
		f.want(422, f.refused("GET", list+"?limit=0", ""))
		f.want(428, f.do("PUT", path, s.Text))
		f.want(404, f.do("GET", pathOf(s.Kind, "none"), ""))
		f.want(404, f.do("DELETE", pathOf(s.Kind, "none"), ""))
		for _, r := range [][2]string{{"GET", list}, {"GET", path}, {"PUT", path}, {"DELETE", path}} {
			f.want(401, f.as("").do(r[0], r[1], ""))
			if r[0] != "GET" {
				f.want(403, f.as(readonlyToken).do(r[0], r[1], ""))
			}
			body := ""
			if r[0] == "PUT" {
				body = s.Text
			}
			store.Fail(boom)
			f.want(500, f.do(r[0], r[1], body))
			store.Fail(catalog.ErrUnavailable)
			f.want(503, f.do(r[0], r[1], body))
			store.Fail(nil)
		}
	}
	for _, path := range []string{"/v1/plans/gold", "/v1/tenants/acme", "/v1/applications/web", "/v1/api-keys/acme-1", "/v1/services/payments", "/v1/endpoints/pay"} {
		f.want(409, f.do("DELETE", path, ""))
	}
	f.want(409, f.do("PUT", "/v1/tenants/initech", `{}`, "If-Match", "*"))
	f.want(409, f.do("PUT", "/v1/applications/web", `{"tenant":"globex"}`, "If-Match", "*"))
	f.want(409, f.do("PUT", "/v1/api-keys/acme-1", `{"tenant":"globex"}`, "If-Match", "*"))
	f.want(201, f.do("PUT", "/v1/services/search", `{"upstream":"https://search.example.org:8443/base"}`))
	p := f.want(409, f.do("PUT", "/v1/services/rival", `{"upstream":"http://127.0.0.1:9002","path_prefix":"/payments"}`)).problem(t)
	if p.Code != "conflict" || len(p.Errors) != 1 || p.Errors[0].Field != "path_prefix" || p.Errors[0].Message != "is already that of services/payments" {
		t.Errorf("a rival is refused with %+v", p)
	}
	f.want(409, f.do("PUT", "/v1/endpoints/pay", `{"service":"search","path":"/v1/pay"}`, "If-Match", "*"))

	f.want(200, f.do("GET", "/v1/audit?limit=2", ""))
	f.want(200, f.do("GET", "/v1/audit?kind=rule&object_id=acme-burst&actor=ops", "", "Accept", "text/csv"))
	f.want(400, f.do("GET", "/v1/audit?kinds=rule", ""))
	f.want(422, f.refused("GET", "/v1/audit?kind=tax", ""))
	const topUp, key = `{"meter":"credits","units":200,"reason":"order 17"}`, "Idempotency-Key"
	f.want(201, f.do("POST", "/v1/tenants/acme/topups", topUp, key, "17"))
	f.want(201, f.do("POST", "/v1/tenants/acme/topups", topUp, key, "17"))
	f.want(201, f.do("POST", "/v1/tenants/acme/topups", `{"meter":"credits","units":1,"priority":-5,"expires_at":"2026-12-01T00:00:00Z"}`, key, "18"))
	f.want(400, f.refused("POST", "/v1/tenants/acme/topups", topUp))
	f.want(400, f.refused("POST", "/v1/tenants/acme/topups", `{"meter":"credits","units":"200"}`, key, "19"))
	f.want(403, f.as(readonlyToken).do("POST", "/v1/tenants/acme/topups", topUp, key, "19"))
	f.want(404, f.do("POST", "/v1/tenants/none/topups", topUp, key, "19"))
	f.want(413, f.do("POST", "/v1/tenants/acme/topups", `{"reason":"`+strings.Repeat("x", 65<<10)+`"}`, key, "19"))
	f.want(422, f.refused("POST", "/v1/tenants/acme/topups", `{"meter":"credits","units":0}`, key, "19"))
	books.Advance(17 * 24 * time.Hour)
	if overdue, err := cfg.Ledger.(*ledger.Ledger).ExpireDue(t.Context()); overdue != 0 || err != nil {
		t.Errorf("ExpireDue = %d, %v", overdue, err)
	}
	f.want(200, f.do("GET", "/v1/tenants/acme/topups", ""))
	f.want(400, f.do("GET", "/v1/tenants/acme/topups?nonsense=1", ""))
	f.want(404, f.do("GET", "/v1/tenants/none/topups", ""))
	f.want(422, f.refused("GET", "/v1/tenants/acme/topups?limit=501", ""))

	f.want(201, f.do("PUT", "/v1/rules/acme-wallet", `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"match":{"tenant":"acme"},"meter":"credits"}`))
	f.want(200, f.do("GET", "/v1/usage?limit=1000", ""))
	f.want(400, f.do("GET", "/v1/usage?tenant=acme", ""))
	f.want(422, f.refused("GET", "/v1/usage?limit=1001", ""))
	f.want(200, f.do("GET", "/v1/tenants/acme/usage", ""))
	f.want(400, f.do("GET", "/v1/tenants/acme/usage?limit=1", ""))
	f.want(404, f.do("GET", "/v1/tenants/none/usage", ""))
	counters.Fail(errors.New("dial tcp 198.51.100.7: refused"))
	for _, path := range []string{"/v1/usage", "/v1/tenants/acme/usage"} {
		p := f.want(503, f.do("GET", path, "")).problem(t)
		if p.Code != "counters-unavailable" || !strings.Contains(p.Detail, "-redis-url") || strings.Contains(p.Detail, "198.51.100.7") {
			t.Errorf("%s without counters is refused with %+v", path, p)
		}
	}
	counters.Fail(nil)

	const question = `{"tenant":"acme","service":"payments","method":"POST","path":"/v1/pay","client_ip":"203.0.113.9","labels":{"a":"b"},"request_id":"r"}`
	f.want(200, f.do("POST", "/v1/explain?rule_id=web-key", question))
	f.want(200, f.as(readonlyToken).do("POST", "/v1/explain", `{}`))
	f.want(400, f.refused("POST", "/v1/explain", `{"tenant":7}`))
	f.want(404, f.do("POST", "/v1/explain?rule_id=none", question))
	f.want(413, f.do("POST", "/v1/explain", `{"tenant":"`+strings.Repeat("x", 65<<10)+`"}`))
	f.want(422, f.do("POST", "/v1/explain", `{"api_key":"psk_unknown"}`))

	for _, r := range []struct{ method, path, body string }{
		{"GET", "/v1/audit", ""},
		{"GET", "/v1/tenants/acme/topups", ""},
		{"POST", "/v1/tenants/acme/topups", topUp},
		{"GET", "/v1/usage", ""},
		{"GET", "/v1/tenants/acme/usage", ""},
		{"POST", "/v1/explain", question},
	} {
		f.want(401, f.as("").do(r.method, r.path, r.body, key, "20"))
		for _, failing := range []func(error){store.Fail, books.Fail} {
			failing(boom)
		}
		f.want(500, f.do(r.method, r.path, r.body, key, "20"))
		for _, failing := range []func(error){store.Fail, books.Fail} {
			failing(catalog.ErrUnavailable)
		}
		f.want(503, f.do(r.method, r.path, r.body, key, "20"))
		store.Fail(nil)
		books.Fail(nil)
	}
	store.Fail(catalog.ErrNoSchema)
	f.want(503, f.do("PUT", "/v1/tenants/new", `{}`))
	f.want(200, f.as("").do("GET", "/openapi.json", ""))
	f.want(200, f.as("").do("GET", "/openapi.yaml", ""))

	for _, a := range c.unseen(t) {
		t.Errorf("the document has the answer %s, and no request gets it", a)
	}
}

// TestWrongInput guarantees that wrong input gets a 4xx that names the field.
func TestWrongInput(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	f.seed()
	rate := func(rest string) string {
		return `{"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":30,"window":"60s"` + rest + `}`
	}
	quota := func(rest string) string {
		return `{"kind":"quota","algorithm":"quota","subject":["tenant"],"limit":30` + rest + `}`
	}
	tests := []struct {
		name   string
		path   string
		body   string
		status int
		field  string // empty: nothing to name
	}{
		{"bad JSON", "rules/x", `{"kind":`, 400, ""},
		{"no JSON", "rules/x", ``, 400, ""},
		{"a list", "rules/x", `[]`, 400, ""},
		{"two objects", "rules/x", `{}{}`, 400, ""},
		{"not UTF-8", "rules/x", "{\"name\":\"\xff\"}", 400, ""},
		{"an unknown field", "rules/x", rate(`,"limitt":1`), 400, "limitt"},
		{"a field in another case", "rules/x", rate(`,"Burst":1`), 400, "Burst"},
		{"an unknown field inside", "rules/x", rate(`,"match":{"tennant":"acme"}`), 400, "match.tennant"},
		{"a field twice", "rules/x", rate(`,"limit":31`), 400, "limit"},
		{"text for a number", "rules/x", `{"kind":"rate","algorithm":"gcra","subject":[],"limit":"30","window":"60s"}`, 400, "limit"},
		{"a number for text", "rules/x", `{"kind":"rate","algorithm":"gcra","subject":[],"limit":30,"window":60}`, 400, "window"},
		{"a fraction", "rules/x", `{"kind":"rate","algorithm":"gcra","subject":[],"limit":30.5,"window":"60s"}`, 400, "limit"},
		{"null", "rules/x", rate(`,"burst":null`), 400, "burst"},
		{"a number in a list of texts", "rules/x", `{"kind":"rate","algorithm":"gcra","subject":["tenant",7],"limit":30,"window":"60s"}`, 400, "subject[1]"},
		{"a secret in a key", "api-keys/x", `{"tenant":"acme","secret":"psk_x"}`, 400, "secret"},

		{"a limit of 2^53", "rules/x", `{"kind":"quota","subject":["tenant"],"limit":9007199254740992,"period":{"unit":"month"}}`, 422, "limit"},
		{"a limit beyond 64 bits", "rules/x", `{"kind":"quota","subject":["tenant"],"limit":99999999999999999999999,"period":{"unit":"month"}}`, 422, "limit"},
		{"a limit of 1e999999999", "rules/x", `{"kind":"quota","subject":["tenant"],"limit":1e999999999,"period":{"unit":"month"}}`, 422, "limit"},
		{"a negative limit", "rules/x", `{"kind":"quota","subject":["tenant"],"limit":-1,"period":{"unit":"month"}}`, 422, "limit"},
		{"no limit", "rules/x", `{"kind":"quota","subject":["tenant"],"period":{"unit":"month"}}`, 422, "limit"},
		{"an unknown tenant", "applications/x", `{"tenant":"nope"}`, 422, "tenant"},
		{"a rule for an unknown tenant", "rules/x", rate(`,"match":{"tenant":"nope"}`), 422, "match.tenant"},
		{"a quota of nobody", "rules/x", `{"kind":"quota","subject":["user"],"limit":1,"period":{"unit":"month"}}`, 422, "subject"},
		{"no period", "rules/x", quota(``), 422, "period"},
		{"no unit", "rules/x", quota(`,"period":{}`), 422, "period.unit"},
		{"a zone on the moon", "rules/x", quota(`,"period":{"unit":"month","zone":"Moon/Tycho"}`), 422, "period.zone"},
		{"the zone Local", "tenants/x", `{"zone":"Local"}`, 422, "zone"},
		{"an anniversary of nothing", "rules/x", quota(`,"period":{"unit":"month","alignment":"anniversary"}`), 422, "period.anchor"},
		{"an anchor that is no time", "rules/x", quota(`,"period":{"unit":"month","alignment":"anniversary","anchor":"the ides of March"}`), 422, "period.anchor"},
		{"a threshold above 100", "rules/x", quota(`,"period":{"unit":"month"},"thresholds":[80,101]`), 422, "thresholds[1]"},
		{"a threshold twice", "rules/x", quota(`,"period":{"unit":"month"},"thresholds":[80,{"left":1},80]`), 422, "thresholds[2]"},
		{"a window that is none", "rules/x", `{"kind":"rate","algorithm":"gcra","subject":[],"limit":30,"window":"60"}`, 422, "window"},
		{"a window of a quota", "rules/x", quota(`,"period":{"unit":"month"},"window":"60s"`), 422, "window"},
		{"a network that is none", "rules/x", rate(`,"match":{"networks":["203.0.113.0/24","x"]}`), 422, "match.networks[1]"},
		{"another id than the path's", "rules/x", rate(`,"id":"y"`), 422, "id"},
		{"an id that is none", "rules/a%2Fb", rate(``), 422, "id"},
		{"an id of dots", "rules/%2e%2e", rate(``), 422, "id"},
		{"the end before the start", "rules/x", rate(`,"valid_from":"2026-12-01T00:00:00Z","valid_to":"2026-11-01T00:00:00Z"`), 422, "valid_to"},
		{"an upstream by ftp", "services/x", `{"upstream":"ftp://127.0.0.1"}`, 422, "upstream"},
		{"a host with a port", "services/x", `{"upstream":"http://a","hosts":["b:80"]}`, 422, "hosts[0]"},
		{"a path that no request has", "endpoints/x", `{"service":"payments","path":"/a//b"}`, 422, "path"},
		{"a price that rises to nothing", "plans/x", `{"overage":[{"meter":"m","up_to":5,"unit_price":"1"}]}`, 422, "overage[0].up_to"},
		{"a price in words", "plans/x", `{"overage":[{"meter":"m","unit_price":"cheap"}]}`, 422, "overage[0].unit_price"},
		{"FC-28: a price of -1", "plans/x", `{"overage":[{"meter":"m","unit_price":"-1"}]}`, 422, "overage[0].unit_price"},
		{"FC-28: a fee of -1", "plans/x", `{"fee":{"amount":-1,"currency":"USD","period":"month"}}`, 422, "fee.amount"},
		{"FC-28: -1 units included", "plans/x", `{"included":{"m":-1}}`, 422, "included.m"},
		{"a currency in lower case", "tenants/x", `{"currency":"usd"}`, 422, "currency"},

		{"a wallet without a mode", "rules/x", `{"kind":"wallet","algorithm":"overdraft_wallet","subject":["tenant"]}`, 422, "wallet"},
		{"a prepaid wallet with a limit", "rules/x", `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"limit":5}`, 422, "limit"},
		{"a prepaid wallet with a period", "rules/x", `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"period":{"unit":"day"}}`, 422, "period"},
		{"a renewable wallet without a period", "rules/x", `{"kind":"wallet","wallet":"renewable","subject":["tenant"],"limit":5}`, 422, "period"},
		{"a wallet of a user", "rules/x", `{"kind":"wallet","wallet":"prepaid","subject":["tenant","user"]}`, 422, "subject"},
		{"a condition that is none", "rules/x", rate(`,"condition":"cost >"`), 422, "condition"},
		{"a condition of a number", "rules/x", rate(`,"condition":"cost"`), 422, "condition"},
		{"a lease of nothing", "rules/x", rate(`,"lease":{"units":0,"ttl":"1s"}`), 422, "lease.units"},
		{"a lease for longer than the window", "rules/x", rate(`,"lease":{"units":1,"ttl":"1h"}`), 422, "lease.ttl"},
		{"a delay of gcra", "rules/x", rate(`,"max_delay":"1s"`), 422, "max_delay"},
		{"a delay above a minute", "rules/x", `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":1,"window":"1s","max_delay":"1m1s"}`, 422, "max_delay"},
		{"a delay longer than its queue", "rules/x", `{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","max_delay":"2s"}`, 422, "max_delay"},
		{"a log above 10,000", "rules/x", `{"kind":"rate","algorithm":"sliding_window_log","subject":[],"limit":10001,"window":"1s"}`, 422, "limit"},
		{"a local quota", "rules/x", quota(`,"period":{"unit":"month"},"on_failure":"local"`), 422, "on_failure"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := f.in(t)
			p := g.want(tt.status, g.do("PUT", "/v1/"+tt.path, tt.body)).problem(t)
			if tt.field != "" && !slices.Contains(p.fields(), tt.field) || tt.field == "" && len(p.Errors) > 0 {
				t.Errorf("%s: errors of %q, want one of %q", p.Detail, p.fields(), tt.field)
			}
			g.want(404, g.do("GET", "/v1/"+tt.path, ""))
		})
	}
}

// TestEveryRule guarantees that each algorithm and field of a rule can be put,
// and is shown as it was put.
func TestEveryRule(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	for i, fields := range []string{
		`"kind":"rate","algorithm":"fixed_window","subject":["tenant"],"limit":5,"window":"1s","on_failure":"local"`,
		`"kind":"rate","algorithm":"sliding_window_log","subject":["tenant"],"limit":5,"window":"1s"`,
		`"kind":"rate","algorithm":"sliding_window_counter","subject":["tenant"],"limit":5,"window":"1s"`,
		`"kind":"rate","algorithm":"token_bucket","subject":["tenant"],"limit":5,"window":"1s","burst":9`,
		`"kind":"rate","algorithm":"leaky_bucket","subject":["tenant"],"limit":5,"window":"1s","burst":10,"max_delay":"2s"`,
		`"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":5,"window":"1s","condition":"labels.region == \"eu\""`,
		`"kind":"wallet","wallet":"prepaid","subject":["tenant"],"meter":"credits","thresholds":[{"left":5}]`,
		`"kind":"wallet","wallet":"renewable","algorithm":"overdraft_wallet","subject":["tenant"],"limit":5,"period":{"unit":"month"}`,
		`"kind":"block","condition":"path.startsWith(\"/admin\")"`,
	} {
		path := fmt.Sprintf("/v1/rules/every-%d", i)
		f.want(201, f.do("PUT", path, `{`+fields+`}`))
		shown := string(f.want(200, f.do("GET", path, "")).body)
		want := decoded(t, `{`+fields+`}`)
		for field, value := range decoded(t, shown) {
			if was, ok := want[field]; ok && fmt.Sprint(was) != fmt.Sprint(value) {
				t.Errorf("%s shows %s as %v, want %v", path, field, value, was)
			}
			delete(want, field)
		}
		if len(want) > 0 {
			t.Errorf("%s does not show %v", path, want)
		}
	}
}

func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestE4 guarantees case E4: a limit of 2^53 cannot be counted exactly and is
// 422, 2^53-1 is accepted.
func TestE4(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	for _, rest := range []string{
		`"kind":"quota","algorithm":"quota","subject":["tenant"],"period":{"unit":"month"}`,
		`"kind":"rate","algorithm":"gcra","subject":["tenant"],"window":"1s"`,
	} {
		p := f.want(422, f.refused("PUT", "/v1/rules/e4", `{`+rest+`,"limit":9007199254740992}`)).problem(t)
		if got := p.fields(); !slices.Equal(got, []string{"limit"}) || !strings.Contains(p.Detail, "9007199254740991") {
			t.Errorf("%q: %s, want limit and its bound", got, p.Detail)
		}
		f.want(201, f.do("PUT", "/v1/rules/e4", `{`+rest+`,"limit":9007199254740991}`))
		if e := f.do("GET", "/v1/rules/e4", ""); !strings.Contains(string(e.body), `"limit":9007199254740991`) {
			t.Errorf("shown as %s", e.body)
		}
		f.want(204, f.do("DELETE", "/v1/rules/e4", ""))
	}
}

// TestExamples guarantees that the examples of the document can be put.
func TestExamples(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	f.seed()
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Examples []json.RawMessage }
		}
	}
	if err := json.Unmarshal(f.do("GET", "/openapi.json", "").body, &doc); err != nil {
		t.Fatal(err)
	}
	n := 0
	for schema, path := range map[string]string{
		"Tenant": "tenants", "Application": "applications", "User": "users", "ApiKey": "api-keys", "Service": "services",
		"Endpoint": "endpoints", "Plan": "plans", "Rule": "rules",
	} {
		for i, example := range doc.Components.Schemas[schema].Examples {
			id, status := fmt.Sprintf("example-%d", i), 201
			if taken, ok := map[string]string{"services": "payments", "endpoints": "pay"}[path]; ok {
				id, status = taken, 200 // the sample itself, whose traffic no other may take
			}
			f.want(status, f.do("PUT", "/v1/"+path+"/"+id, string(example), "If-Match", "*"))
			n++
		}
	}
	if n < 8 {
		t.Errorf("%d examples, want one of each kind", n)
	}
}

// TestTokens guarantees who gets in, and what is said to those who do not.
func TestTokens(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	anon := f.as("")
	for _, header := range []string{
		"", "Bearer", "Bearer ", "Basic " + adminToken, adminToken, "Bearer " + adminToken + "x", "Bearer " + adminToken[:len(adminToken)-1],
		"Bearer " + strings.ToUpper(adminToken),
	} {
		headers := []string{"Authorization", header}
		if header == "" {
			headers = nil
		}
		e := anon.want(401, anon.do("PUT", "/v1/tenants/acme", `{}`, headers...))
		if got := e.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
			t.Errorf("Authorization %q: WWW-Authenticate is %q, want Bearer", header, got)
		}
		if p := e.problem(t); p.Code != "unauthorized" || strings.Contains(p.Detail, adminToken) {
			t.Errorf("Authorization %q: %+v", header, p)
		}
	}
	anon.want(401, anon.do("GET", "/v1/tenants", "", "Authorization", "Bearer "+adminToken, "Authorization", "Bearer "+adminToken))
	anon.want(201, anon.do("PUT", "/v1/tenants/acme", `{}`, "Authorization", "bearer  "+adminToken))
	ro := f.as(readonlyToken)
	ro.want(200, ro.do("GET", "/v1/tenants/acme", ""))
	ro.want(200, ro.do("GET", "/v1/audit", ""))
	ro.want(403, ro.do("PUT", "/v1/tenants/acme", `{"bad`, "If-Match", "*"))
	if p := ro.want(403, ro.do("DELETE", "/v1/tenants/acme", "")).problem(t); p.Code != "forbidden" {
		t.Errorf("code is %q", p.Code)
	}
}

// TestPaths guarantees that what is not there is a problem, too.
func TestPaths(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v2/rules", "/v1/rule", "/v1/rules/", "/v1/rules/a/b", "/v1/rules//", "//v1/rules", "/v1/audit/1", "/v1/audit/", "/openapi",
		"/v1/rules/a%zz",
	} {
		u, err := url.Parse(f.url)
		if err != nil {
			t.Fatal(err)
		}
		u.Opaque = "//" + u.Host + path // as it is
		r := &http.Request{Method: "GET", URL: u, Header: http.Header{"Authorization": {"Bearer " + adminToken}}}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		media := resp.Header.Get("Content-Type")
		_ = resp.Body.Close()
		if path == "/v1/rules/a%zz" { // net/http refuses it before us
			continue
		}
		if resp.StatusCode != 404 || media != "application/problem+json" {
			t.Errorf("GET %s = %d %s, want 404 as a problem", path, resp.StatusCode, media)
		}
	}
	for path, allow := range map[string]string{
		"/v1/rules": "GET, HEAD", "/v1/rules/x": "GET, HEAD, PUT, DELETE", "/v1/audit": "GET, HEAD", "/openapi.json": "GET, HEAD",
	} {
		e := f.want(405, f.do("PATCH", path, ""))
		if p := e.problem(t); p.Code != "method-not-allowed" || e.header.Get("Allow") != allow {
			t.Errorf("PATCH %s: %s, Allow %q, want %q", path, p.Code, e.header.Get("Allow"), allow)
		}
	}
	f.do("PUT", "/v1/tenants/acme", `{}`)
	if e := f.want(200, f.do("HEAD", "/v1/tenants/acme", "")); e.header.Get("ETag") != `"1"` || len(e.body) > 0 {
		t.Errorf("HEAD = %s with ETag %s", e.body, e.header.Get("ETag"))
	}
}

// TestETags guarantees that a tag is strong, the same on GET and PUT, and that
// If-Match and If-None-Match mean what HTTP says.
func TestETags(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	put := f.want(201, f.do("PUT", "/v1/tenants/a~b", `{"name":"<&>"}`))
	get := f.do("GET", "/v1/tenants/a~b", "")
	if tag := put.header.Get("ETag"); tag != `"1"` || get.header.Get("ETag") != tag || string(put.body) != string(get.body) {
		t.Errorf("PUT %s %s, GET %s %s", tag, put.body, get.header.Get("ETag"), get.body)
	}
	if got, want := put.header.Get("Location"), "/v1/tenants/a~b"; got != want {
		t.Errorf("Location %q, want %q", got, want)
	}
	if want := `{"id":"a~b","name":"\u003c\u0026\u003e","version":1,"changed_at":"2026-11-15T12:00:00.123456Z","changed_by":"ops"}` + "\n"; string(get.body) != want {
		t.Errorf("shown as %s, want %s", get.body, want)
	}
	const neverMatches = "weak or malformed ETag, which never matches"
	for _, tt := range []struct {
		status  int
		headers []string
		says    string
		field   string
	}{
		{428, nil, `send If-Match: "1" (the current ETag), or If-Match: * to force`, "If-Match"},
		{412, []string{"If-Match", `"2"`}, "in version 1", "If-Match"},
		{412, []string{"If-Match", `W/"1"`}, neverMatches, "If-Match"},
		{412, []string{"If-Match", `1`}, neverMatches, "If-Match"},
		{412, []string{"If-Match", `"01"`}, neverMatches, "If-Match"},
		{412, []string{"If-Match", ``}, neverMatches, "If-Match"},
		{412, []string{"If-Match", `"x"`}, neverMatches, "If-Match"},
		{412, []string{"If-None-Match", `*`}, "", "If-None-Match"},
		{412, []string{"If-Match", `*`, "If-None-Match", `*`}, "", "If-None-Match"},
	} {
		p := f.want(tt.status, f.do("PUT", "/v1/tenants/a~b", `{}`, tt.headers...)).problem(t)
		if tt.says != "" && !strings.Contains(p.Detail, tt.says) {
			t.Errorf("%q: %s, want it to say %s", tt.headers, p.Detail, tt.says)
		}
		if len(p.Errors) != 1 || p.Errors[0].Field != tt.field {
			t.Errorf("%q: names %v, want %s", tt.headers, p.Errors, tt.field)
		}
		if odd := strings.Contains(p.Detail, neverMatches); odd != (tt.says == neverMatches) {
			t.Errorf("%q: %s", tt.headers, p.Detail)
		}
	}
	f.want(400, f.do("PUT", "/v1/tenants/a~b", `{}`, "If-None-Match", `"7"`))
	if e := f.do("GET", "/v1/tenants/a~b", ""); e.header.Get("ETag") != `"1"` {
		t.Errorf("after refusals it is in version %s", e.header.Get("ETag"))
	}
	f.want(200, f.do("PUT", "/v1/tenants/a~b", `{}`, "If-Match", `"9", "1"`))
	f.want(200, f.do("PUT", "/v1/tenants/a~b", `{}`, "If-Match", `"9"`, "If-Match", `"2"`))
	f.want(200, f.do("PUT", "/v1/tenants/a~b", `{}`, "If-Match", `*`))
	f.want(200, f.do("GET", "/v1/tenants/a~b", "", "If-None-Match", `"3"`))
	f.want(304, f.do("GET", "/v1/tenants/a~b", "", "If-None-Match", `"3", W/"4"`))
	f.want(304, f.do("GET", "/v1/tenants/a~b", "", "If-None-Match", `*`))
	f.want(201, f.do("PUT", "/v1/tenants/new", `{}`, "If-Match", `*`))
	f.want(412, f.do("PUT", "/v1/tenants/newer", `{}`, "If-Match", `"1"`))
}

// TestPages guarantees that cursors lead through a list once, and that a cursor
// which this list did not give is refused.
func TestPages(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	var want []string
	for i := range 7 {
		id := fmt.Sprintf("t%d", i)
		want = append(want, id)
		f.want(201, f.do("PUT", "/v1/tenants/"+id, `{}`))
	}
	page := func(path string) (ids []string, next string) {
		t.Helper()
		var p struct {
			Items []struct {
				ID       string `json:"id"`
				ObjectID string `json:"object_id"`
			}
			NextCursor string `json:"next_cursor"`
		}
		if err := json.Unmarshal(f.want(200, f.do("GET", path, "")).body, &p); err != nil {
			t.Fatal(err)
		}
		for _, item := range p.Items {
			ids = append(ids, item.ID+item.ObjectID)
		}
		return ids, p.NextCursor
	}
	var cursor string
	for _, limit := range []int{1, 3, 7, 500} {
		var got []string
		cursors := 0
		for next := ""; ; cursors++ {
			var ids []string
			ids, next = page(fmt.Sprintf("/v1/tenants?limit=%d&cursor=%s", limit, next))
			got = append(got, ids...)
			if next == "" {
				break
			}
			cursor = next
		}
		if !slices.Equal(got, want) || cursors != (len(want)-1)/limit {
			t.Errorf("in pages of %d: %v with %d cursors, want %v with %d", limit, got, cursors, want, (len(want)-1)/limit)
		}
	}
	if ids, next := page("/v1/users"); len(ids) > 0 || next != "" {
		t.Errorf("an empty list is %v, %q", ids, next)
	}
	_, audit := page("/v1/audit?limit=2&actor=ops")
	for _, path := range []string{
		"/v1/tenants?cursor=t3", "/v1/tenants?cursor=!!", "/v1/tenants?cursor=AAAAAAAAAAAAdDM", "/v1/tenants?cursor=" + cursor + "A",
		"/v1/users?cursor=" + cursor, "/v1/tenants?cursor=" + audit, "/v1/audit?cursor=" + cursor, "/v1/audit?cursor=" + audit,
	} {
		if p := f.want(422, f.do("GET", path, "")).problem(t); !slices.Equal(p.fields(), []string{"cursor"}) {
			t.Errorf("GET %s: errors of %v, want of cursor", path, p.fields())
		}
	}
	forged := "list/1/tenant\x00a\x00b" // by somebody who read the code
	sum := sha256.Sum256([]byte(forged))
	f.want(422, f.do("GET", "/v1/tenants?cursor="+base64.RawURLEncoding.EncodeToString(append(sum[:8], "a\x00b"...)), ""))
	for _, limit := range []string{"0", "501", "-1", "x", "1.5", "", "99999999999999999999"} {
		if p := f.want(422, f.do("GET", "/v1/tenants?limit="+limit, "")).problem(t); !slices.Equal(p.fields(), []string{"limit"}) {
			t.Errorf("limit %q: errors of %v, want of limit", limit, p.fields())
		}
	}
	f.want(400, f.do("GET", "/v1/tenants?limit=1&limit=2", ""))
	f.want(400, f.do("GET", "/v1/tenants?limit=%zz", ""))
	if ids, _ := page("/v1/audit?limit=2&actor=ops&cursor=" + audit); !slices.Equal(sortedSuffix(ids), []string{"t3", "t4"}) {
		t.Errorf("the audit's second page is of %v, want t4 and t3", ids)
	}
}

func sortedSuffix(ids []string) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id[len(id)-2:])
	}
	slices.Sort(out)
	return out
}

// TestAuditCSV guarantees that the audit as CSV is RFC 4180, that no cell is a
// formula to a spreadsheet, and that the next page is in the Link header.
func TestAuditCSV(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	f.do("PUT", "/v1/tenants/-2", `{"name":"=1+1, \"quoted\""}`, "X-Request-Id", "=HYPERLINK(1)")
	f.do("DELETE", "/v1/tenants/-2", "")
	e := f.want(200, f.do("GET", "/v1/audit?limit=1", "", "Accept", "text/csv;q=0.9, */*;q=0.1"))
	if !strings.Contains(string(e.body), "\r\n") || !strings.HasPrefix(e.header.Get("Content-Type"), "text/csv") {
		t.Errorf("%s: %q", e.header.Get("Content-Type"), e.body)
	}
	next, _, ok := strings.Cut(strings.TrimPrefix(e.header.Get("Link"), "<"), ">")
	if !ok {
		t.Fatalf("Link is %q", e.header.Get("Link"))
	}
	e = f.want(200, f.do("GET", next, "", "Accept", "text/csv"))
	rows, err := csv.NewReader(strings.NewReader(string(e.body))).ReadAll()
	if err != nil || len(rows) != 2 || e.header.Get("Link") != "" {
		t.Fatalf("%q, %v, Link %q: want one entry and no further page", rows, err, e.header.Get("Link"))
	}
	got := map[string]string{}
	for i, name := range rows[0] {
		got[name] = rows[1][i]
	}
	if got["object_id"] != "'-2" || got["request_id"] != "'=HYPERLINK(1)" || got["before"] != "" || !strings.Contains(got["after"], `"name":"=1+1, \"quoted\""`) {
		t.Errorf("the entry is %q", got)
	}
	e = f.do("GET", "/v1/audit", "", "Accept", "application/json, text/csv")
	if e.header.Get("Content-Type") != "application/json" {
		t.Errorf("who prefers JSON gets %s", e.header.Get("Content-Type"))
	}
}

// TestRequestID guarantees that every answer has an id, the client's own when it
// is a sane one, and that the audit has it.
func TestRequestID(t *testing.T) {
	t.Parallel()
	f, store, _ := memoryFace(t, newContract(t))
	if e := f.do("PUT", "/v1/tenants/a", `{}`, "X-Request-Id", "order 17"); e.header.Get("X-Request-Id") == "order 17" {
		t.Error("an id with a space was taken")
	}
	for _, id := range []string{"", strings.Repeat("x", 129), "a\tb"} {
		if e := f.do("GET", "/nowhere", "", "X-Request-Id", id); len(e.header.Get("X-Request-Id")) != 36 {
			t.Errorf("id %q became %q, want a new one", id, e.header.Get("X-Request-Id"))
		}
	}
	e := f.do("PUT", "/v1/tenants/b", `{}`, "X-Request-Id", "order-17")
	entries, err := store.Audit(t.Context(), catalog.Search{Most: 1})
	if err != nil || e.header.Get("X-Request-Id") != "order-17" || entries[0].RequestID != "order-17" || entries[0].Actor != "ops" {
		t.Errorf("answered %q, audit %+v (%v)", e.header.Get("X-Request-Id"), entries[0], err)
	}
}

// TestProblems guarantees that every error of the catalogue and of this package
// has a status and a code of its own, so that none falls to 500 by oversight.
func TestProblems(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	for _, file := range []string{"problem.go", "../catalog/errors.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
				if call, ok := v.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
					if text, ok := call.Args[0].(*ast.BasicLit); ok {
						declared[strings.Trim(text.Value, `"`)] = true
					}
				}
			}
			return true
		})
	}
	mapped := map[string]bool{}
	codes := map[string]bool{}
	for _, p := range httpapi.Problems() {
		mapped[p.Err.Error()] = true
		if codes[p.Code] || p.Status < 400 || p.Status > 599 || p.Title == "" {
			t.Errorf("%+v: want a code of its own, an error's status and a title", p)
		}
		codes[p.Code] = true
	}
	if len(declared) < 14 || !maps.Equal(declared, mapped) {
		t.Errorf("errors %v, and problems for %v", slices.Sorted(maps.Keys(declared)), slices.Sorted(maps.Keys(mapped)))
	}
}

// TestFailure guarantees that a fault of the service is not told to the caller,
// and that a database that is away comes with a time to wait.
func TestFailure(t *testing.T) {
	t.Parallel()
	f, store, _ := memoryFace(t, newContract(t))
	store.Fail(errors.New("password of the database is hunter2"))
	if e := f.want(500, f.do("GET", "/v1/rules", "")); strings.Contains(string(e.body), "hunter2") || e.problem(t).Code != "internal" {
		t.Errorf("told %s", e.body)
	}
	store.Fail(fmt.Errorf("read: %w: dial tcp 198.51.100.7: refused", catalog.ErrUnavailable))
	e := f.want(503, f.do("PUT", "/v1/tenants/a", `{}`))
	if e.header.Get("Retry-After") != "1" || strings.Contains(string(e.body), "198.51.100.7") || e.problem(t).Code != "store-unavailable" {
		t.Errorf("Retry-After %q, %s", e.header.Get("Retry-After"), e.body)
	}
	const perhaps = "may have been made"
	for method, want := range map[string]bool{"PUT": true, "DELETE": true, "GET": false} {
		body := ""
		if method == "PUT" {
			body = `{}`
		}
		if p := f.want(503, f.do(method, "/v1/tenants/a", body)).problem(t); strings.Contains(p.Detail, perhaps) != want {
			t.Errorf("%s: %s; want %q there: %v", method, p.Detail, perhaps, want)
		}
	}
	store.Fail(fmt.Errorf("%w: schema registry http://registry:8081 has not answered yet", catalog.ErrNoSchema))
	if e := f.want(503, f.do("PUT", "/v1/tenants/a", `{}`)); !strings.Contains(e.problem(t).Detail, "http://registry:8081") {
		t.Errorf("without a schema id: %s, want the registry named", e.body)
	}
}

// TestObserve guarantees that what is counted comes from closed sets, whatever
// strangers ask for.
func TestObserve(t *testing.T) {
	t.Parallel()
	f, _, seen := memoryFace(t, newContract(t))
	f.do("PUT", "/v1/tenants/acme", `{}`)
	f.do("GET", "/v1/rules", "")
	f.do("BREW", "/v1/rules/x", "")
	f.as("").do("GET", "/v1/api-keys/x", "")
	f.do("GET", "/random/"+rand.Text(), "")
	var got []string
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, c := range seen.all {
		got = append(got, fmt.Sprintf("%s %s %d", c.Operation, c.Kind, c.Status))
		if c.Took <= 0 {
			t.Errorf("%+v took no time", c)
		}
	}
	want := []string{"put tenant 201", "list rule 200", "none rule 405", "get api_key 401", "none  404"}
	if !slices.Equal(got, want) {
		t.Errorf("observed %q, want %q", got, want)
	}
}

// ledgerFace is a face with books of acme, on a counter store that is there.
func ledgerFace(t *testing.T) (*face, *ledgertest.Memory) {
	t.Helper()
	store, books := catalogtest.NewMemory(t0), ledgertest.NewMemory(t0, "acme")
	cfg := configOf(store, &calls{})
	cfg.Ledger = ledger.New(books, ledgertest.NewCounters(), func(string, error) {})
	return newFace(t, cfg, newContract(t)), books
}

// TestTopUp guarantees that a top-up is answered 201 with its id and the total,
// and again, marked, under its key, whatever has come between.
func TestTopUp(t *testing.T) {
	t.Parallel()
	f, _ := ledgerFace(t)
	const body = `{"meter":"credits","units":200,"reason":"order 17"}`
	first := f.want(201, f.do("POST", "/v1/tenants/acme/topups", body, "Idempotency-Key", "17"))
	var answer struct {
		ID    string `json:"topup_id"`
		Total int64  `json:"granted_total"`
	}
	if err := json.Unmarshal(first.body, &answer); err != nil || len(answer.ID) != 36 || answer.Total != 200 || first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("%s, replayed %q, %v, want an id, 200 and no mark", first.body, first.header.Get("Idempotent-Replayed"), err)
	}
	f.want(201, f.do("POST", "/v1/tenants/acme/topups", body, "Idempotency-Key", "18"))
	again := f.want(201, f.do("POST", "/v1/tenants/acme/topups", body, "Idempotency-Key", "17"))
	if string(again.body) != string(first.body) || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("again %s, replayed %q, want %s", again.body, again.header.Get("Idempotent-Replayed"), first.body)
	}
	var ids []string
	for cursor := ""; ; {
		e := f.want(200, f.do("GET", "/v1/tenants/acme/topups?limit=1"+cursor, ""))
		var page struct {
			Items []struct {
				ID string `json:"topup_id"`
			}
			Next string `json:"next_cursor"`
		}
		if err := json.Unmarshal(e.body, &page); err != nil || len(page.Items) != 1 {
			t.Fatalf("%s: %v", e.body, err)
		}
		ids = append(ids, page.Items[0].ID)
		if cursor = "&cursor=" + page.Next; page.Next == "" {
			break
		}
		f.want(422, f.refused("GET", "/v1/tenants/globex/topups?limit=x"+cursor, ""))
		f.want(422, f.do("GET", "/v1/tenants/globex/topups?limit=1"+cursor, ""))
	}
	if len(ids) != 2 || ids[1] != answer.ID {
		t.Errorf("listed %q, want two, the newest first", ids)
	}
}

// TestTopUpRefused guarantees that what is wrong with a top-up is named, header
// or field, and that nothing was granted.
func TestTopUpRefused(t *testing.T) {
	t.Parallel()
	f, books := ledgerFace(t)
	const good = `{"meter":"credits","units":200}`
	for _, tt := range []struct {
		name   string
		path   string
		body   string
		keys   []string
		status int
		field  string
	}{
		{"no key", "acme", good, nil, 400, "Idempotency-Key"},
		{"an empty key", "acme", good, []string{""}, 400, "Idempotency-Key"},
		{"two keys", "acme", good, []string{"a", "b"}, 400, "Idempotency-Key"},
		{"a key without end", "acme", good, []string{strings.Repeat("k", 256)}, 422, "Idempotency-Key"},
		{"a key that is not UTF-8", "acme", good, []string{"\xff"}, 422, "Idempotency-Key"},
		{"no JSON", "acme", `units=200`, []string{"k"}, 400, ""},
		{"an unknown field", "acme", `{"meter":"credits","units":200,"tenant":"acme"}`, []string{"k"}, 400, "tenant"},
		{"a text for units", "acme", `{"meter":"credits","units":"200"}`, []string{"k"}, 400, "units"},
		{"no meter", "acme", `{"units":200}`, []string{"k"}, 422, "meter"},
		{"no units", "acme", `{"meter":"credits"}`, []string{"k"}, 422, "units"},
		{"units of 2^53", "acme", `{"meter":"credits","units":9007199254740992}`, []string{"k"}, 422, "units"},
		{"an end that lies behind", "acme", `{"meter":"credits","units":1,"expires_at":"2026-11-15T12:00:00Z"}`, []string{"k"}, 422, "expires_at"},
		{"a priority without end", "acme", `{"meter":"credits","units":1,"priority":1000001}`, []string{"k"}, 422, "priority"},
		{"nobody", "nobody", good, []string{"k"}, 404, ""},
		{"nobody who could be", "no%2Fbody", good, []string{"k"}, 404, ""},
	} {
		var headers []string
		for _, k := range tt.keys {
			headers = append(headers, "Idempotency-Key", k)
		}
		p := f.want(tt.status, f.do("POST", "/v1/tenants/"+tt.path+"/topups", tt.body, headers...)).problem(t)
		if tt.field != "" && !slices.Contains(p.fields(), tt.field) || tt.field == "" && len(p.Errors) > 0 {
			t.Errorf("%s: %s: errors of %q, want one of %q", tt.name, p.Detail, p.fields(), tt.field)
		}
	}
	f.want(403, f.as(readonlyToken).do("POST", "/v1/tenants/acme/topups", good, "Idempotency-Key", "k"))
	if n := len(books.Entries()); n != 0 {
		t.Errorf("%d top-ups were made", n)
	}
	for _, path := range []string{"/v1/tenants/acme/topups/1", "/v1/rules/x/topups", "/v1/tenants//usage", "/v1/tenants/acme/", "/v1/tenants/acme/nothing", "/v1/usage/"} {
		f.want(404, f.do("GET", path, ""))
	}
	for path, allow := range map[string]string{"/v1/tenants/acme/topups": "GET, HEAD, POST", "/v1/usage": "GET, HEAD", "/v1/explain": "POST"} {
		if e := f.want(405, f.do("DELETE", path, "")); e.header.Get("Allow") != allow {
			t.Errorf("DELETE %s allows %q, want %q", path, e.header.Get("Allow"), allow)
		}
	}
}

// TestUsageWithoutCounters guarantees that a service without a counter store says
// so, and by which knob it gets one.
func TestUsageWithoutCounters(t *testing.T) {
	t.Parallel()
	f, _, _ := memoryFace(t, newContract(t))
	f.want(201, f.do("PUT", "/v1/tenants/acme", `{}`))
	for _, path := range []string{"/v1/usage", "/v1/tenants/acme/usage"} {
		e := f.want(503, f.do("GET", path, ""))
		if p := e.problem(t); p.Code != "counters-unavailable" || !strings.Contains(p.Detail, "-redis-url") || e.header.Get("Retry-After") == "" {
			t.Errorf("GET %s: %+v, want the knob named", path, p)
		}
	}
}
