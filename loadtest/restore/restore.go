// Package restore measures how long a checkpointer takes to restore a counter store
// that was emptied.
package restore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock.dev/loadtest/metrics"
	"penstock.dev/loadtest/system"
)

// Options say what is restored.
type Options struct {
	Counters int
	Tenants  int
	Say      func(format string, args ...any)
}

// A Result is what was measured.
type Result struct {
	Counters int     `json:"counters"`
	Restored int64   `json:"restored"` // keys in the store afterwards
	Wrong    int     `json:"wrong"`    // of a thousand that were looked at
	Emptied  float64 `json:"emptied_seconds"`
	Took     float64 `json:"restore_seconds"`
}

// probes are how many counters are looked at afterwards.
const probes = 1000

// patience is how long a store may take to be filled or restored.
const patience = 15 * time.Minute

// consumed is what counter i holds.
func consumed(i int) int64 { return int64(1000 + i%9000) }

// Run fills the books with counters, waits until the store holds them, empties it,
// and waits until somebody vouches for it again.
func Run(ctx context.Context, s *system.System, o Options) (r Result, err error) {
	r.Counters = o.Counters
	if err := fill(ctx, s, o); err != nil {
		return r, err
	}
	store, err := dial(ctx, s.Env["REDIS_URL"])
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, store.conn.Close()) }()
	o.Say("the checkpointer fills the store with %d counters", o.Counters)
	if err := until(ctx, func() (bool, error) {
		n, err := store.number("DBSIZE")
		return n >= int64(o.Counters), err
	}); err != nil {
		return r, err
	}
	before, err := metric(ctx, s, `penstock_checkpointer_restores_total{tail="whole"}`)
	if err != nil {
		return r, err
	}
	o.Say("the store is emptied")
	began := time.Now()
	if _, err := store.do("FLUSHALL"); err != nil {
		return r, err
	}
	if err := until(ctx, func() (bool, error) {
		now, err := metric(ctx, s, `penstock_checkpointer_restores_total{tail="whole"}`)
		return now > before, err
	}); err != nil {
		return r, err
	}
	r.Emptied = time.Since(began).Seconds()
	if r.Took, err = metric(ctx, s, "penstock_checkpointer_restore_seconds"); err != nil {
		return r, err
	}
	if r.Restored, err = store.number("DBSIZE"); err != nil {
		return r, err
	}
	for k := range probes {
		i := k * o.Counters / probes
		value, err := store.do("GET " + key(i, o.Tenants))
		if err != nil {
			return r, err
		}
		if len(value) < 9 || int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(value)[1:]))) != consumed(i) {
			r.Wrong++
		}
	}
	return r, nil
}

// key is counter i's in the store.
func key(i, tenants int) string {
	return fmt.Sprintf("{t:restore-%d}:e:quota:u:u%d:units:g:month*1:%d", i%tenants, i, start)
}

// The period of all counters, µs since 1970, in SQL and in keys.
const start = 4070908800000000 // 2099-01-01

// fill writes the counters where the checkpointer keeps them.
func fill(ctx context.Context, s *system.System, o Options) (err error) {
	db, err := s.Database(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	const at = 100_000
	for from := 0; from < o.Counters; from += at {
		if _, err := db.Exec(ctx, `
			INSERT INTO checkpointer.counters (key, kind, meter, period_start, period_end, limit_units, consumed, refunded, told, expires_at)
			SELECT convert_to('{t:restore-' || i % $3 || '}:e:quota:u:u' || i || ':units:g:month*1:' || $4::bigint, 'UTF8'), 'quota', 'units',
				'2099-01-01Z', '2099-02-01Z', 10000, 1000 + i % 9000, 0, 1000 + i % 9000, '2099-02-09Z'
			FROM generate_series($1::integer, $2::integer - 1) AS i`,
			from, min(from+at, o.Counters), o.Tenants, int64(start)); err != nil {
			return fmt.Errorf("fill the books: %w", err)
		}
	}
	return nil
}

func until(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// metric reads a series of the checkpointer.
func metric(ctx context.Context, s *system.System, series string) (float64, error) {
	page, err := metrics.Read(ctx, s.Env["CHECKPOINTER_METRICS_URL"])
	if err != nil {
		return 0, err
	}
	return page.Value(series)
}

// A redis is a connection to one, for commands without spaces in their words.
type redis struct {
	conn net.Conn
	in   *bufio.Reader
}

func dial(ctx context.Context, at string) (*redis, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, errors.New("REDIS_URL: it cannot be read")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return &redis{conn, bufio.NewReader(conn)}, nil
}

func (r *redis) number(command string) (int64, error) {
	reply, err := r.do(command)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(reply, 10, 64)
}

// do sends a command and returns the reply, empty where there is none.
func (r *redis) do(command string) (string, error) {
	if _, err := fmt.Fprintf(r.conn, "%s\r\n", command); err != nil {
		return "", err
	}
	line, err := r.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch line[:1] {
	case "+", ":":
		return line[1:], nil
	case "$":
		n, err := strconv.Atoi(line[1:])
		if err != nil || n < 0 {
			return "", err
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r.in, b); err != nil {
			return "", err
		}
		return string(b[:n]), nil
	default:
		return "", fmt.Errorf("%s: %s", command, line)
	}
}
