package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"penstock.dev/deploy/local/devbroker/registry"
	"penstock.dev/deploy/local/devbroker/registrytest"
)

// A place is a broker and the registry that runs on it.
type place struct {
	*registry.Registry
	t       *testing.T
	cluster *kfake.Cluster
	url     string
}

func start(t *testing.T) *place {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	p := &place{t: t, cluster: cluster}
	p.open()
	return p
}

// open starts a registry on what the topic holds.
func (p *place) open() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	r, err := registry.Open(ctx, registry.Config{Brokers: p.cluster.ListenAddrs()}, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	s := httptest.NewServer(r.Handler())
	p.t.Cleanup(func() { s.Close(); r.Close() })
	p.Registry, p.url = r, s.URL
}

// register registers and must succeed.
func (p *place) register(subject, text string, refs ...registry.Reference) int {
	p.t.Helper()
	id, err := p.Register(p.t.Context(), subject, text, refs)
	if err != nil {
		p.t.Fatalf("register under %s: %v", subject, err)
	}
	return id
}

// call makes one request and returns status and body.
func (p *place) call(method, path, body string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got := resp.Header.Get("Content-Type"); got != "application/vnd.schemaregistry.v1+json" {
		p.t.Errorf("%s %s: content type %q", method, path, got)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// end is how many records were ever written to the topic.
func (p *place) end() int64 {
	p.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(p.cluster.ListenAddrs()...))
	if err != nil {
		p.t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(p.t.Context(), registry.Topic)
	if err != nil {
		p.t.Fatal(err)
	}
	o, _ := ends.Lookup(registry.Topic, 0)
	return o.Offset
}

// record is a schema of one record with the given fields.
func record(fields ...string) string {
	return `{"type":"record","name":"R","fields":[` + strings.Join(fields, ",") + `]}`
}

const (
	a        = `{"name":"a","type":"string"}`
	aDefault = `{"name":"a","type":"string","default":""}`
	b        = `{"name":"b","type":"int"}`
	bDefault = `{"name":"b","type":"int","default":0}`
	bLong    = `{"name":"b","type":"long"}`
	e1       = `{"name":"e","type":{"type":"enum","name":"E","symbols":["U","V"]}}`
	e2       = `{"name":"e","type":{"type":"enum","name":"E","symbols":["U","V","W"]}}`
	e1Def    = `{"name":"e","type":{"type":"enum","name":"E","symbols":["U","V"],"default":"U"}}`
	e2Def    = `{"name":"e","type":{"type":"enum","name":"E","symbols":["U","V","W"],"default":"U"}}`
)

// TestClientCalls guarantees that the sr client, and whoever speaks like it,
// gets the answers it relies on.
func TestClientCalls(t *testing.T) {
	t.Parallel()
	registrytest.Calls(t, start(t).url)
}

// TestLevels guarantees that every level lets pass exactly what it promises,
// judged on data: backward is that new readers understand old records, forward
// that old readers understand new ones, transitive that this holds for all
// versions and not only the newest.
func TestLevels(t *testing.T) {
	t.Parallel()
	all := []registry.Level{
		registry.None, registry.Backward, registry.BackwardTransitive, registry.Forward,
		registry.ForwardTransitive, registry.Full, registry.FullTransitive,
	}
	tests := []struct {
		name string
		old  []string
		next string
		pass []registry.Level
	}{
		{"a field with a default is added", []string{record(a)}, record(a, bDefault), all},
		{"a field with a default goes", []string{record(a, bDefault)}, record(a), all},
		{"a field without a default is added", []string{record(a)}, record(a, b), []registry.Level{registry.None, registry.Forward, registry.ForwardTransitive}},
		{"a field without a default goes", []string{record(a, b)}, record(a), []registry.Level{registry.None, registry.Backward, registry.BackwardTransitive}},
		{"an int becomes a long", []string{record(b)}, record(bLong), []registry.Level{registry.None, registry.Backward, registry.BackwardTransitive}},
		{"a long becomes an int", []string{record(bLong)}, record(b), []registry.Level{registry.None, registry.Forward, registry.ForwardTransitive}},
		{"a symbol is added and old readers have a default", []string{record(e1Def)}, record(e2Def), all},
		{"a symbol is added and old readers have none", []string{record(e1)}, record(e2), []registry.Level{registry.None, registry.Backward, registry.BackwardTransitive}},
		{"a type changes", []string{record(a)}, record(`{"name":"a","type":"double"}`), []registry.Level{registry.None}},
		{
			"a field comes back without the default it left with",
			[]string{record(a, bDefault), record(a)},
			record(a, `{"name":"b","type":"string","default":""}`),
			[]registry.Level{registry.None, registry.Backward, registry.Forward, registry.Full},
		},
		{"only documentation changes", []string{record(a)}, record(`{"name":"a","type":"string","doc":"The a."}`), all},
	}
	for _, tt := range tests {
		for _, level := range all {
			t.Run(tt.name+" under "+string(level), func(t *testing.T) {
				t.Parallel()
				p := start(t)
				if status, body := p.call(http.MethodPut, "/config", `{"compatibility":"NONE"}`); status != http.StatusOK {
					t.Fatalf("set NONE: %d %s", status, body)
				}
				for _, o := range tt.old {
					p.register("s", o)
				}
				if status, body := p.call(http.MethodPut, "/config/s", fmt.Sprintf(`{"compatibility":%q}`, level)); status != http.StatusOK {
					t.Fatalf("set %s: %d %s", level, status, body)
				}
				want := slices.Contains(tt.pass, level)
				_, verdict := p.call(http.MethodPost, "/compatibility/subjects/s/versions", payload(tt.next))
				if verdict != fmt.Sprintf(`{"is_compatible":%v}`, want) {
					t.Errorf("compatible = %s, want %v", verdict, want)
				}
				_, err := p.Register(t.Context(), "s", tt.next, nil)
				if (err == nil) != want {
					t.Errorf("register = %v, want passed: %v", err, want)
				}
			})
		}
	}
}

func payload(text string) string {
	raw, err := json.Marshal(map[string]string{"schema": text})
	if err != nil {
		return ""
	}
	return string(raw)
}

// TestFullTransitiveIsTheDefault guarantees that a subject nobody configured is
// held to the level Penstock's topics promise.
func TestFullTransitiveIsTheDefault(t *testing.T) {
	t.Parallel()
	p := start(t)
	if _, body := p.call(http.MethodGet, "/config", ""); body != `{"compatibilityLevel":"FULL_TRANSITIVE"}` {
		t.Errorf("GET /config = %s", body)
	}
	p.register("s", record(a, bDefault))
	p.register("s", record(a))
	if _, err := p.Register(t.Context(), "s", record(a, `{"name":"b","type":"string","default":""}`), nil); err == nil {
		t.Error("a schema that only the newest version could read was accepted")
	}
}

// TestIncompatibleLeavesNothingBehind guarantees that a refused schema changes
// nothing: no version, no id, no record in the topic, no subject.
func TestIncompatibleLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	p := start(t)
	first := p.register("s", record(a))
	before := p.end()
	status, body := p.call(http.MethodPost, "/subjects/s/versions", payload(record(`{"name":"a","type":"double"}`)))
	if status != http.StatusConflict || !strings.Contains(body, `"error_code":409`) {
		t.Errorf("incompatible: %d %s, want 409", status, body)
	}
	status, body = p.call(http.MethodPost, "/subjects/new/versions", payload(`{"type":"nonsense"}`))
	if status != http.StatusUnprocessableEntity || !strings.Contains(body, `"error_code":42201`) {
		t.Errorf("invalid: %d %s, want 422 with 42201", status, body)
	}
	if after := p.end(); after != before {
		t.Errorf("%d records were written", after-before)
	}
	for path, want := range map[string]string{"/subjects": `["s"]`, "/subjects/s/versions": `[1]`} {
		if _, body := p.call(http.MethodGet, path, ""); body != want {
			t.Errorf("GET %s = %s, want %s", path, body, want)
		}
	}
	if next := p.register("other", record(b)); next != first+1 {
		t.Errorf("next id = %d, want %d", next, first+1)
	}
}

// TestOneSchemaOneID guarantees that spellings of one schema are one schema, in
// one subject and across subjects, and that what changes its meaning or its
// documentation makes another.
func TestOneSchemaOneID(t *testing.T) {
	t.Parallel()
	const base = `{"type":"record","name":"R","namespace":"x","doc":"d","fields":[{"name":"f","type":{"type":"enum","name":"E","symbols":["U"]}},{"name":"g","type":["null","E"],"default":null}]}`
	tests := []struct {
		name string
		text string
		same bool
	}{
		{"white space", strings.ReplaceAll(base, ",", " ,\n\t"), true},
		{"the order of keys", `{"name":"R","doc":"d","namespace":"x","type":"record","fields":[{"type":{"symbols":["U"],"type":"enum","name":"E"},"name":"f"},{"default":null,"name":"g","type":["null","E"]}]}`, true},
		{"the namespace in the name", strings.Replace(base, `"name":"R","namespace":"x"`, `"name":"x.R"`, 1), true},
		{"names written in full", strings.Replace(strings.Replace(base, `"null","E"`, `"null","x.E"`, 1), `"name":"E"`, `"name":"x.E"`, 1), true},
		{"a primitive as an object", strings.Replace(base, `"null"`, `{"type":"null"}`, 1), true},
		{"other documentation", strings.Replace(base, `"doc":"d"`, `"doc":"e"`, 1), false},
		{"a property", strings.Replace(base, `"doc":"d"`, `"doc":"d","owner":"me"`, 1), false},
		{"another namespace", strings.Replace(base, `"namespace":"x"`, `"namespace":"y"`, 1), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			id := p.register("s", base)
			if status, body := p.call(http.MethodPut, "/config/s", `{"compatibility":"NONE"}`); status != http.StatusOK {
				t.Fatal(body)
			}
			if got := p.register("s", tt.text); (got == id) != tt.same {
				t.Errorf("id %d after %d, want the same: %v", got, id, tt.same)
			}
			if got := p.register("elsewhere", base); got != id {
				t.Errorf("id %d in another subject, want %d", got, id)
			}
		})
	}
}

