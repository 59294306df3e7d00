// Package rating prices what was counted: fee, included units and graduated overage,
// exactly, and rounds once.
//
// Lines are exact sums until money.Split makes whole minor units of them: the total is
// the exact sum rounded half up, and lines get the spare units by largest remainder.
// What changes a period that was invoiced is the difference of two exact prices: that
// of all its units as they are known now, less that of the units that were billed. So
// tiers and included units are right also for corrections.
package rating

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// ErrPlan reports a plan that cannot be priced.
var ErrPlan = errors.New("plan cannot be priced")

// A Plan is what is sold and at which price. The zero Plan is free.
type Plan struct {
	ID       string
	Name     string
	Version  int64
	Fee      money.Amount // once a period; zero: none
	Period   period.Unit  // of the fee and the included units
	Included map[string]int64
	Steps    map[string][]Step // by meter, ascending, the last without an end
}

// A Step is one step of a graduated price.
type Step struct {
	UpTo  int64 // last unit beyond the included ones at this price; 0: no end
	Price money.Price
}

// Validate returns an error that wraps ErrPlan, or nil. Prices have no sign, so it is
// fees and included units that could be negative.
func (p Plan) Validate() error {
	if p.Fee.Minor < 0 {
		return fmt.Errorf("%w: plan %s has a fee of %d", ErrPlan, p.ID, p.Fee.Minor)
	}
	for m, n := range p.Included {
		if n < 0 {
			return fmt.Errorf("%w: plan %s includes %d of %s", ErrPlan, p.ID, n, m)
		}
	}
	for m, steps := range p.Steps {
		last := int64(0)
		for i, s := range steps {
			if end := i == len(steps)-1; end != (s.UpTo == 0) || !end && s.UpTo <= last {
				return fmt.Errorf("%w: plan %s has steps of %s that do not ascend to one without an end", ErrPlan, p.ID, m)
			}
			last = s.UpTo
		}
	}
	return nil
}

// Meters are the meters that the plan says something of, sorted.
func (p Plan) Meters() []string {
	all := map[string]bool{}
	for m := range p.Included {
		all[m] = true
	}
	for m := range p.Steps {
		all[m] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// A Tier is the part of a period's units that one price applies to.
type Tier struct {
	From, To int64 // first and last unit, counted from 1
	Included bool  // covered by the fee
	Price    money.Price
	Sum      money.Sum
}

// Units is how many units the tier has.
func (t Tier) Units() int64 { return t.To - t.From + 1 }

// Tiers divides units of a meter into the included ones and the steps. There is none
// for 0 units or fewer: events of the charge may be lost and the refund not. Units
// of a meter that the plan does not price are one tier at 0.
func (p Plan) Tiers(meter string, units int64) []Tier {
	if units <= 0 {
		return nil
	}
	var out []Tier
	add := func(to int64, included bool, price money.Price) {
		from := int64(1)
		if len(out) > 0 {
			from = out[len(out)-1].To + 1
		}
		if to = min(to, units); to >= from {
			out = append(out, Tier{From: from, To: to, Included: included, Price: price, Sum: money.Times(to-from+1, price, p.Fee.Currency)})
		}
	}
	free := p.Included[meter]
	add(free, true, money.Price{})
	for _, s := range p.Steps[meter] {
		if s.UpTo == 0 || s.UpTo > units {
			add(units, false, s.Price)
			break
		}
		add(free+s.UpTo, false, s.Price)
	}
	if len(p.Steps[meter]) == 0 {
		add(units, false, money.Price{})
	}
	return out
}

// Charge is the exact price of a period's units of a meter.
func (p Plan) Charge(meter string, units int64) money.Sum {
	var all money.Sum
	for _, t := range p.Tiers(meter, units) {
		all = all.Plus(t.Sum)
	}
	return all
}

// Difference is what units that became known later change, when billed units of the
// meter's period are invoiced already.
func (p Plan) Difference(meter string, billed, units int64) money.Sum {
	return p.Charge(meter, billed+units).Minus(p.Charge(meter, billed))
}
