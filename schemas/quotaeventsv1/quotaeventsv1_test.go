package quotaeventsv1_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec/codectest"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/wire"
)

const exact = 1<<53 - 1

func newDecoder() *quotaeventsv1.Decoder {
	return quotaeventsv1.NewDecoder(schemastest.IDs(quotaeventsv1.Subject, schemas.QuotaEventsV1))
}

type ev = *quotaeventsv1.Event

func text(n int) string { return strings.Repeat("x", n) }

// faults are samples with one field changed. The error must name the field;
// none: the change is within bounds.
var faults = []struct {
	sample string
	field  string
	change func(ev)
}{
	{"threshold", "event_id", func(e ev) { e.EventID = "" }},
	{"threshold", "event_id", func(e ev) { e.EventID = strings.ToUpper(e.EventID) }},
	{"threshold", "event_id", func(e ev) { e.EventID += "0" }},
	{"threshold", "type", func(e ev) { e.Type = "" }},
	{"threshold", "type", func(e ev) { e.Type = quotaeventsv1.EventTypeUnknown }},
	{"threshold", "tenant_id", func(e ev) { e.TenantID = "" }},
	{"threshold", "tenant_id", func(e ev) { e.TenantID = text(257) }},
	{"threshold", "rule_id", func(e ev) { e.RuleID = "" }},
	{"threshold", "meter", func(e ev) { e.Meter = "" }},
	{"threshold", "counter_key", func(e ev) { e.CounterKey = "" }},
	{"threshold", "counter_key", func(e ev) { e.CounterKey = text(2049) }},
	{"threshold", "period_start", func(e ev) { e.PeriodStart = schemastest.Ptr(int64(math.MinInt64)) }},
	{"threshold", "period_end", func(e ev) { e.PeriodStart = nil }},
	{"threshold", "period_end", func(e ev) { e.PeriodEnd = nil }},
	{"threshold", "period_end", func(e ev) { e.PeriodEnd = e.PeriodStart }},
	{"threshold", "threshold_percent", func(e ev) { e.ThresholdPercent = schemastest.Ptr(int32(0)) }},
	{"threshold", "threshold_percent", func(e ev) { e.ThresholdPercent = nil }},
	{"threshold", "threshold_percent", func(e ev) { e.ThresholdLeft = schemastest.Ptr(int64(1)) }},
	{"exhausted", "threshold_percent", func(e ev) { e.ThresholdPercent = schemastest.Ptr(int32(99)) }},
	{"left", "threshold_left", func(e ev) { e.ThresholdLeft = schemastest.Ptr(int64(-1)) }},
	{"left", "", func(e ev) { e.ThresholdLeft = schemastest.Ptr(int64(0)) }},
	{"threshold", "limit", func(e ev) { e.Limit = 0 }},
	{"threshold", "limit", func(e ev) { e.Limit = exact }},
	{"threshold", "consumed", func(e ev) { e.Consumed = -1 }},
	{"threshold", "arm", func(e ev) { e.Arm = 0 }},
	{"threshold", "cause_decision_id", func(e ev) { e.CauseDecisionID = "" }},
	{"threshold", "cause_decision_id", func(e ev) { e.CauseDecisionID = strings.Repeat("0", 36) }},
	{"threshold", "ts", func(e ev) { e.TS = math.MaxInt64 }},
}

// TestValidate guarantees that an event is held to every bound of its schema's
// docs, that the error names the field, that an event outside them is not
// written, and that the table leaves out no field.
func TestValidate(t *testing.T) {
	t.Parallel()

	broken := map[string]bool{}
	for _, f := range faults {
		broken[f.field] = true
		e, ok := schemastest.QuotaEvents()[f.sample]
		if !ok {
			t.Fatalf("there is no sample %s", f.sample)
		}
		f.change(&e)
		_, err := quotaeventsv1.AppendEvent(nil, &e)
		var fe *wire.FieldError
		if f.field == "" && err != nil {
			t.Errorf("%s, changed within bounds: %v", f.sample, err)
		}
		if f.field != "" && (!errors.As(err, &fe) || fe.Field != f.field || !errors.Is(err, wire.ErrPoison)) {
			t.Errorf("%s, changed in %s: %v, want an error of that field", f.sample, f.field, err)
		}
	}
	paths, err := schemastest.Bounded(schemas.QuotaEventsV1)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if !broken[path] {
			t.Errorf("no case breaks the bounds of %s", path)
		}
	}
}

