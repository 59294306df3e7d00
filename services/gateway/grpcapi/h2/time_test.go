package h2_test

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"penstock.dev/services/gateway/grpcapi/h2"
)

// bubble runs a test in virtual time, against a server whose connections live
// in memory.
func bubble(t *testing.T, f scene, change ...func(*h2.Config)) {
	synctest.Test(t, func(t *testing.T) { play(t, f, change...) })
}

// A scene is a test's part while the server serves.
type scene func(t *testing.T, d *desk, s *h2.Server, dial func() net.Conn, stop func())

// play serves while f runs, and then holds the server to having ended.
func play(t *testing.T, f scene, change ...func(*h2.Config)) {
	l, d := newPipes(), newDesk()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := h2.New(settings(t, change...), d)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	f(t, d, s, l.dial, cancel)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := s.Stats().Conns; n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// told collects what a peer is told, with when.
type told struct {
	what string
	at   time.Duration
}

// listen reads in the background, for in memory a write waits for its reader.
func (p *peer) listen() <-chan told {
	begin := time.Now()
	out := make(chan told, 10000)
	go func() {
		defer close(out)
		for {
			e, err := p.next()
			if err != nil {
				out <- told{"EOF", time.Since(begin)}
				return
			}
			if e != "" && e != "PONG" {
				out <- told{e, time.Since(begin)}
			}
		}
	}()
	return out
}

// TestTimes guarantees when a connection or a stream ends whose peer is slow:
// not before its time, and at most a second after it.
func TestTimes(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		send func(p *peer)
		want []string
		at   time.Duration // of the first
	}{
		{"nothing is sent", func(*peer) {}, []string{"GOAWAY ENHANCE_YOUR_CALM", "EOF"}, 10 * time.Second},
		{"half a preface", func(p *peer) { p.raw([]byte(http2.ClientPreface[:10])) }, []string{"GOAWAY ENHANCE_YOUR_CALM", "EOF"}, 10 * time.Second},
		{"no SETTINGS", func(p *peer) { p.raw([]byte(http2.ClientPreface)) }, []string{"GOAWAY ENHANCE_YOUR_CALM", "EOF"}, 10 * time.Second},
		{"no call", func(p *peer) { p.hello() }, []string{"GOAWAY NO_ERROR", "GOAWAY NO_ERROR", "EOF"}, 15 * time.Minute},
		{
			"a header block without end", func(p *peer) {
				p.hello()
				_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(echo)[:3]})
			}, []string{"GOAWAY ENHANCE_YOUR_CALM", "EOF"}, 10 * time.Second,
		},
		{
			"a body without end", func(p *peer) {
				p.hello()
				p.headers(1, false, echo)
				p.data(1, false, message("slow")[:6])
			}, []string{"1: RST CANCEL"}, 30 * time.Second,
		},
		{
			"a window that stays closed", func(p *peer) {
				p.hello(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
				p.call(1, echo, "slow")
			}, []string{"1: RST ENHANCE_YOUR_CALM"}, 20 * time.Second,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			bubble(t, func(t *testing.T, _ *desk, _ *h2.Server, dial func() net.Conn, _ func()) {
				p := newPeer(t, dial())
				p.mute = true
				events := p.listen()
				tt.send(p)
				for i, want := range tt.want {
					got := <-events
					if got.what != want {
						t.Errorf("got %v, want %q", got, want)
					}
					if late := got.at - tt.at; i == 0 && (late < 0 || late > 2*time.Second) {
						t.Errorf("%s came at %s, want %s", got.what, got.at, tt.at)
					}
				}
				_ = p.nc.Close()
			})
		})
	}
}

