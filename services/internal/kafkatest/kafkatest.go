// Package kafkatest gives tests a Kafka broker.
//
// Start and Reserve run the development broker and its schema registry inside
// the test: it speaks the real protocol, starts in 50 ms and fails on request.
// StartReal runs Apache Kafka, for what only it can show.
package kafkatest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/deploy/local/devbroker"
	"penstock.dev/deploy/local/server"
)

// Patience is how long the helpers of this package wait for what a test
// expects: longer than Apache Kafka takes to restart on a busy machine.
const Patience = time.Minute

// A Broker is a broker of one test. Its methods fail the test when they cannot
// do what they say.
type Broker struct {
	// Brokers and RegistryURL are where clients connect. They stay the same
	// across Stop and Start.
	Brokers     []string
	RegistryURL string

	t   testing.TB
	cfg devbroker.Config

	mu      sync.Mutex
	running *devbroker.Broker
	real    *server.Process // instead of running
	cluster *kfake.Cluster  // of StartSecure, instead of running

	secure  *Security
	port    int
	dir     string
	options []kgo.Opt // of the kit's own clients
}

// Start runs an empty broker until the test ends.
func Start(t testing.TB) *Broker {
	t.Helper()
	b := &Broker{t: t, cfg: devbroker.Config{
		Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: t.TempDir(),
	}}
	t.Cleanup(b.stop)
	b.Start()
	b.Brokers, b.RegistryURL = b.running.Brokers(), b.running.RegistryURL()
	b.cfg.Kafka, b.cfg.Registry = b.Brokers[0], strings.TrimPrefix(b.RegistryURL, "http://")
	return b
}

// Reserve returns a broker that is not started yet: nothing listens at its
// addresses until Start.
func Reserve(t testing.TB) *Broker {
	t.Helper()
	b := &Broker{t: t, cfg: devbroker.Config{
		Kafka: freePort(t), Registry: freePort(t), DataDir: t.TempDir(),
	}}
	b.Brokers, b.RegistryURL = []string{b.cfg.Kafka}, "http://"+b.cfg.Registry
	t.Cleanup(b.stop)
	return b
}

// freePort returns an address of this machine that nobody listens on.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Start starts the broker again, with what it kept.
func (b *Broker) Start() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.real != nil {
		b.must(b.real.Restart(context.WithoutCancel(b.t.Context())))
		return
	}
	if b.running != nil || b.cluster != nil {
		return
	}
	if b.secure != nil {
		b.startSecure()
		return
	}
	running, err := devbroker.Start(context.WithoutCancel(b.t.Context()), b.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.t.Fatalf("start the broker: %v", err)
	}
	b.running = running
}

// Stop stops the broker and the registry: connections break, records stay.
func (b *Broker) Stop() {
	b.t.Helper()
	b.stop()
}

func (b *Broker) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.real != nil {
		b.must(b.real.Stop(context.WithoutCancel(b.t.Context())))
	}
	if b.running != nil {
		b.running.Close()
		b.running = nil
	}
	if b.cluster != nil {
		b.cluster.Close()
		b.cluster = nil
	}
}

// Cluster is the broker itself, for faults this package has no word for. It
// changes with every Start.
func (b *Broker) Cluster() *kfake.Cluster {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cluster != nil {
		return b.cluster
	}
	if b.running == nil {
		b.t.Fatal("the broker is stopped, or not one that fails on request")
	}
	return b.running.Cluster()
}

// Compact compacts every compacted topic now. The newest batch of a partition
// is never compacted.
func (b *Broker) Compact() {
	b.t.Helper()
	b.Cluster() // or there is nothing to compact
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.t.Context()), Patience)
	defer cancel()
	b.must(b.running.Compact(ctx))
}

func (b *Broker) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("kafkatest: %v", err)
	}
}

// Eventually polls ok until it returns true, and fails the test when it does
// not in time. The format says what was expected.
func Eventually(t testing.TB, ok func() bool, format string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, fmt.Sprintf(format, args...))
		}
		time.Sleep(5 * time.Millisecond) // the one place where a test may wait
	}
}
