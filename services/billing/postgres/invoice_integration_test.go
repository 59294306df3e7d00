//go:build integration

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
)

// TestIntegrationFC26 guarantees that a customer far east of UTC has one invoice for
// January, whatever hourly job makes it and however often: the run at its midnight, over
// its own month, with the call of the last second in it and the next not.
func TestIntegrationFC26(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.learn(at(t, "2024-01-03T00:00:00Z"), gold(t), tenant("kiwi", "gold", "Pacific/Auckland"))
	end := at(t, "2024-01-31T11:00:00Z")
	r.count(end, r.event("kiwi", end.Add(-time.Second), 7), r.event("kiwi", end, 5))
	other := r.open(0)
	runs := 0
	for hour := at(t, "2024-01-31T09:00:00Z"); !hour.After(at(t, "2024-02-02T12:00:00Z")); hour = hour.Add(time.Hour) {
		runs++
		var wg sync.WaitGroup
		made := make([]int, 2)
		errs := make([]error, 2)
		wg.Go(func() { made[0], errs[0] = r.Finalize(t.Context(), hour) })
		wg.Go(func() { made[1], errs[1] = other.Finalize(t.Context(), hour) })
		wg.Wait()
		want := 0
		if hour.Equal(end) {
			want = 1
		}
		if err := errors.Join(errs...); err != nil || made[0]+made[1] != want {
			t.Errorf("the runs at %v made %v invoices %v, want %d", hour, made, err, want)
		}
	}
	if runs != 52 {
		t.Errorf("%d runs, want 52", runs)
	}
	all, err := r.Invoices(t.Context(), "kiwi", end.Add(49*time.Hour), time.Time{}, 100)
	if err != nil || len(all) != 2 {
		t.Fatalf("invoices %+v %v, want the draft and January's", all, err)
	}
	january := all[1]
	if january.State != account.Final || january.Period.Start != at(t, "2023-12-31T11:00:00Z") || january.Period.End != end || january.IssuedAt != end {
		t.Errorf("January's invoice is %+v", january)
	}
	if c := january.Counted; len(c) != 1 || c[0].Net() != 7 {
		t.Errorf("January counts %+v, want the 7 units before midnight", c)
	}
	if c := all[0].Counted; all[0].State != account.Draft || len(c) != 1 || c[0].Net() != 5 {
		t.Errorf("February's draft is %+v, want the 5 units from midnight on", all[0])
	}
}

// TestIntegrationFC25 guarantees that an anniversary on the last days of a month is billed
// once per period, each for its own days, over five periods: every call, the first and the
// last of each period among them, is on exactly one invoice.
func TestIntegrationFC25(t *testing.T) {
	t.Parallel()
	for begin, bounds := range map[string][]string{
		"2024-01-30": {"2024-01-30", "2024-02-29", "2024-03-30", "2024-04-30", "2024-05-30", "2024-06-30"},
		"2025-01-31": {"2025-01-31", "2025-02-28", "2025-03-31", "2025-04-30", "2025-05-31", "2025-06-30"},
	} {
		t.Run(begin, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			start, last := at(t, begin+"T00:00:00Z"), at(t, bounds[5]+"T00:00:00Z")
			customer := tenant("late", "gold", "UTC")
			customer.Tenant.Anchor = start
			r.learn(start, gold(t), customer)
			made := 0
			for day := start; !day.After(last); day = day.Add(24 * time.Hour) {
				for range 2 {
					made += r.finalize(day)
				}
				r.count(day, r.event("late", day, 1), r.event("late", day.Add(24*time.Hour-time.Microsecond), 1))
			}
			all, err := r.Invoices(t.Context(), "late", last, time.Time{}, 100)
			if err != nil || len(all) != 6 || made != 5 {
				t.Fatalf("%d made and %d invoices %v, want five and the sixth's draft", made, len(all), err)
			}
			for i, inv := range all[1:] {
				n := 4 - i
				from, to := at(t, bounds[n]+"T00:00:00Z"), at(t, bounds[n+1]+"T00:00:00Z")
				if inv.State != account.Final || inv.Period.Start != from || inv.Period.End != to {
					t.Errorf("period %d is %s of %v, want final and %v to %v", n, inv.State, inv.Period, from, to)
				}
				if days := int64(to.Sub(from) / (24 * time.Hour)); len(inv.Counted) != 1 || inv.Counted[0].Net() != 2*days || inv.Total.Minor != 9900 {
					t.Errorf("period %d of %d days counts %+v for %v, want two calls a day and the fee", n, days, inv.Counted, inv.Total)
				}
			}
			if draft := all[0]; draft.Period.Start != last || len(draft.Counted) != 1 || draft.Counted[0].Net() != 2 {
				t.Errorf("the draft is %+v, want the two calls from %v on", draft, last)
			}
		})
	}
}

