package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi/utils"

	"penstock.dev/services/rule-admin/httpapi"
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

// A contract holds exchanges to the document, and remembers which of its
// answers were seen.
type contract struct {
	check   validator.Validator
	paths   []string
	methods map[string]bool // "put /v1/rules/{id}"

	mu   sync.Mutex
	seen map[string]bool // "put /v1/rules/{id} 201"
}

func newContract(t *testing.T) *contract {
	t.Helper()
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	check, errs := validator.NewValidator(doc, config.WithFormatAssertions(), config.WithContentAssertions())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, faults := check.ValidateDocument(); !ok {
		t.Fatalf("the document is not OpenAPI 3.1: %v", faults)
	}
	c := &contract{check: check, methods: map[string]bool{}, seen: map[string]bool{}}
	for _, answer := range answers(t, text) {
		f := strings.Fields(answer)
		if !slices.Contains(c.paths, f[1]) {
			c.paths = append(c.paths, f[1])
		}
		c.methods[f[0]+" "+f[1]] = true
	}
	return c
}

// answers lists every answer of the document.
func answers(t *testing.T, document []byte) []string {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	var out []string
	for path, item := range doc.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			var op struct{ Responses map[string]json.RawMessage }
			if err := json.Unmarshal(raw, &op); err != nil {
				t.Fatal(err)
			}
			for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
				out = append(out, method+" "+path+" "+status)
			}
		}
	}
	slices.Sort(out)
	return out
}

// template is the document's path for a request's.
func (c *contract) template(path string) string {
	for _, p := range c.paths {
		prefix, suffix, ok := strings.Cut(p, "{id}")
		rest, under := strings.CutPrefix(path, prefix)
		rest, over := strings.CutSuffix(rest, suffix)
		if p == path || ok && under && over && rest != "" && !strings.Contains(rest, "/") {
			return p
		}
	}
	return ""
}

// An exchange is a request with its answer.
type exchange struct {
	status int
	header http.Header
	body   []byte
}

func (e exchange) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(e.body, &p); err != nil {
		t.Fatalf("%d %s: %v", e.status, e.body, err)
	}
	return p
}

type problem struct {
	Type, Title, Detail, Code string
	Status                    int
	Errors                    []struct{ Field, Message string }
}

func (p problem) fields() []string {
	var out []string
	for _, e := range p.Errors {
		out = append(out, e.Field)
	}
	return out
}

// hold checks one exchange against the document. An answer must be the
// document's; a request that was not refused as unreadable or out of bounds must
// be, too, and if strict one that was refused must not.
func (c *contract) hold(t *testing.T, r *http.Request, body string, e exchange, strict bool) {
	t.Helper()
	path := c.template(r.URL.Path)
	if !c.methods[strings.ToLower(r.Method)+" "+path] {
		return // no such path or method: 404 and 405 have tests of their own
	}
	request := func() *http.Request {
		again := r.Clone(t.Context())
		again.Body = io.NopCloser(strings.NewReader(body))
		if body != "" {
			again.Header.Set("Content-Type", "application/json")
		}
		return again
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[strings.ToLower(r.Method)+" "+path+" "+http.StatusText(e.status)] = true
	answer := &http.Response{StatusCode: e.status, Header: e.header, Body: io.NopCloser(bytes.NewReader(e.body)), Request: r}
	if ok, faults := c.check.ValidateHttpResponse(request(), answer); !ok {
		for _, f := range faults {
			t.Errorf("%s %s: the answer %d %s is not the document's: %s: %s %v", r.Method, r.URL, e.status, e.body, f.Message, f.Reason, f.SchemaValidationErrors)
		}
	}
	if e.status == http.StatusUnauthorized || e.status == http.StatusForbidden {
		return
	}
	ok, faults := c.check.ValidateHttpRequestSync(request())
	refused := slices.Contains([]int{
		http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge,
	}, e.status)
	switch {
	case !ok && !refused:
		for _, f := range faults {
			t.Errorf("%s %s %s: answered %d, and the document refuses it: %s: %s %v", r.Method, r.URL, body, e.status, f.Message, f.Reason, f.SchemaValidationErrors)
		}
	case ok && refused && strict:
		t.Errorf("%s %s %s: answered %d, and the document allows it", r.Method, r.URL, body, e.status)
	}
}

// unseen lists the answers of the document that no exchange was.
func (c *contract) unseen(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range answers(t, text) {
		f := strings.Fields(a)
		if !c.seen[f[0]+" "+f[1]+" "+http.StatusText(atoi(f[2]))] {
			out = append(out, a)
		}
	}
	return out
}

func atoi(s string) (n int) {
	for _, d := range s {
		n = n*10 + int(d-'0')
	}
	return n
}

// A face is a server with a client that holds it to the document.
type face struct {
	t        *testing.T
	url      string
	contract *contract
	token    string
}

// Tokens of the tests.
const (
	adminToken    = "admin-0123456789abcdef"
	readonlyToken = "readonly-0123456789abcdef"
)

func newFace(t *testing.T, cfg httpapi.Config, c *contract) *face {
	t.Helper()
	srv := httptest.NewServer(httpapi.Handler(cfg))
	t.Cleanup(srv.Close)
	return &face{t: t, url: srv.URL, contract: c, token: adminToken}
}

// as returns the face for another token.
func (f *face) as(token string) *face {
	g := *f
	g.token = token
	return &g
}

// in returns the face for a subtest.
func (f *face) in(t *testing.T) *face {
	g := *f
	g.t = t
	return &g
}

// do sends a request; headers are pairs.
func (f *face) do(method, path, body string, headers ...string) exchange {
	f.t.Helper()
	return f.send(method, path, body, false, headers...)
}

// refused is do for a request that the document refuses as well.
func (f *face) refused(method, path, body string, headers ...string) exchange {
	f.t.Helper()
	return f.send(method, path, body, true, headers...)
}

func (f *face) send(method, path, body string, strict bool, headers ...string) exchange {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if f.token != "" {
		r.Header.Set("Authorization", "Bearer "+f.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	e := exchange{resp.StatusCode, resp.Header, text}
	f.contract.hold(f.t, r, body, e, strict)
	return e
}

// want fails the test when the status is another.
func (f *face) want(status int, e exchange) exchange {
	f.t.Helper()
	if e.status != status {
		f.t.Errorf("answered %d %s, want %d", e.status, e.body, status)
	}
	return e
}
