package schemas_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec/codectest"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// symbol adds a symbol at the end of an enum.
func symbol(t testing.TB, schema, enum, name string) string {
	t.Helper()
	at := strings.Index(schema, `"type": "enum", "name": "`+enum+`"`)
	if at < 0 {
		t.Fatalf("there is no enum %s", enum)
	}
	end := strings.Index(schema[at:], `"]`)
	if end < 0 {
		t.Fatalf("enum %s has no symbols", enum)
	}
	return edit(t, schema, schema[at:at+end+2], schema[at:at+end]+`", "`+name+`"]`)
}

// field adds a field before the named one of a record.
func field(t testing.TB, schema, record, before, text string) string {
	t.Helper()
	at := strings.Index(schema, `"type": "record", "name": "`+record+`"`)
	if at < 0 {
		t.Fatalf("there is no record %s", record)
	}
	next := strings.Index(schema[at:], `{"name": "`+before+`"`)
	if next < 0 {
		t.Fatalf("record %s has no field %s", record, before)
	}
	return edit(t, schema, schema[at:at+next], schema[at:at+next]+text+", ")
}

// tomorrow returns two later versions of each schema, by topic: what must be
// possible for years.
func tomorrow(t testing.TB) map[string][]string {
	t.Helper()
	// A kind, in the middle of the record, and symbols of enums that rules have.
	r2 := symbol(t, schemas.RulesV1, "Kind", "later")
	r2 = field(t, r2, "ControlRecord", "tenant", `{"name": "later", "default": null, "doc": "Set when kind is later.", "type": ["null", {"type": "record", "name": "Later", "doc": "A later kind.", "fields": [
		{"name": "tenant", "type": "string", "default": "", "doc": "Tenant id; 1-128 characters."}, {"name": "units", "type": "long", "default": 0, "doc": "Units; 0 to 2^53-1."}]}]}`)
	r2 = symbol(t, r2, "Algorithm", "later")
	r2 = symbol(t, r2, "Dimension", "later")
	r2 = symbol(t, r2, "PeriodUnit", "later")
	// Fields: of a record in an array, of a selector, of a type used twice.
	r2 = field(t, r2, "FormerPeriod", "until", `{"name": "later_why", "type": "string", "default": "", "doc": "0-256 bytes."}`)
	r2 = field(t, r2, "Match", "networks", `{"name": "later_region", "type": "string", "default": "", "doc": "Region; 0-64 bytes."}`)
	r2 = field(t, r2, "Period", "alignment", `{"name": "later_offset_us", "type": "long", "default": 60, "doc": "Offset; microseconds, 0-60."}`)
	r3 := field(t, r2, "Grant", "reason", `{"name": "later_note", "type": "string", "default": "", "doc": "0-256 bytes."}`)
	r3 = symbol(t, r3, "Mode", "later")
	r3 = edit(t, r3, `"doc": "Display name; 0-256 bytes."`, `"doc": "Name that people read; 0-256 bytes."`)

	u2 := symbol(t, schemas.UsageV1, "Decision", "LATER")
	u2 = symbol(t, u2, "CounterKind", "later")
	u2 = field(t, u2, "Counter", "key", `{"name": "later_shard", "type": "int", "default": -1, "doc": "-1 to 9."}`)
	u2 = field(t, u2, "Upstream", "duration_us", `{"name": "later_attempts", "type": "int", "default": 1, "doc": "1-9."}`)
	u2 = field(t, u2, "UsageEvent", "refund_id", `{"name": "later_region", "type": "string", "default": "", "doc": "0-64 bytes."}`)
	u3 := field(t, u2, "UsageEvent", "gateway_id", `{"name": "later_notes", "type": {"type": "array", "items": "string"}, "default": [], "doc": "At most 9."}`)

	q2 := symbol(t, schemas.QuotaEventsV1, "EventType", "LATER")
	q2 = field(t, q2, "QuotaEvent", "arm", `{"name": "later_balance", "type": ["null", "long"], "default": null, "doc": "0 to 2^53-1."}`)
	q3 := field(t, q2, "QuotaEvent", "arm", `{"name": "later_mode", "default": "UNKNOWN", "doc": "Mode.", "type": {"type": "enum", "name": "LaterMode", "doc": "Modes.", "default": "UNKNOWN", "symbols": ["UNKNOWN", "enforce"]}}`)
	return map[string][]string{rulesv1.Topic: {r2, r3}, usagev1.Topic: {u2, u3}, quotaeventsv1.Topic: {q2, q3}}
}

// TestAllowedChanges guarantees that the changes README allows are allowed: by
// the house rules, and by all pairs of versions in both libraries.
func TestAllowedChanges(t *testing.T) {
	t.Parallel()

	later := tomorrow(t)
	for _, p := range topics(t) {
		history := versions(t, p.name)
		for _, next := range later[p.name] {
			for _, fault := range change(history, next) {
				t.Errorf("%s: %s", p.name, fault)
			}
			history = append(history, next)
		}
	}
}

