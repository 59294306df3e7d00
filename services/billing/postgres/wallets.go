package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/wallet"
)

// A purse names a wallet.
type purse struct{ tenant, meter string }

// learnGrant books a top-up, or what expired of it, and has what is owed spent of it.
func learnGrant(ctx context.Context, tx pgx.Tx, c catalog.Change) error {
	g := c.Grant
	if g == nil {
		return nil
	}
	p := purse{g.Tenant, g.Meter}
	if err := lockPurses(ctx, tx, []purse{p}); err != nil {
		return err
	}
	var known, expired int64
	err := tx.QueryRow(ctx, `SELECT version, expired FROM grants WHERE id = $1`, c.ID).Scan(&known, &expired)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if _, err = tx.Exec(ctx, `INSERT INTO grants (id, version, tenant, meter, units, spent, expired, priority, granted_at, expires_at, reason)
			VALUES ($1, 0, $2, $3, $4, 0, 0, $5, $6, $7, $8)`, c.ID, g.Tenant, g.Meter, g.Units, g.Priority, g.GrantedAt, null(g.ExpiresAt), g.Reason); err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, `INSERT INTO wallet_entries (tenant, meter, at, kind, units, asked, topup, reason) VALUES ($1, $2, $3, 'topup', $4, $4, $5, $6)`,
			g.Tenant, g.Meter, g.GrantedAt, g.Units, c.ID, g.Reason); err != nil {
			return err
		}
		if err = grantMore(ctx, tx, p, g.Units); err != nil {
			return err
		}
	case err != nil:
		return err
	case known >= c.Version:
		return nil
	}
	return learnExpiry(ctx, tx, c, p, g.Expired-expired)
}

// learnExpiry books units of a grant that ended: they were found unspent, so all else of
// it was spent, which is all of it where nothing was found.
func learnExpiry(ctx context.Context, tx pgx.Tx, c catalog.Change, p purse, more int64) error {
	g := c.Grant
	if _, err := tx.Exec(ctx, `UPDATE grants SET version = $2 WHERE id = $1`, c.ID, c.Version); err != nil {
		return err
	}
	if more > 0 {
		if _, err := tx.Exec(ctx, `INSERT INTO wallet_entries (tenant, meter, at, kind, units, asked, topup, reason) VALUES ($1, $2, $3, 'expiry', $4, $4, $5, $6)`,
			p.tenant, p.meter, laterOf(g.ExpiresAt, c.At), -more, c.ID, g.Reason); err != nil {
			return err
		}
		if err := grantMore(ctx, tx, p, -more); err != nil {
			return err
		}
	}
	if more > 0 || !g.ExpiresAt.IsZero() && !c.At.Before(g.ExpiresAt) {
		var spent int64
		if err := tx.QueryRow(ctx, `SELECT spent FROM grants WHERE id = $1`, c.ID).Scan(&spent); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE grants SET spent = units - $2, expired = $2, ended = true WHERE id = $1`, c.ID, g.Expired); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE wallets SET spread = spread + $3 WHERE tenant = $1 AND meter = $2`, p.tenant, p.meter, g.Units-g.Expired-spent); err != nil {
			return err
		}
	}
	return spread(ctx, tx, p)
}

func grantMore(ctx context.Context, tx pgx.Tx, p purse, units int64) error {
	_, err := tx.Exec(ctx, `UPDATE wallets SET granted = granted + $3 WHERE tenant = $1 AND meter = $2`, p.tenant, p.meter, units)
	return err
}

