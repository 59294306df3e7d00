package h2

import (
	"encoding/binary"
	"slices"
)

// An encoderTable is the table that the peer keeps of our header fields
// (RFC 7541 §2.3.2). Two fields live in it, which nearly every answer has:
// content-type first, then grpc-status 0, which has the lower number then.
type encoderTable struct {
	size    uint32 // that we use
	changed bool   // the peer changed it, and has not been told that we know
	ctype   bool   // content-type is in
	status  bool   // grpc-status is in
}

const (
	indexStatus200   = 0x80 | 8
	indexFirst       = 0x80 | 62 // the youngest entry
	nameContentType  = 31
	nameStatus       = 8
	newestName       = 62
	neededSize       = 12 + 16 + 32 + 11 + 1 + 32 // of both entries (RFC 7541 §4.1)
	contentTypeGRPC  = "application/grpc"
	contentTypePlain = "text/plain; charset=utf-8"
	grpcStatus       = "grpc-status"
	grpcMessage      = "grpc-message"
)

// resize takes the peer's SETTINGS_HEADER_TABLE_SIZE. We use no more than the
// size to begin with, and nothing at all if two entries do not fit.
func (t *encoderTable) resize(size uint32) {
	size = min(size, tableSize)
	if size < neededSize {
		size = 0
	}
	if size != t.size || t.changed {
		*t = encoderTable{size: size, changed: true}
	}
}

// begin appends what must stand first in a header block: after a change the
// table is emptied, then takes its new size (RFC 7541 §4.2).
func (t *encoderTable) begin(b []byte) []byte {
	if !t.changed {
		return b
	}
	t.changed = false
	b = append(b, 0x20)
	if t.size > 0 {
		b = appendInt(b, 0x20, 5, uint64(t.size))
	}
	return b
}

// contentType appends content-type: application/grpc.
func (t *encoderTable) contentType(b []byte) []byte {
	switch {
	case t.size == 0:
		b = appendInt(b, 0, 4, nameContentType)
	case t.status:
		return append(b, indexFirst+1)
	case t.ctype:
		return append(b, indexFirst)
	default:
		t.ctype = true
		b = append(b, 0x40|nameContentType)
	}
	return appendString(b, contentTypeGRPC)
}

// statusOK appends grpc-status: 0. It must follow a content-type.
func (t *encoderTable) statusOK(b []byte) []byte {
	switch {
	case t.status:
		return append(b, indexFirst)
	case t.ctype:
		t.status = true
		b = append(b, 0x40)
	default:
		b = append(b, 0)
	}
	return appendString(appendString(b, grpcStatus), "0")
}

// statusCode appends grpc-status with a code that is not 0.
func (t *encoderTable) statusCode(b []byte, code Code) []byte {
	if t.status {
		b = appendInt(b, 0, 4, newestName)
	} else {
		b = appendString(append(b, 0), grpcStatus)
	}
	at := len(b)
	b = appendCode(append(b, 0), code)
	b[at] = byte(len(b) - at - 1)
	return b
}

// appendInt appends an integer with a prefix of n bits (RFC 7541 §5.1).
func appendInt(b []byte, pattern byte, n int, v uint64) []byte {
	limit := uint64(1)<<n - 1
	if v < limit {
		return append(b, pattern|byte(v))
	}
	return binary.AppendUvarint(append(b, pattern|byte(limit)), v-limit)
}

// appendString appends a string as it is, without Huffman's code (§5.2).
func appendString(b []byte, s string) []byte {
	return append(appendInt(b, 0, 7, uint64(len(s))), s...)
}

// answer sends what the handler, or we, have to say to a call. When it
// returns, the call may be gone.
func (c *conn) answer(call *Call) {
	c.answered++
	c.control.give(4)
	c.resets.give(c.answered & 1)
	if call.plain != 0 {
		c.plainHeaders(call)
		call.out = call.Response
		c.wait(call)
		return
	}
	n := prefixLen + len(call.Response)
	if call.Status == OK && c.unsent+n > c.s.cfg.MaxUnsent {
		call.Status, call.Message = ResourceExhausted, "answers pile up: the client does not read"
	}
	switch {
	case call.Status != OK:
		c.trailers(call, true)
		c.close(call)
	case n <= frameLimit && int64(n) <= min(c.sendWin, c.initial+call.credit) && len(c.out)+n <= maxOut:
		c.grpcHeaders(call)
		start := len(c.out)
		b := append(begin(c.out, frameData, 0, call.id), 0)
		b = binary.BigEndian.AppendUint32(b, uint32(len(call.Response)))
		c.out = append(b, call.Response...)
		end(c.out, start)
		c.sendWin -= int64(n)
		c.trailers(call, false)
		c.close(call)
	default:
		c.grpcHeaders(call)
		var prefix [prefixLen]byte
		binary.BigEndian.PutUint32(prefix[1:], uint32(len(call.Response)))
		call.Response = slices.Insert(call.Response, 0, prefix[:]...)
		call.out = call.Response
		c.wait(call)
	}
}

