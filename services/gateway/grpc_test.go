package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/receipt"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// A twin is one counter store, rules and a desk, whose clock stands still.
type twin struct {
	t    *testing.T
	api  http.Handler
	face *grpcapi.Face

	mu    sync.Mutex
	state limit.State
	down  bool
	told  []decide.Usage
	ids   byte
}

// Record is the recorder.
func (w *twin) Record(u decide.Usage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u.Latency = 0
	w.told = append(w.told, u)
}

// Decide is the counter store.
func (w *twin) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return limit.Answer{}, context.DeadlineExceeded
	}
	return limit.Decide(w.state, noon, d)
}

// DecideAll is the counter store.
func (w *twin) DecideAll(ctx context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(ds)), make([]error, len(ds))
	for i := range ds {
		answers[i], errs[i] = w.Decide(ctx, ds[i])
	}
	return answers, errs
}

// Correct is the counter store.
func (w *twin) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return limit.CorrectionAnswer{}, context.DeadlineExceeded
	}
	return limit.Correct(w.state, noon, c)
}

func newTwin(t *testing.T, book *decide.Book) *twin {
	t.Helper()
	w := &twin{t: t, state: limit.NewState()}
	keys, err := receipt.ParseKeys("2026-11:secret-of-november")
	if err != nil {
		t.Fatal(err)
	}
	ids := func(time.Time) [16]byte { // the same in both twins, and young enough for a receipt
		w.ids++
		ms := noon.UnixMilli()
		return [16]byte{byte(ms >> 40), byte(ms >> 32), byte(ms >> 24), byte(ms >> 16), byte(ms >> 8), byte(ms), 0x70, 0, 0x80, 15: w.ids}
	}
	now := func() time.Time { return noon }
	desk := ask.New(ask.Config{Tokens: []string{decisionToken}, Receipts: keys}, ask.Deps{
		Catalogue: func() ask.Catalogue { return book.Current() }, Recorder: w, Now: now,
		Decider: decide.NewService(book, w, now, ids, decide.Options{}),
	})
	log := slog.New(slog.DiscardHandler)
	w.api, w.face = httpapi.New(desk, log), grpcapi.New(desk, nil, log)
	return w
}

// post is a call of the JSON face: its answer or problem, flat.
func (w *twin) post(path string, body any) map[string]any {
	w.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(text))
	r.Header.Set("Authorization", "Bearer "+decisionToken)
	rec := httptest.NewRecorder()
	w.api.ServeHTTP(rec, r)
	var answer map[string]any
	dec := json.NewDecoder(rec.Body)
	dec.UseNumber()
	if err := dec.Decode(&answer); err != nil {
		w.t.Fatal(err)
	}
	if rec.Code != http.StatusOK {
		return map[string]any{"problem": answer["code"], "errors": fields(answer["errors"].([]any))}
	}
	if rec.Header().Get("Idempotent-Replayed") != "" {
		answer["replayed"] = true
	}
	return answer
}

func fields(errors []any) []string {
	list := []string{}
	for _, e := range errors {
		list = append(list, e.(map[string]any)["field"].(string))
	}
	slices.Sort(list)
	return list
}

// called is a call of the gRPC face, as post tells it.
func (w *twin) called(answer proto.Message, err error) map[string]any {
	w.t.Helper()
	if err != nil {
		f := w.face.FailureOf(w.t.Context(), err)
		list := []string{}
		for _, one := range f.Fields {
			list = append(list, one.Field)
		}
		slices.Sort(list)
		return map[string]any{"problem": f.Reason, "errors": list}
	}
	return spelled(answer.ProtoReflect())
}

