package usagev1_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock.dev/schemas"
	"penstock.dev/schemas/internal/codec"
	"penstock.dev/schemas/internal/codec/codectest"
	"penstock.dev/schemas/internal/schemastest"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// event draws an event of which every field may have any value that Go allows,
// of at most 8 counters.
func event(t *rapid.T) usagev1.Event {
	long := rapid.Int64()
	edge := rapid.Map(rapid.SampledFrom([]int{63, 64, 65, 8191, 8192, 8193}), func(n int) string { return strings.Repeat("x", n) })
	text := rapid.OneOf(rapid.StringN(0, 20, -1), edge) // edges of a length's bytes
	id := rapid.Custom(func(t *rapid.T) usagev1.UUID {
		return usagev1.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	})
	upstream := rapid.Custom(func(t *rapid.T) usagev1.Upstream {
		return usagev1.Upstream{Status: rapid.Int32().Draw(t, "status"), DurationUS: long.Draw(t, "duration_us")}
	})
	counter := rapid.Custom(func(t *rapid.T) usagev1.Counter {
		return usagev1.Counter{
			Key: text.Draw(t, "key"), Observed: rapid.Bool().Draw(t, "observed"),
			PeriodStart: long.Draw(t, "period_start"), PeriodEnd: long.Draw(t, "period_end"),
			Limit: long.Draw(t, "limit"), Units: long.Draw(t, "units"),
			Consumed: long.Draw(t, "consumed"), Refunded: long.Draw(t, "refunded"),
			Kind:  usagev1.CounterKind(rapid.IntRange(0, 2).Draw(t, "kind")),
			Mode:  usagev1.Mode(rapid.IntRange(0, 2).Draw(t, "mode")),
			Soft:  rapid.Bool().Draw(t, "soft"),
			Meter: text.Draw(t, "meter"), RuleID: text.Draw(t, "rule_id"), RuleVersion: long.Draw(t, "rule_version"),
			ThresholdsPercent: rapid.SliceOfN(rapid.Int32(), 0, 16).Draw(t, "thresholds_percent"),
			ThresholdsLeft:    rapid.SliceOfN(long, 0, 16).Draw(t, "thresholds_left"),
		}
	})
	return usagev1.Event{
		EventID: id.Draw(t, "event_id"), DecisionID: id.Draw(t, "decision_id"), TS: long.Draw(t, "ts"),
		StreamID: id.Draw(t, "stream_id"), Sequence: long.Draw(t, "sequence"),
		Decision: usagev1.Decision(rapid.IntRange(0, 8).Draw(t, "decision")), Status: rapid.Int32().Draw(t, "status"),
		Tenant: text.Draw(t, "tenant"), Application: text.Draw(t, "application"), User: text.Draw(t, "user"), APIKey: text.Draw(t, "api_key"),
		APIKeyHash:    rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "api_key_hash"),
		ClientAddress: text.Draw(t, "client_address"), Service: text.Draw(t, "service"), Endpoint: text.Draw(t, "endpoint"),
		Method: text.Draw(t, "method"), PathTemplate: text.Draw(t, "path_template"),
		RuleID: text.Draw(t, "rule_id"), Algorithm: text.Draw(t, "algorithm"),
		Cost: long.Draw(t, "cost"), LatencyUS: long.Draw(t, "latency_us"),
		GatewayID: text.Draw(t, "gateway_id"), RulesVersion: long.Draw(t, "rules_version"),
		Upstream: rapid.Ptr(upstream, true).Draw(t, "upstream"),
		Counters: rapid.SliceOfN(counter, 0, 8).Draw(t, "counters"),
		RefundID: text.Draw(t, "refund_id"), LabelsJSON: text.Draw(t, "labels_json"),
	}
}

