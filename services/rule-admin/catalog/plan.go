package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// Bounds of plans.
const (
	maxIncluded = 64
	maxOverage  = 256
	maxDecimals = 12 // digits before and behind the point of a price
)

// A Plan is what is sold and at which price. It creates no quota.
type Plan struct {
	Name     *string          `json:"name,omitzero"`
	Fee      *Fee             `json:"fee,omitzero"`
	Included map[string]int64 `json:"included,omitzero"` // units by meter
	Overage  []Overage        `json:"overage,omitzero"`
}

// A Fee is money due once a period.
type Fee struct {
	Amount   *int64  `json:"amount,omitzero"` // minor units of Currency
	Currency *string `json:"currency,omitzero"`
	Period   *string `json:"period,omitzero"`
}

// An Overage is one step of a graduated price.
type Overage struct {
	Meter     *string `json:"meter,omitzero"`
	UpTo      *int64  `json:"up_to,omitzero"` // last unit at this price; absent: the last step
	UnitPrice *string `json:"unit_price,omitzero"`
}

// Kind is KindPlan.
func (*Plan) Kind() Kind { return KindPlan }

func (p *Plan) read(o *strict.Object) {
	p.Name = o.Text("name")
	if fee := o.Object("fee"); fee != nil {
		p.Fee = &Fee{Amount: fee.Int("amount"), Currency: fee.Text("currency"), Period: fee.Text("period")}
		fee.Close()
	}
	if included := o.Object("included"); included != nil {
		p.Included = map[string]int64{}
		for _, meter := range included.Names() {
			if units := included.Int(meter); units != nil {
				p.Included[meter] = *units
			}
		}
	}
	if steps := o.Objects("overage"); steps != nil {
		p.Overage = []Overage{}
		for _, s := range steps {
			p.Overage = append(p.Overage, Overage{Meter: s.Text("meter"), UpTo: s.Int("up_to"), UnitPrice: s.Text("unit_price")})
			s.Close()
		}
	}
}

// Validate returns every fault.
func (p *Plan) Validate() rule.Faults {
	var f rule.Faults
	name(&f, p.Name)
	if p.Fee != nil {
		if amount, ok := required(&f, "fee.amount", p.Fee.Amount); ok {
			f.Range("fee.amount", amount, 0, rule.Unlimited)
		}
		if c, ok := required(&f, "fee.currency", p.Fee.Currency); ok {
			currency(&f, "fee.currency", c)
		}
		if u, ok := required(&f, "fee.period", p.Fee.Period); ok {
			rule.OneOf(&f, "fee.period", period.Unit(u), period.Hour, period.Day, period.Week, period.Month, period.Year)
		}
	}
	if len(p.Included) > maxIncluded {
		f.Add("included", "has %d meters, want at most %d", len(p.Included), maxIncluded)
	}
	for _, meter := range p.Meters() {
		before := len(f)
		f.Meter("included", meter)
		if len(f) == before {
			f.Range("included."+meter, p.Included[meter], 0, rule.Unlimited)
		}
	}
	p.validateOverage(&f)
	return f
}

func (p *Plan) validateOverage(f *rule.Faults) {
	if len(p.Overage) > maxOverage {
		f.Add("overage", "has %d items, want at most %d", len(p.Overage), maxOverage)
	}
	type step struct {
		upTo int64
		at   string
		last bool
	}
	before := map[string]step{}
	for i, o := range p.Overage {
		at := fmt.Sprintf("overage[%d]", i)
		meter, ok := required(f, at+".meter", o.Meter)
		if ok {
			f.Meter(at+".meter", meter)
		}
		if price, ok := required(f, at+".unit_price", o.UnitPrice); ok && !decimal(price) {
			f.Add(at+".unit_price", "is %.64q, want a decimal of at most %d digits on each side of the point, e.g. 0.00001", price, maxDecimals)
		}
		b := before[meter]
		if b.last {
			f.Add(b.at+".up_to", "is missing, and only the last step of meter %s has none", meter)
		}
		if o.UpTo != nil {
			f.Range(at+".up_to", *o.UpTo, max(1, b.upTo+1), rule.Unlimited)
		}
		before[meter] = step{upTo: Or(o.UpTo, 0), at: at, last: o.UpTo == nil}
	}
	for _, meter := range slices.Sorted(maps.Keys(before)) {
		if s := before[meter]; !s.last && meter != "" {
			f.Add(s.at+".up_to", "is set, want the last step of meter %s without one", meter)
		}
	}
}

// Meters returns the meters of the included units, sorted.
func (p *Plan) Meters() []string { return slices.Sorted(maps.Keys(p.Included)) }

// Refs returns nothing.
func (*Plan) Refs() []Ref { return nil }

// decimal reports whether s is a price: digits, and perhaps a point and digits.
func decimal(s string) bool {
	whole, fraction, point := strings.Cut(s, ".")
	digits := func(s string) bool {
		return s != "" && len(s) <= maxDecimals && strings.Trim(s, "0123456789") == ""
	}
	return digits(whole) && (!point || digits(fraction))
}

// currency wants an ISO 4217 code.
func currency(f *rule.Faults, field, s string) {
	if len(s) != 3 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		f.Add(field, "is %.64q, want an ISO 4217 code of 3 letters, e.g. USD", s)
	}
}
