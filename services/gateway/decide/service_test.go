package decide_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/internal/spoiltest"
)

// A modelStore is the specification of the store, at a time of its own.
type modelStore struct {
	mu    sync.Mutex
	state limit.State
	now   time.Time
	fail  error
	asked []limit.Decision
	calls int // of either kind

	corrections int // how often it was asked to correct
	last        limit.Correction
	effect      limit.Effect // what it says of each; empty: the model does
}

func (m *modelStore) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	return m.decide(d)
}

func (m *modelStore) decide(d limit.Decision) (limit.Answer, error) {
	m.asked = append(m.asked, d)
	if m.fail != nil {
		return limit.Answer{}, m.fail
	}
	return limit.Decide(m.state, m.now, d)
}

func (m *modelStore) DecideAll(_ context.Context, all []limit.Decision) ([]limit.Answer, []error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	answers, errs := make([]limit.Answer, len(all)), make([]error, len(all))
	for i := range all {
		answers[i], errs[i] = m.decide(all[i])
	}
	return answers, errs
}

// Correct is the model's, or what a test says.
func (m *modelStore) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.corrections++
	m.last = c
	switch {
	case m.fail != nil:
		return limit.CorrectionAnswer{}, m.fail
	case m.effect != "":
		return limit.CorrectionAnswer{Effect: m.effect, Now: m.now}, nil
	default:
		return limit.Correct(m.state, m.now, c)
	}
}

// A gate is a service over the model, whose clock agrees with the gateway's
// until a test says otherwise.
type gate struct {
	*rig
	store *modelStore
	now   time.Time
}

func newGate(t *testing.T, rules ...*rule.Rule) *gate {
	t.Helper()
	g := &gate{store: &modelStore{state: limit.NewState(), now: t0}, now: t0}
	g.rig = newRig(t, g.store, func() time.Time { return g.now }, rules...)
	return g
}

// at moves the store's clock and the gateway's.
func (g *gate) at(t time.Time) { g.now, g.store.now = t, t }

// A rig is a service with a catalogue that a test writes.
type rig struct {
	*decide.Service
	batch decide.Batch // the last one's
	t     *testing.T
	book  *decide.Book
	next  int64
}

func newRig(t *testing.T, store decide.Store, now func() time.Time, rules ...*rule.Rule) *rig {
	t.Helper()
	r := &rig{t: t, book: decide.NewBook()}
	r.Service = decide.NewService(r.book, store, now, decide.NewID, decide.Options{})
	for _, v := range rules {
		r.rule(v)
	}
	return r
}

// DecideAll decides many at once, in memory where garbage is left of the last
// batch. What it returns is good until the next, but for what Usage returns.
func (r *rig) DecideAll(ctx context.Context, queries []decide.Query) ([]decide.Decision, []error) {
	r.batch.Reset()
	spoiltest.Spoil(&r.batch)
	for i := range queries {
		r.batch.Queries = append(r.batch.Queries, &queries[i])
	}
	r.Service.DecideAll(ctx, &r.batch)
	return r.batch.Decisions, r.batch.Errs
}

func (r *rig) put(kind decide.Kind, id string, object any) {
	r.next++
	r.book.Apply([]decide.Change{{Kind: kind, ID: id, Version: r.next, Object: object}})
}

func (r *rig) rule(v *rule.Rule) { r.put(decide.RuleKind, v.ID, v) }

func (r *rig) tenant(v *decide.Tenant) { r.put(decide.TenantKind, v.ID, v) }

func (r *rig) ask(q decide.Query) decide.Decision {
	r.t.Helper()
	d, err := r.Decide(r.t.Context(), q)
	if err != nil {
		r.t.Fatalf("Decide(%+v) = %v", q, err)
	}
	return d
}

func units(n int64) *int64 { return &n }

// rate is a GCRA rule of n a minute, all at once.
func rate(id string, subject rule.Subject, n int64) *rule.Rule {
	return &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: subject,
		Meter: "api-calls", Limit: n, Burst: n, Window: time.Minute, OnFailure: rule.Open,
	}
}

// quota is n units a calendar month in the tenant's zone.
func quota(id string, n int64) *rule.Rule {
	return &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota,
		Subject: rule.Tenant, Meter: "api-calls", Limit: n, OnFailure: rule.Closed,
		Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar},
	}
}

