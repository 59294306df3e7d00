package h2_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// A script is what a client sends after the preface, and what it is told until
// the PING at its end is answered. The other two engines are told the same
// script; where they answer otherwise, grpc and xnet say how, and why the
// difference is meant.
type script struct {
	name string
	send func(p *peer)
	want []string
	grpc []string // grpc-go's own server; nil: as ours
	xnet []string // grpc-go behind net/http's server; nil: as ours
	why  string   // of a difference

	anyOrder bool // the order is nobody's promise
}

const (
	protocolError = "GOAWAY PROTOCOL_ERROR"
	flowError     = "GOAWAY FLOW_CONTROL_ERROR"
	frameError    = "GOAWAY FRAME_SIZE_ERROR"
	hpackError    = "GOAWAY COMPRESSION_ERROR"

	silent  = "grpc-go closes without GOAWAY"
	lenient = "grpc-go does not look at it"
)

func one(s string) []string { return []string{s} }

func frameOf(typ http2.FrameType, flags http2.Flags, id uint32, payload ...byte) func(*peer) {
	return func(p *peer) { _ = p.fr.WriteRawFrame(typ, flags, id, payload) }
}

var scripts = []script{
	// Calls.
	{name: "a call is answered", send: func(p *peer) { p.call(1, echo, "hello") }, want: one(`1: 200 status=0 "hello"`)},
	{name: "an empty message is answered", send: func(p *peer) { p.call(1, echo, "") }, want: one("1: 200 status=0")},
	{
		name: "three calls are answered", send: func(p *peer) { p.call(1, echo, "a"); p.call(3, echo, "b"); p.call(7, echo, "c") },
		want: []string{`1: 200 status=0 "a"`, `3: 200 status=0 "b"`, `7: 200 status=0 "c"`},
	},
	{name: "an error has its status and message", send: func(p *peer) { p.call(1, fail, "no 100%\n") }, want: one(`1: 200 status=5 message=no 100%25%0A`)},
	{
		name: "a body in pieces is put together", send: func(p *peer) {
			p.headers(1, false, echo)
			for _, b := range message("pieces") {
				p.data(1, false, []byte{b})
			}
			p.data(1, true, nil)
		}, want: one(`1: 200 status=0 "pieces"`),
	},
	{
		name: "padding is taken off", send: func(p *peer) {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(echo), EndHeaders: true, PadLength: 7})
			_ = p.fr.WriteDataPadded(1, true, message("padded"), make([]byte, 200))
		}, want: one(`1: 200 status=0 "padded"`),
	},
	{
		name: "a header block in pieces is put together", send: func(p *peer) {
			b := p.block(echo)
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:5]})
			_ = p.fr.WriteContinuation(1, false, b[5:9])
			_ = p.fr.WriteContinuation(1, true, b[9:])
			p.data(1, true, message("x"))
		}, want: one(`1: 200 status=0 "x"`),
	},
	{
		name: "priority in HEADERS is ignored", send: func(p *peer) {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(echo), EndHeaders: true, Priority: http2.PriorityParam{StreamDep: 9, Weight: 3}})
			p.data(1, true, message("x"))
		}, want: one(`1: 200 status=0 "x"`),
	},
	{name: "PRIORITY is ignored", send: func(p *peer) {
		_ = p.fr.WritePriority(5, http2.PriorityParam{StreamDep: 3})
		p.call(7, echo, "x")
	}, want: one(`7: 200 status=0 "x"`)},
	{name: "an unknown frame is ignored", send: func(p *peer) { frameOf(0x77, 0xff, 3, 1, 2)(p); p.call(1, echo, "x") }, want: one(`1: 200 status=0 "x"`)},
	{
		name: "an unknown setting is ignored", send: func(p *peer) {
			_ = p.fr.WriteSettings(http2.Setting{ID: 0x99, Val: 1})
			p.call(1, echo, "x")
		}, want: one(`1: 200 status=0 "x"`),
	},
	{
		name: "trailers end a request", send: func(p *peer) {
			p.headers(1, false, echo)
			p.data(1, false, message("x"))
			p.trailers(1, true, "note", "x")
		}, want: one(`1: 200 status=0 "x"`), grpc: []string{"GOAWAY PROTOCOL_ERROR"}, why: "grpc-go takes HEADERS of an open stream for a new one",
	},
	// gRPC's refusals.
	{name: "an unknown method", send: func(p *peer) { p.call(1, "/t.Test/None", "x") }, want: one("1: 200 status=12 message=unknown method /t.Test/None")},
	{
		name: "a compressed message", send: func(p *peer) {
			p.headers(1, false, echo, "grpc-encoding", "snappy")
			p.data(1, true, append([]byte{1}, message("x")[1:]...))
		}, want: one("1: 200 status=12 message=grpc-encoding must be identity"),
	},
	{
		name: "a compressed message without an encoding", send: func(p *peer) {
			p.headers(1, false, echo)
			p.data(1, true, append([]byte{1}, message("x")[1:]...))
		}, want: one("1: 200 status=13 message=a compressed message without grpc-encoding"),
	},
	{
		name: "identity is an encoding", send: func(p *peer) {
			p.headers(1, false, echo, "grpc-encoding", "identity")
			p.data(1, true, message("x"))
		}, want: one(`1: 200 status=0 "x"`),
	},
	{
		name: "two messages", send: func(p *peer) {
			p.headers(1, false, echo)
			p.data(1, true, append(message("a"), message("b")...))
		}, want: one("1: 200 status=13 message=the method takes one message and got more"),
	},
	{
		name: "no message", send: func(p *peer) { p.headers(1, true, echo) },
		want: one("1: 200 status=13 message=the method takes one message and got none"),
	},
	{
		name: "a message that breaks off", send: func(p *peer) {
			p.headers(1, false, echo)
			p.data(1, true, message("hello")[:8])
		}, want: one("1: 200 status=13 message=the message ends before its length"),
	},
	{
		name: "a message that is too long, as soon as that is known", send: func(p *peer) {
			p.headers(1, false, echo)
			p.data(1, false, []byte{0, 0, 255, 255, 255})
		}, want: []string{"1: 200 status=8 message=the message is larger than this server takes", "1: RST NO_ERROR"},
	},
	{
		name: "a timeout that is none", send: func(p *peer) { p.headers(1, false, echo, "grpc-timeout", "5x"); p.data(1, true, message("x")) },
		want: one("1: 200 status=13 message=malformed grpc-timeout"), grpc: []string{"1: 400", "1: RST NO_ERROR"}, xnet: []string{"1: 400"}, why: "a client of gRPC is told INTERNAL either way",
	},
	{
		name: "another content type", send: func(p *peer) {
			p.headers(1, false, echo, "content-type", "application/json")
			p.data(1, true, message("x"))
		}, want: one(`1: 415 58 bytes`), grpc: []string{"1: 415", "1: RST NO_ERROR"}, why: "grpc-go refuses before the request has ended",
	},
	{
		name: "another method of HTTP", send: func(p *peer) { p.headers(1, true, echo, ":method", "GET") },
		want: one(`1: 405 "gRPC is spoken here: the method is POST\n"`),
	},
	{
		name: "headers that are too large", send: func(p *peer) {
			change := []string{}
			for i := range 30 {
				change = append(change, fmt.Sprintf("k%d", i), strings.Repeat("v", 400))
			}
			p.headers(1, false, echo, change...)
			p.data(1, true, message("x"))
			p.call(3, echo, "next")
		}, want: []string{`1: 431 68 bytes`, `3: 200 status=0 "next"`}, grpc: []string{"1: RST FRAME_SIZE_ERROR", "3: 200 status=0 \"next\""}, why: "grpc-go resets; an answer tells a person what is wrong",
	},
	// Malformed requests (§8.1.1).
	{name: "no path", send: func(p *peer) { p.headers(1, true, echo, ":path", "-") }, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"1: 200 status=12"}, why: "grpc-go answers what the RFC calls malformed"},
	{name: "no scheme", send: func(p *peer) { p.headers(1, true, echo, ":scheme", "-") }, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"1: 200 status=13"}, why: "grpc-go answers what the RFC calls malformed"},
	{name: "no method", send: func(p *peer) { p.headers(1, true, echo, ":method", "-") }, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"1: 405"}, why: "grpc-go answers what the RFC calls malformed"},
	{name: "an unknown pseudo header", send: func(p *peer) { p.headers(1, true, echo, ":x", "y") }, want: one("1: RST PROTOCOL_ERROR")},
	{name: "a pseudo header after a field", send: func(p *peer) { p.headers(1, true, echo, ":status", "200") }, want: one("1: RST PROTOCOL_ERROR")},
	{name: "upper case", send: func(p *peer) { p.headers(1, true, echo, "Key", "v") }, want: one("1: RST PROTOCOL_ERROR")},
	{name: "a line feed in a value", send: func(p *peer) { p.headers(1, true, echo, "key", "a\nb") }, want: one("1: RST PROTOCOL_ERROR")},
	{name: "a blank before a value", send: func(p *peer) { p.headers(1, true, echo, "key", " a") }, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"1: 200 status=13"}, xnet: []string{"1: 200 status=13"}, why: "the others answer what the RFC calls malformed (§8.2.1)"},
	{name: "connection", send: func(p *peer) { p.headers(1, true, echo, "connection", "close") }, want: one("1: RST PROTOCOL_ERROR"), xnet: []string{"1: 400"}, why: "x/net answers 400, which the RFC allows beside RST_STREAM"},
	{name: "te: gzip", send: func(p *peer) { p.headers(1, true, echo, "te", "gzip") }, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"1: 200 status=13"}, xnet: []string{"1: 400"}, why: "x/net answers 400, which the RFC allows beside RST_STREAM"},
	{name: "host is not :authority", send: func(p *peer) { p.headers(1, true, echo, "host", "other") }, want: one("1: RST PROTOCOL_ERROR"), grpc: one("1: 200 status=13"), xnet: one("1: 200 status=13"), why: "grpc-go answers what the RFC calls malformed, net/http leaves it to it"},
	{
		name: "content-length is not the body's", send: func(p *peer) {
			p.headers(1, false, echo, "content-length", "3")
			p.data(1, true, message("x"))
		}, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"1: 200 status=0 \"x\""}, why: "grpc-go answers what the RFC calls malformed",
	},
	{
		name: "trailers that do not end it", send: func(p *peer) {
			p.headers(1, false, echo)
			p.trailers(1, false, "note", "x")
		}, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"GOAWAY PROTOCOL_ERROR"}, why: "grpc-go takes HEADERS of an open stream for a new one",
	},
	{
		name: "a pseudo header in trailers", send: func(p *peer) {
			p.headers(1, false, echo)
			p.trailers(1, true, ":path", "/x")
		}, want: one("1: RST PROTOCOL_ERROR"), grpc: []string{"GOAWAY PROTOCOL_ERROR"}, why: "grpc-go takes HEADERS of an open stream for a new one",
	},
	// States (§5.1).
	{name: "DATA on an idle stream", send: func(p *peer) { p.data(1, true, message("x")) }, want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "DATA on stream 0", send: frameOf(http2.FrameData, 0, 0, 1), want: one(protocolError), grpc: []string{"EOF"}, why: silent},
	{name: "RST_STREAM on an idle stream", send: frameOf(http2.FrameRSTStream, 0, 5, 0, 0, 0, 8), want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "WINDOW_UPDATE on an idle stream", send: frameOf(http2.FrameWindowUpdate, 0, 5, 0, 0, 0, 8), want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "an even stream", send: func(p *peer) { p.headers(2, true, echo) }, want: one(protocolError)},
	{name: "a smaller stream", send: func(p *peer) { p.headers(5, false, hold); p.headers(3, false, echo) }, want: one(protocolError)},
	{
		name: "DATA after the end", send: func(p *peer) { p.call(1, hold, "x"); p.data(1, true, message("y")) },
		want: one("1: RST STREAM_CLOSED"),
	},
	{
		name: "HEADERS after the end", send: func(p *peer) { p.call(1, hold, "x"); p.trailers(1, true, "note", "x") },
		want: one("1: RST STREAM_CLOSED"), grpc: []string{"GOAWAY PROTOCOL_ERROR"}, why: "grpc-go takes HEADERS of an open stream for a new one",
	},
	{name: "a push", send: frameOf(http2.FramePushPromise, 4, 1, 0, 0, 0, 2), want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "a frame inside a header block", send: func(p *peer) {
		_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(echo)[:3]})
		p.ping()
	}, want: one(protocolError), grpc: []string{"EOF"}, why: silent},
	{name: "CONTINUATION alone", send: frameOf(http2.FrameContinuation, 4, 1, 0x82), want: one(protocolError), grpc: []string{"EOF"}, why: silent},
	{name: "a header block that does not decode", send: frameOf(http2.FrameHeaders, 5, 1, 0xff, 0xff, 0xff, 0xff, 0xff), want: one(hpackError), grpc: []string{"EOF"}, why: silent},
	{name: "a table larger than allowed", send: frameOf(http2.FrameHeaders, 5, 1, 0x3f, 0xe2, 0x1f), want: one(hpackError), grpc: []string{"EOF"}, why: silent},
	// Sizes.
	{name: "a frame that is too long", send: func(p *peer) { p.raw([]byte{0x10, 0, 1, 0, 0, 0, 0, 0, 1}) }, want: one(frameError), grpc: []string{"EOF"}, why: silent},
	{name: "PING of seven bytes", send: frameOf(http2.FramePing, 0, 0, 1, 2, 3, 4, 5, 6, 7), want: one(frameError), grpc: []string{"EOF"}, why: silent},
	{name: "PING on a stream", send: frameOf(http2.FramePing, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8), want: one(protocolError), grpc: []string{"EOF"}, why: silent},
	{name: "SETTINGS of five bytes", send: frameOf(http2.FrameSettings, 0, 0, 1, 2, 3, 4, 5), want: one(frameError), grpc: []string{"EOF"}, why: silent},
	{name: "SETTINGS on a stream", send: frameOf(http2.FrameSettings, 0, 1), want: one(protocolError), grpc: []string{"EOF"}, why: silent},
	{name: "an answer to no SETTINGS", send: func(p *peer) { frameOf(http2.FrameSettings, 1, 0)(p); frameOf(http2.FrameSettings, 1, 0)(p) }, want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "a frame size out of bounds", send: frameOf(http2.FrameSettings, 0, 0, 0, 5, 0, 0, 0x3f, 0xff), want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "an initial window out of bounds", send: frameOf(http2.FrameSettings, 0, 0, 0, 4, 0x80, 0, 0, 0), want: one(flowError), grpc: []string{"EOF"}, why: silent},
	{name: "a push setting out of bounds", send: frameOf(http2.FrameSettings, 0, 0, 0, 2, 0, 0, 0, 2), want: one(protocolError), grpc: []string{}, why: lenient},
	{name: "WINDOW_UPDATE of three bytes", send: frameOf(http2.FrameWindowUpdate, 0, 0, 1, 2, 3), want: one(frameError), grpc: []string{"EOF"}, why: silent},
	{name: "RST_STREAM of three bytes", send: func(p *peer) { p.headers(1, false, echo); frameOf(http2.FrameRSTStream, 0, 1, 1, 2, 3)(p) }, want: one(frameError), grpc: []string{"EOF"}, why: silent},
	{name: "padding as long as the payload", send: func(p *peer) { p.headers(1, false, echo); frameOf(http2.FrameData, 8, 1, 4, 0, 0, 0)(p) }, want: one(protocolError), grpc: []string{"EOF"}, why: silent},
	// Windows (§5.2, §6.9).
	{name: "a window of the connection that is too large", send: frameOf(http2.FrameWindowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff), want: one(flowError), grpc: []string{}, why: lenient},
	{
		name: "a window of a stream that is too large", send: func(p *peer) {
			p.headers(1, false, echo)
			frameOf(http2.FrameWindowUpdate, 0, 1, 0x7f, 0xff, 0xff, 0xff)(p)
		}, want: one("1: RST FLOW_CONTROL_ERROR"), grpc: []string{}, why: lenient,
	},
	{
		name: "a window of a stream that a setting makes too large", send: func(p *peer) {
			p.headers(1, false, echo)
			_ = p.fr.WriteWindowUpdate(1, 1<<30)
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		}, want: one(flowError), grpc: []string{}, why: lenient,
	},
	{
		name: "a window of nothing", send: func(p *peer) { p.headers(1, false, echo); frameOf(http2.FrameWindowUpdate, 0, 1, 0, 0, 0, 0)(p) },
		want: one("1: RST PROTOCOL_ERROR"),
	},
	{
		name: "an answer waits for the stream's window, which may be negative", send: func(p *peer) {
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
			p.call(1, wide, string(binary.BigEndian.AppendUint32(nil, 1000)))
			p.awaitBody(1, 100)
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}) // the window is -90
			_ = p.fr.WriteWindowUpdate(1, 95)
			p.awaitBody(1, 105)
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
		}, want: one("1: 200 status=0 1000 bytes"),
	},
	{
		name: "an answer waits for the connection's window", send: func(p *peer) {
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			p.call(1, wide, string(binary.BigEndian.AppendUint32(nil, 100000)))
			p.awaitBody(1, 65535)
			_ = p.fr.WriteWindowUpdate(0, 1<<20)
		}, want: one("1: 200 status=0 100000 bytes"),
	},
	{
		name: "answers are encoded for a table that the client shrinks", send: func(p *peer) {
			for i, size := range []uint32{4096, 0, 50, 4096, 100, 8192} {
				_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
				p.call(uint32(4*i+1), echo, "x")
				p.wait(fmt.Sprintf(`%d: 200 status=0 "x"`, 4*i+1))
				p.call(uint32(4*i+3), fail, "x")
				p.wait(fmt.Sprintf(`%d: 200 status=5 message=x`, 4*i+3))
			}
		},
	},
	{
		name: "GOAWAY of the client lets the rest finish", send: func(p *peer) {
			p.call(1, echo, "x")
			_ = p.fr.WriteGoAway(0, http2.ErrCodeNo, nil)
		}, want: []string{"GOAWAY NO_ERROR", `1: 200 status=0 "x"`, "EOF"}, grpc: []string{"1: 200 status=0 \"x\""}, xnet: []string{"1: 200 status=0 \"x\"", "EOF", "GOAWAY NO_ERROR"}, why: "grpc-go waits for the client to close; net/http says when", anyOrder: true,
	},
}

