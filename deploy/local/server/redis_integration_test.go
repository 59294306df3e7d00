//go:build integration

package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

// redisAnswers sends one inline command and returns all that is answered.
func redisAnswers(t *testing.T, p *server.Process, command string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, command+"\r\nQUIT\r\n"); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "+OK\r\n")
}

// TestIntegrationRedisKeepsItsData guarantees that an append-only Redis has its
// data after a restart, and any other is empty.
func TestIntegrationRedisKeepsItsData(t *testing.T) {
	t.Parallel()

	for want, appendOnly := range map[string]bool{"$1\r\nv\r\n": true, "$-1\r\n": false} {
		p, err := server.StartRedis(t.Context(), t.TempDir(), server.RedisOptions{AppendOnly: appendOnly, Run: logged(t)})
		if err != nil {
			t.Fatal(err)
		}
		stopLater(t, p)
		redisAnswers(t, p, "SET k v")
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := redisAnswers(t, p, "GET k"); got != want {
			t.Errorf("append-only %v: after a restart GET k = %q, want %q", appendOnly, got, want)
		}
	}
}

// TestIntegrationRedisSaysWhatIsWrong guarantees that a refusal to start is
// reported in the server's own words.
func TestIntegrationRedisSaysWhatIsWrong(t *testing.T) {
	t.Parallel()

	_, err := server.StartRedis(t.Context(), t.TempDir(), server.RedisOptions{Args: []string{"--no-such-setting", "1"}})
	if !errors.Is(err, server.ErrExited) || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("err = %v, want ErrExited and the server's complaint", err)
	}
}

// TestIntegrationDetachedRedisKeepsItsPort guarantees that a detached server
// that picked its port itself is found again by a start that names none.
func TestIntegrationDetachedRedisKeepsItsPort(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "redis")
	options := server.RedisOptions{Run: server.Run{Detach: true}}
	first, err := server.StartRedis(t.Context(), dir, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := first.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	second, err := server.StartRedis(t.Context(), dir, options)
	if err != nil {
		t.Fatal(err)
	}
	if second.PID() != first.PID() || second.Addr != first.Addr {
		t.Errorf("found pid %d at %s, want pid %d at %s", second.PID(), second.Addr, first.PID(), first.Addr)
	}
	if _, err := os.Stat(filepath.Join(dir, "redis.pid")); err != nil {
		t.Error(err)
	}
}