// TestRegistrationsAtOnce guarantees that any number of services that start
// together get one id for one schema, and that different schemas get different
// ones.
func TestRegistrationsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t)
	const n = 16
	same, other := make([]int, n), make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id, err := p.Register(t.Context(), "s", record(a), nil)
			if err != nil {
				t.Error(err)
			}
			same[i] = id
		})
		wg.Go(func() {
			id, err := p.Register(t.Context(), fmt.Sprintf("s%d", i), record(fmt.Sprintf(`{"name":"f%d","type":"int"}`, i)), nil)
			if err != nil {
				t.Error(err)
			}
			other[i] = id
		})
	}
	wg.Wait()
	if slices.Sort(same); same[0] != same[n-1] {
		t.Errorf("one schema got the ids %v", same)
	}
	ids := slices.Compact(slices.Sorted(slices.Values(append(other, same[0]))))
	if len(ids) != n+1 {
		t.Errorf("%d schemas got the ids %v", n+1, ids)
	}
	if _, body := p.call(http.MethodGet, "/subjects/s/versions", ""); body != "[1]" {
		t.Errorf("versions = %s, want one", body)
	}
}

// TestRestart guarantees that a registry opened on the same topic answers as
// the one before, also after the topic was compacted, and never gives an id
// twice although the schema that had it is gone.
func TestRestart(t *testing.T) {
	t.Parallel()
	p := start(t)
	id1 := p.register("s", record(a))
	id2 := p.register("s", record(a, bDefault))
	gone := p.register("gone", record(b))
	last := p.register("forgotten", record(bLong))
	for _, c := range [][2]string{
		{http.MethodDelete, "/subjects/gone"},
		{http.MethodDelete, "/subjects/forgotten"},
		{http.MethodDelete, "/subjects/forgotten?permanent=true"},
	} {
		if status, body := p.call(c[0], c[1], ""); status != http.StatusOK {
			t.Fatalf("%v: %d %s", c, status, body)
		}
	}
	if status, body := p.call(http.MethodPut, "/config/s", `{"compatibility":"BACKWARD"}`); status != http.StatusOK {
		t.Fatal(body)
	}
	ask := func() map[string]string {
		answers := make(map[string]string)
		for _, path := range []string{
			"/subjects", "/subjects?deleted=true", "/subjects/s/versions", "/subjects/s/versions/latest", "/config/s",
			"/schemas", fmt.Sprintf("/schemas/ids/%d", id1), fmt.Sprintf("/schemas/ids/%d/versions", id2),
			fmt.Sprintf("/schemas/ids/%d", gone), fmt.Sprintf("/schemas/ids/%d", last),
		} {
			status, body := p.call(http.MethodGet, path, "")
			answers[path] = fmt.Sprint(status, " ", body)
		}
		return answers
	}
	before := ask()
	if !strings.HasPrefix(before[fmt.Sprintf("/schemas/ids/%d", gone)], "200") || !strings.HasPrefix(before[fmt.Sprintf("/schemas/ids/%d", last)], "404") {
		t.Errorf("deleted = %s, deleted for good = %s", before[fmt.Sprintf("/schemas/ids/%d", gone)], before[fmt.Sprintf("/schemas/ids/%d", last)])
	}
	for _, again := range []string{"opened again", "opened after compaction"} {
		p.open()
		for path, want := range before {
			if got := ask()[path]; got != want {
				t.Errorf("%s: GET %s = %s, want %s", again, path, got, want)
			}
		}
		p.cluster.Compact()
	}
	p.cluster.Compact()
	p.open()
	if id := p.register("new", record(`{"name":"n","type":"int"}`)); id <= last {
		t.Errorf("id %d was given again: the last one was %d", id, last)
	}
}

