package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/invoice"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/internal/period"
)

// A calendar is the billing periods of the tenants of one batch.
type calendar struct {
	now     time.Time
	placers map[string]*invoice.Placer
	made    []madePeriod // that are not in the database yet
}

type madePeriod struct {
	tenant string
	period.Span
}

// Day is the first instant of the tenant's day.
func (c *calendar) Day(tenant string, at time.Time) (time.Time, error) {
	return c.placers[tenant].Day(at)
}

// Place is where an instant lies.
func (c *calendar) Place(tenant string, at time.Time) (metering.Place, error) {
	p := c.placers[tenant]
	day, err := p.Day(at)
	if err != nil {
		return metering.Place{}, err
	}
	own, err := c.find(tenant, at)
	if err != nil {
		return metering.Place{}, err
	}
	place := metering.Place{Day: day, Period: own.Start, Into: own.Start}
	if own.Final {
		place.Into, err = c.Open(tenant)
	}
	return place, err
}

// Open is the first instant of the oldest period that is not final.
func (c *calendar) Open(tenant string) (time.Time, error) {
	for _, p := range c.placers[tenant].Periods {
		if !p.Final {
			return p.Start, nil
		}
	}
	at := c.now
	if n := len(c.placers[tenant].Periods); n > 0 && c.placers[tenant].Periods[n-1].End.After(at) {
		at = c.placers[tenant].Periods[n-1].End // the running one was made final ahead of time
	}
	p, err := c.find(tenant, at)
	return p.Start, err
}

func (c *calendar) find(tenant string, at time.Time) (invoice.Period, error) {
	p := c.placers[tenant]
	i, found := p.Find(at)
	if !found {
		span, err := p.New(at)
		if err != nil {
			return invoice.Period{}, err
		}
		p.Add(span)
		c.made = append(c.made, madePeriod{tenant, span})
		i, _ = p.Find(at)
	}
	return p.Periods[i], nil
}

// known is how far back final periods are loaded: what is older is set aside.
const known = metering.Late + 24*time.Hour

// loadCalendar makes an account of every tenant that has none, holds all of them open
// until the transaction ends, and returns their calendars.
func loadCalendar(ctx context.Context, tx pgx.Tx, events []*metering.Event, now time.Time) (*calendar, error) {
	since := map[string]time.Time{}
	partition := map[string]int32{}
	var oldest time.Time
	for _, e := range events {
		if e.Tenant == "" {
			continue
		}
		at := e.When()
		if old, ok := since[e.Tenant]; !ok || at.Before(old) {
			since[e.Tenant] = at
		}
		partition[e.Tenant] = e.Partition
		if back := e.Arrived.Add(-known); oldest.IsZero() || back.Before(oldest) {
			oldest = back
		}
	}
	var tenants []string
	var begins []time.Time
	var parts []int32
	for t, at := range since {
		if now.Sub(at) > known || at.After(now) { // what is out of time begins nothing
			at = now
		}
		tenants, begins, parts = append(tenants, t), append(begins, at), append(parts, partition[t])
	}
	if _, err := tx.Exec(ctx, `INSERT INTO accounts AS a (tenant, since, partition)
		SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::int[]) AS n(tenant, since, partition) ORDER BY tenant
		ON CONFLICT (tenant) DO UPDATE SET partition = excluded.partition WHERE a.partition <> excluded.partition`, tenants, begins, parts); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `SELECT FROM accounts WHERE tenant = ANY($1) ORDER BY tenant FOR SHARE`, tenants); err != nil {
		return nil, err
	}
	placers, err := loadPlacers(ctx, tx, tenants, now, oldest)
	return &calendar{now: now, placers: placers}, err
}

// loadPlacers returns the calendars of tenants by their terms at an instant, with every
// open period and the final ones that end after oldest.
func loadPlacers(ctx context.Context, q querier, tenants []string, at, oldest time.Time) (map[string]*invoice.Placer, error) {
	terms, err := loadTerms(ctx, q, tenants, at)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, `SELECT tenant, start_at, end_at, final FROM periods
		WHERE tenant = ANY($1) AND (NOT final OR end_at > $2) ORDER BY tenant, start_at`, tenants, oldest)
	if err != nil {
		return nil, err
	}
	periods := map[string][]invoice.Period{}
	var tenant string
	var p invoice.Period
	if _, err = pgx.ForEachRow(rows, []any{&tenant, &p.Start, &p.End, &p.Final}, func() error {
		periods[tenant] = append(periods[tenant], invoice.Period{Span: period.Span{Start: p.Start.UTC(), End: p.End.UTC()}, Final: p.Final})
		return nil
	}); err != nil {
		return nil, err
	}
	out := make(map[string]*invoice.Placer, len(tenants))
	for _, t := range tenants {
		out[t] = invoice.NewPlacer(terms[t], periods[t])
	}
	return out, nil
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// loadTerms returns what the calendars of tenants are made of, as of an instant. Of a
// tenant that the catalogue does not have it is calendar months in UTC.
func loadTerms(ctx context.Context, q querier, tenants []string, at time.Time) (map[string]invoice.Terms, error) {
	rows, err := q.Query(ctx, `SELECT n.id, t.zone, t.anchor, t.former, coalesce(p.unit, '')
		FROM unnest($1::text[]) AS n(id)
		CROSS JOIN LATERAL (SELECT * FROM tenants WHERE tenants.id = n.id ORDER BY changed_at > $2, abs(extract(epoch FROM changed_at - $2)), version DESC LIMIT 1) t
		LEFT JOIN LATERAL (SELECT * FROM plans WHERE plans.id = t.plan AND NOT deleted ORDER BY changed_at > $2, abs(extract(epoch FROM changed_at - $2)), version DESC LIMIT 1) p ON true`, tenants, at)
	if err != nil {
		return nil, err
	}
	out := make(map[string]invoice.Terms, len(tenants))
	for _, t := range tenants {
		out[t] = invoice.Terms{Zone: time.UTC}
	}
	var id, zone, unit string
	var anchor *time.Time
	var former []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &zone, &anchor, &former, &unit}, func() error {
		var was []formerRow
		if err := json.Unmarshal(former, &was); err != nil {
			return err
		}
		terms := invoice.Terms{Zone: zoneOf(zone), Anchor: zero(anchor), Unit: period.Unit(unit)}
		for _, f := range was {
			terms.Former = append(terms.Former, invoice.Former{Zone: zoneOf(f.Zone), Anchor: zero(f.Anchor), Until: f.Until})
		}
		out[id] = terms
		return nil
	})
	return out, err
}

type formerRow struct {
	Zone   string     `json:"zone"`
	Anchor *time.Time `json:"anchor"`
	Until  time.Time  `json:"until"`
}

// zoneOf is the zone of that name. rule-admin takes no other names; one that a newer
// database of zones has is UTC.
func zoneOf(name string) *time.Location {
	z, err := period.Zone(name)
	if err != nil {
		return time.UTC
	}
	return z
}
