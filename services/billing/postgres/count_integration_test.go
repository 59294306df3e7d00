//go:build integration

package postgres_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/billing/reconcile"
	"penstock.dev/services/internal/period"
)

// TestIntegrationGaps guarantees that numbers that do not come are missing, lost after 10
// minutes and on the invoice; that they are not once they come after all; and that a
// partition that was first read behind the topic's beginning misses only what it passed over.
func TestIntegrationGaps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "UTC"))
	var all []metering.Event
	for range 10 {
		all = append(all, r.event("acme", now, 1))
	}
	lost := func(when time.Time) int64 {
		t.Helper()
		d, err := r.Invoice(t.Context(), "acme", "draft-20260601T000000Z", when)
		if err != nil || len(d.Counted) != 1 {
			t.Fatalf("draft %+v %v", d, err)
		}
		return d.Counted[0].Lost
	}
	if got := r.count(now, append(all[:3:3], all[7:]...)...); got.Missing != 4 || got.Counted != 6 {
		t.Errorf("became %+v, want 4 missing", got)
	}
	if soon, later := lost(now.Add(9*time.Minute)), lost(now.Add(11*time.Minute)); soon != 0 || later != 4 {
		t.Errorf("%d and later %d are lost, want 0 and 4", soon, later)
	}
	if got := r.count(now.Add(time.Hour), all[4], all[4], all[0]); got.Missing != -1 || got.Counted != 1 || got.Repeats != 2 {
		t.Errorf("one that comes after all: %+v", got)
	}
	if got := lost(now.Add(2 * time.Hour)); got != 3 {
		t.Errorf("%d are lost, want 3", got)
	}
	if n := query[int64](r, `SELECT count(*) FROM gaps`)[0]; n != 2 {
		t.Errorf("%d holes, want 2", n)
	}
	if got := r.count(now.Add(time.Hour), all[3], all[5], all[6]); got.Missing != -3 || lost(now.Add(2*time.Hour)) != 0 {
		t.Errorf("all came: %+v", got)
	}
	late := r.event("acme", now, 1)
	late.Partition, late.Stream, late.Sequence = 5, metering.ID{5}, 1000
	r.offset[5] = 77 // the topic has forgotten what was before
	if got := r.count(now, late); got.Missing != 0 {
		t.Errorf("a partition without its beginning: %+v", got)
	}
	late.Sequence = 1003
	if got := r.count(now, late); got.Missing != 2 || got.Skipped != 0 {
		t.Errorf("and what it passed over: %+v", got)
	}
	r.offset[5] += 40 // billing was away for longer than the topic keeps records
	late.Sequence = 1044
	if got := r.count(now, late); got.Missing != 40 || got.Skipped != 40 {
		t.Errorf("what the topic deleted: %+v, want 40", got)
	}
	r.offset[5] = 0 // made anew
	late.Sequence = 1045
	if got := r.count(now, late); got.Skipped != 0 || got.Counted != 1 {
		t.Errorf("a topic that was made anew: %+v", got)
	}
}

