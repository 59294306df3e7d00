package h2

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	connWindow    = 1 << 20   // what a peer may send on all streams before it hears that it was read
	streamWindow  = 65535     // the same for one stream: SETTINGS_INITIAL_WINDOW_SIZE as it is unless said otherwise
	firstRead     = 4 << 10   // how large a read begins
	maxRead       = 64 << 10  // and how large it becomes
	maxOut        = 128 << 10 // with that much to write, nothing more is read
	linger        = time.Second
	lingerBytes   = 1 << 20
	closedStreams = 32 // how many closed streams are remembered
)

// A conn is one connection. Its reader is the one that decodes, hands calls
// over and, when they are answered at once, writes; a second goroutine writes
// what is answered later.
type conn struct {
	s      *Server
	nc     net.Conn // TLS, or raw
	raw    net.Conn
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // for the writer
	over   chan struct{} // closed with the connection

	// Of the reader alone.
	buf  []byte
	have int
	rest int // bytes that may still be thrown away

	mu   sync.Mutex
	room sync.Cond // out has shrunk, or the connection is dead

	out, spare []byte
	writing    bool
	corked     bool // the reader will write when Handle returns
	wrote      time.Time

	dec       *decoder
	prefaced  int  // bytes of the preface that came
	settled   bool // the client's SETTINGS came
	unacked   int  // SETTINGS of ours
	batch     []*Call
	refusals  []uint32 // calls that are answered after this read
	block     []byte   // a header block that is not complete
	blockOf   uint32   // its stream, or 0
	blockFlag uint8
	blockPart int       // CONTINUATION frames
	blockFrom time.Time // its first frame

	streams map[uint32]*Call
	ghosts  int // calls that the handler has and whose streams are over
	lastID  uint32
	closed  [closedStreams]uint32 // id<<1, and 1 if it was we who reset it
	nclosed int

	window    int32 // what the peer may still send
	sendWin   int64 // what we may
	initial   int64 // the peer's SETTINGS_INITIAL_WINDOW_SIZE
	maxCredit int64 // no stream was ever granted more
	table     encoderTable
	waiting   []*Call // answers that a window or a full out holds up
	buffered  int     // bytes of requests
	unsent    int     // bytes of waiting answers

	control, resets budget
	answered        int // since the last tick
	now             time.Time
	born, active    time.Time

	draining time.Time // the first GOAWAY was sent
	limitID  uint32    // the last stream that will be answered
	final    bool      // and the last GOAWAY
	failed   bool      // an error ended it
	half     bool      // our side is closed
	dead     bool
}

// A budget is what is left of a Budget.
type budget struct {
	Budget
	left   int
	filled time.Time
}

func (b *budget) give(n int) { b.left = min(b.left+n, b.Burst) }

func (b *budget) refill(now time.Time) {
	if n := int(int64(b.PerSecond) * int64(now.Sub(b.filled)) / int64(time.Second)); n > 0 {
		b.give(n)
		b.filled = now
	}
}

