package rule_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"penstock.dev/services/internal/rule"
)

// A verdict is a condition that always says the same.
type verdict bool

func (verdict) Text() string               { return "x" }
func (v verdict) Holds(*rule.Request) bool { return bool(v) }

// TestMisses guarantees that every reason is named under its field.
func TestMisses(t *testing.T) {
	t.Parallel()

	r := rate(func(r *rule.Rule) {
		r.Enabled, r.ValidFrom, r.ValidTo = false, t0.Add(time.Second), t0
		r.Match = rule.Match{Tenant: "globex", Plan: "p", Application: "a", User: "u", APIKey: "k", Service: "s", Endpoint: "e", Networks: nets("198.51.100.0/24")}
		r.Subject, r.Condition = rule.Tenant|rule.User|rule.IP, verdict(false)
	})
	var got []string
	for _, m := range r.Misses(&rule.Request{Tenant: "acme"}, t0) {
		got = append(got, m.Field)
	}
	want := []string{
		"enabled", "valid_from", "valid_to", "match.tenant", "match.plan", "match.application", "match.user", "match.api_key", "match.service",
		"match.endpoint", "match.networks", "subject", "subject", "condition",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Misses of %q, want of %q", got, want)
	}
}

// TestExplanationsAgree guarantees that a rule has no miss exactly when it
// matches, and an advantage exactly when it beats the other.
func TestExplanationsAgree(t *testing.T) {
	t.Parallel()

	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(values ...string) string { return values[rng.IntN(len(values))] }
	random := func(id string) *rule.Rule {
		return rate(func(r *rule.Rule) {
			r.ID, r.Enabled, r.Priority = id, rng.IntN(8) > 0, int32(rng.IntN(2))
			r.Subject = rule.Subject(rng.IntN(32))
			r.Match = rule.Match{
				Tenant: pick("", "a"), Plan: pick("", "p"), Application: pick("", "w"), User: pick("", "u"), APIKey: pick("", "k"),
				Service: pick("", "s"), Endpoint: pick("", "e"),
			}
			if rng.IntN(3) == 0 {
				r.Match.Networks = nets(pick("192.0.2.0/24", "203.0.113.0/24"))
			}
			if rng.IntN(3) == 0 {
				r.Condition = verdict(rng.IntN(2) == 0)
			}
			if rng.IntN(4) == 0 {
				r.ValidFrom = t0.Add(time.Duration(rng.IntN(3)-1) * time.Second)
			}
			if rng.IntN(4) == 0 {
				r.ValidTo = t0.Add(time.Duration(rng.IntN(3)-1) * time.Second)
			}
		})
	}
	matched, beaten := 0, 0
	for range 20_000 {
		r, o := random("r"), random("o")
		q := rule.Request{
			Tenant: pick("", "a", "a", "a"), Plan: pick("", "p", "p"), Application: pick("", "w", "w"), User: pick("", "u", "u"),
			APIKey: pick("", "k", "k"), Service: pick("", "s", "s"), Endpoint: pick("", "e", "e"),
		}
		if rng.IntN(4) > 0 {
			q.Address = netip.MustParseAddr("203.0.113.9")
		}
		if r.Matches(&q, t0) != (len(r.Misses(&q, t0)) == 0) {
			t.Fatalf("%+v of %+v: Matches %v, Misses %v", r, q, r.Matches(&q, t0), r.Misses(&q, t0))
		}
		if r.Beats(o) != (r.Advantage(o) != "") || r.Advantage(o) != "" && o.Advantage(r) != "" {
			t.Fatalf("%+v against %+v: Beats %v, Advantage %q and %q", r, o, r.Beats(o), r.Advantage(o), o.Advantage(r))
		}
		if r.Matches(&q, t0) {
			matched++
		}
		if r.Beats(o) {
			beaten++
		}
	}
	if matched < 200 || beaten < 5000 {
		t.Errorf("%d matched and %d were beaten: the generator no longer tests both", matched, beaten)
	}
	if got := rate(func(r *rule.Rule) { r.Priority = 1 }).Advantage(rate(nil)); got != "priority" {
		t.Errorf("the higher priority wins by %q", got)
	}
	if got := rate(func(r *rule.Rule) { r.ID = "a" }).Advantage(rate(nil)); got != "id" {
		t.Errorf("the smaller id wins by %q", got)
	}
}