// TestWriteFails guarantees that a schema whose record the broker did not take
// is not there, and that the registry recovers by itself.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	p := start(t)
	f := p.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: -1})
	_, err := p.Register(t.Context(), "s", record(a), nil)
	var e *registry.Error
	if !errors.As(err, &e) || e.Code != 50001 {
		t.Errorf("register without a broker = %v, want 50001", err)
	}
	f.Remove()
	if _, body := p.call(http.MethodGet, "/subjects", ""); body != "[]" {
		t.Errorf("subjects = %s, want none", body)
	}
	if id := p.register("s", record(a)); id != 1 {
		t.Errorf("id = %d, want 1", id)
	}
}

// TestReferences guarantees that a schema may use another subject's type, that
// the answers name it, and that what is used cannot be deleted.
func TestReferences(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.register("address", `{"type":"record","name":"Address","namespace":"x","fields":[{"name":"city","type":"string"}]}`)
	text := `{"type":"record","name":"Person","namespace":"x","fields":[{"name":"home","type":"x.Address"}]}`
	ref := registry.Reference{Name: "x.Address", Subject: "address", Version: 1}
	id := p.register("person", text, ref)
	if _, body := p.call(http.MethodGet, fmt.Sprintf("/schemas/ids/%d", id), ""); !strings.Contains(body, `"references":[{"name":"x.Address","subject":"address","version":1}]`) {
		t.Errorf("schema = %s, want its reference", body)
	}
	if _, body := p.call(http.MethodGet, "/subjects/address/versions/1/referencedby", ""); body != fmt.Sprintf("[%d]", id) {
		t.Errorf("referenced by %s, want %d", body, id)
	}
	if status, body := p.call(http.MethodDelete, "/subjects/address", ""); status != http.StatusUnprocessableEntity || !strings.Contains(body, "42206") {
		t.Errorf("delete what is used: %d %s, want 42206", status, body)
	}
	ref.Version = 2
	if _, err := p.Register(t.Context(), "other", text, []registry.Reference{ref}); err == nil {
		t.Error("a reference to nothing was accepted")
	}
	p.open()
	if again := p.register("person", text, registry.Reference{Name: "x.Address", Subject: "address", Version: 1}); again != id {
		t.Errorf("id after a restart = %d, want %d", again, id)
	}
}