// TestDecide guarantees what a caller is told: who refused and why, whether and
// how long to wait, and what is left, for each kind of answer.
func TestDecide(t *testing.T) {
	t.Parallel()

	monthEnd := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	with := func(r *rule.Rule, change func(*rule.Rule)) *rule.Rule { change(r); return r }
	type answer struct {
		Outcome  decide.Outcome
		Status   int
		Code     decide.Code
		RuleID   string
		CanRetry bool
		Retry    time.Duration
		Left     map[string]int64
	}
	tests := []struct {
		name  string
		rules []*rule.Rule
		spend int64 // before, in one request of acme
		query decide.Query
		want  answer
	}{
		{
			name:  "without rules everything passes, and the store is not asked",
			query: decide.Query{Tenant: "acme"},
			want:  answer{Outcome: decide.Allow, Status: 200},
		},
		{
			name:  "what is left is told with the answer",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10), quota("month", 100)},
			query: decide.Query{Tenant: "acme", Cost: units(3)},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"burst": 7, "month": 97}},
		},
		{
			name:  "a rate refuses until it has leaked",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10)}, spend: 10,
			query: decide.Query{Tenant: "acme"},
			want: answer{
				Outcome: decide.Deny, Status: 429, Code: decide.RateLimited, RuleID: "burst",
				CanRetry: true, Retry: 6 * time.Second, Left: map[string]int64{"burst": 0},
			},
		},
		{
			name:  "of several that refuse, the longest wait answers",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10), quota("month", 10)}, spend: 10,
			query: decide.Query{Tenant: "acme"},
			want: answer{
				Outcome: decide.Deny, Status: 429, Code: decide.QuotaExceeded, RuleID: "month",
				CanRetry: true, Retry: monthEnd.Sub(t0), Left: map[string]int64{"burst": 0, "month": 0},
			},
		},
		{
			name:  "a cost above the capacity never fits",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10)},
			query: decide.Query{Tenant: "acme", Cost: units(11)},
			want: answer{
				Outcome: decide.Deny, Status: 429, Code: decide.CostExceedsLimit, RuleID: "burst",
				Left: map[string]int64{"burst": 10},
			},
		},
		{
			name:  "a cost of the whole capacity fits after a wait",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10)}, spend: 1,
			query: decide.Query{Tenant: "acme", Cost: units(10)},
			want: answer{
				Outcome: decide.Deny, Status: 429, Code: decide.RateLimited, RuleID: "burst",
				CanRetry: true, Retry: 6 * time.Second, Left: map[string]int64{"burst": 9},
			},
		},
		{
			name:  "a limit of 0 denies and no wait helps",
			rules: []*rule.Rule{rate("nothing", rule.Tenant, 0)},
			query: decide.Query{Tenant: "acme"},
			want: answer{
				Outcome: decide.Deny, Status: 429, Code: decide.CostExceedsLimit, RuleID: "nothing",
				Left: map[string]int64{"nothing": 0},
			},
		},
		{
			name:  "an unlimited quota never refuses",
			rules: []*rule.Rule{quota("month", rule.Unlimited)}, spend: rule.Unlimited,
			query: decide.Query{Tenant: "acme", Cost: units(rule.Unlimited)},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"month": 0}},
		},
		{
			name: "a block rule answers before anything is counted",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10), {
				ID: "banned", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm,
				Match: rule.Match{Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}},
			}},
			query: decide.Query{Tenant: "acme", Address: netip.MustParseAddr("203.0.113.9")},
			want:  answer{Outcome: decide.Blocked, Status: 403, Code: decide.BlockedByRule, RuleID: "banned"},
		},
		{
			name: "a block rule in shadow lets pass",
			rules: []*rule.Rule{rate("burst", rule.Tenant, 10), {
				ID: "banned", Enabled: true, Mode: rule.Shadow, Kind: rule.Block, Algorithm: rule.NoAlgorithm,
			}},
			query: decide.Query{Tenant: "acme"},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"burst": 9}},
		},
		{
			name:  "a soft rule reports and lets pass",
			rules: []*rule.Rule{with(rate("burst", rule.Tenant, 10), func(r *rule.Rule) { r.Soft = true })}, spend: 10,
			query: decide.Query{Tenant: "acme"},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"burst": 0}},
		},
		{
			name:  "a shadow rule reports and lets pass",
			rules: []*rule.Rule{with(rate("burst", rule.Tenant, 10), func(r *rule.Rule) { r.Mode = rule.Shadow })}, spend: 10,
			query: decide.Query{Tenant: "acme"},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"burst": 0}},
		},
		{
			name:  "a fixed cost is the rule's own",
			rules: []*rule.Rule{with(rate("burst", rule.Tenant, 10), func(r *rule.Rule) { r.Cost = units(2) }), quota("month", 100)},
			query: decide.Query{Tenant: "acme", Cost: units(5)},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"burst": 8, "month": 95}},
		},
		{
			name:  "a peek charges nothing, not even a fixed cost",
			rules: []*rule.Rule{with(rate("burst", rule.Tenant, 10), func(r *rule.Rule) { r.Cost = units(2) }), quota("month", 100)}, spend: 1,
			query: decide.Query{Tenant: "acme", Cost: units(0)},
			want:  answer{Outcome: decide.Allow, Status: 200, Left: map[string]int64{"burst": 8, "month": 99}},
		},
		{
			name:  "a request without a dimension of the subject is not counted",
			rules: []*rule.Rule{rate("per-user", rule.Tenant|rule.User, 10)},
			query: decide.Query{Tenant: "acme"},
			want:  answer{Outcome: decide.Allow, Status: 200},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			g := newGate(t, tt.rules...)
			if tt.spend > 0 {
				g.ask(decide.Query{Tenant: "acme", Cost: &tt.spend})
			}
			g.store.asked = nil
			d := g.ask(tt.query)
			got := answer{Outcome: d.Outcome, Status: d.Status, Code: d.Code, RuleID: d.RuleID, CanRetry: d.CanRetry, Retry: d.RetryAfter}
			for _, l := range d.Limits {
				if got.Left == nil {
					got.Left = map[string]int64{}
				}
				got.Left[l.RuleID] = l.Remaining
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if d.RulesVersion != g.next {
				t.Errorf("rules version %d, want %d", d.RulesVersion, g.next)
			}
			if want := min(1, len(got.Left)); len(g.store.asked) != want {
				t.Errorf("the store was asked %d times, want %d", len(g.store.asked), want)
			}
		})
	}
}