// TestDecodeWants guarantees that bytes which break a bound are poison when they
// are read, whoever wrote them, and so is an event under another tenant's key.
func TestDecodeWants(t *testing.T) {
	t.Parallel()

	e := schemastest.QuotaEvents()["threshold"]
	e.Arm = 0
	body, err := codectest.Encode(schemas.QuotaEventsV1, &e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newDecoder().Decode(t.Context(), []byte("acme"), wire.Frame(nil, 1, body)); !errors.Is(err, wire.ErrPoison) {
		t.Errorf("an event without an arm: %v, want %v", err, wire.ErrPoison)
	}
	e.Arm = 1
	if body, err = quotaeventsv1.AppendEvent(nil, &e); err != nil {
		t.Fatal(err)
	}
	if _, err := newDecoder().Decode(t.Context(), []byte("other"), wire.Frame(nil, 1, body)); !errors.Is(err, wire.ErrPoison) {
		t.Errorf("an event under another key: %v, want %v", err, wire.ErrPoison)
	}
}

// TestRoundTrip guarantees that whatever valid event is written is the event
// that is read.
func TestRoundTrip(t *testing.T) {
	t.Parallel()

	d := newDecoder()
	rapid.Check(t, func(t *rapid.T) {
		want := schemastest.QuotaEvents()[rapid.SampledFrom([]string{"threshold", "left", "exhausted", "overdrawn", "replenished"}).Draw(t, "sample")]
		want.TenantID = rapid.StringN(1, 30, 256).Draw(t, "tenant_id")
		want.CounterKey = rapid.StringN(1, 30, 2048).Draw(t, "counter_key")
		want.Limit = rapid.Int64Range(1, exact-1).Draw(t, "limit")
		want.Consumed = rapid.Int64Range(0, exact).Draw(t, "consumed")
		want.Arm = rapid.Int64Range(1, exact).Draw(t, "arm")
		body, err := quotaeventsv1.AppendEvent(nil, &want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Decode(context.Background(), []byte(quotaeventsv1.Key(want.TenantID)), wire.Frame(nil, 1, body))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("read differently (-want +got):\n%s", diff)
		}
	})
}

// FuzzDecodeQuotaEvents guarantees that any bytes under any key are an event,
// skipped or poison: never a panic, never an error that is retried for ever.
// What is an event is within its bounds, and is written as it was read.
func FuzzDecodeQuotaEvents(f *testing.F) {
	files, err := filepath.Glob("../testdata/quota-events.v1/*/*.bin")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("acme"), body)
	}
	d := newDecoder()
	f.Fuzz(func(t *testing.T, key, body []byte) {
		e, err := d.Decode(t.Context(), key, wire.Frame(nil, 1, body))
		if err != nil {
			if !errors.Is(err, wire.ErrPoison) && !errors.Is(err, wire.ErrSkip) || e != (quotaeventsv1.Event{}) {
				t.Fatalf("%v, and %+v", err, e)
			}
			return
		}
		again, err := quotaeventsv1.AppendEvent(nil, &e)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := d.Decode(t.Context(), key, wire.Frame(nil, 1, again))
		if err != nil || !cmp.Equal(back, e) {
			t.Fatalf("written again, it is read differently (%v): %s", err, cmp.Diff(e, back))
		}
		if more, err := quotaeventsv1.AppendEvent(nil, &back); err != nil || !bytes.Equal(more, again) {
			t.Fatalf("written twice, the bytes differ (%v)", err)
		}
	})
}
