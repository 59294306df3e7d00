package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/internal/period"
)

// Invoices are the drafts of all periods that are not final up to now, and what was
// issued, without lines, the newest first: at most most, of periods that start before an
// instant, unless it is zero.
func (s *Store) Invoices(ctx context.Context, tenant string, now, before time.Time, most int) ([]account.Invoice, error) {
	var out []account.Invoice
	err := s.read(ctx, "invoices", func(tx pgx.Tx) error {
		drafts, err := s.openPeriods(ctx, tx, tenant, now)
		if err != nil {
			return err
		}
		for _, span := range slices.Backward(drafts) {
			if len(out) == most {
				break
			}
			if !before.IsZero() && !span.Start.Before(before) {
				continue
			}
			d, err := s.draft(ctx, tx, tenant, span, now)
			if err != nil {
				return err
			}
			d.Lines = nil
			out = append(out, d)
		}
		rows, err := tx.Query(ctx, selectInvoice+` WHERE tenant = $1 AND ($2::timestamptz IS NULL OR period_start < $2) ORDER BY period_start DESC LIMIT $3`,
			tenant, null(before), most)
		if err != nil {
			return err
		}
		issued, err := pgx.CollectRows(rows, scanInvoice)
		out = append(out, issued...)
		return err
	})
	slices.SortStableFunc(out, func(a, b account.Invoice) int { return b.Period.Start.Compare(a.Period.Start) })
	return out[:min(most, len(out))], err
}

// Invoice is one of the tenant's with its lines.
func (s *Store) Invoice(ctx context.Context, tenant, id string, now time.Time) (account.Invoice, error) {
	var out account.Invoice
	err := s.read(ctx, "invoice", func(tx pgx.Tx) error {
		if start, ok := invoice.ParseDraftID(id); ok {
			drafts, err := s.openPeriods(ctx, tx, tenant, now)
			if err != nil {
				return err
			}
			for _, span := range drafts {
				if invoice.DraftID(span.Start) == invoice.DraftID(start) {
					out, err = s.draft(ctx, tx, tenant, span, now)
					return err
				}
			}
			return account.ErrNotFound
		}
		rows, err := tx.Query(ctx, selectInvoice+` WHERE tenant = $1 AND number = $2`, tenant, clean(id))
		if err != nil {
			return err
		}
		if out, err = pgx.CollectExactlyOneRow(rows, scanInvoice); errors.Is(err, pgx.ErrNoRows) {
			return account.ErrNotFound
		} else if err != nil {
			return err
		}
		out.Lines, err = loadLines(ctx, tx, out)
		return err
	})
	return out, err
}

// openPeriods are the periods up to now of which there may be a draft, the one that runs
// included: it may not be in the books yet.
func (s *Store) openPeriods(ctx context.Context, q querier, tenant string, now time.Time) ([]period.Span, error) {
	var since time.Time
	err := q.QueryRow(ctx, `SELECT since FROM accounts WHERE tenant = $1`, tenant).Scan(&since)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	placers, err := loadPlacers(ctx, q, []string{tenant}, now, since)
	if err != nil {
		return nil, err
	}
	until, err := billedUntil(ctx, q, tenant, now)
	if err != nil {
		return nil, err
	}
	if _, err := placers[tenant].Fill(since, until); err != nil {
		return nil, err
	}
	var out []period.Span
	for _, p := range placers[tenant].Periods {
		if !p.Final && !p.Start.After(now) {
			out = append(out, p.Span)
		}
	}
	return out, nil
}

func (s *Store) draft(ctx context.Context, q querier, tenant string, span period.Span, now time.Time) (account.Invoice, error) {
	facts, err := loadFacts(ctx, q, tenant, span, now)
	if err != nil {
		return account.Invoice{}, err
	}
	body, err := invoice.Assemble(facts)
	if err != nil {
		return account.Invoice{}, err
	}
	return account.Invoice{
		ID: invoice.DraftID(span.Start), State: account.Draft, Tenant: tenant, Issuer: s.cfg.Issuer,
		Plan: facts.Plan.ID, PlanName: facts.Plan.Name, Zone: facts.Zone, Period: span,
		Total: body.Total, Lines: body.Lines, Counted: body.Counted,
	}, nil
}

const selectInvoice = `SELECT number, tenant, issuer, plan, plan_name, zone, period_start, period_end, issued_at, currency, total, counted FROM invoices`

func scanInvoice(row pgx.CollectableRow) (account.Invoice, error) {
	i := account.Invoice{State: account.Final}
	var said []byte
	if err := row.Scan(&i.Number, &i.Tenant, &i.Issuer, &i.Plan, &i.PlanName, &i.Zone, &i.Period.Start, &i.Period.End, &i.IssuedAt,
		&i.Total.Currency, &i.Total.Minor, &said); err != nil {
		return i, err
	}
	i.ID = i.Number
	i.Period = period.Span{Start: i.Period.Start.UTC(), End: i.Period.End.UTC()}
	i.IssuedAt = i.IssuedAt.UTC()
	return i, json.Unmarshal(said, &i.Counted)
}

func loadLines(ctx context.Context, q querier, of account.Invoice) ([]account.Line, error) {
	rows, err := q.Query(ctx, `SELECT kind, meter, from_unit, to_unit, units, unit_price, amount, degraded, corrects, of_start, of_end, ref, said
		FROM invoice_lines WHERE number = $1 ORDER BY position`, of.Number)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (account.Line, error) {
		var l account.Line
		err := row.Scan(&l.Kind, &l.Meter, &l.From, &l.To, &l.Units, &l.UnitPrice, &l.Amount.Minor, &l.Degraded, &l.Corrects, &l.Of.Start, &l.Of.End, &l.Ref, &l.Text)
		l.Amount.Currency = of.Total.Currency
		l.Of = period.Span{Start: l.Of.Start.UTC(), End: l.Of.End.UTC()}
		return l, err
	})
}
