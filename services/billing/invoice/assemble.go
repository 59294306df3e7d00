package invoice

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// Facts are what an invoice is made of. The same facts always make the same invoice.
type Facts struct {
	Tenant      string
	Zone        string
	Period      period.Span
	Plan        rating.Plan // that was in force at the period's end
	Gone        bool        // the tenant was deleted all through the period: what was used costs, and no fee is due
	Counted     map[string]metering.Count
	Corrections []Correction // in any order
	TopUps      []TopUp
	Loss        map[string]Loss // by meter
	Lost        int64           // events missing in the tenant's partition about the period
}

// A Correction is what became known of one meter of an invoiced period after it.
type Correction struct {
	Kind     metering.Kind
	Meter    string
	Period   period.Span
	Corrects string      // number of that period's invoice; empty: it had none
	Plan     rating.Plan // that it was priced by
	Billed   int64       // net units on invoices so far
	Count    metering.Count
}

// A TopUp is units granted in the period: paid elsewhere, shown without money.
type TopUp struct {
	ID, Meter, Reason string
	Units             int64
}

// A Loss is what is known and not billed of a meter.
type Loss struct {
	Unattributed int64
	SetAside     int64
}

// A Body is the lines of an invoice and their total.
type Body struct {
	Total   money.Amount
	Lines   []account.Line
	Counted []account.Counted
}

// Assemble prices the facts. Its error wraps rating.ErrPlan or money.ErrMoney: then
// there is no invoice, rather than a wrong one.
func Assemble(f Facts) (Body, error) {
	if err := f.Plan.Validate(); err != nil {
		return Body{}, err
	}
	a := assembly{facts: f, currency: f.Plan.Fee.Currency}
	a.fee()
	for _, m := range a.meters() {
		a.usage(m)
	}
	for _, t := range f.TopUps {
		a.add(account.Line{Kind: account.TopUpLine, Meter: t.Meter, Units: t.Units, Of: f.Period, Ref: t.ID, Text: t.Reason}, money.Sum{})
	}
	if err := a.corrections(); err != nil {
		return Body{}, err
	}
	total, parts, err := money.Split(a.sums)
	if err != nil {
		return Body{}, fmt.Errorf("tenant %s: %w", f.Tenant, err)
	}
	for i, minor := range parts {
		a.lines[i].Amount = money.Amount{Minor: minor, Currency: a.currency}
	}
	return Body{Total: money.Amount{Minor: total, Currency: a.currency}, Lines: a.lines, Counted: a.counted}, nil
}

type assembly struct {
	facts    Facts
	currency money.Currency
	lines    []account.Line
	sums     []money.Sum
	counted  []account.Counted
}

func (a *assembly) add(l account.Line, s money.Sum) {
	a.lines, a.sums = append(a.lines, l), append(a.sums, s)
}

func (a *assembly) fee() {
	if a.facts.Plan.Fee.Minor > 0 && !a.facts.Gone {
		a.add(account.Line{Kind: account.FeeLine, Units: 1, UnitPrice: a.facts.Plan.Fee.Decimal(), Of: a.facts.Period}, money.Whole(a.facts.Plan.Fee.Minor))
	}
}

// meters are all that something is known of, sorted.
func (a *assembly) meters() []string {
	all := map[string]bool{}
	for m := range a.facts.Counted {
		all[m] = true
	}
	for m := range a.facts.Loss {
		all[m] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func (a *assembly) usage(meter string) {
	c, loss := a.facts.Counted[meter], a.facts.Loss[meter]
	a.counted = append(a.counted, account.Counted{
		Meter: meter, Calls: c.Calls, Consumed: c.Units, Returned: c.Returned, Degraded: c.Degraded, Prepaid: c.Prepaid,
		Lost: a.facts.Lost, Unattributed: loss.Unattributed, SetAside: loss.SetAside, Unpriced: c.Unpriced,
	})
	degraded := c.Degraded
	for _, t := range a.facts.Plan.Tiers(meter, c.Net()) {
		line := account.Line{
			Kind: account.UsageLine, Meter: meter, From: t.From, To: t.To, Units: t.Units(), UnitPrice: t.Price.String(),
			Degraded: degraded, Of: a.facts.Period,
		}
		if t.Included {
			line.Kind, line.UnitPrice = account.IncludedLine, ""
		}
		degraded = 0 // said once per meter
		a.add(line, t.Sum)
	}
	if c.Prepaid != 0 {
		a.add(account.Line{Kind: account.PrepaidLine, Meter: meter, Units: c.Prepaid, Of: a.facts.Period}, money.Sum{})
	}
}

// kinds is the order in which corrections of one meter and period are priced, each upon
// the one before.
var kinds = []metering.Kind{metering.LateCall, metering.Returned, metering.Corrected}

var lineKinds = map[metering.Kind]account.LineKind{
	metering.LateCall: account.LateLine, metering.Returned: account.RefundLine, metering.Corrected: account.SettledLine,
}

// corrections are the lines of earlier periods. What one comes to in another currency than
// the invoice's is said, and is no part of the total.
func (a *assembly) corrections() error {
	ordered := slices.SortedFunc(slices.Values(a.facts.Corrections), func(x, y Correction) int {
		if c := x.Period.Start.Compare(y.Period.Start); c != 0 {
			return c
		}
		if x.Meter != y.Meter {
			if x.Meter < y.Meter {
				return -1
			}
			return 1
		}
		return slices.Index(kinds, x.Kind) - slices.Index(kinds, y.Kind)
	})
	type key struct {
		start time.Time
		meter string
	}
	billed := map[key]int64{}
	for _, c := range ordered {
		if err := c.Plan.Validate(); err != nil {
			return err
		}
		k := key{c.Period.Start, c.Meter}
		if _, known := billed[k]; !known {
			billed[k] = c.Billed
		}
		net := c.Count.Net()
		sum := c.Plan.Difference(c.Meter, billed[k], net)
		billed[k] += net
		line := account.Line{
			Kind: lineKinds[c.Kind], Meter: c.Meter, Units: net, Degraded: c.Count.Degraded, Corrects: c.Corrects, Of: c.Period,
		}
		if c.Plan.Fee.Currency != a.currency && sum.Sign() != 0 {
			minor, err := sum.Round()
			if err != nil {
				return fmt.Errorf("tenant %s: %w", a.facts.Tenant, err)
			}
			line.Text, sum = money.Amount{Minor: minor, Currency: c.Plan.Fee.Currency}.String(), money.Sum{}
		}
		a.add(line, sum)
	}
	return nil
}

// Number is an issuer's invoice number: INV-0000042.
func Number(prefix string, n int64) string {
	digits := strconv.FormatInt(n, 10)
	for len(digits) < 7 {
		digits = "0" + digits
	}
	return prefix + "-" + digits
}

// DraftID names the draft of a period that begins at start.
func DraftID(start time.Time) string { return "draft-" + start.UTC().Format("20060102T150405Z") }

// ParseDraftID is the period's start that a draft is named for, or false.
func ParseDraftID(id string) (time.Time, bool) {
	t, err := time.Parse("draft-20060102T150405Z", id)
	return t, err == nil
}