// TestDecideWithoutTheStore guarantees the answer of every mix of failure modes
// when the store does not decide (docs/adr/0040): one closed rule closes, rules
// that cannot cut have no say, what can never pass is refused all the same, and
// nothing is said about what is left.
func TestDecideWithoutTheStore(t *testing.T) {
	t.Parallel()

	failing := func(r *rule.Rule, mode rule.FailureMode) *rule.Rule { r.OnFailure = mode; return r }
	with := func(r *rule.Rule, change func(*rule.Rule)) *rule.Rule { change(r); return r }
	open, closed := failing(rate("open", rule.Tenant, 10), rule.Open), failing(quota("closed", 10), rule.Closed)
	tests := []struct {
		name   string
		rules  []*rule.Rule
		cost   int64
		status int
		code   decide.Code
		ruleID string
	}{
		{"open rules let pass", []*rule.Rule{open}, 1, 200, "", ""},
		{"a closed rule closes", []*rule.Rule{closed}, 1, 503, decide.StoreUnavailable, "closed"},
		{"one closed rule among open ones closes", []*rule.Rule{open, closed}, 1, 503, decide.StoreUnavailable, "closed"},
		{"a closed rule in shadow does not", []*rule.Rule{with(quota("q", 10), func(r *rule.Rule) { r.Mode = rule.Shadow })}, 1, 200, "", ""},
		{"a soft closed rule does not", []*rule.Rule{with(quota("q", 10), func(r *rule.Rule) { r.Soft = true })}, 1, 200, "", ""},
		{"an unlimited closed rule does not", []*rule.Rule{quota("q", rule.Unlimited)}, 1, 200, "", ""},
		{"a cost that never fits is refused by an open rule", []*rule.Rule{open}, 11, 429, decide.CostExceedsLimit, "open"},
		{"a limit of 0 denies", []*rule.Rule{rate("none", rule.Tenant, 0)}, 1, 429, decide.CostExceedsLimit, "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			g := newGate(t, tt.rules...)
			g.store.fail = errors.New("connection refused")
			d := g.ask(decide.Query{Tenant: "acme", Cost: &tt.cost})
			if d.Status != tt.status || d.Code != tt.code || d.RuleID != tt.ruleID || !d.Degraded || d.Limits != nil {
				t.Errorf("decision %+v, want status %d, code %q of %q, degraded, without limits", d, tt.status, tt.code, tt.ruleID)
			}
			if retry := d.Status == 503; d.CanRetry != retry || retry && d.RetryAfter < time.Second {
				t.Errorf("retry %v after %v", d.CanRetry, d.RetryAfter)
			}
		})
	}
}