// TestIntegrationTwentyFinalizers guarantees that twenty processes at once make one
// invoice per tenant and period, with numbers that leave none out.
func TestIntegrationTwentyFinalizers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	start := at(t, "2026-01-10T00:00:00Z")
	r.learn(start, gold(t))
	const tenants = 7
	for i := range tenants {
		id := fmt.Sprintf("t%d", i)
		r.learn(start, tenant(id, "gold", "UTC"))
		r.count(start, r.event(id, start, 150))
	}
	now := at(t, "2026-03-01T00:00:00Z")
	made := make([]int, 20)
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range made {
		s := r.open(0)
		wg.Go(func() { made[i], errs[i] = s.Finalize(t.Context(), now) })
	}
	wg.Wait()
	total := 0
	for _, n := range made {
		total += n
	}
	if err := errors.Join(errs...); err != nil || total != 2*tenants {
		t.Fatalf("made %v invoices %v, want %d in all", made, err, 2*tenants)
	}
	for i, serial := range query[int64](r, `SELECT serial FROM invoices ORDER BY serial`) {
		if serial != int64(i+1) {
			t.Fatalf("number %d is %d: there is a gap", i+1, serial)
		}
	}
	if n := query[int64](r, `SELECT count(*) FROM (SELECT DISTINCT tenant, period_start FROM invoices) d`)[0]; n != 2*tenants {
		t.Errorf("%d periods were invoiced, want %d", n, 2*tenants)
	}
}

// TestIntegrationNoNumberIsLost guarantees that an invoice that cannot be made takes no
// number, and keeps no other tenant from theirs.
func TestIntegrationNoNumberIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	start := at(t, "2026-01-10T00:00:00Z")
	r.learn(start, gold(t), plan(t, "bad", 100, 0, "1", "1"), tenant("a", "bad", "UTC"), tenant("b", "gold", "UTC"))
	r.exec(`ALTER TABLE plans DROP CONSTRAINT plans_fee_not_negative`)
	r.exec(`UPDATE plans SET fee = -1 WHERE id = 'bad'`)
	made, err := r.Finalize(t.Context(), at(t, "2026-02-01T00:00:00Z"))
	if err == nil || made != 1 || !strings.Contains(err.Error(), "tenant a") {
		t.Fatalf("made %d %v, want b's invoice and a's fault", made, err)
	}
	if n := query[string](r, `SELECT number || ' ' || tenant FROM invoices`); len(n) != 1 || n[0] != "INV-0000001 b" {
		t.Errorf("invoices %v", n)
	}
	if _, err := r.Invoices(t.Context(), "a", at(t, "2026-02-01T00:00:00Z"), time.Time{}, 100); err == nil {
		t.Error("a draft with a negative fee is shown")
	}
}

// TestIntegrationFinalIsFinal guarantees that the database itself refuses to change, take
// away, or add to an invoice that is final, and an entry of the ledger.
func TestIntegrationFinalIsFinal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	start := at(t, "2026-01-10T00:00:00Z")
	r.learn(start, gold(t), tenant("acme", "gold", "UTC"), topUp("t1", 100))
	r.finalize(at(t, "2026-02-01T00:00:00Z"))
	if n := query[int64](r, `SELECT count(*) FROM invoice_lines`)[0]; n == 0 {
		t.Fatal("the invoice has no lines")
	}
	for _, sql := range []string{
		`UPDATE invoices SET total = 0`, `DELETE FROM invoices`, `TRUNCATE invoices CASCADE`,
		`UPDATE invoice_lines SET amount = 0`, `DELETE FROM invoice_lines`, `TRUNCATE invoice_lines`,
		`INSERT INTO invoice_lines SELECT number, 99, kind, meter, from_unit, to_unit, units, unit_price, amount, degraded, corrects, of_start, of_end, ref, said FROM invoice_lines LIMIT 1`,
		`UPDATE wallet_entries SET units = 1000`, `DELETE FROM wallet_entries`, `TRUNCATE wallet_entries`,
		`INSERT INTO invoices SELECT number || 'x', tenant, period_start, period_end, issuer, serial + 1, plan, plan_name, zone, currency, total, counted, issued_at FROM invoices`,
	} {
		if _, err := r.conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is not refused", sql)
		}
	}
}

