package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

func startEcho(t *testing.T) *server.Process {
	t.Helper()
	port, err := server.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := server.Start(t.Context(), echoSpec(t.TempDir(), port, server.Run{}))
	if err != nil {
		t.Fatal(err)
	}
	stopLater(t, p)
	return p
}

func answers(t *testing.T, p *server.Process) {
	t.Helper()
	if got, err := says(t.Context(), p.Addr, "hello"); err != nil || got != "hello" {
		t.Errorf("the server answers %q, %v", got, err)
	}
}

// TestProcessLives guarantees that a server can be stopped, killed and started
// again on its own port, and that its pid file is its own.
func TestProcessLives(t *testing.T) {
	t.Parallel()

	p := startEcho(t)
	pidFile := filepath.Join(p.Dir, "echo.pid")
	first := p.PID()
	b, err := os.ReadFile(pidFile)
	if err != nil || string(b) != strconv.Itoa(first)+"\n" {
		t.Errorf("pid file says %q (%v), want %d", b, err, first)
	}

	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.PID() == first {
		t.Errorf("after Restart the pid is still %d", first)
	}
	answers(t, p)

	exited := p.Exited()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-exited:
	default:
		t.Error("Kill returned before the process was gone")
	}
	if err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Wait = %v, want how it ended", err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatalf("Restart after Kill: %v", err)
	}
	answers(t, p)

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

	p := startEcho(t)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "anybody?\n"); err != nil {
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
	answers(t, p)
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

	port, err := server.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec := echoSpec(t.TempDir(), port, server.Run{})
	spec.StopWithin = 50 * time.Millisecond
	spec.Env[1] = argEnv + "=stubborn " + spec.Addr
	p, err := server.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err = p.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop = %v, want an error that says it was killed", err)
	}
	if p.Running() {
		t.Error("still running")
	}
}

// TestStartReportsWhatTheServerSaid guarantees that a server that does not come
// up is reported with its log and the reason, and leaves no process.
func TestStartReportsWhatTheServerSaid(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, kind string
		ready      error
		within     time.Duration
		want       []string
	}{
		{"one that ends", "broken", errors.New("refused"), time.Minute, []string{"status 1", "echo has no ears"}},
		{"one that never answers", "mute", errors.New("no answer"), 5 * time.Second, []string{"not ready after", "no answer", "echo says hello"}},
		{"one that says it never will", "mute", server.Never(errors.New("bad connector")), time.Minute, []string{"bad connector"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			spec := echoSpec(t.TempDir(), 0, server.Run{Within: tt.within})
			spec.Env[1] = argEnv + "=" + tt.kind
			var pid []byte
			spec.Ready = func(context.Context) error {
				var err error
				if pid, err = os.ReadFile(filepath.Join(spec.Dir, "echo.pid")); err != nil {
					t.Error(err)
				}
				return tt.ready
			}
			_, err := server.Start(t.Context(), spec)
			if err == nil {
				t.Fatal("Start succeeded")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not mention %q", err, want)
				}
			}
			if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("process %s is still there (%v)", pid, err)
			}
		})
	}
}

// parent starts a process that owns an echo server, and returns the two.
func parent(t *testing.T, role, dir string) (kill func(), id server.ID) {
	t.Helper()
	cmd, line := play(t, role, dir)
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if id, err = server.Identify(pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if id.Alive() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}, id
}

// TestServerDiesWithItsParent guarantees that a test binary that is killed
// leaves no server behind.
func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()

	kill, id := parent(t, "parent", t.TempDir())
	kill()
	eventually(t, "the orphan ends", func() bool { return !id.Alive() })
}

// TestDetachedServerIsTakenOver guarantees that a detached server outlives who
// started it, that a second start on its directory finds it instead of starting
// another, and that Find can stop it.
func TestDetachedServerIsTakenOver(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	kill, id := parent(t, "detaching parent", dir)
	kill()
	if !id.Alive() {
		t.Fatal("the detached server died with its parent")
	}
	found, ok, err := server.Find(dir)
	if err != nil || !ok || found.PID() != id.PID {
		t.Fatalf("Find = %v, %v, %v; want pid %d", found, ok, err, id.PID)
	}
	_, digits, err := net.SplitHostPort(found.Addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}

	p, err := server.Start(t.Context(), echoSpec(dir, port, server.Run{Detach: true}))
	if err != nil {
		t.Fatal(err)
	}
	if p.PID() != id.PID {
		t.Errorf("a second start made pid %d, want the running %d", p.PID(), id.PID)
	}
	answers(t, p)
	if err := found.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process that was taken over is seen to end", func() bool { return !p.Running() })
	if _, ok, err := server.Find(dir); ok || err != nil {
		t.Errorf("Find after Stop = %v, %v; want nothing", ok, err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatalf("Restart of what was taken over: %v", err)
	}
	answers(t, p)
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFindIsNotFooledByAReusedPID guarantees that a pid file left behind never
// leads to a stranger's process being stopped.
func TestFindIsNotFooledByAReusedPID(t *testing.T) {
	t.Parallel()

	p := startEcho(t)
	b, err := os.ReadFile(filepath.Join(p.Dir, "process.json"))
	if err != nil {
		t.Fatal(err)
	}
	// The pid is now that of the first process, the start time is still the server's.
	// This test's own may have started in the same tick as the server.
	forged := strings.Replace(string(b), `"pid": `+strconv.Itoa(p.PID())+",", `"pid": 1,`, 1)
	if forged == string(b) {
		t.Fatalf("no pid in %s", b)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "process.json"), []byte(forged), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := server.Find(dir); ok || err != nil {
		t.Errorf("Find = %v, %v; want nothing found", ok, err)
	}
}
