package httpapi_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// window makes a rule a fixed window of a minute.
func window(r *rule.Rule) { r.Algorithm, r.Burst = rule.FixedWindow, r.Limit }

// corrected posts a correction and reads its answer.
func (f *face) corrected(d *decision, verb, rest string) map[string]any {
	f.t.Helper()
	e := f.correct(d, verb, rest)
	if e.status != 200 {
		f.t.Fatalf("%s %s: %d %s", verb, rest, e.status, e.body)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(e.body), &got); err != nil {
		f.t.Fatalf("%s: %v", e.body, err)
	}
	if replayed := e.header.Get("Idempotent-Replayed"); replayed != "" {
		got["replayed"] = replayed
	}
	return got
}

// correct posts a correction with the receipt of a decision and other fields.
func (f *face) correct(d *decision, verb, rest string) exchange {
	f.t.Helper()
	return f.post("/v1/decisions/"+d.DecisionID+"/"+verb, fmt.Sprintf(`{"receipt": %q%s}`, d.Receipt, rest))
}

// TestFC10 guarantees that giving units back works when the budget is empty,
// once for each id, and never gives more than was charged.
func TestFC10(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("window", rule.Tenant, 10, window)
	one := `{"tenant": "acme"}`
	var last decision
	for range 10 {
		last = f.decided(one)
	}
	if d := f.decided(one); d.Outcome != "DENY" {
		t.Fatalf("an eleventh: %+v", d)
	}
	first := f.correct(&last, "refund", `, "refund_id": "r1", "units": 1`)
	if want := `{"refund_id":"r1","units":1,"refunded_total":1}` + "\n"; first.status != 200 || first.body != want || f.remaining("acme", "window") != 1 {
		t.Errorf("r1: %d %s, %d remaining, want %s and 1", first.status, first.body, f.remaining("acme", "window"), want)
	}
	again := f.correct(&last, "refund", `, "refund_id": "r1", "units": 1`)
	if again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" || f.remaining("acme", "window") != 1 {
		t.Errorf("r1 again: %s %v, %d remaining", again.body, again.header, f.remaining("acme", "window"))
	}
	if d := f.decided(one); d.Outcome != "ALLOW" || d.Limits[0].Remaining != 0 {
		t.Errorf("the unit that was given back: %+v", d)
	}
	if d := f.decided(one); d.Outcome != "DENY" {
		t.Errorf("one more: %+v", d)
	}
	if fields := refused(t, f.ask(`{"tenant": "acme", "cost": -1}`), 400, "malformed"); !slices.Equal(fields, []string{"cost"}) {
		t.Errorf("a negative cost: names %v", fields)
	}
	other := f.decided(`{"tenant": "acme", "cost": 0}`)
	if fields := refused(t, f.correct(&last, "refund", `, "refund_id": "r2", "units": 50`), 409, "refund-exceeds-charge"); !slices.Equal(fields, []string{"units"}) {
		t.Errorf("r2: names %v", fields)
	}
	if other.Limits[0].Remaining != 0 || f.remaining("acme", "window") != 0 {
		t.Errorf("after r2: %d remaining, want 0", f.remaining("acme", "window"))
	}
}

// TestRefund guarantees what refunds of one decision add up to, what is taken
// for what is left out, and what is told of each, once.
func TestRefund(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.monthly("month", 1000)
	d := f.decided(`{"tenant": "acme", "user": "u1", "cost": 10}`)
	told := len(f.told)
	if got := f.corrected(&d, "refund", `, "refund_id": "a", "units": 3`); got["units"] != 3.0 || got["refunded_total"] != 3.0 {
		t.Errorf("3 of 10: %v", got)
	}
	refused(t, f.correct(&d, "refund", `, "refund_id": "b", "units": 8`), 409, "refund-exceeds-charge")
	rest := f.corrected(&d, "refund", ``)
	if rest["units"] != 7.0 || rest["refunded_total"] != 10.0 || rest["refund_id"] != d.DecisionID {
		t.Errorf("the rest: %v", rest)
	}
	if got := f.corrected(&d, "refund", `, "refund_id": ""`); got["units"] != 7.0 || got["replayed"] != "true" {
		t.Errorf("the rest again: %v", got)
	}
	if got := f.corrected(&d, "refund", `, "refund_id": "a", "units": 9`); got["units"] != 3.0 || got["replayed"] != "true" {
		t.Errorf("a again: %v", got)
	}
	refused(t, f.correct(&d, "refund", `, "refund_id": "c"`), 409, "refund-exceeds-charge")
	if n := f.remaining("acme", "month"); n != 1000 {
		t.Errorf("%d remaining, want 1000", n)
	}
	if n := len(f.told) - told; n != 2 {
		t.Fatalf("told of %d corrections, want 2", n)
	}
	u := f.told[told+1]
	c := u.AppendCounters(nil)
	if u.Verdict != decide.VerdictRefund || u.Tenant != "acme" || u.User != "u1" || u.Latency <= 0 || len(c) != 1 || c[0].Units != -7 || c[0].Consumed != 10 || c[0].Refunded != 10 {
		t.Errorf("told %+v with %+v", u, c)
	}
}