// grpcHeaders appends the headers of an answer with a message.
func (c *conn) grpcHeaders(call *Call) {
	start := len(c.out)
	b := c.table.begin(begin(c.out, frameHeaders, flagEndHeaders, call.id))
	c.out = c.table.contentType(append(b, indexStatus200))
	end(c.out, start)
}

// plainHeaders appends the headers of an answer that is not gRPC's.
func (c *conn) plainHeaders(call *Call) {
	start := len(c.out)
	b := c.table.begin(begin(c.out, frameHeaders, flagEndHeaders, call.id))
	b = append(b, nameStatus, 3, '0'+byte(call.plain/100), '0'+byte(call.plain/10%10), '0'+byte(call.plain%10))
	b = appendString(appendInt(b, 0, 4, nameContentType), contentTypePlain)
	c.out = b
	end(c.out, start)
}

// maxTrailers bounds the handler's trailers: those that do not fit in one
// frame are left out.
const maxTrailers = 8 << 10

// trailers appends the end of an answer, or all of one that has no message.
func (c *conn) trailers(call *Call, alone bool) {
	start := len(c.out)
	b := c.table.begin(begin(c.out, frameHeaders, flagEndHeaders|flagEndStream, call.id))
	if alone {
		b = c.table.contentType(append(b, indexStatus200))
	}
	if call.Status == OK {
		b = c.table.statusOK(b)
	} else {
		b = c.table.statusCode(b, call.Status)
	}
	if call.Message != "" && call.Status != OK {
		b = appendString(append(b, 0), grpcMessage)
		at := len(b)
		b = appendPercent(append(b, 0, 0, 0), call.Message)
		b = stringLength(b, at)
	}
	for _, f := range call.Trailers {
		if validName(f.Name) && validValue(f.Value) && len(b)-start+len(f.Name)+len(f.Value) < maxTrailers {
			b = appendString(appendString(append(b, 0), f.Name), f.Value)
		}
	}
	c.out = b
	end(c.out, start)
}

// stringLength writes the length of a string, for which three bytes were left,
// before it.
func stringLength(b []byte, at int) []byte {
	n := len(b) - at - 3
	if n < 127 {
		b[at] = byte(n)
		return append(b[:at+1], b[at+3:]...)
	}
	n -= 127
	if n < 128 {
		b[at], b[at+1] = 127, byte(n)
		return append(b[:at+2], b[at+3:]...)
	}
	b[at], b[at+1], b[at+2] = 127, byte(n)|0x80, byte(n>>7)
	return b
}

// wait has the rest of an answer sent as windows and room permit.
func (c *conn) wait(call *Call) {
	call.waiting = true
	call.began = c.now
	c.unsent += len(call.out)
	c.waiting = append(c.waiting, call)
	if len(c.waiting) == 1 {
		c.pump()
	}
}

// pump sends what may be sent of the answers that wait, a frame of each in
// turn.
func (c *conn) pump() {
	for moved := true; moved && c.sendWin > 0 && len(c.out) < maxOut; {
		moved = false
		keep := c.waiting[:0]
		for _, call := range c.waiting {
			n := c.push(call)
			moved = moved || n > 0
			if len(call.out) > 0 {
				keep = append(keep, call)
				continue
			}
			c.complete(call)
		}
		clear(c.waiting[len(keep):])
		c.waiting = keep
	}
}

// push sends as much of a call's answer as one frame takes, and returns how
// much that was.
func (c *conn) push(call *Call) int {
	n := min(int64(len(call.out)), frameLimit, c.sendWin, c.initial+call.credit, int64(maxOut-len(c.out)))
	if n <= 0 {
		return 0
	}
	var flags uint8
	if call.plain != 0 && int(n) == len(call.out) {
		flags = flagEndStream
	}
	start := len(c.out)
	c.out = append(begin(c.out, frameData, flags, call.id), call.out[:n]...)
	end(c.out, start)
	call.out = call.out[n:]
	call.credit -= n
	call.began = c.now
	c.sendWin -= n
	c.unsent -= int(n)
	if n >= 1024 {
		c.control.give(2)
	}
	return int(n)
}

// complete ends an answer whose body has been sent.
func (c *conn) complete(call *Call) {
	call.waiting = false
	if call.plain == 0 {
		c.trailers(call, false)
	}
	c.close(call)
}
