package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Frames, their flags, and settings (RFC 9113, sections 6 and 6.5.2).
const (
	frameData, frameHeaders, frameReset, frameSettings   = 0x0, 0x1, 0x3, 0x4
	framePush, framePing, frameGoAway, frameWindowUpdate = 0x5, 0x6, 0x7, 0x8
	frameContinuation                                    = 0x9

	flagEnd, flagAck, flagEndHeaders, flagPadded, flagPriority = 0x1, 0x1, 0x4, 0x8, 0x20

	settingTable, settingPush, settingStreams, settingWindow = 0x1, 0x2, 0x3, 0x4
)

const (
	frameHeader = 9
	maxFrame    = 16 << 10 // bytes that every peer takes
	prefix      = 5        // of a gRPC message: compressed or not, length
	maxMessage  = maxFrame - prefix
	maxAnswer   = 1 << 20 // bytes of an answer, its stream's window
	ring        = 1 << 12 // streams of a connection, more than are ever in flight
	topUp       = 1 << 24 // bytes after which a connection's window is filled up
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

var errHTTP2 = errors.New("HTTP/2")

// An http2 is a connection of HTTP/2 that carries unary calls of one method.
type http2 struct {
	*conn
	encoder *hpack.Encoder
	encoded bytes.Buffer
	fields  []hpack.HeaderField
	block   []byte // the headers of every request
	steady  bool   // block changes no table
	decoder *hpack.Decoder
	told    told    // by the header block that is being decoded
	known   [2]told // the last blocks that changed no table

	next       uint32 // id of the next stream
	streams    []stream
	window     int64 // bytes that the peer takes on the connection
	initial    int64 // and on a new stream
	most       int   // streams at a time
	received   int   // bytes since the connection's window was filled up
	continued  []byte
	continuing uint32 // stream of a header block that is not at its end
	continuedF byte   // flags of its first frame
}

// A stream is one call. The zero stream is none.
type stream struct {
	id     uint32
	i      int
	due    int64
	answer Answer
	whole  bool   // the message has come
	body   []byte // what has come of it in pieces
}

// told is what a header block says.
type told struct {
	block  []byte
	http   int
	status int // of gRPC; -1: none
	text   string
}

// greet begins HTTP/2: it returns when the peer has told its settings.
func greet(c *conn, tcp *net.TCPConn) (protocol, error) {
	h := &http2{conn: c, next: 1, streams: make([]stream, ring), window: 1<<16 - 1, initial: 1<<16 - 1, most: ring / 2}
	h.encoder = hpack.NewEncoder(&h.encoded)
	h.decoder = hpack.NewDecoder(4096, h.field)
	h.fields = []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: c.run.Method},
		{Name: ":authority", Value: c.run.Addr},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	h.out = append(h.out, preface...)
	h.frame(12, frameSettings, 0, 0)
	h.setting(settingPush, 0)
	h.setting(settingWindow, maxAnswer)
	h.windowUpdate(1<<30 - 1)
	if err := tcp.SetDeadline(time.Now().Add(dialWithin)); err != nil {
		return nil, err
	}
	if _, err := tcp.Write(h.out); err != nil {
		return nil, err
	}
	h.out = h.out[:0]
	for len(h.out) == 0 { // the acknowledgement of the settings
		n, err := tcp.Read(c.in[c.unread:])
		if err != nil {
			return nil, fmt.Errorf("%w: no settings: %w", errHTTP2, err)
		}
		c.protocol = h
		if err := c.take(n); err != nil {
			return nil, err
		}
	}
	return h, tcp.SetDeadline(time.Time{})
}

func (h *http2) frame(length int, kind, flags byte, stream uint32) {
	h.out = binary.BigEndian.AppendUint32(append(h.out, byte(length>>16), byte(length>>8), byte(length), kind, flags), stream)
}

func (h *http2) setting(id uint16, value uint32) {
	h.out = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(h.out, id), value)
}

func (h *http2) windowUpdate(by uint32) {
	h.frame(4, frameWindowUpdate, 0, 0)
	h.out = binary.BigEndian.AppendUint32(h.out, by)
}

// headers is the header block of the next request. Once every field of it is in
// the peer's table it is the same for all.
func (h *http2) headers() []byte {
	if h.steady {
		return h.block
	}
	h.encoded.Reset()
	for _, f := range h.fields {
		_ = h.encoder.WriteField(f) // a buffer takes everything
	}
	h.steady = bytes.Equal(h.block, h.encoded.Bytes())
	h.block = append(h.block[:0], h.encoded.Bytes()...)
	return h.block
}

