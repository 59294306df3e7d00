package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Server answers unary calls of gRPC.
type Server struct {
	cfg     Config
	handler Handler
	methods map[string]string
	calls   sync.Pool

	mu    sync.Mutex
	conns map[*conn]struct{}
	gone  sync.WaitGroup

	stats struct{ Accepted, Turned, Calls, Refused, Resets, Errors, Floods atomic.Int64 }
}

// Stats is what a Server has seen since it was made.
type Stats struct {
	Conns    int   // open now
	Accepted int64 // connections
	Turned   int64 // connections closed at once because there were MaxConns
	Calls    int64 // handed to the handler
	Refused  int64 // calls answered without it
	Resets   int64 // streams that we reset
	Errors   int64 // connections that we ended with an error
	Floods   int64 // those with ENHANCE_YOUR_CALM
}

// New returns a server. It returns an error if the configuration is wrong.
func New(cfg Config, handler Handler) (*Server, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, handler: handler, methods: make(map[string]string), conns: make(map[*conn]struct{})}
	for _, m := range cfg.Methods {
		s.methods[m] = m
	}
	s.calls.New = func() any { return new(Call) }
	return s, nil
}

// Stats returns what has been seen so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	conns := len(s.conns)
	s.mu.Unlock()
	t := &s.stats
	return Stats{
		Conns: conns, Accepted: t.Accepted.Load(), Turned: t.Turned.Load(), Calls: t.Calls.Load(),
		Refused: t.Refused.Load(), Resets: t.Resets.Load(), Errors: t.Errors.Load(), Floods: t.Floods.Load(),
	}
}

func (s *Server) count(to *atomic.Int64, n int) {
	if n > 0 {
		to.Add(int64(n))
	}
}

// Serve takes connections until ctx is done. Then it closes the listener,
// answers what is under way, and returns when every connection has ended, at
// most Config.Grace later. It returns an error if the listener fails. It must
// be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() { s.keep(stop) })
	unlisten := context.AfterFunc(ctx, func() { _ = l.Close() })

	err := s.accept(ctx, base, l)
	if unlisten() {
		_ = l.Close() // the listener failed: its error is the one to tell
	}
	s.drain()
	close(stop)
	keeper.Wait()
	return err
}

func (s *Server) accept(ctx, base context.Context, l net.Listener) error {
	pause := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = nc.Close()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) {
				s.cfg.Log.Warn("cannot accept a connection", "err", err)
				sleep(ctx, pause)
				pause = min(2*pause, time.Second)
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		pause = 5 * time.Millisecond
		s.admit(base, nc)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// admit begins a connection, or closes it when there are too many.
func (s *Server) admit(base context.Context, nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.conns) >= s.cfg.MaxConns {
		s.count(&s.stats.Turned, 1)
		_ = nc.Close()
		return
	}
	s.count(&s.stats.Accepted, 1)
	c := newConn(base, s, nc, time.Now())
	s.conns[c] = struct{}{}
	s.gone.Go(c.serve)
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// each calls f for every connection, without the server's lock.
func (s *Server) each(f func(*conn)) {
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		f(c)
	}
}

// drain ends all connections: politely at first.
func (s *Server) drain() {
	s.each(func(c *conn) {
		c.mu.Lock()
		c.drain(time.Now())
		c.mu.Unlock()
		c.rouse()
	})
	done := make(chan struct{})
	go func() {
		s.gone.Wait()
		close(done)
	}()
	grace := time.NewTimer(s.cfg.Grace)
	defer grace.Stop()
	select {
	case <-done:
		return
	case <-grace.C:
	}
	s.each(func(c *conn) {
		c.mu.Lock()
		c.die()
		c.mu.Unlock()
	})
	<-done
}

// keep looks at the time for all connections.
func (s *Server) keep(stop <-chan struct{}) {
	t := time.NewTicker(s.cfg.tick())
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-t.C:
			s.each(func(c *conn) { c.tick(now) })
		}
	}
}

// secure does TLS's handshake, and reports whether the client speaks h2.
func (c *conn) secure() bool {
	if c.s.cfg.TLS == nil {
		return true
	}
	t := tls.Server(c.raw, c.s.cfg.TLS)
	ctx, cancel := context.WithTimeout(c.ctx, c.s.cfg.Handshake)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		c.s.cfg.Log.Debug("no handshake", "remote", c.raw.RemoteAddr().String(), "err", err)
		return false
	}
	if t.ConnectionState().NegotiatedProtocol != "h2" {
		c.s.cfg.Log.Debug("a client without ALPN h2", "remote", c.raw.RemoteAddr().String())
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nc = t
	return !c.dead
}

// tick ends what takes too long, and refills budgets.
func (c *conn) tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()

	cfg := &c.s.cfg
	c.control.refill(now)
	c.resets.refill(now)
	if len(c.streams)+c.ghosts+c.answered > 0 {
		c.active, c.answered = now, 0
	}
	switch {
	case c.dead:
		return
	case c.writing && now.Sub(c.wrote) > cfg.Write:
		c.s.count(&c.s.stats.Errors, 1)
		c.die()
		return
	case c.failed || c.half:
		return
	case !c.settled && now.Sub(c.born) > cfg.Handshake:
		c.late("no SETTINGS in time")
		return
	case c.blockOf != 0 && now.Sub(c.blockFrom) > cfg.Handshake:
		c.late("a header block that is not complete in time")
		return
	case c.draining.IsZero() && now.Sub(c.active) > cfg.Idle:
		c.drain(now)
	case !c.draining.IsZero() && !c.final && now.Sub(c.draining) > time.Second:
		c.lastGoAway() // a client that does not answer PING
	}
	c.slow(now)
	if c.due() {
		c.rouse()
	}
}

// late ends a connection whose peer takes too long.
func (c *conn) late(why string) {
	if c.s.cfg.TLS != nil && c.nc == c.raw { // still in TLS's handshake, which has its own time
		return
	}
	c.fail(fault(EnhanceYourCalm, why))
	c.rouse()
}

// slow resets streams whose request does not end, or whose answer the peer
// does not take.
func (c *conn) slow(now time.Time) {
	for _, call := range c.streams {
		var err error
		switch {
		case call.waiting && now.Sub(call.began) > c.s.cfg.Write:
			err = c.reset(call.id, EnhanceYourCalm)
		case !call.ended && !call.refused && now.Sub(call.began) > c.s.cfg.Body:
			err = c.reset(call.id, Cancel)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}