// spelled is a message as the JSON face spells it: by the names of its fields,
// numbers as numbers, times as RFC 3339.
func spelled(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		f := all.Get(i)
		name := string(f.Name())
		v := m.Get(f)
		switch {
		case f.IsList():
			list := []any{}
			for n := range v.List().Len() {
				list = append(list, spelled(v.List().Get(n).Message()))
			}
			out[name] = list
		case f.HasPresence() && !m.Has(f):
		case f.Kind() == protoreflect.EnumKind:
			out[name] = string(f.Enum().Values().ByNumber(v.Enum()).Name())
		case f.Kind() == protoreflect.MessageKind:
			t := v.Message()
			parts := t.Descriptor().Fields()
			at := time.Unix(t.Get(parts.ByName("seconds")).Int(), t.Get(parts.ByName("nanos")).Int()).UTC()
			out[name] = at.Format(time.RFC3339Nano)
		case f.Kind() == protoreflect.StringKind:
			if v.String() != "" {
				out[name] = v.String()
			}
		case f.Kind() == protoreflect.BoolKind:
			if v.Bool() || name != "replayed" {
				out[name] = v.Bool()
			}
		default:
			out[name] = json.Number(fmt.Sprint(v.Int()))
		}
	}
	return out
}

// question is a message of the gRPC face for a question of the JSON face.
func question(t *testing.T, q map[string]any) *decisionv1.DecideRequest {
	t.Helper()
	out := &decisionv1.DecideRequest{}
	m := out.ProtoReflect()
	for name, v := range q {
		f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		switch v := v.(type) {
		case string:
			m.Set(f, protoreflect.ValueOfString(v))
		case int:
			m.Set(f, protoreflect.ValueOfInt64(int64(v)))
		case map[string]string:
			out.Labels = v
		default:
			t.Fatalf("%s is a %T", name, v)
		}
	}
	return out
}

// same reports differences of two answers.
func same(t *testing.T, what string, overHTTP, overGRPC map[string]any) {
	t.Helper()
	anonymous(overHTTP)
	anonymous(overGRPC)
	if diff := cmp.Diff(overHTTP, overGRPC); diff != "" {
		t.Errorf("%s: HTTP -, gRPC +\n%s", what, diff)
	}
}

// anonymous takes away what two refusals of an unknown key cannot have in
// common: they have an id of their own.
func anonymous(answer map[string]any) {
	if list, ok := answer["decisions"].([]any); ok {
		for _, one := range list {
			anonymous(one.(map[string]any))
		}
	}
	if answer["code"] == string(decide.UnknownKey) {
		delete(answer, "decision_id")
		delete(answer, "receipt")
	}
}

// catalogueOfTwins has a rule of every kind, algorithm and mode.
func catalogueOfTwins() *decide.Book {
	book := decide.NewBook()
	version := int64(0)
	put := func(kind decide.Kind, id string, object any) {
		version++
		book.Apply([]decide.Change{{Kind: kind, ID: id, Version: version, Object: object}})
	}
	rate := func(id, tenant string, subject rule.Subject, algorithm rule.Algorithm, change func(*rule.Rule)) {
		r := &rule.Rule{
			ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: algorithm, Subject: subject, Meter: id,
			Match: rule.Match{Tenant: tenant}, Limit: 4, Window: time.Minute, Burst: 4, OnFailure: rule.Open,
		}
		if change != nil {
			change(r)
		}
		put(decide.RuleKind, id, r)
	}
	for _, a := range []rule.Algorithm{rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.TokenBucket, rule.GCRA} {
		rate(string(a), "acme", rule.Tenant, a, nil)
	}
	rate("queue", "queued", rule.Tenant, rule.LeakyBucket, func(r *rule.Rule) { r.MaxDelay = time.Minute })
	rate("shadow", "acme", rule.Tenant, rule.GCRA, func(r *rule.Rule) { r.Mode, r.Limit, r.Burst = rule.Shadow, 1, 1 })
	rate("address", "", rule.IP, rule.GCRA, nil)
	rate("closed", "closed", rule.Tenant, rule.GCRA, func(r *rule.Rule) { r.OnFailure = rule.Closed })
	put(decide.RuleKind, "month", &rule.Rule{
		ID: "month", Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant, Meter: "calls",
		Match: rule.Match{Tenant: "monthly"}, Limit: 3, Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}, OnFailure: rule.Closed,
	})
	put(decide.WalletKind, "rich:credits", &decide.Wallet{Tenant: "rich", Meter: "credits", Granted: 5})
	put(decide.RuleKind, "wallet", &rule.Rule{
		ID: "wallet", Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Wallet: rule.Prepaid,
		Subject: rule.Tenant, Match: rule.Match{Tenant: "rich"}, Meter: "credits", OnFailure: rule.Closed,
	})
	put(decide.RuleKind, "banned", &rule.Rule{
		ID: "banned", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{Tenant: "banned"}, OnFailure: rule.Open,
	})
	put(decide.ServiceKind, "payments", &decide.ServiceDef{ID: "payments", Upstream: "http://192.0.2.1"})
	put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 2})
	put(decide.KeyKind, "k", &decide.Key{ID: "k", Tenant: "acme", Application: "web", User: "u1", Digest: sha256.Sum256([]byte("pk_live_4711"))})
	return book
}

