package h2_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"penstock.dev/services/gateway/grpcapi/h2"
)

const (
	echo = "/t.Test/Echo" // answers the message it got
	fail = "/t.Test/Fail" // the message is the text of a NOT_FOUND
	hold = "/t.Test/Hold" // is finished by the test
	wide = "/t.Test/Wide" // answers as many bytes as the message says
)

// A desk is the handler of these tests.
type desk struct {
	held  chan *h2.Call
	sizes chan int // of the batches, when there is room
}

func newDesk() *desk { return &desk{held: make(chan *h2.Call, 4096), sizes: make(chan int, 4096)} }

// Handle is what the server calls.
func (d *desk) Handle(calls []*h2.Call) {
	select {
	case d.sizes <- len(calls):
	default:
	}
	for _, c := range calls {
		switch c.Method {
		case echo:
			c.Response = append(c.Response, c.Request...)
		case fail:
			c.Status, c.Message = h2.NotFound, string(c.Request)
			c.Trailers = append(c.Trailers, h2.Field{Name: "reason", Value: "tested"})
		case wide:
			c.Response = append(c.Response, make([]byte, binary.BigEndian.Uint32(c.Request))...)
		default:
			d.held <- c
			continue
		}
		c.Finish()
	}
}

// settings are a server's, as small as the tests want it.
func settings(t testing.TB, change ...func(*h2.Config)) h2.Config {
	cfg := h2.Config{Methods: []string{echo, fail, hold, wide}, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

// start serves on the listener until the test ends; the returned function ends
// it before.
func start(t testing.TB, l net.Listener, handler h2.Handler, cfg h2.Config) (*h2.Server, func()) {
	t.Helper()
	s, err := h2.New(cfg, handler)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

// tcp is a listener on a free port.
func tcp(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A peer speaks HTTP/2 frame by frame.
type peer struct {
	t   testing.TB
	nc  net.Conn
	fr  *http2.Framer // of who writes
	rd  *http2.Framer // of who reads, and answers SETTINGS and PING
	enc *hpack.Encoder
	buf bytes.Buffer
	dec *hpack.Decoder

	mute   bool              // does not answer SETTINGS
	once   bool              // does not look at resets of streams that were answered
	status map[uint32]string // answers under way
	body   map[uint32][]byte
	ended  map[uint32]bool
}

func newPeer(t testing.TB, nc net.Conn) *peer {
	p := &peer{t: t, nc: nc, fr: http2.NewFramer(nc, nc), rd: http2.NewFramer(nc, nc), status: map[uint32]string{}, body: map[uint32][]byte{}, ended: map[uint32]bool{}}
	p.fr.AllowIllegalWrites, p.rd.AllowIllegalReads = true, true
	p.enc = hpack.NewEncoder(&p.buf)
	p.dec = hpack.NewDecoder(4096, nil)
	t.Cleanup(func() { _ = nc.Close() })
	return p
}

func dial(t testing.TB, addr net.Addr) *peer {
	t.Helper()
	nc, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return newPeer(t, nc)
}

// raw sends bytes. What a server does not take any more is not this side's
// fault.
func (p *peer) raw(b []byte) { _, _ = p.nc.Write(b) }

func (p *peer) hello(settings ...http2.Setting) {
	p.raw([]byte(http2.ClientPreface))
	_ = p.fr.WriteSettings(settings...)
}

// block encodes a request's headers: of a good call of the method, with
// changes. A change without a value takes a field away.
func (p *peer) block(method string, change ...string) []byte {
	fields := []string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "test", "content-type", "application/grpc", "te", "trailers"}
	for i := 0; i < len(change); i += 2 {
		found := false
		for j := 0; j < len(fields); j += 2 {
			if fields[j] == change[i] {
				fields[j+1], found = change[i+1], true
			}
		}
		if !found {
			fields = append(fields, change[i], change[i+1])
		}
	}
	p.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] != "-" {
			_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
	}
	return bytes.Clone(p.buf.Bytes())
}

func (p *peer) headers(id uint32, end bool, method string, change ...string) {
	_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block(method, change...), EndHeaders: true, EndStream: end})
}