// trailers sends a header block of these fields alone.
func (p *peer) trailers(id uint32, end bool, name, value string) {
	b := p.block("", name, value, ":method", "-", ":scheme", "-", ":path", "-", ":authority", "-", "content-type", "-", "te", "-")
	if name == ":path" {
		b = p.block(value, ":method", "-", ":scheme", "-", ":authority", "-", "content-type", "-", "te", "-")
	}
	_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true, EndStream: end})
}

// awaitBody reads until that much of an answer has come, and fails if more
// has.
func (p *peer) awaitBody(id uint32, n int) {
	p.t.Helper()
	for len(p.body[id]) < n {
		if e, err := p.next(); err != nil || e != "" {
			p.t.Fatalf("got %q, %v with %d bytes of %d", e, err, len(p.body[id]), n)
		}
	}
	if len(p.body[id]) > n {
		p.t.Errorf("got %d bytes, want %d", len(p.body[id]), n)
	}
}

// oracle is grpc-go with the same methods.
func oracle(opts ...grpc.ServerOption) *grpc.Server {
	method := func(name string, f func(in []byte) ([]byte, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in []byte
			if err := dec(&in); err != nil {
				return nil, err
			}
			if name == "Hold" {
				<-ctx.Done()
			}
			out, err := f(in)
			if err != nil {
				_ = grpc.SetTrailer(ctx, metadata.Pairs("reason", "tested"))
			}
			return &out, err
		}}
	}
	same := func(in []byte) ([]byte, error) { return in, nil }
	s := grpc.NewServer(append(opts, grpc.ForceServerCodecV2(bytesCodec{}), grpc.MaxHeaderListSize(8192), grpc.MaxRecvMsgSize(1<<20))...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "t.Test", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		method("Echo", same), method("Hold", same),
		method("Fail", func(in []byte) ([]byte, error) { return nil, status.Error(codes.NotFound, string(in)) }),
		method("Wide", func(in []byte) ([]byte, error) { return make([]byte, binary.BigEndian.Uint32(in)), nil }),
	}}, struct{}{})
	return s
}

