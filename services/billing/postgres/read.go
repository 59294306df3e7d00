package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/wallet"
	"penstock.dev/services/internal/period"
)

var _ account.Reader = (*Store)(nil)

// read runs do in one transaction that sees one instant of the books.
func (s *Store) read(ctx context.Context, doing string, do func(tx pgx.Tx) error) error {
	return s.inTx(ctx, doing, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY`); err != nil {
			return err
		}
		return do(tx)
	})
}

// Profile is who the tenant is.
func (s *Store) Profile(ctx context.Context, tenant string) (account.Profile, error) {
	p := account.Profile{Tenant: tenant, Zone: time.UTC}
	err := s.read(ctx, "profile", func(tx pgx.Tx) error {
		var zone string
		err := tx.QueryRow(ctx, `SELECT t.name, t.plan, t.zone, coalesce(nullif(p.currency, ''), t.currency), coalesce(p.name, '') FROM tenants t
			LEFT JOIN LATERAL (SELECT * FROM plans WHERE plans.id = t.plan AND NOT deleted ORDER BY version DESC LIMIT 1) p ON true
			WHERE t.id = $1 ORDER BY t.version DESC LIMIT 1`, tenant).Scan(&p.Name, &p.Plan, &zone, &p.Currency, &p.PlanName)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if err == nil {
			p.Zone = zoneOf(zone)
		}
		var start, end *time.Time
		err = tx.QueryRow(ctx, `SELECT start_at, end_at FROM periods WHERE tenant = $1 AND NOT final
			ORDER BY start_at > now(), start_at DESC LIMIT 1`, tenant).Scan(&start, &end)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		p.Period = period.Span{Start: zero(start), End: zero(end)}
		p.CountedTo, err = countedTo(ctx, tx)
		return err
	})
	return p, err
}

func countedTo(ctx context.Context, q querier) (time.Time, error) {
	var at *time.Time
	err := q.QueryRow(ctx, `SELECT max(record_at) FROM partitions`).Scan(&at)
	return zero(at), err
}

// Usage is what was used in the days that a span touches.
func (s *Store) Usage(ctx context.Context, tenant string, of period.Span) (account.Usage, error) {
	return s.usage(ctx, tenant, "", of)
}

// KeyUsage is what of it was used by one API key.
func (s *Store) KeyUsage(ctx context.Context, tenant, key string, of period.Span) (account.Usage, error) {
	return s.usage(ctx, tenant, key, of)
}

func (s *Store) usage(ctx context.Context, tenant, key string, of period.Span) (account.Usage, error) {
	var u account.Usage
	err := s.read(ctx, "usage", func(tx pgx.Tx) error {
		zone, days, err := daysOf(ctx, tx, tenant, of)
		if err != nil {
			return err
		}
		u.Zone = zone
		if u.CountedTo, err = countedTo(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT u.day, u.meter, u.application, u.service, u.endpoint, coalesce(e.method, ''), coalesce(e.path, ''),
				sum(u.calls)::bigint, sum(u.units)::bigint, sum(u.returned)::bigint, sum(u.degraded)::bigint, sum(u.prepaid)::bigint
			FROM usage u LEFT JOIN endpoints e ON e.id = u.endpoint
			WHERE u.tenant = $1 AND u.day >= $2 AND u.day < $3 AND ($4 = '' OR u.api_key = $4)
			GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 4, 5, 3`, tenant, days.Start, days.End, clean(key))
		if err != nil {
			return err
		}
		u.Days, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (account.UsageDay, error) {
			var d account.UsageDay
			err := row.Scan(&d.Day, &d.Meter, &d.Application, &d.Service, &d.Endpoint, &d.Method, &d.Path, &d.Calls, &d.Units, &d.Returned, &d.Degraded, &d.Prepaid)
			d.Day = d.Day.UTC()
			return d, err
		})
		return err
	})
	return u, err
}

// daysOf is the tenant's zone and the whole days that a span touches.
func daysOf(ctx context.Context, q querier, tenant string, of period.Span) (*time.Location, period.Span, error) {
	zone := time.UTC
	var name string
	err := q.QueryRow(ctx, `SELECT zone FROM tenants WHERE id = $1 ORDER BY version DESC LIMIT 1`, tenant).Scan(&name)
	switch {
	case err == nil:
		zone = zoneOf(name)
	case !errors.Is(err, pgx.ErrNoRows):
		return zone, of, err
	}
	first, err := invoice.Terms{Zone: zone}.Days().At(of.Start)
	return zone, period.Span{Start: first.Start, End: of.End}, err
}

