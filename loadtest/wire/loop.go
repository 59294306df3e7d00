package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A run is one load on its way. One goroutine has it, on a thread of its own.
type run struct {
	Load
	result Result
	rng    *rand.Rand
	start  time.Time
	epoll  int
	timer  int
	conns  []*conn // by what epoll tells of them
	live   int     // connections
	flying int     // requests in flight

	now         int64 // ns since start, of the events that are being handled
	begin, end  int64 // of what is measured
	began, done bool
	cpu         time.Duration // of this thread when it began
	next        int           // connection of the next arrival
	arrivals    int64         // so far
	waiting     []int64       // when those were due that no connection could take
}

// What is waited for after the end.
const (
	drainWithin = 10 * time.Second
	dialWithin  = 5 * time.Second
	asleep      = 100 // ms, after which the end of a context is looked for
	timerEvent  = -1  // what epoll tells of the timer
)

// A protocol is one connection's.
type protocol interface {
	// begin appends a request to out; false: not now.
	begin(i int, due int64) bool
	// parse takes in what has come and returns how much of it.
	parse(in []byte) (int, error)
	// abandon reports what is in flight as failed.
	abandon(why string)
}

// A conn is one connection.
type conn struct {
	protocol
	run     *run
	fd      int
	share   int // of a closed loop: requests in flight
	flying  int
	in, out []byte
	unread  int    // bytes of in
	blocked bool   // the kernel takes no more
	closing bool   // no further requests
	index   int32  // what epoll tells of it
	asked   uint32 // what epoll is to tell
}

func (r *run) clock() int64 { return int64(time.Since(r.start)) }

// open connects.
func (r *run) open(ctx context.Context) (err error) {
	r.epoll, r.timer = -1, -1
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if r.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return err
	}
	if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, r.timer, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: timerEvent}); err != nil {
		return err
	}
	for i := range r.Conns {
		c, err := r.dial(ctx)
		if err != nil {
			return err
		}
		c.share, c.index, c.asked = (r.InFlight+i)/r.Conns, int32(i), unix.EPOLLIN
		r.conns = append(r.conns, c)
		r.live++
		if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: c.asked, Fd: c.index}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) close() error {
	var errs []error
	for _, c := range r.conns {
		if c.fd >= 0 {
			errs = append(errs, unix.Close(c.fd))
		}
	}
	for _, fd := range []int{r.timer, r.epoll} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// dial connects, and shakes hands where the protocol does.
func (r *run) dial(ctx context.Context) (*conn, error) {
	addr, err := netip.ParseAddrPort(r.Addr)
	if err != nil {
		return nil, err
	}
	dialed, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = dialed.Close() }() // the connection is kept under another number
	tcp, ok := dialed.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%s: no TCP", r.Addr)
	}
	c := &conn{run: r, in: make([]byte, 256<<10)}
	if r.Method == "" {
		c.protocol = &http1{conn: c}
	} else if c.protocol, err = greet(c, tcp); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Addr, err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = errors.Join(raw.Control(func(fd uintptr) {
		c.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}), err)
	return c, err
}

// loop handles events until the load has been sent and answered.
func (r *run) loop(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r.now = r.clock()
	r.begin = r.now + int64(r.Warm)
	r.end = r.begin + int64(r.For)
	first := r.now
	events := make([]unix.EpollEvent, len(r.conns)+1)
	for _, c := range r.conns {
		c.serve()
	}
	for !r.finished() {
		if err := r.wake(r.upcoming(first) - r.clock()); err != nil {
			return err
		}
		n, err := unix.EpollWait(r.epoll, events, asleep)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		r.now = r.clock()
		for _, e := range events[:max(n, 0)] {
			r.handle(e)
		}
		if ctx.Err() != nil {
			r.end = min(r.end, r.now)
		}
		if !r.done && r.Rate > 0 {
			r.arrive(first)
		}
		r.border()
	}
	return ctx.Err()
}

// border begins and ends what is measured.
func (r *run) border() {
	if !r.began && r.now >= r.begin {
		r.began, r.begin, r.end, r.cpu = true, r.now, r.now+int64(r.For), threadCPU()
		if r.Begin != nil {
			r.Begin()
		}
	}
	if !r.done && r.now >= r.end {
		r.done, r.end = true, r.now
		r.result.Took, r.result.CPU = time.Duration(r.end-r.begin), threadCPU()-r.cpu
		if r.End != nil {
			r.End()
		}
	}
}

// finished reports whether there is nothing left to wait for.
func (r *run) finished() bool {
	unanswered := r.flying + len(r.waiting)
	switch {
	case r.live == 0:
		r.now = max(r.now, r.end)
		r.border()
	case !r.done || unanswered == 0:
		return r.done
	case r.now < r.end+int64(drainWithin):
		return false
	}
	for _, c := range r.conns {
		c.fail(fmt.Errorf("no answer within %v after the end", drainWithin))
	}
	r.result.Sent += int64(len(r.waiting))
	r.result.Failed += int64(len(r.waiting))
	return true
}

// upcoming is when something is to be done without an event.
func (r *run) upcoming(first int64) int64 {
	switch {
	case r.done:
		return r.end + int64(drainWithin)
	case r.Rate > 0:
		return min(r.due(first, r.arrivals), r.edge())
	default:
		return r.edge()
	}
}

