package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/period"
)

// Finalize makes every period final that has ended long enough before now, and returns
// how many invoices it made. Any number of processes may call it at once: a period has
// one invoice. One tenant whose invoice cannot be made keeps no other from theirs; the
// error tells of all of them.
func (s *Store) Finalize(ctx context.Context, now time.Time) (made int, err error) {
	due, err := s.due(ctx, now)
	if err != nil {
		return 0, err
	}
	var faults []error
	for _, tenant := range due {
		n, err := s.finalizeTenant(ctx, tenant, now)
		made += n
		if err != nil {
			if errors.Is(err, account.ErrUnavailable) || ctx.Err() != nil {
				return made, err
			}
			faults = append(faults, fmt.Errorf("tenant %s: %w", tenant, err))
		}
	}
	return made, errors.Join(faults...)
}

// due are the tenants of whom a period may be due, or the running one is not in the books;
// of a deleted one it is the period that ran when it was.
func (s *Store) due(ctx context.Context, now time.Time) ([]string, error) {
	var tenants []string
	err := s.inTx(ctx, "due", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT a.tenant FROM accounts a
			LEFT JOIN LATERAL (SELECT CASE WHEN deleted THEN changed_at END AS at FROM tenants t WHERE t.id = a.tenant ORDER BY version DESC LIMIT 1) d ON true
			WHERE a.since <= $1 AND (NOT EXISTS (SELECT FROM periods p WHERE p.tenant = a.tenant AND p.start_at <= least($1, d.at) AND p.end_at > least($1, d.at))
				OR EXISTS (SELECT FROM periods p WHERE p.tenant = a.tenant AND NOT p.final AND p.end_at <= $2))
			ORDER BY a.tenant`, now, now.Add(-s.cfg.Grace))
		if err != nil {
			return err
		}
		tenants, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return tenants, err
}

// finalizeTenant makes the tenant's due periods final, the oldest first, each in a
// transaction of its own.
func (s *Store) finalizeTenant(ctx context.Context, tenant string, now time.Time) (made int, err error) {
	for {
		var more bool
		err := s.inTx(ctx, "finalize", func(tx pgx.Tx) error {
			more = false
			placer, err := s.holdAccount(ctx, tx, tenant, now)
			if err != nil {
				return err
			}
			due := placer.Due(now, s.cfg.Grace)
			if len(due) == 0 {
				return nil
			}
			more = len(due) > 1
			issued, err := s.finalize(ctx, tx, tenant, due[0], now)
			if issued {
				made++
			}
			return err
		})
		if err != nil || !more {
			return made, err
		}
	}
}

// holdAccount locks a tenant's account alone, and has every period in the books up to
// the one that runs.
func (s *Store) holdAccount(ctx context.Context, tx pgx.Tx, tenant string, now time.Time) (*invoice.Placer, error) {
	var since time.Time
	if err := tx.QueryRow(ctx, `SELECT since FROM accounts WHERE tenant = $1 FOR UPDATE`, tenant).Scan(&since); err != nil {
		return nil, err
	}
	placers, err := loadPlacers(ctx, tx, []string{tenant}, now, since)
	if err != nil {
		return nil, err
	}
	until, err := billedUntil(ctx, tx, tenant, now)
	if err != nil {
		return nil, err
	}
	spans, err := placers[tenant].Fill(since, until)
	if err != nil {
		return nil, err
	}
	w := &writer{batch: &pgx.Batch{}}
	var tenants []string
	var starts, ends []time.Time
	for _, p := range spans {
		tenants, starts, ends = append(tenants, tenant), append(starts, p.Start), append(ends, p.End)
	}
	w.insertPeriods(tenants, starts, ends)
	return placers[tenant], tx.SendBatch(ctx, w.batch).Close()
}

// billedUntil is now, or when the tenant was deleted.
func billedUntil(ctx context.Context, q querier, tenant string, now time.Time) (time.Time, error) {
	var deleted bool
	var at time.Time
	err := q.QueryRow(ctx, `SELECT deleted, changed_at FROM tenants WHERE id = $1 ORDER BY version DESC LIMIT 1`, tenant).Scan(&deleted, &at)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && (!deleted || at.After(now)) {
		return now, nil
	}
	return at.UTC(), err
}

// finalize makes one period final. There is an invoice if there is a plan, or a
// correction; of a tenant that was gone if there is a line. A plan of which only the name
// is known makes none: what cannot be priced is not free.
func (s *Store) finalize(ctx context.Context, tx pgx.Tx, tenant string, span period.Span, now time.Time) (issued bool, err error) {
	facts, err := loadFacts(ctx, tx, tenant, span, now)
	if err != nil {
		return false, err
	}
	if facts.Plan.ID != "" && facts.Plan.Version == 0 && !facts.Gone {
		return false, fmt.Errorf("%w: plan %s is not known", rating.ErrPlan, facts.Plan.ID)
	}
	body, err := invoice.Assemble(facts)
	if err != nil {
		return false, err
	}
	if planned := facts.Plan.ID != "" && (!facts.Gone || len(body.Lines) > 0); planned || len(facts.Corrections) > 0 {
		if err := s.issue(ctx, tx, facts, body, now); err != nil {
			return false, err
		}
		issued = true
	}
	_, err = tx.Exec(ctx, `UPDATE periods SET final = true, plan = $3, plan_version = $4 WHERE tenant = $1 AND start_at = $2`,
		tenant, span.Start, facts.Plan.ID, facts.Plan.Version)
	return issued, err
}

func (s *Store) issue(ctx context.Context, tx pgx.Tx, f invoice.Facts, body invoice.Body, now time.Time) error {
	var serial int64
	// The row is locked until the invoice is there or is not: no number is left out.
	err := tx.QueryRow(ctx, `INSERT INTO numbers AS n (issuer, last) VALUES ($1, 1)
		ON CONFLICT (issuer) DO UPDATE SET last = n.last + 1 RETURNING last`, s.cfg.Issuer).Scan(&serial)
	if err != nil {
		return err
	}
	countedJSON, err := json.Marshal(body.Counted)
	if err != nil {
		return err
	}
	number := invoice.Number(s.cfg.Prefix, serial)
	if _, err := tx.Exec(ctx, `INSERT INTO invoices (number, tenant, period_start, period_end, issuer, serial, plan, plan_name, zone, currency, total, counted, issued_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		number, f.Tenant, f.Period.Start, f.Period.End, s.cfg.Issuer, serial, f.Plan.ID, f.Plan.Name, f.Zone,
		string(body.Total.Currency), body.Total.Minor, countedJSON, now); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	for i, l := range body.Lines {
		batch.Queue(`INSERT INTO invoice_lines (number, position, kind, meter, from_unit, to_unit, units, unit_price, amount, degraded, corrects, of_start, of_end, ref, said)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
			number, i+1, string(l.Kind), l.Meter, l.From, l.To, l.Units, l.UnitPrice, l.Amount.Minor, l.Degraded, l.Corrects, l.Of.Start, l.Of.End, l.Ref, l.Text)
	}
	return tx.SendBatch(ctx, batch).Close()
}
