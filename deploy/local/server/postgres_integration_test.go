//go:build integration

package server_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

// psql runs one statement and returns what it prints.
func psql(t *testing.T, url, sql string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestIntegrationPostgresLives guarantees that PostgreSQL starts below a directory that
// only its owner may enter, replicates logically, creates the databases that
// were asked for, and keeps its data over SIGKILL.
func TestIntegrationPostgresLives(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "postgres")
	if err := os.Chmod(filepath.Dir(dir), 0o700); err != nil { //nolint:gosec // a directory needs its x bits
		t.Fatal(err)
	}
	p, err := server.StartPostgres(t.Context(), dir, server.PostgresOptions{
		Volatile: true, Databases: []string{"one", "two's"}, Run: server.Run{Say: func(s string) { t.Log(s) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if got := psql(t, p.URL, "SELECT current_database() || ' ' || current_setting('wal_level')"); got != "one logical" {
		t.Errorf("database and wal_level are %q, want one and logical", got)
	}
	if got := psql(t, p.URL, "SELECT count(*) FROM pg_database WHERE datname = 'two''s'"); got != "1" {
		t.Errorf("the second database was not created")
	}
	psql(t, p.URL, "CREATE TABLE t AS SELECT 42 AS n")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := psql(t, p.URL, "SELECT n FROM t"); got != "42" {
		t.Errorf("after a kill the table holds %q, want 42", got)
	}
}
