package catalog_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
)

// seeded is a catalogue with the samples.
func seeded(t *testing.T) (*catalog.Catalog, *catalogtest.Memory) {
	t.Helper()
	store := catalogtest.NewMemory(t0)
	c := catalog.New(store, rand.Reader, condition.Compile)
	catalogtest.Seed(t, c)
	return c, store
}

func question(t *testing.T, text string) catalog.Question {
	t.Helper()
	q, err := catalog.ReadQuestion([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return q
}

// TestExplain guarantees that each candidate is there with what became of it:
// the winner of its group, or every reason why it lost, by field, and by whom.
func TestExplain(t *testing.T) {
	t.Parallel()
	const rate = `"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":9,"window":"60s"`
	tests := []struct {
		name    string
		rules   map[string]string // besides acme-burst, which is acme's rate at the endpoint pay
		request string
		want    []string // id, and what became of it
	}{
		{
			"one that is more specific wins, and the default says why it lost",
			map[string]string{"all": `{` + rate + `}`, "plan": `{` + rate + `,"match":{"plan":"gold"}}`},
			`{"tenant":"acme","service":"payments","method":"POST","path":"/v1/pay"}`,
			[]string{"acme-burst won", "acme-month won", "all lost by match.tenant to acme-burst", "plan lost by match.tenant to acme-burst"},
		},
		{
			"where that does not apply, the next does",
			map[string]string{"all": `{` + rate + `}`, "plan": `{` + rate + `,"match":{"plan":"gold"}}`},
			`{"tenant":"acme","service":"payments","method":"GET","path":"/v1/pay"}`,
			[]string{"acme-month won", "plan won", "acme-burst lost by match.endpoint", "all lost by match.plan to plan"},
		},
		{
			"priority decides among equals, then the id",
			map[string]string{
				"a": `{` + rate + `}`, "b": `{` + rate + `,"priority":1}`, "c": `{` + rate + `,"priority":1}`,
			},
			`{"tenant":"globex"}`,
			[]string{"b won", "a lost by priority to b", "c lost by id to b"},
		},
		{
			"other windows, meters, subjects and modes do not compete",
			map[string]string{
				"minute": `{` + rate + `}`, "hour": `{"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":9,"window":"1h"}`,
				"meter": `{` + rate + `,"meter":"tokens"}`, "shadow": `{` + rate + `,"mode":"shadow"}`,
				"ip": `{"kind":"rate","algorithm":"gcra","subject":["ip"],"limit":9,"window":"60s"}`,
			},
			`{"tenant":"globex","client_ip":"203.0.113.9"}`,
			[]string{"hour won", "ip won", "meter won", "minute won", "shadow won"},
		},
		{
			"every reason is named",
			map[string]string{
				"off":   `{` + rate + `,"enabled":false,"valid_from":"2027-01-01T00:00:00Z","match":{"service":"payments","networks":["203.0.113.0/24"]},"condition":"cost > 5"}`,
				"over":  `{` + rate + `,"valid_to":"2026-11-15T12:00:00Z","match":{"plan":"gold"}}`,
				"user":  `{"kind":"rate","algorithm":"gcra","subject":["tenant","user"],"limit":9,"window":"60s"}`,
				"fails": `{` + rate + `,"condition":"labels.region == 'eu'"}`,
			},
			`{"tenant":"globex","client_ip":"198.51.100.7"}`,
			[]string{
				"fails lost by condition", "off lost by enabled valid_from match.service match.networks condition", "over lost by valid_to match.plan",
				"user lost by subject",
			},
		},
		{
			"a condition sees the labels",
			map[string]string{"eu": `{` + rate + `,"condition":"labels.region == 'eu'"}`, "all": `{` + rate + `,"priority":-1}`},
			`{"tenant":"globex","labels":{"region":"eu"}}`,
			[]string{"eu won", "all lost by priority to eu"},
		},
		{
			"rules of other owners are no candidates, and one that is asked for is",
			map[string]string{"theirs": `{` + rate + `,"match":{"tenant":"acme","user":"u1"}}`, "mine": `{` + rate + `,"match":{"tenant":"globex"}}`},
			`{"tenant":"globex"}?theirs`,
			[]string{"mine won", "theirs lost by match.tenant match.user"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := seeded(t)
			for id, text := range tt.rules {
				catalogtest.Put(t, c, catalog.KindRule, id, text, catalog.Condition{})
			}
			text, extra, _ := strings.Cut(tt.request, "?")
			q := question(t, text)
			q.RuleID = extra
			e, err := c.Explain(t.Context(), q, t0)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, candidate := range e.Candidates {
				got = append(got, fate(candidate))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("candidates\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// fate is what became of a candidate, in a line.
func fate(c catalog.Candidate) string {
	if c.Won {
		return c.RuleID + " won"
	}
	out, by := c.RuleID+" lost by", ""
	for _, r := range c.Reasons {
		out += " " + r.Field
		if r.BeatenBy != "" {
			by = " to " + r.BeatenBy
		}
	}
	return out + by
}

// TestExplainedRequest guarantees how a request is completed before it is
// judged: by its key, its tenant's plan, its endpoint and that one's cost, as
// gateways do.
func TestExplainedRequest(t *testing.T) {
	t.Parallel()
	c, _ := seeded(t)
	catalogtest.Put(t, c, catalog.KindEndpoint, "refund", `{"service":"payments","path":"/v1/refund/{id}","cost":7}`, catalog.Condition{})
	secret := catalogtest.Put(t, c, catalog.KindAPIKey, "acme-2", `{"tenant":"acme","application":"web","user":"u1"}`, catalog.Condition{}).Secret
	catalogtest.Put(t, c, catalog.KindRule, "fixed", `{"kind":"quota","subject":["tenant"],"meter":"tokens","cost":5,"limit":9,"period":{"unit":"day"}}`, catalog.Condition{})

	e, err := c.Explain(t.Context(), question(t, `{"api_key":"`+secret+`","service":"payments","method":"post","path":"/v1/refund/8/?page=2","client_ip":"2001:db8::1:2:3:4"}`), t0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"at":"2026-11-15T12:00:00Z","tenant":"acme","plan":"gold","application":"web","user":"u1","api_key":"acme-2","client_ip":"2001:db8::",` +
		`"service":"payments","endpoint":"refund","method":"POST","path":"/v1/refund/8","cost":7,"blocked_by":"","uncatalogued":[],"groups":[` +
		`{"mode":"enforce","kind":"quota","subject":["tenant"],"meter":"api-calls","unit":"month","count":1,"winner":"acme-month","cost":7},` +
		`{"mode":"enforce","kind":"quota","subject":["tenant"],"meter":"tokens","unit":"day","count":1,"winner":"fixed","cost":5}],"candidates":[`
	if !strings.HasPrefix(string(text), want) {
		t.Errorf("explained\n%s, want\n%s…", text, want)
	}

	strange, err := c.Explain(t.Context(), question(t, `{"tenant":"nobody","service":"nothing"}`), t0)
	if err != nil || !slices.Equal(strange.Uncatalogued, []string{"tenant", "service"}) {
		t.Errorf("strangers: %+v, %v, want both named", strange, err)
	}
	nameless, err := c.Explain(t.Context(), question(t, `{"client_ip":"203.0.113.9"}`), t0)
	if err != nil || len(nameless.Uncatalogued) != 0 {
		t.Errorf("without a tenant: %+v, %v, want nothing named", nameless, err)
	}
	peek, err := c.Explain(t.Context(), question(t, `{"tenant":"acme","cost":0}`), t0)
	if err != nil || len(peek.Groups) != 2 || peek.Groups[1].Cost != 0 || peek.Cost != 0 {
		t.Errorf("a peek: %+v, %v, want two groups that cost nothing", peek, err)
	}
	catalogtest.Put(t, c, catalog.KindRule, "tried", `{"kind":"block","mode":"shadow","match":{"tenant":"globex"}}`, catalog.Condition{})
	if e, err := c.Explain(t.Context(), question(t, `{"tenant":"globex"}`), t0); err != nil || e.BlockedBy != "" || len(e.Groups) != 2 {
		t.Errorf("beside a block in shadow: %+v, %v, want nothing blocked", e, err)
	}
	blocked, err := c.Explain(t.Context(), question(t, `{"tenant":"acme","application":"web","api_key":"`+firstKey(t, c)+`"}`), t0)
	if err != nil || blocked.BlockedBy != "web-key-3" {
		t.Errorf("blocked by %+v, %v, want web-key-3", blocked, err)
	}
}

// firstKey makes a key that is blocked, and returns its secret.
func firstKey(t *testing.T, c *catalog.Catalog) string {
	t.Helper()
	secret := catalogtest.Put(t, c, catalog.KindAPIKey, "acme-3", `{"tenant":"acme","application":"web"}`, catalog.Condition{}).Secret
	catalogtest.Put(t, c, catalog.KindRule, "web-key-3", `{"kind":"block","match":{"api_key":"acme-3"}}`, catalog.Condition{})
	return secret
}

// TestExplainRefused guarantees which questions are refused, and as what.
func TestExplainRefused(t *testing.T) {
	t.Parallel()
	c, store := seeded(t)
	secret := catalogtest.Put(t, c, catalog.KindAPIKey, "acme-2", `{"tenant":"acme","application":"web"}`, catalog.Condition{}).Secret
	for _, tt := range []struct {
		name, text, rule string
		err              error
		field            string
	}{
		{"a key that nobody has", `{"api_key":"psk_x"}`, "", catalog.ErrInvalid, "api_key"},
		{"a tenant that is not the key's", `{"api_key":"` + secret + `","tenant":"globex"}`, "", catalog.ErrMalformed, "tenant"},
		{"an application that is not the key's", `{"api_key":"` + secret + `","application":"ios"}`, "", catalog.ErrMalformed, "application"},
		{"a rule that is not there", `{}`, "none", catalog.ErrNotFound, ""},
	} {
		q := question(t, tt.text)
		q.RuleID = tt.rule
		_, err := c.Explain(t.Context(), q, t0)
		var f *catalog.FaultError
		if !errors.Is(err, tt.err) || tt.field != "" && (!errors.As(err, &f) || f.Faults[0].Field != tt.field) {
			t.Errorf("%s: %v, want %v of %q", tt.name, err, tt.err, tt.field)
		}
	}
	if e, err := c.Explain(t.Context(), question(t, `{"api_key":"`+secret+`","user":"u9"}`), t0); err != nil || e.User != "u9" {
		t.Errorf("a user of a key that has none: %+v, %v", e, err)
	}
	store.Fail(catalog.ErrUnavailable)
	if _, err := c.Explain(t.Context(), question(t, `{}`), t0); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("without a store: %v", err)
	}
}

// TestReadQuestion guarantees that a question is read as the decision API reads
// it: what that refuses is refused, as malformed, by field.
func TestReadQuestion(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 257)
	labels := func(n int) string {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf(`"l%d":""`, i))
		}
		return `{"labels":{` + strings.Join(members, ",") + `}}`
	}
	for _, tt := range []struct{ name, text, field string }{
		{"nothing", `{}`, ""},
		{"everything", `{"request_id":"r","tenant":"a","application":"b","user":"c","service":"s","method":"GET","path":"/","client_ip":"::1","cost":0,"labels":{"a":"b"}}`, ""},
		{"64 labels", labels(64), ""},
		{"65 labels", labels(65), "labels"},
		{"a label without a name", `{"labels":{"":"x"}}`, "labels"},
		{"a label of a number", `{"labels":{"a":1}}`, "labels.a"},
		{"a value without end", `{"tenant":"` + long + `"}`, "tenant"},
		{"a path that is none", `{"path":"v1/pay"}`, "path"},
		{"an escape", `{"path":"/v1%2Fpay"}`, "path"},
		{"a parameter", `{"path":"/v1;a=b/pay"}`, "path"},
		{"dots", `{"path":"/v1/../pay"}`, "path"},
		{"a doubled slash", `{"path":"//pay"}`, "path"},
		{"an address that is none", `{"client_ip":"203.0.113"}`, "client_ip"},
		{"a cost below 0", `{"cost":-1}`, "cost"},
		{"a cost of 2^53", `{"cost":9007199254740992}`, "cost"},
		{"text for a cost", `{"cost":"1"}`, "cost"},
		{"an unknown field", `{"tennant":"a"}`, "tennant"},
	} {
		_, err := catalog.ReadQuestion([]byte(tt.text))
		var f *catalog.FaultError
		named := errors.As(err, &f) && errors.Is(err, catalog.ErrMalformed) && f.Faults[0].Field == tt.field
		if (err == nil) != (tt.field == "") || err != nil && !named {
			t.Errorf("%s: %v, want a fault of %q", tt.name, err, tt.field)
		}
	}
}

// TestExplainIsBounded guarantees that a catalogue of thousands of candidates is
// answered with those that hold first, and says that there are more.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	c, _ := seeded(t)
	for i := range catalog.MostCandidates {
		catalogtest.Put(t, c, catalog.KindRule, fmt.Sprintf("a%04d", i), `{"kind":"block","match":{"service":"payments"}}`, catalog.Condition{})
	}
	catalogtest.Put(t, c, catalog.KindRule, "z", `{"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":9,"window":"60s"}`, catalog.Condition{})
	e, err := c.Explain(t.Context(), question(t, `{"tenant":"globex"}`), t0)
	if err != nil || !e.Omitted || len(e.Candidates) != catalog.MostCandidates || !e.Candidates[0].Won || e.Candidates[0].RuleID != "z" {
		t.Errorf("%d candidates, omitted %v, %v, want %d with z as the winner", len(e.Candidates), e.Omitted, err, catalog.MostCandidates)
	}
}