// TestDecideEndsWithItsCaller guarantees that a caller that went away gets its
// own error and not an answer that nobody gave.
func TestDecideEndsWithItsCaller(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("closed", 10))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.store.fail = ctx.Err()
	if _, err := g.Decide(ctx, decide.Query{Tenant: "acme"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Decide = %v, want canceled", err)
	}
}

// TestDecideRefusesCosts guarantees that no cost can give units back or break
// the counters' arithmetic.
func TestDecideRefusesCosts(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("burst", rule.Tenant, 10))
	for _, cost := range []int64{-1, rule.Unlimited + 1} {
		if _, err := g.Decide(t.Context(), decide.Query{Tenant: "acme", Cost: &cost}); !errors.Is(err, decide.ErrCost) {
			t.Errorf("cost %d: %v, want ErrCost", cost, err)
		}
	}
	if len(g.store.asked) > 0 {
		t.Errorf("the store was asked %d times", len(g.store.asked))
	}
}

// TestStalePeriods guarantees that a gateway whose clock is wrong charges the
// period that runs by the store's clock, with one more question and not two.
func TestStalePeriods(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 10))
	g.store.now = time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	g.now = g.store.now.Add(-time.Microsecond) // November, here
	d := g.ask(decide.Query{Tenant: "acme"})
	if !d.Limits[0].PeriodStart.Equal(g.store.now) || d.Limits[0].Remaining != 9 || len(g.store.asked) != 2 {
		t.Errorf("charged %+v in %d questions, want December's quota in 2", d.Limits[0], len(g.store.asked))
	}
}

// TestStaleTwice guarantees that a store that disagrees with its own clock is
// one that does not answer.
func TestStaleTwice(t *testing.T) {
	t.Parallel()

	book := decide.NewBook()
	book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: "month", Version: 1, Object: quota("month", 10)}})
	s := decide.NewService(book, alwaysStale, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	d, err := s.Decide(t.Context(), decide.Query{Tenant: "acme"})
	if err != nil || d.Status != 503 || !d.Degraded {
		t.Errorf("decision %+v %v, want a degraded 503", d, err)
	}
}

var alwaysStale storeFunc = func(limit.Decision) (limit.Answer, error) {
	return limit.Answer{Stale: true, Now: t0}, nil
}