// TestNewerReaders guarantees that tomorrow's readers read what is written
// today, with what they know and we do not at its default.
func TestNewerReaders(t *testing.T) {
	t.Parallel()

	later := tomorrow(t)
	for _, p := range topics(t) {
		for _, reader := range later[p.name] {
			for _, name := range p.names() {
				got, err := generic(reader, p.newest, p.samples[name].body)
				if err != nil {
					t.Errorf("%s %s: %v", p.name, name, err)
					continue
				}
				switch p.name {
				case usagev1.Topic:
					if got["later_region"] != "" {
						t.Errorf("%s: later_region is %v, want its default", name, got["later_region"])
					}
				case rulesv1.Topic:
					if b, ok := got["later"]; !ok || b != nil {
						t.Errorf("%s: later is %v, want null", name, b)
					}
				}
			}
		}
	}
}

// TestTodayReadsTomorrow guarantees that today's decoders read what tomorrow's
// writers write as long as they use nothing new, whole and unchanged.
func TestTodayReadsTomorrow(t *testing.T) {
	t.Parallel()

	later := tomorrow(t)
	for _, p := range topics(t) {
		for _, writer := range later[p.name] {
			for _, name := range p.names() {
				s := p.samples[name]
				// What today's writer wrote, read and written again by tomorrow's code.
				record, err := generic(writer, p.newest, s.body)
				if err != nil {
					t.Fatal(err)
				}
				body, err := codectest.Encode(writer, record)
				if err != nil {
					t.Fatal(err)
				}
				if slices.Equal(body, s.body) {
					t.Errorf("%s %s: tomorrow's bytes are today's, so this proves nothing", p.name, name)
				}
				got, err := p.read(t.Context(), writer, s.key, body)
				if err != nil {
					t.Errorf("%s %s: %v", p.name, name, err)
					continue
				}
				if back, err := codectest.Encode(p.newest, got); err != nil || !slices.Equal(back, s.body) {
					t.Errorf("%s %s was read differently: %+v (%v)", p.name, name, got, err)
				}
			}
		}
	}
}

// tomorrowsRule returns a rule as version 2 writes it, with a field changed.
func tomorrowsRule(change func(record, rule map[string]any)) map[string]any {
	rule := map[string]any{
		"mode": "enforce", "kind": "rate", "algorithm": "gcra", "subject": []any{"tenant"}, "wallet": "none",
		"limit": int64(5), "burst": int64(5), "window_us": int64(1), "meter": "m", "on_failure": "open",
	}
	record := map[string]any{"kind": "rule", "id": "x", "version": int64(8), "revision": int64(9), "changed_at": schemastest.Now, "rule": rule}
	change(record, rule)
	return record
}

// TestTooOldForRules guarantees what a reader does with a rule record that is
// too new for it: a kind it does not know is passed over, a rule of which it
// does not know a symbol or a required feature is set aside, and in each case
// the identity, version and revision are still there to be counted as seen.
func TestTooOldForRules(t *testing.T) {
	t.Parallel()

	v2 := tomorrow(t)[rulesv1.Topic][0]
	v3 := tomorrow(t)[rulesv1.Topic][1]
	tests := []struct {
		name   string
		writer string
		record map[string]any
		key    string
		kind   rulesv1.Kind
		want   error
	}{
		{"nothing new", v2, tomorrowsRule(func(_, _ map[string]any) {}), "rule/x", rulesv1.KindRule, nil},
		{"a kind", v2, map[string]any{"kind": "later", "id": "x", "version": 8, "revision": 9, "changed_at": schemastest.Now, "later": map[string]any{"tenant": "acme"}}, "later/x", rulesv1.KindUnknown, wire.ErrSkip},
		{"an algorithm", v2, tomorrowsRule(func(_, u map[string]any) { u["algorithm"] = "later" }), "rule/x", rulesv1.KindRule, wire.ErrSetAside},
		{"a dimension", v2, tomorrowsRule(func(_, u map[string]any) { u["subject"] = []any{"tenant", "later"} }), "rule/x", rulesv1.KindRule, wire.ErrSetAside},
		{"a mode", v3, tomorrowsRule(func(_, u map[string]any) { u["mode"] = "later" }), "rule/x", rulesv1.KindRule, wire.ErrSetAside},
		{"a period's unit, of which other bounds are broken too", v2, tomorrowsRule(func(_, u map[string]any) {
			u["kind"], u["algorithm"], u["burst"] = "quota", "quota", nil
			u["period"] = map[string]any{"unit": "later", "alignment": "calendar", "count": 5000}
		}), "rule/x", rulesv1.KindRule, wire.ErrSetAside},
		{"a selector, and a name in requires", v2, tomorrowsRule(func(r, u map[string]any) {
			u["match"] = map[string]any{"later_region": "eu"}
			r["requires"] = []any{"match.region"}
		}), "rule/x", rulesv1.KindRule, wire.ErrSetAside},
		{"a symbol that breaks no rule of another kind", v2, map[string]any{"kind": "plan", "id": "x", "version": 8, "revision": 9, "changed_at": schemastest.Now, "plan": map[string]any{"fee": map[string]any{"currency": "USD", "period": "later"}}}, "plan/x", rulesv1.KindPlan, wire.ErrSetAside},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			body, err := codectest.Encode(tt.writer, tt.record)
			if err != nil {
				t.Fatal(err)
			}
			d := rulesv1.NewDecoder(schemastest.IDs(rulesv1.Subject, tt.writer))
			got, err := d.Decode(t.Context(), []byte(tt.key), wire.Frame(nil, 1, body))
			if !errors.Is(err, tt.want) || errors.Is(err, wire.ErrPoison) {
				t.Errorf("Decode = %v, want %v", err, tt.want)
			}
			if got.Kind != tt.kind || got.ID != "x" || got.Version != 8 || got.Revision != 9 {
				t.Errorf("identity %s/%s version %d revision %d, want %s/x 8 9", got.Kind, got.ID, got.Version, got.Revision, tt.kind)
			}
			if tt.want != nil && (got.Rule != nil || got.Plan != nil) {
				t.Errorf("the record that cannot be applied is there: %+v", got)
			}
		})
	}
}

