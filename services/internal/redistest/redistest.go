// Package redistest gives tests a real Redis of their own.
//
// A server takes about 30 ms to start, so every caller gets a private one: no
// test sees another's keys, and each may kill its own. A machine without
// redis-server fails the test (as root, it is installed); nothing is skipped.
package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/deploy/local/server"
)

// A Server is one redis-server without persistence, unless it was started with
// other arguments. Its methods fail the test rather than return an error.
type Server struct {
	Addr string // host:port
	URL  string // redis://host:port/0

	t       testing.TB
	process *server.Process
}

// Start returns a running server. Args are passed to redis-server after the
// usual ones ("--appendonly", "yes" keeps the data over Restart). The server
// ends with the test, or with the test binary if that is killed.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	p, err := server.StartRedis(t.Context(), t.TempDir(), server.RedisOptions{
		Args: args, Run: server.Run{Say: func(s string) { t.Log(s) }},
	})
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	s := &Server{Addr: p.Addr, URL: p.URL, t: t, process: p}
	t.Cleanup(func() {
		if t.Failed() {
			logTail(t, p)
		}
		s.Kill()
	})
	return s
}

// Client starts a server and returns a client of it.
func Client(t testing.TB) *redis.Client {
	t.Helper()
	return Start(t).Client()
}

// Client returns a new client with short timeouts that never retries, closed at
// the end of the test.
func (s *Server) Client() *redis.Client {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Kill ends the server at once (SIGKILL). Connections break.
func (s *Server) Kill() {
	s.t.Helper()
	s.must(s.process.Kill())
}

// Restart stops the server if it runs and starts it on the same port: empty,
// unless its arguments say otherwise, and with another run id.
func (s *Server) Restart() {
	s.t.Helper()
	s.must(s.process.Restart(context.WithoutCancel(s.t.Context())))
}

// Freeze suspends the server: connections stay open and nothing is answered.
func (s *Server) Freeze() {
	s.t.Helper()
	s.must(s.process.Freeze())
}

// Thaw ends a Freeze; what was sent meanwhile is answered now.
func (s *Server) Thaw() {
	s.t.Helper()
	s.must(s.process.Thaw())
}

// PID is the process id of the current run.
func (s *Server) PID() int { return s.process.PID() }

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("redistest: %v", err)
	}
}

func logTail(t testing.TB, p *server.Process) {
	lines, err := server.Tail(p.LogPath, 10)
	if err != nil {
		return
	}
	for _, line := range lines {
		t.Log("redis: " + line)
	}
}
