//go:build integration

package pgtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/internal/pgtest"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func value(t *testing.T, url, sql string) string {
	t.Helper()
	var s string
	if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// TestIntegrationDatabasesArePrivate guarantees that each test has an empty
// database of its own, on a server that replicates logically.
func TestIntegrationDatabasesArePrivate(t *testing.T) {
	t.Parallel()

	a, b := pgtest.Database(t), pgtest.Database(t)
	value(t, a, "WITH t AS (SELECT 1) SELECT set_config('x.y', '1', false)")
	if value(t, a, "SELECT current_database()::text") == value(t, b, "SELECT current_database()::text") {
		t.Error("both tests have the same database")
	}
	if got := value(t, a, "SELECT current_setting('wal_level')"); got != "logical" {
		t.Errorf("wal_level is %s, want logical", got)
	}
}

// TestIntegrationDatabaseWithASlotIsDropped guarantees that a test may leave a
// replication slot behind, also one in use.
func TestIntegrationDatabaseWithASlotIsDropped(t *testing.T) {
	t.Parallel()

	var name string
	t.Run("leave a slot", func(t *testing.T) {
		url := pgtest.Database(t)
		name = value(t, url, "SELECT current_database()::text")
		value(t, url, "SELECT pg_create_logical_replication_slot('pgtest_left', 'pgoutput')::text")
	})
	if got := value(t, pgtest.Database(t), "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'"); got != "0" {
		t.Error("the database is still there")
	}
}

// TestIntegrationServerCanBeKilled guarantees that what was committed survives a
// kill of a private server.
func TestIntegrationServerCanBeKilled(t *testing.T) {
	t.Parallel()

	s := pgtest.Start(t)
	url := s.Database()
	if _, err := connect(t, url).Exec(t.Context(), "CREATE TABLE t AS SELECT 42 AS n"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Restart()
	if got := value(t, url, "SELECT n::text FROM t"); got != "42" {
		t.Errorf("after the kill the table holds %s, want 42", got)
	}
}

// crashEnv makes the test below crash instead of testing.
const crashEnv = "PENSTOCK_PGTEST_CRASH"

// TestIntegrationNothingIsLeft guarantees that a test binary that crashes in the
// middle of a test leaves neither its server nor its data behind.
func TestIntegrationNothingIsLeft(t *testing.T) {
	if os.Getenv(crashEnv) != "" {
		dir := value(t, pgtest.Database(t), "SHOW data_directory")
		_, _ = os.Stdout.WriteString("data=" + dir + "\n")
		go panic("as tests do")
		<-t.Context().Done()
	}
	t.Parallel()

	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestIntegrationNothingIsLeft$")
	cmd.Env = append(os.Environ(), crashEnv+"=1")
	out, err := cmd.CombinedOutput()
	m := regexp.MustCompile(`data=(\S+)`).FindSubmatch(out)
	if err == nil || m == nil {
		t.Fatalf("the crash ended with %v: %s", err, out)
	}
	dir := filepath.Dir(string(m[1]))
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s is still there", dir)
		case <-tick.C:
		}
	}
}