// TestCounters guarantees what a counter measures: the identity names what the
// rule's subject and scope say and nothing else, so that it survives a change
// of the rule.
func TestCounters(t *testing.T) {
	t.Parallel()

	q := decide.Query{
		Tenant: "acme", Application: "web", User: "u1", APIKey: "k1", Address: netip.MustParseAddr("2001:db8:1:2::"),
		Service: "payments", Endpoint: "pay", Method: "POST", Path: "/v1/pay",
	}
	month := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	on := func(r *rule.Rule, m rule.Match) *rule.Rule { r.Match = m; return r }
	tests := []struct {
		name string
		rule *rule.Rule
		want limit.Identity
	}{
		{
			"a global rate has one counter", rate("r", 0, 10),
			limit.Identity{Kind: rule.Rate, Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Minute},
		},
		{
			"a user is one of its tenant", rate("r", rule.User, 10),
			limit.Identity{Kind: rule.Rate, Subject: rule.User, Tenant: "acme", User: "u1", Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Minute},
		},
		{
			"an IPv6 client is its network", rate("r", rule.IP, 10),
			limit.Identity{Kind: rule.Rate, Subject: rule.IP, Address: "2001:db8:1:2::/64", Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Minute},
		},
		{
			"a selector that is not in the scope leaves the counter alone",
			on(rate("r", rule.Tenant, 10), rule.Match{Tenant: "acme", User: "u1"}),
			limit.Identity{Kind: rule.Rate, Subject: rule.Tenant, Tenant: "acme", Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Minute},
		},
		{
			"a service's rule counts that service", on(rate("r", rule.Tenant, 10), rule.Match{Service: "payments"}),
			limit.Identity{Kind: rule.Rate, Subject: rule.Tenant, Tenant: "acme", Service: "payments", Meter: "api-calls", Algorithm: rule.GCRA, Window: time.Minute},
		},
		{
			"an endpoint's rule counts that endpoint", on(quota("q", 10), rule.Match{Service: "payments", Endpoint: "pay"}),
			limit.Identity{Kind: rule.Quota, Subject: rule.Tenant, Tenant: "acme", Endpoint: "pay", Meter: "api-calls", Unit: period.Month, Count: 1, Start: month},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			g := newGate(t, tt.rule)
			g.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay", Cost: 1})
			g.ask(q)
			if diff := cmp.Diff(tt.want, g.store.asked[0].Charges[0].Counter); diff != "" {
				t.Errorf("counter (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEndpointCost guarantees whose cost a request has: the caller's, else its
// endpoint's, else 1; and that an endpoint that is free is not a peek.
func TestEndpointCost(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("burst", rule.Tenant, 100))
	for _, e := range []*decide.EndpointDef{
		{ID: "export", Service: "export", Method: "GET", Path: "/v1/export/{id}", Cost: 20},
		{ID: "ping", Service: "export", Path: "/ping", Cost: 0},
	} {
		g.put(decide.EndpointKind, e.ID, e)
	}
	tests := []struct {
		method, path string
		cost         *int64
		want         int64
		peek         bool
	}{
		{"GET", "/v1/export/7", nil, 20, false},
		{"GET", "/v1/export/7", units(3), 3, false},
		{"POST", "/v1/export/7", nil, 1, false},
		{"GET", "/ping", nil, 0, false},
		{"GET", "/ping", units(0), 0, true},
	}
	for _, tt := range tests {
		d := g.ask(decide.Query{Tenant: "acme", Service: "export", Method: tt.method, Path: tt.path, Cost: tt.cost})
		if d.Cost != tt.want || d.Peek != tt.peek {
			t.Errorf("%s %s: cost %d, peek %v, want %d, %v", tt.method, tt.path, d.Cost, d.Peek, tt.want, tt.peek)
		}
	}
}

// TestPlanChangeIsImmediate guarantees that the next request after a tenant's
// plan has changed is decided by the new plan's rules.
func TestPlanChangeIsImmediate(t *testing.T) {
	t.Parallel()

	basic, pro := quota("basic", 1000), quota("pro", 5000)
	basic.Match.Plan, pro.Match.Plan = "basic", "pro"
	g := newGate(t, basic, pro)
	for _, plan := range []string{"basic", "pro", "basic"} {
		g.tenant(&decide.Tenant{ID: "acme", Plan: plan})
		if d := g.ask(decide.Query{Tenant: "acme"}); len(d.Limits) != 1 || d.Limits[0].RuleID != plan {
			t.Errorf("on plan %s: %+v", plan, d.Limits)
		}
	}
}

// TestRequestID guarantees that a repeated request id answers again what was
// answered, and charges nothing, even when the rules have changed; and that the
// same id for another request is an error.
func TestRequestID(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("burst", rule.Tenant, 10), quota("month", 100))
	q := decide.Query{RequestID: "r-1", Tenant: "acme", Cost: units(5), Address: netip.MustParseAddr("203.0.113.9")}
	first := g.ask(q)
	g.put(decide.RuleKind, "burst", nil)
	g.put(decide.RuleKind, "month", quota("month", 50))
	again := g.ask(q)
	first.Replayed = true
	if diff := cmp.Diff(first, again, cmpopts.IgnoreUnexported(decide.Decision{})); diff != "" {
		t.Errorf("repeat (-first +again):\n%s", diff)
	}
	q.Address = netip.MustParseAddr("::ffff:203.0.113.9")
	if d := g.ask(q); !d.Replayed {
		t.Error("another spelling of the address is another question")
	}
	for _, other := range []decide.Query{
		{RequestID: "r-1", Tenant: "acme", Cost: units(6), Address: q.Address},
		{RequestID: "r-1", Tenant: "acme", Cost: units(5), Address: q.Address, User: "u1"},
		{RequestID: "r-1", Tenant: "acme", Cost: units(5), Address: netip.MustParseAddr("203.0.113.10")},
		{RequestID: "r-1", Tenant: "acme", Cost: units(5)},
	} {
		if _, err := g.Decide(t.Context(), other); !errors.Is(err, decide.ErrRequestIDReused) {
			t.Errorf("%+v: %v, want ErrRequestIDReused", other, err)
		}
	}
	if d := g.ask(decide.Query{RequestID: "r-1", Tenant: "globex", Cost: units(5)}); d.Replayed {
		t.Error("another tenant's id answered for this one")
	}
}

// TestRequestIDKeepsMany guarantees that a decision under more rules than can
// be remembered is still answered once, without the list of its limits.
func TestRequestIDKeepsMany(t *testing.T) {
	t.Parallel()

	g := newGate(t)
	for i := range 60 {
		r := rate(fmt.Sprintf("%0120d", i), rule.Tenant, 10)
		r.Window = time.Duration(i+1) * time.Minute
		g.put(decide.RuleKind, r.ID, r)
	}
	q := decide.Query{RequestID: "r-1", Tenant: "acme"}
	first, again := g.ask(q), g.ask(q)
	if len(first.Limits) != 60 || !again.Replayed || again.ID != first.ID || again.Limits != nil {
		t.Errorf("first with %d limits, again %+v", len(first.Limits), again)
	}
}

// TestPeekIsNotRemembered guarantees that a peek under a request id does not
// stand for the request itself, before it or after.
func TestPeekIsNotRemembered(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("burst", rule.Tenant, 10))
	g.ask(decide.Query{RequestID: "r-1", Tenant: "acme", Cost: units(0)})
	if d := g.ask(decide.Query{RequestID: "r-1", Tenant: "acme", Cost: units(5)}); d.Replayed || d.Limits[0].Remaining != 5 {
		t.Errorf("decision %+v, want a charge of 5", d)
	}
	if d := g.ask(decide.Query{RequestID: "r-1", Tenant: "acme", Cost: units(0)}); d.Replayed || !d.Peek || d.Limits[0].Remaining != 5 {
		t.Errorf("decision %+v, want a look at 5", d)
	}
}

// TestTightest guarantees which limit the headers name.
func TestTightest(t *testing.T) {
	t.Parallel()

	enforce := func(id string, left int64, reset time.Duration) decide.Limit {
		return decide.Limit{RuleID: id, Mode: rule.Enforce, Remaining: left, Reset: reset}
	}
	soft, shadow := enforce("soft", 0, time.Hour), enforce("shadow", 0, time.Hour)
	soft.Soft, shadow.Mode = true, rule.Shadow
	tests := []struct {
		name   string
		limits []decide.Limit
		want   string
	}{
		{"no limit, no headers", nil, ""},
		{"the least remaining", []decide.Limit{enforce("a", 5, time.Hour), enforce("b", 4, time.Second)}, "b"},
		{"of equals, the longest reset", []decide.Limit{enforce("a", 5, time.Second), enforce("b", 5, time.Hour)}, "b"},
		{"shadow rules do not count", []decide.Limit{shadow, enforce("a", 5, 0)}, "a"},
		{"nor do they alone", []decide.Limit{shadow}, ""},
		{"a rule that cannot cut yields to one that can", []decide.Limit{soft, enforce("a", 5, 0)}, "a"},
		{"and is shown where there is no other", []decide.Limit{soft}, "soft"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			d := decide.Decision{Limits: tt.limits}
			if got := d.Tightest(); (got == nil) != (tt.want == "") || got != nil && got.RuleID != tt.want {
				t.Errorf("Tightest = %+v, want %q", got, tt.want)
			}
		})
	}
}

// TestNewID guarantees that decision ids are UUIDs of version 7 that sort by
// time and do not repeat.
func TestNewID(t *testing.T) {
	t.Parallel()

	seen, last := map[[16]byte]bool{}, [16]byte{}
	for i := range 10_000 {
		id := decide.NewID(t0.Add(time.Duration(i) * time.Microsecond))
		if id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("%x is not of version 7", id)
		}
		if seen[id] || string(id[:8]) <= string(last[:8]) {
			t.Fatalf("%x after %x", id, last)
		}
		seen[id], last = true, id
	}
}

