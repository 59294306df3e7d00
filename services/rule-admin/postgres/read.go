package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/rule-admin/catalog"
)

// A querier is a pool or one of its connections.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const (
	objectColumns = `id, version, body, kept, changed_at, changed_by`
	selectObject  = `SELECT ` + objectColumns + ` FROM objects WHERE kind = $1 AND id = $2`
)

// scanObject reads objectColumns.
func scanObject(kind catalog.Kind) pgx.RowToFunc[*catalog.Object] {
	return func(row pgx.CollectableRow) (*catalog.Object, error) {
		o := &catalog.Object{Kind: kind}
		var body, kept []byte
		if err := row.Scan(&o.ID, &o.Version, &body, &kept, &o.ChangedAt, &o.ChangedBy); err != nil {
			return nil, err
		}
		o.ChangedAt = o.ChangedAt.UTC()
		if err := loadObject(o, body, kept); err != nil {
			return nil, err
		}
		return o, nil
	}
}

// readObject returns nil when there is none.
func readObject(ctx context.Context, q querier, kind catalog.Kind, id string) (*catalog.Object, error) {
	rows, err := q.Query(ctx, selectObject, string(kind), id)
	if err != nil {
		return nil, fail("read "+string(kind), err)
	}
	o, err := collectObject(rows, kind)
	return o, fail("read "+string(kind), err)
}

// collectObject returns the one row of selectObject, or nil.
func collectObject(rows pgx.Rows, kind catalog.Kind) (*catalog.Object, error) {
	o, err := pgx.CollectExactlyOneRow(rows, scanObject(kind))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return o, err
}

// Object returns the object, or catalog.ErrNotFound.
func (s *Store) Object(ctx context.Context, kind catalog.Kind, id string) (*catalog.Object, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	o, err := readObject(ctx, s.pool, kind, id)
	if err == nil && o == nil {
		err = fmt.Errorf("%w: %s %s", catalog.ErrNotFound, kind, id)
	}
	return o, err
}

// List returns at most most objects of the kind, in the order of their ids'
// bytes, beginning behind the id after.
func (s *Store) List(ctx context.Context, kind catalog.Kind, after string, most int) ([]*catalog.Object, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, `SELECT `+objectColumns+` FROM objects WHERE kind = $1 AND id > $2 ORDER BY id LIMIT $3`,
		string(kind), after, most)
	if err != nil {
		return nil, fail("list "+string(kind), err)
	}
	list, err := pgx.CollectRows(rows, scanObject(kind))
	return list, fail("list "+string(kind), err)
}

// Audit returns entries, the newest first.
func (s *Store) Audit(ctx context.Context, q catalog.Search) ([]catalog.Entry, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, `
		SELECT revision, id::text, at, actor, role, action, kind, object_id, coalesce(before, 'null'), coalesce(after, 'null'), request_id
		FROM audit
		WHERE ($1 = 0 OR revision < $1) AND ($2 = '' OR kind = $2) AND ($3 = '' OR object_id = $3) AND ($4 = '' OR actor = $4)
		ORDER BY revision DESC LIMIT $5`,
		q.Before, string(q.Kind), q.ObjectID, q.Actor, q.Most)
	if err != nil {
		return nil, fail("read audit", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e catalog.Entry, err error) {
		err = row.Scan(&e.Revision, &e.ID, &e.At, &e.Actor, &e.Role, &e.Action, &e.Kind, &e.ObjectID, &e.Before, &e.After, &e.RequestID)
		e.At = e.At.UTC()
		return e, err
	})
	return entries, fail("read audit", err)
}

// An object is named by its kind and its id.
type object struct {
	kind catalog.Kind
	id   string
}

// A tx is what a change may look at.
type tx struct {
	querier // the connection, in the transaction
	begun   pgx.Tx
	at      catalog.Moment
	known   map[object]*catalog.Object // what was read at once; nil: there is none
}

// Object returns another object, or nil when there is none.
func (t *tx) Object(ctx context.Context, kind catalog.Kind, id string) (*catalog.Object, error) {
	if o, known := t.known[object{kind, id}]; known {
		return o, nil
	}
	return readObject(ctx, t, kind, id)
}

// Referrers returns objects that refer to one, at most most of them, and how
// many there are.
func (t *tx) Referrers(ctx context.Context, kind catalog.Kind, id string, most int) ([]catalog.Referrer, int, error) {
	rows, err := t.Query(ctx, `
		SELECT kind, id, field, count(*) OVER () FROM object_refs
		WHERE ref_kind = $1 AND ref_id = $2 ORDER BY kind, id, field LIMIT $3`, string(kind), id, most)
	if err != nil {
		return nil, 0, fail("read referrers", err)
	}
	total := 0
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r catalog.Referrer, err error) {
		err = row.Scan(&r.Kind, &r.ID, &r.Field, &total)
		return r, err
	})
	return list, total, fail("read referrers", err)
}

// TenantPeriods returns the periods of the rules that may match the tenant and
// leave their zone or anchor to it, now or in what they had before.
func (t *tx) TenantPeriods(ctx context.Context, tenant string) ([]catalog.RulePeriod, error) {
	rows, err := t.Query(ctx, `
		SELECT id, body -> 'period', kept -> 'previous', changed_at FROM objects
		WHERE kind = 'rule' AND body ? 'period' AND (body #>> '{match,tenant}' IS NULL OR body #>> '{match,tenant}' IN ('', $1)) AND EXISTS (
			SELECT FROM (VALUES (body -> 'period'), (kept #> '{previous,period}')) AS periods (p)
			WHERE p IS NOT NULL AND NOT (p ? 'zone' AND (p ? 'anchor' OR p ->> 'alignment' IS DISTINCT FROM 'anniversary')))
		ORDER BY id`, tenant)
	if err != nil {
		return nil, fail("read periods", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p catalog.RulePeriod, err error) {
		err = row.Scan(&p.RuleID, &p.Period, &p.Previous, &p.ChangedAt)
		return p, err
	})
	return list, fail("read periods", err)
}

// The smallest id of another object whose claim overlaps, by what is claimed.
// The conditions on path, hosts and service are those of indexes.
const (
	endpointRival = `
		SELECT coalesce(min(id), '') FROM objects
		WHERE kind = 'endpoint' AND id <> $1 AND body ->> 'service' = $2 AND coalesce(body ->> 'method', '') = $3
			AND regexp_replace(rtrim(body ->> 'path', '/'), '\{[^/]*\}', '{}', 'g') = $4`
	serviceRival = `
		SELECT coalesce(min(id), '') FROM objects
		WHERE kind = 'service' AND id <> $1 AND rtrim(coalesce(body ->> 'path_prefix', ''), '/') = $2`
	hostRival    = serviceRival + ` AND body -> 'hosts' ?| $3::text[]`
	anyHostRival = serviceRival + ` AND coalesce(body -> 'hosts', '[]') = '[]'`
)

// Rival returns the smallest id of another object whose claim overlaps this
// one.
func (t *tx) Rival(ctx context.Context, id string, c catalog.Claim) (rival string, err error) {
	sql, args := endpointRival, []any{id, c.Service, c.Method, c.Path}
	switch {
	case c.Kind == catalog.KindService && len(c.Hosts) > 0:
		sql, args = hostRival, []any{id, c.Path, c.Hosts}
	case c.Kind == catalog.KindService:
		sql, args = anyHostRival, []any{id, c.Path}
	}
	err = t.QueryRow(ctx, sql, args...).Scan(&rival)
	return rival, fail("read rivals", err)
}
