package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// TestManyAreOneAfterAnother guarantees that many queries at once get the
// answers and the events that they get one after another: refusals, repeats under a request
// id, ids that were used for something else, costs that are none, and what
// nothing counts.
func TestManyAreOneAfterAnother(t *testing.T) {
	t.Parallel()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	said := cmp.Options{cmpopts.IgnoreUnexported(decide.Decision{}), cmpopts.IgnoreFields(decide.Decision{}, "ID")}
	events := cmp.Options{
		cmp.AllowUnexported(decide.Usage{}), cmpopts.IgnoreFields(decide.Usage{}, "ID", "Decision"), cmpopts.EquateComparable(netip.Addr{}, &rule.Rule{}),
	}
	reach := map[string]int{}
	for range 60 {
		rules := []*rule.Rule{
			rate("burst", rule.Tenant, 20), quota("month", 50), rate("user", rule.Tenant|rule.User, 8),
			{ID: "banned", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{User: "mallory"}},
		}
		one, many := newGate(t, rules...), newGate(t, rules...)
		var told, alone []decide.Usage
		for range 4 {
			queries := make([]decide.Query, 1+rng.IntN(12))
			for i := range queries {
				q := decide.Query{
					Tenant: []string{"acme", "acme", "globex", ""}[rng.IntN(4)],
					User:   maybe(rng, "u1", "u2", "mallory"), Cost: units(rng.Int64N(9) - 1),
				}
				if n := rng.Int64N(12); n < 4 {
					q = decide.Query{Tenant: "acme", RequestID: fmt.Sprintf("r-%d", n), Cost: units(1 + n + rng.Int64N(6)/5)}
				}
				queries[i] = q
			}
			calls := many.store.calls
			got, errs := many.DecideAll(t.Context(), queries)
			if many.store.calls > calls+1 {
				t.Fatalf("%d calls of the store", many.store.calls-calls)
			}
			for i, q := range queries {
				want, err := one.Decide(t.Context(), q)
				if u, tells := got[i].Usage(); tells {
					told = append(told, u)
				}
				if u, tells := want.Usage(); tells {
					alone = append(alone, u)
				}
				if (err == nil) != (errs[i] == nil) || errors.Is(err, decide.ErrCost) != errors.Is(errs[i], decide.ErrCost) ||
					errors.Is(err, decide.ErrRequestIDReused) != errors.Is(errs[i], decide.ErrRequestIDReused) {
					t.Fatalf("query %d, %+v: %v, alone %v", i, q, errs[i], err)
				}
				if diff := cmp.Diff(want, got[i], said); diff != "" {
					t.Fatalf("query %d, %+v (-alone +among others)\n%s", i, q, diff)
				}
				if err != nil {
					reach["errors"]++
				}
				if want.Replayed {
					reach["replays"]++
				}
				reach[string(want.Outcome)]++
			}
			at := one.now.Add(time.Duration(rng.IntN(60)) * time.Second)
			one.at(at)
			many.at(at)
		}
		_, _ = many.DecideAll(t.Context(), nil) // in the memory of those before
		if diff := cmp.Diff(alone, told, events); diff != "" {
			t.Fatalf("told (-alone +among others)\n%s", diff)
		}
		reach["events"] += len(told)
	}
	for _, what := range []string{"errors", "replays", "ALLOW", "DENY", "BLOCKED", "events"} {
		if reach[what] < 20 {
			t.Errorf("%d %s: the generator no longer reaches them", reach[what], what)
		}
	}
}

// TestManyAcrossAPeriod guarantees that queries whose periods have moved on by
// the store's clock are asked once more, together and in order, and that the
// others are not.
func TestManyAcrossAPeriod(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 3))
	r := rate("burst", rule.IP, 10)
	g.rule(r)
	december := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	g.now, g.store.now = december.Add(-time.Second), december
	queries := make([]decide.Query, 5)
	for i := range queries {
		queries[i].Tenant = "acme"
	}
	queries[2].Tenant = "" // nothing counts it
	all, errs := g.DecideAll(t.Context(), queries)
	for i, want := range []decide.Outcome{decide.Allow, decide.Allow, decide.Allow, decide.Allow, decide.Deny} {
		if errs[i] != nil || all[i].Outcome != want || all[i].Degraded {
			t.Errorf("query %d: %+v %v, want %s", i, all[i], errs[i], want)
		}
		if i != 2 && !all[i].Limits[0].PeriodStart.Equal(december) {
			t.Errorf("query %d was decided in %v", i, all[i].Limits[0].PeriodStart)
		}
	}
	if len(g.store.asked) != 8 || g.store.calls != 2 {
		t.Errorf("%d questions in %d calls, want 8 in 2", len(g.store.asked), g.store.calls)
	}
}

// TestManyEndWithTheirCaller guarantees that a caller that went away gets its
// own error for every query, and a store that is away an answer.
func TestManyEndWithTheirCaller(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("closed", 10))
	g.store.fail = errAway
	all, errs := g.DecideAll(t.Context(), []decide.Query{{Tenant: "acme"}, {}})
	if errs[0] != nil || all[0].Status != 503 || errs[1] != nil || all[1].Outcome != decide.Allow || all[1].Degraded {
		t.Errorf("without the store: %+v %v", all, errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, errs := g.DecideAll(ctx, []decide.Query{{Tenant: "acme"}}); !errors.Is(errs[0], context.Canceled) {
		t.Errorf("DecideAll = %v, want canceled", errs)
	}
	if all, errs := g.DecideAll(t.Context(), nil); len(all)+len(errs) != 0 {
		t.Errorf("of nothing: %v %v", all, errs)
	}
	if all, errs := newRig(t, alwaysStale, func() time.Time { return t0 }, quota("closed", 10)).DecideAll(t.Context(), []decide.Query{{Tenant: "acme"}}); errs[0] != nil || all[0].Status != 503 || !all[0].Degraded {
		t.Errorf("a store that disagrees with its own clock: %+v %v", all, errs)
	}
}

// TestManyThatFail guarantees that what a store was asked and has not answered
// stays as it is, for it may be about to look at it.
func TestManyThatFail(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("burst", rule.Tenant, 20))
	ask := func(tenants ...string) {
		queries := make([]decide.Query, len(tenants))
		for i := range queries {
			queries[i].Tenant = tenants[i]
		}
		_, _ = g.DecideAll(t.Context(), queries)
	}
	ask("one", "two")
	g.store.fail, g.store.asked = errAway, nil
	ask("acme", "globex")
	g.store.fail = nil
	ask("three", "four")
	for i, tenant := range []string{"acme", "globex"} {
		if got := g.store.asked[i].Charges[0]; got.Counter.Tenant != tenant || got.Limit != 20 || got.Cost != 1 {
			t.Errorf("the store has %+v of %s", got, tenant)
		}
	}
}