// TestIntegrationTwoReaders guarantees that two processes that both believe a partition
// theirs count each event once between them, whatever they read and in which batches.
func TestIntegrationTwoReaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "UTC"), topUp("t1", 1000))
	var all []metering.Event
	for i := range int64(400) {
		all = append(all, pays(r.event("acme", now, 1), 1, i+1, 0))
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	counted := make([]int, 2)
	for i, size := range []int{7, 31} {
		s := r.open(0)
		wg.Go(func() {
			for from := 0; from < len(all) && errs[i] == nil; from += size {
				batch := all[from:min(from+size, len(all))]
				var got metering.Result
				got, errs[i] = s.Count(t.Context(), batch, []metering.Position{{Next: int64(from + len(batch)), At: now}}, now)
				counted[i] += got.Counted
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil || counted[0]+counted[1] != len(all) {
		t.Fatalf("counted %v %v, want %d in all", counted, err, len(all))
	}
	if w := r.wallet(); w.Balance() != 600 || w.Consumed != 400 {
		t.Errorf("the wallet is %+v", w)
	}
	if n := query[int64](r, `SELECT sum(calls)::bigint FROM usage WHERE meter = 'api-calls'`)[0]; n != 400 {
		t.Errorf("%d calls are counted, want 400", n)
	}
}

// TestIntegrationCountingWhileFinal guarantees that each event is on exactly one invoice
// while periods become final in the middle of it: in its period's, or a late line's.
func TestIntegrationCountingWhileFinal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	june := at(t, "2026-06-20T00:00:00Z")
	p := gold(t)
	p.Plan.Included = nil
	r.learn(june, p)
	const tenants, each = 10, 20
	var events [][]metering.Event
	for i := range tenants {
		id := string(rune('a' + i))
		r.learn(june, tenant(id, "gold", "UTC"))
		var mine []metering.Event
		for range each {
			mine = append(mine, r.event(id, june, 1))
		}
		events = append(events, mine)
	}
	july := at(t, "2026-07-01T00:00:00Z")
	var wg sync.WaitGroup
	var counting, closing error
	wg.Go(func() {
		for n := range each {
			for i := range events {
				if counting == nil {
					_, counting = r.Count(t.Context(), events[i][n:n+1], []metering.Position{{Next: 1, At: june}}, july)
				}
			}
		}
	})
	other := r.open(0)
	wg.Go(func() {
		for range 20 {
			if closing == nil {
				_, closing = other.Finalize(t.Context(), july)
			}
		}
	})
	wg.Wait()
	if err := errors.Join(counting, closing); err != nil {
		t.Fatal(err)
	}
	r.finalize(at(t, "2026-08-01T00:00:00Z"))
	billed := query[int64](r, `SELECT coalesce(sum(units), 0)::bigint FROM invoice_lines WHERE kind IN ('usage', 'late')`)[0]
	if billed != tenants*each {
		t.Errorf("%d units are on invoices, want %d", billed, tenants*each)
	}
	books, err := r.Snapshot(t.Context(), july)
	if err != nil || len(books.Report.Faults) != 0 || books.Report.Invoices != 2*tenants {
		t.Errorf("the proof of the books: %+v %v", books.Report, err)
	}
}

// TestIntegrationReads guarantees what a tenant sees: days of its own zone, endpoints by
// their paths, quotas with their resets, cuts with their reasons, and nothing of another's.
func TestIntegrationReads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T21:30:00Z") // half past midnight of the 16th in Istanbul
	r.learn(now, gold(t), tenant("acme", "gold", "Europe/Istanbul"), tenant("other", "gold", "UTC"),
		catalog.Change{Kind: catalog.KindEndpoint, ID: "pay", Endpoint: &catalog.Endpoint{Service: "payments", Method: "POST", Path: "/v1/pay", Cost: 2}},
		catalog.Change{Kind: catalog.KindRule, ID: "acme-month", Rule: &catalog.Rule{
			Name: "API calls a month", Kind: "quota", Algorithm: "quota", Meter: "api-calls", Limit: 1000, Subject: []string{"tenant", "user"}, Thresholds: []int{80, 100}, Unit: period.Month, Count: 1,
		}})
	call := r.event("acme", now, 2)
	call.User = "u1"
	call.Counters = []metering.Counter{monthlyOf(2, 850, 10)}
	yesterday := r.event("acme", now.Add(-time.Hour), 3)
	cut := r.event("acme", now, 5)
	cut.Verdict, cut.Status, cut.Rule, cut.Algorithm = metering.Deny, 429, "acme-month", "quota"
	gone := cut
	gone.Stream, gone.Sequence, gone.Rule, gone.Algorithm, gone.At = metering.ID{9}, 1, "deleted", "gcra", now.Add(-time.Minute)
	r.count(now, call, yesterday, cut, gone, r.event("other", now, 100))

	span := period.Span{Start: now.Add(-time.Hour), End: now.Add(time.Second)}
	u, err := r.Usage(t.Context(), "acme", span)
	if err != nil || len(u.Days) != 2 || u.CountedTo != now || u.Zone.String() != "Europe/Istanbul" {
		t.Fatalf("usage %+v %v", u, err)
	}
	want := account.UsageDay{Day: at(t, "2026-06-15T21:00:00Z"), Meter: "api-calls", Application: "web", Service: "payments", Endpoint: "pay", Method: "POST", Path: "/v1/pay", Calls: 1, Units: 2}
	if u.Days[1] != want || u.Days[0].Units != 3 || u.Days[0].Day != at(t, "2026-06-14T21:00:00Z") {
		t.Errorf("days %+v", u.Days)
	}
	if k, err := r.KeyUsage(t.Context(), "acme", "acme-1", span); err != nil || len(k.Days) != 2 {
		t.Errorf("the key's usage %+v %v", k, err)
	}
	if k, err := r.KeyUsage(t.Context(), "acme", "other-1", span); err != nil || len(k.Days) != 0 {
		t.Errorf("another key's usage %+v %v", k, err)
	}
	q, err := r.Quotas(t.Context(), "acme", now)
	if err != nil || len(q) != 1 || q[0].Used() != 840 || q[0].Left() != 160 || q[0].Name != "API calls a month" || q[0].User != "u1" || q[0].Application != "" ||
		!reflect.DeepEqual(q[0].Thresholds, []int{80, 100}) || q[0].Period.End != at(t, "2026-06-30T21:00:00Z") || q[0].Unit != period.Month {
		t.Errorf("quotas %+v %v", q, err)
	}
	if q, err := r.Quotas(t.Context(), "acme", at(t, "2026-07-01T00:00:00Z")); err != nil || len(q) != 0 {
		t.Errorf("quotas of a month that nothing came in: %+v %v", q, err)
	}
	c, err := r.Cuts(t.Context(), "acme", span)
	if err != nil || len(c) != 2 || c[0].Reason != account.QuotaUsedUp || c[0].Limit != 1000 || c[0].Path != "/v1/pay" || c[0].LastSeen != now || c[1].Reason != account.TooFast || c[1].Limit != 0 {
		t.Errorf("cuts %+v %v", c, err)
	}
	r.learn(now.Add(time.Second), catalog.Change{Kind: catalog.KindRule, ID: "acme-month", Rule: &catalog.Rule{Name: "Calls", Kind: "quota", Algorithm: "quota", Limit: 1000}})
	if c, err := r.Cuts(t.Context(), "acme", span); err != nil || len(c) != 2 || c[0].Limit != 1000 || c[0].RuleName != "Calls" {
		t.Errorf("cuts by a rule that was renamed since do not tell its limit: %+v %v", c, err)
	}
	r.learn(now.Add(time.Minute), catalog.Change{Kind: catalog.KindRule, ID: "acme-month", Rule: &catalog.Rule{Kind: "quota", Algorithm: "quota", Limit: 5000}})
	if c, err := r.Cuts(t.Context(), "acme", span); err != nil || len(c) != 2 || c[0].Limit != 0 {
		t.Errorf("cuts by a rule that was changed since tell its limit of now: %+v %v", c, err)
	}
	r.learn(now.Add(2*time.Minute), catalog.Change{Kind: catalog.KindRule, ID: "acme-month", Deleted: true})
	if q, err := r.Quotas(t.Context(), "acme", now); err != nil || len(q) != 0 {
		t.Errorf("quotas of a rule that is deleted: %+v %v", q, err)
	}
	p, err := r.Profile(t.Context(), "acme")
	if err != nil || p.Plan != "gold" || p.PlanName != "gold" || p.Currency != "USD" || p.Period.Start != at(t, "2026-05-31T21:00:00Z") || p.CountedTo != now {
		t.Errorf("profile %+v %v", p, err)
	}
	for _, who := range []string{"nobody", ""} {
		u, err1 := r.Usage(t.Context(), who, span)
		i, err2 := r.Invoices(t.Context(), who, now, time.Time{}, 100)
		w, err3 := r.Wallets(t.Context(), who, now)
		if _, err4 := r.Profile(t.Context(), who); errors.Join(err1, err2, err3, err4) != nil || len(u.Days)+len(i)+len(w) != 0 {
			t.Errorf("%q has %+v %+v %+v %v", who, u, i, w, errors.Join(err1, err2, err3, err4))
		}
	}
}

func monthlyOf(units, consumed, refunded int64) metering.Counter {
	c := monthly(units, consumed, refunded)
	c.Start, c.End = time.Date(2026, 5, 31, 21, 0, 0, 0, time.UTC), time.Date(2026, 6, 30, 21, 0, 0, 0, time.UTC)
	return c
}

// TestIntegrationUnattributed guarantees that units that a counter has beyond its events
// are told and not billed, and none where every event came.
func TestIntegrationUnattributed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "Europe/Istanbul"))
	first, second := r.event("acme", now, 4), r.event("acme", now, 6)
	first.Counters, second.Counters = []metering.Counter{monthlyOf(4, 4, 0)}, []metering.Counter{monthlyOf(6, 10, 0)}
	unattributed := func() int64 {
		t.Helper()
		d, err := r.Invoice(t.Context(), "acme", "draft-20260531T210000Z", now)
		if err != nil || len(d.Counted) != 1 {
			t.Fatalf("draft %+v %v", d, err)
		}
		return d.Counted[0].Unattributed
	}
	r.count(now, first, second)
	if got := unattributed(); got != 0 {
		t.Errorf("%d unattributed, want 0: every event came", got)
	}
	third := r.event("acme", now, 1)
	third.Counters = []metering.Counter{monthlyOf(1, 18, 0)} // 7 were charged and never told
	r.count(now, third)
	if got := unattributed(); got != 7 {
		t.Errorf("%d unattributed, want 7", got)
	}
}

