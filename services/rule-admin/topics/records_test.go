package topics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/topics"
)

var t0 = time.Date(2026, 11, 15, 12, 0, 0, 123456000, time.UTC)

// A registry answers with id, or with its failures first.
type registry struct {
	id       uint32
	failures int // negative: for ever
	asked    int
}

var errAway = errors.New("connection refused")

func (r *registry) Register(_ context.Context, subject, schema string) (uint32, error) {
	r.asked++
	if r.failures != 0 {
		r.failures--
		return 0, errAway
	}
	if subject != "rules.v1-value" || schema != schemas.RulesV1 {
		return 0, fmt.Errorf("asked to register %s", subject)
	}
	return r.id, nil
}

func (r *registry) Schema(_ context.Context, id uint32) (string, []string, error) {
	if id != r.id {
		return "", nil, nil
	}
	return schemas.RulesV1, []string{"rules.v1-value"}, nil
}

// ids keeps ids in memory.
type ids map[string]uint32

func (s ids) SchemaID(_ context.Context, subject, fingerprint string) (uint32, bool, error) {
	id, ok := s[subject+" "+fingerprint]
	return id, ok, nil
}

func (s ids) KeepSchemaID(_ context.Context, subject, fingerprint string, id uint32) error {
	s[subject+" "+fingerprint] = id
	return nil
}