// TestIntegrationInvoice guarantees what a month's invoice says: the fee, the included
// units, each step of the price, what passed unchecked, what was topped up; and that
// asking again gives the same.
func TestIntegrationInvoice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	start := at(t, "2026-06-02T10:00:00Z")
	r.learn(start, gold(t), tenant("acme", "gold", "Europe/Istanbul"), topUp("t1", 100))
	degraded := r.event("acme", start, 20)
	degraded.Verdict = metering.DegradedAllow
	denied := r.event("acme", start, 5)
	denied.Verdict, denied.Status, denied.Rule, denied.Algorithm = metering.Deny, 429, "acme-burst", "gcra"
	r.count(start, r.event("acme", start, 600), degraded, denied)
	now := at(t, "2026-06-30T21:00:00Z") // midnight in Istanbul
	draft, err := r.Invoice(t.Context(), "acme", "draft-20260531T210000Z", now.Add(-time.Second))
	if err != nil || draft.State != account.Draft || !draft.Running(now.Add(-time.Second)) || draft.Number != "" {
		t.Fatalf("draft %+v %v", draft, err)
	}
	if n := r.finalize(now); n != 1 {
		t.Fatalf("%d invoices, want 1", n)
	}
	got, err := r.Invoice(t.Context(), "acme", "INV-0000001", now)
	if err != nil {
		t.Fatal(err)
	}
	// 620 units: 100 in the fee, 400 at 0.10, 120 at 0.05.
	type line struct {
		kind     account.LineKind
		units    int64
		minor    int64
		degraded int64
	}
	want := []line{{"fee", 1, 9900, 0}, {"included", 100, 0, 20}, {"usage", 400, 4000, 0}, {"usage", 120, 600, 0}, {"topup", 100, 0, 0}}
	var lines []line
	for _, l := range got.Lines {
		lines = append(lines, line{l.Kind, l.Units, l.Amount.Minor, l.Degraded})
	}
	if !reflect.DeepEqual(lines, want) || got.Total.Minor != 14500 || got.Total.String() != "USD 145.00" {
		t.Errorf("lines %+v of %v, want %+v", lines, got.Total, want)
	}
	if c := got.Counted; len(c) != 1 || c[0] != (account.Counted{Meter: "api-calls", Calls: 2, Consumed: 620, Degraded: 20}) {
		t.Errorf("counted %+v", c)
	}
	if !reflect.DeepEqual(draft.Lines, got.Lines) || draft.Total != got.Total {
		t.Errorf("the draft said %+v, the invoice %+v", draft.Lines, got.Lines)
	}
	for _, id := range []string{"INV-0000001", "draft-20260531T210000Z", "INV-9999999", "", "draft-"} {
		if _, err := r.Invoice(t.Context(), "other", id, now); !errors.Is(err, account.ErrNotFound) {
			t.Errorf("another tenant asks for %q: %v", id, err)
		}
	}
	for range 10 {
		again, err := r.Invoice(t.Context(), "acme", "INV-0000001", now)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("asked again: %+v %v", again, err)
		}
	}
}

