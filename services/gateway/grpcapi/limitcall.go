package grpcapi

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"penstock.dev/proto/ratelimitv3"
)

// A limitCall is a RateLimitRequest as far as it is read. Its memory serves one
// call after another.
type limitCall struct {
	domain      string
	descriptors []descriptor
	hits        uint32

	entries []entry // of all descriptors
}

// reset makes c an empty call, and keeps nothing alive.
func (c *limitCall) reset() {
	clear(c.descriptors)
	clear(c.entries)
	*c = limitCall{descriptors: c.descriptors[:0], entries: c.entries[:0]}
}

// A descriptor is one of its descriptors. The limit that Envoy may send along is
// passed over: rules say what the limits are.
type descriptor struct {
	entries  []entry
	hits     uint64
	counted  bool // it says hits of its own
	negative bool
}

type entry struct{ key, value string }

// limitCallOf is a message as a limitCall.
func limitCallOf(in *ratelimitv3.RateLimitRequest) limitCall {
	c := limitCall{domain: in.GetDomain(), hits: in.GetHitsAddend(), descriptors: make([]descriptor, len(in.GetDescriptors()))}
	for i, from := range in.GetDescriptors() {
		d := &c.descriptors[i]
		d.hits, d.counted, d.negative = from.GetHitsAddend().GetValue(), from.GetHitsAddend() != nil, from.GetIsNegativeHits()
		d.entries = make([]entry, len(from.GetEntries()))
		for k, e := range from.GetEntries() {
			d.entries[k] = entry{e.GetKey(), e.GetValue()}
		}
	}
	return c
}

// parse reads a RateLimitRequest off the wire, as the generated code does: all
// texts share one string.
func (c *limitCall) parse(message []byte) error {
	c.reset()
	m := fields{bytes: message, text: string(message)}
	for m.next() {
		switch {
		case m.is(1, protowire.BytesType):
			c.domain = m.value
		case m.is(2, protowire.BytesType):
			d, err := c.descriptor(m.within())
			if err != nil {
				return err
			}
			c.descriptors = append(c.descriptors, d)
		case m.is(3, protowire.VarintType):
			c.hits = uint32(m.number)
		}
	}
	return m.err
}

func (c *limitCall) descriptor(m fields) (d descriptor, err error) {
	first := len(c.entries)
	for m.next() {
		switch {
		case m.is(1, protowire.BytesType):
			var e entry
			in := m.within()
			for in.next() {
				switch {
				case in.is(1, protowire.BytesType):
					e.key = in.value
				case in.is(2, protowire.BytesType):
					e.value = in.value
				}
			}
			if in.err != nil {
				return d, in.err
			}
			c.entries = append(c.entries, e)
		case m.is(2, protowire.BytesType):
			if err := checkLimit(m.within()); err != nil {
				return d, err
			}
		case m.is(3, protowire.BytesType):
			d.counted = true
			in := m.within()
			for in.next() {
				if in.is(1, protowire.VarintType) {
					d.hits = in.number
				}
			}
			if in.err != nil {
				return d, in.err
			}
		case m.is(4, protowire.VarintType):
			d.negative = m.number != 0
		}
	}
	d.entries = c.entries[first:]
	return d, m.err
}

// checkLimit reads the limit that Envoy may send along, and forgets it.
func checkLimit(m fields) error {
	for m.next() {
		if m.is(3, protowire.BytesType) {
			in := m.within()
			for in.next() {
			}
			if in.err != nil {
				return in.err
			}
		}
	}
	return m.err
}

var errTag = errors.New("a field has a number that none has")

// fields are what is left of a message, its bytes and the same as a string, and
// the field that next found.
type fields struct {
	bytes []byte
	text  string

	tag    protowire.Number
	kind   protowire.Type
	number uint64 // of a varint
	value  string // of bytes
	raw    []byte // the same
	err    error
}

// next goes to the next field, and reports whether there is one.
func (m *fields) next() bool {
	if len(m.bytes) == 0 || m.err != nil {
		return false
	}
	if m.short() {
		return true
	}
	tag, kind, n := protowire.ConsumeTag(m.bytes)
	if n < 0 {
		return m.fail(n)
	}
	if tag > protowire.MaxValidNumber {
		m.err = errTag
		return false
	}
	m.tag, m.kind = tag, kind
	m.skip(n)
	switch kind {
	case protowire.VarintType:
		m.number, n = protowire.ConsumeVarint(m.bytes)
	case protowire.BytesType:
		if m.raw, n = protowire.ConsumeBytes(m.bytes); n >= 0 {
			m.value = m.text[n-len(m.raw) : n]
		}
	case protowire.Fixed32Type, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType:
		n = protowire.ConsumeFieldValue(tag, kind, m.bytes)
	default:
		n = -1
	}
	if n < 0 {
		return m.fail(n)
	}
	m.skip(n)
	return true
}

// short is next for most: a field of bytes whose tag and length are a byte each.
func (m *fields) short() bool {
	b := m.bytes
	if len(b) < 2 || b[0]&0x87 != byte(protowire.BytesType) || b[0] < 1<<3 || b[1] >= 0x80 || len(b)-2 < int(b[1]) {
		return false
	}
	end := 2 + int(b[1])
	m.tag, m.kind, m.raw, m.value = protowire.Number(b[0]>>3), protowire.BytesType, b[2:end], m.text[2:end]
	m.skip(end)
	return true
}

func (m *fields) fail(n int) bool {
	m.err = protowire.ParseError(n)
	return false
}

func (m *fields) skip(n int) { m.bytes, m.text = m.bytes[n:], m.text[n:] }

func (m *fields) is(tag protowire.Number, kind protowire.Type) bool {
	return m.tag == tag && m.kind == kind
}

// within are the fields of a field that is a message.
func (m *fields) within() fields { return fields{bytes: m.raw, text: m.value} }
