package h2

import (
	"encoding/binary"
	"slices"
	"time"
)

// frames takes all complete frames of b and returns how many bytes they were.
func (c *conn) frames(b []byte) (int, error) {
	used, err := c.readPreface(b)
	if err != nil || c.prefaced < len(preface) {
		return used, err
	}
	var f frame
	for !c.failed {
		n, err := next(b[used:], &f)
		if n == 0 || err != nil {
			return used, err
		}
		used += n
		if err := c.take(&f); err != nil {
			return used, err
		}
	}
	return used, nil
}

// readPreface holds the client to the first bytes that it must send, as soon
// as one differs.
func (c *conn) readPreface(b []byte) (int, error) {
	want := preface[c.prefaced:]
	n := min(len(b), len(want))
	if string(b[:n]) != want[:n] {
		return n, fault(ProtocolError, "the client does not begin with HTTP/2's preface")
	}
	c.prefaced += n
	return n, nil
}

// take acts on one frame.
func (c *conn) take(f *frame) error {
	if !c.settled && (f.typ != frameSettings || f.has(flagAck)) {
		return fault(ProtocolError, "the first frame is not SETTINGS")
	}
	if c.blockOf != 0 && (f.typ != frameContinuation || f.stream != c.blockOf) {
		return fault(ProtocolError, "a frame inside a header block")
	}
	switch f.typ {
	case frameData:
		return c.onData(f)
	case frameHeaders:
		return c.onHeaders(f)
	case framePriority:
		return c.onPriority(f)
	case frameRSTStream:
		return c.onReset(f)
	case frameSettings:
		return c.onSettings(f)
	case framePushPromise:
		return fault(ProtocolError, "a client pushes")
	case framePing:
		return c.onPing(f)
	case frameGoAway:
		return c.onGoAway(f)
	case frameWindowUpdate:
		return c.onWindowUpdate(f)
	case frameContinuation:
		return c.onContinuation(f)
	}
	return c.spend(1) // an unknown type is ignored (§5.5)
}

// spend takes n from what the peer may do without working.
func (c *conn) spend(n int) error {
	c.control.left -= n
	if c.control.left < 0 {
		return fault(EnhanceYourCalm, "too many frames that carry nothing")
	}
	return nil
}

// idle reports whether a stream has not begun yet (§5.1.1).
func (c *conn) idle(id uint32) bool { return id > c.lastID || id&1 == 0 }

// ended reports whether a stream is among the last that were closed, and
// whether it was we who reset it or did not take it up: then frames of it may
// be under way still.
func (c *conn) ended(id uint32) (known, byUs bool) {
	if id > c.limitID || slices.Contains(c.closed[:], id<<1|1) {
		return true, true
	}
	return slices.Contains(c.closed[:], id<<1), false
}

func (c *conn) onData(f *frame) error {
	if c.idle(f.stream) {
		return fault(ProtocolError, "DATA on a stream that is not open")
	}
	size := int32(len(f.payload)) // padding counts (§6.9.1)
	if size > c.window {
		return fault(FlowControlError, "more DATA than the connection's window")
	}
	c.window -= size
	if err := f.unpad(); err != nil {
		return err
	}
	if len(f.payload) == 0 && !f.has(flagEndStream) {
		if err := c.spend(1); err != nil {
			return err
		}
	}
	call := c.streams[f.stream]
	switch {
	case call == nil:
		if _, byUs := c.ended(f.stream); byUs {
			return nil
		}
		return c.reset(f.stream, StreamClosed)
	case call.ended:
		return c.reset(f.stream, StreamClosed)
	case size > call.window:
		return c.reset(f.stream, FlowControlError)
	}
	call.window -= size
	return c.body(call, f)
}

// body adds what a frame brought to a call.
func (c *conn) body(call *Call, f *frame) error {
	call.received += int64(len(f.payload))
	if call.length >= 0 && call.received > call.length {
		return c.reset(call.id, ProtocolError)
	}
	if f.has(flagEndStream) {
		call.ended = true
		if call.length >= 0 && call.received != call.length {
			return c.reset(call.id, ProtocolError)
		}
	}
	switch {
	case call.refused:
		return nil // its answer waits for a window
	case call.plain != 0:
		if call.ended || call.received > maxKept {
			c.refuse(call)
		}
		return nil
	case c.buffered+len(f.payload) > c.s.cfg.MaxBuffered:
		c.refuseWith(call, ResourceExhausted, "the connection has too many bytes of requests under way")
		return nil
	}
	c.buffered += len(f.payload)
	call.in = append(call.in, f.payload...)
	c.message(call)
	return nil
}

// message looks at the body of a call, which holds exactly one message, and
// has it handled when the peer has ended its side.
func (c *conn) message(call *Call) {
	n := len(call.in)
	if n > 0 && call.in[0] != 0 {
		c.compressed(call)
		return
	}
	want := prefixLen
	if n >= prefixLen {
		size := binary.BigEndian.Uint32(call.in[1:])
		if int64(size) > int64(c.s.cfg.MaxRequest) {
			c.refuseWith(call, ResourceExhausted, "the message is larger than this server takes")
			return
		}
		want += int(size)
	}
	switch {
	case n > want:
		c.refuseWith(call, Internal, "the method takes one message and got more")
	case call.ended && n == 0:
		c.refuseWith(call, Internal, "the method takes one message and got none")
	case call.ended && n < want:
		c.refuseWith(call, Internal, "the message ends before its length")
	case call.ended:
		call.Request = call.in[prefixLen:]
		call.owned = true
		c.batch = append(c.batch, call)
	case call.window < streamWindow/2:
		c.out = appendFrame(c.out, frameWindowUpdate, call.id, uint32(streamWindow-call.window))
		call.window = streamWindow
	}
}