// TestIntegrationTerms guarantees that a change of zone lets the running period end as it
// was promised and the next begin there, and that a deleted tenant is billed up to its end.
func TestIntegrationTerms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	begin := at(t, "2026-01-10T00:00:00Z")
	r.learn(begin, gold(t), tenant("mover", "gold", "UTC"), tenant("leaver", "gold", "UTC"))
	moved := tenant("mover", "gold", "America/New_York")
	change := at(t, "2026-02-10T00:00:00Z")
	moved.Tenant.Former = []catalog.Former{{Zone: "UTC", Until: change}}
	r.finalize(change)
	r.learn(change, moved, catalog.Change{Kind: catalog.KindTenant, ID: "leaver", Deleted: true})
	r.finalize(at(t, "2026-05-02T00:00:00Z"))
	bounds := query[time.Time](r, `SELECT period_end FROM invoices WHERE tenant = 'mover' ORDER BY period_end`)
	want := []string{"2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-04-01T04:00:00Z", "2026-05-01T04:00:00Z"}
	if len(bounds) != len(want) {
		t.Fatalf("invoices end at %v, want %v", bounds, want)
	}
	for i := range want {
		if !bounds[i].Equal(at(t, want[i])) {
			t.Errorf("invoice %d ends at %v, want %s", i, bounds[i].UTC(), want[i])
		}
	}
	if n := query[int64](r, `SELECT count(*) FROM invoices WHERE tenant = 'leaver'`)[0]; n != 2 {
		t.Errorf("%d invoices of a tenant that was deleted in February, want January's and February's", n)
	}
}

