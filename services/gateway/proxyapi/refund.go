package proxyapi

import (
	"context"
	"encoding/hex"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"penstock.dev/services/gateway/decide"
)

// onTimeout is the word for an upstream that did not answer in time, in an
// endpoint's refund_on. The others are statuses and classes: 503, 5xx.
const onTimeout = "timeout"

// refundOn reports whether an endpoint gives the charge back for an outcome.
func refundOn(e *decide.EndpointDef, status int, timeout bool) bool {
	if e == nil || len(e.RefundOn) == 0 {
		return false
	}
	text := strconv.Itoa(status)
	for _, on := range e.RefundOn {
		if on == text || len(on) == 3 && on[1:] == "xx" && on[0] == text[0] || timeout && on == onTimeout {
			return true
		}
	}
	return false
}

// giveBack gives the whole charge back if the endpoint does so for this outcome
// of the upstream, once. The request does not wait for it. A client that went
// away has been served as far as anybody knows, and keeps its charge.
func (x *exchange) giveBack(status int, timeout bool) {
	if x.refunded || !x.decided || !refundOn(x.rules.Endpoint(x.service.ID, x.method, x.rest), status, timeout) {
		return
	}
	x.refunded = true
	if receipt, ok := x.decision.Receipt(); ok {
		x.gate.back.give(x, receipt)
	}
}

// How often and how long a refund is tried while the counter store does not
// answer: repeats are harmless, because the store knows the refund's id.
var tries = [...]time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 8 * time.Second}

const (
	maxRefunds = 4096             // that are being tried at the same time
	quiet      = 10 * time.Second // between two lines about refunds that failed
)

// refunds are the charges that are being given back, off the path of their
// requests.
type refunds struct {
	running chan struct{} // one of each
	closing chan struct{} // closed by drain
	said    *atomic.Int64 // when a failure was logged last, Unix ns
}

func newRefunds() refunds {
	return refunds{make(chan struct{}, maxRefunds), make(chan struct{}), new(atomic.Int64)}
}

// give begins to give a charge back.
func (b *refunds) give(x *exchange, receipt decide.Receipt) {
	select {
	case b.running <- struct{}{}:
	default:
		b.failed(x, errors.New("too many are being tried already"))
		return
	}
	ctx := context.WithoutCancel(x.in.Context())
	go func() {
		defer func() { <-b.running }()
		b.run(ctx, x, receipt)
	}()
}

// run tries until the store answers, or no more.
func (b *refunds) run(ctx context.Context, x *exchange, receipt decide.Receipt) {
	id := uuid(receipt.DecisionID)
	var last error
	for _, wait := range tries {
		open := b.sleep(wait)
		c, err := x.gate.deps.Decider.Refund(ctx, receipt, id, 0)
		if err == nil {
			b.done(x, &c)
			return
		}
		last = err
		if !open || !errors.Is(err, decide.ErrStoreUnavailable) {
			break
		}
	}
	b.failed(x, last)
}

// sleep reports whether there will be time for another try.
func (b *refunds) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-b.closing:
		return false
	case <-timer.C:
		return true
	}
}

func (b *refunds) done(x *exchange, c *decide.Correction) {
	if m := x.gate.deps.Meter; m != nil {
		m.Refunded(true)
	}
	if u, ok := c.Usage(); ok {
		x.tellNext(u)
	}
}

// failed counts a charge that is kept though it should not be, and says so, but
// not for each of thousands.
func (b *refunds) failed(x *exchange, err error) {
	if m := x.gate.deps.Meter; m != nil {
		m.Refunded(false)
	}
	now, last := time.Now().UnixNano(), b.said.Load()
	if now-last >= int64(quiet) && b.said.CompareAndSwap(last, now) {
		x.gate.deps.Log.Warn("charge not given back", "service_id", x.service.ID, "decision_id", uuid(x.decision.ID), "error", err.Error())
	}
}

// drain has everything tried once more at most, and waits for it. It returns
// how many are left after so long. None begins afterwards.
func (b *refunds) drain(within time.Duration) (left int) {
	close(b.closing)
	timer := time.NewTimer(within)
	defer timer.Stop()
	for free := range cap(b.running) {
		select {
		case b.running <- struct{}{}:
		case <-timer.C:
			return cap(b.running) - free
		}
	}
	return 0
}

// uuid is an id as text.
func uuid(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