// TestPeerThatDoesNotRead guarantees that a peer that reads nothing is cut off
// after the time for writes, that nothing more is read of it by then, and that
// its calls end.
func TestPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()

	bubble(t, func(t *testing.T, d *desk, s *h2.Server, dial func() net.Conn, _ func()) {
		p := newPeer(t, dial())
		begin := time.Now()
		p.hello()
		p.call(1, hold, "x")
		call := <-d.held
		p.call(3, hold, "y")
		other := <-d.held
		ctx := other.Context()
		call.Response = append(call.Response, make([]byte, 2*socketBuffer)...)
		call.Finish()
		<-ctx.Done()
		if took := time.Since(begin); took < 20*time.Second || took > 22*time.Second {
			t.Errorf("it was cut off after %s", took)
		}
		other.Finish()
		synctest.Wait()
		if n := s.Stats().Conns; n != 0 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// TestDrain guarantees the two steps of a stop: the client is told that it
// ends, then, when it has heard, which streams are answered, and these are;
// what comes later is left alone.
func TestDrain(t *testing.T) {
	t.Parallel()

	bubble(t, func(t *testing.T, d *desk, _ *h2.Server, dial func() net.Conn, stop func()) {
		p := newPeer(t, dial())
		p.hello()
		events := p.listen()
		p.call(1, hold, "x")
		first := <-d.held
		stop()
		if e := <-events; e.what != "GOAWAY NO_ERROR" {
			t.Fatalf("got %v", e)
		}
		if e := <-events; e.what != "GOAWAY NO_ERROR" { // the peer has answered PING by then
			t.Fatalf("got %v", e)
		}
		p.call(3, echo, "late")
		if first.Gone() || first.Context().Err() != nil {
			t.Error("a call was given up")
		}
		first.Response = append(first.Response, "bye"...)
		first.Finish()
		if e := <-events; e.what != `1: 200 status=0 "bye"` {
			t.Errorf("got %v", e)
		}
		if e := <-events; e.what != "EOF" {
			t.Errorf("got %v", e)
		}
	})
}

// TestDrainEnds guarantees that a stop does not wait for ever: neither for a
// client that answers no PING, nor for a handler.
func TestDrainEnds(t *testing.T) {
	t.Parallel()

	bubble(t, func(t *testing.T, d *desk, _ *h2.Server, dial func() net.Conn, stop func()) {
		p := newPeer(t, dial())
		p.hello()
		events := p.listen()
		p.call(1, hold, "x")
		call := <-d.held
		stop()
		begin := time.Now()
		ctx := call.Context()
		<-ctx.Done()
		if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the stop took %s", took)
		}
		call.Finish()
		for e := range events {
			if e.what != "GOAWAY NO_ERROR" && e.what != "EOF" {
				t.Errorf("got %v", e)
			}
		}
	})
}

// TestDeadline guarantees that a call's context ends with grpc-timeout.
func TestDeadline(t *testing.T) {
	t.Parallel()

	bubble(t, func(t *testing.T, d *desk, _ *h2.Server, dial func() net.Conn, _ func()) {
		p := newPeer(t, dial())
		p.hello()
		events := p.listen()
		begin := time.Now()
		p.headers(1, false, hold, "grpc-timeout", "250m")
		p.data(1, true, message("x"))
		call := <-d.held
		ctx := call.Context()
		<-ctx.Done()
		if took := time.Since(begin); took != 250*time.Millisecond {
			t.Errorf("it ended after %s", took)
		}
		call.Status, call.Message = h2.DeadlineExceeded, "late"
		call.Finish()
		if e := <-events; e.what != "1: 200 status=4 message=late" {
			t.Errorf("got %v", e)
		}
		_ = p.nc.Close()
	})
}

// TestSlowButSteady guarantees that a peer that takes its answer slowly, and
// never pauses as long as the time for writes, gets all of it.
func TestSlowButSteady(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		play(t, func(t *testing.T, _ *desk, _ *h2.Server, dial func() net.Conn, _ func()) {
			p := newPeer(t, dial())
			p.hello(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			events := p.listen()
			p.call(1, wide, string(binary.BigEndian.AppendUint32(nil, 95)))
			tick := time.NewTicker(15 * time.Second)
			defer tick.Stop()
			for range 10 {
				<-tick.C
				_ = p.fr.WriteWindowUpdate(1, 10)
			}
			if e := <-events; e.what != "1: 200 status=0 95 bytes" {
				t.Errorf("got %v", e)
			}
			_ = p.nc.Close()
		})
	})
}