// engines are the three servers that the scripts are told.
func engines(t *testing.T) map[string]net.Addr {
	ours, grpcs, xnet := tcp(t), tcp(t), tcp(t)
	start(t, ours, newDesk(), settings(t))
	direct, behind := oracle(), oracle()
	go func() { _ = direct.Serve(grpcs) }()
	quiet := log.New(io.Discard, "", 0)
	server := &http.Server{Handler: behind, MaxHeaderBytes: 8192, ErrorLog: quiet, ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(xnet) }()
	t.Cleanup(func() {
		direct.Stop()
		behind.Stop()
		_ = server.Close()
	})
	return map[string]net.Addr{"ours": ours.Addr(), "grpc": grpcs.Addr(), "xnet": xnet.Addr()}
}

// wordless takes what is meant for people from events.
func wordless(events []string) []string {
	var out []string
	for _, e := range events {
		e, _, _ = strings.Cut(e, " message=")
		if id, rest, _ := strings.Cut(e, ": "); strings.HasPrefix(rest, "4") {
			e = id + ": " + rest[:3]
		}
		out = append(out, e)
	}
	slices.Sort(out) // they answer each call by itself
	return out
}

// answeredOnce takes the resets of streams from events that were answered
// before: whether an engine sends one depends on what it had read by then.
func answeredOnce(events []string) (out []string) {
	answered := map[string]bool{}
	for _, e := range events {
		id, rest, _ := strings.Cut(e, ": ")
		if strings.HasPrefix(rest, "RST ") && answered[id] {
			continue
		}
		answered[id] = true
		out = append(out, e)
	}
	return out
}