// TestSettle guarantees that a decision is settled once, above its estimate
// even past the limit and below it by what is left.
func TestSettle(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.monthly("month", 10)
	d := f.decided(`{"tenant": "acme", "cost": 4}`)
	got := f.correct(&d, "settle", `, "cost": 17`)
	if want := fmt.Sprintf(`{"decision_id":%q,"cost":17,"units":13,"refunded_total":0}`+"\n", d.DecisionID); got.body != want || f.remaining("acme", "month") != 0 {
		t.Errorf("settled at 17: %s, want %s; %d remaining", got.body, want, f.remaining("acme", "month"))
	}
	if again := f.corrected(&d, "settle", `, "cost": 17`); again["units"] != 13.0 || again["replayed"] != "true" {
		t.Errorf("again: %v", again)
	}
	if fields := refused(t, f.correct(&d, "settle", `, "cost": 16`), 409, "already-settled"); !slices.Equal(fields, []string{"cost"}) {
		t.Errorf("another cost: names %v", fields)
	}
	if got := f.corrected(&d, "refund", ``); got["units"] != 17.0 {
		t.Errorf("refund of what was settled: %v", got)
	}

	e := f.decided(`{"tenant": "acme", "cost": 10}`)
	if got := f.corrected(&e, "settle", `, "cost": 0`); got["units"] != -10.0 || f.remaining("acme", "month") != 10 {
		t.Errorf("settled at 0: %v, %d remaining", got, f.remaining("acme", "month"))
	}
	if u := f.told[len(f.told)-1]; u.Verdict != decide.VerdictSettle || u.AppendCounters(nil)[0].Units != -10 {
		t.Errorf("told %+v", u)
	}
}

// TestNothingCharged guarantees that a decision which charged nothing says so
// when it is to be corrected, and that a peek has no receipt.
func TestNothingCharged(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 1, nil)
	passed := f.decided(`{"tenant": "acme"}`)
	refusal := f.decided(`{"tenant": "acme"}`)
	free := f.decided(`{}`)
	stranger := f.decided(`{"api_key": "nope"}`)
	f.stop(true)
	degraded := f.decided(`{"tenant": "acme"}`)
	if fields := refused(t, f.correct(&passed, "refund", ``), 503, "store-unavailable"); len(fields) != 0 {
		t.Errorf("names %v", fields)
	}
	if e := f.correct(&passed, "refund", ``); e.header.Get("Retry-After") != "1" {
		t.Errorf("without the store: %v", e.header)
	}
	f.stop(false)
	for name, d := range map[string]*decision{"a refusal": &refusal, "a pass that nothing counts": &free, "an unknown key": &stranger, "a degraded pass": &degraded} {
		for _, post := range [][2]string{{"refund", ``}, {"settle", `, "cost": 0`}} {
			if e := f.correct(d, post[0], post[1]); e.status != 409 || !strings.Contains(e.body, `"code":"nothing-charged"`) {
				t.Errorf("%s, %s: %d %s", name, post[0], e.status, e.body)
			}
		}
	}
	if peek := f.decided(`{"tenant": "acme", "cost": 0}`); peek.Receipt != "" {
		t.Errorf("a peek has the receipt %s", peek.Receipt)
	}
}

