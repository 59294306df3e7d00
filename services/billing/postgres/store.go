// Package postgres keeps the books in PostgreSQL: what was counted and how far, the
// catalogue that prices it, the wallets' ledger, and the invoices.
//
// Counting is one transaction per batch of events: what they add up to, the numbers
// that were seen of each gateway's stream, and how far each partition was read. So a
// batch that is read again, wherever reading begins, changes nothing.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/postgres"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Config says where the database is and how invoices are numbered.
type Config struct {
	URL      string
	MaxConns int
	Issuer   string        // who bills; numbers have no gaps per issuer
	Prefix   string        // of numbers: INV-0000042
	Grace    time.Duration // between a period's end and its invoice
}

// A Store is the books. It is safe for concurrent use, also by many processes.
type Store struct {
	cfg      Config
	pool     *pgxpool.Pool
	log      *slog.Logger
	prepared atomic.Bool
}

// statement bounds one statement: a batch of events is large.
const statement = 30 * time.Second

// Open returns a store. It does not dial: Prepare does.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (*Store, error) {
	where, err := inSchema(cfg.URL)
	if err != nil {
		return nil, err
	}
	pool, err := postgres.Open(ctx, postgres.Config{URL: where, Name: "billing", MaxConns: int32(cfg.MaxConns), Statement: statement})
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, pool: pool, log: log}, nil
}

// Schema is where the tables are, so that other services may have theirs in the same
// database. A search_path in the URL names another, which must be there.
const Schema = "billing"

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

// makeSchema makes the schema when it is missing. Instances that start together take
// turns, for PostgreSQL makes none of two that are made at once.
func (s *Store) makeSchema(ctx context.Context) error {
	return postgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('penstock billing schema'))`)
		if err == nil {
			_, err = tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+Schema)
		}
		return postgres.Away(err)
	})
}

// Close closes the connections.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// Prepare brings the tables up to date, however long the database takes to answer. It
// returns when they are, or when ctx ends.
func (s *Store) Prepare(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	const first, last = 100 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, last) {
		version, err := s.migrate(ctx, dir)
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

// TakeAsIs has the tables used as they are, in place of Prepare: whoever only reads makes
// and changes none, and does not wait for them.
func (s *Store) TakeAsIs() { s.prepared.Store(true) }

func (s *Store) migrate(ctx context.Context, dir fs.FS) (int64, error) {
	if err := s.makeSchema(ctx); err != nil {
		return 0, fmt.Errorf("schema %s: %w", Schema, err)
	}
	return postgres.Migrate(ctx, s.pool, dir)
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

// fail turns an error of the database into one of the account.
func fail(doing string, err error) error {
	switch {
	case err == nil || errors.Is(err, account.ErrUnavailable) || errors.Is(err, account.ErrNotFound) ||
		errors.Is(err, access.ErrNotFound) || errors.Is(err, access.ErrRefused):
		return err
	case errors.Is(postgres.Away(err), postgres.ErrUnavailable):
		return fmt.Errorf("%s: %w: %w", doing, account.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// inTx runs do in one transaction, when the tables are there.
func (s *Store) inTx(ctx context.Context, doing string, do func(tx pgx.Tx) error) error {
	if !s.prepared.Load() {
		return fmt.Errorf("%s: %w: %w", doing, account.ErrUnavailable, errNotPrepared)
	}
	return fail(doing, postgres.InTx(ctx, s.pool, do))
}

// null is a time for a column that may be empty.
func null(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// zero is a time of such a column.
func zero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// clean is a text from outside that PostgreSQL can hold.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