// TestIntegrationOldTenants guarantees that a tenant that billing hears of late is not
// billed for what was before.
func TestIntegrationOldTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T00:00:00Z")
	old := tenant("old", "gold", "UTC")
	old.Version, old.At = 1, at(t, "2024-01-01T00:00:00Z")
	p := gold(t)
	p.Version, p.At = 1, old.At
	if err := r.Learn(t.Context(), []catalog.Change{p, old}, now); err != nil {
		t.Fatal(err)
	}
	r.finalize(at(t, "2026-07-01T00:00:00Z"))
	if got := query[time.Time](r, `SELECT period_start FROM invoices`); len(got) != 1 || !got[0].Equal(at(t, "2026-06-01T00:00:00Z")) {
		t.Errorf("invoices begin at %v, want June alone", got)
	}
}

// TestIntegrationTend guarantees that due invoices are made at every tick, that what the
// books say is reported, and that a database that is not there is said to be away.
func TestIntegrationTend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "UTC"))
	events := []metering.Event{r.event("acme", now, 1), r.event("acme", now, 1), r.event("acme", now, 1)}
	r.count(now, events[0], events[2])
	r.exec(`UPDATE streams SET seen_at = seen_at - interval '385 days'`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var states []postgres.State
	made := 0
	july := func() time.Time { return at(t, "2026-07-01T00:00:00Z") }
	behind := func() time.Time { // June is not counted to its end until the second look
		if len(states) == 0 {
			return july().Add(-time.Second)
		}
		return july()
	}
	err := r.Tend(ctx, time.Millisecond, july, behind, func(n int, s postgres.State, err error) {
		if err != nil {
			t.Error(err)
		}
		made += n
		if len(states) == 0 && (n != 0 || s.Overdue != 1) {
			t.Errorf("while June is not counted %d invoices are made: %+v", n, s)
		}
		if states = append(states, s); len(states) == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || made != 1 || states[2] != (postgres.State{Missing: 1, Lost: 1, Accounts: 1}) {
		t.Errorf("tended %d %+v %v", made, states, err)
	}
	if n := query[int64](r, `SELECT count(*) FROM streams`)[0]; n != 0 {
		t.Errorf("%d streams are known 400 days after their last event", n)
	}
	away, err := postgres.Open(t.Context(), postgres.Config{URL: "postgres://127.0.0.1:1/none", MaxConns: 1}, r.log())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = away.Close() }()
	if _, err := away.Invoices(t.Context(), "acme", now, time.Time{}, 100); !errors.Is(err, account.ErrUnavailable) {
		t.Errorf("a database that is away: %v", err)
	}
	if _, err := away.Count(t.Context(), nil, nil, now); !errors.Is(err, account.ErrUnavailable) {
		t.Errorf("a database that is away: %v", err)
	}
}

// TestIntegrationSnapshot guarantees that the proof of the books finds an invoice whose
// counts were changed behind it.
func TestIntegrationSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "UTC"))
	r.count(now, r.event("acme", now, 300))
	r.finalize(at(t, "2026-07-01T00:00:00Z"))
	books, err := r.Snapshot(t.Context(), now)
	if err != nil || len(books.Report.Faults) != 0 || books.Report.Invoices != 1 {
		t.Fatalf("report %+v %v", books.Report, err)
	}
	line := reconcile.Line{Tenant: "acme", Meter: "api-calls", Period: at(t, "2026-06-01T00:00:00Z"), Day: at(t, "2026-06-15T00:00:00Z")}
	if got := books.Lines[line]; got.Units != 300 || len(books.Lines) != 1 {
		t.Errorf("lines %+v", books.Lines)
	}
}

