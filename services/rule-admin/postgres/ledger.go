package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
)

// EncodeEntry returns the records of an entry. It runs inside the transaction,
// so it must not wait for anything.
type EncodeEntry func(*ledger.Entry, catalog.Moment) ([]catalog.Record, error)

// A Ledger keeps the books of top-ups in the catalogue's database. It is safe
// for concurrent use.
type Ledger struct {
	*Store
	entry EncodeEntry
}

// Ledger returns the books.
func (s *Store) Ledger(encode EncodeEntry) *Ledger { return &Ledger{s, encode} }

const topUpColumns = `id::text, tenant, meter, units, priority, expires_at, reason, granted_total, granted_at, granted_by, revision,
	spent, expired_at, expired_units`

// scanTopUp reads topUpColumns, and what more is asked for.
func scanTopUp(row pgx.CollectableRow, more ...any) (t ledger.TopUp, err error) {
	var expires, expired *time.Time
	err = row.Scan(append([]any{
		&t.ID, &t.Tenant, &t.Meter, &t.Units, &t.Priority, &expires, &t.Reason, &t.GrantedTotal, &t.GrantedAt, &t.GrantedBy, &t.Revision,
		&t.Spent, &expired, &t.ExpiredUnits,
	}, more...)...)
	t.GrantedAt, t.ExpiresAt, t.ExpiredAt = t.GrantedAt.UTC(), utc(expires), utc(expired)
	return t, err
}

func utc(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

const selectTopUp = `SELECT ` + topUpColumns + `, fingerprint FROM topups WHERE tenant = $1 AND key = $2`

// collectTopUp returns the one row of selectTopUp, or nil.
func collectTopUp(rows pgx.Rows) (*ledger.TopUp, []byte, error) {
	var asked []byte
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.TopUp, error) { return scanTopUp(row, &asked) })
	if err != nil || len(list) == 0 {
		return nil, nil, err
	}
	return &list[0], asked, nil
}

// TopUp returns the top-up that was made with the tenant's key, nil when there
// is none, and the fingerprint of what was asked.
func (l *Ledger) TopUp(ctx context.Context, tenant, key string) (*ledger.TopUp, []byte, error) {
	if err := l.usable(); err != nil {
		return nil, nil, err
	}
	rows, err := l.pool.Query(ctx, selectTopUp, tenant, key)
	if err != nil {
		return nil, nil, fail("read a top-up", err)
	}
	t, asked, err := collectTopUp(rows)
	return t, asked, fail("read a top-up", err)
}

// TopUps returns at most most top-ups of a tenant, the newest first, below a
// revision (0: from the newest).
func (l *Ledger) TopUps(ctx context.Context, tenant string, below int64, most int) ([]ledger.TopUp, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	rows, err := l.pool.Query(ctx, `SELECT `+topUpColumns+` FROM topups WHERE tenant = $1 AND ($2 = 0 OR revision < $2)
		ORDER BY revision DESC LIMIT $3`, tenant, below, most)
	if err != nil {
		return nil, fail("list top-ups", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.TopUp, error) { return scanTopUp(row) })
	if err != nil || len(list) > 0 || below > 0 {
		return list, fail("list top-ups", err)
	}
	_, err = l.Object(ctx, catalog.KindTenant, tenant)
	return list, err
}

// Due returns at most most top-ups that have expired and still count, the
// longest overdue first, and how many there are.
func (l *Ledger) Due(ctx context.Context, most int) (due []ledger.TopUp, total int, err error) {
	if err := l.usable(); err != nil {
		return nil, 0, err
	}
	rows, err := l.pool.Query(ctx, `SELECT `+topUpColumns+`, count(*) OVER () FROM topups
		WHERE expires_at <= clock_timestamp() AND expired_at IS NULL ORDER BY expires_at, id LIMIT $1`, most)
	if err != nil {
		return nil, 0, fail("read expired top-ups", err)
	}
	due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.TopUp, error) { return scanTopUp(row, &total) })
	return due, total, fail("read expired top-ups", err)
}

