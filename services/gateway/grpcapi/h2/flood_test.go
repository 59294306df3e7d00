package h2_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// TestFloods guarantees that each flood we know of ends its connection with
// ENHANCE_YOUR_CALM before it has gone far, and that other connections go on.
func TestFloods(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		before func(p *peer)
		again  func(p *peer, i int) // sent until the end, at most limit times
		limit  int
	}{
		{"PING", nil, func(p *peer, _ int) { p.ping() }, 6000},
		{"SETTINGS", nil, func(p *peer, _ int) { _ = p.fr.WriteSettings() }, 6000},
		{
			"SETTINGS that change windows", func(p *peer) { p.call(1, hold, "x") },
			func(p *peer, i int) {
				many := make([]http2.Setting, 2000)
				for j := range many {
					many[j] = http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i + j)}
				}
				_ = p.fr.WriteSettings(many...)
			}, 60,
		},
		{"answers to PING", nil, func(p *peer, _ int) { _ = p.fr.WritePing(true, [8]byte{}) }, 6000},
		{"PRIORITY", nil, func(p *peer, _ int) { _ = p.fr.WritePriority(1, http2.PriorityParam{StreamDep: 3}) }, 6000},
		{"WINDOW_UPDATE", nil, func(p *peer, _ int) { _ = p.fr.WriteWindowUpdate(0, 1) }, 6000},
		{"unknown frames", nil, func(p *peer, _ int) { _ = p.fr.WriteRawFrame(0x42, 0, 0, nil) }, 6000},
		{"GOAWAY", func(p *peer) { p.call(1, hold, "x") }, func(p *peer, _ int) { _ = p.fr.WriteGoAway(0, http2.ErrCodeNo, nil) }, 6000},
		{"empty DATA", func(p *peer) { p.headers(1, false, echo) }, func(p *peer, _ int) { p.data(1, false, nil) }, 6000},
		{"DATA of padding", func(p *peer) { p.headers(1, false, echo) }, func(p *peer, _ int) { _ = p.fr.WriteDataPadded(1, false, nil, make([]byte, 2)) }, 6000},
		{"CONTINUATION", func(p *peer) {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(echo)})
		}, func(p *peer, _ int) { _ = p.fr.WriteContinuation(1, false, nil) }, 10},
		{"CONTINUATION of fields", func(p *peer) {
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(echo)})
		}, func(p *peer, i int) {
			_ = p.fr.WriteContinuation(1, false, p.block(echo, fmt.Sprint("k", i), strings.Repeat("v", 16000)))
		}, 10},
		{"rapid reset", nil, func(p *peer, i int) {
			id := uint32(2*i + 1)
			p.call(id, echo, "x")
			p.headers(id+2, false, hold)
			_ = p.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			_ = p.fr.WriteRSTStream(id+2, http2.ErrCodeCancel)
		}, 30000},
		{"streams that we are made to reset", nil, func(p *peer, i int) {
			p.headers(uint32(2*i+1), false, hold)
			_ = p.fr.WriteWindowUpdate(uint32(2*i+1), 0)
		}, 2000},
		{"malformed requests", nil, func(p *peer, i int) { p.headers(uint32(2*i+1), true, hold, ":path", "-") }, 2000},
		{"more streams than allowed", nil, func(p *peer, i int) { p.headers(uint32(2*i+1), false, hold) }, 3000},
		{"DATA of closed streams", func(p *peer) { p.headers(9001, false, hold); p.headers(9003, false, hold) }, func(p *peer, i int) { p.data(uint32(2*i+1), false, nil) }, 4400},
	}
	l := tcp(t)
	s, _ := start(t, l, newDesk(), settings(t))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := dial(t, l.Addr())
			p.mute = true // its answer may not come inside a header block
			p.hello()
			ended := make(chan string, 1)
			go func() {
				last := ""
				for {
					e, err := p.next()
					if err != nil || strings.HasPrefix(e, "GOAWAY E") || strings.HasPrefix(e, "GOAWAY P") {
						ended <- last + e
						return
					}
				}
			}()
			if tt.before != nil {
				tt.before(p)
			}
			sent := 0
			for ; sent < tt.limit && len(ended) == 0; sent++ {
				if tt.name == "rapid reset" {
					tt.again(p, 2*sent)
				} else {
					tt.again(p, sent)
				}
			}
			if got := <-ended; got != "GOAWAY ENHANCE_YOUR_CALM" {
				t.Errorf("after %d: %q", sent, got)
			}
		})
	}
	if n := s.Stats().Floods; n != int64(len(tests)) {
		t.Errorf("%d floods were counted of %d", n, len(tests))
	}
	p := dial(t, l.Addr())
	p.hello()
	p.call(1, echo, "calm")
	p.wait(`1: 200 status=0 "calm"`)
}

// TestBusyPeerIsNoFlood guarantees that what a good client does beside its
// calls, a PING and a WINDOW_UPDATE for each of them and a reset for every
// fourth, costs it nothing.
func TestBusyPeerIsNoFlood(t *testing.T) {
	t.Parallel()

	l := tcp(t)
	s, _ := start(t, l, newDesk(), settings(t, func(c *h2.Config) {
		c.Control, c.Resets = h2.Budget{Burst: 100, PerSecond: 1}, h2.Budget{Burst: 100, PerSecond: 1}
	}))
	p := dial(t, l.Addr())
	p.hello()
	for i := range 2000 {
		id := uint32(4*i + 1)
		p.call(id, echo, "work")
		_ = p.fr.WriteWindowUpdate(0, 9)
		p.ping()
		p.wait(fmt.Sprintf(`%d: 200 status=0 "work"`, id))
		if i%4 == 0 {
			p.headers(id+2, false, hold)
			_ = p.fr.WriteRSTStream(id+2, http2.ErrCodeCancel)
		}
	}
	if n := s.Stats().Errors; n != 0 {
		t.Errorf("%d errors", n)
	}
}

