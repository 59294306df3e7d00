package ratelimitv3_test

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"penstock.dev/proto/ratelimitv3"
)

// golden is what the classes of go-control-plane v1.40 wrote for a message.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWire guarantees that these messages are Envoy's on the wire: they read
// what Envoy's own classes wrote, and write it again byte by byte.
func TestWire(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		want proto.Message
	}{
		{"request", &ratelimitv3.RateLimitRequest{
			Domain: "payments", HitsAddend: 3,
			Descriptors: []*ratelimitv3.RateLimitDescriptor{
				{
					Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}, {Key: "remote_address", Value: "203.0.113.9"}},
					Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
						RequestsPerUnit: 7, Unit: ratelimitv3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(2),
					},
				},
				{
					Entries:    []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "generic_key", Value: "slow"}},
					HitsAddend: wrapperspb.UInt64(0), IsNegativeHits: true,
				},
			},
		}},
		{"response", &ratelimitv3.RateLimitResponse{
			OverallCode: ratelimitv3.RateLimitResponse_OVER_LIMIT,
			Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{
				{
					Code: ratelimitv3.RateLimitResponse_OVER_LIMIT,
					CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{
						Name: "acme-burst", RequestsPerUnit: 10, Unit: ratelimitv3.RateLimitResponse_RateLimit_MINUTE, UnitMultiplier: wrapperspb.UInt32(5),
					},
					DurationUntilReset: &durationpb.Duration{Seconds: 2},
				},
				{
					Code: ratelimitv3.RateLimitResponse_OK,
					CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{
						Name: "week", RequestsPerUnit: 99, Unit: ratelimitv3.RateLimitResponse_RateLimit_WEEK,
					},
					LimitRemaining: 4,
				},
			},
			ResponseHeadersToAdd: []*ratelimitv3.HeaderValue{{Key: "x-ratelimit-limit", Value: "10"}, {Key: "retry-after", RawValue: []byte("2")}},
			RequestHeadersToAdd:  []*ratelimitv3.HeaderValue{{Key: "x-a", Value: "b"}},
			RawBody:              []byte("{}"),
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wire := golden(t, tt.name)
			got := tt.want.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(wire, got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, tt.want) {
				t.Errorf("read %v, want %v", got, tt.want)
			}
			again, err := proto.MarshalOptions{Deterministic: true}.Marshal(tt.want)
			if err != nil {
				t.Fatal(err)
			}
			if string(again) != string(wire) {
				t.Errorf("wrote %x, want %x", again, wire)
			}
		})
	}
}

// TestNames guarantees the names under which Envoy calls the service.
func TestNames(t *testing.T) {
	t.Parallel()
	if got, want := ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"; got != want {
		t.Errorf("the method is %s, want %s", got, want)
	}
}

// TestBytes guarantees that a value which is no UTF-8, as any client can send
// one in a header, does not make the call unreadable.
func TestBytes(t *testing.T) {
	t.Parallel()
	wire := golden(t, "request")
	i := strings.Index(string(wire), "acme")
	wire[i] = 0xff
	var got ratelimitv3.RateLimitRequest
	if err := proto.Unmarshal(wire, &got); err != nil {
		t.Fatal(err)
	}
	if v := got.GetDescriptors()[0].GetEntries()[0].GetValue(); v != "\xffcme" {
		t.Errorf("value %q, want %q", v, "\xffcme")
	}
}