// TestIntegrationLateAndCorrections guarantees that what becomes known of a final period
// is priced by that period's steps and is a line of the next invoice: late calls, units
// given back, settlements; that the final invoice stays as it is; and that what is older
// than 35 days is set aside and counted.
func TestIntegrationLateAndCorrections(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	may := at(t, "2026-05-20T00:00:00Z")
	r.learn(may, gold(t), tenant("acme", "gold", "UTC"))
	first, second := r.event("acme", may, 495), r.event("acme", may, 3)
	second.Counters = []metering.Counter{monthly(3, 498, 0)}
	r.count(may, first, second)
	june := at(t, "2026-06-01T00:00:00Z")
	r.finalize(june)
	before, err := r.Invoice(t.Context(), "acme", "INV-0000001", june)
	if err != nil || before.Total.Minor != 9900+3980 {
		t.Fatalf("May %+v %v", before.Total, err)
	}
	late := r.event("acme", may, 10) // units 499 to 508: two at 0.10, eight at 0.05
	late.Arrived = june.Add(time.Hour)
	refund := corrects(r.event("acme", june.Add(2*time.Hour), 0), first, metering.Refund, 20)
	settled := corrects(r.event("acme", june.Add(3*time.Hour), 0), second, metering.Settle, 5)
	settled.Counters = []metering.Counter{monthly(2, 500, 0)}
	old := r.event("acme", june.Add(-10*24*time.Hour), 9)
	old.Arrived = june.Add(26 * 24 * time.Hour) // 36 days
	// May's refund may come before a June invoice is due, and after.
	result := r.count(june.Add(26*24*time.Hour), late, refund, settled, old, r.event("acme", june.Add(time.Hour), 4))
	if result.Late != 3 || result.Aside != 1 || result.Counted != 5 {
		t.Errorf("became %+v, want 3 lines for May, one set aside", result)
	}
	july := at(t, "2026-07-01T00:00:00Z")
	r.finalize(july)
	got, err := r.Invoice(t.Context(), "acme", "INV-0000002", july)
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		kind     account.LineKind
		units    int64
		minor    int64
		corrects string
	}
	want := []line{
		{"fee", 1, 9900, ""},
		{"included", 4, 0, ""},
		{"late", 10, 60, "INV-0000001"},      // 2 × 0.10 + 8 × 0.05
		{"refund", -20, -160, "INV-0000001"}, // 8 × 0.05 + 12 × 0.10
		{"settlement", 2, 20, "INV-0000001"},
	}
	var lines []line
	for _, l := range got.Lines {
		lines = append(lines, line{l.Kind, l.Units, l.Amount.Minor, l.Corrects})
	}
	if !reflect.DeepEqual(lines, want) || got.Total.Minor != 9820 {
		t.Errorf("lines %+v of %v, want %+v", lines, got.Total, want)
	}
	if c := got.Counted; len(c) != 1 || c[0].SetAside != 9 || c[0].Net() != 4 {
		t.Errorf("counted %+v, want 9 units set aside", c)
	}
	after, err := r.Invoice(t.Context(), "acme", "INV-0000001", july)
	if err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("the final invoice became %+v %v", after, err)
	}
	if lines := got.Lines; lines[2].Of != before.Period {
		t.Errorf("the late line is of %v, want %v", lines[2].Of, before.Period)
	}
}

// monthly is a quota counter of May.
func monthly(units, consumed, refunded int64) metering.Counter {
	return metering.Counter{
		Key: "{t:acme}:e:q:t:api-calls:g:1month:may", Meter: "api-calls", Rule: "acme-month", Enforced: true, Observed: true,
		Start: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), Limit: 1000,
		Units: units, Consumed: consumed, Refunded: refunded,
	}
}

// TestIntegrationR2 guarantees that a call of March that is given back in April's first
// seconds is taken off March, and off nothing of April.
func TestIntegrationR2(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	march := at(t, "2026-03-20T12:00:00Z")
	r.learn(march, gold(t), tenant("acme", "gold", "America/New_York"))
	seven := r.event("acme", march, 7)
	april := at(t, "2026-04-01T04:00:00Z")
	r.count(april.Add(time.Second), r.event("acme", march, 493), seven, r.event("acme", april.Add(time.Second), 20))
	r.count(april.Add(3*time.Second), corrects(r.event("acme", april.Add(3*time.Second), 0), seven, metering.Refund, 7))
	all, err := r.Invoices(t.Context(), "acme", april.Add(time.Minute), time.Time{}, 100)
	if err != nil || len(all) != 2 {
		t.Fatalf("invoices %+v %v", all, err)
	}
	if p1, p2 := all[1].Counted[0].Net(), all[0].Counted[0].Net(); p1 != 493 || p2 != 20 {
		t.Errorf("P1 has %d and P2 %d, want 493 and 20", p1, p2)
	}
}

// TestIntegrationInvoicesByPages guarantees that pages of any size lead through drafts and
// invoices once, the newest first.
func TestIntegrationInvoicesByPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.learn(at(t, "2026-03-10T00:00:00Z"), gold(t), tenant("acme", "gold", "UTC"))
	r.finalize(at(t, "2026-05-02T00:00:00Z"))
	now := at(t, "2026-06-10T00:00:00Z") // May is due, and not final yet
	want := []string{"draft 2026-06-01", "draft 2026-05-01", "final 2026-04-01", "final 2026-03-01"}
	for most := 1; most <= len(want)+1; most++ {
		var got []string
		for before := (time.Time{}); ; {
			page, err := r.Invoices(t.Context(), "acme", now, before, most)
			if err != nil || len(page) > most {
				t.Fatalf("a page of %d: %+v %v", most, page, err)
			}
			if len(page) == 0 {
				break
			}
			for _, i := range page {
				got = append(got, string(i.State)+" "+i.Period.Start.Format(time.DateOnly))
			}
			before = page[len(page)-1].Period.Start
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v, want %v", most, got, want)
		}
	}
}