// TestFacesAgree guarantees that a question and a correction have one answer
// and one event, field for field, in whichever language they are put.
func TestFacesAgree(t *testing.T) {
	t.Parallel()
	book := catalogueOfTwins()
	overHTTP, overGRPC := newTwin(t, book), newTwin(t, book)
	questions := []map[string]any{
		{},
		{"tenant": "acme"},
		{"tenant": "acme", "cost": 0},
		{"tenant": "acme", "cost": 3, "user": "u1"},
		{"tenant": "acme", "cost": 9},
		{"tenant": "acme"},
		{"tenant": "acme"},
		{"tenant": "queued", "cost": 4},
		{"tenant": "queued", "cost": 4},
		{"tenant": "monthly", "cost": 2},
		{"tenant": "monthly", "cost": 2},
		{"tenant": "monthly", "cost": 4},
		{"tenant": "rich", "cost": 7},
		{"tenant": "rich"},
		{"tenant": "rich", "cost": 0},
		{"tenant": "banned"},
		{"client_ip": "203.0.113.9"},
		{"client_ip": "2001:db8::1", "labels": map[string]string{"region": "eu"}},
		{"api_key": "pk_live_4711", "service": "payments", "method": "post", "path": "/v1/pay/7?x"},
		{"api_key": "nobody's"},
		{"api_key": "pk_live_4711", "tenant": "globex"},
		{"tenant": "globex", "request_id": "r", "client_ip": "203.0.113.10"},
		{"tenant": "globex", "request_id": "r", "client_ip": "203.0.113.10"},
		{"tenant": "globex", "request_id": "r", "client_ip": "203.0.113.10", "cost": 2},
		{"cost": -1, "client_ip": "x", "method": " ", "path": "/a%2Fb", "labels": map[string]string{"": ""}},
	}
	both := func(q map[string]any) map[string]any {
		answer := overHTTP.post("/v1/decisions", q)
		d, err := overGRPC.face.Decide(t.Context(), question(t, q))
		same(t, fmt.Sprint(q), answer, overGRPC.called(d, err))
		return answer
	}
	for _, q := range questions {
		both(q)
	}
	batch := &decisionv1.DecideBatchRequest{}
	for _, q := range questions[:20] {
		batch.Decisions = append(batch.Decisions, question(t, q))
	}
	out, err := overGRPC.face.DecideBatch(t.Context(), batch)
	same(t, "a batch", overHTTP.post("/v1/decisions:batch", map[string]any{"decisions": questions[:20]}), overGRPC.called(out, err))

	charged := both(map[string]any{"tenant": "rich2", "client_ip": "203.0.113.99", "cost": 3})
	id, sealed := charged["decision_id"].(string), charged["receipt"].(string)
	for _, f := range []struct {
		id    string
		units int64
	}{{"f-1", 2}, {"f-1", 2}, {"f-2", 2}, {"", 0}} {
		body := map[string]any{"receipt": sealed, "refund_id": f.id}
		in := &decisionv1.RefundRequest{DecisionId: id, Receipt: sealed, RefundId: f.id}
		if f.units > 0 {
			body["units"], in.Units = f.units, &f.units
		}
		c, err := overGRPC.face.Refund(t.Context(), in)
		same(t, fmt.Sprint("refund ", f), overHTTP.post("/v1/decisions/"+id+"/refund", body), overGRPC.called(c, err))
	}
	for _, cost := range []int64{4, 4, 5} {
		c, err := overGRPC.face.Settle(t.Context(), &decisionv1.SettleRequest{DecisionId: id, Receipt: sealed, Cost: &cost})
		same(t, fmt.Sprint("settle ", cost), overHTTP.post("/v1/decisions/"+id+"/settle", map[string]any{"receipt": sealed, "cost": cost}), overGRPC.called(c, err))
	}

	for _, w := range []*twin{overHTTP, overGRPC} {
		w.down = true
	}
	both(map[string]any{"tenant": "closed"})
	both(map[string]any{"tenant": "acme"})
	if diff := cmp.Diff(events(overHTTP), events(overGRPC)); len(overHTTP.told) < 30 || diff != "" {
		t.Errorf("told of %d: HTTP -, gRPC +\n%s", len(overHTTP.told), diff)
	}
}