// TestRequestIDOutlivesItsRules guarantees that a decision that charged is
// answered again though no rule counts any more, or all traffic is blocked, and
// that its id is still refused for another cost.
func TestRequestIDOutlivesItsRules(t *testing.T) {
	t.Parallel()

	off := quota("q", 10)
	off.Enabled = false
	for name, change := range map[string]*rule.Rule{
		"the rule is off":        off,
		"all traffic is blocked": {ID: "stop", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, quota("q", 10))
			first := g.ask(decide.Query{Tenant: "acme", Cost: units(2), RequestID: "z"})
			g.rule(change)
			again := g.ask(decide.Query{Tenant: "acme", Cost: units(2), RequestID: "z"})
			if !again.Replayed || again.ID != first.ID || again.Outcome != decide.Allow {
				t.Errorf("asked again: %+v, want %+v", again, first)
			}
			if _, err := g.Decide(t.Context(), decide.Query{Tenant: "acme", Cost: units(3), RequestID: "z"}); !errors.Is(err, decide.ErrRequestIDReused) {
				t.Errorf("another cost: %v, want ErrRequestIDReused", err)
			}
		})
	}
}

// TestUnlimitedRate guarantees that a rate without a limit never refuses, shows
// in the answer, and leaves the other rules of the request as they are.
func TestUnlimitedRate(t *testing.T) {
	t.Parallel()

	free := rate("free", 0, rule.Unlimited)
	free.Burst = 10
	g := newGate(t, free, rate("one", rule.Tenant, 1))
	for i, want := range []decide.Outcome{decide.Allow, decide.Deny} {
		d := g.ask(decide.Query{Tenant: "acme"})
		if d.Outcome != want || d.Degraded || left(d, "free") != rule.Unlimited || left(d, "one") != 0 {
			t.Errorf("request %d: %+v, want %s", i+1, d, want)
		}
	}
	if d := g.ask(decide.Query{Tenant: "other", Cost: units(rule.Unlimited)}); d.Code != decide.CostExceedsLimit || d.RuleID != "one" {
		t.Errorf("a cost above the other rule: %+v", d)
	}
	only := newGate(t, free)
	if d := only.ask(decide.Query{Cost: units(1000)}); d.Outcome != decide.Allow || left(d, "free") != rule.Unlimited {
		t.Errorf("alone: %+v", d)
	}
}