// known returns a schema whose id is 7.
func known(t testing.TB) *topics.Schema {
	t.Helper()
	s := topics.NewSchema(&registry{id: 7}, "test", slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context(), ids{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func change(t testing.TB, kind catalog.Kind, text string, kept catalog.Kept) catalog.Change {
	t.Helper()
	body, err := catalog.Read(kind, "x", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return catalog.Change{After: &catalog.Object{Kind: kind, ID: "x", Version: 9, ChangedAt: t0, ChangedBy: "ops", Body: body, Kept: kept}}
}

var moment = catalog.Moment{Revision: 9, Now: t0}

// TestRecord guarantees what the gateways are told of each kind of object, with
// every default filled in.
func TestRecord(t *testing.T) {
	t.Parallel()
	digest := []byte(strings.Repeat("d", 32))
	anchor := time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC)
	month, zone := "month", "UTC"
	tests := []struct {
		kind catalog.Kind
		text string
		kept catalog.Kept
		want string // the record's body as JSON
	}{
		{
			catalog.KindTenant, `{}`,
			catalog.Kept{},
			`{"Name":"","Plan":"","Zone":"UTC","Anchor":null,"Currency":"","PreviousPeriods":[]}`,
		},
		{
			catalog.KindTenant, `{"name":"Acme","plan":"gold","zone":"Europe/Istanbul","anchor":"2026-01-31T13:00:00+03:00","currency":"USD"}`,
			catalog.Kept{Former: []catalog.FormerPeriod{{Zone: "UTC", Until: t0}, {Zone: "Asia/Tokyo", Anchor: anchor, Until: t0}}},
			`{"Name":"Acme","Plan":"gold","Zone":"Europe/Istanbul","Anchor":1769853600000000,"Currency":"USD","PreviousPeriods":[` +
				`{"Zone":"UTC","Anchor":null,"Until":1794744000123456},{"Zone":"Asia/Tokyo","Anchor":1769853600000000,"Until":1794744000123456}]}`,
		},
		{catalog.KindApplication, `{"tenant":"acme","name":"Web"}`, catalog.Kept{}, `{"Tenant":"acme","Name":"Web"}`},
		{catalog.KindUser, `{"tenant":"acme"}`, catalog.Kept{}, `{"Tenant":"acme","Name":""}`},
		{
			catalog.KindAPIKey, `{"tenant":"acme","application":"web","user":"u1"}`,
			catalog.Kept{Digest: digest},
			`{"Tenant":"acme","Application":"web","User":"u1","Digest":"ZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGRkZGQ="}`,
		},
		{
			catalog.KindService, `{"upstream":"http://127.0.0.1:9001"}`,
			catalog.Kept{},
			`{"Name":"","Upstream":"http://127.0.0.1:9001","Hosts":[],"PathPrefix":"","StripPrefix":false,"Cors":null,` +
				`"ConnectTimeoutUS":0,"ResponseTimeoutUS":0,"IdleTimeoutUS":0}`,
		},
		{
			catalog.KindService,
			`{"name":"P","upstream":"https://h","hosts":["a.b"],"path_prefix":"/p","strip_prefix":true,"cors":{"allowed_origins":["*"]},
				"connect_timeout":"1ms","response_timeout":"30s","idle_timeout":"1h"}`,
			catalog.Kept{},
			`{"Name":"P","Upstream":"https://h","Hosts":["a.b"],"PathPrefix":"/p","StripPrefix":true,"Cors":{"AllowedOrigins":["*"]},` +
				`"ConnectTimeoutUS":1000,"ResponseTimeoutUS":30000000,"IdleTimeoutUS":3600000000}`,
		},
		{
			catalog.KindEndpoint, `{"service":"s","path":"/v1/pay/{id}"}`,
			catalog.Kept{},
			`{"Service":"s","Method":"","Path":"/v1/pay/{id}","Cost":1,"RefundOn":[]}`,
		},
		{
			catalog.KindEndpoint, `{"service":"s","method":"POST","path":"/","cost":0,"refund_on":["5xx","timeout"]}`,
			catalog.Kept{},
			`{"Service":"s","Method":"POST","Path":"/","Cost":0,"RefundOn":["5xx","timeout"]}`,
		},
		{
			catalog.KindPlan,
			`{"name":"G","fee":{"amount":9900,"currency":"USD","period":"month"},"included":{"b":2,"a":1},"overage":[{"meter":"a","up_to":5,"unit_price":"0.1"},{"meter":"a","unit_price":"0.00001"}]}`,
			catalog.Kept{},
			`{"Name":"G","Fee":{"Amount":9900,"Currency":"USD","Period":"month"},"Included":[{"Meter":"a","Units":1},{"Meter":"b","Units":2}],` +
				`"Overage":[{"Meter":"a","UpTo":5,"UnitPrice":"0.1"},{"Meter":"a","UpTo":null,"UnitPrice":"0.00001"}]}`,
		},
		{
			catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":["ip","tenant"],"limit":30,"window":"60s"}`,
			catalog.Kept{},
			rule(`"Kind":"rate","Algorithm":"gcra","Subject":["tenant","ip"],"Limit":30,"WindowUS":60000000,"Burst":30,"OnFailure":"open"`),
		},
		{
			catalog.KindRule, `{"kind":"rate","algorithm":"gcra","subject":[],"limit":9007199254740991,"window":"1s"}`,
			catalog.Kept{},
			rule(`"Kind":"rate","Algorithm":"gcra","Limit":9007199254740991,"WindowUS":1000000,"Burst":1000000000,"OnFailure":"open"`),
		},
		{
			catalog.KindRule, `{"kind":"block","match":{"networks":["203.0.113.0/24"]}}`,
			catalog.Kept{},
			rule(`"Kind":"block","Algorithm":"none","OnFailure":"open","Match":` + match(`"Networks":["203.0.113.0/24"]`)),
		},
		{
			catalog.KindRule,
			`{"name":"N","enabled":false,"mode":"shadow","kind":"quota","subject":["tenant"],"limit":0,"meter":"m","cost":3,"on_failure":"open","soft":true,
				"match":{"tenant":"t","plan":"p","application":"a","user":"u","api_key":"k","service":"s","endpoint":"e"},"priority":-7,
				"period":{"unit":"month"},"thresholds":[100,{"left":1},80,{"left":10}],"valid_from":"2026-01-31T10:00:00Z","valid_to":"2026-11-15T12:00:00.123456Z"}`,
			catalog.Kept{Previous: &catalog.Previous{Period: catalog.Period{Unit: &month, Zone: &zone}, Until: t0, End: anchor}},
			rule(`"Name":"N","Enabled":false,"Mode":"shadow","Kind":"quota","Algorithm":"quota","Subject":["tenant"],"Limit":0,"Meter":"m","Cost":3,"OnFailure":"open",` +
				`"Match":` + match(`"Tenant":"t","Plan":"p","Application":"a","User":"u","APIKey":"k","Service":"s","Endpoint":"e"`) + `,` +
				`"Period":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"","Anchor":null},` +
				`"PreviousPeriod":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"UTC","Anchor":null},"PeriodEffectiveAt":1769853600000000,` +
				`"ThresholdsPercent":[80,100],"ThresholdsLeft":[10,1],"Priority":-7,"Soft":true,"ValidFrom":1769853600000000,"ValidTo":1794744000123456`),
		},
		{
			catalog.KindRule,
			`{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"year","count":2,"alignment":"anniversary","zone":"Asia/Tokyo","anchor":"2026-01-31T10:00:00Z"}}`,
			catalog.Kept{Previous: &catalog.Previous{Period: catalog.Period{Unit: &month}, Until: t0}},
			rule(`"Kind":"quota","Algorithm":"quota","Subject":["tenant"],"Limit":1,"OnFailure":"closed",` +
				`"Period":{"Unit":"year","Count":2,"Alignment":"anniversary","Zone":"Asia/Tokyo","Anchor":1769853600000000},` +
				`"PreviousPeriod":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"","Anchor":null},"ThresholdsPercent":[80,100]`),
		},
		{
			catalog.KindRule, `{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"month"},"thresholds":[]}`,
			catalog.Kept{Previous: &catalog.Previous{Period: catalog.Period{Unit: &month}, Until: t0}},
			rule(`"Kind":"quota","Algorithm":"quota","Subject":["tenant"],"Limit":1,"OnFailure":"closed",` +
				`"Period":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"","Anchor":null},` +
				`"PreviousPeriod":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"","Anchor":null}`),
		},
		{
			catalog.KindRule,
			`{"kind":"rate","algorithm":"leaky_bucket","subject":[],"limit":10,"window":"1s","burst":25,"max_delay":"2.5s","on_failure":"local","condition":"cost > 3"}`,
			catalog.Kept{},
			rule(`"Kind":"rate","Algorithm":"leaky_bucket","Limit":10,"WindowUS":1000000,"Burst":25,"MaxDelayUS":2500000,"OnFailure":"local","Condition":"cost > 3"`),
		},
		{
			catalog.KindRule, `{"kind":"rate","algorithm":"sliding_window_log","subject":[],"limit":10,"window":"1s"}`,
			catalog.Kept{},
			rule(`"Kind":"rate","Algorithm":"sliding_window_log","Limit":10,"WindowUS":1000000,"OnFailure":"open"`),
		},
		{
			catalog.KindRule, `{"kind":"rate","algorithm":"fixed_window","subject":[],"limit":10,"window":"1s","lease":{"units":5,"ttl":"500ms"}}`,
			catalog.Kept{},
			rule(`"Kind":"rate","Algorithm":"fixed_window","Limit":10,"WindowUS":1000000,"OnFailure":"open","Lease":{"Units":5,"TTLUS":500000}`),
		},
		{
			catalog.KindRule, `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"meter":"credits"}`,
			catalog.Kept{},
			rule(`"Kind":"wallet","Algorithm":"overdraft_wallet","Wallet":"prepaid","Subject":["tenant"],"Meter":"credits","OnFailure":"closed","ThresholdsPercent":[80,100]`),
		},
		{
			catalog.KindRule, `{"kind":"wallet","wallet":"renewable","subject":["tenant"],"limit":500,"period":{"unit":"month"}}`,
			catalog.Kept{Previous: &catalog.Previous{Period: catalog.Period{Unit: &month, Zone: &zone}, Until: t0, End: anchor}},
			rule(`"Kind":"wallet","Algorithm":"overdraft_wallet","Wallet":"renewable","Subject":["tenant"],"Limit":500,"OnFailure":"closed",` +
				`"Period":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"","Anchor":null},` +
				`"PreviousPeriod":{"Unit":"month","Count":1,"Alignment":"calendar","Zone":"UTC","Anchor":null},"PeriodEffectiveAt":1769853600000000,"ThresholdsPercent":[80,100]`),
		},
	}
	s := known(t)
	decoder := rulesv1.NewDecoder(wire.NewIDs(&registry{id: 7}, rulesv1.Subject))
	for _, tt := range tests {
		record, err := s.Record(change(t, tt.kind, tt.text, tt.kept), moment)
		if err != nil {
			t.Errorf("%s %s: %v", tt.kind, tt.text, err)
			continue
		}
		if want := string(tt.kind) + "/x"; record.Topic != "rules.v1" || record.Key != want || record.Type != string(tt.kind)+".changed" {
			t.Errorf("%s %s under %s as %s, want key %s", tt.kind, record.Topic, record.Key, record.Type, want)
		}
		r, err := decoder.Decode(t.Context(), []byte(record.Key), record.Payload)
		if err != nil {
			t.Errorf("%s %s: %v", tt.kind, tt.text, err)
			continue
		}
		if r.Version != 9 || r.Revision != 9 || r.ChangedAt != t0.UnixMicro() || r.ChangedBy != "ops" || len(r.Requires) > 0 || r.ID != "x" {
			t.Errorf("%s %s: stamped %+v", tt.kind, tt.text, r)
		}
		if got := body(t, r); !sameJSON(t, got, tt.want) {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.kind, tt.text, got, tt.want)
		}
	}
}

// rule is a rule's record with some fields, the others as they are by default.
func rule(fields string) string {
	return merge(`{"Name":"","Enabled":true,"Mode":"enforce","Subject":[],"Match":`+match("")+`,"Condition":"","Limit":null,"WindowUS":0,"Burst":null,
		"Period":null,"PreviousPeriod":null,"PeriodEffectiveAt":null,"Wallet":"none","Meter":"api-calls","Cost":null,"ThresholdsPercent":[],
		"ThresholdsLeft":[],"Priority":0,"Soft":false,"MaxDelayUS":0,"Lease":null,"ValidFrom":null,"ValidTo":null}`, `{`+fields+`}`)
}

func match(fields string) string {
	return merge(`{"Tenant":"","Plan":"","Application":"","User":"","APIKey":"","Service":"","Endpoint":"","Networks":[]}`, `{`+fields+`}`)
}

func merge(texts ...string) string {
	out := map[string]json.RawMessage{}
	for _, text := range texts {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			return err.Error()
		}
	}
	text, err := json.Marshal(out)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// body is the part of a record that its kind names.
func body(t *testing.T, r rulesv1.Record) string {
	t.Helper()
	for _, v := range []any{r.Tenant, r.Application, r.User, r.APIKey, r.Service, r.Endpoint, r.Plan, r.Rule} {
		if text, err := json.Marshal(v); err != nil {
			t.Fatal(err)
		} else if string(text) != "null" {
			return string(text)
		}
	}
	return "nothing"
}

// sameJSON compares, with lists that are empty and absent alike.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	flat := func(v any) string { return strings.ReplaceAll(fmt.Sprint(v), "[]", "<nil>") }
	return flat(x) == flat(y)
}

// TestFC15 guarantees the writing side of case FC-15: a limit that is lowered and
// raised, and a rule that is renamed, change nothing of what names the counter
// or its period, so what was used and when it resets stay.
func TestFC15(t *testing.T) {
	t.Parallel()
	s := known(t)
	decoder := rulesv1.NewDecoder(wire.NewIDs(&registry{id: 7}, rulesv1.Subject))
	var first string
	for _, tt := range []struct {
		name  string
		limit int64
	}{{"", 5_000_000}, {"", 10}, {"", 100}, {"renamed", 100}} {
		text := fmt.Sprintf(`{"name":%q,"kind":"quota","subject":["tenant"],"limit":%d,"match":{"tenant":"acme"},"period":{"unit":"month"}}`, tt.name, tt.limit)
		record, err := s.Record(change(t, catalog.KindRule, text, catalog.Kept{}), moment)
		if err != nil {
			t.Fatal(err)
		}
		r, err := decoder.Decode(t.Context(), []byte(record.Key), record.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if *r.Rule.Limit != tt.limit || r.Rule.Name != tt.name {
			t.Errorf("published limit %d of %q, want %d of %q", *r.Rule.Limit, r.Rule.Name, tt.limit, tt.name)
		}
		r.Rule.Limit, r.Rule.Name = nil, ""
		if rest := body(t, r); first == "" {
			first = rest
		} else if rest != first {
			t.Errorf("limit %d of %q changes more:\n got %s\nwant %s", tt.limit, tt.name, rest, first)
		}
	}
}

// TestRecordOfADeletion guarantees that a tombstone needs no schema id, and a
// record one.
func TestRecordOfADeletion(t *testing.T) {
	t.Parallel()
	s := topics.NewSchema(&registry{}, "http://registry:8081", slog.New(slog.DiscardHandler))
	c := change(t, catalog.KindAPIKey, `{"tenant":"acme"}`, catalog.Kept{})
	_, err := s.Record(c, moment)
	if !errors.Is(err, catalog.ErrNoSchema) || !strings.Contains(err.Error(), "http://registry:8081") {
		t.Errorf("Record without an id = %v, want no schema id and the registry named", err)
	}
	record, err := s.Record(catalog.Change{Before: c.After}, moment)
	if err != nil || record.Key != "api_key/x" || record.Type != "api_key.deleted" || record.Payload != nil || record.Topic != "rules.v1" {
		t.Errorf("Record of a deletion = %+v, %v", record, err)
	}
}

// FuzzRecord guarantees that whatever the catalogue accepts can be published:
// no operator gets a 500 for what was called valid.
func FuzzRecord(f *testing.F) {
	kinds := catalog.Kinds()
	for _, sample := range catalogtest.Samples {
		for i, kind := range kinds {
			if kind == sample.Kind {
				f.Add(i, sample.Text)
			}
		}
	}
	s := known(f)
	f.Fuzz(func(t *testing.T, n int, text string) {
		kind := kinds[uint(n)%uint(len(kinds))]
		parsed, err := catalog.Read(kind, "x", []byte(text))
		if err != nil {
			return
		}
		o := &catalog.Object{Kind: kind, ID: "x", Version: 9, ChangedAt: t0, ChangedBy: "ops", Body: parsed}
		if kind == catalog.KindAPIKey {
			o.Kept.Digest = make([]byte, 32)
		}
		if r, ok := parsed.(*catalog.Rule); ok && r.Period != nil {
			o.Kept.Previous = &catalog.Previous{Period: *r.Period, End: t0}
		}
		if _, err := s.Record(catalog.Change{After: o}, moment); err != nil {
			t.Errorf("%s %q: %v", kind, text, err)
		}
	})
}

// TestAcceptedIsPublished guarantees the same at the bounds, where a catalogue
// and a schema would first disagree.
func TestAcceptedIsPublished(t *testing.T) {
	t.Parallel()
	texts, err := os.ReadFile("../catalog/read_test.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]catalog.Kind{
		"KindTenant": catalog.KindTenant, "KindApplication": catalog.KindApplication, "KindUser": catalog.KindUser, "KindAPIKey": catalog.KindAPIKey,
		"KindService": catalog.KindService, "KindEndpoint": catalog.KindEndpoint, "KindPlan": catalog.KindPlan, "KindRule": catalog.KindRule,
	}
	s, n := known(t), 0
	for line := range strings.Lines(string(texts)) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "{catalog."), ", `")
		text, _, closed := strings.Cut(rest, "`")
		if !ok || !closed || kinds[name] == "" {
			continue
		}
		kind := kinds[name]
		body, err := catalog.Read(kind, "x", []byte(text))
		if err != nil {
			continue
		}
		n++
		o := &catalog.Object{Kind: kind, ID: "x", Version: 1<<53 - 1, ChangedAt: t0, ChangedBy: "ops", Body: body, Kept: catalog.Kept{Digest: make([]byte, 32)}}
		if _, err := s.Record(catalog.Change{After: o}, catalog.Moment{Revision: 1<<53 - 1, Now: t0}); err != nil {
			t.Errorf("%s %s: %v", kind, text, err)
		}
	}
	if n < 15 {
		t.Errorf("%d texts were accepted, want those of TestReadAccepts", n)
	}
}

