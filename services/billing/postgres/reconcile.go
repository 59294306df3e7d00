package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/billing/reconcile"
	"penstock.dev/services/internal/period"
)

// A Snapshot is the books at one instant, to be proven.
type Snapshot struct {
	Next   map[int32]int64 // offset that each partition is counted up to
	First  map[int32]int64 // where counting began
	Lines  map[reconcile.Line]reconcile.Sum
	Report reconcile.Report // faults of invoices and wallets, and the numbers
	placer map[string]*invoice.Placer
}

// Snapshot reads the books, and proves what can be proven without the events: that every
// invoice says what was counted and what its lines cost, and that every wallet is the sum
// of its entries. A Snapshot is a metering.Calendar of the periods that are in the books.
func (s *Store) Snapshot(ctx context.Context, now time.Time) (*Snapshot, error) {
	out := &Snapshot{Next: map[int32]int64{}, First: map[int32]int64{}, Lines: map[reconcile.Line]reconcile.Sum{}}
	err := s.read(ctx, "snapshot", func(tx pgx.Tx) error {
		// A big account takes longer than one statement of a request may.
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '10min'; SET LOCAL idle_in_transaction_session_timeout = '10min'`); err != nil {
			return err
		}
		for _, load := range []func(context.Context, pgx.Tx, time.Time) error{
			out.positions, out.lines, out.totals, out.calendars, out.numbers, s.proveInvoices(out), out.wallets,
		} {
			if err := load(ctx, tx, now); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (n *Snapshot) positions(ctx context.Context, tx pgx.Tx, now time.Time) error {
	rows, err := tx.Query(ctx, `SELECT partition, first_offset, next_offset FROM partitions`)
	if err != nil {
		return err
	}
	var p int32
	var first, next int64
	if _, err = pgx.ForEachRow(rows, []any{&p, &first, &next}, func() error {
		n.First[p], n.Next[p] = first, next
		return nil
	}); err != nil {
		return err
	}
	return tx.QueryRow(ctx, `SELECT coalesce(sum(to_seq - from_seq), 0)::bigint FROM gaps WHERE noticed_at <= $1`, now.Add(-Lasting)).Scan(&n.Report.Lost)
}

func (n *Snapshot) lines(ctx context.Context, tx pgx.Tx, _ time.Time) error {
	rows, err := tx.Query(ctx, `SELECT tenant, meter, period_start, day, sum(calls)::bigint, sum(units)::bigint, sum(returned)::bigint, sum(degraded)::bigint, sum(prepaid)::bigint, sum(unpriced)::bigint
		FROM usage GROUP BY tenant, meter, period_start, day`)
	if err != nil {
		return err
	}
	var l reconcile.Line
	var s reconcile.Sum
	_, err = pgx.ForEachRow(rows, []any{&l.Tenant, &l.Meter, &l.Period, &l.Day, &s.Calls, &s.Units, &s.Returned, &s.Degraded, &s.Prepaid, &s.Unpriced}, func() error {
		l.Period, l.Day = l.Period.UTC(), l.Day.UTC()
		n.Lines[l] = s
		return nil
	})
	return err
}

func (n *Snapshot) totals(ctx context.Context, tx pgx.Tx, _ time.Time) error {
	rows, err := tx.Query(ctx, `SELECT u.tenant, u.meter, u.period_start, sum(u.units - u.returned)::bigint,
			coalesce(sum(u.units - u.returned) FILTER (WHERE u.kind <> 'usage'), 0)::bigint, sum(u.degraded)::bigint,
			coalesce((SELECT units - returned FROM set_aside a WHERE a.tenant = u.tenant AND a.meter = u.meter AND a.into_start = u.period_start), 0),
			coalesce((SELECT max(lost) FROM (SELECT sum(`+unattributed+`) AS lost FROM counters c JOIN periods p ON p.tenant = c.tenant
				WHERE c.tenant = u.tenant AND c.meter = u.meter AND p.start_at = u.period_start AND c.period_start >= p.start_at AND c.period_start < p.end_at
				GROUP BY c.rule) r), 0)::bigint
		FROM usage u GROUP BY u.tenant, u.meter, u.period_start ORDER BY 1, 2, 3`)
	if err != nil {
		return err
	}
	n.Report.Totals, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (reconcile.Totals, error) {
		var t reconcile.Totals
		err := row.Scan(&t.Tenant, &t.Meter, &t.Period, &t.Net, &t.Late, &t.Degraded, &t.SetAside, &t.Unattributed)
		t.Period = t.Period.UTC()
		return t, err
	})
	return err
}

func (n *Snapshot) calendars(ctx context.Context, tx pgx.Tx, now time.Time) error {
	rows, err := tx.Query(ctx, `SELECT tenant FROM accounts`)
	if err != nil {
		return err
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	n.placer, err = loadPlacers(ctx, tx, tenants, now, time.Time{}.AddDate(1900, 0, 0))
	return err
}

// proveInvoices makes every invoice again from what was counted.
func (s *Store) proveInvoices(n *Snapshot) func(context.Context, pgx.Tx, time.Time) error {
	return func(ctx context.Context, tx pgx.Tx, now time.Time) error {
		rows, err := tx.Query(ctx, selectInvoice+` ORDER BY serial`)
		if err != nil {
			return err
		}
		all, err := pgx.CollectRows(rows, scanInvoice)
		if err != nil {
			return err
		}
		n.Report.Invoices = len(all)
		for _, i := range all {
			if err := n.prove(ctx, tx, i, now); err != nil {
				return err
			}
		}
		return nil
	}
}

func (n *Snapshot) prove(ctx context.Context, tx pgx.Tx, i account.Invoice, now time.Time) error {
	lines, err := loadLines(ctx, tx, i)
	if err != nil {
		return err
	}
	var sum int64
	for _, l := range lines {
		sum += l.Amount.Minor
	}
	n.check(i.Tenant, i.Number+": the sum of its lines", sum, i.Total.Minor)
	facts, err := loadFacts(ctx, tx, i.Tenant, period.Span{Start: i.Period.Start, End: i.Period.End}, now)
	if err != nil {
		return err
	}
	// By what it was priced then, whatever became known of the plan and of top-ups since.
	if facts.Plan, err = pricedBy(ctx, tx, i); err != nil {
		return err
	}
	facts.TopUps = slices.DeleteFunc(facts.TopUps, func(t invoice.TopUp) bool {
		return !slices.ContainsFunc(lines, func(l account.Line) bool { return l.Kind == account.TopUpLine && l.Ref == t.ID })
	})
	body, err := invoice.Assemble(facts)
	if err != nil {
		return err
	}
	n.check(i.Tenant, i.Number+": total made again", body.Total.Minor, i.Total.Minor)
	n.check(i.Tenant, i.Number+": lines that are not as they are made again", differing(body.Lines, lines), 0)
	n.check(i.Tenant, i.Number+": meters that are not counted as in the books", differing(ofBooks(body.Counted), ofBooks(i.Counted)), 0)
	return nil
}

// pricedBy is the plan that an invoice was priced by.
func pricedBy(ctx context.Context, tx pgx.Tx, i account.Invoice) (rating.Plan, error) {
	var p rating.Plan
	var version int64
	if err := tx.QueryRow(ctx, `SELECT plan, plan_version FROM periods WHERE tenant = $1 AND start_at = $2`, i.Tenant, i.Period.Start).Scan(&p.ID, &version); err != nil {
		return p, err
	}
	if version > 0 {
		var err error
		if p, err = loadPlan(ctx, tx, p.ID, version); err != nil {
			return p, err
		}
	}
	p.Fee.Currency = cmp.Or(p.Fee.Currency, i.Total.Currency)
	return p, nil
}

// ofBooks is the part of what was counted that never changes.
func ofBooks(all []account.Counted) (out []account.Counted) {
	for _, c := range all {
		c.Lost, c.Unattributed, c.SetAside = 0, 0, 0
		if c != (account.Counted{Meter: c.Meter}) {
			out = append(out, c)
		}
	}
	return out
}

// differing is how many places of two lists do not hold the same.
func differing[T comparable](a, b []T) (n int64) {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			n++
		}
	}
	return n
}

// numbers proves that no invoice is missing, and none is of an open period.
func (n *Snapshot) numbers(ctx context.Context, tx pgx.Tx, _ time.Time) error {
	rows, err := tx.Query(ctx, `SELECT n.issuer, n.last, count(i.number), coalesce(max(i.serial), 0) FROM numbers n LEFT JOIN invoices i ON i.issuer = n.issuer GROUP BY n.issuer, n.last ORDER BY 1`)
	if err != nil {
		return err
	}
	var issuer string
	var last, made, highest int64
	if _, err = pgx.ForEachRow(rows, []any{&issuer, &last, &made, &highest}, func() error {
		n.check("", "issuer "+issuer+": invoices of the numbers given out", made, last)
		n.check("", "issuer "+issuer+": the highest number", highest, last)
		return nil
	}); err != nil {
		return err
	}
	var open int64
	err = tx.QueryRow(ctx, `SELECT count(*) FROM invoices i LEFT JOIN periods p ON p.tenant = i.tenant AND p.start_at = i.period_start WHERE p.final IS NOT TRUE`).Scan(&open)
	n.check("", "invoices of periods that are not final", open, 0)
	return err
}

func (n *Snapshot) check(tenant, what string, is, want int64) {
	if is != want {
		n.Report.Faults = append(n.Report.Faults, reconcile.Fault{Tenant: tenant, What: what, Is: is, Want: want})
	}
}

// wallets proves that every wallet is the sum of its entries, by what they are, and of its
// top-ups.
func (n *Snapshot) wallets(ctx context.Context, tx pgx.Tx, _ time.Time) error {
	rows, err := tx.Query(ctx, `SELECT tenant, meter, coalesce(w.granted, 0), coalesce(w.consumed, 0), coalesce(w.refunded, 0), coalesce(w.spread, 0),
			coalesce(CASE WHEN w.version > 0 THEN w.granted_total ELSE w.granted END, 0),
			coalesce(e.granted, 0)::bigint, coalesce(e.consumed, 0)::bigint, coalesce(e.refunded, 0)::bigint, coalesce(g.granted, 0)::bigint, coalesce(g.spent, 0)::bigint
		FROM wallets w
		FULL JOIN (SELECT tenant, meter, sum(units) FILTER (WHERE topup IS NOT NULL) AS granted, -sum(units) FILTER (WHERE topup IS NULL AND units < 0) AS consumed,
			sum(units) FILTER (WHERE topup IS NULL AND units > 0) AS refunded FROM wallet_entries GROUP BY tenant, meter) e USING (tenant, meter)
		FULL JOIN (SELECT tenant, meter, sum(units - expired) AS granted, sum(spent) AS spent FROM grants GROUP BY tenant, meter) g USING (tenant, meter)
		ORDER BY 1, 2`)
	if err != nil {
		return err
	}
	type sums struct{ granted, consumed, refunded, spread int64 }
	var tenant, meter string
	var is, entries, grants sums
	var told int64
	_, err = pgx.ForEachRow(rows, []any{
		&tenant, &meter, &is.granted, &is.consumed, &is.refunded, &is.spread, &told,
		&entries.granted, &entries.consumed, &entries.refunded, &grants.granted, &grants.spread,
	}, func() error {
		n.Report.Wallets++
		for _, c := range []struct {
			what     string
			is, want int64
		}{
			{"granted by its entries", entries.granted, is.granted},
			{"consumed by its entries", entries.consumed, is.consumed},
			{"given back by its entries", entries.refunded, is.refunded},
			{"what its top-ups add up to", grants.granted, told},
			{"spent of its top-ups", grants.spread, is.spread},
		} {
			n.check(tenant, "wallet "+meter+": "+c.what, c.is, c.want)
		}
		return nil
	})
	return err
}

// Day is the first instant of the tenant's day.
func (n *Snapshot) Day(tenant string, at time.Time) (time.Time, error) { return n.of(tenant).Day(at) }

// Place is where an instant lies in the books.
func (n *Snapshot) Place(tenant string, at time.Time) (metering.Place, error) {
	p := n.of(tenant)
	day, err := p.Day(at)
	if err != nil {
		return metering.Place{}, err
	}
	var start time.Time // zero: in no period of the books, which is a difference
	if i, found := p.Find(at); found {
		start = p.Periods[i].Start
	}
	return metering.Place{Day: day, Period: start, Into: start}, nil
}

// Open is nothing: what was set aside is not compared.
func (*Snapshot) Open(string) (time.Time, error) { return time.Time{}, nil }

func (n *Snapshot) of(tenant string) *invoice.Placer {
	p := n.placer[tenant]
	if p == nil {
		p = invoice.NewPlacer(invoice.Terms{Zone: time.UTC}, nil)
		n.placer[tenant] = p
	}
	return p
}