// TestGhosts guarantees that calls which a client has reset count until the
// handler has finished them: resets buy no more work than the setting allows.
func TestGhosts(t *testing.T) {
	t.Parallel()

	l, d := tcp(t), newDesk()
	start(t, l, d, settings(t, func(c *h2.Config) { c.MaxStreams = 10 }))
	p := dial(t, l.Addr())
	p.hello()
	next := uint32(1)
	reset := func() []string {
		for range 30 {
			p.call(next, hold, "x")
			p.ping()
			p.events(0) // so that no reset is in the read of its call
			_ = p.fr.WriteRSTStream(next, http2.ErrCodeCancel)
			next += 2
		}
		p.ping()
		return p.events(0)
	}
	reset()
	if n := len(d.held); n != 10 {
		t.Fatalf("the handler has %d calls, want 10", n)
	}
	for range 10 {
		c := <-d.held
		if !c.Gone() {
			t.Error("a call is not gone")
		}
		c.Finish()
	}
	p.call(next, echo, "x")
	p.wait(fmt.Sprintf(`%d: 200 status=0 "x"`, next))
}

// TestUnsentIsBounded guarantees that answers which a client does not take are
// kept up to the bound and no further.
func TestUnsentIsBounded(t *testing.T) {
	t.Parallel()

	l := tcp(t)
	start(t, l, newDesk(), settings(t, func(c *h2.Config) { c.MaxUnsent = 1 << 20 }))
	p := dial(t, l.Addr())
	p.hello(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for i := range 100 {
		p.call(uint32(2*i+1), wide, string(binary.BigEndian.AppendUint32(nil, 64<<10)))
	}
	p.ping()
	refused := p.events(85) // fifteen answers of 64 KiB and their prefixes fit
	if len(refused) != 85 || !strings.Contains(refused[0], "status=8 ") {
		t.Errorf("%d calls were refused: %q", len(refused), refused)
	}
	_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = p.fr.WriteWindowUpdate(0, 2<<20)
	for i := range 15 {
		p.wait(fmt.Sprintf("%d: 200 status=0 65536 bytes", 2*i+1))
	}
}

// TestBufferedIsBounded guarantees the same of requests that do not end.
func TestBufferedIsBounded(t *testing.T) {
	t.Parallel()

	l := tcp(t)
	start(t, l, newDesk(), settings(t, func(c *h2.Config) { c.MaxBuffered = 1 << 20 }))
	p := dial(t, l.Addr())
	p.hello()
	part := message(strings.Repeat("x", 100<<10))[:16<<10]
	for i := range 100 {
		p.headers(uint32(2*i+1), false, echo)
		p.data(uint32(2*i+1), false, part)
	}
	p.ping()
	refused := p.events(72) // an answer and RST_STREAM each
	if len(refused) != 72 || !strings.Contains(refused[0], "status=8 ") {
		t.Errorf("%d events: %q", len(refused), refused)
	}
}

// TestWritesAreBounded guarantees that of a peer that does not read no more is
// read than fits in the buffers, whatever its budget, until it is cut off.
func TestWritesAreBounded(t *testing.T) {
	t.Parallel()

	bubble(t, func(t *testing.T, _ *desk, _ *h2.Server, dial func() net.Conn, _ func()) {
		p := newPeer(t, dial())
		p.hello()
		begin := time.Now()
		sent := 0
		for {
			n, err := p.nc.Write([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
			sent += n
			if err != nil {
				break
			}
		}
		if took := time.Since(begin); took < 20*time.Second || took > 22*time.Second {
			t.Errorf("it was cut off after %s", took)
		}
		if sent > 512<<10 {
			t.Errorf("%d bytes were read", sent)
		}
	}, func(c *h2.Config) { c.Control.Burst = 1 << 30 })
}

// TestMemory guarantees a bound of memory per connection whose peer does its
// worst within the bounds: headers, bodies that do not end, answers not taken.
func TestMemory(t *testing.T) {
	const conns, bound = 20, 1 << 20
	l := tcp(t)
	s, stop := start(t, l, newDesk(), settings(t, func(c *h2.Config) {
		c.MaxUnsent, c.MaxBuffered, c.MaxStreams = 128<<10, 128<<10, 100
	}))
	before := heap()
	peers := make([]*peer, conns)
	for i := range peers {
		p := dial(t, l.Addr())
		peers[i] = p
		p.hello(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		id := uint32(1)
		for range 200 {
			p.call(id, wide, string(binary.BigEndian.AppendUint32(nil, 8000)))
			p.headers(id+2, false, echo, "k", strings.Repeat("v", 3000), "n", fmt.Sprint(id))
			p.data(id+2, false, message(strings.Repeat("x", 9000))[:8000])
			id += 4
		}
		p.ping()
		p.events(0)
	}
	if n := s.Stats().Conns; n != conns {
		t.Fatalf("%d connections are open", n)
	}
	each := int64(heap()-before) / conns
	t.Logf("%d KiB each, with the peer's side", each>>10)
	if each > bound {
		t.Errorf("a connection takes %d bytes, want at most %d", each, bound)
	}
	runtime.KeepAlive(peers)
	for _, p := range peers {
		_ = p.nc.Close()
	}
	stop()
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