func (h *http2) begin(i int, due int64) bool {
	message := h.run.Requests[i]
	size := prefix + len(message)
	if h.flying >= h.most || h.window < int64(size) || h.initial < int64(size) {
		return false
	}
	s := h.slot(h.next)
	for s.id != 0 { // a stream that is slower than thousands after it
		h.next += 2
		s = h.slot(h.next)
	}
	*s = stream{id: h.next, i: i, due: due, body: s.body[:0]}
	h.next += 2
	block := h.headers()
	h.frame(len(block), frameHeaders, flagEndHeaders, s.id)
	h.out = append(h.out, block...)
	h.frame(size, frameData, flagEnd, s.id)
	h.out = append(binary.BigEndian.AppendUint32(append(h.out, 0), uint32(len(message))), message...)
	h.window -= int64(size)
	return true
}

func (h *http2) slot(id uint32) *stream { return &h.streams[id>>1%ring] }

// stream returns the one of that id, nil when it has ended.
func (h *http2) stream(id uint32) *stream {
	if s := h.slot(id); id != 0 && s.id == id {
		return s
	}
	return nil
}

func (h *http2) abandon(why string) { h.abandonAfter(0, why) }

// abandonAfter reports the streams above an id as failed.
func (h *http2) abandonAfter(last uint32, why string) {
	for i := range h.streams {
		if s := &h.streams[i]; s.id > last {
			s.id = 0
			h.lost(why)
		}
	}
}

func (h *http2) parse(in []byte) (used int, err error) {
	for len(in)-used >= frameHeader {
		head := in[used:]
		length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		if length > maxFrame {
			return used, fmt.Errorf("%w: a frame of %d bytes", errHTTP2, length)
		}
		if len(head) < frameHeader+length {
			break
		}
		id := binary.BigEndian.Uint32(head[5:]) &^ (1 << 31)
		if err := h.act(head[3], head[4], id, head[frameHeader:frameHeader+length]); err != nil {
			return used, err
		}
		used += frameHeader + length
	}
	if h.received >= topUp {
		h.windowUpdate(uint32(h.received))
		h.received = 0
	}
	return used, nil
}

// act acts on one frame.
func (h *http2) act(kind, flags byte, id uint32, payload []byte) error {
	if h.continuing != 0 && (kind != frameContinuation || id != h.continuing) {
		return fmt.Errorf("%w: frame %d within a header block", errHTTP2, kind)
	}
	switch kind {
	case frameData:
		return h.data(flags, id, payload)
	case frameHeaders, frameContinuation:
		return h.headerFrame(kind, flags, id, payload)
	case frameReset:
		if s := h.stream(id); s != nil && len(payload) == 4 {
			s.id = 0
			h.lost(fmt.Sprintf("the server reset a stream with code %d", binary.BigEndian.Uint32(payload)))
		}
	case frameSettings:
		return h.settings(flags, payload)
	case framePush:
		return fmt.Errorf("%w: a push", errHTTP2)
	case framePing:
		if flags&flagAck == 0 && len(payload) == 8 {
			h.frame(8, framePing, flagAck, 0)
			h.out = append(h.out, payload...)
		}
	case frameGoAway:
		if len(payload) < 8 {
			return fmt.Errorf("%w: a short GOAWAY", errHTTP2)
		}
		h.closing = true
		h.abandonAfter(binary.BigEndian.Uint32(payload)&^(1<<31),
			fmt.Sprintf("the server goes away with code %d: %q", binary.BigEndian.Uint32(payload[4:]), payload[8:]))
	case frameWindowUpdate:
		if id == 0 && len(payload) == 4 {
			h.window += int64(binary.BigEndian.Uint32(payload) &^ (1 << 31))
		}
	}
	return nil // others are to be ignored
}

func (h *http2) settings(flags byte, payload []byte) error {
	if flags&flagAck != 0 {
		return nil
	}
	if len(payload)%6 != 0 {
		return fmt.Errorf("%w: settings of %d bytes", errHTTP2, len(payload))
	}
	for ; len(payload) > 0; payload = payload[6:] {
		value := binary.BigEndian.Uint32(payload[2:])
		switch binary.BigEndian.Uint16(payload) {
		case settingTable:
			h.encoder.SetMaxDynamicTableSizeLimit(value)
			h.steady = false
		case settingStreams:
			h.most = int(min(value, ring/2))
		case settingWindow:
			h.initial = int64(value)
		}
	}
	h.frame(0, frameSettings, flagAck, 0)
	return nil
}

