package rule_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

var t0 = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

func rate(change func(*rule.Rule)) *rule.Rule {
	r := &rule.Rule{
		ID: "r", Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: rule.Tenant,
		Meter: "api-calls", Limit: 30, Window: time.Minute, Burst: 10, OnFailure: rule.Open,
	}
	if change != nil {
		change(r)
	}
	return r
}

func quota(change func(*rule.Rule)) *rule.Rule {
	r := &rule.Rule{
		ID: "q", Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant,
		Meter: "api-calls", Limit: 1000, OnFailure: rule.Closed,
		Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar},
	}
	if change != nil {
		change(r)
	}
	return r
}

// TestMatches guarantees that a rule applies exactly when it is on, every
// selector holds, and the request has every dimension of the subject.
func TestMatches(t *testing.T) {
	t.Parallel()

	full := rule.Request{
		Tenant: "acme", Plan: "gold", Application: "web", User: "u1", APIKey: "k1", Service: "payments", Endpoint: "pay",
		Address: netip.MustParseAddr("203.0.113.9"),
	}
	tests := []struct {
		name    string
		change  func(*rule.Rule)
		request func(*rule.Request)
		want    bool
	}{
		{"no selector is everything", nil, nil, true},
		{"a disabled rule is not there", func(r *rule.Rule) { r.Enabled = false }, nil, false},
		{"the first instant of validity counts", func(r *rule.Rule) { r.ValidFrom = t0 }, nil, true},
		{"a microsecond before it does not", func(r *rule.Rule) { r.ValidFrom = t0.Add(time.Microsecond) }, nil, false},
		{"the end of validity does not count", func(r *rule.Rule) { r.ValidTo = t0 }, nil, false},
		{"a microsecond before the end does", func(r *rule.Rule) { r.ValidTo = t0.Add(time.Microsecond) }, nil, true},
		{"every selector at once", func(r *rule.Rule) {
			r.Match = rule.Match{Tenant: "acme", Plan: "gold", Application: "web", User: "u1", APIKey: "k1", Service: "payments", Endpoint: "pay"}
		}, nil, true},
		{"another tenant", func(r *rule.Rule) { r.Match.Tenant = "globex" }, nil, false},
		{"another plan", func(r *rule.Rule) { r.Match.Plan = "basic" }, nil, false},
		{"another application", func(r *rule.Rule) { r.Match.Application = "ios" }, nil, false},
		{"another user", func(r *rule.Rule) { r.Match.User = "u2" }, nil, false},
		{"another key", func(r *rule.Rule) { r.Match.APIKey = "k2" }, nil, false},
		{"another service", func(r *rule.Rule) { r.Match.Service = "search" }, nil, false},
		{"another endpoint", func(r *rule.Rule) { r.Match.Endpoint = "refund" }, nil, false},
		{"a selector on what the request lacks", func(r *rule.Rule) { r.Match.User = "u1" }, func(q *rule.Request) { q.User = "" }, false},
		{"one of the networks", func(r *rule.Rule) { r.Match.Networks = nets("198.51.100.0/24", "203.0.113.0/24") }, nil, true},
		{"none of the networks", func(r *rule.Rule) { r.Match.Networks = nets("198.51.100.0/24") }, nil, false},
		{"a network and no address", func(r *rule.Rule) { r.Match.Networks = everywhere() }, func(q *rule.Request) { q.Address = netip.Addr{} }, false},
		{"a subject the request lacks", func(r *rule.Rule) { r.Subject = rule.Tenant | rule.User }, func(q *rule.Request) { q.User = "" }, false},
		{"an address as the subject, and none", func(r *rule.Rule) { r.Subject = rule.IP }, func(q *rule.Request) { q.Address = netip.Addr{} }, false},
		{"no subject at all", func(r *rule.Rule) { r.Subject = 0 }, func(q *rule.Request) { *q = rule.Request{} }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := full
			if tt.request != nil {
				tt.request(&q)
			}
			if got := rate(tt.change).Matches(&q, t0); got != tt.want {
				t.Errorf("Matches = %v, want %v", got, tt.want)
			}
		})
	}
}

// everywhere are the networks of all addresses.
func everywhere() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

