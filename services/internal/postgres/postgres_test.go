package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"penstock.dev/services/internal/postgres"
)

// TestAway guarantees which errors mean that the same call may work later, so
// that callers are told to wait and not that they were wrong.
func TestAway(t *testing.T) {
	t.Parallel()
	sqlState := func(code string) error { return fmt.Errorf("query: %w", &pgconn.PgError{Code: code}) }
	tests := []struct {
		name string
		err  error
		want bool
	}{
		{"nothing", nil, false},
		{"a refused connection", &net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		{"a connection that ended", io.ErrUnexpectedEOF, true},
		{"a connection that the driver closed", fmt.Errorf("x: %w", pgconn.ErrConnClosed), true},
		{"a caller that waits no longer", context.DeadlineExceeded, true},
		{"a caller that left", context.Canceled, true},
		{"a server that shuts down", sqlState("57P01"), true},
		{"a server that starts up", sqlState("57P03"), true},
		{"a cancelled statement", sqlState("57014"), true},
		{"too many connections", sqlState("53300"), true},
		{"a full disk", sqlState("53100"), true},
		{"a standby", sqlState("25006"), true},
		{"a lock that was not had in time", sqlState("55P03"), true},
		{"a deadlock", sqlState("40P01"), true},
		{"a transaction that idled", sqlState("25P03"), true},
		{"a unique violation", sqlState("23505"), false},
		{"a foreign key violation", sqlState("23503"), false},
		{"a table that is not there", sqlState("42P01"), false},
		{"a privilege that is not there", sqlState("42501"), false},
		{"text that is no SQLSTATE", sqlState("5"), false},
		{"anything else", errors.New("boom"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := postgres.Away(tt.err)
			if errors.Is(got, postgres.ErrUnavailable) != tt.want || !errors.Is(got, tt.err) {
				t.Errorf("Away(%v) = %v, want unavailable %v", tt.err, got, tt.want)
			}
			if again := postgres.Away(got); tt.want && again.Error() != got.Error() {
				t.Errorf("Away twice = %v, want it said once", again)
			}
		})
	}
}

// TestCode guarantees that a SQLSTATE is found however deep it is wrapped.
func TestCode(t *testing.T) {
	t.Parallel()
	if got := postgres.Code(fmt.Errorf("a: %w", &pgconn.PgError{Code: "23505"})); got != "23505" {
		t.Errorf("Code = %q", got)
	}
	if got := postgres.Code(errors.New("x")); got != "" {
		t.Errorf("Code = %q, want none", got)
	}
}

// TestOpen guarantees that opening dials nobody, and that an address which is
// none is refused at once.
func TestOpen(t *testing.T) {
	t.Parallel()
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: "postgres://nobody@127.0.0.1:1/none"})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Ping(pool)(t.Context()); !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("Ping = %v, want unavailable", err)
	}
	if _, err := postgres.Open(t.Context(), postgres.Config{URL: "postgres://h:port/d"}); err == nil {
		t.Error("a port that is none was taken")
	}
}
