// Package postgres is the pool, the transactions and the migrations that every
// service with tables shares. It moves rows and knows no table.
//
// Nothing here dials before it is asked to: a service starts without its
// database, says so in readiness, and serves as soon as the database answers.
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Config says where the database is and how long a caller waits for it.
type Config struct {
	URL      string        // postgres://user@host:port/database?…
	Name     string        // application_name, as pg_stat_activity shows it
	MaxConns int32         // connections at most; 0: 10
	Connect  time.Duration // to open a connection; 0: 2 s
	// Statement bounds one statement, the wait for a lock included, and how
	// long a transaction may idle; 0: 5 s. The database ends what runs longer,
	// so a client that hangs cannot hold a lock for good.
	Statement time.Duration
}

// Open returns a pool. It does not dial; the error is about the configuration.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("database url: %w", err)
	}
	limit := cfg.Statement
	if limit <= 0 {
		limit = 5 * time.Second
	}
	ms := fmt.Sprint(limit.Milliseconds())
	for name, value := range map[string]string{
		"application_name":                    cfg.Name,
		"statement_timeout":                   ms,
		"lock_timeout":                        ms,
		"idle_in_transaction_session_timeout": ms,
		"timezone":                            "UTC",
	} {
		if _, set := c.ConnConfig.RuntimeParams[name]; !set && value != "" {
			c.ConnConfig.RuntimeParams[name] = value
		}
	}
	c.ConnConfig.ConnectTimeout = cfg.Connect
	if cfg.Connect <= 0 {
		c.ConnConfig.ConnectTimeout = 2 * time.Second
	}
	c.MaxConns = cfg.MaxConns
	if cfg.MaxConns <= 0 {
		c.MaxConns = 10
	}
	c.MaxConnIdleTime = 5 * time.Minute
	c.HealthCheckPeriod = 15 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	return pool, nil
}

// Ping returns a readiness check: nil when the database answers.
func Ping(pool *pgxpool.Pool) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if err := pool.Ping(ctx); err != nil {
			return fmt.Errorf("database: %w", Away(err))
		}
		return nil
	}
}

// InTx runs do in one read-committed transaction and commits it when do
// returns nil; else it rolls back and returns do's error as it is. Its own
// errors, those of the commit among them, are as Away leaves them: a commit that
// fails with ErrUnavailable may have happened.
func InTx(ctx context.Context, pool *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", Away(err))
	}
	if err := do(tx); err != nil {
		// A rollback that fails leaves a broken connection, which the pool drops.
		_ = tx.Rollback(context.WithoutCancel(ctx))
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", Away(err))
	}
	return nil
}
