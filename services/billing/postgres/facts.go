package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// loadFacts returns what the invoice of a period is made of. now is when it is made up: a
// draft's losses are as of then.
func loadFacts(ctx context.Context, q querier, tenant string, span period.Span, now time.Time) (invoice.Facts, error) {
	f := invoice.Facts{Tenant: tenant, Period: span}
	var err error
	if f.Plan, f.Zone, err = loadTenantPlan(ctx, q, tenant, span.End.Add(-time.Microsecond)); err != nil {
		return f, err
	}
	if f.Gone, err = loadGone(ctx, q, tenant, span); err != nil {
		return f, err
	}
	if f.Counted, err = loadCounted(ctx, q, tenant, span.Start); err != nil {
		return f, err
	}
	if f.Corrections, err = loadCorrections(ctx, q, tenant, span.Start); err != nil {
		return f, err
	}
	if f.TopUps, err = loadTopUps(ctx, q, tenant, span); err != nil {
		return f, err
	}
	if f.Loss, err = loadLoss(ctx, q, tenant, span); err != nil {
		return f, err
	}
	f.Lost, err = loadLost(ctx, q, tenant, span, now)
	return f, err
}

// loadTenantPlan returns the plan and zone that a tenant had at an instant: the newest
// versions from before it, else the oldest there are. The zero plan is none.
func loadTenantPlan(ctx context.Context, q querier, tenant string, at time.Time) (rating.Plan, string, error) {
	var plan, currency, zone string
	err := q.QueryRow(ctx, `SELECT plan, currency, zone FROM tenants WHERE id = $1
		ORDER BY changed_at > $2, abs(extract(epoch FROM changed_at - $2)), version DESC LIMIT 1`, tenant, at).Scan(&plan, &currency, &zone)
	if errors.Is(err, pgx.ErrNoRows) {
		return rating.Plan{}, "UTC", nil
	}
	if err != nil || plan == "" {
		return rating.Plan{Fee: money.Amount{Currency: money.Currency(currency)}}, zone, err
	}
	var version int64
	err = q.QueryRow(ctx, `SELECT version FROM plans WHERE id = $1 AND NOT deleted
		ORDER BY changed_at > $2, abs(extract(epoch FROM changed_at - $2)), version DESC LIMIT 1`, plan, at).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return rating.Plan{ID: plan, Fee: money.Amount{Currency: money.Currency(currency)}}, zone, nil
	}
	if err != nil {
		return rating.Plan{}, zone, err
	}
	p, err := loadPlan(ctx, q, plan, version)
	if p.Fee.Currency == "" {
		p.Fee.Currency = money.Currency(currency)
	}
	return p, zone, err
}