// Counters returns the counters that a prepaid wallet of the tenant has: the one
// that counts everywhere, and one for each service or endpoint that a rule
// counts alone.
func (l *Ledger) Counters(ctx context.Context, tenant, meter string) ([]limit.Identity, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	rows, err := l.pool.Query(ctx, `
		SELECT '', '' UNION
		SELECT coalesce(body #>> '{match,service}', ''), coalesce(body #>> '{match,endpoint}', '') FROM objects
		WHERE kind = 'rule' AND body ->> 'kind' IN ('quota', 'wallet') AND coalesce(body #>> '{match,tenant}', '') IN ('', $1)
			AND body ->> 'wallet' = 'prepaid' AND coalesce(body ->> 'mode', 'enforce') = 'enforce' AND coalesce(body ->> 'meter', 'api-calls') = $2`,
		tenant, meter)
	if err != nil {
		return nil, fail("read a wallet's rules", err)
	}
	seen := map[limit.Identity]bool{}
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (limit.Identity, error) {
		id := limit.Identity{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: tenant, Meter: meter}
		err := row.Scan(&id.Service, &id.Endpoint)
		if id.Endpoint != "" {
			id.Service = "" // an endpoint's counter is the endpoint's alone
		}
		seen[id.Canonical()] = true
		return id, err
	})
	if len(seen) < len(ids) { // an endpoint was named with its service and without
		ids = ids[:0]
		for id := range seen {
			ids = append(ids, id)
		}
	}
	return ids, fail("read a wallet's rules", err)
}

// Turn runs decide while nothing else is changed, and writes what it returns:
// top-up, wallet, outbox rows and audit row, all of it or nothing.
func (l *Ledger) Turn(ctx context.Context, tenant, meter, key string,
	decide func(ledger.Books, catalog.Moment) (*ledger.Entry, error),
) error {
	if err := l.usable(); err != nil {
		return err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fail("wait for a turn", ctx.Err())
	}
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return fail("top up", err)
	}
	defer conn.Release()
	books, at, begun, err := openBooks(ctx, conn, tenant, meter, key)
	// A rollback that fails leaves a broken connection, which the pool drops.
	abandon := func() { _ = begun.Rollback(context.WithoutCancel(ctx)) }
	if err != nil {
		abandon()
		return fail("open the books", err)
	}
	entry, err := decide(books, at)
	if err != nil || entry == nil {
		abandon()
		return err
	}
	b, err := l.entries(entry, at)
	if err != nil {
		abandon()
		return err
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		abandon()
		return fail("top up", err)
	}
	return nil
}

// openBooks begins a transaction, takes the lock of all changes and with it the
// next revision, and reads what a turn may look at.
func openBooks(ctx context.Context, conn *pgxpool.Conn, tenant, meter, key string) (books ledger.Books, at catalog.Moment, begun pgx.Tx, err error) {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted}) // each statement sees what was committed before it
	b.Queue(nextRevision).QueryRow(func(row pgx.Row) error { return scanMoment(row, &at) })
	b.Queue(`SELECT EXISTS (SELECT FROM objects WHERE kind = 'tenant' AND id = $1)`, tenant).
		QueryRow(func(row pgx.Row) error { return row.Scan(&books.Catalogued) })
	b.Queue(`SELECT coalesce(bool_and(body ->> 'wallet' = 'renewable'), false) FROM objects
		WHERE kind = 'rule' AND body ->> 'kind' IN ('quota', 'wallet') AND coalesce(body #>> '{match,tenant}', '') IN ('', $1)
			AND body ->> 'kind' = 'wallet' AND coalesce(body ->> 'meter', 'api-calls') = $2
			AND (body #>> '{match,plan}' IS NULL OR body #>> '{match,plan}' = (SELECT body ->> 'plan' FROM objects WHERE kind = 'tenant' AND id = $1))`,
		tenant, meter).QueryRow(func(row pgx.Row) error { return row.Scan(&books.Renewable) })
	b.Queue(selectTopUp, tenant, key).Query(func(rows pgx.Rows) (err error) {
		books.First, books.Asked, err = collectTopUp(rows)
		return err
	})
	b.Queue(`SELECT granted_total, consumed, refunded, owed FROM wallets WHERE tenant = $1 AND meter = $2`, tenant, meter).Query(func(rows pgx.Rows) error {
		w := &books.Wallet
		w.Tenant, w.Meter = tenant, meter
		_, err := pgx.ForEachRow(rows, []any{&w.Granted, &w.Consumed, &w.Refunded, &w.Owed}, func() error { return nil })
		return err
	})
	b.Queue(`SELECT `+topUpColumns+` FROM topups WHERE tenant = $1 AND meter = $2 AND expired_at IS NULL ORDER BY revision`, tenant, meter).
		Query(func(rows pgx.Rows) (err error) {
			books.Open, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.TopUp, error) { return scanTopUp(row) })
			return err
		})
	results := conn.SendBatch(ctx, &b)
	begun = results.Tx()
	return books, at, begun, results.Close()
}

