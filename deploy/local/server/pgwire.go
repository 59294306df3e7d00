package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// pgConn speaks just enough of PostgreSQL's protocol 3 to prove that a server
// with trust authentication answers queries, and to create databases.
type pgConn struct {
	net.Conn
	r *bufio.Reader
}

// pgConnect returns when the server is ready for a query.
func pgConnect(ctx context.Context, addr, user, database string) (*pgConn, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &pgConn{conn, bufio.NewReader(conn)}
	const protocol3 = 3 << 16
	body := binary.BigEndian.AppendUint32(nil, protocol3)
	for _, s := range []string{"user", user, "database", database, ""} {
		body = append(append(body, s...), 0)
	}
	msg := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	if _, err := conn.Write(append(msg, body...)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err := c.drain(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// query runs one statement and returns how many rows it gave.
func (c *pgConn) query(sql string) (rows int, err error) {
	msg := binary.BigEndian.AppendUint32([]byte{'Q'}, uint32(len(sql)+5))
	if _, err := c.Write(append(append(msg, sql...), 0)); err != nil {
		return 0, err
	}
	return c.drain()
}

// drain reads up to ReadyForQuery, counting rows. The first error wins.
func (c *pgConn) drain() (rows int, failed error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return rows, errors.Join(failed, err)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > 1<<20 {
			return rows, fmt.Errorf("postgres sent a message of %d bytes", size)
		}
		body := make([]byte, size-4)
		if _, err := io.ReadFull(c.r, body); err != nil {
			return rows, errors.Join(failed, err)
		}
		switch head[0] {
		case 'Z':
			return rows, failed
		case 'D':
			rows++
		case 'E':
			if failed == nil {
				failed = pgError(body)
			}
			if pgFatal(body) {
				return rows, failed
			}
		case 'R':
			if len(body) < 4 || binary.BigEndian.Uint32(body) != 0 {
				return rows, errors.New("postgres asks for a password, want trust")
			}
		}
	}
}

// pgError formats an ErrorResponse: severity, message and SQLSTATE.
func pgError(body []byte) error {
	f := pgFields(body)
	return fmt.Errorf("postgres: %s: %s (SQLSTATE %s)", f['S'], f['M'], f['C'])
}

func pgFatal(body []byte) bool { s := pgFields(body)['V']; return s == "FATAL" || s == "PANIC" }

func pgFields(body []byte) map[byte]string {
	fields := map[byte]string{}
	for f := range bytes.SplitSeq(body, []byte{0}) {
		if len(f) > 1 {
			fields[f[0]] = string(f[1:])
		}
	}
	return fields
}
