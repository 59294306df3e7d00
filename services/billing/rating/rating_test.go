package rating_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/money"
)

func price(t rapid.TB, s string) money.Price {
	t.Helper()
	p, err := money.ParsePrice(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// gold is the plan of look's invoice: a fee, 100,000 calls in it, and two steps.
func gold(t rapid.TB) rating.Plan {
	return rating.Plan{
		ID: "gold", Fee: money.Amount{Minor: 9900, Currency: "USD"}, Period: "month", Included: map[string]int64{"api-calls": 100_000},
		Steps: map[string][]rating.Step{"api-calls": {{UpTo: 400_000, Price: price(t, "0.0004")}, {Price: price(t, "0.00025")}}},
	}
}

// TestTiers guarantees which units are in the fee and which at which price, at each
// edge.
func TestTiers(t *testing.T) {
	t.Parallel()

	type tier struct {
		from, to int64
		price    string
	}
	for units, want := range map[int64][]tier{
		-5:      nil,
		0:       nil,
		1:       {{1, 1, "0"}},
		100_000: {{1, 100_000, "0"}},
		100_001: {{1, 100_000, "0"}, {100_001, 100_001, "0.0004"}},
		500_000: {{1, 100_000, "0"}, {100_001, 500_000, "0.0004"}},
		500_001: {{1, 100_000, "0"}, {100_001, 500_000, "0.0004"}, {500_001, 500_001, "0.00025"}},
		934_518: {{1, 100_000, "0"}, {100_001, 500_000, "0.0004"}, {500_001, 934_518, "0.00025"}},
	} {
		got := gold(t).Tiers("api-calls", units)
		if len(got) != len(want) {
			t.Errorf("%d units have the tiers %+v, want %v", units, got, want)
			continue
		}
		for i, g := range got {
			if (tier{g.From, g.To, g.Price.String()}) != want[i] {
				t.Errorf("%d units have the tiers %+v, want %v", units, got, want)
			}
		}
	}
	total, err := gold(t).Charge("api-calls", 934_518).Round()
	if err != nil || total != 26863 { // 160.00 + 108.6295
		t.Errorf("934,518 units cost %d %v, want 26863", total, err)
	}
	if got := gold(t).Tiers("exports", 7); len(got) != 1 || got[0].Units() != 7 || got[0].Included || got[0].Sum.Sign() != 0 {
		t.Errorf("units that the plan does not price: %+v", got)
	}
}

// TestTiersCoverEveryUnit guarantees for any plan and any count that each unit is in
// exactly one tier, that more units never cost less, and that a bill and its
// corrections, in whatever portions, cost what one bill of all would.
func TestTiersCoverEveryUnit(t *testing.T) {
	t.Parallel()

	priced := 0
	rapid.Check(t, func(t *rapid.T) {
		p := rating.Plan{Fee: money.Amount{Currency: "USD"}, Included: map[string]int64{"m": rapid.Int64Range(0, 100).Draw(t, "included")}}
		last := int64(0)
		for range rapid.IntRange(0, 4).Draw(t, "steps") {
			last += rapid.Int64Range(1, 100).Draw(t, "step")
			p.Steps = map[string][]rating.Step{"m": append(p.Steps["m"], rating.Step{UpTo: last, Price: price(t, rapid.StringMatching(`[0-9]\.[0-9]{1,5}`).Draw(t, "price"))})}
		}
		p.Steps = map[string][]rating.Step{"m": append(p.Steps["m"], rating.Step{Price: price(t, "0.01")})}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		units := rapid.Int64Range(0, 600).Draw(t, "units")
		next := int64(1)
		for _, tier := range p.Tiers("m", units) {
			if tier.From != next || tier.To < tier.From {
				t.Fatalf("%d units: tier %+v does not begin at %d", units, tier, next)
			}
			next = tier.To + 1
		}
		if next != units+1 {
			t.Fatalf("%d units: tiers end at %d", units, next-1)
		}
		if p.Charge("m", units+1).Minus(p.Charge("m", units)).Sign() < 0 {
			t.Fatalf("unit %d lowers the price", units+1)
		}
		first := rapid.Int64Range(0, units).Draw(t, "first")
		back := rapid.Int64Range(0, units).Draw(t, "back")
		portions := p.Charge("m", first).Plus(p.Difference("m", first, units-first)).Plus(p.Difference("m", units, -back))
		if portions.Minus(p.Charge("m", units-back)).Sign() != 0 {
			t.Fatalf("%d, then %d more, then %d back is %s, want %s", first, units-first, back, portions, p.Charge("m", units-back))
		}
		if portions.Sign() > 0 {
			priced++
		}
	})
	if priced == 0 {
		t.Error("nothing was ever priced: the property was not tried")
	}
}

// TestNegativePlans guarantees the rating's own half of FC-28: what would mint credit
// is refused, even if it got past every other door.
func TestNegativePlans(t *testing.T) {
	t.Parallel()

	for name, p := range map[string]rating.Plan{
		"fee":             {Fee: money.Amount{Minor: -1}},
		"included":        {Included: map[string]int64{"m": -1}},
		"no last step":    {Steps: map[string][]rating.Step{"m": {{UpTo: 5}}}},
		"steps that fall": {Steps: map[string][]rating.Step{"m": {{UpTo: 5}, {UpTo: 5}, {}}}},
		"two last steps":  {Steps: map[string][]rating.Step{"m": {{}, {}}}},
	} {
		if err := p.Validate(); !errors.Is(err, rating.ErrPlan) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := money.ParsePrice("-1"); err == nil {
		t.Error("a price of -1 is taken")
	}
}
