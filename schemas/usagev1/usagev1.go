// Package usagev1 reads and writes usage.v1, what every decision did.
//
// An event says what was decided, for whom, and where each quota and wallet
// counter stood afterwards, as absolute numbers. A gateway numbers its events
// per stream without gaps, so that a repeat and a loss are both seen.
package usagev1

import (
	"context"
	"encoding/hex"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec"
	"penstock.dev/schemas/wire"
)

//go:generate go run ../internal/gen -schema ../usage.v1.avsc -root Event -ordinals -extra "Counter|Encoded []byte|What RuleTail made of this counter, or nil. AppendEvent copies it in place of the fields from Kind on. Not on the wire."

const (
	// Topic is the topic's name.
	Topic = "usage.v1"

	// Subject is the subject of its values in the schema registry.
	Subject = Topic + "-value"

	// Partitions is how many partitions the topic is created with. Readers
	// assume nothing of it.
	Partitions = 6

	// MaxBody is the longest body of a value, in bytes.
	MaxBody = 64 << 10

	// Unlimited is the limit of a counter that has none: 2^53-1.
	Unlimited = maxExact
)

// Key returns the key of an event: the tenant, or where it is anonymous the
// client address as the event has it.
func Key(tenant, clientAddress string) string {
	if tenant != "" {
		return tenant
	}
	return clientAddress
}

// String returns the id in its usual form of 36 characters.
func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[:8], u[:4])
	hex.Encode(b[9:13], u[4:6])
	hex.Encode(b[14:18], u[6:8])
	hex.Encode(b[19:23], u[8:10])
	hex.Encode(b[24:], u[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// A Decoder reads the values of usage.v1. It is safe for concurrent use.
type Decoder struct {
	values *codec.Values
}

// NewDecoder returns a decoder that finds schemas in ids.
func NewDecoder(ids *wire.IDs) *Decoder {
	return &Decoder{values: codec.NewValues(schemas.UsageV1, MaxBody, ids)}
}

// Decode returns the event that a key and a framed value hold. An error is
// wire.ErrPoison, or the look-up's, to be retried. An outcome or a kind of
// counter that is newer than this reader is UNKNOWN and no error: the numbers
// are right whatever it is.
func (d *Decoder) Decode(ctx context.Context, key, value []byte) (Event, error) {
	var e Event
	if err := d.values.Decode(ctx, value, &e); err != nil {
		return Event{}, err
	}
	if want := Key(e.Tenant, e.ClientAddress); string(key) != want {
		return Event{}, &wire.FieldError{Field: "key", Problem: "is not the event's tenant or client address"}
	}
	if err := e.Validate(); err != nil {
		return Event{}, err
	}
	return e, nil
}
