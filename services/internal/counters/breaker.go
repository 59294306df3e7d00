package counters

import (
	"sync"
	"time"
)

// Bounds of a breaker. Several misses in a row are a store that is away; one
// or two are a hiccup of a busy machine.
const (
	breakerMisses  = 5
	breakerMinWait = 100 * time.Millisecond
	breakerMaxWait = time.Second
)

// A breaker spares callers the wait for a store that does not answer. After
// breakerMisses misses in a row it opens, and lets one caller a while through
// as a probe: after 100 ms, then after twice as long, up to 1 s. Any reply
// closes it.
//
// It is told the time, and it is not told of calls that ended long after their
// deadline: then this process slept, and the store may well have answered.
type breaker struct {
	mu     sync.Mutex
	misses int           // in a row
	wait   time.Duration // between probes; 0 while closed
	probe  time.Time     // when the next caller may pass
}

// allow reports whether a caller may ask the store at now.
func (b *breaker) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == 0 {
		return true
	}
	if now.Before(b.probe) {
		return false
	}
	b.probe = now.Add(b.wait)
	return true
}

// hit reports a reply. It returns whether the breaker was open.
func (b *breaker) hit() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed = b.wait > 0
	b.misses, b.wait = 0, 0
	return closed
}

// miss reports that the store did not answer a call sent at sent. It returns
// whether the breaker opened with it.
func (b *breaker) miss(sent, now time.Time) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.misses++
	switch {
	case b.wait > 0 && sent.Before(b.probe.Add(-b.wait)):
		return false // it was under way when the breaker opened
	case b.wait > 0:
		b.wait = min(2*b.wait, breakerMaxWait)
	case b.misses >= breakerMisses:
		b.wait, opened = breakerMinWait, true
	default:
		return false
	}
	b.probe = now.Add(b.wait)
	return opened
}

// open reports whether calls are spared.
func (b *breaker) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait > 0
}
