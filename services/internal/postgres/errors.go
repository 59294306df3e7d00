package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnavailable reports a database that cannot serve now and may later: away,
// starting, out of connections or of space, a standby, or slower than the
// caller can wait. What a statement would have done is not known, unless the
// transaction was never committed.
var ErrUnavailable = errors.New("database unavailable")

// classes and codes of SQLSTATE that mean "later" and not "never".
var (
	awayClasses = map[string]bool{
		"08": true, // connection
		"53": true, // out of resources
		"57": true, // operator intervention, cancelled, shutting down, starting up
		"58": true, // input and output of the server itself
	}
	awayCodes = map[string]bool{
		"25006": true, // read only: a standby
		"25P03": true, // idle in transaction for too long
		"40001": true, // serialization
		"40P01": true, // deadlock
		"55P03": true, // lock not available in time
	}
)

// Away returns err wrapped in ErrUnavailable when that is what it means, and
// otherwise as it is. The end of ctx is a database too slow for its caller.
func Away(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || !away(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func away(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return len(pg.Code) == 5 && (awayClasses[pg.Code[:2]] || awayCodes[pg.Code])
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, pgconn.ErrConnClosed)
}

// Code returns the SQLSTATE that err carries, or "".
func Code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
