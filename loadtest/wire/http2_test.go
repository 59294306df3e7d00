package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"penstock.dev/loadtest/wire"
)

// A peer is a server of HTTP/2 that a test tells each frame.
type peer struct {
	*http2.Framer
	conn    net.Conn
	encoder *hpack.Encoder
	block   bytes.Buffer
	fields  map[string]string // of the last request
	ended   uint32            // the last stream whose request was whole
}

// serve has script talk to the one connection that comes.
func serve(t *testing.T, settings []http2.Setting, script func(p *peer) error) string {
	t.Helper()
	ln := listen(t)
	var running sync.WaitGroup
	running.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Error(err)
		}
		p := &peer{Framer: http2.NewFramer(conn, conn), conn: conn}
		p.encoder = hpack.NewEncoder(&p.block)
		p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		greeting := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != http2.ClientPreface {
			t.Errorf("the client begins with %q: %v", greeting, err)
			return
		}
		if err := p.WriteSettings(settings...); err != nil {
			t.Error(err)
			return
		}
		if err := script(p); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		running.Wait()
	})
	return ln.Addr().String()
}

// next reads until a request is whole, and returns its stream.
func (p *peer) next() (uint32, error) {
	for {
		f, err := p.ReadFrame()
		if err != nil {
			return 0, err
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			p.fields = map[string]string{}
			for _, h := range f.Fields {
				p.fields[h.Name] = h.Value
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				p.ended = f.StreamID
				return f.StreamID, nil
			}
		}
	}
}

// until answers all requests until the client leaves.
func (p *peer) until() error {
	for {
		id, err := p.next()
		if errors.Is(err, io.EOF) || err != nil && strings.Contains(err.Error(), "connection reset") {
			return nil
		}
		if err == nil {
			err = p.answer(id)
		}
		if err != nil {
			return err
		}
	}
}

func (p *peer) headers(fields ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(p.block.Bytes())
}

// answer echoes nothing but the same short message.
func (p *peer) answer(id uint32) error {
	return errors.Join(
		p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.headers(":status", "200", "content-type", "application/grpc"), EndHeaders: true}),
		p.WriteData(id, false, framed("hello")),
		p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.headers("grpc-status", "0", "grpc-message", ""), EndHeaders: true, EndStream: true}))
}

