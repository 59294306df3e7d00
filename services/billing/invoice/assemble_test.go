package invoice_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

func month(t rapid.TB, begin string) period.Span {
	t.Helper()
	start := at(t, begin+"T00:00:00Z")
	return period.Span{Start: start, End: start.AddDate(0, 1, 0)}
}

func price(t rapid.TB, s string) money.Price {
	t.Helper()
	p, err := money.ParsePrice(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func assemble(t rapid.TB, f invoice.Facts) invoice.Body {
	t.Helper()
	b, err := invoice.Assemble(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFC27a guarantees for a whole invoice that its lines add up: three meters of 100 units
// at 0.00333 are 1.00, of which the first has the spare cent, ten times out of ten.
func TestFC27a(t *testing.T) {
	t.Parallel()
	p := rating.Plan{ID: "p", Fee: money.Amount{Currency: "USD"}, Steps: map[string][]rating.Step{}}
	f := invoice.Facts{Tenant: "acme", Period: month(t, "2026-06-01"), Counted: map[string]metering.Count{}}
	for _, m := range []string{"a", "b", "c"} {
		p.Steps[m] = []rating.Step{{Price: price(t, "0.00333")}}
		f.Counted[m] = metering.Count{Calls: 100, Units: 100}
	}
	f.Plan = p
	first := assemble(t, f)
	if first.Total.Minor != 100 || len(first.Lines) != 3 || first.Lines[0].Amount.Minor != 34 || first.Lines[1].Amount.Minor != 33 || first.Lines[2].Amount.Minor != 33 {
		t.Errorf("lines %+v of %v, want 0.34, 0.33, 0.33 of 1.00", first.Lines, first.Total)
	}
	for range 10 {
		if again := assemble(t, f); !reflect.DeepEqual(again, first) {
			t.Fatalf("made again: %+v", again)
		}
	}
}

// TestI1 guarantees the three totals of case I1 on an invoice.
func TestI1(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		units    int64
		price    string
		currency money.Currency
		shown    string
	}{{1_234_567, "0.00001", "USD", "USD 12.35"}, {3, "0.335", "USD", "USD 1.01"}, {150, "0.35", "JPY", "JPY 53"}} {
		b := assemble(t, invoice.Facts{
			Period: month(t, "2026-06-01"), Counted: map[string]metering.Count{"m": {Units: tt.units}},
			Plan: rating.Plan{ID: "p", Fee: money.Amount{Currency: tt.currency}, Steps: map[string][]rating.Step{"m": {{Price: price(t, tt.price)}}}},
		})
		if b.Total.String() != tt.shown || b.Lines[0].Amount != b.Total {
			t.Errorf("%d × %s is %v, want %s", tt.units, tt.price, b.Total, tt.shown)
		}
	}
}

// TestInvoiceAddsUp guarantees for any facts that lines add up to the total, and that
// what a period and its corrections on later invoices cost together is what one
// invoice of everything would, but for the rounding of each invoice.
func TestInvoiceAddsUp(t *testing.T) {
	t.Parallel()
	credits := 0
	rapid.Check(t, func(t *rapid.T) {
		plan := rating.Plan{
			ID: "p", Fee: money.Amount{Minor: rapid.Int64Range(0, 10_000).Draw(t, "fee"), Currency: "USD"}, Included: map[string]int64{"m": rapid.Int64Range(0, 500).Draw(t, "included")},
			Steps: map[string][]rating.Step{"m": {{UpTo: 300, Price: price(t, "0.033")}, {Price: price(t, "0.0071")}}},
		}
		units := rapid.Int64Range(0, 2000).Draw(t, "units")
		may := assemble(t, invoice.Facts{Plan: plan, Period: month(t, "2026-05-01"), Counted: map[string]metering.Count{"m": {Units: units}}})
		late := metering.Count{Units: rapid.Int64Range(0, 500).Draw(t, "late")}
		back := metering.Count{Returned: rapid.Int64Range(0, units+late.Units).Draw(t, "back")}
		june := invoice.Facts{Plan: plan, Period: month(t, "2026-06-01"), Corrections: []invoice.Correction{
			{Kind: metering.Returned, Meter: "m", Period: month(t, "2026-05-01"), Plan: plan, Billed: units, Count: back},
			{Kind: metering.LateCall, Meter: "m", Period: month(t, "2026-05-01"), Plan: plan, Billed: units, Count: late},
		}}
		next := assemble(t, june)
		for _, b := range []invoice.Body{may, next} {
			var sum int64
			for _, l := range b.Lines {
				sum += l.Amount.Minor
			}
			if sum != b.Total.Minor {
				t.Fatalf("lines %+v add up to %d, want %d", b.Lines, sum, b.Total.Minor)
			}
		}
		whole := assemble(t, invoice.Facts{Plan: plan, Period: month(t, "2026-05-01"), Counted: map[string]metering.Count{"m": {Units: units + late.Units, Returned: back.Returned}}})
		if off := may.Total.Minor + next.Total.Minor - plan.Fee.Minor - whole.Total.Minor; off < -1 || off > 1 {
			t.Fatalf("in portions %d and %d, at once %d", may.Total.Minor, next.Total.Minor-plan.Fee.Minor, whole.Total.Minor)
		}
		if next.Total.Minor < plan.Fee.Minor {
			credits++
		}
	})
	if credits == 0 {
		t.Error("no invoice ever had a credit: the property was not tried")
	}
}

// TestMarks guarantees what is on an invoice beside money: what passed unchecked, what a
// wallet paid, and what is known and not billed.
func TestMarks(t *testing.T) {
	t.Parallel()
	b := assemble(t, invoice.Facts{
		Plan:   rating.Plan{ID: "p", Fee: money.Amount{Currency: "USD"}, Included: map[string]int64{"m": 5}, Steps: map[string][]rating.Step{"m": {{Price: price(t, "1")}}}},
		Period: month(t, "2026-06-01"), Lost: 3,
		Counted: map[string]metering.Count{"m": {Calls: 9, Units: 20, Returned: 2, Degraded: 4, Prepaid: 6, Unpriced: 1}},
		Loss:    map[string]invoice.Loss{"m": {Unattributed: 7, SetAside: 8}, "n": {SetAside: 1}},
		TopUps:  []invoice.TopUp{{ID: "t1", Meter: "credits", Units: 50, Reason: "order 17"}},
	})
	want := []account.Counted{
		{Meter: "m", Calls: 9, Consumed: 20, Returned: 2, Degraded: 4, Prepaid: 6, Lost: 3, Unattributed: 7, SetAside: 8, Unpriced: 1},
		{Meter: "n", Lost: 3, SetAside: 1},
	}
	if !reflect.DeepEqual(b.Counted, want) {
		t.Errorf("counted %+v, want %+v", b.Counted, want)
	}
	var kinds []account.LineKind
	degraded := int64(0)
	for _, l := range b.Lines {
		kinds, degraded = append(kinds, l.Kind), degraded+l.Degraded
	}
	if !reflect.DeepEqual(kinds, []account.LineKind{account.IncludedLine, account.UsageLine, account.PrepaidLine, account.TopUpLine}) || degraded != 4 || b.Total.Minor != 700 {
		t.Errorf("lines %+v of %v, want 12 − 5 units priced, 4 degraded said once", b.Lines, b.Total)
	}
}

// TestAnotherCurrency guarantees that what an earlier period's correction comes to in the
// currency that the tenant had then is said and not added to what is billed in another, so
// that it keeps no invoice from being made.
func TestAnotherCurrency(t *testing.T) {
	t.Parallel()
	usd := rating.Plan{ID: "p", Fee: money.Amount{Currency: "USD"}, Steps: map[string][]rating.Step{"m": {{Price: price(t, "0.125")}}}}
	eur := rating.Plan{ID: "q", Fee: money.Amount{Minor: 9000, Currency: "EUR"}}
	b, err := invoice.Assemble(invoice.Facts{Plan: eur, Corrections: []invoice.Correction{
		{Kind: metering.Returned, Meter: "m", Plan: usd, Billed: 10, Corrects: "INV-1", Count: metering.Count{Returned: 5}},
	}})
	if err != nil || len(b.Lines) != 2 || b.Total != eur.Fee {
		t.Fatalf("%+v %v, want the fee and a line without money", b, err)
	}
	if l := b.Lines[1]; l.Amount != (money.Amount{Currency: "EUR"}) || l.Text != "USD -0.62" || l.Corrects != "INV-1" || l.Units != -5 {
		t.Errorf("the line is %+v", l)
	}
}

// TestNoWrongInvoice guarantees that a plan that would mint credit makes no invoice.
func TestNoWrongInvoice(t *testing.T) {
	t.Parallel()
	usd := rating.Plan{ID: "p", Fee: money.Amount{Currency: "USD"}, Steps: map[string][]rating.Step{"m": {{Price: price(t, "1")}}}}
	negative := usd
	negative.Fee.Minor = -1
	for name, f := range map[string]invoice.Facts{
		"negative fee":             {Plan: negative},
		"negative in a correction": {Plan: usd, Corrections: []invoice.Correction{{Kind: metering.LateCall, Meter: "m", Plan: negative}}},
	} {
		if _, err := invoice.Assemble(f); !errors.Is(err, rating.ErrPlan) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNames guarantees the form of numbers and of drafts' ids.
func TestNames(t *testing.T) {
	t.Parallel()
	if got := invoice.Number("INV", 42); got != "INV-0000042" {
		t.Errorf("number %s", got)
	}
	if got := invoice.Number("INV", 12_345_678); got != "INV-12345678" {
		t.Errorf("number %s", got)
	}
	start := time.Date(2026, 5, 31, 21, 0, 0, 0, time.UTC)
	if got, ok := invoice.ParseDraftID(invoice.DraftID(start)); !ok || !got.Equal(start) {
		t.Errorf("draft %v %v", got, ok)
	}
	for _, id := range []string{"", "draft-", "INV-0000001", "draft-2026"} {
		if _, ok := invoice.ParseDraftID(id); ok {
			t.Errorf("%q is a draft", id)
		}
	}
}
