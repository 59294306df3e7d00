package httpapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi/utils"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/receipt"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

var update = flag.Bool("update", false, "write openapi.json from openapi.yaml")

// TestOpenAPIJSON guarantees that the two forms of the document say the same.
func TestOpenAPIJSON(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compact, err := utils.ConvertYAMLtoJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := json.Indent(&want, compact, "", " "); err != nil {
		t.Fatal(err)
	}
	want.WriteByte('\n')
	if *update {
		if err := os.WriteFile("openapi.json", want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("openapi.json is not openapi.yaml: go test -run TestOpenAPIJSON -update")
	}
}

// document checks requests and answers against the OpenAPI document.
var document = sync.OnceValues(func() (validator.Validator, error) {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		return nil, err
	}
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		return nil, err
	}
	check, errs := validator.NewValidator(doc, config.WithFormatAssertions(), config.WithContentAssertions())
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return check, nil
})

// TestDocument guarantees that the document is OpenAPI 3.1.
func TestDocument(t *testing.T) {
	t.Parallel()
	check, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if ok, faults := check.ValidateDocument(); !ok {
		t.Fatal(faults)
	}
}

// TestDocumentNamesEveryCode guarantees that whoever matches codes finds all of
// them in the document.
func TestDocumentNamesEveryCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range httpapi.Codes() {
		if !bytes.Contains(text, []byte("`"+code+"`")) {
			t.Errorf("the document does not name `%s`", code)
		}
	}
}

const token = "0123456789abcdef0123456789abcdef"

var t0 = time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)

// A face is the API over the real domain, with the model for a store and a
// clock that only tests move. Every exchange is held to the document.
type face struct {
	*httpapi.API
	t       testing.TB
	book    *decide.Book
	service *decide.Service

	mu      sync.Mutex
	now     time.Time
	state   limit.State
	down    bool
	last    limit.Decision
	told    []decide.Usage
	version int64
	loose   bool            // exchanges are not held to the document
	ctx     context.Context // of requests; nil: the test's
}

func newFace(t testing.TB) *face {
	t.Helper()
	f := &face{t: t, book: decide.NewBook(), now: t0, state: limit.NewState()}
	f.service = decide.NewService(f.book, f, f.clock, decide.NewID, decide.Options{})
	f.API = f.with(f.service, "2026-11:secret-of-november")
	return f
}

// with is the API over a decider and keys.
func (f *face) with(decider ask.Decider, keys string) *httpapi.API {
	f.t.Helper()
	receipts, err := receipt.ParseKeys(keys)
	if err != nil {
		f.t.Fatal(err)
	}
	return httpapi.New(ask.New(ask.Config{Tokens: []string{"another-0123456789", token}, Receipts: receipts}, ask.Deps{
		Catalogue: func() ask.Catalogue { return f.book.Current() },
		Decider:   decider,
		Recorder:  f,
		Now:       f.clock,
	}), slog.New(slog.DiscardHandler))
}

// Record is the recorder.
func (f *face) Record(u decide.Usage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, u)
}

// Decide is the counter store.
func (f *face) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return limit.Answer{}, context.DeadlineExceeded
	}
	f.last = d
	return limit.Decide(f.state, f.now, d)
}

// DecideAll is the counter store.
func (f *face) DecideAll(ctx context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(ds)), make([]error, len(ds))
	for i := range ds {
		answers[i], errs[i] = f.Decide(ctx, ds[i])
	}
	return answers, errs
}

// Correct is the counter store.
func (f *face) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return limit.CorrectionAnswer{}, context.DeadlineExceeded
	}
	return limit.Correct(f.state, f.now, c)
}

func (f *face) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *face) stop(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *face) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *face) put(kind decide.Kind, id string, object any) {
	f.version++
	f.book.Apply([]decide.Change{{Kind: kind, ID: id, Version: f.version, Object: object}})
}

func (f *face) key(id, secret, tenant, application, user string) {
	f.put(decide.KeyKind, id, &decide.Key{ID: id, Tenant: tenant, Application: application, User: user, Digest: sha256.Sum256([]byte(secret))})
}

// rate adds a GCRA rule of so many units a minute, all of which may pass at
// once.
func (f *face) rate(id string, subject rule.Subject, units int64, change func(*rule.Rule)) {
	r := &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: subject, Meter: "api-calls",
		Limit: units, Window: time.Minute, Burst: units, OnFailure: rule.Open,
	}
	if change != nil {
		change(r)
	}
	f.put(decide.RuleKind, id, r)
}

// wallet adds a prepaid wallet of a tenant's credits and what it was granted.
func (f *face) wallet(tenant string, granted int64) {
	f.put(decide.WalletKind, tenant+":credits", &decide.Wallet{Tenant: tenant, Meter: "credits", Granted: granted})
	f.put(decide.RuleKind, tenant+"-wallet", &rule.Rule{
		ID: tenant + "-wallet", Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Wallet: rule.Prepaid,
		Subject: rule.Tenant, Match: rule.Match{Tenant: tenant}, Meter: "credits", OnFailure: rule.Closed,
	})
}