// A corked connection sends what was written when it is read from: a script
// comes in one piece, and what it is told does not depend on when its pieces
// come.
type corked struct {
	net.Conn
	held []byte
}

// Write keeps b for later.
func (c *corked) Write(b []byte) (int, error) {
	c.held = append(c.held, b...)
	return len(b), nil
}

// Read sends what was kept first. That the server does not take it any more is
// for what it says to tell.
func (c *corked) Read(b []byte) (int, error) {
	if len(c.held) > 0 {
		_, _ = c.Conn.Write(c.held)
		c.held = c.held[:0]
	}
	return c.Conn.Read(b)
}

// TestWire guarantees what each script is told, and that grpc-go and
// net/http tell the same but for the differences that are listed.
func TestWire(t *testing.T) {
	t.Parallel()

	addrs := engines(t)
	for _, s := range scripts {
		for engine, addr := range addrs {
			want := s.want
			if engine == "grpc" && s.grpc != nil {
				want = s.grpc
			}
			if engine == "xnet" && s.xnet != nil {
				want = s.xnet
			}
			if (s.grpc == nil && s.xnet == nil) != (s.why == "") {
				t.Errorf("%s: a difference without a reason, or the other way", s.name)
			}
			t.Run(s.name+"/"+engine, func(t *testing.T) {
				t.Parallel()

				p := dial(t, addr)
				p = newPeer(t, &corked{Conn: p.nc})
				p.once = engine != "ours"
				p.hello()
				s.send(p)
				p.ping()
				if engine != "ours" {
					want = answeredOnce(want)
				}
				got := p.events(len(want))
				switch {
				case engine != "ours":
					got, want = wordless(got), wordless(want)
				case s.anyOrder:
					got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
				}
				if !slices.Equal(got, want) {
					t.Errorf("\ngot  %q\nwant %q", got, want)
				}
			})
		}
	}
}

var _ h2.Handler = (*desk)(nil)
