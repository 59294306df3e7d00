// Package postgres keeps the catalogue in PostgreSQL: objects, the outbox that
// carries their records to the gateways, and the audit, each change of all
// three in one transaction.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"penstock.dev/services/internal/postgres"
	"penstock.dev/services/rule-admin/catalog"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Config says where the database is and how much of the outbox is kept.
type Config struct {
	URL      string
	MaxConns int           // connections at most
	Keep     time.Duration // how long an outbox row that a newer one has replaced is kept
}

// Encode returns the record of a change. It runs inside the transaction, so it
// must not wait for anything.
type Encode func(catalog.Change, catalog.Moment) (catalog.Record, error)

// A Store is the catalogue's database. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	keep     time.Duration
	encode   Encode
	log      *slog.Logger
	prepared atomic.Bool // the tables are there

	// turn is held by the one change that runs. Those that wait for it hold no
	// connection, so reads never wait for writes.
	turn chan struct{}
}

// Open returns a store. It does not dial: Run does, and until the database has
// answered, every call is catalog.ErrUnavailable.
func Open(ctx context.Context, cfg Config, encode Encode, log *slog.Logger) (*Store, error) {
	pool, err := postgres.Open(ctx, postgres.Config{URL: cfg.URL, Name: "rule-admin", MaxConns: int32(cfg.MaxConns)})
	if err != nil {
		return nil, err
	}
	return &Store{pool: pool, keep: cfg.Keep, encode: encode, log: log, turn: make(chan struct{}, 1)}, nil
}

// Close closes the connections.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// Prepare brings the tables up to date, however long the database takes to
// answer. It returns when they are, or when ctx ends.
func (s *Store) Prepare(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	const first, last = 100 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, last) {
		version, err := postgres.Migrate(ctx, s.pool, dir)
		if err == nil {
			s.prepared.Store(true)
			s.log.Info("tables are up to date", "version", version)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, postgres.ErrUnavailable) {
			return err
		}
		s.log.Warn("database does not answer", "error", err.Error(), "retry_in", wait.String())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errNotPrepared = errors.New("the tables are not prepared yet")

// Ready returns nil when the database answers and has its tables.
func (s *Store) Ready(ctx context.Context) error {
	if err := postgres.Ping(s.pool)(ctx); err != nil {
		return err
	}
	if !s.prepared.Load() {
		return errNotPrepared
	}
	return nil
}

// fail turns an error of the database into one of the catalogue.
func fail(doing string, err error) error {
	if err == nil || errors.Is(err, catalog.ErrUnavailable) {
		return err
	}
	if errors.Is(postgres.Away(err), postgres.ErrUnavailable) {
		return fmt.Errorf("%s: %w: %w", doing, catalog.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// usable is nil when the tables are there.
func (s *Store) usable() error {
	if s.prepared.Load() {
		return nil
	}
	return fmt.Errorf("%w: %w", catalog.ErrUnavailable, errNotPrepared)
}