// TestUnlimitedRatesKeepTheirPlace guarantees that the list of limits is by rule
// id also where some never refuse, and that a repeat has the first answer's,
// whatever the rules are by then.
func TestUnlimitedRatesKeepTheirPlace(t *testing.T) {
	t.Parallel()

	free, trial := rate("a-free", 0, rule.Unlimited), rate("c-trial", rule.IP, rule.Unlimited)
	trial.Mode = rule.Shadow
	g := newGate(t, free, rate("b-burst", rule.Tenant, 10), trial, quota("d-month", 10))
	q := decide.Query{Tenant: "acme", RequestID: "r-1", Address: t0Address}
	first := g.ask(q)
	var order []string
	for _, l := range first.Limits {
		order = append(order, l.RuleID)
	}
	if diff := cmp.Diff([]string{"a-free", "b-burst", "c-trial", "d-month"}, order); diff != "" {
		t.Errorf("limits (-want +got)\n%s", diff)
	}
	g.rule(rate("a-free", 0, 5))
	g.put(decide.RuleKind, "c-trial", nil)
	g.rule(rate("e-free", rule.Tenant|rule.IP, rule.Unlimited))
	again := g.ask(q)
	first.Replayed = true
	if diff := cmp.Diff(first, again, cmpopts.IgnoreUnexported(decide.Decision{})); diff != "" {
		t.Errorf("repeat (-first +again)\n%s", diff)
	}
}
