// Package rulesv1 reads and writes rules.v1, the state of the control plane.
//
// The topic is compacted: the newest record of a key is an object as it is now,
// a tombstone says that it is gone. Every record carries its identity (kind and
// id), its version, which rises per key, and its revision, which rises over all
// keys. Keep the higher version and repeats and reordering are harmless.
package rulesv1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/check"
	"penstock.dev/schemas/internal/codec"
	"penstock.dev/schemas/wire"
)

//go:generate go run ../internal/gen -schema ../rules.v1.avsc -root Record

const (
	// Topic is the topic's name.
	Topic = "rules.v1"

	// Subject is the subject of its values in the schema registry.
	Subject = Topic + "-value"

	// Partitions is how many partitions the topic is created with. Readers
	// assume nothing of it.
	Partitions = 1

	// MaxBody is the longest body of a value, in bytes.
	MaxBody = 1 << 20

	// HeaderVersion names the header of a record, and of a tombstone above all,
	// that holds its version in decimal.
	HeaderVersion = "version"

	// HeaderID names the header that holds the id of the outbox row a record
	// came from.
	HeaderID = "id"
)

// Key returns the key of an object: its kind and id.
func Key(kind Kind, id string) string { return string(kind) + "/" + id }

// ParseKey returns the kind and the id that a key names. A key of a kind that
// this reader does not know is ErrSkip, with the id and KindUnknown; one that no
// writer makes is ErrPoison.
func ParseKey(key []byte) (Kind, string, error) {
	name, id, ok := bytes.Cut(key, []byte("/"))
	if !ok || len(name) == 0 || len(name) > 64 || len(bytes.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_")) > 0 {
		return KindUnknown, "", &wire.FieldError{Field: "key", Problem: fmt.Sprintf("%.64q is not of the form kind/id", key)}
	}
	kind := Kind(name)
	var c check.Check
	checkID(&c, "key", kind, string(id))
	if err := c.Err(); err != nil {
		return KindUnknown, "", err
	}
	if !kind.Known() {
		return KindUnknown, string(id), fmt.Errorf("%w: key %s", wire.ErrSkip, key)
	}
	return kind, string(id), nil
}

// FormatVersion returns the value of the version header.
func FormatVersion(version int64) []byte { return strconv.AppendInt(nil, version, 10) }

// ParseVersion returns the version that a version header holds, else ErrPoison.
func ParseVersion(header []byte) (int64, error) {
	version, err := strconv.ParseInt(string(header), 10, 64)
	if err != nil || version < 1 || version > maxExact || header[0] == '+' {
		return 0, &wire.FieldError{Field: HeaderVersion, Problem: fmt.Sprintf("%.64q is not a version", header)}
	}
	return version, nil
}

var encoder = sync.OnceValues(func() (*codec.Encoder, error) { return codec.NewEncoder(schemas.RulesV1) })

// AppendRecord appends the Avro body of r, without framing, to dst. It refuses
// what Validate refuses, and a body above MaxBody.
func AppendRecord(dst []byte, r *Record) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return dst, err
	}
	e, err := encoder()
	if err != nil {
		return dst, err
	}
	out, err := e.Append(dst, r)
	if err != nil {
		return dst, err
	}
	if size := len(out) - len(dst); size > MaxBody {
		return dst, &wire.FieldError{Field: string(r.Kind), Problem: fmt.Sprintf("is %d bytes, want at most %d", size, MaxBody)}
	}
	return out, nil
}

// A Decoder reads the values of rules.v1. It is safe for concurrent use.
type Decoder struct {
	values   *codec.Values
	features map[string]bool
}

// NewDecoder returns a decoder that finds schemas in ids. The features are the
// names in `requires` that the caller's code honours.
func NewDecoder(ids *wire.IDs, features ...string) *Decoder {
	d := &Decoder{values: codec.NewValues(schemas.RulesV1, MaxBody, ids), features: map[string]bool{}}
	for _, f := range features {
		d.features[f] = true
	}
	return d
}

// Decode returns the record that a key and a framed value hold. A tombstone has
// no value and is not for Decode.
//
// The errors are those of package wire. With ErrSkip and ErrSetAside the record
// returned has its identity, version and revision, which count as seen, and
// nothing else that may be acted on. With any other error it is zero.
func (d *Decoder) Decode(ctx context.Context, key, value []byte) (Record, error) {
	var r Record
	if err := d.values.Decode(ctx, value, &r); err != nil {
		return Record{}, err
	}
	if err := r.checkIdentity(); err != nil {
		return Record{}, err
	}
	kind, id, err := ParseKey(key)
	if err != nil && !errors.Is(err, wire.ErrSkip) {
		return Record{}, err
	}
	if r.Kind != kind || r.ID != id {
		return Record{}, &wire.FieldError{Field: "key", Problem: fmt.Sprintf("%.64q is not that of %s/%.64s", key, r.Kind, r.ID)}
	}
	identity := Record{
		Kind: r.Kind, ID: r.ID, Version: r.Version, Revision: r.Revision,
		ChangedAt: r.ChangedAt, ChangedBy: r.ChangedBy, Requires: r.Requires,
	}
	if r.Kind == KindUnknown {
		return identity, fmt.Errorf("%w: key %s", wire.ErrSkip, key)
	}
	for _, feature := range r.Requires {
		if !d.features[feature] {
			return identity, fmt.Errorf("%w: requires %s", wire.ErrSetAside, feature)
		}
	}
	if field := r.unknownSymbol(); field != "" {
		return identity, fmt.Errorf("%w: %s has an unknown symbol", wire.ErrSetAside, field)
	}
	if err := r.Validate(); err != nil {
		return Record{}, err
	}
	return r, nil
}
