// Package quotaeventsv1 reads and writes quota-events.v1: thresholds that were
// reached, quotas that were exhausted, overdrawn or replenished.
//
// The same crossing always has the same event id: who delivers once per id
// tells nobody anything twice.
package quotaeventsv1

import (
	"context"
	"fmt"
	"sync"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/check"
	"penstock.dev/schemas/internal/codec"
	"penstock.dev/schemas/wire"
)

//go:generate go run ../internal/gen -schema ../quota-events.v1.avsc -root Event

const (
	// Topic is the topic's name.
	Topic = "quota-events.v1"

	// Subject is the subject of its values in the schema registry.
	Subject = Topic + "-value"

	// Partitions is how many partitions the topic is created with. Readers
	// assume nothing of it.
	Partitions = 6

	// MaxBody is the longest body of a value, in bytes.
	MaxBody = 64 << 10
)

// Key returns the key of an event: its tenant.
func Key(tenant string) string { return tenant }

var encoder = sync.OnceValues(func() (*codec.Encoder, error) { return codec.NewEncoder(schemas.QuotaEventsV1) })

// AppendEvent appends the Avro body of e, without framing, to dst. It refuses
// what Validate refuses. The longest valid event is far below MaxBody.
func AppendEvent(dst []byte, e *Event) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return dst, err
	}
	enc, err := encoder()
	if err != nil {
		return dst, err
	}
	return enc.Append(dst, e)
}

// A Decoder reads the values of quota-events.v1. It is safe for concurrent use.
type Decoder struct {
	values *codec.Values
}

// NewDecoder returns a decoder that finds schemas in ids.
func NewDecoder(ids *wire.IDs) *Decoder {
	return &Decoder{values: codec.NewValues(schemas.QuotaEventsV1, MaxBody, ids)}
}

// Decode returns the event that a key and a framed value hold. The errors are
// those of package wire; with ErrSkip, for a type of event that is newer than
// this reader, the event is zero.
func (d *Decoder) Decode(ctx context.Context, key, value []byte) (Event, error) {
	var e Event
	if err := d.values.Decode(ctx, value, &e); err != nil {
		return Event{}, err
	}
	if string(key) != e.TenantID {
		return Event{}, &wire.FieldError{Field: "key", Problem: "is not the event's tenant"}
	}
	if e.Type == EventTypeUnknown {
		return Event{}, fmt.Errorf("%w: event %.32q", wire.ErrSkip, e.EventID)
	}
	if err := e.Validate(); err != nil {
		return Event{}, err
	}
	return e, nil
}

// Validate returns a *wire.FieldError for the first field that breaks the
// bounds of its doc in quota-events.v1.avsc, or nil.
func (e *Event) Validate() error {
	var c check.Check
	c.That(hexadecimal(e.EventID, 32), "event_id", "is not 32 hexadecimal characters in lower case")
	c.That(e.Type.Known(), "type", "has no known symbol")
	c.Bytes("tenant_id", e.TenantID, 1, 256)
	c.ID("rule_id", e.RuleID)
	c.Meter("meter", e.Meter)
	c.Bytes("counter_key", e.CounterKey, 1, 2048)
	c.That((e.PeriodStart == nil) == (e.PeriodEnd == nil), "period_end", "is set without period_start, or the reverse")
	if e.PeriodStart != nil && e.PeriodEnd != nil {
		c.Millis("period_start", *e.PeriodStart)
		c.Millis("period_end", *e.PeriodEnd)
		c.That(*e.PeriodStart < *e.PeriodEnd, "period_end", "is not after period_start")
	}
	e.checkLevel(&c)
	c.Range("limit", e.Limit, 1, check.MaxExact-1)
	c.Range("consumed", e.Consumed, 0, check.MaxExact)
	c.Range("arm", e.Arm, 1, check.MaxExact)
	c.That(uuid(e.CauseDecisionID), "cause_decision_id", "is no UUID of 36 characters in lower case")
	c.Millis("ts", e.TS)
	return c.Err()
}

// checkLevel checks which level was reached.
func (e *Event) checkLevel(c *check.Check) {
	if e.ThresholdPercent != nil {
		c.Range("threshold_percent", int64(*e.ThresholdPercent), 1, 100)
	}
	if e.ThresholdLeft != nil {
		c.Range("threshold_left", *e.ThresholdLeft, 0, check.MaxExact)
	}
	switch e.Type {
	case EventTypeThresholdReached:
		c.That((e.ThresholdPercent != nil) != (e.ThresholdLeft != nil), "threshold_percent", "and threshold_left: want one of the two")
	case EventTypeExhausted:
		c.That(e.ThresholdPercent != nil && *e.ThresholdPercent == 100, "threshold_percent", "is not 100 of an EXHAUSTED event")
	case EventTypeUnknown, EventTypeOverdrawn, EventTypeReplenished:
	}
}

func hexadecimal(s string, n int) bool {
	for i := range len(s) {
		if b := s[i]; (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return len(s) == n
}

func uuid(s string) bool {
	return len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
		hexadecimal(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:], 32)
}
