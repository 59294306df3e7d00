package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
)

// Learn takes changes of the catalogue, in one transaction. Those that are known, and
// those that are older than what is known of an object that keeps no versions, have no
// effect. now is when they are heard of.
func (s *Store) Learn(ctx context.Context, changes []catalog.Change, now time.Time) error {
	return s.inTx(ctx, "learn", func(tx pgx.Tx) error {
		simple := &pgx.Batch{} // all of them in one round trip: a catalogue may have a million
		for _, c := range changes {
			if err := learn(ctx, tx, simple, c, now); err != nil {
				return fmt.Errorf("%s %s: %w", c.Kind, c.ID, err)
			}
		}
		return tx.SendBatch(ctx, simple).Close()
	})
}

func learn(ctx context.Context, tx pgx.Tx, simple *pgx.Batch, c catalog.Change, now time.Time) error {
	switch c.Kind {
	case catalog.KindTenant:
		return learnTenant(ctx, tx, c, now)
	case catalog.KindPlan:
		return learnPlan(ctx, tx, c)
	case catalog.KindGrant:
		return learnGrant(ctx, tx, c)
	case catalog.KindEndpoint:
		e := or(c.Endpoint)
		simple.Queue(`INSERT INTO endpoints AS o (id, version, deleted, service, method, path, cost) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (id) DO UPDATE SET version = $2, deleted = $3,
				service = CASE WHEN $3 THEN o.service ELSE $4 END, method = CASE WHEN $3 THEN o.method ELSE $5 END,
				path = CASE WHEN $3 THEN o.path ELSE $6 END, cost = CASE WHEN $3 THEN o.cost ELSE $7 END
			WHERE o.version < $2`, c.ID, c.Version, c.Deleted, e.Service, e.Method, e.Path, e.Cost)
	case catalog.KindRule:
		learnRule(simple, c)
	case catalog.KindAPIKey:
		if c.APIKey != nil {
			simple.Queue(`INSERT INTO api_keys (id, tenant) VALUES ($1, $2) ON CONFLICT DO NOTHING`, c.ID, c.APIKey.Tenant)
		}
	case catalog.KindWallet:
		if c.Wallet != nil {
			simple.Queue(`INSERT INTO wallets AS o (tenant, meter, granted_total, version) VALUES ($1, $2, $3, $4)
				ON CONFLICT (tenant, meter) DO UPDATE SET granted_total = $3, version = $4 WHERE o.version < $4`,
				c.Wallet.Tenant, c.Wallet.Meter, c.Wallet.GrantedTotal, c.Version)
		}
	}
	return nil
}

// or is what v points to, or a zero value: of what is deleted nothing is told.
func or[T any](v *T) T {
	if v == nil {
		var none T
		return none
	}
	return *v
}

// learnTenant keeps a version of a tenant, and begins to bill one that is new. One that
// is told of long after it was made was somebody else's to bill until now.
func learnTenant(ctx context.Context, tx pgx.Tx, c catalog.Change, now time.Time) error {
	if c.Deleted {
		_, err := tx.Exec(ctx, `INSERT INTO tenants (id, version, changed_at, deleted, name, plan, zone, anchor, currency, former)
			SELECT id, $2, $3, true, name, plan, zone, anchor, currency, former FROM tenants WHERE id = $1 AND version < $2
			ORDER BY version DESC LIMIT 1 ON CONFLICT DO NOTHING`, c.ID, c.Version, c.At)
		return err
	}
	t := c.Tenant
	was := []formerRow{}
	for _, f := range t.Former {
		was = append(was, formerRow{Zone: f.Zone, Anchor: null(f.Anchor), Until: f.Until})
	}
	former, err := json.Marshal(was)
	if err != nil {
		return err
	}
	if _, err = tx.Exec(ctx, `INSERT INTO tenants (id, version, changed_at, deleted, name, plan, zone, anchor, currency, former)
		VALUES ($1, $2, $3, false, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING`,
		c.ID, c.Version, c.At, t.Name, t.Plan, t.Zone, null(t.Anchor), t.Currency, former); err != nil {
		return err
	}
	since := c.At
	if now.Sub(since) > metering.Late {
		since = now
	}
	_, err = tx.Exec(ctx, `INSERT INTO accounts (tenant, since, partition) VALUES ($1, $2, -1) ON CONFLICT DO NOTHING`, c.ID, since)
	return err
}

func learnPlan(ctx context.Context, tx pgx.Tx, c catalog.Change) error {
	p := or(c.Plan)
	tag, err := tx.Exec(ctx, `INSERT INTO plans (id, version, changed_at, deleted, name, fee, currency, unit)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
		c.ID, c.Version, c.At, c.Deleted, p.Name, p.Fee.Minor, string(p.Fee.Currency), string(p.Period))
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	for _, meter := range slices.Sorted(maps.Keys(p.Included)) {
		if _, err := tx.Exec(ctx, `INSERT INTO plan_included (plan, version, meter, units) VALUES ($1, $2, $3, $4)`, c.ID, c.Version, meter, p.Included[meter]); err != nil {
			return err
		}
	}
	position := 0
	for _, meter := range slices.Sorted(maps.Keys(p.Steps)) {
		for _, step := range p.Steps[meter] {
			position++
			if err := insertStep(ctx, tx, c, position, meter, step); err != nil {
				return err
			}
		}
	}
	return nil
}

func insertStep(ctx context.Context, tx pgx.Tx, c catalog.Change, position int, meter string, step rating.Step) error {
	var upTo *int64
	if step.UpTo > 0 {
		upTo = &step.UpTo
	}
	_, err := tx.Exec(ctx, `INSERT INTO plan_steps (plan, version, position, meter, up_to, unit_price) VALUES ($1, $2, $3, $4, $5, $6::text::numeric)`,
		c.ID, c.Version, position, meter, upTo, step.Price.String())
	return err
}

func learnRule(simple *pgx.Batch, c catalog.Change) {
	if c.Deleted {
		simple.Queue(`UPDATE rules SET version = $2, deleted = true WHERE id = $1 AND version < $2`, c.ID, c.Version)
		return
	}
	r := c.Rule
	simple.Queue(`INSERT INTO rules AS o (id, version, deleted, name, kind, algorithm, meter, lim, window_us, subject, thresholds, unit, count, limited_at)
		VALUES ($1, $2, false, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		ON CONFLICT (id) DO UPDATE SET version = $2, deleted = false, name = $3, kind = $4, algorithm = $5, meter = $6, lim = $7,
			window_us = $8, subject = $9, thresholds = $10, unit = $11, count = $12,
			limited_at = CASE WHEN (o.lim, o.window_us) = ($7, $8) THEN o.limited_at ELSE $13 END WHERE o.version < $2`,
		c.ID, c.Version, r.Name, r.Kind, r.Algorithm, r.Meter, r.Limit, r.Window.Microseconds(),
		notNil(r.Subject), notNil(r.Thresholds), string(r.Unit), r.Count, c.At)
}

func notNil[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}
