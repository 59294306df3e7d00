package metering

import (
	"encoding/binary"
	"time"
)

// A Verdict is an event's outcome, as usage.v1 spells it.
type Verdict string

// The verdicts. What is not one of them is newer than this code: its counters count,
// and nothing else of it.
const (
	Allow         Verdict = "ALLOW"
	Deny          Verdict = "DENY"
	ShadowDeny    Verdict = "SHADOW_DENY"
	DegradedAllow Verdict = "DEGRADED_ALLOW"
	DegradedDeny  Verdict = "DEGRADED_DENY"
	Blocked       Verdict = "BLOCKED"
	Refund        Verdict = "REFUND"
	Settle        Verdict = "SETTLE"
)

// Passed reports whether the call was let through.
func (v Verdict) Passed() bool { return v == Allow || v == ShadowDeny || v == DegradedAllow }

// Cut reports whether the call was refused.
func (v Verdict) Cut() bool { return v == Deny || v == DegradedDeny || v == Blocked }

// Corrects reports whether the event corrects another decision.
func (v Verdict) Corrects() bool { return v == Refund || v == Settle }

// DefaultMeter counts every call that passed.
const DefaultMeter = "api-calls"

// An ID is a UUID of 16 bytes.
type ID [16]byte

// An Event is one decision, refund or settlement.
type Event struct {
	ID          ID
	Decision    ID // of a correction, the decision it corrects
	Stream      ID
	Sequence    int64 // within the stream, from 1
	Partition   int32
	At          time.Time // when it was decided
	Arrived     time.Time // when it came into the topic
	Verdict     Verdict
	Status      int
	Tenant      string // empty: anonymous
	Application string
	User        string
	APIKey      string
	Service     string
	Endpoint    string
	Rule        string
	Algorithm   string
	Cost        int64 // units asked; of a refund given back; of a settlement the true cost
	Counters    []Counter
}

// A Counter is a quota or a wallet after the event.
type Counter struct {
	Key      string
	Meter    string
	Rule     string
	Wallet   bool
	Enforced bool
	Soft     bool
	Observed bool      // else Consumed and Refunded say nothing
	Start    time.Time // of its period; zero: it has none
	End      time.Time
	Limit    int64
	Units    int64 // charged; negative: given back
	Consumed int64
	Refunded int64
}

// prepaid reports whether the counter is a wallet that was topped up: what it paid is
// not priced again.
func (c *Counter) prepaid() bool { return c.Wallet && c.Start.IsZero() }

// When is the instant that an event's units belong to: its own, or that of the
// decision it corrects, which is in the decision's id (UUIDv7). Where a counter has a
// period, the store's clock has put the decision into it, and a gateway's clock that
// disagrees by a little does not take it out.
func (e *Event) When() time.Time {
	at := e.At
	if e.Verdict.Corrects() {
		at = e.Decision.time()
	}
	for i := range e.Counters {
		c := &e.Counters[i]
		if c.Start.IsZero() || !c.Enforced {
			continue
		}
		switch {
		case at.Before(c.Start):
			at = c.Start
		case !at.Before(c.End):
			at = c.End.Add(-time.Microsecond)
		}
	}
	return at.UTC()
}

// time is the instant in a UUIDv7, to the millisecond below.
func (id ID) time() time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16)).UTC()
}