// events are what was told of, without what the rules are.
func events(w *twin) (list []string) {
	for _, u := range w.told {
		if u.Status == http.StatusUnauthorized {
			u.ID, u.Decision, u.At = [16]byte{}, [16]byte{}, noon
		}
		list = append(list, fmt.Sprintf("%x %x %v %s %s %s %s %s %v %s %s %s %d %s %x", u.ID, u.Decision, u.At.UnixMicro(), u.Verdict, u.Tenant,
			u.Application, u.User, u.APIKey, u.Address, u.Service, u.Endpoint, u.Method, u.Cost, u.Labels, u.KeyDigest))
	}
	return list
}

// TestOneDesk guarantees that a receipt of one face is good at the other, and
// that both spend from one counter.
func TestOneDesk(t *testing.T) {
	t.Parallel()
	w := newTwin(t, catalogueOfTwins())
	d := w.post("/v1/decisions", map[string]any{"tenant": "rich", "cost": 4})
	id, sealed := d["decision_id"].(string), d["receipt"].(string)
	back, err := w.face.Refund(t.Context(), &decisionv1.RefundRequest{DecisionId: id, Receipt: sealed, RefundId: "f"})
	if err != nil || back.GetUnits() != 4 {
		t.Errorf("HTTP's receipt at gRPC: %v %v", back, err)
	}
	if again := w.post("/v1/decisions/"+id+"/refund", map[string]any{"receipt": sealed, "refund_id": "f"}); again["replayed"] != true {
		t.Errorf("the same refund at HTTP: %v", again)
	}
	e, err := w.face.Decide(t.Context(), &decisionv1.DecideRequest{Tenant: "rich", Cost: new(int64(4))})
	if err != nil || e.GetLimits()[0].GetBalance() != 1 {
		t.Errorf("decided over gRPC: %v %v, want a balance of 1", e, err)
	}
	settled := w.post("/v1/decisions/"+e.GetDecisionId()+"/settle", map[string]any{"receipt": e.GetReceipt(), "cost": 1})
	if settled["units"] != json.Number("-3") {
		t.Errorf("gRPC's receipt at HTTP: %v", settled)
	}
}

// TestTrustedPeers guarantees that no peer is trusted unless it is named.
func TestTrustedPeers(t *testing.T) {
	t.Parallel()
	w := newTwin(t, decide.NewBook())
	if err := w.face.Admit(grpcapi.RateLimit, netip.MustParseAddr("127.0.0.1"), nil); err == nil {
		t.Error("a peer that is not named may ask")
	}
}

// TestTogether guarantees that parts which stop at the same time do, that one
// which fails ends the others, and that its error is told under its name.
func TestTogether(t *testing.T) {
	t.Parallel()
	waits := boot.Part{Name: "waits", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}
	broken := errors.New("broken")
	fails := boot.Part{Name: "fails", Run: func(context.Context) error { return broken }}
	if err := together("all", waits, fails).Run(t.Context()); !errors.Is(err, broken) || err.Error() != "fails: broken" {
		t.Errorf("one fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := together("all", waits, waits).Run(ctx); err != nil {
		t.Errorf("stopped: %v", err)
	}
}
