//go:build integration

package counters_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
)

// openStore opens a store as a service does, which adopts what it finds, and
// closes it with the test.
func openStore(t testing.TB, url string, budget time.Duration) *counters.Store {
	t.Helper()
	return open(t, counters.Config{URL: url, Budget: budget, Adopt: true})
}

func open(t testing.TB, cfg counters.Config) *counters.Store {
	t.Helper()
	store, err := counters.Open(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// decide asks for charges and fails the test where the store does not answer.
func decide(t testing.TB, s *counters.Store, charges ...limit.Charge) limit.Answer {
	t.Helper()
	a, err := s.Decide(t.Context(), limit.Decision{Charges: charges})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// at asks one decision at a time of the test's choosing.
func at(t testing.TB, s *counters.Store, now time.Time, charges ...limit.Charge) limit.Answer {
	t.Helper()
	answers, err := s.At(t.Context(), now, limit.Decision{Charges: charges})
	if err != nil {
		t.Fatal(err)
	}
	return answers[0]
}

// lifeOf is how long a key lives from now, -1 for ever, -2 where there is none.
func lifeOf(t testing.TB, client *redis.Client, key string) time.Duration {
	t.Helper()
	ttl, err := client.PTTL(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return ttl
}

// eventually polls until ok, for at most a while.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		case <-tick.C:
		}
	}
}

// A proxy stands between a store and its server and loses things.
type proxy struct {
	addr     string
	upstream string
	listener net.Listener

	mu       sync.Mutex
	conns    []net.Conn
	lose     func(reply []byte) bool // whether to cut the connection instead of passing a reply
	delay    time.Duration           // of every request
	requests bytes.Buffer            // all that clients sent
}

func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: listener.Addr().String(), upstream: upstream, listener: listener}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		serving.Wait()
	})
	return p
}

// set changes what the proxy does under its lock.
func (p *proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// cut closes every connection.
func (p *proxy) cut() {
	p.set(func() {
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
	})
}

// sent counts how often clients sent text.
func (p *proxy) sent(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Count(p.requests.Bytes(), []byte(text))
}

func (p *proxy) serve(client net.Conn) {
	var upstream string
	p.set(func() { upstream = p.upstream })
	server, err := net.DialTimeout("tcp", upstream, time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	p.set(func() { p.conns = append(p.conns, client, server) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.copy(client, server, func(reply []byte) bool { return p.lose != nil && p.lose(reply) })
	}()
	p.copy(server, client, func(request []byte) bool {
		p.requests.Write(request)
		return false
	})
	<-done
}

// copy moves bytes until one side closes, or lose says to cut both. Requests
// wait for the delay.
func (p *proxy) copy(to, from net.Conn, lose func([]byte) bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		var lost bool
		var delay time.Duration
		p.set(func() { lost, delay = lose(buffer[:n]), p.delay })
		if lost {
			return
		}
		if delay > 0 {
			<-time.After(delay)
		}
		if _, err := io.Copy(to, bytes.NewReader(buffer[:n])); err != nil {
			return
		}
	}
}

// A pulse measures how late this machine wakes a goroutine that asked to be
// woken: the slack that a deadline test must allow it.
type pulse struct {
	stop chan struct{}
	done chan time.Duration
}

func newPulse() *pulse {
	p := &pulse{stop: make(chan struct{}), done: make(chan time.Duration, 1)}
	go func() {
		worst, last := time.Duration(0), time.Now()
		for {
			select {
			case <-time.After(5 * time.Millisecond):
				now := time.Now()
				worst, last = max(worst, now.Sub(last)-5*time.Millisecond), now
			case <-p.stop:
				p.done <- worst
				return
			}
		}
	}()
	return p
}

// worst ends the measurement.
func (p *pulse) worst() time.Duration {
	close(p.stop)
	return <-p.done
}
