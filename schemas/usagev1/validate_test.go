package usagev1_test

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

const exact = 1<<53 - 1

func newDecoder() *usagev1.Decoder {
	return usagev1.NewDecoder(schemastest.IDs(usagev1.Subject, schemas.UsageV1))
}

type ev = *usagev1.Event

func text(n int) string { return strings.Repeat("x", n) }

var v7 = schemastest.UUID("01998d3a-7777-7c11-9a52-3f0d6be0c1a7")

// faults are samples with one field changed. The error must name the field;
// none: the change is within bounds.
var faults = []struct {
	sample string
	field  string
	change func(ev)
}{
	{"decision", "event_id", func(e ev) { e.EventID = usagev1.UUID{} }},
	{"decision", "event_id", func(e ev) { e.EventID[6] = 0x4c }},
	{"decision", "event_id", func(e ev) { e.EventID[8] = 0 }},
	{"refund", "decision_id", func(e ev) { e.DecisionID = usagev1.UUID{} }},
	{"decision", "decision_id", func(e ev) { e.DecisionID = v7 }},
	{"decision", "", func(e ev) {
		e.Decision, e.DecisionID = usagev1.DecisionSettle, schemastest.UUID("01998d3a-5e43-7c11-9a52-000000000000")
	}},
	{"decision", "", func(e ev) { e.Decision, e.EventID, e.RefundID = usagev1.DecisionUnknown, v7, "x" }},
	{"decision", "ts", func(e ev) { e.TS = math.MaxInt64 }},
	{"decision", "stream_id", func(e ev) { e.StreamID = usagev1.UUID{} }},
	{"decision", "sequence", func(e ev) { e.Sequence = 0 }},
	{"decision", "sequence", func(e ev) { e.Sequence = exact + 1 }},
	{"decision", "status", func(e ev) { e.Status = 99 }},
	{"decision", "status", func(e ev) { e.Status = 600 }},
	{"decision", "", func(e ev) { e.Status = 499 }},
	{"decision", "tenant", func(e ev) { e.Tenant = text(257) }},
	{"decision", "tenant", func(e ev) { e.Tenant = "\xff" }},
	{"decision", "", func(e ev) { e.Tenant, e.ClientAddress = "", "" }},
	{"decision", "application", func(e ev) { e.Application = text(257) }},
	{"decision", "user", func(e ev) { e.User = text(257) }},
	{"decision", "api_key", func(e ev) { e.APIKey = text(257) }},
	{"decision", "api_key_hash", func(e ev) { e.APIKeyHash = make([]byte, 32) }},
	{"decision", "", func(e ev) { e.APIKeyHash = nil }},
	{"decision", "client_address", func(e ev) { e.ClientAddress = text(67) }},
	{"decision", "service", func(e ev) { e.Service = text(257) }},
	{"decision", "endpoint", func(e ev) { e.Endpoint = text(257) }},
	{"decision", "method", func(e ev) { e.Method = text(33) }},
	{"decision", "path_template", func(e ev) { e.PathTemplate = text(1025) }},
	{"decision", "rule_id", func(e ev) { e.RuleID = text(129) }},
	{"decision", "", func(e ev) { e.RuleID = "" }},
	{"decision", "algorithm", func(e ev) { e.Algorithm = text(33) }},
	{"decision", "cost", func(e ev) { e.Cost = -1 }},
	{"decision", "latency_us", func(e ev) { e.LatencyUS = exact + 1 }},
	{"decision", "gateway_id", func(e ev) { e.GatewayID = text(129) }},
	{"decision", "rules_version", func(e ev) { e.RulesVersion = -1 }},
	{"decision", "upstream.status", func(e ev) { e.Upstream.Status = 1 }},
	{"decision", "upstream.duration_us", func(e ev) { e.Upstream.DurationUS = -1 }},
	{"decision", "counters", func(e ev) { e.Counters = slices.Repeat(e.Counters, 65) }},
	{"decision", "", func(e ev) { e.Counters = slices.Repeat(e.Counters, 64) }},
	{"six-rules", "counters[1].key", func(e ev) { e.Counters[1].Key = "" }},
	{"six-rules", "counters[2].key", func(e ev) { e.Counters[2].Key = text(2049) }},
	{"decision", "counters[0].period_start", func(e ev) { e.Counters[0].PeriodStart = math.MinInt64 }},
	{"decision", "counters[0].period_end", func(e ev) { e.Counters[0].PeriodEnd = math.MaxInt64 }},
	{"decision", "counters[0].period_end", func(e ev) { e.Counters[0].PeriodEnd = e.Counters[0].PeriodStart }},
	{"decision", "counters[0].limit", func(e ev) { e.Counters[0].Limit = -1 }},
	{"decision", "", func(e ev) { e.Counters[0].Limit = usagev1.Unlimited }},
	{"decision", "counters[0].units", func(e ev) { e.Counters[0].Units = -exact - 1 }},
	{"decision", "counters[0].consumed", func(e ev) { e.Counters[0].Consumed = exact + 1 }},
	{"degraded", "counters[0].consumed", func(e ev) { e.Counters[0].Consumed = 1 }},
	{"decision", "counters[0].refunded", func(e ev) { e.Counters[0].Refunded = e.Counters[0].Consumed + 1 }},
	{"decision", "", func(e ev) { e.Counters[0].Kind, e.Counters[0].Mode = usagev1.CounterKindUnknown, usagev1.ModeUnknown }},
	{"decision", "counters[0].meter", func(e ev) { e.Counters[0].Meter = "API" }},
	{"decision", "counters[0].rule_id", func(e ev) { e.Counters[0].RuleID = "" }},
	{"decision", "counters[0].rule_version", func(e ev) { e.Counters[0].RuleVersion = 0 }},
	{"decision", "counters[0].thresholds_percent", func(e ev) { e.Counters[0].ThresholdsPercent = make([]int32, 17) }},
	{"decision", "counters[0].thresholds_percent[1]", func(e ev) { e.Counters[0].ThresholdsPercent[1] = 101 }},
	{"decision", "counters[0].thresholds_left", func(e ev) { e.Counters[0].ThresholdsLeft = make([]int64, 17) }},
	{"six-rules", "counters[2].thresholds_left[1]", func(e ev) { e.Counters[2].ThresholdsLeft[1] = 501 }},
	{"refund", "refund_id", func(e ev) { e.RefundID = "" }},
	{"refund", "refund_id", func(e ev) { e.RefundID = text(129) }},
	{"decision", "refund_id", func(e ev) { e.RefundID = "f-1" }},
	{"decision", "labels_json", func(e ev) { e.LabelsJSON = `{"a":"` + text(8192) + `"}` }},
	{"decision", "labels_json", func(e ev) { e.LabelsJSON = "null" }},
	{"decision", "labels_json", func(e ev) { e.LabelsJSON = `{"a":1}` }},
	{"decision", "labels_json", func(e ev) { e.LabelsJSON = `{"a":"b"}{` }},
	{"decision", "", func(e ev) { e.LabelsJSON = `{}` }},
}

