package h2_test

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// socketBuffer is how much a connection in memory holds for its reader.
const socketBuffer = 8 << 10

// pipes is a listener whose connections live in memory, for virtual time. They
// have buffers, as those of TCP have: without, two sides that write at once
// wait for each other.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

// Accept is what the server calls.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close is what the server calls.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr is what the server calls.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial() net.Conn {
	client, server := newSockets()
	p.conns <- server
	return client
}

// newSockets are the two ends of a connection.
func newSockets() (client, server *socket) {
	up, down := newHalf(), newHalf()
	return &socket{down, up}, &socket{up, down}
}

// A half is one direction.
type half struct {
	mu     sync.Mutex
	moved  sync.Cond
	buf    []byte
	ended  bool // nothing more is written
	closed bool // nothing more is read
	late   bool // the reader's deadline has passed
}

func newHalf() *half {
	h := &half{}
	h.moved.L = &h.mu
	return h
}

func (h *half) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.moved.Broadcast()
}

// A socket is one end.
type socket struct{ in, out *half }

// Read is net.Conn's.
func (s *socket) Read(b []byte) (int, error) {
	h := s.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.buf) == 0 && !h.ended && !h.closed && !h.late {
		h.moved.Wait()
	}
	switch {
	case h.closed:
		return 0, net.ErrClosed
	case len(h.buf) > 0:
		n := copy(b, h.buf)
		h.buf = h.buf[n:]
		h.moved.Broadcast()
		return n, nil
	case h.ended:
		return 0, io.EOF
	}
	return 0, os.ErrDeadlineExceeded
}

// Write is net.Conn's.
func (s *socket) Write(b []byte) (int, error) {
	h := s.out
	h.mu.Lock()
	defer h.mu.Unlock()
	sent := 0
	for sent < len(b) {
		for len(h.buf) >= socketBuffer && !h.ended && !h.closed {
			h.moved.Wait()
		}
		if h.ended || h.closed {
			return sent, net.ErrClosed
		}
		n := min(len(b)-sent, socketBuffer-len(h.buf))
		h.buf = append(h.buf, b[sent:sent+n]...)
		sent += n
		h.moved.Broadcast()
	}
	return sent, nil
}

// CloseWrite ends this side.
func (s *socket) CloseWrite() error {
	s.out.set(func() { s.out.ended = true })
	return nil
}

// Close is net.Conn's.
func (s *socket) Close() error {
	s.out.set(func() { s.out.ended = true })
	s.in.set(func() { s.in.closed = true })
	return nil
}

// SetDeadline is net.Conn's, for reads alone, and never moved back.
func (s *socket) SetDeadline(t time.Time) error {
	time.AfterFunc(time.Until(t), func() { s.in.set(func() { s.in.late = true }) })
	return nil
}

// SetReadDeadline is net.Conn's.
func (s *socket) SetReadDeadline(t time.Time) error { return s.SetDeadline(t) }

// SetWriteDeadline is net.Conn's; nobody here sets one.
func (s *socket) SetWriteDeadline(time.Time) error { return os.ErrInvalid }

// LocalAddr is net.Conn's.
func (s *socket) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// RemoteAddr is net.Conn's.
func (s *socket) RemoteAddr() net.Addr { return s.LocalAddr() }