// TestEntry guarantees what is told of a top-up and of its end: the wallet with
// its absolute total, then the grant, both of the entry's revision; and that
// nothing is told while no schema id is known.
func TestEntry(t *testing.T) {
	t.Parallel()
	e := ledger.Entry{
		TopUp: ledger.TopUp{
			ID: "01", Tenant: "acme", Meter: "credits", Units: 200, Priority: -3, ExpiresAt: t0.Add(time.Hour), Reason: "order 17",
			GrantedTotal: 200, GrantedAt: t0.Add(-time.Hour), GrantedBy: "ops", ExpiredAt: t0, ExpiredUnits: 150,
		},
		Wallet: ledger.Wallet{Tenant: "acme", Meter: "credits", Granted: 50}, Caller: catalog.Caller{Actor: "rule-admin", Role: "system"},
	}
	records, err := known(t).Entry(&e, moment)
	if err != nil {
		t.Fatal(err)
	}
	decoder := rulesv1.NewDecoder(wire.NewIDs(&registry{id: 7}, rulesv1.Subject))
	var got []string
	for _, r := range records {
		d, err := decoder.Decode(t.Context(), []byte(r.Key), r.Payload)
		if err != nil {
			t.Fatalf("%s: %v", r.Key, err)
		}
		if d.Version != 9 || d.Revision != 9 || d.ChangedAt != t0.UnixMicro() || d.ChangedBy != "rule-admin" || len(d.Requires) > 0 {
			t.Errorf("%s: %+v, want the entry's stamp", r.Key, d)
		}
		body, err := json.Marshal([]any{d.Wallet, d.Grant})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s %s", r.Topic, r.Key, r.Type, body))
	}
	want := []string{
		`rules.v1 wallet/acme:credits wallet.changed [{"Tenant":"acme","Meter":"credits","GrantedTotal":50},null]`,
		`rules.v1 grant/01 grant.changed [null,{"Tenant":"acme","Meter":"credits","Units":200,"Priority":-3,"GrantedAt":1794740400123456,` +
			`"ExpiresAt":1794747600123456,"ExpiredUnits":150,"Reason":"order 17"}]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	never := topics.NewSchema(&registry{failures: -1}, "test", slog.New(slog.DiscardHandler))
	if _, err := never.Entry(&e, moment); !errors.Is(err, catalog.ErrNoSchema) {
		t.Errorf("without a schema id: %v", err)
	}
}
