package h2

import (
	"encoding/binary"
	"strconv"
)

// preface is what a client sends first (RFC 9113 §3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frameHeader is the length of what stands before each payload (§4.1).
const frameHeader = 9

// frameLimit is the longest payload that either side sends here: the least
// that the RFC lets a peer ask for, and no more is ever asked for (§4.2).
const frameLimit = 16384

// maxWindow is the largest flow-control window (§6.9.1).
const maxWindow = 1<<31 - 1

type frameType uint8

const (
	frameData         frameType = 0x0
	frameHeaders      frameType = 0x1
	framePriority     frameType = 0x2
	frameRSTStream    frameType = 0x3
	frameSettings     frameType = 0x4
	framePushPromise  frameType = 0x5
	framePing         frameType = 0x6
	frameGoAway       frameType = 0x7
	frameWindowUpdate frameType = 0x8
	frameContinuation frameType = 0x9
)

const (
	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// A frame is one frame as it came; payload is valid until the next read.
type frame struct {
	typ     frameType
	flags   uint8
	stream  uint32
	payload []byte
}

func (f *frame) has(flag uint8) bool { return f.flags&flag != 0 }

// next cuts the first frame off b. It returns how many bytes that took, 0 when
// the frame is not complete yet.
func next(b []byte, f *frame) (int, error) {
	if len(b) < frameHeader {
		return 0, nil
	}
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if n > frameLimit {
		return 0, fault(FrameSizeError, "a frame is longer than SETTINGS_MAX_FRAME_SIZE")
	}
	if len(b) < frameHeader+n {
		return 0, nil
	}
	f.typ, f.flags = frameType(b[3]), b[4]
	f.stream = binary.BigEndian.Uint32(b[5:]) & maxWindow
	f.payload = b[frameHeader : frameHeader+n]
	return frameHeader + n, nil
}

// unpad strips the padding of DATA and HEADERS (§6.1, §6.2).
func (f *frame) unpad() error {
	if !f.has(flagPadded) {
		return nil
	}
	if len(f.payload) == 0 || int(f.payload[0]) >= len(f.payload) {
		return fault(ProtocolError, "padding is as long as the payload")
	}
	f.payload = f.payload[1 : len(f.payload)-int(f.payload[0])]
	return nil
}

// begin appends a frame header whose length end will fill in.
func begin(b []byte, typ frameType, flags uint8, stream uint32) []byte {
	return append(b, 0, 0, 0, byte(typ), flags, byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

// end fills in the length of the frame that begins at start.
func end(b []byte, start int) {
	n := len(b) - start - frameHeader
	b[start], b[start+1], b[start+2] = byte(n>>16), byte(n>>8), byte(n)
}

// appendFrame appends a whole frame of one or two numbers of 32 bits, which is
// what RST_STREAM, WINDOW_UPDATE and GOAWAY are.
func appendFrame(b []byte, typ frameType, stream uint32, numbers ...uint32) []byte {
	start := len(b)
	b = begin(b, typ, 0, stream)
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	end(b, start)
	return b
}

// An ErrCode says why a stream or a connection ended (§7).
type ErrCode uint32

// The codes of RFC 9113 §7.
const (
	NoError            ErrCode = 0x0
	ProtocolError      ErrCode = 0x1
	InternalError      ErrCode = 0x2
	FlowControlError   ErrCode = 0x3
	SettingsTimeout    ErrCode = 0x4
	StreamClosed       ErrCode = 0x5
	FrameSizeError     ErrCode = 0x6
	RefusedStream      ErrCode = 0x7
	Cancel             ErrCode = 0x8
	CompressionError   ErrCode = 0x9
	ConnectError       ErrCode = 0xa
	EnhanceYourCalm    ErrCode = 0xb
	InadequateSecurity ErrCode = 0xc
	HTTP11Required     ErrCode = 0xd
)

var codeNames = [...]string{
	"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
	"FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
	"INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
}

// String is the code's name in the RFC.
func (e ErrCode) String() string {
	if int(e) < len(codeNames) {
		return codeNames[e]
	}
	return "0x" + strconv.FormatUint(uint64(e), 16)
}

// A connError ends the connection (§5.4.1).
type connError struct {
	code ErrCode
	why  string
}

// Error is what the log says.
func (e *connError) Error() string { return e.code.String() + ": " + e.why }

func fault(code ErrCode, why string) error { return &connError{code, why} }