// entries returns the statements of an entry, the commit the last of them.
func (l *Ledger) entries(e *ledger.Entry, at catalog.Moment) (*pgx.Batch, error) {
	records, err := l.entry(e, at)
	if err != nil {
		return nil, err
	}
	t, w := &e.TopUp, &e.Wallet
	b := &pgx.Batch{}
	if e.Key != "" {
		b.Queue(`INSERT INTO topups (id, revision, tenant, key, fingerprint, meter, units, priority, expires_at, reason,
				granted_total, granted_at, granted_by, spent)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
			t.ID, t.Revision, t.Tenant, e.Key, e.Asked, t.Meter, t.Units, t.Priority, orNull(t.ExpiresAt), t.Reason,
			t.GrantedTotal, t.GrantedAt, t.GrantedBy, t.Spent)
	} else {
		b.Queue(`UPDATE topups SET spent = $2, expired_at = $3, expired_units = $4 WHERE id = $1`, t.ID, t.Spent, orNull(t.ExpiredAt), t.ExpiredUnits)
	}
	for i := range e.Spent {
		if e.Spent[i].ID != t.ID {
			b.Queue(`UPDATE topups SET spent = $2 WHERE id = $1`, e.Spent[i].ID, e.Spent[i].Spent)
		}
	}
	b.Queue(`INSERT INTO wallets (tenant, meter, granted_total, version, consumed, refunded, owed) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (tenant, meter) DO UPDATE SET granted_total = excluded.granted_total, version = excluded.version,
			consumed = excluded.consumed, refunded = excluded.refunded, owed = excluded.owed`,
		w.Tenant, w.Meter, w.Granted, at.Revision, w.Consumed, w.Refunded, w.Owed)
	if err := told(b, e, records, at); err != nil {
		return nil, err
	}
	b.Queue(`commit`)
	return b, nil
}

// told queues the outbox rows and the audit row of an entry, which has the id of
// the last record, the top-up's.
func told(b *pgx.Batch, e *ledger.Entry, records []catalog.Record, at catalog.Moment) error {
	var event uuid.UUID
	for _, r := range records {
		var err error
		if event, err = uuid.NewV7(); err != nil {
			return fmt.Errorf("event id: %w", err)
		}
		b.Queue(`INSERT INTO outbox (version, created_at, id, aggregatetype, aggregateid, type, payload) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			at.Revision, at.Now, event, r.Topic, r.Key, r.Type, r.Payload)
	}
	action, before := catalog.Create, []byte(nil)
	if e.Before != nil {
		text, err := json.Marshal(e.Before)
		if err != nil {
			return err
		}
		action, before = catalog.Replace, text
	}
	after, err := json.Marshal(&e.TopUp)
	if err != nil {
		return err
	}
	b.Queue(`INSERT INTO audit (kind, object_id, revision, at, id, actor, role, action, before, after, request_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		string(catalog.KindTopUp), e.TopUp.ID, at.Revision, at.Now, event, e.Caller.Actor, e.Caller.Role, string(action), before, after, e.RequestID)
	return nil
}
