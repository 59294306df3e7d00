package schemas_test

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock.dev/schemas"
)

// edit replaces each first string of a pair with the second, once, and fails
// when it is not there or the result is not JSON.
func edit(t testing.TB, s string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(s, pairs[i]) {
			t.Fatalf("there is no %q to replace", pairs[i])
		}
		s = strings.Replace(s, pairs[i], pairs[i+1], 1)
	}
	if !json.Valid([]byte(s)) {
		t.Fatalf("no JSON any more: %s", s)
	}
	return s
}

// TestHouseRulesRefuse guarantees that the checks above still check: each fault
// that a developer may make is refused, with these words. The registry column
// says whether hamba and twmb refuse it too; where they do not, the house rule
// is all there is.
func TestHouseRulesRefuse(t *testing.T) {
	t.Parallel()

	r, u, q := schemas.RulesV1, schemas.UsageV1, schemas.QuotaEventsV1
	cost := `{"name": "cost", "type": "long", "default": 0`
	tests := []struct {
		name     string
		old, new string
		want     string
		registry bool
	}{
		{"a field without a default is added", q, edit(t, q, `{"name": "arm"`, `{"name": "x", "type": "long", "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.x: no default", true},
		{"a field without a default is removed", q, edit(t, q, `{"name": "tenant_id", "type": "string", "doc": "Tenant; 1-256 bytes."},`, ``), "QuotaEvent.tenant_id: gone", true},
		{"a field with a default is removed", u, edit(t, u, `{"name": "gateway_id", "type": "string", "default": "", "doc": "Gateway instance; 0-128 bytes."},`, ``), "UsageEvent.gateway_id: gone", false},
		{"a field is renamed", u, edit(t, u, `"name": "cost"`, `"name": "price"`), "UsageEvent.cost: gone", false},
		{"a field is renamed with an alias", u, edit(t, u, `"name": "cost"`, `"name": "price", "aliases": ["cost"]`), "UsageEvent.price: aliases", false},
		{"a default is changed", u, edit(t, u, cost, `{"name": "cost", "type": "long", "default": 1`), "UsageEvent.cost: default changed", false},
		{"a default is taken away", u, edit(t, u, cost, `{"name": "cost", "type": "long"`), "UsageEvent.cost: default changed", false},
		{"a default is given to a permanent field", u, edit(t, u, `{"name": "sequence", "type": "long"`, `{"name": "sequence", "type": "long", "default": 0`), "UsageEvent.sequence: default changed", false},
		{"micros become millis", u, edit(t, u, `"timestamp-micros"}, "doc": "When it was decided; micro`, `"timestamp-millis"}, "doc": "When it was decided; milli`), "UsageEvent.ts: type changed", false},
		{"a logical type is taken away", u, edit(t, u, `{"type": "long", "logicalType": "timestamp-micros"}, "doc": "When it was decided`, `"long", "doc": "When it was decided`), "UsageEvent.ts: type changed", false},
		{"a string becomes bytes", u, edit(t, u, `{"name": "labels_json", "type": "string"`, `{"name": "labels_json", "type": "bytes"`), "UsageEvent.labels_json: type changed", false},
		{"a string becomes a decimal", r, edit(t, r, `{"name": "unit_price", "type": "string", "default": "0"`, `{"name": "unit_price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 12}, "default": ""`), "Overage.unit_price: decimal", false},
		{"an int becomes a long", u, edit(t, u, `{"name": "status", "type": "int"`, `{"name": "status", "type": "long"`), "UsageEvent.status: type changed", true},
		{"a long becomes nullable", u, edit(t, u, cost, `{"name": "cost", "type": ["null", "long"], "default": null`), "UsageEvent.cost: type changed", true},
		{"a symbol is removed", u, edit(t, u, `"DEGRADED_DENY", `, ``), "Decision: symbols are only appended", false},
		{"symbols are reordered", u, edit(t, u, `"ALLOW", "DENY"`, `"DENY", "ALLOW"`), "Decision: symbols are only appended", false},
		{"a symbol is put in the middle", u, edit(t, u, `"ALLOW", "DENY"`, `"ALLOW", "QUEUED", "DENY"`), "Decision: symbols are only appended", false},
		{"an enum's default is taken away", u, edit(t, u, `"doc": "Outcomes. Symbols are only ever appended.", "default": "UNKNOWN",`, `"doc": "Outcomes.",`), "Decision: symbols are only appended, and the default stays", false},
		{"an enum begins with another symbol", q, edit(t, q, `["UNKNOWN", "THRESHOLD_REACHED"`, `["THRESHOLD_REACHED", "UNKNOWN"`), "EventType: enum without UNKNOWN first", false},
		{"a record is renamed with an alias", r, edit(t, r, `"name": "Lease"`, `"name": "Reservation", "aliases": ["Lease"]`), "Lease: gone", true},
		{"the record is moved to another namespace", u, edit(t, u, `dev.penstock.usage.v1`, `dev.penstock.usage.v2`), "another name or namespace", false},
		{"the namespace is somebody else's", u, edit(t, u, `dev.penstock.usage.v1`, `org.example`), "namespace is not of dev.penstock", false},
		{"an inner type is moved to another namespace", u, edit(t, u, `"name": "Upstream",`, `"name": "Upstream", "namespace": "dev.penstock.x",`), "Upstream: namespace of its own", false},
		{"a fixed changes its size", u, edit(t, u, `"size": 16`, `"size": 20`), "Uuid: gone, or another type", true},
		{"a field has no doc", q, edit(t, q, `"default": 0, "doc": "Units consumed net of refunds at the crossing; 0 to 2^53-1."`, `"default": 0`), "QuotaEvent.consumed: no doc", false},
		{"a type has no doc", u, edit(t, u, `"doc": "An upstream's answer.", `, ``), "Upstream: no doc", false},
		{"a field has no bounds", q, edit(t, q, `"doc": "What is counted; 1-64 of a-z 0-9 . _ -."`, `"doc": "What is counted."`), "QuotaEvent.meter: no bounds", false},
		{"a time has no unit", q, edit(t, q, `"doc": "When that decision was made; milliseconds since 1970 UTC."`, `"doc": "When, since 1970."`), "QuotaEvent.ts: the unit of the time", false},
		{"a time has the other unit", q, edit(t, q, `"doc": "When that decision was made; milliseconds since 1970 UTC."`, `"doc": "When; microseconds since 1970 UTC."`), "QuotaEvent.ts: the unit of the time", false},
		{"a duration is not in microseconds", u, edit(t, u, `"Time the decision took; microseconds, 0`, `"Time the decision took; milliseconds, 0`), "UsageEvent.latency_us: named _us", false},
		{"a map is added", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": {"type": "map", "values": "string"}, "default": {}, "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: type map", false},
		{"a double is added", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": "double", "default": 0, "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: type double", false},
		{"a decimal is added", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "default": "", "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: decimal", false},
		{"a union of two types is added", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": ["null", "string", "long"], "default": null, "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: a union that is not", false},
		{"null comes last", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": ["long", "null"], "default": 0, "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: a union that is not", false},
		{"a nullable field has another default", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": ["null", "long"], "default": 5, "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: a union that is not", true},
		{"a union is put into an array", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": {"type": "array", "items": ["null", "long"]}, "default": [], "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: union in an array", false},
		{"arrays are nested", q, edit(t, q, `{"name": "arm"`, `{"name": "m", "type": {"type": "array", "items": {"type": "array", "items": "long"}}, "default": [], "doc": "0-9"}, {"name": "arm"`), "QuotaEvent.m: nested arrays", false},
		{"a short name is used twice", u, edit(t, u, `"name": "CounterKind"`, `"name": "Mode"`), "Mode: name used twice", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			faults := append(lint(tt.new), lintChange(tt.old, tt.new)...)
			if !strings.Contains(strings.Join(faults, "\n"), tt.want) {
				t.Errorf("the house refuses it with %q, want %q", faults, tt.want)
			}
			if got := incompatible([]string{tt.old, tt.new}) != nil; got != tt.registry {
				t.Errorf("a registry refuses it: %t, want %t: %v", got, tt.registry, incompatible([]string{tt.old, tt.new}))
			}
		})
	}
}

// TestAllPairsAreChecked guarantees that compatibility is checked beyond the
// version before: a field that had a default and lost it passes from each
// version to the next, and only the step from the first to the third is refused.
func TestAllPairsAreChecked(t *testing.T) {
	t.Parallel()

	v1 := schemas.QuotaEventsV1
	v2 := edit(t, v1, `{"name": "arm"`, `{"name": "f", "type": "long", "default": 5, "doc": "0-9"}, {"name": "arm"`)
	v3 := edit(t, v2, `"type": "long", "default": 5`, `"type": "long"`)
	for _, pair := range [][]string{{v1, v2}, {v2, v3}} {
		if faults := incompatible(pair); faults != nil {
			t.Errorf("neighbours are refused: %v", faults)
		}
	}
	faults := strings.Join(incompatible([]string{v1, v2, v3}), "\n")
	if !strings.Contains(faults, "version 3 cannot read version 1") {
		t.Errorf("all three: %q, want version 3 refused for version 1", faults)
	}
}
