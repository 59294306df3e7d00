package usagedoc_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// full is an event in which every field is set.
func full() usagedoc.Event {
	at := time.Date(2026, 11, 30, 9, 0, 0, 123456000, time.UTC).UnixMicro()
	return usagedoc.Event{
		TS: at, EventID: id(1), DecisionID: id(2), StreamID: id(3), Sequence: 184467,
		Decision: "REFUND", Status: 200,
		Tenant: "acme", Application: "web", User: "u1", APIKey: "acme-1", APIKeyHash: []byte{0xde, 0xad, 0xbe, 0xef},
		ClientAddress: "203.0.113.9", Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay/{id}",
		RuleID: "acme-burst", Algorithm: "gcra", Cost: 3, LatencyUS: 412, GatewayID: "gw-1", RulesVersion: 812,
		Upstream: &usagedoc.Upstream{Status: 201, DurationUS: 18_250},
		Counters: []usagedoc.Counter{
			{
				Key: "{t:acme}:e:q:t:api-calls:g:1month:1793480400", Meter: "api-calls", Kind: "quota", RuleID: "acme-month", Mode: "enforce",
				Soft: true, Limit: 1000, Units: -1, Consumed: 900, Refunded: 7, Observed: true,
				PeriodStart: 1793480400_000000, PeriodEnd: 1796072400_000000,
			},
			{Key: "{t:acme}:e:w:t:credits:g", Meter: "credits", Kind: "wallet", RuleID: "acme-wallet", Mode: "shadow", Limit: 5000, Units: 1, Consumed: 4, Refunded: 2},
		},
		RefundID: "f-1", Labels: `{"region": "eu", "tier":"gold"}`,
	}
}

func id(n byte) [16]byte {
	return [16]byte{1, 0x99, 0x8d, 0x3a, 0x5e, 0x43, 0x7c, 0x11, 0x9a, 0x52, 15: n}
}

// TestAppend guarantees the document of an event, field by field.
func TestAppend(t *testing.T) {
	t.Parallel()

	e := full()
	want := `{"ts":"2026-11-30T09:00:00.123456Z",
		"eventId":"01998d3a-5e43-7c11-9a52-000000000001","decisionId":"01998d3a-5e43-7c11-9a52-000000000002",
		"decision":"REFUND","statusCode":200,
		"tenantId":"acme","applicationId":"web","userId":"u1","apiKeyId":"acme-1","apiKeyHash":"deadbeef",
		"clientAddress":"203.0.113.9","service":"payments","endpoint":"pay","method":"POST","pathTemplate":"/v1/pay/{id}",
		"ruleId":"acme-burst","algo":"gcra","cost":3,"latencyMs":0.412,"upstreamStatus":201,"upstreamMs":18.25,
		"gatewayId":"gw-1","rulesVersion":812,"streamId":"01998d3a-5e43-7c11-9a52-000000000003","sequence":184467,"refundId":"f-1",
		"counters":[
			{"observed":true,"key":"{t:acme}:e:q:t:api-calls:g:1month:1793480400","meter":"api-calls","kind":"quota","ruleId":"acme-month",
			 "mode":"enforce","soft":true,"limit":1000,"units":-1,"consumed":900,"refunded":7,
			 "periodStart":"2026-10-31T21:00:00.000000Z","periodEnd":"2026-11-30T21:00:00.000000Z"},
			{"observed":false,"key":"{t:acme}:e:w:t:credits:g","meter":"credits","kind":"wallet","ruleId":"acme-wallet",
			 "mode":"shadow","soft":false,"limit":5000,"units":1}],
		"labels":{"region":"eu","tier":"gold"},"labelPairs":["region=eu","tier=gold"]}`
	if diff := cmp.Diff(decode(t, []byte(want)), decode(t, usagedoc.Append(nil, &e))); diff != "" {
		t.Errorf("the document differs (-want +got):\n%s", diff)
	}
}