// compressed refuses a message whose first byte is not 0.
func (c *conn) compressed(call *Call) {
	switch {
	case call.in[0] != 1:
		c.refuseWith(call, Internal, "the first byte of a message is 0 or 1")
	case call.encoded:
		call.Trailers = append(call.Trailers, Field{"grpc-accept-encoding", "identity"})
		c.refuseWith(call, Unimplemented, "grpc-encoding must be identity")
	default:
		c.refuseWith(call, Internal, "a compressed message without grpc-encoding")
	}
}

func (c *conn) onPriority(f *frame) error {
	if f.stream == 0 {
		return fault(ProtocolError, "PRIORITY on stream 0")
	}
	if len(f.payload) != 5 {
		if c.idle(f.stream) {
			return fault(FrameSizeError, "PRIORITY is not five bytes")
		}
		return c.reset(f.stream, FrameSizeError)
	}
	if binary.BigEndian.Uint32(f.payload)&maxWindow == f.stream {
		if c.idle(f.stream) {
			return fault(ProtocolError, "a stream depends on itself")
		}
		return c.reset(f.stream, ProtocolError)
	}
	return c.spend(1) // ignored (§5.3.2)
}

func (c *conn) onReset(f *frame) error {
	switch {
	case c.idle(f.stream):
		return fault(ProtocolError, "RST_STREAM on an idle stream")
	case len(f.payload) != 4:
		return fault(FrameSizeError, "RST_STREAM is not four bytes")
	}
	if call := c.streams[f.stream]; call != nil {
		c.drop(call, false)
		return c.count(1)
	}
	return c.spend(1)
}

// count takes n from the streams that may be reset. It bounds both what the
// peer resets (CVE-2023-44487) and what it makes us reset (CVE-2025-8671).
func (c *conn) count(n int) error {
	c.resets.left -= n
	if c.resets.left < 0 {
		return fault(EnhanceYourCalm, "too many streams are reset")
	}
	return nil
}

// reset ends a stream with an error (§5.4.2).
func (c *conn) reset(id uint32, code ErrCode) error {
	c.out = appendFrame(c.out, frameRSTStream, id, uint32(code))
	if call := c.streams[id]; call != nil {
		c.drop(call, true)
	} else {
		c.remember(id, true)
	}
	c.s.count(&c.s.stats.Resets, 1)
	return c.count(1)
}

func (c *conn) onPing(f *frame) error {
	switch {
	case f.stream != 0:
		return fault(ProtocolError, "PING on a stream")
	case len(f.payload) != 8:
		return fault(FrameSizeError, "PING is not eight bytes")
	case f.has(flagAck):
		if !c.draining.IsZero() && !c.final && string(f.payload) == drainPing {
			c.lastGoAway()
		}
	default:
		start := len(c.out)
		c.out = append(begin(c.out, framePing, flagAck, 0), f.payload...)
		end(c.out, start)
	}
	return c.spend(1)
}

// onGoAway: the client opens no more streams, so the connection ends with
// those that are open.
func (c *conn) onGoAway(f *frame) error {
	switch {
	case f.stream != 0:
		return fault(ProtocolError, "GOAWAY on a stream")
	case len(f.payload) < 8:
		return fault(FrameSizeError, "GOAWAY is shorter than eight bytes")
	}
	if !c.final {
		c.lastGoAway()
	}
	return c.spend(1)
}

func (c *conn) onWindowUpdate(f *frame) error {
	if len(f.payload) != 4 {
		return fault(FrameSizeError, "WINDOW_UPDATE is not four bytes")
	}
	n := int64(binary.BigEndian.Uint32(f.payload) & maxWindow)
	if f.stream == 0 {
		if n == 0 {
			return fault(ProtocolError, "WINDOW_UPDATE of nothing")
		}
		if c.sendWin += n; c.sendWin > maxWindow {
			return fault(FlowControlError, "the connection's window is too large")
		}
		return c.spend(1)
	}
	if c.idle(f.stream) {
		return fault(ProtocolError, "WINDOW_UPDATE on an idle stream")
	}
	call := c.streams[f.stream]
	switch {
	case call == nil:
	case n == 0:
		return c.reset(f.stream, ProtocolError)
	case c.initial+call.credit+n > maxWindow:
		return c.reset(f.stream, FlowControlError)
	default:
		call.credit += n
		c.maxCredit = max(c.maxCredit, call.credit)
	}
	return c.spend(1)
}

// drainPing is the PING whose answer tells that the client has heard of the
// first GOAWAY (§6.8).
const drainPing = "penstock"

// drain tells the client to open no more streams: first in general, then,
// when it has heard that, with the last that will be answered.
func (c *conn) drain(now time.Time) {
	if !c.draining.IsZero() || c.final || c.failed || c.dead {
		return
	}
	c.draining = now
	if !c.settled {
		c.lastGoAway()
		return
	}
	c.out = appendFrame(c.out, frameGoAway, 0, maxWindow, uint32(NoError))
	start := len(c.out)
	c.out = append(begin(c.out, framePing, 0, 0), drainPing...)
	end(c.out, start)
}

func (c *conn) lastGoAway() {
	c.final = true
	c.limitID = c.lastID
	c.out = appendFrame(c.out, frameGoAway, 0, c.lastID, uint32(NoError))
}
