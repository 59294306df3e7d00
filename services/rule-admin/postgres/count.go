package postgres

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// The tenants of a page, the rules that count for one of them or for all, and
// what they were granted. The conditions on rules are those of an index, and so
// is the collation of what they are compared with.
const (
	countPage   = `WITH page AS MATERIALIZED (SELECT * FROM objects WHERE kind = 'tenant' AND id > $1 ORDER BY id LIMIT $2)` + countOfPage
	countTenant = `WITH page AS MATERIALIZED (SELECT * FROM objects WHERE kind = 'tenant' AND id = $1 LIMIT $2)` + countOfPage
	countOfPage = `
		SELECT kind, ` + objectColumns + `, '', 0 FROM page
		UNION ALL
		SELECT kind, ` + objectColumns + `, '', 0 FROM objects
		WHERE kind = 'rule' AND body ->> 'kind' IN ('quota', 'wallet')
			AND coalesce(body #>> '{match,tenant}', '') = ANY (ARRAY(SELECT '' UNION ALL SELECT id COLLATE "default" FROM page))
		UNION ALL
		SELECT 'wallet', tenant, version, NULL, NULL, 'epoch', '', meter, granted_total FROM wallets
		WHERE tenant = ANY (ARRAY(SELECT id FROM page))
		ORDER BY 1, 2`
)

// Counting returns what a page of usage is made of.
func (s *Store) Counting(ctx context.Context, after string, most int, only string) (catalog.Counting, error) {
	out := catalog.Counting{Granted: map[string]map[string]int64{}}
	if err := s.usable(); err != nil {
		return out, err
	}
	sql, first := countPage, after
	if only != "" {
		sql, first = countTenant, only
	}
	rows, err := s.pool.Query(ctx, sql, first, most)
	if err != nil {
		return out, fail("read usage", err)
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
		var meter string
		var granted int64
		kind, o, err := scanKinded(row, &meter, &granted)
		switch {
		case err != nil:
		case kind == catalog.KindTenant:
			out.Tenants = append(out.Tenants, o)
		case kind == catalog.KindRule:
			out.Rules = append(out.Rules, o)
		default:
			if out.Granted[o.ID] == nil {
				out.Granted[o.ID] = map[string]int64{}
			}
			out.Granted[o.ID][meter] = granted
		}
		return none, err
	})
	return out, fail("read usage", err)
}

// scanKinded reads kind and objectColumns, and what more is asked for. What is
// no object has its id alone.
func scanKinded(row pgx.CollectableRow, more ...any) (kind catalog.Kind, o *catalog.Object, err error) {
	o = &catalog.Object{}
	var body, kept []byte
	var changed time.Time
	if err := row.Scan(append([]any{&kind, &o.ID, &o.Version, &body, &kept, &changed, &o.ChangedBy}, more...)...); err != nil {
		return kind, o, err
	}
	if !kind.Known() {
		return kind, o, nil
	}
	o.Kind, o.ChangedAt = kind, changed.UTC()
	return kind, o, loadObject(o, body, kept)
}

func loadObject(o *catalog.Object, body, kept []byte) (err error) {
	if o.Body, err = catalog.Load(o.Kind, body); err != nil {
		return err
	}
	if err := json.Unmarshal(kept, &o.Kept); err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	return nil
}

// What an explanation asks. The conditions are those of indexes.
const (
	selectKey  = `SELECT ` + objectColumns + ` FROM objects WHERE kind = 'api_key' AND kept ->> 'digest' = $1`
	selectNear = `
		SELECT kind, ` + objectColumns + ` FROM objects WHERE kind = 'tenant' AND id = $1
		UNION ALL
		SELECT kind, ` + objectColumns + ` FROM objects WHERE kind = 'service' AND id = $2
		UNION ALL
		SELECT kind, ` + objectColumns + ` FROM objects WHERE kind = 'endpoint' AND body ->> 'service' = $2`
	selectCandidates = `
		(SELECT ` + objectColumns + ` FROM objects WHERE kind = 'rule' AND id = $8)
		UNION ALL
		(SELECT ` + objectColumns + ` FROM objects
		WHERE kind = 'rule' AND coalesce(body #>> '{match,tenant}', '') IN ('', $1) AND coalesce(body #>> '{match,application}', '') IN ('', $2)
			AND coalesce(body #>> '{match,user}', '') IN ('', $3) AND coalesce(body #>> '{match,api_key}', '') IN ('', $4) AND id <> $8
		ORDER BY coalesce(body #>> '{match,plan}', '') IN ('', $5) AND coalesce(body #>> '{match,service}', '') IN ('', $6)
			AND coalesce(body #>> '{match,endpoint}', '') IN ('', $7) DESC, id
		LIMIT $9)
		LIMIT $9`
)

// KeyOf returns the API key whose secret has the digest, or nil.
func (s *Store) KeyOf(ctx context.Context, digest []byte) (*catalog.Object, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, selectKey, base64.StdEncoding.EncodeToString(digest)) // as JSON has it
	if err != nil {
		return nil, fail("read a key", err)
	}
	o, err := collectObject(rows, catalog.KindAPIKey)
	return o, fail("read a key", err)
}

// Surroundings returns a tenant, and a service with its endpoints.
func (s *Store) Surroundings(ctx context.Context, tenant, service string) (out catalog.Surroundings, err error) {
	if err := s.usable(); err != nil {
		return out, err
	}
	rows, err := s.pool.Query(ctx, selectNear, tenant, service)
	if err != nil {
		return out, fail("read surroundings", err)
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
		kind, o, err := scanKinded(row)
		switch kind { //nolint:exhaustive // no other is asked for
		case catalog.KindTenant:
			out.Tenant = o
		case catalog.KindService:
			out.Service = o
		default:
			out.Endpoints = append(out.Endpoints, o)
		}
		return none, err
	})
	return out, fail("read surroundings", err)
}

// Candidates returns the rules whose selectors of tenant, application, user and
// API key hold for a request, and the one that extra names.
func (s *Store) Candidates(ctx context.Context, q *rule.Request, extra string, most int) ([]*catalog.Object, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, selectCandidates,
		q.Tenant, q.Application, q.User, q.APIKey, q.Plan, q.Service, q.Endpoint, extra, most)
	if err != nil {
		return nil, fail("read candidates", err)
	}
	list, err := pgx.CollectRows(rows, scanObject(catalog.KindRule))
	return list, fail("read candidates", err)
}