func newConn(ctx context.Context, s *Server, raw net.Conn, now time.Time) *conn {
	c := &conn{
		s: s, nc: raw, raw: raw,
		wake: make(chan struct{}, 1), over: make(chan struct{}),
		buf: make([]byte, firstRead), rest: lingerBytes,
		dec:     newDecoder(s.cfg.MaxHeaders),
		streams: make(map[uint32]*Call),
		window:  connWindow, sendWin: 65535, initial: 65535,
		table:   encoderTable{size: tableSize},
		control: budget{s.cfg.Control, s.cfg.Control.Burst, now},
		resets:  budget{s.cfg.Resets, s.cfg.Resets.Burst, now},
		now:     now, born: now, active: now, limitID: maxWindow,
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.room.L = &c.mu
	c.greet()
	return c
}

// serve runs the connection to its end.
func (c *conn) serve() {
	defer c.end()

	if !c.secure() {
		return
	}
	go c.writer()
	c.mu.Lock()
	c.write()
	c.mu.Unlock()
	for {
		n, err := c.nc.Read(c.buf[c.have:])
		c.have += n
		if n > 0 && !c.step() {
			return
		}
		if err != nil {
			return
		}
		c.grow(n)
	}
}

// step works on what has been read, and reports whether to read on.
func (c *conn) step() bool {
	calls, ok := c.feed()
	if len(calls) > 0 {
		c.s.handler.Handle(calls)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	c.write()
	return ok && !c.dead
}

// grow makes room for the next read: a read that filled the buffer asks for
// more.
func (c *conn) grow(n int) {
	if (c.have == len(c.buf) || n > len(c.buf)/2) && len(c.buf) < maxRead {
		b := make([]byte, 2*len(c.buf))
		copy(b, c.buf[:c.have])
		c.buf = b
	}
}

// feed decodes all complete frames of the buffer and returns the calls that
// they made ready.
func (c *conn) feed() ([]*Call, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for len(c.out) > maxOut && !c.dead {
		c.room.Wait()
	}
	if c.half || c.failed {
		c.rest -= c.have
		c.have = 0
		return nil, c.rest > 0
	}
	c.now = time.Now()
	used, err := c.frames(c.buf[:c.have])
	c.have = copy(c.buf, c.buf[used:c.have])
	if err != nil {
		c.fail(err)
	} else if c.window < connWindow/2 {
		c.out = appendFrame(c.out, frameWindowUpdate, 0, uint32(connWindow-c.window))
		c.window = connWindow
	}
	c.refuseAll()
	if len(c.waiting) > 0 {
		c.pump()
	}
	c.corked = true
	return c.ready(), true
}

// ready is the batch without the calls whose streams are over already: what
// is reset in the read that brought it costs the handler nothing.
func (c *conn) ready() []*Call {
	keep := c.batch[:0]
	for _, call := range c.batch {
		if call.gone.Load() {
			c.finish(call)
		} else {
			keep = append(keep, call)
		}
	}
	c.s.count(&c.s.stats.Calls, len(keep))
	c.batch = c.batch[:0]
	return keep
}

// writer writes what is answered while the reader waits for the peer.
func (c *conn) writer() {
	for {
		select {
		case <-c.wake:
			c.mu.Lock()
			c.write()
			c.mu.Unlock()
		case <-c.over:
			return
		}
	}
}

// due reports whether there is something to write and nobody at it.
func (c *conn) due() bool {
	return !c.corked && !c.writing && !c.dead && (len(c.out) > 0 || c.done())
}

// rouse has the writer write.
func (c *conn) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write writes all of out, unless somebody is at it, who then writes this
// too. It is called with mu held and lets go of it meanwhile.
func (c *conn) write() {
	for !c.writing && len(c.out) > 0 && !c.dead {
		b := c.out
		c.out, c.spare = c.spare[:0], nil
		c.writing, c.wrote = true, time.Now()
		c.mu.Unlock()
		_, err := c.nc.Write(b)
		c.mu.Lock()
		c.writing = false
		if cap(b) <= 2*maxOut {
			c.spare = b
		}
		if err != nil {
			c.die()
		}
		if len(c.waiting) > 0 {
			c.pump()
		}
		c.room.Broadcast()
	}
	if !c.half && !c.dead && !c.writing && c.done() {
		c.halfClose()
	}
}

// done reports whether the connection has nothing more to say once out is
// written.
func (c *conn) done() bool {
	return c.failed || c.final && len(c.streams) == 0
}

// halfClose ends our side and gives the peer a moment to read what it was
// told: a connection that is closed with unread data in it is reset, and the
// GOAWAY with it.
func (c *conn) halfClose() {
	c.half = true
	nc, ok := c.nc.(interface{ CloseWrite() error })
	if !ok {
		c.die()
		return
	}
	c.mu.Unlock()
	err := errors.Join(c.raw.SetDeadline(time.Now().Add(linger)), nc.CloseWrite())
	c.mu.Lock()
	if err != nil {
		c.die()
	}
}

// fail ends the connection with an error (§5.4.1).
func (c *conn) fail(err error) {
	if c.failed || c.dead {
		return
	}
	code := InternalError
	if e := (*connError)(nil); errors.As(err, &e) {
		code = e.code
	}
	c.s.cfg.Log.Debug("connection refused", "remote", c.raw.RemoteAddr().String(), "err", err)
	c.s.count(&c.s.stats.Errors, 1)
	if code == EnhanceYourCalm {
		c.s.count(&c.s.stats.Floods, 1)
	}
	c.out = appendFrame(c.out, frameGoAway, 0, min(c.lastID, c.limitID), uint32(code))
	c.failed = true
	c.forget()
}

// forget drops every stream.
func (c *conn) forget() {
	for _, call := range c.streams {
		c.drop(call, false)
	}
	c.block, c.blockOf = nil, 0
}

// die closes the connection at once.
func (c *conn) die() {
	if c.dead {
		return
	}
	c.dead = true
	if err := c.raw.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.s.cfg.Log.Debug("closing a connection", "err", err)
	}
	c.room.Broadcast()
}

// end leaves nothing behind: contexts end, the handler's calls are let go when
// it finishes them.
func (c *conn) end() {
	c.mu.Lock()
	polite := c.half && !c.dead
	c.forget()
	c.mu.Unlock()
	if polite && c.nc != c.raw {
		_ = c.nc.Close() // the deadline of the linger bounds it
	}
	c.mu.Lock()
	c.die()
	c.mu.Unlock()
	c.cancel()
	close(c.over)
	c.s.remove(c)
}