// TestReceipts guarantees whose receipt is good for what, and how long: only
// that of the decision itself, unaltered, of a known key, and for 7 days.
func TestReceipts(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.monthly("month", 1000)
	d, other := f.decided(`{"tenant": "acme"}`), f.decided(`{"tenant": "acme"}`)
	again := f.decided(`{"tenant": "acme", "request_id": "r"}`)
	for name, got := range map[string]exchange{
		"another decision's": f.post("/v1/decisions/"+other.DecisionID+"/refund", fmt.Sprintf(`{"receipt": %q}`, d.Receipt)),
		"unreadable":         f.post("/v1/decisions/"+d.DecisionID+"/refund", `{"receipt": "xyz"}`),
		"altered":            f.post("/v1/decisions/"+d.DecisionID+"/refund", fmt.Sprintf(`{"receipt": %q}`, flip(d.Receipt))),
		"of the wrong verb":  f.post("/v1/decisions/"+other.DecisionID+"/settle", fmt.Sprintf(`{"receipt": %q, "cost": 0}`, d.Receipt)),
	} {
		if fields := refused(t, got, 403, "receipt-invalid"); !slices.Equal(fields, []string{"receipt"}) {
			t.Errorf("%s: names %v", name, fields)
		}
	}
	if got := f.post("/v1/decisions/"+strings.ToUpper(d.DecisionID)+"/refund", fmt.Sprintf(`{"receipt": %q, "refund_id": "caps"}`, d.Receipt)); got.status != 200 {
		t.Errorf("an id in upper case: %d %s", got.status, got.body)
	}
	if replay := f.decided(`{"tenant": "acme", "request_id": "r"}`); replay.Receipt != again.Receipt {
		t.Errorf("a replay has the receipt %s, want that of the first answer, %s", replay.Receipt, again.Receipt)
	}

	f.advance(7*24*time.Hour - time.Microsecond)
	if got := f.correct(&other, "refund", ``); got.status != 200 {
		t.Errorf("just before 7 days: %d %s", got.status, got.body)
	}
	f.advance(time.Microsecond)
	if got := f.correct(&again, "refund", ``); got.status != 403 || !strings.Contains(got.body, "older than 7 days") {
		t.Errorf("after 7 days: %d %s", got.status, got.body)
	}
}

// flip changes one character of a receipt.
func flip(receipt string) string {
	b := []byte(receipt)
	i := len(b) / 2
	if b[i] == 'A' {
		b[i] = 'B'
	} else {
		b[i] = 'A'
	}
	return string(b)
}

// TestReceiptsOfOtherGateways guarantees that a receipt of one gateway is good
// at another while keys are rotated, and that a gateway without keys gives and
// takes none, and says which knob that is.
func TestReceiptsOfOtherGateways(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 10, nil)
	const old, next = "2026-11:secret-of-november", "2026-12:secret-of-december"
	first, second := f.with(f.service, old+","+next), f.with(f.service, next+","+old)
	bare, later := f.with(f.service, ""), f.with(f.service, next)
	for i, tt := range []struct {
		gives, takes *httpapi.API
		status       int
	}{
		{first, second, 200},
		{second, first, 200},
		{second, later, 200},
		{first, later, 403},
		{first, bare, 403},
	} {
		f.API = tt.gives
		d := f.decided(`{"tenant": "acme"}`)
		f.API = tt.takes
		got := f.correct(&d, "refund", ``)
		if got.status != tt.status || tt.status == 403 && !strings.Contains(got.body, "-receipt-keys") {
			t.Errorf("case %d: %d %s, want %d", i, got.status, got.body, tt.status)
		}
	}
	f.API = bare
	if d := f.decided(`{"tenant": "acme"}`); d.Receipt != "" {
		t.Errorf("without keys, the receipt %s", d.Receipt)
	}
}

// TestCorrectionRefuses guarantees that each field of a correction is held to
// its form, and named.
func TestCorrectionRefuses(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 10, nil)
	d := f.decided(`{"tenant": "acme"}`)
	for _, tt := range []struct {
		verb, body string
		fields     []string
	}{
		{"refund", ``, []string{"body"}},
		{"refund", `{}`, []string{"receipt"}},
		{"refund", `{"receipt": 1}`, []string{"receipt"}},
		{"refund", `{"receipt": "$", "units": 0}`, []string{"units"}},
		{"refund", `{"receipt": "$", "units": -1}`, []string{"units"}},
		{"refund", `{"receipt": "$", "units": 1.5}`, []string{"units"}},
		{"refund", `{"receipt": "$", "units": 9007199254740992}`, []string{"units"}},
		{"refund", `{"receipt": "$", "refund_id": "` + strings.Repeat("x", 129) + `"}`, []string{"refund_id"}},
		{"refund", `{"receipt": "$", "refund_id": 7}`, []string{"refund_id"}},
		{"refund", `{"receipt": "$", "cost": 1}`, []string{"cost"}},
		{"refund", `{"receipt": "$"} x`, []string{"body"}},
		{"settle", `{}`, []string{"receipt", "cost"}},
		{"settle", `{"receipt": "$"}`, []string{"cost"}},
		{"settle", `{"receipt": "$", "cost": -1}`, []string{"cost"}},
		{"settle", `{"receipt": "$", "cost": null}`, []string{"cost"}},
		{"settle", `{"receipt": "$", "cost": 1, "units": 1}`, []string{"units"}},
		{"settle", `{"receipt": "$", "cost": 1, "refund_id": "x"}`, []string{"refund_id"}},
	} {
		e := f.post("/v1/decisions/"+d.DecisionID+"/"+tt.verb, strings.ReplaceAll(tt.body, "$", d.Receipt))
		if fields := refused(t, e, 400, "malformed"); !slices.Equal(fields, tt.fields) {
			t.Errorf("%s %s: names %v, want %v", tt.verb, tt.body, fields, tt.fields)
		}
	}
	for _, id := range []string{"x", strings.ReplaceAll(d.DecisionID, "-", "x"), d.DecisionID[:35] + "g", d.DecisionID + "0"} {
		e := f.post("/v1/decisions/"+id+"/refund", fmt.Sprintf(`{"receipt": %q}`, d.Receipt))
		if fields := refused(t, e, 400, "malformed"); !slices.Equal(fields, []string{"decision_id"}) {
			t.Errorf("%s: names %v", id, fields)
		}
	}
	path := "/v1/decisions/" + d.DecisionID + "/refund"
	refused(t, f.send("POST", path, `{}`, "Content-Type", "application/json"), 401, "unauthorized")
	refused(t, f.send("POST", path, `{}`, "Authorization", "Bearer "+token, "Content-Type", "text/plain"), 415, "unsupported-media-type")
	refused(t, f.send("GET", path, ``), 405, "method-not-allowed")
	refused(t, f.post(path, `{"receipt": "`+strings.Repeat("A", 70_000)+`"}`), 413, "too-large")
	if f.remaining("acme", "burst") != 9 || len(f.told) != 1 {
		t.Error("something was corrected")
	}
}

