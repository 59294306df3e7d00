package proxyapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Why a watch ended an exchange.
var (
	errUpstreamSlow   = errors.New("the upstream did not answer in time")
	errUpstreamSilent = errors.New("the upstream fell silent")
	errClientSlow     = errors.New("the client did not send its request in time")
	errClientStalled  = errors.New("the client does not take its answer")
	errStopped        = errors.New("the body is not read any more")
)

// aLongTimeAgo is a deadline that has passed.
var aLongTimeAgo = time.Unix(1, 0)

// A watch is the one alarm clock of a forwarded request. At any time exactly
// one party has to move: the client to send its body or take the answer, or
// the upstream to answer or go on. The clock is set for that party whenever
// another one has moved, and ends the exchange when it rings.
type watch struct {
	cancel context.CancelCauseFunc
	client *http.ResponseController

	slow    time.Duration // for the upstream's headers
	idle    time.Duration // for the next byte of a stream
	patient time.Duration // for the client

	mu     sync.Mutex
	timer  *time.Timer
	due    time.Time
	cause  error
	stream bool // the upstream's headers have come
	ended  bool
}

// start sets the clock for the upstream.
func (w *watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cause, w.due = errUpstreamSlow, time.Now().Add(w.slow)
	w.timer = time.AfterFunc(w.slow, w.ring)
}

// expect sets the clock for the party that cause blames.
func (w *watch) expect(d time.Duration, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.cause, w.due = cause, time.Now().Add(d)
	w.timer.Reset(d)
}

// streams takes note that the upstream's headers have come.
func (w *watch) streams() {
	w.mu.Lock()
	w.stream = true
	w.mu.Unlock()
	w.expect(w.idle, errUpstreamSilent)
}

func (w *watch) streaming() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream
}

// ring ends the exchange, unless the clock was set anew while it rang. What is
// blocked on the client's connection is woken: the transport waits for it.
func (w *watch) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || time.Now().Before(w.due) {
		return
	}
	w.ended = true
	w.cancel(w.cause)
	_ = w.client.SetReadDeadline(aLongTimeAgo)
	if errors.Is(w.cause, errClientStalled) {
		_ = w.client.SetWriteDeadline(aLongTimeAgo)
	}
}

// stop stops the clock for good.
func (w *watch) stop() {
	w.mu.Lock()
	w.ended = true
	w.timer.Stop()
	w.mu.Unlock()
	w.cancel(nil)
}

// An upload is the body of a request on its way to the upstream. The client
// may be slow in sending it, which is not the upstream's fault.
type upload struct {
	body io.ReadCloser
	w    *watch

	reading sync.Mutex // held while the client's connection is read

	mu      sync.Mutex
	whole   bool  // it has been read to its end
	stopped bool  // it is not read any more
	broken  error // why the client's part of it ended early
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.reading.Lock()
	defer u.reading.Unlock()
	u.mu.Lock()
	stopped := u.stopped
	u.mu.Unlock()
	if stopped {
		return 0, errStopped
	}
	if !u.w.streaming() {
		u.w.expect(u.w.patient, errClientSlow)
	}
	n, err := u.body.Read(p)
	if u.w.streaming() {
		u.w.expect(u.w.idle, errUpstreamSilent)
	} else {
		u.w.expect(u.w.slow, errUpstreamSlow)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case errors.Is(err, io.EOF):
		u.whole = true
	case err != nil && !u.stopped:
		u.broken = err
	}
	return n, err
}

// Close implements io.Closer.
func (u *upload) Close() error { return u.body.Close() }

// unread reports whether the client may still be sending. A nil upload is the
// body of a request without one.
func (u *upload) unread() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.whole
}

// stop ends all reading, now: the server answers nothing while its connection
// is being read. It returns why the client's part ended early, if it did.
func (u *upload) stop(client *http.ResponseController) (broken error) {
	if !u.unread() {
		return nil
	}
	u.mu.Lock()
	u.stopped = true
	u.mu.Unlock()
	_ = client.SetReadDeadline(aLongTimeAgo)
	u.reading.Lock()
	defer u.reading.Unlock()
	return u.broken
}

// A download is the body of an answer on its way to the client. Between two
// reads the client has to take what was read. It is read where the exchange is
// served, so it may tell of it.
type download struct {
	io.ReadCloser
	w *watch
	x *exchange
}

func (d *download) Read(p []byte) (int, error) {
	d.w.expect(d.w.idle, errUpstreamSilent)
	n, err := d.ReadCloser.Read(p)
	d.w.expect(d.w.patient, errClientStalled)
	if err == nil {
		d.x.tellOfStream()
	}
	return n, err
}

// A tunnel is a connection that has switched protocols. Silence is measured
// over both directions.
type tunnel struct {
	io.ReadWriteCloser
	w *watch
}

func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.ReadWriteCloser.Read(p)
	t.w.expect(t.w.idle, errUpstreamSilent)
	return n, err
}

func (t *tunnel) Write(p []byte) (int, error) {
	n, err := t.ReadWriteCloser.Write(p)
	t.w.expect(t.w.idle, errUpstreamSilent)
	return n, err
}