// TestIntegrationSnapshotFindsDrift guarantees that whatever is changed in the books behind
// the service's back is found: counts, lines that still add up, invoices that are missing,
// and both sides of a wallet.
func TestIntegrationSnapshotFindsDrift(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "UTC"), topUp("t1", 100))
	export := r.event("acme", now, 500)
	export.Counters = []metering.Counter{monthlyOf(5, 5, 0)}
	export.Counters[0].Meter = "exports" // of which the plan has no price
	r.count(now, export, pays(r.event("acme", now, 3), 3, 3, 0))
	r.finalize(at(t, "2026-07-01T00:00:00Z"))
	faults := func() []reconcile.Fault {
		books, err := r.Snapshot(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		return books.Report.Faults
	}
	if got := faults(); len(got) != 0 {
		t.Fatalf("books that nobody touched have %+v", got)
	}
	tables := []string{"usage", "periods", "invoices", "invoice_lines", "grants", "wallets", "wallet_entries"}
	for _, table := range tables {
		r.exec(`ALTER TABLE ` + table + ` DISABLE TRIGGER USER`)
		r.exec(`CREATE TABLE kept_` + table + ` AS TABLE ` + table)
	}
	for _, drift := range []string{
		`UPDATE usage SET units = units - 100 WHERE meter = 'api-calls'`,
		`UPDATE usage SET units = units + 5, returned = returned + 5 WHERE meter = 'api-calls'`,
		`UPDATE usage SET calls = calls + 1 WHERE meter = 'exports'`,
		`UPDATE usage SET degraded = 1 WHERE meter = 'api-calls'`,
		`UPDATE usage SET prepaid = prepaid + 1 WHERE meter = 'credits'`,
		`UPDATE usage SET unpriced = 1 WHERE meter = 'exports'`,
		`DELETE FROM usage WHERE meter = 'exports'`,
		`UPDATE invoice_lines SET units = units + 1 WHERE position = 2`,
		`UPDATE invoice_lines SET unit_price = '77' WHERE position = 3`,
		`UPDATE invoice_lines SET amount = amount + CASE position WHEN 1 THEN 100 ELSE -100 END WHERE position IN (1, 3)`,
		`DELETE FROM invoice_lines WHERE kind = 'included'`,
		`UPDATE invoices SET counted = '[]'`,
		`UPDATE invoices SET total = total + 1`,
		`UPDATE invoices SET currency = 'EUR'`,
		`UPDATE invoices SET serial = 7`,
		`DELETE FROM invoice_lines; DELETE FROM invoices`,
		`UPDATE periods SET final = false`,
		`UPDATE grants SET spent = 50`,
		`UPDATE wallets SET spread = 50`,
		`UPDATE wallets SET consumed = consumed + 1, refunded = refunded + 1`,
		`UPDATE wallet_entries SET units = units - 1 WHERE kind = 'debit'`,
		`DELETE FROM wallet_entries WHERE kind = 'topup'`,
		`DELETE FROM wallets`,
	} {
		r.exec(drift)
		if len(faults()) == 0 {
			t.Errorf("nothing is found after %s", drift)
		}
		for _, table := range slices.Backward(tables) {
			r.exec(`DELETE FROM ` + table)
		}
		for _, table := range tables {
			r.exec(`INSERT INTO ` + table + ` OVERRIDING SYSTEM VALUE TABLE kept_` + table)
		}
	}
	if got := faults(); len(got) != 0 {
		t.Errorf("books that were put right have %+v", got)
	}
}

