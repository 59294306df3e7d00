package topics

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// TestDocument guarantees which field of an event goes where, and that every field
// of a document comes from somewhere.
func TestDocument(t *testing.T) {
	t.Parallel()

	got := document(&usagev1.Event{
		EventID: usagev1.UUID{1}, DecisionID: usagev1.UUID{2}, StreamID: usagev1.UUID{3}, TS: 4, Sequence: 5,
		Decision: usagev1.DecisionShadowDeny, Status: 6,
		Tenant: "tenant", Application: "application", User: "user", APIKey: "key", APIKeyHash: []byte("hash"), ClientAddress: "address",
		Service: "service", Endpoint: "endpoint", Method: "method", PathTemplate: "path", RuleID: "rule", Algorithm: "algorithm",
		Cost: 7, LatencyUS: 8, GatewayID: "gateway", RulesVersion: 9, Upstream: &usagev1.Upstream{Status: 10, DurationUS: 11},
		RefundID: "refund", LabelsJSON: "labels",
		Counters: []usagev1.Counter{{
			Key: "counter", Observed: true, PeriodStart: 12, PeriodEnd: 13, Limit: 14, Units: 15, Consumed: 16, Refunded: 17,
			Kind: usagev1.CounterKindWallet, Mode: usagev1.ModeShadow, Soft: true, Meter: "meter", RuleID: "winner", RuleVersion: 18,
			ThresholdsPercent: []int32{80}, ThresholdsLeft: []int64{10},
		}},
	})
	want := usagedoc.Event{
		EventID: [16]byte{1}, DecisionID: [16]byte{2}, StreamID: [16]byte{3}, TS: 4, Sequence: 5, Decision: "SHADOW_DENY", Status: 6,
		Tenant: "tenant", Application: "application", User: "user", APIKey: "key", APIKeyHash: []byte("hash"), ClientAddress: "address",
		Service: "service", Endpoint: "endpoint", Method: "method", PathTemplate: "path", RuleID: "rule", Algorithm: "algorithm",
		Cost: 7, LatencyUS: 8, GatewayID: "gateway", RulesVersion: 9, Upstream: &usagedoc.Upstream{Status: 10, DurationUS: 11},
		RefundID: "refund", Labels: "labels",
		Counters: []usagedoc.Counter{{
			Key: "counter", Meter: "meter", Kind: "wallet", RuleID: "winner", Mode: "shadow", Soft: true,
			Limit: 14, Units: 15, Consumed: 16, Refunded: 17, Observed: true, PeriodStart: 12, PeriodEnd: 13,
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
	for _, v := range []reflect.Value{reflect.ValueOf(got), reflect.ValueOf(got.Counters[0]), reflect.ValueOf(*got.Upstream)} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s of %s is empty: the case does not try it", v.Type().Field(i).Name, v.Type().Name())
			}
		}
	}
}
