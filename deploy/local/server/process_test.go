package server_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// eventually polls until ok, for at most 10 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}

func startRedis(t *testing.T, o server.RedisOptions) *server.Process {
	t.Helper()
	p, err := server.StartRedis(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// redisSays sends one inline command and returns the first line of the answer.
func redisSays(t *testing.T, p *server.Process, command string) string {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err == nil && strings.HasPrefix(line, "$") && line != "$-1\r\n" {
		line, err = r.ReadString('\n')
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestProcessLives guarantees that a server can be stopped, killed and started
// again on its own port and data, and that its pid file is its own.
func TestProcessLives(t *testing.T) {
	t.Parallel()

	p := startRedis(t, server.RedisOptions{AppendOnly: true})
	pidFile := filepath.Join(p.Dir, "redis.pid")
	readPID := func() string {
		b, err := os.ReadFile(pidFile)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	addr, first := p.Addr, p.PID()
	if got, want := readPID(), strconv.Itoa(first); got != want {
		t.Errorf("pid file says %s, want %s", got, want)
	}
	if got := redisSays(t, p, "SET k v"); got != "+OK" {
		t.Fatalf("SET = %s", got)
	}

	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.PID() == first || p.Addr != addr {
		t.Errorf("after Restart: pid %d at %s, want another than %d at %s", p.PID(), p.Addr, first, addr)
	}
	if got := redisSays(t, p, "GET k"); got != "v" {
		t.Errorf("after Restart, GET k = %s, want v", got)
	}

	exited := p.Exited()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-exited:
	default:
		t.Error("Kill returned before the process was gone")
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatalf("Restart after Kill: %v", err)
	}

	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.Running() {
		t.Error("running after Stop")
	}
	if _, err := os.Stat(pidFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pid file is still there after Stop: %v", err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("second Stop = %v, want nil", err)
	}
}

// TestFrozenProcessAnswersNothing guarantees that Freeze makes a server hang
// rather than disappear, and that a frozen one can still be stopped.
func TestFrozenProcessAnswersNothing(t *testing.T) {
	t.Parallel()

	p := startRedis(t, server.RedisOptions{})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read from a frozen server: %v, want a timeout", err)
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	if got := redisSays(t, p, "PING"); got != "+PONG" {
		t.Errorf("after Thaw, PING = %s", got)
	}
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("Stop of a frozen server: %v", err)
	}
}

// TestStopKillsWhatDoesNotStop guarantees that Stop ends within its bound, and
// says that it had to kill.
func TestStopKillsWhatDoesNotStop(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	p, err := server.Start(t.Context(), server.Spec{
		Name: "stubborn", Path: "/bin/sh", Dir: dir, StopWithin: 50 * time.Millisecond,
		Args: []string{"-c", "trap '' TERM; : > deaf; while :; do /bin/sleep 0.05; done"},
		Ready: func(context.Context) error {
			_, err := os.Stat(filepath.Join(dir, "deaf"))
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = p.Stop(t.Context())
	if err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop = %v, want an error that says it was killed", err)
	}
	if p.Running() {
		t.Error("still running")
	}
}

// TestStartReportsWhatTheServerSaid guarantees that a server that does not come
// up is reported with the last lines of its log, and leaves no process.
func TestStartReportsWhatTheServerSaid(t *testing.T) {
	t.Parallel()

	t.Run("one that ends", func(t *testing.T) {
		t.Parallel()
		_, err := server.StartRedis(t.Context(), t.TempDir(), server.RedisOptions{Args: []string{"--no-such-setting", "1"}})
		if !errors.Is(err, server.ErrExited) || !strings.Contains(err.Error(), "no-such-setting") {
			t.Errorf("err = %v, want ErrExited and the server's complaint", err)
		}
	})
	t.Run("one that never answers", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		_, err := server.Start(t.Context(), server.Spec{
			Name: "mute", Path: "/bin/sh", Dir: dir, Args: []string{"-c", "echo thinking; exec /bin/sleep 60"},
			Ready: func(context.Context) error { return errors.New("no answer yet") },
			Run:   server.Run{Within: 100 * time.Millisecond},
		})
		if err == nil || !strings.Contains(err.Error(), "no answer yet") || !strings.Contains(err.Error(), "thinking") {
			t.Errorf("err = %v, want the probe's last error and the log", err)
		}
	})
}

// parent starts this test binary again as a process that owns a Redis, and
// returns it with the Redis's identity.
func parent(t *testing.T, dir string) (*exec.Cmd, server.ID) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	id, err := server.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, id
}

// TestServerDiesWithItsParent guarantees that a test binary that is killed
// leaves no server behind.
func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()

	cmd, id := parent(t, t.TempDir())
	if !id.Alive() {
		t.Fatal("the server is not running")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the orphan ends", func() bool { return !id.Alive() })
}

// TestDetachedServerIsTakenOver guarantees that a detached server outlives who
// started it, that a second start on its directory finds it instead of starting
// another, and that Find can stop it.
func TestDetachedServerIsTakenOver(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "detached")
	cmd, id := parent(t, dir)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	t.Cleanup(func() {
		if id.Alive() {
			_ = syscall.Kill(id.PID, syscall.SIGKILL)
		}
	})
	if !id.Alive() {
		t.Fatal("the detached server died with its parent")
	}

	p, err := server.StartRedis(t.Context(), dir, server.RedisOptions{Run: server.Run{Detach: true}})
	if err != nil {
		t.Fatal(err)
	}
	if p.PID() != id.PID {
		t.Errorf("a second start made pid %d, want the running %d", p.PID(), id.PID)
	}
	if got := redisSays(t, p, "PING"); got != "+PONG" {
		t.Errorf("PING = %s", got)
	}

	found, ok, err := server.Find(dir)
	if err != nil || !ok || found.PID() != id.PID {
		t.Fatalf("Find = %v, %v, %v; want pid %d", found, ok, err, id.PID)
	}
	if err := found.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the taken over process is seen to end", func() bool { return !p.Running() })
	if _, ok, err := server.Find(dir); ok || err != nil {
		t.Errorf("Find after Stop = %v, %v; want nothing", ok, err)
	}
}

// TestFindIsNotFooledByAReusedPID guarantees that a pid file left behind never
// leads to a stranger's process being stopped.
func TestFindIsNotFooledByAReusedPID(t *testing.T) {
	t.Parallel()

	p := startRedis(t, server.RedisOptions{})
	path := filepath.Join(p.Dir, "process.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The pid is now this test's own, the start time is still the server's.
	b = []byte(strings.Replace(string(b), `"pid": `+strconv.Itoa(p.PID()), `"pid": `+strconv.Itoa(os.Getpid()), 1))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "process.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := server.Find(dir); ok || err != nil {
		t.Errorf("Find = %v, %v; want nothing found", ok, err)
	}
}
