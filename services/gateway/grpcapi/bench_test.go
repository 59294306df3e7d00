package grpcapi_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/internal/rule"
)

// BenchmarkCall measures calls of a rule that passes, with the model for a
// store: the message alone, as an engine hands it over, and through grpc-go.
func BenchmarkCall(b *testing.B) {
	s := newServer(b, grpcapi.GRPCGo)
	s.rate("burst", rule.Tenant, 1<<50, nil)
	ctx := s.ctx()
	limits := oneDescriptor("tenant", "acme", "method", "POST", "path", "/v1/pay", "remote_address", "203.0.113.9")
	question := &decisionv1.DecideRequest{Tenant: "acme", Method: "POST", Path: "/v1/pay", ClientIp: "203.0.113.9"}
	for _, bench := range []struct {
		name string
		call func() error
	}{
		{"ratelimit/face", func() error { _, err := s.face.ShouldRateLimit(ctx, limits); return err }},
		{"ratelimit/wire", func() error {
			in, err := proto.Marshal(limits)
			if err != nil {
				return err
			}
			var m ratelimitv3.RateLimitRequest
			if err := proto.Unmarshal(in, &m); err != nil {
				return err
			}
			out, err := s.face.ShouldRateLimit(ctx, &m)
			if err != nil {
				return err
			}
			_, err = proto.Marshal(out)
			return err
		}},
		{"ratelimit/grpc", func() error { _, err := s.limits.ShouldRateLimit(ctx, limits); return err }},
		{"decide/face", func() error { _, err := s.face.Decide(ctx, question); return err }},
		{"decide/grpc", func() error { _, err := s.client.Decide(ctx, question); return err }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bench.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzShouldRateLimit guarantees that no message is answered with anything but
// an answer or a fault that the caller is told of.
func FuzzShouldRateLimit(f *testing.F) {
	s := newServer(f, grpcapi.H2)
	s.rate("burst", rule.Tenant, 3, nil)
	for _, in := range []*ratelimitv3.RateLimitRequest{
		oneDescriptor("tenant", "acme", "path", "/a/../b", "generic_key", "\xff"), {Domain: "d"}, oneDescriptor("client_ip", "2001:db8::1"),
	} {
		wire, err := proto.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var in ratelimitv3.RateLimitRequest
		if proto.Unmarshal(wire, &in) != nil {
			return
		}
		out, err := s.face.ShouldRateLimit(t.Context(), &in)
		if err != nil {
			if f := s.face.FailureOf(t.Context(), err); f.Reason != "malformed" || len(f.Fields) == 0 {
				t.Fatalf("%v fails with %+v", &in, f)
			}
			return
		}
		if len(out.GetStatuses()) != len(in.GetDescriptors()) {
			t.Fatalf("%d statuses of %d descriptors", len(out.GetStatuses()), len(in.GetDescriptors()))
		}
		if _, err := proto.Marshal(out); err != nil {
			t.Fatal(err)
		}
	})
}
