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
// breakerMisses misses in a row it opens, and lets one call a while through as
// a probe: after 100 ms, then after twice as long, up to 1 s. Any reply closes
// it.
//
// It is told the time, and told apart a miss (the store did not answer) from a
// late wake-up (we may have slept over the answer), which counts as nothing.
type breaker struct {
	mu      sync.Mutex
	misses  int           // in a row
	wait    time.Duration // until the next probe; 0 while closed
	probe   time.Time     // when the next call may pass
	probing bool
}

// allow reports whether a call may be made at now. One that may must be
// followed by hit, miss or late.
func (b *breaker) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == 0 {
		return true
	}
	if b.probing || now.Before(b.probe) {
		return false
	}
	b.probing = true
	return true
}

// hit reports a reply. It returns whether the breaker was open.
func (b *breaker) hit() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed = b.wait > 0
	b.misses, b.wait, b.probing = 0, 0, false
	return closed
}

// miss reports that the store did not answer. It returns whether the breaker
// opened with it.
func (b *breaker) miss(now time.Time) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.misses++
	switch {
	case b.wait > 0 && b.probing:
		b.wait = min(2*b.wait, breakerMaxWait)
	case b.wait == 0 && b.misses >= breakerMisses:
		b.wait, opened = breakerMinWait, true
	default: // not yet, or a call that was under way when the breaker opened
		return false
	}
	b.probe, b.probing = now.Add(b.wait), false
	return opened
}

// late reports a call that we ourselves kept waiting past its end.
func (b *breaker) late() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}

// open is 1 while calls are spared.
func (b *breaker) open() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait > 0 {
		return 1
	}
	return 0
}