// TestIntegrationDeletedTenant guarantees that a tenant that was deleted owes no fee for
// periods that begin after: what comes back of an earlier one is a credit, a call that
// slips through costs its price, and who is made again months later has no invoices of the
// months between.
func TestIntegrationDeletedTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := func(id string) catalog.Change {
		return catalog.Change{Kind: catalog.KindTenant, ID: id, Deleted: true}
	}
	march := at(t, "2026-03-10T00:00:00Z")
	r.learn(march, gold(t), tenant("back", "gold", "UTC"), tenant("refunded", "gold", "UTC"), tenant("late", "gold", "UTC"))
	call := r.event("refunded", march, 150)
	r.count(march, call)
	r.learn(at(t, "2026-03-20T00:00:00Z"), gone("back"), gone("refunded"), gone("late"))
	april := at(t, "2026-04-01T00:00:00Z")
	r.finalize(april)
	r.count(april, corrects(r.event("refunded", april, 50), call, metering.Refund, 50), r.event("late", april, 103))
	r.finalize(at(t, "2026-05-01T00:00:00Z"))
	july := at(t, "2026-07-05T00:00:00Z")
	r.learn(july, tenant("back", "gold", "UTC"))
	r.finalize(july)
	r.finalize(at(t, "2026-08-01T00:00:00Z"))
	for id, want := range map[string]string{
		"back":     "2026-07-01 99.00, 2026-03-01 99.00",
		"refunded": "2026-04-01 -5.00, 2026-03-01 104.00",
		"late":     "2026-04-01 0.30, 2026-03-01 99.00",
	} {
		all, err := r.Invoices(t.Context(), id, at(t, "2026-08-01T00:00:00Z"), time.Time{}, 100)
		var got []string
		for _, i := range all {
			if i.State == account.Final {
				got = append(got, i.Period.Start.Format(time.DateOnly)+" "+i.Total.Decimal())
			}
		}
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("%s has %v %v, want %s", id, got, err, want)
		}
	}
	books, err := r.Snapshot(t.Context(), july)
	if err != nil || len(books.Report.Faults) != 0 {
		t.Errorf("the proof of the books: %+v %v", books.Report.Faults, err)
	}
}

// TestIntegrationUnknownPlan guarantees that a tenant whose plan was set aside, as one with
// a price that is none is, has no invoice until the plan is known, and then the right one.
func TestIntegrationUnknownPlan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	june := at(t, "2026-06-15T12:00:00Z")
	r.learn(june, tenant("acme", "gold", "UTC"))
	r.count(june, r.event("acme", june, 150))
	july := at(t, "2026-07-01T00:00:00Z")
	if made, err := r.Finalize(t.Context(), july); made != 0 || !errors.Is(err, rating.ErrPlan) {
		t.Errorf("%d invoices of a plan that is not known: %v", made, err)
	}
	r.learn(june, gold(t))
	if made := r.finalize(july); made != 1 {
		t.Errorf("%d invoices once it is known", made)
	}
	all, err := r.Invoices(t.Context(), "acme", july, time.Time{}, 100)
	if err != nil || len(all) != 2 || all[1].Total.Minor != 10400 {
		t.Errorf("invoices %+v %v, want 104.00 of June", all, err)
	}
}

// TestIntegrationDeletedTenantRests guarantees that a deleted tenant is not looked at any
// more once its last period is final: there may be many of them.
func TestIntegrationDeletedTenantRests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	march := at(t, "2026-03-10T00:00:00Z")
	r.learn(march, gold(t), tenant("acme", "gold", "UTC"))
	r.learn(march.Add(time.Hour), catalog.Change{Kind: catalog.KindTenant, ID: "acme", Deleted: true})
	may := at(t, "2026-05-10T00:00:00Z")
	if made := r.finalize(may); made != 1 {
		t.Errorf("%d invoices were made, want March's", made)
	}
	r.exec(`BEGIN; SELECT FROM accounts WHERE tenant = 'acme' FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := r.Finalize(ctx, may); err != nil {
		t.Errorf("a tenant that was deleted in March is looked at in May: %v", err)
	}
}