// lockPurses makes wallets that are not there and locks all of them.
func lockPurses(ctx context.Context, tx pgx.Tx, purses []purse) error {
	var tenants, meters []string
	for _, p := range purses {
		tenants, meters = append(tenants, p.tenant), append(meters, p.meter)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO wallets (tenant, meter) SELECT * FROM unnest($1::text[], $2::text[]) AS n(t, m) ORDER BY t, m ON CONFLICT DO NOTHING`, tenants, meters); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `SELECT FROM wallets w JOIN unnest($1::text[], $2::text[]) AS n(t, m) ON w.tenant = n.t AND w.meter = n.m
		ORDER BY w.tenant, w.meter FOR UPDATE OF w`, tenants, meters)
	return err
}

// moveWallets books what events did to prepaid wallets, each as an entry of its own.
func moveWallets(ctx context.Context, tx pgx.Tx, moves []metering.Movement, r *metering.Result) error {
	if len(moves) == 0 {
		return nil
	}
	sums := map[purse]*[2]int64{} // consumed, refunded
	for i := range moves {
		p := purse{moves[i].Tenant, moves[i].Meter}
		if sums[p] == nil {
			sums[p] = &[2]int64{}
		}
	}
	purses := make([]purse, 0, len(sums))
	for p := range sums {
		purses = append(purses, p)
	}
	slices.SortFunc(purses, func(a, b purse) int { return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.meter, b.meter)) })
	if err := lockPurses(ctx, tx, purses); err != nil {
		return err
	}
	left, err := charged(ctx, tx, moves)
	if err != nil {
		return err
	}
	if err := insertMoves(ctx, tx, moves, left, sums, r); err != nil {
		return err
	}
	for _, p := range purses {
		if _, err := tx.Exec(ctx, `UPDATE wallets SET consumed = consumed + $3, refunded = refunded + $4 WHERE tenant = $1 AND meter = $2`,
			p.tenant, p.meter, sums[p][0], sums[p][1]); err != nil {
			return err
		}
		if err := spread(ctx, tx, p); err != nil {
			return err
		}
	}
	return nil
}

// An owed is a decision's charge on a wallet.
type owed struct {
	purse
	decision metering.ID
}

// charged is what the decisions that are corrected have left charged.
func charged(ctx context.Context, tx pgx.Tx, moves []metering.Movement) (map[owed]int64, error) {
	out := map[owed]int64{}
	var decisions [][16]byte
	for i := range moves {
		if moves[i].Verdict.Corrects() {
			decisions = append(decisions, moves[i].Decision)
		}
	}
	if len(decisions) == 0 {
		return out, nil
	}
	rows, err := tx.Query(ctx, `SELECT tenant, meter, decision, -sum(units)::bigint FROM wallet_entries WHERE decision = ANY($1) GROUP BY tenant, meter, decision`, decisions)
	if err != nil {
		return nil, err
	}
	var o owed
	var id [16]byte
	var units int64
	_, err = pgx.ForEachRow(rows, []any{&o.tenant, &o.meter, &id, &units}, func() error {
		o.decision = id
		out[o] = units
		return nil
	})
	return out, err
}

func insertMoves(ctx context.Context, tx pgx.Tx, moves []metering.Movement, left map[owed]int64, sums map[purse]*[2]int64, r *metering.Result) error {
	var rows columns
	var events, decisions [][16]byte
	for i := range moves {
		m := &moves[i]
		p := purse{m.Tenant, m.Meter}
		o := owed{p, m.Decision}
		units, flag, kind := -m.Units, "", "debit"
		if m.Verdict.Corrects() {
			charge, known := left[o]
			units, flag = wallet.Correct(charge, m.Units, known)
			kind = "settled"
			if m.Verdict == metering.Refund {
				kind = "refund"
			}
		} else if units > 0 {
			kind = "settled" // of an outcome that is newer than this code
		}
		left[o] -= units
		if units < 0 {
			sums[p][0] -= units
		} else {
			sums[p][1] += units
		}
		if flag != "" {
			r.Flagged++
		}
		rows.add([]string{m.Tenant, m.Meter, kind, m.Service, m.Endpoint, flag}, []time.Time{m.At}, []int64{units, -m.Units})
		events, decisions = append(events, m.Event), append(decisions, m.Decision)
	}
	_, err := tx.Exec(ctx, `INSERT INTO wallet_entries (tenant, meter, kind, service, endpoint, flag, at, units, asked, event, decision)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::bigint[], $9::bigint[], $10::uuid[], $11::uuid[])`,
		append(rows.args(), events, decisions)...)
	return err
}

// spread has what was consumed since the last time spent of the grants in their order.
func spread(ctx context.Context, tx pgx.Tx, p purse) error {
	var units int64
	if err := tx.QueryRow(ctx, `SELECT consumed - refunded - spread FROM wallets WHERE tenant = $1 AND meter = $2`, p.tenant, p.meter).Scan(&units); err != nil || units == 0 {
		return err
	}
	grants, _, err := loadGrants(ctx, tx, p, true)
	if err != nil {
		return err
	}
	before := slices.Clone(grants)
	rest := wallet.Spread(grants, units)
	batch := &pgx.Batch{}
	for i := range grants {
		if grants[i].Spent != before[i].Spent {
			batch.Queue(`UPDATE grants SET spent = $2 WHERE id = $1`, grants[i].ID, grants[i].Spent)
		}
	}
	batch.Queue(`UPDATE wallets SET spread = spread + $3 WHERE tenant = $1 AND meter = $2`, p.tenant, p.meter, units-rest)
	return tx.SendBatch(ctx, batch).Close()
}

// loadGrants returns a wallet's grants with their reasons; open leaves those out that have
// ended.
func loadGrants(ctx context.Context, q querier, p purse, open bool) ([]wallet.Grant, []string, error) {
	rows, err := q.Query(ctx, `SELECT id, units, spent, expired, ended, priority, granted_at, expires_at, reason FROM grants
		WHERE tenant = $1 AND meter = $2 AND (NOT $3 OR NOT ended) ORDER BY granted_at, id`, p.tenant, p.meter, open)
	if err != nil {
		return nil, nil, err
	}
	var out []wallet.Grant
	var reasons []string
	var g wallet.Grant
	var reason string
	var ends *time.Time
	_, err = pgx.ForEachRow(rows, []any{&g.ID, &g.Units, &g.Spent, &g.Expired, &g.Ended, &g.Priority, &g.GrantedAt, &ends, &reason}, func() error {
		g.GrantedAt, g.ExpiresAt = g.GrantedAt.UTC(), zero(ends)
		out, reasons = append(out, g), append(reasons, reason)
		return nil
	})
	return out, reasons, err
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