// TestAnswers guarantees status and code of every refusal, and that what the
// registry does not do it refuses rather than ignores.
func TestAnswers(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.register("s", record(a))
	p.register("kept", record(a))
	deep := p.register("with/slash and %", record(b))
	tests := []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/", "", 200, `{}`},
		{"GET", "/nothing", "", 404, `"error_code":404`},
		{"GET", "/schemas/types", "", 200, `["AVRO"]`},
		{"GET", "/contexts", "", 200, `["."]`},
		{"GET", "/mode", "", 200, `{"mode":"READWRITE"}`},
		{"PUT", "/mode", `{"mode":"IMPORT"}`, 422, `42204`},
		{"GET", "/schemas/ids/77", "", 404, `40403`},
		{"GET", "/schemas/ids/none", "", 404, `"error_code":404`},
		{"GET", "/schemas/ids/1/schema", "", 200, record(a)},
		{"GET", "/schemas/ids/1/subjects", "", 200, `["kept","s"]`},
		{"GET", "/schemas?latestOnly=true&subjectPrefix=k", "", 200, `"subject":"kept"`},
		{"GET", "/subjects?subjectPrefix=s", "", 200, `["s"]`},
		{"GET", "/subjects/none/versions", "", 404, `40401`},
		{"GET", "/subjects/s/versions/9", "", 404, `40402`},
		{"GET", "/subjects/s/versions/0", "", 422, `42202`},
		{"GET", "/subjects/s/versions/99999999999999999999", "", 422, `42202`},
		{"GET", "/subjects/s/versions/x", "", 422, `42202`},
		{"GET", "/subjects/s/versions/1/schema", "", 200, record(a)},
		{"GET", "/subjects/with%2Fslash%20and%20%25/versions/1", "", 200, fmt.Sprintf(`"id":%d`, deep)},
		{"POST", "/subjects/s", payload(record(b)), 404, `40403`},
		{"POST", "/subjects/none", payload(record(a)), 404, `40401`},
		{"POST", "/subjects/s", payload(record(a)), 200, `"version":1`},
		{"POST", "/subjects/s/versions", `{`, 400, `"error_code":400`},
		{"POST", "/subjects/s/versions", `{}`, 422, `42201`},
		{"POST", "/subjects/s/versions", `{"schema":"syntax = \"proto3\";","schemaType":"PROTOBUF"}`, 422, `42201`},
		{"POST", "/subjects/s/versions", `{"schema":"\"int\"","id":7}`, 422, `42205`},
		{"POST", "/subjects/s/versions", `{"schema":"\"int\"","ruleSet":{"domainRules":[]}}`, 422, `42210`},
		{"POST", "/compatibility/subjects/none/versions/latest", payload(record(a)), 404, `40401`},
		{"POST", "/compatibility/subjects/s/versions/latest?verbose=true", payload(record(bLong)), 200, `"messages":["not backward`},
		{"PUT", "/config/s", `{"compatibility":"SOMETIMES"}`, 422, `42203`},
		{"GET", "/config/s", "", 404, `40408`},
		{"GET", "/config/s?defaultToGlobal=true", "", 200, `FULL_TRANSITIVE`},
		{"DELETE", "/config/s", "", 404, `40408`},
		{"PUT", "/config/s", `{"compatibility":"backward"}`, 200, `{"compatibility":"BACKWARD"}`},
		{"GET", "/config/s", "", 200, `{"compatibilityLevel":"BACKWARD"}`},
		{"DELETE", "/config/s", "", 200, `{"compatibilityLevel":"BACKWARD"}`},
		{"DELETE", "/subjects/s/versions/1?permanent=true", "", 404, `40407`},
		{"DELETE", "/subjects/s?permanent=true", "", 404, `40405`},
		{"DELETE", "/subjects/s/versions/1", "", 200, `1`},
		{"DELETE", "/subjects/s/versions/1", "", 404, `40406`},
		{"DELETE", "/subjects/s", "", 404, `40404`},
		{"DELETE", "/subjects/s?permanent=true", "", 200, `[1]`},
		{"DELETE", "/subjects/s", "", 404, `40401`},
	}
	for _, tt := range tests {
		status, body := p.call(tt.method, tt.path, tt.body)
		if status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s = %d %s, want %d with %s", tt.method, tt.path, status, body, tt.status, tt.want)
		}
	}
}