// TestAppendLeavesOutWhatIsAbsent guarantees that a field which an event does not
// have is not in its document: a search for what exists finds what exists.
func TestAppendLeavesOutWhatIsAbsent(t *testing.T) {
	t.Parallel()

	got := decode(t, usagedoc.Append(nil, &usagedoc.Event{EventID: id(1), DecisionID: id(1), StreamID: id(3), Sequence: 1, Upstream: &usagedoc.Upstream{}}))
	want := decode(t, []byte(`{"ts":"1970-01-01T00:00:00.000000Z",
		"eventId":"01998d3a-5e43-7c11-9a52-000000000001","decisionId":"01998d3a-5e43-7c11-9a52-000000000001",
		"cost":0,"latencyMs":0,"upstreamMs":0,"rulesVersion":0,"streamId":"01998d3a-5e43-7c11-9a52-000000000003","sequence":1}`))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the document differs (-want +got):\n%s", diff)
	}
}

// TestFieldsAreTheDocuments guarantees that Fields lists exactly what a document
// can have, and fits the hundred that an index is allowed.
func TestFieldsAreTheDocuments(t *testing.T) {
	t.Parallel()

	e := full()
	doc := decode(t, usagedoc.Append(nil, &e))
	var got, want []string
	for name, value := range doc {
		if list, ok := value.([]any); ok && name == "counters" {
			for inner := range list[0].(map[string]any) {
				got = append(got, "counters."+inner)
			}
			continue
		}
		got = append(got, name)
	}
	for _, f := range usagedoc.Fields() {
		want = append(want, f.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Fields (-) is not what a full document has (+):\n%s", diff)
	}
	if len(want) > 95 {
		t.Errorf("%d fields: an index has room for 100", len(want))
	}
}

// TestLabels guarantees that labels come back as they were, however they were
// spelt, are searchable as pairs, and never spoil the document.
func TestLabels(t *testing.T) {
	t.Parallel()

	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%02d":"v"`, i)
	}
	tests := []struct {
		name, in, labels, pairs string
	}{
		{"none", ``, `null`, `null`},
		{"an empty object", ` { } `, `null`, `null`},
		{"a few", `{"a":"1","b":"2"}`, `{"a":"1","b":"2"}`, `["a=1","b=2"]`},
		{"with spaces between", "\n{ \"a\" :\t\"1\" , \"b\":\"2\" }\r\n", `{"a":"1","b":"2"}`, `["a=1","b=2"]`},
		{"with escapes", `{"a\"":"\\\n\u00e9"}`, `{"a\"":"\\\né"}`, `["a\"=\\\né"]`},
		{"half a surrogate", `{"a":"\ud800"}`, `{"a":"�"}`, `["a=�"]`},
		{"bytes that are no UTF-8", "{\"a\":\"\xff\"}", `{"a":"�"}`, `["a=�"]`},
		{"a key twice", `{"a":"1","a":"2"}`, `{"a":"2"}`, `["a=2"]`},
		{"a key twice, spelt differently", `{"a":"1","\u0061":"2"}`, `{"a":"2"}`, `["a=2"]`},
		{"hostile names", `{"":"x",".":"x","a..b":"x","_id":"x"}`, `{"":"x",".":"x","a..b":"x","_id":"x"}`, `["=x",".=x","a..b=x","_id=x"]`},
		{"no object", `["a"]`, `null`, `null`},
		{"no JSON", `{"a":"1"`, `null`, `null`},
		{"something behind it", `{"a":"1"}x`, `null`, `null`},
		{"something behind nothing", `{}x`, `null`, `null`},
		{"not of strings", `{"a":1}`, `null`, `null`},
		{"a comma too many", `{"a":"1",}`, `null`, `null`},
		{"no colon", `{"a" "1"}`, `null`, `null`},
		{"no value", `{"a":}`, `null`, `null`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			doc := decode(t, usagedoc.Append(nil, &usagedoc.Event{Labels: tt.in}))
			var labels, pairs any
			if json.Unmarshal([]byte(tt.labels), &labels) != nil || json.Unmarshal([]byte(tt.pairs), &pairs) != nil {
				t.Fatal("the case itself is no JSON")
			}
			if diff := cmp.Diff(labels, doc["labels"]); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(pairs, doc["labelPairs"]); diff != "" {
				t.Errorf("pairs (-want +got):\n%s", diff)
			}
		})
	}
	doc := decode(t, usagedoc.Append(nil, &usagedoc.Event{Labels: "{" + strings.Join(many, ",") + "}"}))
	if len(doc["labels"].(map[string]any)) != 40 || len(doc["labelPairs"].([]any)) != 40 {
		t.Errorf("of 40 labels came back %v", doc)
	}
}

