package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/internal/postgres"
)

// pruneBatch bounds one deletion, so that none holds the table for long.
const pruneBatch = 1000

// prunable are the rows that nobody needs any more: a newer row of the same key
// replaces them. A tombstone goes last of its key: while an older row is there,
// re-reading the outbox without it would bring the object back.
const prunable = `
	FROM outbox o
	WHERE o.created_at < clock_timestamp() - $1::interval
		AND (EXISTS (SELECT FROM outbox n WHERE n.aggregatetype = o.aggregatetype AND n.aggregateid = o.aggregateid AND n.version > o.version)
			OR o.payload IS NULL AND NOT EXISTS (SELECT FROM outbox n
				WHERE n.aggregatetype = o.aggregatetype AND n.aggregateid = o.aggregateid AND n.version < o.version))`

// Prune deletes the rows of the outbox that are older than Keep and that nobody
// needs any more, and returns how many. A relay may read while it runs.
func (s *Store) Prune(ctx context.Context) (int64, error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	total := int64(0)
	for {
		var n int64
		err := postgres.InTx(ctx, s.pool, func(t pgx.Tx) error {
			if _, err := t.Exec(ctx, `SET LOCAL statement_timeout = '60s'`); err != nil {
				return err
			}
			tag, err := t.Exec(ctx, `DELETE FROM outbox WHERE id IN (SELECT o.id`+prunable+` ORDER BY o.version LIMIT $2)`, s.keep, pruneBatch)
			n = tag.RowsAffected()
			return err
		})
		total += n
		if err != nil {
			return total, fail("prune outbox", err)
		}
		if n == 0 {
			return total, nil
		}
	}
}

// OutboxRows returns how many rows the outbox has, and how many of them wait
// to be pruned.
func (s *Store) OutboxRows(ctx context.Context) (rows, pending int64, err error) {
	if err := s.usable(); err != nil {
		return 0, 0, err
	}
	err = s.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox), (SELECT count(*)`+prunable+`)`, s.keep).Scan(&rows, &pending)
	return rows, pending, fail("count outbox", err)
}

// Revision returns the revision of the last change.
func (s *Store) Revision(ctx context.Context) (revision int64, err error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	err = s.pool.QueryRow(ctx, `SELECT value FROM revision`).Scan(&revision)
	return revision, fail("read revision", err)
}

// SchemaID returns the id that was kept for a schema, and whether one was.
func (s *Store) SchemaID(ctx context.Context, subject, fingerprint string) (id uint32, ok bool, err error) {
	if err := s.usable(); err != nil {
		return 0, false, err
	}
	rows, err := s.pool.Query(ctx, `SELECT id FROM schema_ids WHERE subject = $1 AND fingerprint = $2`, subject, fingerprint)
	if err != nil {
		return 0, false, fail("read schema id", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(ids) == 0 {
		return 0, false, fail("read schema id", err)
	}
	return uint32(ids[0]), true, nil
}

// KeepSchemaID keeps the id of a schema, for starting without the registry.
func (s *Store) KeepSchemaID(ctx context.Context, subject, fingerprint string, id uint32) error {
	if err := s.usable(); err != nil {
		return err
	}
	_, err := s.pool.Exec(ctx, `
		INSERT INTO schema_ids (subject, fingerprint, id) VALUES ($1, $2, $3)
		ON CONFLICT (subject, fingerprint) DO UPDATE SET id = excluded.id, kept_at = now()`, subject, fingerprint, int64(id))
	return fail(fmt.Sprintf("keep schema id %d", id), err)
}
