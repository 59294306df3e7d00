//go:build integration

package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock.dev/services/internal/pgtest"
)

// BenchmarkIntegrationPut tells what one change of a rule for one tenant costs
// over HTTP on PostgreSQL, one after the other and at the 100 per second of
// the load test: CPU time of this process, in which the client's share is some
// 20 µs, and of PostgreSQL; and statements and round trips.
func BenchmarkIntegrationPut(b *testing.B) {
	for _, bb := range []struct {
		name  string
		every time.Duration
	}{{"next", 0}, {"100ps", 10 * time.Millisecond}} {
		b.Run(bb.name, func(b *testing.B) {
			database := pgtest.Database(b)
			registry := startRegistry(b)
			s := start(b, database, registry.URL)
			s.ready()
			s.want(201, "PUT", "/v1/tenants/acme", `{"zone":"Europe/Istanbul"}`)
			postgres := postmasterOf(b, connect(b, database))
			put := newPutter(b, s.url)
			for i := range 200 { // past the first plans of each statement
				put(i)
			}
			own, theirs := ownCPU(b), postgres.cpu(b)
			b.ReportAllocs()
			tick := time.NewTicker(max(bb.every, 1))
			defer tick.Stop()
			for i := 0; b.Loop(); i++ {
				put(i)
				if bb.every > 0 {
					<-tick.C
				}
			}
			per := func(n int64, ops int) float64 { return float64(n) / float64(ops) }
			b.ReportMetric(per((ownCPU(b)-own).Nanoseconds(), b.N)/1e3, "own-µs/op")
			b.ReportMetric(per((postgres.cpu(b)-theirs).Nanoseconds(), b.N)/1e3, "postgres-µs/op")

			wire := newTap(b, database)
			tapped := start(b, wire.url, registry.URL)
			tapped.ready()
			put = newPutter(b, tapped.url)
			put(0)
			const counted = 100
			statements, trips := wire.statements.Load(), wire.trips.Load()
			for i := range counted {
				put(i)
			}
			b.ReportMetric(per(wire.statements.Load()-statements, counted), "statements/op")
			b.ReportMetric(per(wire.trips.Load()-trips, counted), "trips/op")
		})
	}
}

// newPutter returns a client that costs little: one connection, and answers
// are only read.
func newPutter(b *testing.B, base string) func(i int) {
	b.Helper()
	conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	in := bufio.NewReader(conn)
	return func(i int) {
		body := fmt.Sprintf(`{"name":"load test","enabled":true,"mode":"enforce","kind":"rate","algorithm":"gcra","subject":["tenant"],`+
			`"match":{"tenant":"acme"},"limit":%d,"window":"60s","burst":1000,"meter":"api-calls","on_failure":"open"}`, 1_000_000+i)
		_, err := fmt.Fprintf(conn, "PUT /v1/rules/r%d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nIf-Match: *\r\nContent-Length: %d\r\n\r\n%s",
			i%20, adminToken, len(body), body)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			b.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode > 201 {
			b.Fatalf("PUT = %s %s, %v", resp.Status, text, err)
		}
	}
}

// ownCPU is the CPU time that this process has used.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A postmaster is the process of PostgreSQL whose children serve.
type postmaster int

func postmasterOf(b *testing.B, db *sql.DB) postmaster {
	b.Helper()
	var backend int
	if err := db.QueryRowContext(b.Context(), `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		b.Fatal(err)
	}
	return postmaster(parent(backend))
}

// parent is the parent of a process; 0 when that is gone.
func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ") // behind the name
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1])
	return n
}

// cpu is the CPU time of the server's children that live.
func (p postmaster) cpu(b *testing.B) (sum time.Duration) {
	b.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.Fatal(err)
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if parent(pid) != int(p) {
			continue
		}
		text, _ := os.ReadFile(dir + "/schedstat")
		used, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(used, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// A tap stands between the service and PostgreSQL and counts what is asked.
type tap struct {
	url        string
	statements atomic.Int64
	trips      atomic.Int64 // that the service waited for
}

func newTap(b testing.TB, database string) *tap {
	b.Helper()
	ln, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	u, err := url.Parse(database)
	if err != nil {
		b.Fatal(err)
	}
	server := u.Host
	u.Host = ln.Addr().String()
	t := &tap{url: u.String()}
	b.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go t.serve(b.Context(), client, server)
		}
	}()
	return t
}

func (t *tap) serve(ctx context.Context, client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	upstream, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	go func() {
		_, _ = io.Copy(client, upstream)
		_ = client.Close()
	}()
	t.count(io.TeeReader(client, upstream))
}

// count reads the frontend's messages: the startup has no type, every other
// has one, and both have their length.
func (t *tap) count(r io.Reader) {
	in := bufio.NewReader(r)
	kind := byte(0)
	for first := true; ; first = false {
		var err error
		if !first {
			if kind, err = in.ReadByte(); err != nil {
				return
			}
		}
		var length uint32
		if err := binary.Read(in, binary.BigEndian, &length); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, in, int64(length)-4); err != nil {
			return
		}
		switch kind {
		case 'E', 'Q': // execute, simple query
			t.statements.Add(1)
		}
		if kind == 'S' || kind == 'Q' { // sync, or what ends with one
			t.trips.Add(1)
		}
	}
}
