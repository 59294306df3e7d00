package h2

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// A Handler answers calls.
type Handler interface {
	// Handle takes all the calls that one read of a connection brought. It
	// must not block. Each call is its own until it has been finished, now or
	// later, by whatever goroutine; the slice is only lent.
	Handle(calls []*Call)
}

// A Call is one request and its answer. Between Handle and Finish it belongs
// to the handler, and to one goroutine at a time but for Context and Gone.
type Call struct {
	Method   string    // of Config.Methods
	Request  []byte    // the message; valid until Finish
	Deadline time.Time // from grpc-timeout; zero means none

	Response []byte // the answer's message: append to it
	Status   Code   // anything but OK is answered without the message
	Message  string // what grpc-message says; cut at about a kilobyte
	Trailers []Field

	conn   *conn
	id     uint32
	fields []Field
	in     []byte // the request's body: prefix and message
	gone   atomic.Bool

	// Guarded by conn.mu.
	ctx      context.Context
	cancel   context.CancelFunc
	owned    bool      // handed to the handler and not finished
	ended    bool      // the peer has ended its side: half-closed (remote)
	refused  bool      // answered before the peer ended its side; what it still sends is dropped
	plain    int       // HTTP status of an answer that is not gRPC's, or 0
	encoded  bool      // grpc-encoding is one that we do not know
	length   int64     // content-length, or -1
	received int64     // bytes of body
	window   int32     // what the peer may still send
	credit   int64     // what it lets us send, beside its initial window
	out      []byte    // what is left of the answer's body
	began    time.Time // headers came; later: the answer last moved
	waiting  bool      // in conn.waiting
}

// Metadata is the value of the first field of a name, which is in lower case.
// Values of names in -bin are as they came, in base64.
func (c *Call) Metadata(name string) (string, bool) {
	for i := range c.fields {
		if c.fields[i].Name == name {
			return c.fields[i].Value, true
		}
	}
	return "", false
}

// AllMetadata is every field but those that HTTP/2 and gRPC use themselves. It
// is valid until Finish.
func (c *Call) AllMetadata() []Field { return c.fields }

// Remote is the address of who has opened the connection.
func (c *Call) Remote() net.Addr { return c.conn.raw.RemoteAddr() }

// Gone reports whether nobody waits for the answer any more: the peer has
// reset the stream or is gone. The call must be finished all the same.
func (c *Call) Gone() bool { return c.gone.Load() }

// Context ends with the deadline, when the peer gives up, and with Finish. It
// is made when it is asked for: a handler that needs none pays for none.
func (c *Call) Context() context.Context {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()

	if c.ctx == nil {
		if c.Deadline.IsZero() {
			c.ctx, c.cancel = context.WithCancel(c.conn.ctx)
		} else {
			c.ctx, c.cancel = context.WithDeadline(c.conn.ctx, c.Deadline)
		}
		if c.gone.Load() {
			c.cancel()
		}
	}
	return c.ctx
}

// Finish sends the answer. The call must not be touched afterwards.
func (c *Call) Finish() {
	one := [1]*Call{c}
	FinishAll(one[:])
}

// FinishAll finishes many calls, of one connection or of many: each connection
// then writes all of its answers at once.
func FinishAll(calls []*Call) {
	var wake [16]*conn
	n := 0
	for len(calls) > 0 {
		conn := calls[0].conn
		conn.mu.Lock()
		for len(calls) > 0 && calls[0].conn == conn {
			conn.finish(calls[0])
			calls = calls[1:]
		}
		due := conn.due()
		conn.mu.Unlock()
		switch {
		case !due:
		case n == len(wake):
			conn.rouse()
		case n == 0 || wake[n-1] != conn:
			wake[n] = conn
			n++
		}
	}
	for _, conn := range wake[:n] {
		conn.rouse()
	}
}

// maxKept is the largest buffer that a call takes along into its next life.
const maxKept = 16 << 10

// recycle makes a call that nobody holds ready for another stream.
func (s *Server) recycle(c *Call) {
	keep := func(b []byte) []byte {
		if cap(b) > maxKept {
			return nil
		}
		return b[:0]
	}
	clear(c.fields)
	clear(c.Trailers)
	c.Method, c.Request, c.Deadline = "", nil, time.Time{}
	c.Response, c.Status, c.Message, c.Trailers = keep(c.Response), OK, "", c.Trailers[:0]
	c.conn, c.id, c.fields, c.in = nil, 0, c.fields[:0], keep(c.in)
	c.gone.Store(false)
	c.ctx, c.cancel = nil, nil
	c.owned, c.ended, c.refused, c.encoded, c.waiting, c.plain = false, false, false, false, false, 0
	c.length, c.received, c.window, c.credit, c.out = 0, 0, 0, 0, nil
	s.calls.Put(c)
}
