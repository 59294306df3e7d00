package kafkatest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// A Gate passes connections on to a broker and counts them. Clients that are
// let in go on without it: a broker tells them its own address.
type Gate struct {
	Addr string

	target string
	n      atomic.Int64
	conns  sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// NewGate opens a gate before target, host:port, until the test ends.
func NewGate(t testing.TB, target string) *Gate {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	g := &Gate{Addr: l.Addr().String(), target: target, open: make(map[net.Conn]struct{})}
	g.conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			g.n.Add(1)
			g.conns.Go(func() { g.pass(in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.mu.Lock()
		for c := range g.open {
			_ = c.Close()
		}
		g.mu.Unlock()
		g.conns.Wait()
	})
	return g
}

// Connections is how often the gate was passed.
func (g *Gate) Connections() int { return int(g.n.Load()) }

// pass copies both ways until either side ends.
func (g *Gate) pass(in net.Conn) {
	out, err := (&net.Dialer{}).Dial("tcp", g.target)
	if err != nil {
		_ = in.Close()
		return
	}
	g.mu.Lock()
	g.open[in], g.open[out] = struct{}{}, struct{}{}
	g.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(in, out)
		_ = in.Close()
	})
	_, _ = io.Copy(out, in)
	_ = out.Close()
	back.Wait()
	g.mu.Lock()
	delete(g.open, in)
	delete(g.open, out)
	g.mu.Unlock()
}
