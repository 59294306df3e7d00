package proxyapi

import (
	"errors"
	"net"
	"sync"
	"time"

	"penstock.dev/services/gateway/decide"
)

// A story is what there is to tell of an exchange, once.
type story struct {
	usage   decide.Usage
	pending bool
	sent    time.Time // to the upstream; zero: not yet, or it was never reached

	mu     sync.Mutex
	told   bool
	sequel *decide.Usage // of a refund; waits for the decision to be told
}

// note keeps what a decision leaves to be told.
func (x *exchange) note(d *decide.Decision, took time.Duration) {
	if x.gate.deps.Recorder == nil {
		return
	}
	if x.story.usage, x.story.pending = d.Usage(); x.story.pending {
		x.story.usage.Latency, x.story.usage.KeyDigest = took, x.caller.digest
	}
}

// tell tells the recorder, with the status that the client got, unless it has
// been told.
func (x *exchange) tell(status int) {
	s := &x.story
	if !s.pending {
		return
	}
	s.pending = false
	s.usage.Status = status
	if !s.sent.IsZero() {
		s.usage.Upstream = decide.Upstream{Reached: true, Status: x.upstream, Took: time.Since(s.sent)}
	}
	x.gate.deps.Recorder.Record(s.usage)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = true
	if s.sequel != nil {
		x.gate.deps.Recorder.Record(*s.sequel)
	}
}

// tellNext tells of the refund of a decision, as soon as that has been told of.
func (x *exchange) tellNext(u decide.Usage) {
	if x.gate.deps.Recorder == nil {
		return
	}
	s := &x.story
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.told {
		s.sequel = &u
		return
	}
	x.gate.deps.Recorder.Record(u)
}

// tellOfStream tells of an answer that has streamed for so long that its event
// would else be missing for too long.
func (x *exchange) tellOfStream() {
	if x.story.pending && time.Since(x.story.sent) >= x.gate.cfg.TellAfter {
		x.tell(x.out.status)
	}
}

// unreached reports whether an exchange failed before the upstream could see
// anything of it.
func unreached(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
