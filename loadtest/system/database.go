package system

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"penstock.dev/deploy/local/estate"
)

// Database opens a connection to rule-admin's database.
func (s *System) Database(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, s.Env["DATABASE_URL"])
}

// ErrNoCommitTimes reports a PostgreSQL that does not remember commit times.
var ErrNoCommitTimes = errors.New("track_commit_timestamp is off: ALTER SYSTEM SET track_commit_timestamp = on, and restart PostgreSQL")

// commitTimes makes sure that PostgreSQL remembers when transactions were
// committed, which takes a restart when it does not.
func (s *System) commitTimes(ctx context.Context) error {
	on, err := s.query(ctx, "SHOW track_commit_timestamp")
	if err != nil || on == "on" {
		return err
	}
	if !s.own {
		return ErrNoCommitTimes
	}
	if _, err := s.query(ctx, "ALTER SYSTEM SET track_commit_timestamp = on"); err != nil {
		return err
	}
	if err := s.Process(estate.Postgres).Restart(ctx); err != nil {
		return err
	}
	return s.awaitReady(ctx)
}

// query returns the first value of the answer, "" when there is none.
func (s *System) query(ctx context.Context, sql string) (answer string, err error) {
	db, err := s.Database(ctx)
	if err != nil {
		return "", fmt.Errorf("database: %w", err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	err = db.QueryRow(ctx, sql).Scan(&answer)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return answer, err
}