// TestCorrectionErrors guarantees that every error of the domain has its
// status, and that none tells what only the log should say.
func TestCorrectionErrors(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 10, nil)
	d := f.decided(`{"tenant": "acme"}`)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		err    error
		status int
		code   string
		fields []string
	}{
		{decide.ErrNothingCharged, 409, "nothing-charged", nil},
		{fmt.Errorf("%w: 1", decide.ErrRefundExceeds), 409, "refund-exceeds-charge", []string{"units"}},
		{decide.ErrAlreadySettled, 409, "already-settled", []string{"cost"}},
		{decide.ErrTooManyRefunds, 409, "too-many-refunds", nil},
		{decide.ErrRefundID, 400, "malformed", []string{"refund_id"}},
		{decide.ErrCost, 400, "malformed", []string{"cost"}},
		{fmt.Errorf("%w: dial secret.example", decide.ErrStoreUnavailable), 503, "store-unavailable", nil},
		{errors.New("secret.example"), 500, "internal", nil},
		{context.Canceled, 499, "client-gone", nil},
	} {
		f.API = f.with(broken{Decider: f.service, err: tt.err}, "2026-11:secret-of-november")
		if f.ctx = nil; errors.Is(tt.err, context.Canceled) {
			f.ctx = gone
		}
		for _, post := range [][2]string{{"refund", ``}, {"settle", `, "cost": 1`}} {
			if post[0] == "settle" && errors.Is(tt.err, decide.ErrTooManyRefunds) {
				continue
			}
			e := f.correct(&d, post[0], post[1])
			if fields := refused(t, e, tt.status, tt.code); !slices.Equal(fields, tt.fields) || strings.Contains(e.body, "secret.example") {
				t.Errorf("%v: %s, names %v, want %v", tt.err, e.body, fields, tt.fields)
			}
			if (e.header.Get("Retry-After") != "") != (tt.status == 503) {
				t.Errorf("%v: Retry-After %q", tt.err, e.header.Get("Retry-After"))
			}
		}
	}
}

// TestTooManyRefunds guarantees that a decision takes a hundred refunds.
func TestTooManyRefunds(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.loose = true
	f.monthly("month", 1000)
	d := f.decided(`{"tenant": "acme", "cost": 200}`)
	for i := range limit.MaxRefunds {
		f.corrected(&d, "refund", fmt.Sprintf(`, "refund_id": "r%d", "units": 1`, i))
	}
	refused(t, f.correct(&d, "refund", `, "units": 1`), 409, "too-many-refunds")
}

// FuzzReceipt guarantees that nothing but our own receipts corrects anything.
func FuzzReceipt(f *testing.F) {
	face := newFace(f)
	face.loose = true
	face.rate("burst", rule.Tenant, 10, nil)
	d := face.decided(`{"tenant": "acme"}`)
	if _, err := base64.RawURLEncoding.DecodeString(d.Receipt); err != nil {
		f.Fatal(err)
	}
	f.Add(d.Receipt[:40])
	f.Add(flip(d.Receipt))
	f.Fuzz(func(t *testing.T, text string) {
		body, err := json.Marshal(map[string]string{"receipt": text})
		if err != nil || text == d.Receipt {
			return // it is ours, or no text
		}
		face.t = t
		if e := face.post("/v1/decisions/"+d.DecisionID+"/refund", string(body)); e.status == 200 || e.status >= 500 {
			t.Fatalf("%q: %d %s", text, e.status, e.body)
		}
	})
}
