//go:build integration

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/internal/kafkatest"
)

// TestIntegrationGRPC guarantees that the gRPC faces of a running gateway spend
// from the counters of the others, tell usage.v1 and the metrics, end well, and
// that the rate limit service asks for a token of peers that are not trusted.
func TestIntegrationGRPC(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	e := newEstate(t)
	e.seed(upstream.URL, 4)
	addr := freePort(t)
	g := e.start("-grpc-listen", addr, "-receipt-keys", "2026-11:secret-of-november")
	g.ready()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	decisions, limits := decisionv1.NewDecisionServiceClient(conn), ratelimitv3.NewRateLimitServiceClient(conn)
	trusted := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)

	d, err := decisions.Decide(trusted, &decisionv1.DecideRequest{Tenant: "acme", Cost: new(int64(2))})
	if err != nil || d.GetOutcome() != decisionv1.Decision_ALLOW || d.GetLimits()[0].GetRemaining() != 2 {
		t.Fatalf("decided %v %v", d, err)
	}
	if code, _, body := g.pay(); code != http.StatusOK {
		t.Errorf("proxied: %d %s", code, body)
	}
	in := &ratelimitv3.RateLimitRequest{Domain: "payments", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}},
	}}
	if _, err := limits.ShouldRateLimit(t.Context(), in); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stranger: %v", err)
	}
	for i, want := range []ratelimitv3.RateLimitResponse_Code{ratelimitv3.RateLimitResponse_OK, ratelimitv3.RateLimitResponse_OVER_LIMIT} {
		out, err := limits.ShouldRateLimit(trusted, in)
		if err != nil || out.GetOverallCode() != want {
			t.Errorf("asked for the %d. time: %v %v, want %v", i+1, out, err, want)
		}
	}
	back, err := decisions.Refund(trusted, &decisionv1.RefundRequest{DecisionId: d.GetDecisionId(), Receipt: d.GetReceipt()})
	if err != nil || back.GetUnits() != 2 {
		t.Errorf("given back: %v %v", back, err)
	}
	if out, err := limits.ShouldRateLimit(trusted, in); err != nil || out.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("after the refund: %v %v", out, err)
	}

	_, _, page := g.get(g.admin + "/metrics")
	for _, series := range []string{`ratelimit_decisions_total{outcome="ALLOW"} 4`, `ratelimit_decisions_total{outcome="DENY"} 1`, `penstock_gateway_refunds_total{result="made"} 1`} {
		if !strings.Contains(page, series) {
			t.Errorf("no %s on the page of metrics", series)
		}
	}
	if code := g.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	verdicts := map[string]int{}
	kafkatest.Eventually(t, func() bool {
		clear(verdicts)
		for _, ev := range e.told() {
			verdicts[ev.Decision.String()]++
		}
		return verdicts["ALLOW"] == 4 && verdicts["DENY"] == 1 && verdicts["REFUND"] == 1
	}, "what was decided on usage.v1: %v", verdicts)
}