// TestFeatures guarantees that a reader which names a feature applies the
// records that require it, and sets aside those that require one more.
func TestFeatures(t *testing.T) {
	t.Parallel()

	decode := func(requires ...any) error {
		body, err := codectest.Encode(schemas.RulesV1, tomorrowsRule(func(r, _ map[string]any) { r["requires"] = requires }))
		if err != nil {
			t.Fatal(err)
		}
		d := rulesv1.NewDecoder(schemastest.IDs(rulesv1.Subject, schemas.RulesV1), "match.region")
		_, err = d.Decode(t.Context(), []byte("rule/x"), wire.Frame(nil, 1, body))
		return err
	}
	if err := decode("match.region"); err != nil {
		t.Errorf("a known feature: %v", err)
	}
	if err := decode("match.region", "match.planet"); !errors.Is(err, wire.ErrSetAside) {
		t.Errorf("an unknown feature: %v, want %v", err, wire.ErrSetAside)
	}
}

// TestTooOldForUsage guarantees that a usage event of a newer outcome or a newer
// kind of counter is read and not dropped: its numbers are right whatever it is.
func TestTooOldForUsage(t *testing.T) {
	t.Parallel()

	v2 := tomorrow(t)[usagev1.Topic][0]
	today := usagev1.AppendEvent(nil, schemastest.Ptr(schemastest.Decision()))
	record, err := generic(v2, schemas.UsageV1, today)
	if err != nil {
		t.Fatal(err)
	}
	record["decision"], record["algorithm"] = "LATER", "new_one"
	counters, ok := record["counters"].([]any)
	if !ok || len(counters) != 1 {
		t.Fatalf("counters are %v", record["counters"])
	}
	counter, ok := counters[0].(map[string]any)
	if !ok {
		t.Fatalf("the counter is %v", counters[0])
	}
	counter["kind"] = "later"
	body, err := codectest.Encode(v2, record)
	if err != nil {
		t.Fatal(err)
	}
	d := usagev1.NewDecoder(schemastest.IDs(usagev1.Subject, v2))
	e, err := d.Decode(t.Context(), []byte("acme"), wire.Frame(nil, 1, body))
	if err != nil {
		t.Fatal(err)
	}
	if e.Decision != usagev1.DecisionUnknown || e.Algorithm != "new_one" || len(e.Counters) != 1 ||
		e.Counters[0].Kind != usagev1.CounterKindUnknown || e.Counters[0].Consumed != 900 || e.Upstream.DurationUS != 18250 {
		t.Errorf("read %+v", e)
	}
}

// TestTooOldForQuotaEvents guarantees that an event of a newer type is passed
// over without alarm.
func TestTooOldForQuotaEvents(t *testing.T) {
	t.Parallel()

	v2 := tomorrow(t)[quotaeventsv1.Topic][0]
	body, err := codectest.Encode(v2, map[string]any{
		"event_id": "9f86d081884c7d659a2feaa0c55ad015", "type": "LATER", "tenant_id": "acme", "ts": int64(5),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := quotaeventsv1.NewDecoder(schemastest.IDs(quotaeventsv1.Subject, v2))
	if e, err := d.Decode(t.Context(), []byte("acme"), wire.Frame(nil, 1, body)); !errors.Is(err, wire.ErrSkip) || e != (quotaeventsv1.Event{}) {
		t.Errorf("Decode = %+v, %v, want %v", e, err, wire.ErrSkip)
	}
}