func framed(message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

func hello(_, status int, body []byte) wire.Answer {
	if status == 0 && string(body) == "hello" {
		return wire.Passed
	}
	return wire.Wrong
}

// greetings is a closed loop over one connection.
func greetings(addr string, inFlight int) wire.Load {
	return wire.Load{Addr: addr, Conns: 1, InFlight: inFlight, For: 100 * time.Millisecond, Method: echo, Requests: [][]byte{[]byte("hi")}, Judge: hello}
}

// TestHTTP2Pieces guarantees that answers are read whatever frames they come in:
// a byte at a time, a message in pieces, padding, priorities, header blocks with
// continuations, unknown frames.
func TestHTTP2Pieces(t *testing.T) {
	t.Parallel()
	addr := serve(t, nil, func(p *peer) error {
		id, err := p.next()
		if err != nil {
			return err
		}
		var out bytes.Buffer
		slow := &peer{Framer: http2.NewFramer(&out, nil), encoder: p.encoder}
		p.encoder = hpack.NewEncoder(&slow.block)
		slow.encoder = p.encoder
		head, trailer, hi := slow.headers(":status", "200", "x", "y"), []byte(nil), framed("hello")
		err = errors.Join(
			slow.WriteRawFrame(0xbe, 0xff, id, []byte("unknown")),
			slow.WriteHeaders(http2.HeadersFrameParam{
				StreamID: id, BlockFragment: head[:2], PadLength: 7, Priority: http2.PriorityParam{StreamDep: 0, Weight: 3},
			}),
			slow.WriteContinuation(id, true, head[2:]),
			slow.WriteDataPadded(id, false, hi[:3], make([]byte, 9)),
			slow.WriteData(id, false, nil),
			slow.WriteData(id, false, hi[3:7]),
			slow.WriteDataPadded(id, false, hi[7:], nil))
		trailer = slow.headers("grpc-status", "0")
		err = errors.Join(err,
			slow.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: trailer[:1], EndStream: true}),
			slow.WriteContinuation(id, false, nil), slow.WriteContinuation(id, true, trailer[1:]))
		for _, b := range out.Bytes() {
			if _, failed := p.conn.Write([]byte{b}); failed != nil {
				return errors.Join(err, failed)
			}
		}
		p.block.Reset()
		p.encoder = hpack.NewEncoder(&p.block) // begins with an empty table: what it names is new
		return errors.Join(err, p.until())
	})
	r := run(t, greetings(addr, 1))
	if r.Sent < 2 || r.Passed != r.Sent {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestHTTP2Wrong guarantees that what is no answer to a call is not taken for
// one, and that what breaks the protocol ends the connection.
func TestHTTP2Wrong(t *testing.T) {
	t.Parallel()
	ok := func(p *peer, id uint32, end bool) error {
		return p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.headers(":status", "200"), EndHeaders: true, EndStream: end})
	}
	trailers := func(p *peer, id uint32) error {
		return p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.headers("grpc-status", "0"), EndHeaders: true, EndStream: true})
	}
	for name, tt := range map[string]struct {
		script        func(p *peer, id uint32) error
		failed, wrong int64
		ends          bool // the connection
	}{
		"no message": {func(p *peer, id uint32) error { return errors.Join(ok(p, id, false), trailers(p, id)) }, 0, 1, false},
		"no status":  {func(p *peer, id uint32) error { return ok(p, id, true) }, 1, 0, false},
		"no trailers": {func(p *peer, id uint32) error {
			return errors.Join(ok(p, id, false), p.WriteData(id, true, framed("hello")))
		}, 1, 0, false},
		"two messages": {func(p *peer, id uint32) error {
			return errors.Join(ok(p, id, false), p.WriteData(id, false, framed("hello")), p.WriteData(id, false, framed("hello")), trailers(p, id))
		}, 0, 1, false},
		"another answer": {func(p *peer, id uint32) error {
			return errors.Join(ok(p, id, false), p.WriteData(id, false, framed("hallo")), trailers(p, id))
		}, 0, 1, false},
		"compressed": {func(p *peer, id uint32) error {
			return errors.Join(ok(p, id, false), p.WriteData(id, false, []byte("\x01\x00\x00\x00\x01x")), trailers(p, id))
		}, 0, 1, false},
		"a reset": {func(p *peer, id uint32) error {
			return errors.Join(p.WriteRSTStream(id, http2.ErrCodeRefusedStream), p.WriteRSTStream(id, http2.ErrCodeCancel))
		}, 1, 0, false},
		"a push": {func(p *peer, id uint32) error {
			return p.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: p.headers("a", "b"), EndHeaders: true})
		}, 1, 0, true},
		"too large": {func(p *peer, id uint32) error { return p.WriteData(id, false, make([]byte, 1<<14+1)) }, 1, 0, true},
		"bad padding": {func(p *peer, id uint32) error {
			return p.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, id, []byte{9, 1})
		}, 1, 0, true},
		"bad headers": {func(p *peer, id uint32) error {
			return p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true})
		}, 1, 0, true},
		"bad settings": {func(p *peer, _ uint32) error { return p.WriteRawFrame(http2.FrameSettings, 0, 0, []byte{1}) }, 1, 0, true},
		"within headers": {func(p *peer, id uint32) error {
			return errors.Join(p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.headers(":status", "200")}), p.WritePing(false, [8]byte{}))
		}, 1, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := serve(t, nil, func(p *peer) error {
				id, err := p.next()
				if err != nil {
					return err
				}
				p.AllowIllegalWrites = true
				return errors.Join(tt.script(p, id), p.until())
			})
			r := run(t, greetings(addr, 1))
			if r.Failed != tt.failed || r.Wrong != tt.wrong || r.Passed != r.Sent-1 || (r.Passed == 0) != tt.ends || r.Why == "" {
				t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
			}
		})
	}
}

