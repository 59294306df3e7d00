package proxyapi

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// queue has a request wait for its turn in the queue of a leaky bucket. It
// reports whether it is still there then.
//
// A client that goes away meanwhile is noticed at once, unless it has not sent
// its body yet, which nobody reads before the turn has come. It keeps its place,
// and its charge: the others behind it were told their waits already.
func (x *exchange) queue() bool {
	delay := x.decision.Delay
	if delay <= 0 {
		return true
	}
	_ = http.NewResponseController(&x.out).SetWriteDeadline(time.Now().Add(delay + x.gate.cfg.ClientTimeout))
	began := time.Now()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.in.Context().Done():
	}
	x.queued = time.Since(began)
	switch cause := context.Cause(x.in.Context()); {
	case cause == nil:
		return true
	case errors.Is(cause, errClosing):
		x.discard()
		x.disappoint(closing)
	default:
		x.gone = true
		x.turnAway(clientGone)
	}
	return false
}
