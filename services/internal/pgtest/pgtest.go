// Package pgtest gives tests a real PostgreSQL.
//
// Database is what most tests want: a database of its own on one server per
// test binary. Start is for tests that kill the server, or that need their own
// replication slots, whose names a whole server shares. The servers have
// wal_level=logical and fsync off. A machine without PostgreSQL 15 or newer
// fails the test (as root, it is installed); nothing is skipped.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"penstock.dev/deploy/local/server"
)

// A Server is one PostgreSQL server. Its methods fail the test rather than
// return an error.
type Server struct {
	URL string // of the database "postgres", as superuser

	t       testing.TB
	process *server.Process
}

// Start returns a server of the test's own, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	dir, err := tempDir()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p, err := server.StartPostgres(t.Context(), dir, options(t))
	if err != nil {
		t.Fatalf("pgtest: %v", errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		if t.Failed() {
			logTail(t, p)
		}
		// Immediate shutdown: as quick as a kill, and it frees the shared memory.
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(p.Signal(syscall.SIGQUIT), p.Signal(syscall.SIGCONT), p.Stop(ctx), os.RemoveAll(dir)); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return &Server{URL: p.URL, t: t, process: p}
}

// Kill ends the server at once (SIGKILL).
func (s *Server) Kill() {
	s.t.Helper()
	s.must(s.process.Kill())
}

// Restart stops the server if it runs and starts it on the same port and data.
func (s *Server) Restart() {
	s.t.Helper()
	s.must(s.process.Restart(context.WithoutCancel(s.t.Context())))
}

// Freeze suspends the server's main process: no new connection is served.
func (s *Server) Freeze() {
	s.t.Helper()
	s.must(s.process.Freeze())
}

// Thaw ends a Freeze.
func (s *Server) Thaw() {
	s.t.Helper()
	s.must(s.process.Thaw())
}

// Database creates a database on the server and returns its URL. It is dropped
// at the end of the test, with its connections and replication slots.
func (s *Server) Database() string {
	s.t.Helper()
	return createDatabase(s.t, s.URL)
}

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
}

// Database returns the URL of a fresh database, on a server that all tests of
// the binary share. It is dropped at the end of the test, with its connections
// and replication slots. The server ends with the binary, however that ends.
func Database(t testing.TB) string {
	t.Helper()
	p, err := shared(t)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logTail(t, p)
		}
	})
	return createDatabase(t, p.URL)
}

// binary is the server that the tests of this binary share, started by the
// first that asks.
var binary struct {
	once    sync.Once
	process *server.Process
	err     error
}

func shared(t testing.TB) (*server.Process, error) {
	binary.once.Do(func() { binary.process, binary.err = startShared(t) })
	return binary.process, binary.err
}

// startShared leaves the end to the kernel: the server gets a signal when this
// binary ends, and a shell that waits for the same moment removes its data.
func startShared(t testing.TB) (*server.Process, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	if err := removeWhenOrphaned(context.WithoutCancel(t.Context()), dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return server.StartPostgres(t.Context(), dir, options(t))
}

func options(t testing.TB) server.PostgresOptions {
	return server.PostgresOptions{Volatile: true, Run: server.Run{Say: func(s string) { t.Log(s) }}}
}

// removeWhenOrphaned starts a process that reads a pipe that only this process
// writes to. It reads the end of file when this process has ended, waits for
// the server to let go of its pid file, and removes dir.
func removeWhenOrphaned(ctx context.Context, dir string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	const script = `read -r _
i=0
while [ -e "$0/data/postmaster.pid" ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
rm -rf -- "$0"`
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script, dir)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	keep = w
	return nil
}

// keep holds the write end of the pipe open for the life of this process.
var keep io.Closer //nolint:unused // being held is its use

// tempDir prefers memory: on some file systems the thousand files of an empty
// cluster take longer to create than everything else.
func tempDir() (string, error) {
	const memory, enough = "/dev/shm", 1 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err == nil && fs.Bavail*uint64(fs.Bsize) >= enough {
		return os.MkdirTemp(memory, "penstock-pgtest-")
	}
	return os.MkdirTemp("", "penstock-pgtest-")
}

var databases atomic.Int64

func createDatabase(t testing.TB, serverURL string) string {
	t.Helper()
	name := fmt.Sprintf("t%d", databases.Add(1))
	if err := execute(t.Context(), serverURL, "CREATE DATABASE "+name); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := dropDatabase(context.WithoutCancel(t.Context()), serverURL, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	u.Path = "/" + name
	return u.String()
}

func execute(ctx context.Context, serverURL, sql string) error {
	conn, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// dropDatabase first ends the replication of the database, which DROP DATABASE
// refuses to do even by force.
func dropDatabase(ctx context.Context, serverURL, name string) error {
	const endReplication = `
		SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE database = '%[1]s' AND active;
		SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '%[1]s'`
	conn, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	// The simple protocol takes several statements at once.
	if _, err := conn.PgConn().Exec(ctx, fmt.Sprintf(endReplication, name)).ReadAll(); err != nil {
		return fmt.Errorf("end replication of %s: %w", name, err)
	}
	_, err = conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	return err
}

func logTail(t testing.TB, p *server.Process) {
	lines, err := server.Tail(p.LogPath, 10)
	if err != nil {
		return
	}
	t.Log("postgres:\n    " + strings.Join(lines, "\n    "))
}