// FuzzLabels guarantees that whatever stands for labels, the document is one, in
// which no name is twice, and what encoding/json reads as an object of strings
// comes back as it reads it.
func FuzzLabels(f *testing.F) {
	f.Add(`{"region":"eu"}`)
	f.Add(`{"a":"\ud800","a":"b", "":null}`)
	f.Add(`{"a":"1"}{`)
	f.Fuzz(func(t *testing.T, object string) {
		doc := decode(t, usagedoc.Append(nil, &usagedoc.Event{Labels: object}))
		var want map[string]string
		if object == "" || json.Unmarshal([]byte(object), &want) != nil || len(want) == 0 {
			if doc["labels"] != nil {
				t.Fatalf("%q became labels %v", object, doc["labels"])
			}
			return
		}
		got, _ := doc["labels"].(map[string]any)
		if len(got) != len(want) || len(doc["labelPairs"].([]any)) != len(want) {
			t.Fatalf("%q became %v, want %v", object, got, want)
		}
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("%q became %v, want %v", object, got, want)
			}
		}
	})
}

// A reference is a document as encoding/json writes it.
type reference struct {
	TS             string            `json:"ts"`
	EventID        string            `json:"eventId"`
	DecisionID     string            `json:"decisionId"`
	Decision       string            `json:"decision,omitempty"`
	Status         int32             `json:"statusCode,omitempty"`
	Tenant         string            `json:"tenantId,omitempty"`
	Application    string            `json:"applicationId,omitempty"`
	User           string            `json:"userId,omitempty"`
	APIKey         string            `json:"apiKeyId,omitempty"`
	APIKeyHash     string            `json:"apiKeyHash,omitempty"`
	ClientAddress  string            `json:"clientAddress,omitempty"`
	Service        string            `json:"service,omitempty"`
	Endpoint       string            `json:"endpoint,omitempty"`
	Method         string            `json:"method,omitempty"`
	PathTemplate   string            `json:"pathTemplate,omitempty"`
	RuleID         string            `json:"ruleId,omitempty"`
	Algorithm      string            `json:"algo,omitempty"`
	Cost           int64             `json:"cost"`
	LatencyMS      float64           `json:"latencyMs"`
	UpstreamStatus int32             `json:"upstreamStatus,omitempty"`
	UpstreamMS     *float64          `json:"upstreamMs,omitempty"`
	GatewayID      string            `json:"gatewayId,omitempty"`
	RulesVersion   int64             `json:"rulesVersion"`
	StreamID       string            `json:"streamId"`
	Sequence       int64             `json:"sequence"`
	RefundID       string            `json:"refundId,omitempty"`
	Counters       []refCounter      `json:"counters,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	LabelPairs     []string          `json:"labelPairs,omitempty"`
}

type refCounter struct {
	Key         string `json:"key,omitempty"`
	Meter       string `json:"meter,omitempty"`
	Kind        string `json:"kind,omitempty"`
	RuleID      string `json:"ruleId,omitempty"`
	Mode        string `json:"mode,omitempty"`
	Soft        bool   `json:"soft"`
	Limit       int64  `json:"limit"`
	Units       int64  `json:"units"`
	Consumed    *int64 `json:"consumed,omitempty"`
	Refunded    *int64 `json:"refunded,omitempty"`
	Observed    bool   `json:"observed"`
	PeriodStart string `json:"periodStart,omitempty"`
	PeriodEnd   string `json:"periodEnd,omitempty"`
}

const layout = "2006-01-02T15:04:05.000000Z"

func referenceOf(e *usagedoc.Event) reference {
	at := func(us int64) string {
		if us == 0 {
			return ""
		}
		return time.UnixMicro(us).UTC().Format(layout)
	}
	uuid := func(u [16]byte) string {
		return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	}
	r := reference{
		TS: time.UnixMicro(e.TS).UTC().Format(layout), EventID: uuid(e.EventID), DecisionID: uuid(e.DecisionID),
		Decision: e.Decision, Status: e.Status, Tenant: e.Tenant, Application: e.Application, User: e.User, APIKey: e.APIKey,
		APIKeyHash: hex.EncodeToString(e.APIKeyHash), ClientAddress: e.ClientAddress, Service: e.Service, Endpoint: e.Endpoint,
		Method: e.Method, PathTemplate: e.PathTemplate, RuleID: e.RuleID, Algorithm: e.Algorithm, Cost: e.Cost,
		LatencyMS: float64(e.LatencyUS) / 1000, GatewayID: e.GatewayID, RulesVersion: e.RulesVersion,
		StreamID: uuid(e.StreamID), Sequence: e.Sequence, RefundID: e.RefundID,
	}
	if e.Upstream != nil {
		ms := float64(e.Upstream.DurationUS) / 1000
		r.UpstreamStatus, r.UpstreamMS = e.Upstream.Status, &ms
	}
	for i := range e.Counters {
		c := &e.Counters[i]
		rc := refCounter{
			Key: c.Key, Meter: c.Meter, Kind: c.Kind, RuleID: c.RuleID, Mode: c.Mode, Soft: c.Soft, Limit: c.Limit,
			Units: c.Units, Observed: c.Observed, PeriodStart: at(c.PeriodStart), PeriodEnd: at(c.PeriodEnd),
		}
		if c.Observed {
			rc.Consumed, rc.Refunded = &c.Consumed, &c.Refunded
		}
		r.Counters = append(r.Counters, rc)
	}
	if json.Unmarshal([]byte(e.Labels), &r.Labels) == nil {
		for k, v := range r.Labels {
			r.LabelPairs = append(r.LabelPairs, k+"="+v)
		}
	}
	return r
}

// agree fails the test unless Append writes what encoding/json writes, but for
// the order of names.
func agree(t interface {
	Helper()
	Fatalf(string, ...any)
}, e *usagedoc.Event,
) {
	t.Helper()
	want, err := json.Marshal(referenceOf(e))
	if err != nil {
		t.Fatalf("reference: %v", err)
	}
	got := usagedoc.Append([]byte("before"), e)
	got, found := bytes.CutPrefix(got, []byte("before"))
	if !found {
		t.Fatalf("what was in dst is gone")
	}
	if !json.Valid(got) || bytes.ContainsAny(got, "\n\r") {
		t.Fatalf("no JSON on one line: %q", got)
	}
	var g, w map[string]any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatalf("%v: %q", err, got)
	}
	if err := json.Unmarshal(want, &w); err != nil {
		t.Fatalf("reference: %v", err)
	}
	for _, m := range []map[string]any{g, w} {
		if pairs, ok := m["labelPairs"].([]any); ok {
			slices.SortFunc(pairs, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	if !reflect.DeepEqual(g, w) {
		t.Fatalf("the document differs from encoding/json's (-want +got):\n%s", cmp.Diff(w, g))
	}
}

// TestAppendAgrees guarantees that for any event the document is what
// encoding/json would write.
func TestAppendAgrees(t *testing.T) {
	t.Parallel()

	text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }))
	exact := rapid.Int64Range(-(1<<53 - 1), 1<<53-1)
	span := rapid.Int64Range(0, 1<<53-1)
	at := rapid.Int64Range(-62135596800_000000, 253402300799_999999) // the years 1 to 9999
	uuid := rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) [16]byte { return [16]byte(b) })
	counter := rapid.Custom(func(t *rapid.T) usagedoc.Counter {
		return usagedoc.Counter{
			Key: text.Draw(t, "key"), Meter: text.Draw(t, "meter"), Kind: text.Draw(t, "kind"), RuleID: text.Draw(t, "rule"),
			Mode: text.Draw(t, "mode"), Soft: rapid.Bool().Draw(t, "soft"), Limit: exact.Draw(t, "limit"), Units: exact.Draw(t, "units"),
			Consumed: exact.Draw(t, "consumed"), Refunded: exact.Draw(t, "refunded"), Observed: rapid.Bool().Draw(t, "observed"),
			PeriodStart: at.Draw(t, "start"), PeriodEnd: at.Draw(t, "end"),
		}
	})
	upstream := rapid.Custom(func(t *rapid.T) usagedoc.Upstream {
		return usagedoc.Upstream{Status: rapid.Int32().Draw(t, "status"), DurationUS: span.Draw(t, "us")}
	})
	labels := rapid.Custom(func(t *rapid.T) string {
		m := rapid.MapOf(text, text).Draw(t, "labels")
		b, _ := json.Marshal(m)
		return string(b)
	})
	rapid.Check(t, func(t *rapid.T) {
		agree(t, &usagedoc.Event{
			TS: at.Draw(t, "ts"), EventID: uuid.Draw(t, "event"), DecisionID: uuid.Draw(t, "decision"), StreamID: uuid.Draw(t, "stream"),
			Sequence: exact.Draw(t, "sequence"), Decision: text.Draw(t, "decision"), Status: rapid.Int32().Draw(t, "status"),
			Tenant: text.Draw(t, "tenant"), Application: text.Draw(t, "application"), User: text.Draw(t, "user"), APIKey: text.Draw(t, "key"),
			APIKeyHash: rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "hash"), ClientAddress: text.Draw(t, "address"),
			Service: text.Draw(t, "service"), Endpoint: text.Draw(t, "endpoint"), Method: text.Draw(t, "method"), PathTemplate: text.Draw(t, "path"),
			RuleID: text.Draw(t, "rule"), Algorithm: text.Draw(t, "algorithm"), Cost: exact.Draw(t, "cost"), LatencyUS: span.Draw(t, "latency"),
			GatewayID: text.Draw(t, "gateway"), RulesVersion: exact.Draw(t, "version"), Upstream: rapid.Ptr(upstream, true).Draw(t, "upstream"),
			Counters: rapid.SliceOfN(counter, 0, 3).Draw(t, "counters"), RefundID: text.Draw(t, "refund"), Labels: labels.Draw(t, "labels"),
		})
	})
}

// FuzzAppend guarantees the same for bytes that a fuzzer finds: any text, any
// numbers.
func FuzzAppend(f *testing.F) {
	f.Add("acme", "<&>\u2028\x7f", []byte("\xff\x00\x1f"), int64(412), int64(1793480400_000000))
	f.Add("\"\\\b\f\n\r\t", "\xed\xa0\x80", []byte("\xc3"), int64(math.MaxInt64), int64(-1))
	f.Fuzz(func(t *testing.T, tenant, user string, key []byte, n, at int64) {
		if at < -62135596800_000000 || at > 253402300799_999999 {
			return // not of the years 1 to 9999
		}
		const exact = 1<<53 - 1
		if n < -exact || n > exact {
			n %= exact
		}
		agree(t, &usagedoc.Event{
			TS: at, Tenant: tenant, User: user, APIKeyHash: key, ClientAddress: string(key), Cost: n, LatencyUS: n,
			Sequence: n, Status: int32(n), EventID: id(byte(n)), Labels: tenant, Upstream: &usagedoc.Upstream{Status: int32(n), DurationUS: n},
			Counters: []usagedoc.Counter{{Key: tenant + user, Meter: user, Observed: n%2 == 0, Consumed: n, Limit: n, Units: n, PeriodStart: at, PeriodEnd: at}},
		})
	})
}

// TestAppendAllocates guarantees that a document costs no memory but its own,
// labels included.
func TestAppendAllocates(t *testing.T) {
	e := full()
	buf := make([]byte, 0, 8192)
	if n := testing.AllocsPerRun(100, func() { buf = usagedoc.Append(buf[:0], &e) }); n != 0 {
		t.Errorf("Append allocates %v times, want never", n)
	}
}

func decode(t *testing.T, doc []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(doc, &m); err != nil {
		t.Fatalf("%v: %q", err, doc)
	}
	return m
}

func BenchmarkAppend(b *testing.B) {
	e := full()
	bare := full()
	bare.Labels, bare.Counters = "", bare.Counters[:1]
	buf := make([]byte, 0, 8192)
	for name, e := range map[string]*usagedoc.Event{"full": &e, "one-counter": &bare} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = usagedoc.Append(buf[:0], e)
			}
			b.SetBytes(int64(len(buf)))
		})
	}
	b.Run("encoding-json", func(b *testing.B) {
		ref := referenceOf(&bare)
		for b.Loop() {
			if _, err := json.Marshal(ref); err != nil {
				b.Fatal(err)
			}
		}
	})
}
