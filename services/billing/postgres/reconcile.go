package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/metering"
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
			out.positions, out.lines, out.totals, out.calendars, s.proveInvoices(out), out.wallets,
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
	rows, err := tx.Query(ctx, `SELECT tenant, meter, period_start, day, sum(calls)::bigint, sum(units)::bigint, sum(returned)::bigint, sum(degraded)::bigint, sum(prepaid)::bigint
		FROM usage GROUP BY tenant, meter, period_start, day`)
	if err != nil {
		return err
	}
	var l reconcile.Line
	var s reconcile.Sum
	_, err = pgx.ForEachRow(rows, []any{&l.Tenant, &l.Meter, &l.Period, &l.Day, &s.Calls, &s.Units, &s.Returned, &s.Degraded, &s.Prepaid}, func() error {
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
	var plan string
	var version int64
	if err := tx.QueryRow(ctx, `SELECT plan, plan_version FROM periods WHERE tenant = $1 AND start_at = $2`, i.Tenant, i.Period.Start).Scan(&plan, &version); err != nil {
		return err
	}
	if version > 0 { // by what it was priced then, whatever became known of the plan since
		currency := facts.Plan.Fee.Currency
		if facts.Plan, err = loadPlan(ctx, tx, plan, version); err != nil {
			return err
		}
		if facts.Plan.Fee.Currency == "" {
			facts.Plan.Fee.Currency = currency
		}
	}
	body, err := invoice.Assemble(facts)
	if err != nil {
		return err
	}
	n.check(i.Tenant, i.Number+": total made again", body.Total.Minor, i.Total.Minor)
	counted := map[string]int64{}
	for _, c := range i.Counted {
		counted[c.Meter] = c.Net()
	}
	for meter, c := range facts.Counted {
		n.check(i.Tenant, i.Number+": net units of "+meter+" in the books", c.Units-c.Returned, counted[meter])
	}
	return nil
}

func (n *Snapshot) check(tenant, what string, is, want int64) {
	if is != want {
		n.Report.Faults = append(n.Report.Faults, reconcile.Fault{Tenant: tenant, What: what, Is: is, Want: want})
	}
}

func (n *Snapshot) wallets(ctx context.Context, tx pgx.Tx, _ time.Time) error {
	rows, err := tx.Query(ctx, `SELECT w.tenant, w.meter, w.granted - w.consumed + w.refunded,
			(SELECT coalesce(sum(units), 0)::bigint FROM wallet_entries e WHERE e.tenant = w.tenant AND e.meter = w.meter),
			w.granted, CASE WHEN w.version > 0 THEN w.granted_total ELSE w.granted END
		FROM wallets w ORDER BY 1, 2`)
	if err != nil {
		return err
	}
	var tenant, meter string
	var balance, entries, granted, told int64
	_, err = pgx.ForEachRow(rows, []any{&tenant, &meter, &balance, &entries, &granted, &told}, func() error {
		n.Report.Wallets++
		n.check(tenant, "wallet "+meter+": the sum of its entries", entries, balance)
		n.check(tenant, "wallet "+meter+": what its top-ups add up to", granted, told)
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
