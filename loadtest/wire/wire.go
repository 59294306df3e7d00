// Package wire sends load so cheaply that the generator can share two cores
// with what it measures: one thread waits for all connections (epoll), reads
// what came, and writes the next requests of a connection at once. It speaks
// what unary gRPC needs of HTTP/2, and HTTP/1.1 with connections that are kept,
// both without TLS.
//
// A closed loop keeps a number of requests in flight and tells throughput. An
// open loop sends at a constant rate, whatever has come back, and latency counts
// from when a request was due (docs/adr/0025).
package wire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// An Answer is what became of a request that was answered.
type Answer uint8

// Wrong is what is no answer to the request, Degraded one that was given without
// the counter store.
const (
	Wrong Answer = iota
	Passed
	Refused
	Degraded
)

// A Load is what is sent. Either InFlight or Rate is above 0.
type Load struct {
	Addr     string  // host:port
	Conns    int     // connections
	InFlight int     // closed loop: requests at a time over all connections, at least Conns
	Rate     float64 // open loop: requests a second
	Warm     time.Duration
	For      time.Duration // measured, after Warm
	Method   string        // of gRPC, /package.Service/Method; empty: Requests are HTTP/1.1
	// Requests are sent at random: messages of gRPC that fit into a frame of 16 KiB, or
	// requests as they go over the wire.
	Requests [][]byte
	// Judge says what the answer to request i is. The status is gRPC's or
	// HTTP's; of a gRPC call that failed, body is empty. body is good until Judge
	// returns.
	Judge func(i, status int, body []byte) Answer
	// Begin and End are called when what is measured begins and ends.
	Begin, End func()
}

// A Result is what came of a load.
type Result struct {
	Answers  // of everything, warming up included
	Failed   int64
	Why      string // one of the failures or of the wrong answers
	Measured int64  // answers that came while it was measured
	Took     time.Duration
	Latency  *hdrhistogram.Histogram // ns, of what was due while it was measured
	Late     *hdrhistogram.Histogram // ns, of an open loop: how late it was sent
	CPU      time.Duration           // of the generator, while it was measured
}

// Answers count what was answered.
type Answers struct {
	Sent, Passed, Refused, Degraded, Wrong int64
}

// Answered is how many requests were answered, wrongly or not.
func (a Answers) Answered() int64 { return a.Passed + a.Refused + a.Degraded + a.Wrong }

// PerSecond is the rate of answers while it was measured.
func (r *Result) PerSecond() float64 { return float64(r.Measured) / r.Took.Seconds() }

var errLoad = errors.New("load")

func (l *Load) validate() error {
	switch {
	case l.Conns < 1 || len(l.Requests) == 0 || l.For <= 0:
		return fmt.Errorf("%w: no connections, no requests or no time", errLoad)
	case (l.Rate > 0) == (l.InFlight > 0) || l.Rate == 0 && l.InFlight < l.Conns:
		return fmt.Errorf("%w: want a rate, or at least one request in flight for each connection", errLoad)
	}
	for _, m := range l.Requests {
		if l.Method != "" && len(m) > maxMessage {
			return fmt.Errorf("%w: a message of %d bytes, at most %d are sent", errLoad, len(m), maxMessage)
		}
	}
	return nil
}

// Run sends the load and waits for the answers. The error says that it could
// not be sent; what failed on the way is in the Result.
func Run(ctx context.Context, l Load) (*Result, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	r := &run{Load: l, rng: rand.New(rand.NewPCG(1, uint64(len(l.Requests)))), start: time.Now()}
	r.result.Latency, r.result.Late = newHistogram(), newHistogram()
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	err := r.loop(ctx)
	return &r.result, errors.Join(err, r.close())
}

// longest is what a histogram can tell; what took longer counts as that.
const longest = time.Minute

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(longest), 3)
}

func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(min(max(ns, 0), int64(longest))) // never out of range
}
