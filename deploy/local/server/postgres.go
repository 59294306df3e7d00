package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PostgresOptions configures StartPostgres.
type PostgresOptions struct {
	Port int // 0 picks a free one
	// Volatile switches fsync off: several times faster, and a crash of the
	// machine (not of the server) may lose everything. For tests.
	Volatile bool
	// Databases are created when absent. The process's URL names the first of
	// them, else the database "postgres".
	Databases []string
	Settings  []string // further settings, name=value, last
	Run
}

// postgresUser is the superuser of the cluster, and the operating system's user
// that runs it when this process is root, which PostgreSQL refuses to be.
const postgresUser = "postgres"

// StartPostgres starts Debian's PostgreSQL (15 or newer) on 127.0.0.1, with
// logical replication on and every loopback client trusted.
func StartPostgres(ctx context.Context, dir string, o PostgresOptions) (*Process, error) {
	spec, err := postgresSpec(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	p, err := Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := createDatabases(ctx, p.Addr, o.Databases); err != nil {
		return nil, errors.Join(fmt.Errorf("postgres: %w", err), p.Stop(ctx))
	}
	return p, nil
}

func postgresSpec(ctx context.Context, dir string, o PostgresOptions) (Spec, error) {
	bin, err := findPostgres(ctx, o.Run)
	if err != nil {
		return Spec{}, err
	}
	port, err := orFree(ctx, o.Port, dir, o.Run, addrOf)
	if err != nil {
		return Spec{}, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return Spec{}, err
	}
	data := filepath.Join(dir, "data")
	if err := initPostgres(ctx, bin, data, o.Run); err != nil {
		return Spec{}, err
	}
	as, err := postgresIdentity(data)
	if err != nil {
		return Spec{}, err
	}
	database := postgresUser
	if len(o.Databases) > 0 {
		database = o.Databases[0]
	}
	addr := loopback(port)
	return Spec{
		Name: "postgres", Path: filepath.Join(bin, "postgres"), Args: postgresArgs(data, port, o), Dir: dir,
		Addr: addr, URL: "postgres://" + postgresUser + "@" + addr + "/" + database + "?sslmode=disable",
		Ready: func(ctx context.Context) error {
			c, err := pgConnect(ctx, addr, postgresUser, postgresUser)
			if err != nil {
				return err
			}
			return c.Close()
		},
		Gone: func() bool { return postgresGone(data) },
		Stop: syscall.SIGINT, // fast: open transactions are rolled back, clients sent away
		// Immediate: unlike SIGKILL it frees the shared memory.
		Orphan: syscall.SIGQUIT,
		As:     as, Run: o.Run,
	}, nil
}

func postgresArgs(data string, port int, o PostgresOptions) []string {
	settings := []string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "port=" + strconv.Itoa(port),
		"wal_level=logical", "max_replication_slots=64", "max_wal_senders=64",
		"log_line_prefix=%m [%p] %q%d ", "log_timezone=UTC", "timezone=UTC",
	}
	if o.Volatile {
		// synchronous_commit stays on: without it logical replication sees a
		// commit only when the WAL writer comes round.
		// Memory is mapped from the data directory, which goes away with it.
		settings = append(settings, "fsync=off", "full_page_writes=off",
			"dynamic_shared_memory_type=mmap", "max_wal_size=256MB")
	}
	args := []string{"-D", data}
	for _, s := range append(settings, o.Settings...) {
		args = append(args, "-c", s)
	}
	return args
}

// initPostgres makes a cluster in data when there is none, by copying a
// template that initdb makes once per user and server version: 0.1 s for 1 s.
// The copy is built beside data and renamed, so data is whole or absent.
func initPostgres(ctx context.Context, bin, data string, run Run) error {
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return nil
	}
	template, err := postgresTemplate(ctx, bin, run)
	if err != nil {
		return err
	}
	building := data + ".new"
	if err := errors.Join(os.MkdirAll(filepath.Dir(data), 0o755), os.RemoveAll(building)); err != nil {
		return err
	}
	if err := copyTree(template, building); err != nil {
		return err
	}
	return os.Rename(building, data)
}

func postgresTemplate(ctx context.Context, bin string, run Run) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("postgres --version: %w", err)
	}
	words := strings.Fields(string(out)) // postgres (PostgreSQL) 15.18 (Debian …)
	if len(words) < 3 {
		return "", fmt.Errorf("postgres --version said %q", out)
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	template := filepath.Join(cache, "postgres-"+words[2])
	unlock, err := lock(ctx, template+".lock", run.say)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(template, "PG_VERSION")); err == nil {
		return template, nil
	}
	begun := time.Now()
	run.say("postgres %s: making an empty cluster (a second or two, once)", words[2])
	building := template + ".new"
	if err := os.RemoveAll(building); err != nil {
		return "", err
	}
	if err := initdb(ctx, bin, building); err != nil {
		return "", err
	}
	run.say("postgres %s: made in %v", words[2], time.Since(begun).Round(100*time.Millisecond))
	return template, os.Rename(building, template)
}

// initdb runs as the user that the cluster will belong to.
func initdb(ctx context.Context, bin, data string) error {
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	as, err := postgresIdentity(data)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data,
		"-U", postgresUser, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions")
	cmd.Dir = "/"
	if as != nil {
		if err := os.Chown(data, int(as.uid), int(as.gid)); err != nil {
			return err
		}
		cmd.SysProcAttr = Spec{As: as, Orphan: syscall.SIGKILL}.attributes()
		cmd.SysProcAttr.Pdeathsig = 0 // a half-made template is thrown away by the next
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// postgresIdentity is nil unless this process is root. A clone in root's home
// lies behind a directory that user postgres may not enter; it then keeps the
// one capability that lets it through.
func postgresIdentity(data string) (*identity, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no other identity is an answer, not a failure
	}
	u, err := user.Lookup(postgresUser)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	as := &identity{uid: uint32(uid), gid: uint32(gid)}
	as.passThrough(filepath.Dir(data))
	return as, nil
}

// postgresGone reports whether nobody is attached to the shared memory that
// line 7 of postmaster.pid names. The children of a killed server notice its end
// a moment later, and until then PostgreSQL refuses to start.
func postgresGone(data string) bool {
	lock, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return true // stopped in order, or never started
	}
	lines := strings.Split(string(lock), "\n")
	if len(lines) < 7 {
		return true
	}
	segment := strings.Fields(lines[6]) // key, id
	shm, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || len(segment) != 2 {
		return true
	}
	for line := range strings.Lines(string(shm)) {
		// key, shmid, perms, size, cpid, lpid, nattch, …
		if f := strings.Fields(line); len(f) > 6 && f[1] == segment[1] {
			return f[6] == "0"
		}
	}
	return true
}

func createDatabases(ctx context.Context, addr string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	c, err := pgConnect(ctx, addr, postgresUser, postgresUser)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for _, name := range names {
		quoted := strings.ReplaceAll(name, "'", "''")
		rows, err := c.query("SELECT 1 FROM pg_database WHERE datname = '" + quoted + "'")
		if err != nil {
			return err
		}
		if rows == 0 {
			if _, err := c.query(`CREATE DATABASE "` + strings.ReplaceAll(name, `"`, `""`) + `"`); err != nil {
				return err
			}
		}
	}
	return nil
}
