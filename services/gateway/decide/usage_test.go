package decide_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// TestUsage guarantees what is told of each kind of decision: its verdict, the
// rule that decided, and of every quota that applied what was charged or is
// owed and where it stands.
func TestUsage(t *testing.T) {
	t.Parallel()

	with := func(r *rule.Rule, change func(*rule.Rule)) *rule.Rule { change(r); return r }
	shadow := func(r *rule.Rule) { r.Mode, r.Meter = rule.Shadow, "try" }
	soft := func(r *rule.Rule) { r.Soft, r.Meter = true, "soft" }
	open := func(r *rule.Rule) { r.OnFailure = rule.Open }
	type counter struct {
		Rule                      string
		Units, Consumed, Refunded int64
		Observed                  bool
	}
	type told struct {
		Verdict   decide.Verdict
		Status    int
		Rule      string
		Algorithm rule.Algorithm
		Cost      int64
		Counters  []counter
	}
	tests := []struct {
		name  string
		rules []*rule.Rule
		spend int64 // before, by acme
		down  bool  // the store
		query decide.Query
		want  told
	}{
		{
			name: "no rule", query: decide.Query{Tenant: "acme"},
			want: told{Verdict: decide.VerdictAllow, Status: 200, Cost: 1},
		},
		{
			name:  "a pass names the tightest rule and what every quota was charged",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10), quota("month", 100)}, spend: 2,
			query: decide.Query{Tenant: "acme", Cost: units(3)},
			want:  told{decide.VerdictAllow, 200, "burst", rule.GCRA, 3, []counter{{"month", 3, 5, 0, true}}},
		},
		{
			name:  "a refusal charges no quota and tells where it stands",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10), quota("month", 100)}, spend: 9,
			query: decide.Query{Tenant: "acme", Cost: units(2)},
			want:  told{decide.VerdictDeny, 429, "burst", rule.GCRA, 2, []counter{{"month", 0, 9, 0, true}}},
		},
		{
			name:  "the quota itself refuses",
			rules: []*rule.Rule{quota("month", 9)}, spend: 9,
			query: decide.Query{Tenant: "acme"},
			want:  told{decide.VerdictDeny, 429, "month", rule.CalendarQuota, 1, []counter{{"month", 0, 9, 0, true}}},
		},
		{
			name:  "a shadow rule would have refused",
			rules: []*rule.Rule{quota("month", 100), with(quota("try", 5), shadow)}, spend: 4,
			query: decide.Query{Tenant: "acme", Cost: units(2)},
			want:  told{decide.VerdictShadowDeny, 200, "try", rule.CalendarQuota, 2, []counter{{"month", 2, 6, 0, true}, {"try", 0, 4, 0, true}}},
		},
		{
			name: "a block rule in shadow would have refused",
			rules: []*rule.Rule{quota("month", 100), {
				ID: "banned", Enabled: true, Mode: rule.Shadow, Kind: rule.Block, Algorithm: rule.NoAlgorithm, OnFailure: rule.Open,
			}},
			query: decide.Query{Tenant: "acme"},
			want:  told{decide.VerdictShadowDeny, 200, "banned", rule.NoAlgorithm, 1, []counter{{"month", 1, 1, 0, true}}},
		},
		{
			name: "a block rule in shadow says nothing beside a refusal",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 0), {
				ID: "banned", Enabled: true, Mode: rule.Shadow, Kind: rule.Block, Algorithm: rule.NoAlgorithm, OnFailure: rule.Open,
			}},
			query: decide.Query{Tenant: "acme"},
			want:  told{Verdict: decide.VerdictDeny, Status: 429, Rule: "burst", Algorithm: rule.GCRA, Cost: 1},
		},
		{
			name:  "what an enforced rule refuses is no shadow refusal",
			rules: []*rule.Rule{quota("month", 5), with(quota("try", 5), shadow)}, spend: 5,
			query: decide.Query{Tenant: "acme"},
			want:  told{decide.VerdictDeny, 429, "month", rule.CalendarQuota, 1, []counter{{"month", 0, 5, 0, true}, {"try", 0, 5, 0, true}}},
		},
		{
			name:  "a soft rule that refuses lets pass and charges",
			rules: []*rule.Rule{with(quota("soft", 5), soft)}, spend: 5,
			query: decide.Query{Tenant: "acme", Cost: units(2)},
			want:  told{decide.VerdictAllow, 200, "soft", rule.CalendarQuota, 2, []counter{{"soft", 2, 7, 0, true}}},
		},
		{
			name:  "a rule's own cost is what its counter is charged",
			rules: []*rule.Rule{with(quota("month", 100), func(r *rule.Rule) { r.Cost = units(7) })},
			query: decide.Query{Tenant: "acme", Cost: units(2)},
			want:  told{decide.VerdictAllow, 200, "month", rule.CalendarQuota, 2, []counter{{"month", 7, 7, 0, true}}},
		},
		{
			name:  "a degraded pass owes its units, and nothing in shadow",
			rules: []*rule.Rule{with(quota("month", 100), open), with(quota("try", 100), shadow)}, down: true,
			query: decide.Query{Tenant: "acme", Cost: units(3)},
			want:  told{decide.VerdictDegradedAllow, 200, "", "", 3, []counter{{"month", 3, 0, 0, false}, {"try", 0, 0, 0, false}}},
		},
		{
			name:  "a degraded refusal owes nothing",
			rules: []*rule.Rule{quota("month", 100)}, down: true,
			query: decide.Query{Tenant: "acme", Cost: units(3)},
			want:  told{decide.VerdictDegradedDeny, 503, "month", rule.CalendarQuota, 3, []counter{{"month", 0, 0, 0, false}}},
		},
		{
			name: "blocked, and nothing was counted",
			rules: []*rule.Rule{quota("month", 100), {
				ID: "banned", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, OnFailure: rule.Open,
			}},
			query: decide.Query{Tenant: "acme"},
			want:  told{Verdict: decide.VerdictBlocked, Status: 403, Rule: "banned", Algorithm: rule.NoAlgorithm, Cost: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, tt.rules...)
			if tt.spend > 0 {
				g.ask(decide.Query{Tenant: "acme", Cost: &tt.spend})
			}
			g.at(t0.Add(time.Millisecond))
			if tt.down {
				g.store.fail = errors.New("away")
			}
			d := g.ask(tt.query)
			u, ok := d.Usage()
			if !ok || u.ID != d.ID || !u.At.Equal(t0.Add(time.Millisecond)) || u.Tenant != "acme" || u.RulesVersion != d.RulesVersion {
				t.Fatalf("usage %+v %v of %+v", u, ok, d)
			}
			got := told{Verdict: u.Verdict, Status: u.Status, Rule: u.RuleID, Algorithm: u.Algorithm, Cost: u.Cost}
			for _, c := range u.AppendCounters(nil) {
				got.Counters = append(got.Counters, counter{c.Rule.ID, c.Units, c.Consumed, c.Refunded, c.Observed})
				if c.Identity.Meter != c.Rule.Meter || c.Span.Start.IsZero() || !c.Identity.Start.Equal(c.Span.Start) {
					t.Errorf("counter of %s: %+v in %v", c.Rule.ID, c.Identity, c.Span)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestUsageOnce guarantees that a peek and a repeat tell nothing: the one
// changed nothing, and the other's event was made the first time.
func TestUsageOnce(t *testing.T) {
	t.Parallel()
	g := newGate(t, quota("month", 100))
	for _, tt := range []struct {
		name  string
		query decide.Query
		want  bool
	}{
		{"a peek", decide.Query{Tenant: "acme", Cost: units(0)}, false},
		{"the first of a request id", decide.Query{Tenant: "acme", RequestID: "r"}, true},
		{"its repeat", decide.Query{Tenant: "acme", RequestID: "r"}, false},
	} {
		d := g.ask(tt.query)
		if _, ok := d.Usage(); ok != tt.want {
			t.Errorf("%s is told of: %v, want %v", tt.name, ok, tt.want)
		}
	}
	if _, ok := (&decide.Decision{}).Usage(); ok {
		t.Error("what is no decision is told of")
	}
}

// TestUsageNames guarantees that an event says what was resolved: the endpoint
// that a path fits, its service and its template, and never the path.
func TestUsageNames(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay/{id}", Cost: 5})
	address := netip.MustParseAddr("203.0.113.9")
	q := decide.Query{
		Tenant: "acme", Application: "web", User: "u1", APIKey: "k1", Address: address, Service: "payments", Method: "POST", Path: "/v1/pay/4711",
	}
	check := func(d decide.Decision, tenant, key string) {
		t.Helper()
		u, ok := d.Usage()
		if !ok || u.Tenant != tenant || u.APIKey != key || u.Address != address || u.Service != "payments" || u.Endpoint != "pay" ||
			u.Method != "POST" || u.Template != "/v1/pay/{id}" || u.Cost != 5 {
			t.Errorf("usage %+v %v", u, ok)
		}
	}
	check(g.ask(q), "acme", "k1")

	d := g.book.Current().UnknownKey(q, t0)
	check(d, "", "")
	if u, _ := d.Usage(); d.Status != 401 || d.Code != decide.UnknownKey || u.Verdict != decide.VerdictDeny || u.Status != 401 || !u.At.Equal(t0) {
		t.Errorf("an unknown key: %+v, told as %+v", d, u)
	}
}

// TestUsageKeepsThePromisedPeriod guarantees that an event has the period that
// the store decided in, also where the gateway's clock had to be put right.
func TestUsageKeepsThePromisedPeriod(t *testing.T) {
	t.Parallel()
	g := newGate(t, quota("month", 100))
	december := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	g.now, g.store.now = december.Add(-time.Second), december
	d := g.ask(decide.Query{Tenant: "acme"})
	u, _ := d.Usage()
	c := u.AppendCounters(nil)
	if want := (period.Span{Start: december, End: december.AddDate(0, 1, 0)}); len(c) != 1 || c[0].Span != want || !u.At.Equal(december) {
		t.Errorf("told at %v: %+v, want the period %v", u.At, c, want)
	}
}