// TestAppendEventAgrees guarantees that the encoder written by hand is an Avro
// encoder: for any event, its bytes are those of hamba and of twmb, also when
// the rules' part of each counter was encoded ahead.
func TestAppendEventAgrees(t *testing.T) {
	t.Parallel()

	hamba, err := codec.NewEncoder(schemas.UsageV1)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		e := event(t)
		got := usagev1.AppendEvent([]byte("before"), &e)
		got, found := bytes.CutPrefix(got, []byte("before"))
		if !found {
			t.Fatal("what was in dst is gone")
		}
		if want, err := hamba.Append(nil, &e); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("hamba (%v):\n got %x\nwant %x", err, got, want)
		}
		if want, err := codectest.Encode(schemas.UsageV1, &e); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("twmb (%v):\n got %x\nwant %x", err, got, want)
		}
		for i := range e.Counters {
			e.Counters[i].Encoded = usagev1.RuleTail(nil, &e.Counters[i])
		}
		if ahead := usagev1.AppendEvent(nil, &e); !bytes.Equal(got, ahead) {
			t.Fatalf("with rule tails %x, want %x", ahead, got)
		}
	})
}

// TestAppendEventOfNoSymbol guarantees that a number which is no symbol does not
// spoil the bytes that follow it: it is written as UNKNOWN.
func TestAppendEventOfNoSymbol(t *testing.T) {
	t.Parallel()

	e := schemastest.Decision()
	e.Decision, e.Counters[0].Kind, e.Counters[0].Mode = 200, 3, 255
	want := schemastest.Decision()
	want.Decision, want.Counters[0].Kind, want.Counters[0].Mode = 0, 0, 0
	if got := usagev1.AppendEvent(nil, &e); !bytes.Equal(got, usagev1.AppendEvent(nil, &want)) {
		t.Errorf("got %x", got)
	}
	if s := usagev1.Decision(200).String(); s != "200" {
		t.Errorf("it reads %q, want its number", s)
	}
}

// TestAppendEventAllocates guarantees that encoding a decision allocates
// nothing, with and without rule tails.
func TestAppendEventAllocates(t *testing.T) {
	buf := make([]byte, 0, 4096)
	for name, e := range schemastest.Usage() {
		if n := testing.AllocsPerRun(100, func() { buf = usagev1.AppendEvent(buf[:0], &e) }); n != 0 {
			t.Errorf("%s allocates %v times, want never", name, n)
		}
		for i := range e.Counters {
			e.Counters[i].Encoded = usagev1.RuleTail(nil, &e.Counters[i])
		}
		if n := testing.AllocsPerRun(100, func() { buf = usagev1.AppendEvent(buf[:0], &e) }); n != 0 {
			t.Errorf("%s with rule tails allocates %v times, want never", name, n)
		}
	}
}

// TestRoundTrip guarantees that whatever event keeps its bounds is read as it
// was written.
func TestRoundTrip(t *testing.T) {
	t.Parallel()

	d := newDecoder()
	rapid.Check(t, func(t *rapid.T) {
		want := schemastest.Usage()[rapid.SampledFrom([]string{"decision", "six-rules", "refund", "degraded"}).Draw(t, "sample")]
		number := rapid.Int64Range(0, exact)
		want.Tenant, want.User = rapid.StringN(0, 30, 256).Draw(t, "tenant"), rapid.StringN(0, 30, 256).Draw(t, "user")
		want.Sequence, want.Cost, want.LatencyUS = max(1, number.Draw(t, "sequence")), number.Draw(t, "cost"), number.Draw(t, "latency_us")
		want.Counters = want.Counters[:rapid.IntRange(0, len(want.Counters)).Draw(t, "counters")]
		for i := range want.Counters {
			want.Counters[i].Limit = number.Draw(t, "limit")
		}
		key := usagev1.Key(want.Tenant, want.ClientAddress)
		got, err := d.Decode(context.Background(), []byte(key), wire.Frame(nil, 1, usagev1.AppendEvent(nil, &want)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("read differently (-want +got):\n%s", diff)
		}
	})
}

func BenchmarkAppendEvent(b *testing.B) {
	for name, e := range schemastest.Usage() {
		tails := schemastest.Usage()[name]
		for i := range tails.Counters {
			tails.Counters[i].Encoded = usagev1.RuleTail(nil, &tails.Counters[i])
		}
		buf := make([]byte, 0, 4096)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = usagev1.AppendEvent(buf[:0], &e)
			}
		})
		b.Run(name+"/tails", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = usagev1.AppendEvent(buf[:0], &tails)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	d := newDecoder()
	for name, e := range schemastest.Usage() {
		key, value := []byte(usagev1.Key(e.Tenant, e.ClientAddress)), wire.Frame(nil, 1, usagev1.AppendEvent(nil, &e))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Decode(b.Context(), key, value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
