package grpcapi

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"penstock.dev/proto/ratelimitv3"
)

// A limited is a RateLimitResponse as far as it is written. Its memory serves
// one answer after another.
type limited struct {
	over     bool
	statuses []limitStatus
	headers  []header
	body     []byte
}

// reset makes l an empty answer, and keeps nothing alive.
func (l *limited) reset() {
	clear(l.statuses)
	clear(l.headers)
	*l = limited{statuses: l.statuses[:0], headers: l.headers[:0], body: l.body[:0]}
}

// A limitStatus is what it says of one descriptor. What no limit decided is only
// over or not.
type limitStatus struct {
	over       bool
	limited    bool
	rule       string
	limit      uint32 // units
	remaining  uint32 // units
	unit       ratelimitv3.RateLimitResponse_RateLimit_Unit
	multiplier uint32
	resets     bool
	reset      int64 // seconds
}

type header struct{ name, value string }

// message is the answer as a message.
func (l *limited) message() *ratelimitv3.RateLimitResponse {
	out := &ratelimitv3.RateLimitResponse{
		OverallCode: codeOf(l.over), RawBody: l.body,
		Statuses: make([]*ratelimitv3.RateLimitResponse_DescriptorStatus, len(l.statuses)),
	}
	for i := range l.statuses {
		from, s := &l.statuses[i], &ratelimitv3.RateLimitResponse_DescriptorStatus{}
		out.Statuses[i] = s
		s.Code, s.LimitRemaining = codeOf(from.over), from.remaining
		if from.limited {
			s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{Name: from.rule, RequestsPerUnit: from.limit, Unit: from.unit}
			if from.multiplier > 1 {
				s.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(from.multiplier)
			}
		}
		if from.resets {
			s.DurationUntilReset = &durationpb.Duration{Seconds: from.reset}
		}
	}
	for _, h := range l.headers {
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &ratelimitv3.HeaderValue{Key: h.name, Value: h.value})
	}
	return out
}

func codeOf(over bool) ratelimitv3.RateLimitResponse_Code {
	if over {
		return ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	return ratelimitv3.RateLimitResponse_OK
}

// append appends the message as it is on the wire.
func (l *limited) append(b []byte) []byte {
	b = appendNumber(b, 1, uint64(codeOf(l.over)))
	for i := range l.statuses {
		var at int
		b, at = begin(b, 2)
		b = end(l.statuses[i].append(b), at)
	}
	for _, h := range l.headers {
		var at int
		b, at = begin(b, 3)
		b = end(appendText(appendText(b, 1, h.name), 2, h.value), at)
	}
	if len(l.body) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), l.body)
	}
	return b
}

func (s *limitStatus) append(b []byte) []byte {
	var at int
	b = appendNumber(b, 1, uint64(codeOf(s.over)))
	if s.limited {
		b, at = begin(b, 2)
		b = appendText(appendNumber(appendNumber(b, 1, uint64(s.limit)), 2, uint64(s.unit)), 3, s.rule)
		if s.multiplier > 1 {
			var at int
			b, at = begin(b, 4)
			b = end(appendNumber(b, 1, uint64(s.multiplier)), at)
		}
		b = end(b, at)
	}
	b = appendNumber(b, 3, uint64(s.remaining))
	if s.resets {
		b, at = begin(b, 4)
		b = end(appendNumber(b, 1, uint64(s.reset)), at)
	}
	return b
}

// appendNumber and appendText append a field unless it is empty.
func appendNumber(b []byte, tag protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, tag, protowire.VarintType), v)
}

func appendText(b []byte, tag protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, tag, protowire.BytesType), v)
}

// begin appends the tag of a message and room for its length; end fills that in.
// at is where the message begins.
func begin(b []byte, tag protowire.Number) (_ []byte, at int) {
	b = append(protowire.AppendTag(b, tag, protowire.BytesType), 0)
	return b, len(b)
}

func end(b []byte, at int) []byte {
	n := len(b) - at
	if n < 0x80 {
		b[at-1] = byte(n)
		return b
	}
	more := protowire.SizeVarint(uint64(n)) - 1
	b = append(b, make([]byte, more)...)
	copy(b[at+more:], b[at:at+n])
	protowire.AppendVarint(b[:at-1], uint64(n))
	return b
}
