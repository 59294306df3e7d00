package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// How long a door stays shut after a refusal, doubling up to the maximum. After
// doorForget without one it begins again.
const (
	shutMin    = 500 * time.Millisecond
	shutMax    = 5 * time.Second
	doorForget = time.Minute
)

// A door is where a client's connections to the brokers begin. It says which
// knob to look at when one is refused, for the library and often the broker do
// not; and it keeps a client that is refused from knocking without pause: while
// it is shut, dialling fails at once with what was said last.
type door struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	tls  *TLS
	sasl bool
	now  func() time.Time

	mu   sync.Mutex
	shut map[string]*refusal // by address, and "" for all of them
}

// A refusal is what was said last, how often running, and until when it holds.
type refusal struct {
	err   error
	times int
	at    time.Time
	until time.Time
}

func newDoor(c Config) *door {
	return &door{dial: c.dial, tls: c.TLS, sasl: c.SASL.Mechanism != "", now: time.Now, shut: make(map[string]*refusal)}
}

// open dials addr unless the door is shut. Every failure is one to dial, for
// which the library tries other brokers and keeps what it buffers.
func (d *door) open(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := d.refused(addr); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx, network, addr)
	var op *net.OpError
	switch {
	case err == nil:
		return &visit{Conn: conn, door: d, addr: addr}, nil
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, context.Canceled):
		return nil, err // nobody there, which is no refusal
	}
	d.refuse(addr, err)
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

// refused returns why addr is not dialled now, or nil.
func (d *door) refused(addr string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range []string{addr, ""} {
		if r := d.shut[of]; r != nil && d.now().Before(r.until) {
			return r.err
		}
	}
	return nil
}

// lately returns what was said last, if that was not long ago.
func (d *door) lately() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var last *refusal
	for _, r := range d.shut {
		if d.now().Sub(r.at) < 2*shutMax && (last == nil || last.at.Before(r.at)) {
			last = r
		}
	}
	if last == nil {
		return nil
	}
	return last.err
}

// refuse shuts the door to addr, or with "" to all, for a while.
func (d *door) refuse(addr string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	r := d.shut[addr]
	if r == nil || now.Sub(r.at) > doorForget {
		r = &refusal{}
		d.shut[addr] = r
	}
	if now.Before(r.until) {
		return // several connections were refused at once
	}
	wait := min(shutMin<<min(r.times, 10), shutMax)
	r.err, r.at, r.until = err, now, now.Add(wait)
	r.times++
}

// admitted forgets the refusals of addr, and those of all.
func (d *door) admitted(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.shut, addr)
	delete(d.shut, "")
}

// A visit is one connection. It knows how far it came: an end before the first
// real answer is a refusal.
type visit struct {
	net.Conn
	door *door
	addr string

	asked atomic.Int32 // key of the newest request
	in    atomic.Bool  // a request that is not about entering was answered
}

// Write sends a request; the library writes each with one call.
func (v *visit) Write(p []byte) (int, error) {
	if !v.in.Load() && len(p) >= 6 {
		v.asked.Store(int32(binary.BigEndian.Uint16(p[4:])))
	}
	return v.Conn.Write(p)
}

// Read reads from the connection.
func (v *visit) Read(p []byte) (int, error) {
	n, err := v.Conn.Read(p)
	if v.in.Load() {
		return n, err
	}
	if n > 0 && !v.entering() {
		v.in.Store(true)
		v.door.admitted(v.addr)
	}
	var said error
	switch {
	case n == 0 && closed(err):
		said = v.explain(err)
	case v.door.tls == nil && bytes.HasPrefix(p[:n], tlsAlert) && kmsg.Key(v.asked.Load()) == kmsg.ApiVersions:
		said = fmt.Errorf("the broker answers in TLS; see %s", knobTLS)
	default:
		return n, err
	}
	v.door.refuse(v.addr, said)
	return 0, &net.OpError{Op: "dial", Net: "tcp", Err: said}
}

// tlsAlert begins what a server that speaks TLS only answers to anything else.
// As the length of an answer it would be 352 MB.
var tlsAlert = []byte{21, 3}

// entering reports whether the newest request is about entering.
func (v *visit) entering() bool {
	switch kmsg.Key(v.asked.Load()) { //nolint:exhaustive // all others are not
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return true
	}
	return false
}

// closed reports whether err says that the broker ended the connection.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || remote(err)
}

// explain says which knob the end of the connection may be about. What it
// returns does not wrap err, in which the library would see the end of a file
// and guess on its own.
func (v *visit) explain(err error) error {
	switch key := kmsg.Key(v.asked.Load()); {
	case remote(err) && v.door.tls != nil:
		return v.door.tls.explain(err)
	case key == kmsg.ApiVersions && v.door.tls == nil:
		return fmt.Errorf("the broker ends the connection at the first word (%s); does it speak TLS? see %s", err.Error(), knobTLS)
	case key == kmsg.SASLHandshake, key == kmsg.SASLAuthenticate:
		return fmt.Errorf("%w (%s)", errLogin, err.Error())
	case !v.door.sasl && !v.entering():
		return fmt.Errorf("the broker ends the connection of who did not log in (%s); see %s", err.Error(), knobSASL)
	}
	return fmt.Errorf("the broker ends the connection before its first answer (%s)", err.Error())
}
