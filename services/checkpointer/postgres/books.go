// Package postgres keeps checkpoints in PostgreSQL: what every counter has come
// to, and in the same transaction how far usage.v1 is contained in it.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/postgres"
)

//go:embed migrations/*.sql
var migrations embed.FS

// statement bounds one: of ten thousand rows, behind others that write the same.
const statement = 30 * time.Second

// Books are checkpoints in a database. They are safe for concurrent use.
type Books struct {
	pool     *pgxpool.Pool
	log      *slog.Logger
	prepared atomic.Bool // the tables are there
}

// Open returns books. It does not dial: until Prepare has found the database,
// every call is checkpoint.ErrUnavailable.
func Open(ctx context.Context, database string, log *slog.Logger) (*Books, error) {
	where, err := inSchema(database)
	if err != nil {
		return nil, err
	}
	pool, err := postgres.Open(ctx, postgres.Config{URL: where, Name: "checkpointer", Statement: statement})
	if err != nil {
		return nil, err
	}
	return &Books{pool: pool, log: log}, nil
}

// Schema is where the tables are, so that other services may have theirs in the same
// database. A search_path in the URL names another, which must be there.
const Schema = "checkpointer"

// inSchema is a database's URL with the schema that is used there.
func inSchema(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("database url: it cannot be read") // the cause repeats it, with its password
	}
	q := u.Query()
	if q.Get("search_path") == "" {
		q.Set("search_path", Schema)
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// migrate makes the schema when it is missing, and its tables. Instances that start
// together take turns, for PostgreSQL makes none of two that are made at once.
func (b *Books) migrate(ctx context.Context, dir fs.FS) (int64, error) {
	if err := postgres.InTx(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('penstock checkpointer schema'))`)
		if err == nil {
			_, err = tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+Schema)
		}
		return postgres.Away(err)
	}); err != nil {
		return 0, fmt.Errorf("schema %s: %w", Schema, err)
	}
	return postgres.Migrate(ctx, b.pool, dir)
}

// Close closes the connections.
func (b *Books) Close() error {
	b.pool.Close()
	return nil
}

// Prepare brings the tables up to date, however long the database takes to
// answer. It returns when they are, or when ctx ends.
func (b *Books) Prepare(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	const first, last = 100 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, last) {
		version, err := b.migrate(ctx, dir)
		if err == nil {
			b.prepared.Store(true)
			b.log.Info("tables are up to date", "version", version)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, postgres.ErrUnavailable) {
			return err
		}
		b.log.Warn("database does not answer", "error", err.Error(), "retry_in", wait.String())
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

var errNotPrepared = errors.New("the tables are not prepared yet")

// Ready returns nil when the database answers and has its tables.
func (b *Books) Ready(ctx context.Context) error {
	if err := postgres.Ping(b.pool)(ctx); err != nil {
		return err
	}
	if !b.prepared.Load() {
		return errNotPrepared
	}
	return nil
}

// fail is an error of the database as the domain knows it.
func fail(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(postgres.Away(err), postgres.ErrUnavailable):
		return fmt.Errorf("%s: %w: %w", doing, checkpoint.ErrUnavailable, err)
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
}

// usable is nil when the tables are there.
func (b *Books) usable() error {
	if b.prepared.Load() {
		return nil
	}
	return fmt.Errorf("%w: %w", checkpoint.ErrUnavailable, errNotPrepared)
}

// restoring is the number of the lock under which a store is restored.
const restoring = 0x70656e73746f636b

// Lock takes the lock under which a store is restored. It ends with the connection
// that holds it, and after a minute: whoever hangs must not keep others from it.
func (b *Books) Lock(ctx context.Context) (release func(), held bool, err error) {
	if err := b.usable(); err != nil {
		return nil, false, err
	}
	conn, err := b.pool.Acquire(ctx)
	if err == nil {
		if err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1) FROM set_config('idle_session_timeout', '60s', false)`, int64(restoring)).Scan(&held); err != nil || !held {
			conn.Release()
		}
	}
	if err != nil || !held {
		return nil, false, fail("lock", err)
	}
	return func() {
		// Closing the connection gives the lock back whatever else happens.
		_ = conn.Hijack().Close(context.WithoutCancel(ctx))
	}, true, nil
}

// Kept returns whether and since when the store is kept.
func (b *Books) Kept(ctx context.Context) (k checkpoint.Kept, err error) {
	if err := b.usable(); err != nil {
		return k, err
	}
	err = b.pool.QueryRow(ctx, `SELECT since FROM custody`).Scan(&k.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return k, nil
	}
	k.Any, k.Since = err == nil, k.Since.UTC()
	return k, fail("read custody", err)
}

// Begin remembers since when the store is kept, unless it is known.
func (b *Books) Begin(ctx context.Context, since time.Time) error {
	if err := b.usable(); err != nil {
		return err
	}
	_, err := b.pool.Exec(ctx, `INSERT INTO custody (since) VALUES ($1) ON CONFLICT DO NOTHING`, since)
	return fail("begin custody", err)
}

// Tidy forgets what is over and returns what is left.
func (b *Books) Tidy(ctx context.Context, now time.Time) (s checkpoint.Stock, err error) {
	if err := b.usable(); err != nil {
		return s, err
	}
	const day = 24 * time.Hour
	var batch pgx.Batch
	batch.Queue(`DELETE FROM counters WHERE expires_at < $1`, now.Add(-day))
	batch.Queue(`DELETE FROM corrections WHERE made_at < $1`, now.Add(-8*day))
	batch.Queue(`DELETE FROM streams WHERE seen_at < $1`, now.Add(-8*day))
	batch.Queue(`
		SELECT count(*), count(*) FILTER (WHERE kind = 'wallet'), coalesce(least(sum(abs(consumed - refunded - told)), 9223372036854775807), 0)::bigint FROM counters`,
	).QueryRow(func(row pgx.Row) error { return row.Scan(&s.Counters, &s.Wallets, &s.Unattributed) })
	return s, fail("tidy", b.pool.SendBatch(ctx, &batch).Close())
}