// loadGone reports whether a tenant was deleted when a period began, and was not made
// again before it ended.
func loadGone(ctx context.Context, q querier, tenant string, span period.Span) (gone bool, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce((SELECT deleted FROM tenants WHERE id = $1 AND changed_at <= $2 ORDER BY changed_at DESC, version DESC LIMIT 1), false)
		AND NOT EXISTS (SELECT FROM tenants WHERE id = $1 AND NOT deleted AND changed_at > $2 AND changed_at < $3)`, tenant, span.Start, span.End).Scan(&gone)
	return gone, err
}

// loadPlan returns a version of a plan.
func loadPlan(ctx context.Context, q querier, id string, version int64) (rating.Plan, error) {
	p := rating.Plan{ID: id, Version: version, Included: map[string]int64{}, Steps: map[string][]rating.Step{}}
	err := q.QueryRow(ctx, `SELECT name, fee, currency, unit FROM plans WHERE id = $1 AND version = $2`, id, version).
		Scan(&p.Name, &p.Fee.Minor, &p.Fee.Currency, &p.Period)
	if err != nil {
		return p, err
	}
	rows, err := q.Query(ctx, `SELECT meter, units FROM plan_included WHERE plan = $1 AND version = $2`, id, version)
	if err != nil {
		return p, err
	}
	var meter, price string
	var units int64
	if _, err = pgx.ForEachRow(rows, []any{&meter, &units}, func() error {
		p.Included[meter] = units
		return nil
	}); err != nil {
		return p, err
	}
	rows, err = q.Query(ctx, `SELECT meter, coalesce(up_to, 0), unit_price::text FROM plan_steps WHERE plan = $1 AND version = $2 ORDER BY position`, id, version)
	if err != nil {
		return p, err
	}
	_, err = pgx.ForEachRow(rows, []any{&meter, &units, &price}, func() error {
		unit, err := money.ParsePrice(price)
		if err != nil {
			return fmt.Errorf("%w: plan %s: %w", rating.ErrPlan, id, err)
		}
		p.Steps[meter] = append(p.Steps[meter], rating.Step{UpTo: units, Price: unit})
		return nil
	})
	return p, err
}

const counted = `sum(calls)::bigint, sum(units)::bigint, sum(returned)::bigint, sum(degraded)::bigint, sum(prepaid)::bigint, sum(unpriced)::bigint`

func counts(c *metering.Count) []any {
	return []any{&c.Calls, &c.Units, &c.Returned, &c.Degraded, &c.Prepaid, &c.Unpriced}
}

func loadCounted(ctx context.Context, q querier, tenant string, start time.Time) (map[string]metering.Count, error) {
	rows, err := q.Query(ctx, `SELECT meter, `+counted+` FROM usage WHERE tenant = $1 AND into_start = $2 AND kind = 'usage' GROUP BY meter`, tenant, start)
	if err != nil {
		return nil, err
	}
	out := map[string]metering.Count{}
	var meter string
	var c metering.Count
	_, err = pgx.ForEachRow(rows, append([]any{&meter}, counts(&c)...), func() error {
		out[meter] = c
		return nil
	})
	return out, err
}

func loadCorrections(ctx context.Context, q querier, tenant string, into time.Time) ([]invoice.Correction, error) {
	rows, err := q.Query(ctx, `SELECT u.kind, u.meter, p.start_at, p.end_at, coalesce(i.number, ''), p.plan, p.plan_version,
			(SELECT coalesce(sum(b.units - b.returned - b.prepaid), 0)::bigint FROM usage b
				WHERE b.tenant = $1 AND b.period_start = p.start_at AND b.into_start < $2 AND b.meter = u.meter), `+counted+`
		FROM usage u JOIN periods p ON p.tenant = u.tenant AND p.start_at = u.period_start
		LEFT JOIN invoices i ON i.tenant = u.tenant AND i.period_start = u.period_start
		WHERE u.tenant = $1 AND u.into_start = $2 AND u.kind <> 'usage'
		GROUP BY u.kind, u.meter, p.start_at, p.end_at, i.number, p.plan, p.plan_version`, tenant, into)
	if err != nil {
		return nil, err
	}
	var out []invoice.Correction
	type priced struct {
		plan    string
		version int64
	}
	var by []priced
	var c invoice.Correction
	var p priced
	if _, err = pgx.ForEachRow(rows, append([]any{&c.Kind, &c.Meter, &c.Period.Start, &c.Period.End, &c.Corrects, &p.plan, &p.version, &c.Billed}, counts(&c.Count)...), func() error {
		c.Period = period.Span{Start: c.Period.Start.UTC(), End: c.Period.End.UTC()}
		out, by = append(out, c), append(by, p)
		return nil
	}); err != nil {
		return nil, err
	}
	for i := range out {
		if by[i].version == 0 {
			continue // it had no plan: its units cost nothing, also now
		}
		if out[i].Plan, err = loadPlan(ctx, q, by[i].plan, by[i].version); err != nil {
			return nil, err
		}
		if out[i].Plan.Fee.Currency == "" {
			at, _, err := loadTenantPlan(ctx, q, tenant, out[i].Period.End.Add(-time.Microsecond))
			if err != nil {
				return nil, err
			}
			out[i].Plan.Fee.Currency = at.Fee.Currency
		}
	}
	return out, nil
}

func loadTopUps(ctx context.Context, q querier, tenant string, span period.Span) ([]invoice.TopUp, error) {
	rows, err := q.Query(ctx, `SELECT topup, meter, units, reason FROM wallet_entries
		WHERE tenant = $1 AND kind = 'topup' AND at >= $2 AND at < $3 ORDER BY at, id`, tenant, span.Start, span.End)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (invoice.TopUp, error) {
		var t invoice.TopUp
		err := row.Scan(&t.ID, &t.Meter, &t.Units, &t.Reason)
		return t, err
	})
}

// unattributed is what a counter has beyond its events.
const unattributed = `((consumed - consumed_base - charged) - (refunded - refunded_base - returned))`

// loadLoss returns what is known and not billed. A call is in every counter of its meter,
// so of several rules it is the one that has lost most that says how much.
func loadLoss(ctx context.Context, q querier, tenant string, span period.Span) (map[string]invoice.Loss, error) {
	out := map[string]invoice.Loss{}
	rows, err := q.Query(ctx, `SELECT meter, max(n)::bigint FROM (
			SELECT meter, rule, sum(`+unattributed+`) AS n FROM counters
			WHERE tenant = $1 AND period_start >= $2 AND period_start < $3 GROUP BY meter, rule) r
		GROUP BY meter HAVING max(n) <> 0`, tenant, span.Start, span.End)
	if err != nil {
		return nil, err
	}
	var meter string
	var n int64
	if _, err = pgx.ForEachRow(rows, []any{&meter, &n}, func() error {
		out[meter] = invoice.Loss{Unattributed: n}
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = q.Query(ctx, `SELECT meter, (units - returned)::bigint FROM set_aside WHERE tenant = $1 AND into_start = $2`, tenant, span.Start)
	if err != nil {
		return nil, err
	}
	_, err = pgx.ForEachRow(rows, []any{&meter, &n}, func() error {
		l := out[meter]
		l.SetAside = n
		out[meter] = l
		return nil
	})
	return out, err
}

// Lasting is how long a number may be missing before it counts as lost: gateways send in
// order, and again what they could not send.
const Lasting = 10 * time.Minute

// loadLost returns how many events are missing in the tenant's partition about the period.
func loadLost(ctx context.Context, q querier, tenant string, span period.Span, now time.Time) (n int64, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce(sum(g.to_seq - g.from_seq), 0)::bigint FROM gaps g JOIN accounts a ON a.partition = g.partition
		WHERE a.tenant = $1 AND g.noticed_at <= $4 AND g.before_at >= $2 AND coalesce(g.after_at, g.before_at) < $3`,
		tenant, span.Start, span.End, now.Add(-Lasting)).Scan(&n)
	return n, err
}
