package h2_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// FuzzFrames guarantees that bytes are cut into frames as x/net cuts them.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 8, 0, 0, 0, 1, 0})
	f.Add([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 4, 1, 0, 0, 0, 0})
	f.Add([]byte{0, 0x40, 1, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		rest, lengths, err := h2.Frames(b)
		total := len(rest)
		at := 0
		for _, n := range lengths {
			size := int(b[at])<<16 | int(b[at+1])<<8 | int(b[at+2])
			if n > size || size > 16384 {
				t.Fatalf("a payload of %d bytes in a frame of %d", n, size)
			}
			at += 9 + size
			total += 9 + size
		}
		if total != len(b) {
			t.Fatalf("%d bytes of %d", total, len(b))
		}
		if err == nil && len(rest) >= 9 && len(rest) >= 9+(int(rest[0])<<16|int(rest[1])<<8|int(rest[2])) {
			t.Fatal("a whole frame is left")
		}
	})
}

// FuzzBlock guarantees that header blocks mean to us what they mean to x/net's
// decoder, also when the same block comes again, and that the bound holds.
func FuzzBlock(f *testing.F) {
	p := &peer{}
	p.enc = hpack.NewEncoder(&p.buf)
	f.Add(p.block(echo), p.block(echo))
	f.Add(p.block(echo, "authorization", "Bearer x", "grpc-timeout", "20m"), p.block(fail, "Key", "v"))
	f.Add([]byte{0x20, 0x82}, []byte{0x3f, 0xe1, 0x1f, 0x82, 0x86})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		const limit = 1000
		ours, theirs := h2.NewDecoder(limit), hpack.NewDecoder(4096, nil)
		theirs.SetMaxStringLength(limit)
		for _, block := range [][]byte{first, second, second, first} {
			fields, path, good, err := ours.Decode(block)
			want, wantErr := theirs.DecodeFull(block)
			if wantErr != nil && err == nil && !good {
				return // what comes after the bound is skipped, not read
			}
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%x: we say %v, x/net %v", block, err, wantErr)
			}
			if err != nil {
				return
			}
			if !good {
				continue
			}
			size, found := 0, 0
			for _, w := range want {
				size += int(w.Size())
				if w.Name == ":path" && w.Value != path {
					t.Fatalf("the path is %q, want %q", path, w.Value)
				}
				if found < len(fields) && fields[found] == (h2.Field{Name: w.Name, Value: w.Value}) {
					found++
				}
			}
			if found != len(fields) || size > limit {
				t.Fatalf("got %q of %q, %d bytes", fields, want, size)
			}
		}
	})
}

// FuzzConn guarantees that no bytes make a connection panic, hang, or send what
// is no HTTP/2, and that every call is given back.
func FuzzConn(f *testing.F) {
	hello := func(send func(p *peer)) []byte {
		var b sink
		p := &peer{t: f, nc: &b, fr: http2.NewFramer(&b, nil), rd: http2.NewFramer(&b, nil)}
		p.fr.AllowIllegalWrites = true
		p.enc = hpack.NewEncoder(&p.buf)
		p.hello()
		send(p)
		return b.Bytes()
	}
	for _, s := range scripts {
		if s.name != "answers are encoded for a table that the client shrinks" && s.name != "an answer waits for the stream's window, which may be negative" && s.name != "an answer waits for the connection's window" {
			f.Add(hello(s.send), uint16(0))
		}
	}
	f.Add(hello(func(p *peer) {
		_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
		p.call(1, wide, "\x00\x00\x40\x00")
		p.call(3, hold, "x")
		_ = p.fr.WriteWindowUpdate(1, 100)
		_ = p.fr.WriteRSTStream(3, http2.ErrCodeCancel)
		p.call(5, hold, "y")
	}), uint16(77))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		if !bytes.HasPrefix(b, []byte(http2.ClientPreface)) && len(b) > 0 && b[0]&1 == 0 {
			b = append([]byte(http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), b...)
		}
		converse(t, b, int(cut))
	})
}

// A sink is a connection that keeps what is written.
type sink struct{ bytes.Buffer }

func (*sink) Close() error                     { return nil }
func (*sink) LocalAddr() net.Addr              { return nil }
func (*sink) RemoteAddr() net.Addr             { return nil }
func (*sink) SetDeadline(time.Time) error      { return nil }
func (*sink) SetReadDeadline(time.Time) error  { return nil }
func (*sink) SetWriteDeadline(time.Time) error { return nil }

// A loose handler finishes some calls at once and some later.
type loose struct{ later chan *h2.Call }

// Handle is what the server calls.
func (l loose) Handle(calls []*h2.Call) {
	for _, c := range calls {
		if c.Method == wide {
			n := min(len(c.Request)*4096, 1<<20)
			c.Response = append(c.Response, make([]byte, n)...)
		}
		if c.Method == hold {
			_ = c.Context()
			l.later <- c
			continue
		}
		c.Response = append(c.Response, c.Request...)
		c.Finish()
	}
}

// converse sends b in two pieces to a server of its own, reads what it says to
// the end, and holds that to x/net's reading of HTTP/2.
func converse(t *testing.T, b []byte, cut int) {
	l := newPipes()
	handler := loose{make(chan *h2.Call, 100)}
	s, err := h2.New(h2.Config{
		Methods: []string{echo, fail, hold, wide}, Log: slog.New(slog.DiscardHandler),
		MaxStreams: 50, MaxUnsent: 100 << 10, MaxBuffered: 100 << 10, MaxRequest: 50 << 10, Grace: time.Minute,
	}, handler)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	nc := l.dial()
	finished := make(chan struct{})
	go func() { // the handler's other half
		defer close(finished)
		for c := range handler.later {
			c.Response = append(c.Response, "later"...)
			c.Finish()
		}
	}()
	said := make(chan error, 1)
	go func() { said <- understood(nc) }()
	cut = min(cut, len(b))
	_, _ = nc.Write(b[:cut])
	_, _ = nc.Write(b[cut:])
	_ = nc.(*socket).CloseWrite()
	if err := <-said; err != nil {
		t.Errorf("the server says what is no HTTP/2: %v", err)
	}
	_ = nc.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(handler.later)
	<-finished
}

// understood reads all that a server says.
func understood(r io.Reader) error {
	fr := http2.NewFramer(io.Discard, r)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		_, err := fr.ReadFrame()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
			return nil
		default:
			return err
		}
	}
}