// TestIntegrationQuietStream guarantees that a gateway that sent nothing of a partition for
// months has lost nothing, and that what it sent before is known when it comes again.
func TestIntegrationQuietStream(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	march := at(t, "2026-03-02T00:00:00Z")
	first := r.event("acme", march, 1)
	r.count(march, first, r.event("acme", march, 1))
	for _, later := range []time.Time{march.AddDate(0, 0, 20), march.AddDate(0, 6, 0)} {
		ctx, stop := context.WithCancel(t.Context())
		clock := func() time.Time { return later }
		if err := r.Tend(ctx, time.Hour, clock, clock, func(int, postgres.State, error) { stop() }); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if got := r.count(later, r.event("acme", later, 1), first); got.Missing != 0 || got.Counted != 1 || got.Repeats != 1 {
			t.Errorf("at %v the stream goes on as %+v, want one new, one repeat and none missing", later, got)
		}
	}
}

// TestIntegrationOutOfTimeBeginsNothing guarantees that a tenant of whom the first that is
// heard comes from a clock years ahead is billed from now on, as any other.
func TestIntegrationOutOfTimeBeginsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	march := at(t, "2026-03-02T00:00:00Z")
	ahead := r.event("acme", march.AddDate(10, 0, 0), 1)
	ahead.Arrived = march
	r.count(march, ahead)
	r.learn(march, gold(t), tenant("acme", "gold", "UTC"))
	r.count(march, r.event("acme", march, 200))
	if made := r.finalize(at(t, "2026-04-01T00:00:00Z")); made != 1 {
		t.Errorf("%d invoices were made, want March's", made)
	}
}

// TestIntegrationZoneChangeKeepsDays guarantees that the proof of the books places what was
// counted before a tenant's zone changed into the days that it was counted into.
func TestIntegrationZoneChangeKeepsDays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.learn(at(t, "2026-06-01T00:00:00Z"), gold(t), tenant("acme", "gold", "UTC"))
	call := r.event("acme", at(t, "2026-06-03T22:30:00Z"), 1)
	r.count(call.At, call)
	moved := tenant("acme", "gold", "Europe/Istanbul")
	moved.Tenant.Former = []catalog.Former{{Zone: "UTC", Until: at(t, "2026-06-10T06:00:00Z")}}
	r.learn(at(t, "2026-06-10T06:00:00Z"), moved)
	later := r.event("acme", at(t, "2026-06-11T22:30:00Z"), 1)
	r.count(later.At, later)
	books, err := r.Snapshot(t.Context(), later.At)
	if err != nil {
		t.Fatal(err)
	}
	for day, e := range map[string]metering.Event{"2026-06-03T00:00:00Z": call, "2026-06-11T21:00:00Z": later} {
		place, err := books.Place("acme", e.At)
		line := reconcile.Line{Tenant: "acme", Meter: "api-calls", Period: place.Period, Day: place.Day}
		if err != nil || place.Day != at(t, day) || books.Lines[line].Calls != 1 {
			t.Errorf("the call at %v is placed %+v %v beside %+v, want the day %s", e.At, place, err, books.Lines, day)
		}
	}
}

