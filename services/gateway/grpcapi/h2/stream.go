package h2

import (
	"encoding/binary"
	"slices"
)

func (c *conn) onHeaders(f *frame) error {
	if f.stream&1 == 0 {
		return fault(ProtocolError, "HEADERS on a stream that no client opens")
	}
	if err := f.unpad(); err != nil {
		return err
	}
	flags := f.flags & (flagEndStream | flagPriority)
	if f.has(flagPriority) {
		if len(f.payload) < 5 {
			return fault(FrameSizeError, "HEADERS is shorter than its priority")
		}
		if binary.BigEndian.Uint32(f.payload)&maxWindow != f.stream {
			flags &^= flagPriority // from here on: depends on itself
		}
		f.payload = f.payload[5:]
	}
	if f.has(flagEndHeaders) {
		return c.onBlock(f.stream, flags, f.payload)
	}
	c.block = append(c.block[:0], f.payload...)
	c.blockOf, c.blockFlag, c.blockPart, c.blockFrom = f.stream, flags, 0, c.now
	return c.boundBlock()
}

func (c *conn) onContinuation(f *frame) error {
	if c.blockOf == 0 {
		return fault(ProtocolError, "CONTINUATION without a header block")
	}
	c.block = append(c.block, f.payload...)
	c.blockPart++
	if err := c.boundBlock(); err != nil {
		return err
	}
	if !f.has(flagEndHeaders) {
		return nil
	}
	id := c.blockOf
	c.blockOf = 0
	return c.onBlock(id, c.blockFlag, c.block)
}

// boundBlock bounds what is kept of a header block before it is decoded.
func (c *conn) boundBlock() error {
	if len(c.block) > 2*frameLimit+c.s.cfg.MaxHeaders || c.blockPart > maxContinuations {
		return fault(EnhanceYourCalm, "a header block without end")
	}
	return nil
}

// onBlock acts on a complete header block: it opens a stream, or ends one with
// trailers.
func (c *conn) onBlock(id uint32, flags uint8, block []byte) error {
	r, err := c.dec.decode(block)
	if err != nil {
		return err
	}
	call := c.streams[id]
	switch {
	case call != nil:
		return c.onTrailers(call, r, flags)
	case id <= c.lastID:
		known, byUs := c.ended(id)
		switch {
		case byUs:
			return nil
		case known:
			return fault(StreamClosed, "HEADERS on a closed stream")
		}
		return fault(ProtocolError, "a stream number that is not larger than the last")
	case id > c.limitID:
		c.lastID = id // after GOAWAY (§6.8): the client will try elsewhere
		return c.spend(1)
	}
	c.lastID = id
	switch {
	case flags&flagPriority != 0:
		return c.reset(id, ProtocolError)
	case !c.dec.tooLarge() && !r.wellFormed():
		return c.reset(id, ProtocolError)
	case flags&flagEndStream != 0 && r.length > 0:
		return c.reset(id, ProtocolError)
	case len(c.streams)+c.ghosts >= c.s.cfg.MaxStreams:
		return c.reset(id, RefusedStream)
	}
	c.open(id, r, flags&flagEndStream != 0)
	return nil
}

// onTrailers ends a request with trailers, of which nothing is kept (§8.1).
func (c *conn) onTrailers(call *Call, r *request, flags uint8) error {
	if call.ended {
		return c.reset(call.id, StreamClosed)
	}
	if flags&flagEndStream == 0 || !r.wellEnded() || flags&flagPriority != 0 {
		return c.reset(call.id, ProtocolError)
	}
	return c.body(call, &frame{flags: flagEndStream})
}

// open begins a call, and refuses it when its headers suffice for that.
func (c *conn) open(id uint32, r *request, ended bool) {
	call := c.s.calls.Get().(*Call)
	call.conn, call.id, call.ended, call.window, call.length = c, id, ended, streamWindow, r.length
	call.began = c.now
	c.streams[id] = call
	switch {
	case c.dec.tooLarge():
		c.refusePlain(call, 431, "the request's headers are larger than SETTINGS_MAX_HEADER_LIST_SIZE")
		return
	case r.method != "POST":
		c.refusePlain(call, 405, "gRPC is spoken here: the method is POST")
		return
	case !isGRPC(r.contentType):
		c.refusePlain(call, 415, "gRPC is spoken here: the content type is application/grpc")
		return
	}
	method, ok := c.s.methods[r.path]
	if !ok {
		c.refuseWith(call, Unimplemented, "unknown method "+r.path)
		return
	}
	call.Method = method
	call.encoded = r.encoding != "" && r.encoding != "identity"
	call.fields = append(call.fields, r.fields...)
	if r.timeout != "" {
		d, err := parseTimeout(r.timeout)
		if err != nil {
			c.refuseWith(call, Internal, err.Error())
			return
		}
		call.Deadline = c.now.Add(d)
	}
	if ended {
		c.message(call)
	}
}

// refusePlain answers who does not speak gRPC, in words for a person, when the
// request has ended or grows long.
func (c *conn) refusePlain(call *Call, status int, why string) {
	call.plain = status
	call.Response = append(append(call.Response, why...), '\n')
	if call.ended {
		c.refuse(call)
	}
}

// refuseWith answers a call that the handler never sees.
func (c *conn) refuseWith(call *Call, code Code, why string) {
	call.Status, call.Message = code, why
	c.refuse(call)
}

// refuse answers a call without the handler: at once if the peer has ended its
// side, else after this read, which may bring the end yet.
func (c *conn) refuse(call *Call) {
	call.refused = true
	c.buffered -= len(call.in)
	call.in = call.in[:0]
	c.s.count(&c.s.stats.Refused, 1)
	if call.ended {
		c.answer(call)
		return
	}
	c.refusals = append(c.refusals, call.id)
}

// refuseAll answers the calls that are refused before their end.
func (c *conn) refuseAll() {
	for _, id := range c.refusals {
		if call := c.streams[id]; call != nil {
			c.answer(call)
		}
	}
	c.refusals = c.refusals[:0]
}

// remember notes a stream that is closed, and whether it was we who reset it.
func (c *conn) remember(id uint32, byUs bool) {
	mark := id << 1
	if byUs {
		mark |= 1
	}
	c.closed[c.nclosed%closedStreams] = mark
	c.nclosed++
}

// close takes an answered stream off the table.
func (c *conn) close(call *Call) {
	delete(c.streams, call.id)
	if !call.ended { // the client may stop sending (§8.1)
		c.out = appendFrame(c.out, frameRSTStream, call.id, uint32(NoError))
	}
	c.remember(call.id, !call.ended)
	c.release(call)
}

// drop takes a stream off the table that will not be answered. If the handler
// has it, it lives on as a ghost until it is finished.
func (c *conn) drop(call *Call, byUs bool) {
	delete(c.streams, call.id)
	c.remember(call.id, byUs)
	if call.waiting {
		c.waiting = slices.DeleteFunc(c.waiting, func(w *Call) bool { return w == call })
		c.unsent -= len(call.out)
		call.waiting = false
	}
	if !call.owned {
		c.release(call)
		return
	}
	c.ghosts++
	call.gone.Store(true)
	if call.cancel != nil {
		call.cancel()
	}
}

// release returns a call that nobody holds.
func (c *conn) release(call *Call) {
	c.buffered -= len(call.in)
	c.s.recycle(call)
}

// finish takes a call back from the handler.
func (c *conn) finish(call *Call) {
	call.owned = false
	if call.cancel != nil {
		call.cancel()
	}
	if call.gone.Load() {
		c.ghosts--
		c.release(call)
		return
	}
	c.answer(call)
}
