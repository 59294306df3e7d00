package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// batch asks many questions at once and reads the answers.
func (f *face) batch(questions ...string) []decision {
	f.t.Helper()
	e := f.post("/v1/decisions:batch", `{"decisions": [`+strings.Join(questions, ", ")+`]}`)
	if e.status != 200 {
		f.t.Fatalf("%v: %d %s", questions, e.status, e.body)
	}
	var got struct{ Decisions []decision }
	dec := json.NewDecoder(strings.NewReader(e.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		f.t.Fatalf("%s: %v", e.body, err)
	}
	return got.Decisions
}

// TestBatch guarantees that each question of a batch is answered as if it had
// come alone, in order: its own limits, key, request id and receipt, and an
// event of its own.
func TestBatch(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.key("k1", "s3cret", "acme", "web", "u1")
	f.rate("burst", rule.Tenant, 3, nil)
	f.put(decide.RuleKind, "bad", &rule.Rule{
		ID: "bad", Enabled: true, Mode: rule.Enforce, Kind: rule.Block, Algorithm: rule.NoAlgorithm, Match: rule.Match{Tenant: "evil"}, OnFailure: rule.Open,
	})
	f.decided(`{"tenant": "globex", "request_id": "g-1"}`)
	told := len(f.told)
	got := f.batch(
		`{"tenant": "acme", "cost": 2}`,
		`{"api_key": "s3cret", "cost": 2}`,
		`{"api_key": "s3cret"}`,
		`{"api_key": "nope"}`,
		`{"tenant": "evil"}`,
		`{"tenant": "globex", "request_id": "g-1"}`,
		`{"tenant": "globex", "request_id": "g-1", "cost": 2}`,
		`{"tenant": "globex", "request_id": "g-2"}`,
		`{"tenant": "globex", "request_id": "g-2"}`,
		`{"tenant": "globex", "cost": 0}`,
	)
	var all []string
	for _, d := range got {
		all = append(all, fmt.Sprint(d.Outcome, " ", d.Status, " ", d.Code, " ", d.Replayed, " ", d.Receipt != ""))
	}
	want := []string{
		"ALLOW 200  false true",
		"DENY 429 rate-limited false true",
		"ALLOW 200  false true",
		"DENY 401 unknown-key false true",
		"BLOCKED 403 blocked false true",
		"ALLOW 200  true true",
		"DENY 409 request-id-reused false false",
		"ALLOW 200  false true",
		"ALLOW 200  true true",
		"ALLOW 200  false false",
	}
	if !slices.Equal(all, want) {
		t.Errorf("answered\n%s\nwant\n%s", strings.Join(all, "\n"), strings.Join(want, "\n"))
	}
	if got[7].DecisionID != got[8].DecisionID || got[8].Limits[0].Remaining != 1 || got[9].Limits[0].Remaining != 1 {
		t.Errorf("the second of one request id: %+v, then %+v; want the first one again, charged once", got[8], got[9])
	}
	if n := len(f.told) - told; n != 6 {
		t.Errorf("told of %d decisions, want 6: not of repeats, the reused id and the peek", n)
	}
}

// TestBatchOf100 guarantees that a hundred questions are taken, and one more is
// not.
func TestBatchOf100(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.rate("burst", rule.Tenant, 60, nil)
	questions := slices.Repeat([]string{`{"tenant": "acme"}`}, 100)
	allowed := 0
	got := f.batch(questions...)
	for i, d := range got {
		if d.Outcome == "ALLOW" {
			allowed++
			if i >= 60 {
				t.Errorf("question %d passed out of order", i)
			}
		}
	}
	if len(got) != 100 || allowed != 60 {
		t.Errorf("%d answers, %d allowed, want 100 and 60", len(got), allowed)
	}
	questions = append(questions, `{}`)
	e := f.post("/v1/decisions:batch", `{"decisions": [`+strings.Join(questions, ",")+`]}`)
	if fields := refused(t, e, 400, "malformed"); !slices.Equal(fields, []string{"decisions"}) {
		t.Errorf("101 questions: names %v", fields)
	}
}

// TestBatchRefuses guarantees that what is wrong with one question is found
// before any is decided, and is named by where it stands.
func TestBatchRefuses(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.key("k1", "s3cret", "acme", "web", "u1")
	f.rate("burst", rule.Tenant, 3, nil)
	for _, tt := range []struct {
		name, body string
		fields     []string
	}{
		{"nothing", ``, []string{"body"}},
		{"an array", `[]`, []string{"body"}},
		{"no questions", `{}`, []string{"decisions"}},
		{"an empty list", `{"decisions": []}`, []string{"decisions"}},
		{"null", `{"decisions": null}`, []string{"decisions"}},
		{"an unknown field", `{"decisions": [{}], "atomic": true}`, []string{"atomic"}},
		{"a question that is none", `{"decisions": [{}, 1]}`, []string{"decisions[1]"}},
		{"an unknown field of a question", `{"decisions": [{"tenant": "acme"}, {"tenat": "acme"}]}`, []string{"decisions[1].tenat"}},
		{"a wrong cost", `{"decisions": [{"tenant": "acme"}, {}, {}, {"cost": -1}]}`, []string{"decisions[3].cost"}},
		{"two faults", `{"decisions": [{"cost": -1, "tenant": "acme"}, {"client_ip": "x"}]}`, []string{"decisions[0].cost", "decisions[1].client_ip"}},
		{
			"every fault of every question", `{"atomic": true, "decisions": [{"tenat": "acme", "cost": 1e3}, {}, {"cost": -1, "user": 5}, {"client_ip": "x"}]}`,
			[]string{"atomic", "decisions[0].tenat", "decisions[0].cost", "decisions[2].cost", "decisions[2].user", "decisions[3].client_ip"},
		},
		{"faults, and then no JSON", `{"decisions": [{"tenat": "acme"}, {"cost": 1, "cost": 2}, {"cost": -1}]}`, []string{"decisions[0].tenat", "decisions[1].cost"}},
		{"a label", `{"decisions": [{"labels": {"a": 1}}]}`, []string{"decisions[0].labels.a"}},
		{"a contradiction", `{"decisions": [{"tenant": "acme"}, {"api_key": "s3cret", "tenant": "globex"}]}`, []string{"decisions[1].tenant"}},
		{"no comma", `{"decisions": [{} {}]}`, []string{"decisions"}},
		{"no end", `{"decisions": [{}`, []string{"decisions"}},
		{"more behind it", `{"decisions": [{}]}]`, []string{"body"}},
	} {
		e := f.post("/v1/decisions:batch", tt.body)
		if fields := refused(t, e, 400, "malformed"); !slices.Equal(fields, tt.fields) {
			t.Errorf("%s: names %v, want %v", tt.name, fields, tt.fields)
		}
	}
	if len(f.state.Counters) != 0 || len(f.told) != 0 {
		t.Error("something was decided")
	}
	long := `{"decisions": [{"tenant": "` + strings.Repeat("a", 1<<20) + `"}]}`
	refused(t, f.post("/v1/decisions:batch", long), 413, "too-large")
	if e := f.post("/v1/decisions:batch", `{"decisions": [{}`+strings.Repeat(" ", 900_000)+`]}`); e.status != 200 {
		t.Errorf("900 kB: %d %s", e.status, e.body)
	}
	refused(t, f.send("POST", "/v1/decisions:batch", `{}`, "Content-Type", "application/json"), 401, "unauthorized")
	refused(t, f.send("GET", "/v1/decisions:batch", ``), 405, "method-not-allowed")
}

// TestBatchErrors guarantees that a fault of ours costs its own question, since
// others may have been charged; and that the log and not the caller has its
// cause.
func TestBatchErrors(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	f.API = f.with(broken{Decider: f.service, err: errors.New("password of the store")}, "")
	e := f.post("/v1/decisions:batch", `{"decisions": [{"tenant": "acme"}, {"api_key": "nope"}]}`)
	want := `{"decisions":[{"outcome":"DENY","status":500,"code":"internal","degraded":false,"limits":[]},{"decision_id":`
	if e.status != 200 || !strings.HasPrefix(e.body, want) {
		t.Errorf("%d %s, want %s", e.status, e.body, want)
	}
}

// FuzzBatch guarantees that the scanner takes for a batch what encoding/json
// does, and is only ever stricter: as many questions as there are, each of
// which is one by itself.
func FuzzBatch(f *testing.F) {
	for _, b := range []string{
		`{"decisions": [{"tenant": "acme"}, {"cost": 0, "labels": {"a": "b"}}]}`, `{"decisions": [ ]}`, `{"decisions": [{},]}`,
		`{"decisions": [{}], "decisions": [{}]}`, `{"decisions": [[{}]]}`, `{"decisions": [{}]} {}`, `{"Decisions": [{}]}`,
	} {
		f.Add(b)
	}
	face := newFace(f)
	face.loose = true
	f.Fuzz(func(t *testing.T, body string) {
		face.t = t
		e := face.post("/v1/decisions:batch", body)
		if e.status == 400 {
			return
		}
		if e.status != 200 {
			t.Fatalf("%q: %d %s", body, e.status, e.body)
		}
		var want struct {
			Decisions []json.RawMessage `json:"decisions"`
		}
		dec := json.NewDecoder(strings.NewReader(body))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&want); err != nil || dec.More() {
			t.Fatalf("%q was answered, and encoding/json refuses it: %v", body, err)
		}
		var got struct{ Decisions []decision }
		if err := json.Unmarshal([]byte(e.body), &got); err != nil || len(got.Decisions) != len(want.Decisions) {
			t.Fatalf("%q: %s: %v", body, e.body, err)
		}
		for _, q := range want.Decisions {
			if e := face.ask(string(q)); e.status != 200 {
				t.Fatalf("%s was answered in a batch, and alone is %d %s", q, e.status, e.body)
			}
		}
	})
}