// TestValidate guarantees that an event is held to every bound of its schema's
// docs, when it is checked and when it is read, and that the error names the
// field.
func TestValidate(t *testing.T) {
	t.Parallel()

	for _, f := range faults {
		e, ok := schemastest.Usage()[f.sample]
		if !ok {
			t.Fatalf("there is no sample %s", f.sample)
		}
		f.change(&e)
		key := []byte(usagev1.Key(e.Tenant, e.ClientAddress))
		_, read := newDecoder().Decode(t.Context(), key, wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e)))
		for _, err := range []error{e.Validate(), read} {
			var fe *wire.FieldError
			switch {
			case f.field == "" && err != nil && !strings.Contains(err.Error(), "want at most 65536"):
				t.Errorf("%s, changed within bounds: %v", f.sample, err)
			case f.field != "" && (!errors.As(err, &fe) || fe.Field != f.field || !errors.Is(err, wire.ErrPoison)):
				t.Errorf("%s, changed in %s: %v, want an error of that field", f.sample, f.field, err)
			}
		}
	}
}

// TestValidateReach guarantees that the table above breaks the bounds of every
// field that has any, so that none is forgotten when a schema grows.
func TestValidateReach(t *testing.T) {
	t.Parallel()

	// An unknown symbol is no fault of an event: see TestTooOldForUsage.
	broken := map[string]bool{"decision": true, "counters.kind": true, "counters.mode": true}
	index := regexp.MustCompile(`\[\d+\]`)
	for _, f := range faults {
		broken[index.ReplaceAllString(f.field, "")] = true
	}
	paths, err := schemastest.Bounded(schemas.UsageV1)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if !broken[path] {
			t.Errorf("no case breaks the bounds of %s", path)
		}
	}
}

// TestDecodeWants guarantees that an event under another's key is poison, for it
// is in the wrong partition, and that an anonymous one goes by its address.
func TestDecodeWants(t *testing.T) {
	t.Parallel()

	e := schemastest.Decision()
	value := wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e))
	for _, key := range []string{"", "other", e.ClientAddress} {
		if got, err := newDecoder().Decode(t.Context(), []byte(key), value); !errors.Is(err, wire.ErrPoison) || !cmp.Equal(got, usagev1.Event{}) {
			t.Errorf("under key %q: %+v, %v, want %v", key, got, err, wire.ErrPoison)
		}
	}
	e.Tenant = ""
	value = wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e))
	if got, err := newDecoder().Decode(t.Context(), []byte(e.ClientAddress), value); err != nil || !cmp.Equal(got, e) {
		t.Errorf("anonymous: %+v, %v", got, err)
	}
}

// TestUUID guarantees that an id reads as RFC 9562 spells it.
func TestUUID(t *testing.T) {
	t.Parallel()

	const want = "01998d3a-5e43-7c11-9a52-3f0d6be0c1a7"
	if got := schemastest.UUID(want).String(); got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
}