// data takes in a part of an answer.
func (h *http2) data(flags byte, id uint32, payload []byte) error {
	h.received += len(payload)
	payload, err := unpadded(flags, payload)
	s := h.stream(id)
	if err != nil || s == nil {
		return err
	}
	if len(s.body) > 0 || len(payload) > 0 && !isMessage(payload) {
		s.body = append(s.body, payload...)
		payload = s.body
	}
	switch {
	case s.whole && len(payload) > 0 || len(payload) > maxAnswer:
		s.answer = Wrong
	case isMessage(payload):
		s.whole, s.answer = true, h.run.Judge(s.i, 0, payload[prefix:])
		if s.answer == Wrong {
			s.body = append(s.body[:0], payload[prefix:]...)
		} else {
			s.body = s.body[:0]
		}
	}
	if flags&flagEnd != 0 {
		h.end(s, told{status: -1})
	}
	return nil
}

// isMessage reports whether b is one whole message that is not compressed.
func isMessage(b []byte) bool {
	return len(b) >= prefix && b[0] == 0 && uint64(binary.BigEndian.Uint32(b[1:]))+prefix == uint64(len(b))
}

func unpadded(flags byte, payload []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return payload, nil
	}
	if len(payload) == 0 || len(payload) <= int(payload[0]) {
		return nil, fmt.Errorf("%w: padding", errHTTP2)
	}
	return payload[1 : len(payload)-int(payload[0])], nil
}

func (h *http2) headerFrame(kind, flags byte, id uint32, payload []byte) (err error) {
	if kind == frameHeaders {
		if payload, err = unpadded(flags, payload); err != nil {
			return err
		}
		if flags&flagPriority != 0 {
			payload = payload[min(5, len(payload)):]
		}
		h.continuedF, h.continued = flags, h.continued[:0]
	}
	if flags&flagEndHeaders == 0 || kind == frameContinuation {
		if h.continued = append(h.continued, payload...); len(h.continued) > maxAnswer {
			return fmt.Errorf("%w: a header block of %d bytes", errHTTP2, len(h.continued))
		}
		payload = h.continued
	}
	h.continuing = id
	if flags&flagEndHeaders == 0 {
		return nil
	}
	h.continuing = 0
	end := h.continuedF&flagEnd != 0
	t, err := h.decode(payload, end)
	if s := h.stream(id); err == nil && s != nil && end {
		h.end(s, t)
	} else if err == nil && s != nil && t.http != 200 {
		s.answer, s.whole = Wrong, true
	}
	return err
}

// decode reads a header block, unless it is the last one of its kind again and
// all of its fields came from the table.
func (h *http2) decode(block []byte, end bool) (told, error) {
	k := &h.known[0]
	if end {
		k = &h.known[1]
	}
	if len(k.block) > 0 && bytes.Equal(k.block, block) {
		return *k, nil
	}
	h.told = told{status: -1}
	if _, err := h.decoder.Write(block); err != nil {
		return told{}, fmt.Errorf("%w: %w", errHTTP2, err)
	}
	if err := h.decoder.Close(); err != nil {
		return told{}, fmt.Errorf("%w: %w", errHTTP2, err)
	}
	if !indexed(block) {
		h.known = [2]told{}
		return h.told, nil
	}
	h.told.block = append(k.block[:0], block...)
	*k = h.told
	return *k, nil
}

// indexed reports whether a header block is nothing but indices of one byte, so
// that it changed no table.
func indexed(block []byte) bool {
	for _, b := range block {
		if b < 0x80 || b == 0xff {
			return false
		}
	}
	return len(block) > 0
}

func (h *http2) field(f hpack.HeaderField) {
	switch f.Name {
	case ":status":
		h.told.http, _ = strconv.Atoi(f.Value)
	case "grpc-status":
		if code, err := strconv.Atoi(f.Value); err == nil {
			h.told.status = code
		}
	case "grpc-message":
		h.told.text = f.Value
	}
}

// end ends a call.
func (h *http2) end(s *stream, t told) {
	s.id = 0
	switch {
	case t.status < 0:
		h.lost(fmt.Sprintf("a call ended without a status (HTTP %d)", t.http))
	case t.status > 0:
		h.finish(s.i, s.due, h.run.Judge(s.i, t.status, nil), t.status, []byte(t.text))
	default: // Wrong, if no message came
		h.finish(s.i, s.due, s.answer, 0, s.body)
	}
}