func nets(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestGroup guarantees which rules compete: the same subject set, meter, kind
// and window or period, within one mode; block rules among themselves.
func TestGroup(t *testing.T) {
	t.Parallel()

	block := func(change func(*rule.Rule)) *rule.Rule {
		r := &rule.Rule{ID: "b", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Meter: "api-calls", OnFailure: rule.Open}
		if change != nil {
			change(r)
		}
		return r
	}
	tests := []struct {
		name string
		a, b *rule.Rule
		want bool
	}{
		{"an override of the same window", rate(nil), rate(func(r *rule.Rule) { r.ID, r.Limit, r.Match.Tenant = "s", 5, "acme" }), true},
		{"another algorithm of the same window", rate(nil), rate(func(r *rule.Rule) { r.Algorithm = rule.FixedWindow }), true},
		{"10 a second and 1,000 an hour", rate(func(r *rule.Rule) { r.Window = time.Second }), rate(func(r *rule.Rule) { r.Window = time.Hour }), false},
		{"another subject", rate(nil), rate(func(r *rule.Rule) { r.Subject = rule.Tenant | rule.User }), false},
		{"another meter", rate(nil), rate(func(r *rule.Rule) { r.Meter = "tokens" }), false},
		{"another kind", rate(nil), quota(nil), false},
		{"shadow beside enforced", rate(nil), rate(func(r *rule.Rule) { r.Mode = rule.Shadow }), false},
		{"another scope", rate(nil), rate(func(r *rule.Rule) { r.Match.Service = "payments" }), true},
		{"another zone of the same period", quota(nil), quota(func(r *rule.Rule) { r.Period.Zone = time.UTC }), true},
		{"another alignment of the same period", quota(nil), quota(func(r *rule.Rule) { r.Period.Alignment = period.Anniversary }), true},
		{"another unit", quota(nil), quota(func(r *rule.Rule) { r.Period.Unit = period.Day }), false},
		{"another count", quota(nil), quota(func(r *rule.Rule) { r.Period.Count = 2 }), false},
		{"two blocks of different subjects and meters", block(nil), block(func(r *rule.Rule) { r.Subject, r.Meter = rule.IP, "x" }), true},
		{"a shadow block", block(nil), block(func(r *rule.Rule) { r.Mode = rule.Shadow }), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.a.Group() == tt.b.Group(); got != tt.want {
				t.Errorf("one group = %v, want %v", got, tt.want)
			}
		})
	}
}

// TestBeats guarantees the order of winners, from the strongest: exact subject
// selectors, then scope, then priority, then the smaller id.
func TestBeats(t *testing.T) {
	t.Parallel()

	match := func(id string, priority int32, m rule.Match) *rule.Rule {
		return &rule.Rule{ID: id, Priority: priority, Match: m}
	}
	order := []*rule.Rule{
		match("z", 0, rule.Match{APIKey: "k"}),
		match("z", 0, rule.Match{User: "u", Tenant: "t"}),
		match("z", 0, rule.Match{User: "u"}),
		match("z", 0, rule.Match{Application: "a", Tenant: "t"}),
		match("z", 0, rule.Match{Application: "a"}),
		match("z", 0, rule.Match{Tenant: "t", Plan: "p", Endpoint: "e"}),
		match("z", 0, rule.Match{Tenant: "t", Endpoint: "e", Service: "s"}),
		match("z", 0, rule.Match{Tenant: "t", Endpoint: "e"}),
		match("z", 0, rule.Match{Tenant: "t", Service: "s"}),
		match("z", 7, rule.Match{Tenant: "t"}),
		match("a", 0, rule.Match{Tenant: "t"}),
		match("b", 0, rule.Match{Tenant: "t"}),
		match("a", -1, rule.Match{Tenant: "t"}),
		match("a", 9, rule.Match{Plan: "p", Endpoint: "e"}),
		match("a", 9, rule.Match{Plan: "p"}),
		match("a", 9, rule.Match{Networks: nets("203.0.113.0/24"), Service: "s"}),
		match("a", 0, rule.Match{Networks: nets("203.0.113.0/24")}),
		match("a", 9, rule.Match{Endpoint: "e"}),
		match("a", 9, rule.Match{Service: "s"}),
		match("a", 9, rule.Match{}),
		match("a", 1, rule.Match{}),
		match("b", 1, rule.Match{}),
		match("B", 0, rule.Match{}),
		match("a", 0, rule.Match{}),
	}
	for i, a := range order {
		for j, b := range order {
			if got, want := a.Beats(b), i < j; got != want {
				t.Errorf("%+v beats %+v = %v, want %v", a.Match, b.Match, got, want)
			}
		}
	}
}

// TestWinnerDependsOnNoOrder guarantees that however the rules of a group come,
// one and the same wins.
func TestWinnerDependsOnNoOrder(t *testing.T) {
	t.Parallel()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	maybe := func(s string) string {
		if rng.IntN(2) == 0 {
			return ""
		}
		return s
	}
	for range 300 {
		var rules []*rule.Rule
		for i := range 6 {
			rules = append(rules, &rule.Rule{ID: fmt.Sprint(i), Priority: int32(rng.IntN(2)), Match: rule.Match{
				Tenant: maybe("t"), Plan: maybe("p"), Application: maybe("a"), Service: maybe("s"), Endpoint: maybe("e"),
			}})
		}
		first := winner(rules)
		for range 5 {
			rng.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
			if w := winner(rules); w != first {
				t.Fatalf("%+v wins, and in another order %+v", *first, *w)
			}
		}
		for _, r := range rules {
			if r != first && r.Beats(first) {
				t.Fatalf("%+v beats the winner %+v", *r, *first)
			}
		}
	}
}

func winner(rules []*rule.Rule) *rule.Rule {
	return slices.MinFunc(rules, func(a, b *rule.Rule) int {
		if a.Beats(b) {
			return -1
		}
		return 1
	})
}
