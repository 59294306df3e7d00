//go:build integration

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"penstock.dev/services/internal/pgtest"
	"penstock.dev/services/internal/postgres"
)

func open(t *testing.T, cfg postgres.Config) *pgxpool.Pool {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = pgtest.Database(t)
	}
	pool, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func number(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// TestIntegrationInTx guarantees that a transaction is committed when its work
// returns nil and leaves no trace otherwise, whatever ends it.
func TestIntegrationInTx(t *testing.T) {
	t.Parallel()
	pool := open(t, postgres.Config{MaxConns: 2})
	exec(t, pool, `CREATE TABLE n (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)`)
	insert := func(n int) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO n VALUES ($1)`, n)
			return err
		}
	}
	if err := postgres.InTx(t.Context(), pool, insert(1)); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error { return errors.Join(insert(2)(tx), boom) })
	if !errors.Is(err, boom) {
		t.Errorf("InTx = %v, want the work's own error", err)
	}
	if err := postgres.InTx(t.Context(), pool, insert(1)); postgres.Code(err) != "23505" || errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("InTx = %v, want the commit's unique violation", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		defer cancel()
		return insert(3)(tx)
	})
	if !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("InTx with a caller that left = %v, want unavailable", err)
	}
	err = postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		if err := insert(4)(tx); err != nil {
			return err
		}
		_, _ = tx.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
		return nil
	})
	if !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("InTx on a connection that was cut = %v, want unavailable", err)
	}
	if n := number(t, pool, `SELECT sum(n) FROM n`); n != 1 {
		t.Errorf("the rows add up to %d, want 1", n)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still out", n)
	}
}

// TestIntegrationBounds guarantees that the database itself ends a statement, a
// wait for a lock and an idle transaction after the configured time.
func TestIntegrationBounds(t *testing.T) {
	t.Parallel()
	pool := open(t, postgres.Config{Statement: 300 * time.Millisecond})
	exec(t, pool, `CREATE TABLE n (n int); INSERT INTO n VALUES (1)`)
	if _, err := pool.Exec(t.Context(), `SELECT pg_sleep(60)`); !errors.Is(postgres.Away(err), postgres.ErrUnavailable) {
		t.Errorf("a slow statement = %v, want unavailable", err)
	}
	hangs := make(chan struct{})
	holder := make(chan error, 1)
	held := make(chan struct{})
	go func() {
		holder <- postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE n SET n = 2`)
			close(held)
			<-hangs
			return err
		})
	}()
	<-held
	start := time.Now()
	for { // until the database has ended the transaction that idles
		_, err := pool.Exec(t.Context(), `UPDATE n SET n = 3`)
		if err == nil {
			break
		}
		if !errors.Is(postgres.Away(err), postgres.ErrUnavailable) || time.Since(start) > 20*time.Second {
			t.Fatalf("behind a held lock: %v after %v", err, time.Since(start))
		}
	}
	close(hangs)
	if err := <-holder; !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("the transaction that idled = %v, want unavailable", err)
	}
	if n := number(t, pool, `SELECT n FROM n`); n != 3 {
		t.Errorf("n is %d, want 3", n)
	}
}

// TestIntegrationMigrate guarantees that each migration runs once and whole,
// whoever starts when, and that an older build goes on beside a newer database.
func TestIntegrationMigrate(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := open(t, postgres.Config{URL: url})
	file := func(sql string) *fstest.MapFile { return &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql)} }
	one := fstest.MapFS{"00001_one.sql": file(`CREATE TABLE n (n int); INSERT INTO n VALUES (1);`)}
	two := fstest.MapFS{"00001_one.sql": one["00001_one.sql"], "00002_two.sql": file(`INSERT INTO n VALUES (2);`)}
	broken := fstest.MapFS{
		"00001_one.sql": one["00001_one.sql"], "00002_two.sql": two["00002_two.sql"],
		"00003_three.sql": file(`INSERT INTO n VALUES (4); INSERT INTO nowhere VALUES (1);`),
	}
	migrate := func(files fstest.MapFS) (int64, error) { return postgres.Migrate(t.Context(), pool, files) }

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if v, err := migrate(one); v != 1 || err != nil {
				t.Errorf("Migrate = %d, %v, want 1", v, err)
			}
		})
	}
	wg.Wait()
	if v, err := migrate(two); v != 2 || err != nil {
		t.Errorf("Migrate = %d, %v, want 2", v, err)
	}
	if v, err := migrate(one); v != 2 || err != nil {
		t.Errorf("an older build: Migrate = %d, %v, want to leave 2", v, err)
	}
	if _, err := migrate(broken); err == nil || errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("a broken migration: Migrate = %v, want an error that no wait helps", err)
	}
	if n := number(t, pool, `SELECT sum(n) FROM n`); n != 3 {
		t.Errorf("the rows add up to %d, want 3: each migration once, and nothing of the broken one", n)
	}
	away := open(t, postgres.Config{URL: "postgres://nobody@127.0.0.1:1/none"})
	if _, err := postgres.Migrate(t.Context(), away, one); !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("without a database: Migrate = %v, want unavailable", err)
	}
}

// TestIntegrationPing guarantees what readiness says of a database.
func TestIntegrationPing(t *testing.T) {
	t.Parallel()
	pool := open(t, postgres.Config{Name: "penstock-test"})
	if err := postgres.Ping(pool)(t.Context()); err != nil {
		t.Errorf("Ping = %v", err)
	}
	var name string
	if err := pool.QueryRow(t.Context(), `SELECT current_setting('application_name') || ' ' || current_setting('timezone')`).Scan(&name); err != nil || name != "penstock-test UTC" {
		t.Errorf("the session is %q (%v), want its name, in UTC", name, fmt.Sprint(err))
	}
}
