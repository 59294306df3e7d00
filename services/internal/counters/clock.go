package counters

import (
	"sync/atomic"
	"time"
)

// A clock estimates the store's time from its answers. Safe for concurrent
// use.
type clock struct {
	sample atomic.Pointer[sample]
}

// A sample is one answer's word on how far the store's clock is ahead of ours.
type sample struct {
	offset time.Duration // the store's clock less ours
	doubt  time.Duration // offset is right to within this
	at     time.Time     // by our clock
}

// drift is how fast doubt grows, parts of the time passed: clocks differ in
// pace, and a server's may be stepped.
const drift = 1000 // 1 ms a second

// learn takes in that the store's clock read store between sent and received.
// The sharper sample stays until the other has outgrown its doubt, or
// contradicts it: then a clock was set.
func (c *clock) learn(store, sent, received time.Time) {
	half := received.Sub(sent) / 2
	next := sample{offset: store.Sub(sent.Add(half)), doubt: half, at: received}
	last := c.sample.Load()
	if last != nil {
		doubt := last.doubt + received.Sub(last.at)/drift
		apart := (next.offset - last.offset).Abs()
		if next.doubt > doubt && apart <= next.doubt+doubt {
			return
		}
	}
	c.keep(next)
}

func (c *clock) keep(s sample) { c.sample.Store(&s) }

// offset is the estimate; 0 before the first answer.
func (c *clock) offset() time.Duration {
	if s := c.sample.Load(); s != nil {
		return s.offset
	}
	return 0
}