func (r *run) edge() int64 {
	if !r.began {
		return r.begin
	}
	return r.end
}

// due is when arrival n of an open loop is.
func (r *run) due(first, n int64) int64 {
	return first + int64(float64(n)/r.Rate*float64(time.Second))
}

// arrive sends what is due, to one connection after the other: all of it, also
// when the end has passed meanwhile.
func (r *run) arrive(first int64) {
	for due := r.due(first, r.arrivals); due <= r.now && due < r.end; due = r.due(first, r.arrivals) {
		r.arrivals++
		if len(r.waiting) > 0 || !r.offer(due) {
			r.waiting = append(r.waiting, due)
		}
	}
	for _, c := range r.conns {
		c.flush()
	}
}

// offer sends one arrival on the next connection that can take it.
func (r *run) offer(due int64) bool {
	for range r.conns {
		c := r.conns[r.next]
		r.next = (r.next + 1) % len(r.conns)
		if c.send(due) {
			if r.began && due >= r.begin {
				record(r.result.Late, r.now-due)
			}
			return true
		}
	}
	return false
}

// wake sets the timer; what is past has it fire at once.
func (r *run) wake(in int64) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(in, 1))}
	return unix.TimerfdSettime(r.timer, 0, &spec, nil)
}

func (r *run) handle(e unix.EpollEvent) {
	if e.Fd == timerEvent {
		var expirations [8]byte
		_, _ = unix.Read(r.timer, expirations[:])
		return
	}
	c := r.conns[e.Fd]
	if c.fd < 0 {
		return
	}
	if e.Events&unix.EPOLLOUT != 0 {
		c.blocked = false
	}
	if e.Events&^unix.EPOLLOUT != 0 {
		if err := c.receive(); err != nil {
			c.fail(err)
			return
		}
	}
	c.serve()
}

// receive reads once, and takes in what has come.
func (c *conn) receive() error {
	n, err := unix.Read(c.fd, c.in[c.unread:])
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.ErrUnexpectedEOF
	}
	return c.take(n)
}

// take parses n further bytes of in.
func (c *conn) take(n int) error {
	c.unread += n
	used, err := c.parse(c.in[:c.unread])
	if err != nil {
		return err
	}
	c.unread = copy(c.in, c.in[used:c.unread])
	if c.unread == len(c.in) {
		return fmt.Errorf("an answer of more than %d bytes", len(c.in))
	}
	return nil
}

// serve sends what this connection is to send.
func (c *conn) serve() {
	r := c.run
	if r.Rate > 0 {
		for len(r.waiting) > 0 && r.offer(r.waiting[0]) {
			r.waiting = r.waiting[1:]
		}
	} else if !r.done {
		for c.flying < c.share && c.send(r.now) {
		}
	}
	c.flush()
	if c.closing && c.flying == 0 {
		c.fail(errors.New("the server closed the connection"))
	}
}

// send begins a request that was due then, and reports whether it could.
func (c *conn) send(due int64) bool {
	if c.fd < 0 || c.closing || !c.begin(c.run.rng.IntN(len(c.run.Requests)), due) {
		return false
	}
	c.flying++
	c.run.flying++
	c.run.result.Sent++
	return true
}

// flush writes what there is, as far as the kernel takes it.
func (c *conn) flush() {
	for len(c.out) > 0 && !c.blocked && c.fd >= 0 {
		n, err := unix.Write(c.fd, c.out)
		switch {
		case errors.Is(err, unix.EAGAIN):
			c.blocked = true
		case errors.Is(err, unix.EINTR):
		case err != nil:
			c.fail(err)
			return
		default:
			c.out = c.out[:copy(c.out, c.out[n:])]
		}
	}
	c.watch()
}

// watch asks epoll for what the connection waits for.
func (c *conn) watch() {
	if c.fd < 0 || c.blocked == (c.asked&unix.EPOLLOUT != 0) {
		return
	}
	c.asked = unix.EPOLLIN
	if c.blocked {
		c.asked |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(c.run.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: c.asked, Fd: c.index}); err != nil {
		c.fail(err)
	}
}

// finish is called by the protocol when a request has been answered.
func (c *conn) finish(i int, due int64, a Answer, status int, body []byte) {
	r := c.run
	c.flying--
	r.flying--
	switch a {
	case Passed:
		r.result.Passed++
	case Refused:
		r.result.Refused++
	case Degraded:
		r.result.Degraded++
	case Wrong:
		r.result.Wrong++
		if r.result.Why == "" {
			r.because(fmt.Sprintf("request %d was answered with status %d: %q", i, status, body[:min(len(body), 200)]))
		}
	}
	if r.began && !r.done {
		r.result.Measured++
	}
	if r.began && due >= r.begin && (!r.done || due < r.end) {
		record(r.result.Latency, r.now-due)
	}
}

// lost is called by the protocol when a request will have no answer.
func (c *conn) lost(why string) {
	c.flying--
	c.run.flying--
	c.run.result.Failed++
	c.run.because(why)
}

func (r *run) because(why string) {
	if r.result.Why == "" {
		r.result.Why = why
	}
}

// fail closes the connection; what was in flight on it has failed.
func (c *conn) fail(err error) {
	if c.fd < 0 {
		return
	}
	c.run.because(err.Error())
	c.abandon(err.Error())
	_ = unix.Close(c.fd)
	c.fd = -1
	c.run.live--
}