// TestIntegrationCutsHold guarantees that refusals of numbers without measure, batch after
// batch, keep no event from being counted.
func TestIntegrationCutsHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	for range 2 {
		var refused []metering.Event
		for range 1500 {
			e := r.event("acme", now, 1<<53-1)
			e.Verdict, e.Status = metering.Deny, 429
			refused = append(refused, e)
		}
		r.count(now, refused...)
	}
	cuts, err := r.Cuts(t.Context(), "acme", period.Span{Start: now.Add(-time.Hour), End: now.Add(time.Hour)})
	if err != nil || len(cuts) != 1 || cuts[0].Calls != 3000 || cuts[0].Units != math.MaxInt64 {
		t.Errorf("cuts %+v %v", cuts, err)
	}
}

// TestIntegrationRunningPeriod guarantees that a call of a clock that is ahead does not make
// the next period the running one.
func TestIntegrationRunningPeriod(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := time.Now().UTC()
	hourly := plan(t, "hourly", 100, 0, "", "")
	hourly.Plan.Period = period.Hour
	r.learn(now, hourly, tenant("acme", "hourly", "UTC"))
	ahead := r.event("acme", now.Add(3*time.Hour), 1)
	ahead.Arrived = now
	r.count(now, r.event("acme", now, 1), ahead)
	p, err := r.Profile(t.Context(), "acme")
	if err != nil || p.Period.Start.After(time.Now()) || len(query[time.Time](r, `SELECT start_at FROM periods`)) != 2 {
		t.Errorf("the running period is %v %v", p.Period, err)
	}
}

// TestIntegrationDeletedPlan guarantees that a plan that was deleted goes on to say how long
// periods are, as it goes on to price them.
func TestIntegrationDeletedPlan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	hourly := plan(t, "hourly", 100, 0, "", "")
	hourly.Plan.Period = period.Hour
	r.learn(now, hourly, tenant("acme", "hourly", "UTC"))
	r.learn(now.Add(time.Minute), catalog.Change{Kind: catalog.KindPlan, ID: "hourly", Deleted: true})
	if made := r.finalize(now.Add(3 * time.Hour)); made != 3 {
		t.Errorf("%d invoices of three hours", made)
	}
}

// TestIntegrationReadFromBefore guarantees that books that begin in the middle of the topic,
// as new ones of a group that had read on do, count what came before when the group's
// offsets are set back: each event once, with nothing missing and nothing unattributed.
func TestIntegrationReadFromBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-15T12:00:00Z")
	r.learn(now, gold(t), tenant("acme", "gold", "UTC"))
	var all []metering.Event
	for i := range int64(10) {
		e := r.event("acme", now, 1)
		e.Counters = []metering.Counter{monthlyOf(1, i+1, 0)}
		all = append(all, e)
	}
	r.offset[0] = 5
	if got := r.count(now, all[5:]...); got.Counted != 5 || got.Missing != 0 {
		t.Errorf("from the middle on: %+v", got)
	}
	r.offset[0] = 0
	if got := r.count(now, all[:7]...); got.Counted != 5 || got.Repeats != 2 || got.Missing != 0 {
		t.Errorf("from the beginning: %+v", got)
	}
	r.offset[0] = 0
	if got := r.count(now, all...); got.Repeats != 10 {
		t.Errorf("and once more: %+v", got)
	}
	books, err := r.Snapshot(t.Context(), now.Add(time.Hour))
	if err != nil || books.First[0] != 0 || books.Report.Lost != 0 || len(books.Report.Totals) != 1 || books.Report.Totals[0].Net != 10 || books.Report.Totals[0].Unattributed != 0 {
		t.Errorf("the books: first %v, %+v %v", books.First, books.Report, err)
	}
}