func (f *face) monthly(id string, units int64) {
	f.put(decide.RuleKind, id, &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant, Meter: "api-calls",
		Limit: units, Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}, OnFailure: rule.Closed,
	})
}

// An exchange is what was answered.
type exchange struct {
	status int
	header http.Header
	body   string
}

// send sends a request as it is.
func (f *face) send(method, path, body string, headers ...string) exchange {
	f.t.Helper()
	request := func() *http.Request {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		if f.ctx != nil {
			r = r.WithContext(f.ctx)
		}
		return r
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, request())
	e := exchange{w.Code, w.Header(), w.Body.String()}
	if !f.loose {
		f.hold(request, e)
	}
	return e
}

// hold checks an exchange against the document: what was answered, and that a
// question which was decided is one.
func (f *face) hold(request func() *http.Request, e exchange) {
	f.t.Helper()
	check, err := document()
	if err != nil {
		f.t.Fatal(err)
	}
	if e.status == http.StatusMethodNotAllowed || e.status == http.StatusNotFound {
		return // of no operation
	}
	answer := &http.Response{StatusCode: e.status, Header: e.header, Body: io.NopCloser(strings.NewReader(e.body)), Request: request()}
	if ok, faults := check.ValidateHttpResponse(request(), answer); !ok {
		for _, p := range faults {
			f.t.Errorf("the answer %d %s is not the document's: %s: %s %v", e.status, e.body, p.Message, p.Reason, p.SchemaValidationErrors)
		}
	}
	if e.status != http.StatusOK {
		return
	}
	if ok, faults := check.ValidateHttpRequestSync(request()); !ok {
		for _, p := range faults {
			f.t.Errorf("a question was answered that the document refuses: %s: %s %v", p.Message, p.Reason, p.SchemaValidationErrors)
		}
	}
}

// ask asks one question as a trusted caller.
func (f *face) ask(question string) exchange {
	f.t.Helper()
	return f.post("/v1/decisions", question)
}

// A decision is the answer as a client reads it.
type decision struct {
	DecisionID   string `json:"decision_id"`
	Outcome      string
	Status       int
	Code         string
	RuleID       string `json:"rule_id"`
	RetryAfter   *int64 `json:"retry_after_seconds"`
	DelayMS      *int64 `json:"delay_ms"`
	Degraded     bool
	Replayed     bool
	Cost         int64
	RulesVersion int64 `json:"rules_version"`
	Receipt      string
	Limits       []struct {
		RuleID             string `json:"rule_id"`
		Limit, Remaining   int64
		Consumed, Refunded *int64
		Balance            *int64
		ResetSeconds       *int64 `json:"reset_seconds"`
		Passed             bool
		Kind, Algorithm    string
		Meter, Mode        string
		PeriodStart        *time.Time `json:"period_start"`
		PeriodEnd          *time.Time `json:"period_end"`
	}
}

// decided asks and reads the decision.
func (f *face) decided(question string) (d decision) {
	f.t.Helper()
	e := f.ask(question)
	if e.status != http.StatusOK {
		f.t.Fatalf("%s: %d %s", question, e.status, e.body)
	}
	dec := json.NewDecoder(strings.NewReader(e.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		f.t.Fatalf("%s: %v", e.body, err)
	}
	return d
}

// post sends a request as a trusted caller.
func (f *face) post(path, body string) exchange {
	f.t.Helper()
	return f.send("POST", path, body, "Authorization", "Bearer "+token, "Content-Type", "application/json")
}

// remaining is what a tenant has left by a rule.
func (f *face) remaining(tenant, rule string) int64 {
	f.t.Helper()
	for _, l := range f.decided(fmt.Sprintf(`{"tenant": %q, "cost": 0}`, tenant)).Limits {
		if l.RuleID == rule {
			return l.Remaining
		}
	}
	f.t.Fatalf("%s does not apply to %s", rule, tenant)
	return 0
}

type problem struct {
	Type, Title, Detail, Code string
	Status                    int
	Errors                    []struct{ Field, Message string }
}

// refused checks that an answer is a problem of that status and code, and
// returns the fields that it names.
func refused(t testing.TB, e exchange, status int, code string) (fields []string) {
	t.Helper()
	var p problem
	dec := json.NewDecoder(strings.NewReader(e.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%d %q: %v", e.status, e.body, err)
	}
	if !strings.HasSuffix(e.body, "}\n") {
		t.Errorf("%q does not end its line", e.body)
	}
	if e.status != status || p.Status != status || p.Code != code || e.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("answered %d %s, want %d %s", e.status, e.body, status, code)
	}
	for _, f := range p.Errors {
		fields = append(fields, f.Field)
	}
	return fields
}
