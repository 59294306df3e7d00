package decisionv1_test

import (
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"penstock.dev/proto/decisionv1"
)

var update = flag.Bool("update", false, "write golden files that are missing; one that is there was published")

// messages have every field of every message set.
var messages = map[string]proto.Message{
	"decide_request":  question,
	"decision":        decision,
	"batch_request":   &decisionv1.DecideBatchRequest{Decisions: []*decisionv1.DecideRequest{question, {Tenant: "globex"}}},
	"batch_response":  &decisionv1.DecideBatchResponse{Decisions: []*decisionv1.Decision{decision}},
	"refund_request":  &decisionv1.RefundRequest{DecisionId: "d", Receipt: "r", RefundId: "f-1", Units: new(int64(1))},
	"refund_response": &decisionv1.RefundResponse{RefundId: "f-1", Units: 1, RefundedTotal: 2, Replayed: true},
	"settle_request":  &decisionv1.SettleRequest{DecisionId: "d", Receipt: "r", Cost: new(int64(0))},
	"settle_response": &decisionv1.SettleResponse{DecisionId: "d", Cost: 7, Units: -2, RefundedTotal: 1, Replayed: true},
}

var question = &decisionv1.DecideRequest{
	RequestId: "r-1", Tenant: "acme", Application: "web", User: "u1", ApiKey: "secret", ClientIp: "203.0.113.9",
	Service: "payments", Method: "POST", Path: "/v1/pay", Cost: new(int64(0)), Labels: map[string]string{"region": "eu"},
}

var decision = &decisionv1.Decision{
	DecisionId: "0192f0c1-7b7e-7c3a-9d2e-3f6a1b2c4d5e", Outcome: decisionv1.Decision_DENY, Status: 429, Code: "quota-exceeded", RuleId: "acme-month",
	RetryAfterSeconds: new(int64(2)), DelayMs: new(int64(3)), Degraded: true, Cost: 5, RulesVersion: 812, Receipt: "AQMy", Replayed: true,
	Limits: []*decisionv1.Limit{{
		RuleId: "acme-month", Kind: "wallet", Algorithm: "overdraft_wallet", Meter: "credits", Mode: "enforce", Limit: 1000,
		Consumed: new(int64(900)), Refunded: new(int64(0)), Balance: new(int64(-100)), Remaining: 1, ResetSeconds: new(int64(86400)), Passed: true,
		PeriodStart: timestamppb.New(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)), PeriodEnd: timestamppb.New(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)),
	}},
}

// TestWire guarantees that bytes which were published once are read and
// written the same for ever.
func TestWire(t *testing.T) {
	t.Parallel()
	for name, want := range messages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			file := "testdata/" + name + ".hex"
			golden, err := os.ReadFile(file)
			if os.IsNotExist(err) && *update {
				golden = []byte(hex.EncodeToString(wire) + "\n")
				err = os.WriteFile(file, golden, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			published, err := hex.DecodeString(strings.TrimSpace(string(golden)))
			if err != nil {
				t.Fatal(err)
			}
			if string(wire) != string(published) {
				t.Errorf("wrote %x, want %x", wire, published)
			}
			got := want.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(published, got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, want) {
				t.Errorf("read %v, want %v", got, want)
			}
		})
	}
}