// TestHeaderTable guarantees that header blocks are read by the table as it is
// when they come, also those that have come before in the same bytes.
func TestHeaderTable(t *testing.T) {
	t.Parallel()
	const zero, thirteen = "\x40\x0bgrpc-status\x010", "\x40\x0bgrpc-status\x0213" // each adds itself to the table
	const newest, second = "\xbe", "\xbf"
	trailers := []string{zero, zero, second, newest, thirteen, newest}
	addr := serve(t, nil, func(p *peer) error {
		for _, trailer := range trailers {
			id, err := p.next()
			if err = errors.Join(err,
				p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("\x88"), EndHeaders: true}),
				p.WriteData(id, false, framed("hello")),
				p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(trailer), EndHeaders: true, EndStream: true})); err != nil {
				return err
			}
		}
		return p.until()
	})
	if r := run(t, greetings(addr, 1)); r.Wrong != 2 || r.Failed != 0 || r.Passed != r.Sent-2 || r.Sent < int64(len(trailers)) {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestGoAway guarantees that what a server that goes away has taken is waited
// for, that the rest has failed, and that nothing more is sent.
func TestGoAway(t *testing.T) {
	t.Parallel()
	addr := serve(t, nil, func(p *peer) error {
		for range 4 {
			if _, err := p.next(); err != nil {
				return err
			}
		}
		if err := errors.Join(p.WriteGoAway(3, http2.ErrCodeNo, []byte("draining")), p.answer(3), p.answer(1)); err != nil {
			return err
		}
		if id, err := p.next(); err == nil {
			t.Errorf("stream %d was begun after GOAWAY", id)
		}
		return nil
	})
	l := greetings(addr, 4)
	l.For = 10 * time.Second // ends with its connection
	r := run(t, l)
	if r.Sent != 4 || r.Passed != 2 || r.Failed != 2 || !strings.Contains(r.Why, "draining") {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestHTTP2Manners guarantees that settings and pings are acknowledged, that
// no more streams are begun than the server allows, and that the header block does
// without a table that a server forbids later.
func TestHTTP2Manners(t *testing.T) {
	t.Parallel()
	addr := serve(t, []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 2}}, func(p *peer) error {
		for range 5 { // until the header block is the same for all
			id, err := p.next()
			if err = errors.Join(err, p.answer(id)); err != nil {
				return err
			}
		}
		seen, unanswered := map[http2.FrameType]int{}, []uint32{}
		for seen[http2.FramePing] == 0 || seen[http2.FrameSettings] < 2 {
			if len(seen) == 0 {
				if err := errors.Join(p.WritePing(false, [8]byte{1, 2}), p.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})); err != nil {
					return err
				}
			}
			f, err := p.ReadFrame()
			if err != nil {
				return err
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				if f.IsAck() && f.Data == [8]byte{1, 2} {
					seen[http2.FramePing]++
				}
			case *http2.SettingsFrame:
				if f.IsAck() {
					seen[http2.FrameSettings]++
				}
			case *http2.DataFrame:
				if unanswered = append(unanswered, f.StreamID); len(unanswered) > 2 {
					return errors.New("three streams at a time, and two are allowed")
				}
			}
		}
		p.ReadMetaHeaders = hpack.NewDecoder(0, nil)
		for _, id := range unanswered {
			if err := p.answer(id); err != nil {
				return err
			}
		}
		return p.until()
	})
	r := run(t, greetings(addr, 40))
	if r.Sent < 4 || r.Passed != r.Sent {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestKeepsToTheWindow guarantees that no more is sent than the server has
// room for on the connection, and that all of it goes on when there is room.
func TestKeepsToTheWindow(t *testing.T) {
	t.Parallel()
	const size = 16_000
	const fit = (1<<16 - 1) / (size + 5)
	addr := serve(t, nil, func(p *peer) error {
		var ids []uint32
		for range fit {
			id, err := p.next()
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		if err := p.WritePing(false, [8]byte{}); err != nil {
			return err
		}
		for answered := false; !answered; { // what was sent before is read before
			f, err := p.ReadFrame()
			if err != nil {
				return err
			}
			switch f.(type) {
			case *http2.DataFrame, *http2.MetaHeadersFrame:
				return errors.New("a request for which there is no room")
			case *http2.PingFrame:
				answered = true
			}
		}
		if err := p.WriteWindowUpdate(0, 1<<30); err != nil {
			return err
		}
		for _, id := range ids {
			if err := p.answer(id); err != nil {
				return err
			}
		}
		return p.until()
	})
	l := greetings(addr, 40)
	l.Requests = [][]byte{make([]byte, size)}
	if r := run(t, l); r.Sent < 40 || r.Passed != r.Sent {
		t.Errorf("%+v, failed %d: %s", r.Answers, r.Failed, r.Why)
	}
}

// TestWindowIsFilledUp guarantees that a connection can carry more than its
// first window.
func TestWindowIsFilledUp(t *testing.T) {
	t.Parallel()
	var given atomic.Uint32
	addr := serve(t, nil, func(p *peer) error {
		id, err := p.next()
		if err != nil {
			return err
		}
		part := make([]byte, 1<<14)
		for range 1 << 10 { // 16 MiB of a stream that has been reset
			if err := p.WriteData(id+100, false, part); err != nil {
				return err
			}
		}
		for given.Load() == 0 {
			f, err := p.ReadFrame()
			if err != nil {
				return err
			}
			if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
				given.Store(w.Increment)
			}
		}
		return errors.Join(p.answer(id), p.until())
	})
	l := greetings(addr, 1)
	r := run(t, l)
	if r.Passed != r.Sent || given.Load() < 1<<24 {
		t.Errorf("given %d; %+v, failed %d: %s", given.Load(), r.Answers, r.Failed, r.Why)
	}
}