// Quotas are the quotas whose period runs at now, of rules that are not deleted.
func (s *Store) Quotas(ctx context.Context, tenant string, now time.Time) ([]account.Quota, error) {
	var out []account.Quota
	err := s.read(ctx, "quotas", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT c.rule, coalesce(r.name, ''), c.meter, c.lim, c.consumed, c.refunded, c.soft, c.period_start, c.period_end, c.last_at,
				coalesce(r.unit, ''), coalesce(r.count, 0), coalesce(r.thresholds, '{}'),
				CASE WHEN 'application' = ANY(r.subject) OR r.subject IS NULL THEN c.application ELSE '' END,
				CASE WHEN 'user' = ANY(r.subject) THEN c.username ELSE '' END, CASE WHEN 'api_key' = ANY(r.subject) THEN c.api_key ELSE '' END
			FROM counters c LEFT JOIN rules r ON r.id = c.rule
			WHERE c.tenant = $1 AND c.period_start <= $2 AND c.period_end > $2 AND NOT coalesce(r.deleted, false)
			ORDER BY (c.consumed - c.refunded)::numeric / greatest(c.lim, 1) DESC, c.rule, c.key LIMIT 200`, tenant, now)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (account.Quota, error) {
			var q account.Quota
			err := row.Scan(&q.Rule, &q.Name, &q.Meter, &q.Limit, &q.Consumed, &q.Returned, &q.Soft, &q.Period.Start, &q.Period.End, &q.LastSeen,
				&q.Unit, &q.Count, &q.Thresholds, &q.Application, &q.User, &q.APIKey)
			q.Unlimited = q.Limit == unlimited
			q.Period.Start, q.Period.End, q.LastSeen = q.Period.Start.UTC(), q.Period.End.UTC(), q.LastSeen.UTC()
			return q, err
		})
		return err
	})
	return out, err
}

// unlimited is the limit of a quota that has none.
const unlimited = 1<<53 - 1

// Cuts are the refused calls of the days that a span touches, the last first.
func (s *Store) Cuts(ctx context.Context, tenant string, of period.Span) ([]account.Cut, error) {
	var out []account.Cut
	err := s.read(ctx, "cuts", func(tx pgx.Tx) error {
		_, days, err := daysOf(ctx, tx, tenant, of)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT c.day, c.reason, c.rule, coalesce(r.name, ''), coalesce(r.meter, ''), c.algorithm,
				CASE WHEN r.limited_at <= c.first_seen THEN r.lim ELSE 0 END, CASE WHEN r.limited_at <= c.first_seen THEN r.window_us ELSE 0 END,
				c.application, c.api_key, c.service, c.endpoint, coalesce(e.method, ''), coalesce(e.path, ''), c.status, c.calls, c.units, c.first_seen, c.last_seen
			FROM cuts c LEFT JOIN rules r ON r.id = c.rule LEFT JOIN endpoints e ON e.id = c.endpoint
			WHERE c.tenant = $1 AND c.day >= $2 AND c.day < $3 ORDER BY c.last_seen DESC, c.rule, c.endpoint LIMIT 1000`, tenant, days.Start, days.End)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (account.Cut, error) {
			var c account.Cut
			var window int64
			err := row.Scan(&c.Day, &c.Reason, &c.Rule, &c.RuleName, &c.Meter, &c.Algorithm, &c.Limit, &window,
				&c.Application, &c.APIKey, &c.Service, &c.Endpoint, &c.Method, &c.Path, &c.Status, &c.Calls, &c.Units, &c.FirstSeen, &c.LastSeen)
			c.Window = time.Duration(window) * time.Microsecond
			c.Day, c.FirstSeen, c.LastSeen = c.Day.UTC(), c.FirstSeen.UTC(), c.LastSeen.UTC()
			return c, err
		})
		return err
	})
	return out, err
}

// Wallets are the prepaid wallets with their newest entries.
func (s *Store) Wallets(ctx context.Context, tenant string, _ time.Time) ([]account.Wallet, error) {
	var out []account.Wallet
	err := s.read(ctx, "wallets", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT meter, granted, consumed, refunded FROM wallets WHERE tenant = $1 ORDER BY meter`, tenant)
		if err != nil {
			return err
		}
		if out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (account.Wallet, error) {
			var w account.Wallet
			return w, row.Scan(&w.Meter, &w.Granted, &w.Consumed, &w.Returned)
		}); err != nil {
			return err
		}
		for i := range out {
			if err := fillWallet(ctx, tx, tenant, &out[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func fillWallet(ctx context.Context, q querier, tenant string, w *account.Wallet) error {
	grants, reasons, err := loadGrants(ctx, q, purse{tenant, w.Meter}, false)
	if err != nil {
		return err
	}
	for _, i := range wallet.Order(grants) {
		g := grants[i]
		w.Grants = append(w.Grants, account.Grant{
			ID: g.ID, Units: g.Units, Spent: g.Spent, Expired: g.Expired, Priority: g.Priority,
			GrantedAt: g.GrantedAt, ExpiresAt: g.ExpiresAt, Reason: reasons[i],
		})
	}
	rows, err := q.Query(ctx, `SELECT at, kind, units, coalesce(topup, decision::text, ''), service, endpoint, reason, flag FROM wallet_entries
		WHERE tenant = $1 AND meter = $2 ORDER BY at DESC, id DESC LIMIT $3`, tenant, w.Meter, account.MaxEntries)
	if err != nil {
		return err
	}
	w.Entries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (account.Entry, error) {
		var e account.Entry
		err := row.Scan(&e.At, &e.Kind, &e.Units, &e.Ref, &e.Service, &e.Endpoint, &e.Reason, &e.Flagged)
		e.At = e.At.UTC()
		return e, err
	})
	return err
}