func (p *peer) data(id uint32, end bool, b []byte) { _ = p.fr.WriteData(id, end, b) }

func (p *peer) call(id uint32, method string, body string) {
	p.headers(id, false, method)
	p.data(id, true, message(body))
}

func (p *peer) ping() { _ = p.fr.WritePing(false, [8]byte{'l', 'a', 's', 't'}) }

func message(s string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(s)))
	return append(b, s...)
}

// next reads one frame and says what it means, or "" if it is not one of those
// that tests look at. It answers SETTINGS.
func (p *peer) next() (string, error) {
	f, err := p.rd.ReadFrame()
	if err != nil {
		return "", err
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() && !p.mute {
			_ = p.rd.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if f.IsAck() {
			return "PONG", nil
		}
		_ = p.rd.WritePing(true, f.Data)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %s", f.ErrCode), nil
	case *http2.RSTStreamFrame:
		if p.once && p.ended[f.StreamID] {
			return "", nil
		}
		return fmt.Sprintf("%d: RST %s", f.StreamID, f.ErrCode), nil
	case *http2.HeadersFrame:
		if !f.HeadersEnded() {
			return "", errors.New("a header block in two frames")
		}
		fields, err := p.dec.DecodeFull(f.HeaderBlockFragment())
		if err != nil {
			return "", fmt.Errorf("a header block: %w", err)
		}
		message := ""
		for _, h := range fields {
			switch h.Name {
			case ":status":
				p.status[f.StreamID] += h.Value
			case "grpc-status":
				p.status[f.StreamID] += " status=" + h.Value
			case "grpc-message":
				message = h.Value
			}
		}
		if message != "" {
			p.status[f.StreamID] += " message=" + message
		}
		return p.over(f.StreamID, f.StreamEnded()), nil
	case *http2.DataFrame:
		p.body[f.StreamID] = append(p.body[f.StreamID], f.Data()...)
		return p.over(f.StreamID, f.StreamEnded()), nil
	}
	return "", nil
}

func (p *peer) over(id uint32, ended bool) string {
	if !ended {
		return ""
	}
	body := p.body[id]
	if len(body) >= 5 && body[0] == 0 && int(binary.BigEndian.Uint32(body[1:])) == len(body)-5 {
		body = body[5:]
	}
	s := fmt.Sprintf("%d: %s", id, p.status[id])
	if len(body) > 40 {
		s += fmt.Sprintf(" %d bytes", len(body))
	} else if len(body) > 0 {
		s += fmt.Sprintf(" %q", body)
	}
	p.ended[id] = true
	delete(p.status, id)
	delete(p.body, id)
	return s
}

// events reads until the connection ends, or a PONG has come and n events
// with it.
func (p *peer) events(n int) []string {
	p.t.Helper()
	var out []string
	pong := false
	for !pong || len(out) < n {
		e, err := p.next()
		switch {
		case err != nil:
			var t net.Error
			if errors.As(err, &t) && t.Timeout() {
				p.t.Errorf("nothing more after %q", out)
			}
			return append(out, "EOF")
		case e == "PONG":
			pong = true
		case strings.HasPrefix(e, "GOAWAY") && e != "GOAWAY NO_ERROR":
			return append(out, e)
		case e != "":
			out = append(out, e)
		}
	}
	return out
}

// wait reads until an event.
func (p *peer) wait(want string) {
	p.t.Helper()
	for {
		e, err := p.next()
		if err != nil {
			p.t.Fatalf("waiting for %q: %v", want, err)
		}
		if e == want {
			return
		}
		if e != "" && e != "PONG" {
			p.t.Fatalf("got %q, waiting for %q", e, want)
		}
	}
}
