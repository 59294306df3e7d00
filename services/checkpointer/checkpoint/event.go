package checkpoint

import (
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// An Event is what an event of usage.v1 says of counters and corrections.
type Event struct {
	Offset     int64
	Stream     [16]byte
	Sequence   int64 // within the stream, contiguous
	Charges    []Charge
	Correction *Correction // nil: a decision
}

// A Charge is what became of one quota or wallet.
type Charge struct {
	Counter
	Units int64 // charged, negative when given back
}

// A Correction is a refund or a settlement that was made.
type Correction struct {
	Tenant   string
	Decision [16]byte
	Refund   string // id; empty: a settlement
	Units    int64  // given back by a refund, or the cost it was settled at
	At       time.Time
}

// A Counter is a quota or a wallet as it is kept. Both its totals only rise, so
// of two that differ each number's greater is right.
type Counter struct {
	Key string
	limit.Totals
	Told int64 // units that distinct events told of: charged less given back

	Kind    rule.Kind
	Meter   string    // empty where no event has told
	Start   time.Time // of the period; zero: it has none, or nobody has told
	End     time.Time
	Limit   int64
	Expires time.Time // when it may be forgotten; zero: never
}

// KeepFor is how long a counter is kept after its period, as the store does.
const KeepFor = 8 * 24 * time.Hour

// Saved is the counter as the store is told of it.
func (c *Counter) Saved() Saved {
	return Saved{Key: c.Key, Saved: limit.Saved{Totals: c.Totals, Expiry: c.Expires}}
}

// Raise has the counter hold at least t.
func (c *Counter) Raise(t limit.Totals) {
	c.Consumed, c.Refunded = max(c.Consumed, t.Consumed), max(c.Refunded, t.Refunded)
}

// maxExact is 2^53-1, up to which all who count do so exactly.
const maxExact = 1<<53 - 1

// tell adds units that events told of. No counter has more than is exact, so sums of
// events that say otherwise need not turn over.
func (c *Counter) tell(units int64) {
	c.Told = max(-maxExact, min(maxExact, c.Told+units))
}

// add takes in what is known of the same counter elsewhere.
func (c *Counter) add(more *Counter) {
	c.Raise(more.Totals)
	c.tell(more.Told)
	if more.Meter != "" {
		c.Kind, c.Meter, c.Start, c.End, c.Limit = more.Kind, more.Meter, more.Start, more.End, more.Limit
	}
	if more.Expires.After(c.Expires) {
		c.Expires = more.Expires
	}
}

// A Saved is a counter that may have to be restored.
type Saved struct {
	Key string
	limit.Saved
}
