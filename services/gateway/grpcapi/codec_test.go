package grpcapi_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/grpcapi"
)

// FuzzParseLimitCall guarantees that a message is read as the generated code
// reads it, and that what that cannot read is refused.
func FuzzParseLimitCall(f *testing.F) {
	for _, in := range []*ratelimitv3.RateLimitRequest{
		{},
		oneDescriptor("tenant", "acme", "path", "/v1/pay", "x", "\xff"),
		{Domain: "d", HitsAddend: 1 << 31, Descriptors: []*ratelimitv3.RateLimitDescriptor{{}, descriptor("", ""), {IsNegativeHits: true}}},
	} {
		message, err := proto.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message)
		f.Add(slices.Concat(message, []byte("\x0b\x0c"), message))                         // a group, and all of it twice
		f.Add(append(message, 0x12, 0x04, 0x1a, 0x02, 0x08, 0x05))                         // hits of its own
		f.Add(append(message, 0x12, 0x08, 0x12, 0x06, 0x08, 0x05, 0x1a, 0x02, 0x08, 0x05)) // a limit
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		var in ratelimitv3.RateLimitRequest
		want := proto.Unmarshal(message, &in)
		got, err := grpcapi.ParseLimitCall(message)
		if (want == nil) != (err == nil) || err == nil && !grpcapi.SameLimitCall(got, grpcapi.LimitCallOf(&in)) {
			t.Errorf("%q is read as %+v %v, want %+v %v", message, got, err, grpcapi.LimitCallOf(&in), want)
		}
	})
}

// TestLimitedOnTheWire guarantees that an answer is on the wire what the
// generated code reads as the same message.
func TestLimitedOnTheWire(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		message, wire := grpcapi.DrawLimited(t)
		var got ratelimitv3.RateLimitResponse
		if err := proto.Unmarshal(wire, &got); err != nil || !proto.Equal(&got, message) {
			t.Fatalf("%x is read as %v %v, want %v", wire, &got, err, message)
		}
	})
}

// FuzzAppendJSON guarantees that texts are escaped as encoding/json does.
func FuzzAppendJSON(f *testing.F) {
	for _, text := range []string{"rule burst: 20 units per 1m0s are used up", "a<b>&c", "\u2028 \"\\ \x7f\x01\t é", "\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := grpcapi.AppendJSON(nil, text); !bytes.Equal(got, want) {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	})
}
