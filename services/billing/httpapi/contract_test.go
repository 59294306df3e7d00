package httpapi_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi/utils"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/httpapi"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
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

var now = time.Date(2026, 6, 30, 12, 0, 0, 0, time.UTC)

// books is the account of two tenants, or a database that is away.
type books struct {
	account.Reader
	fault   error
	denials []access.Denial
	span    period.Span
	key     string
}

var june = period.Span{Start: time.Date(2026, 5, 31, 21, 0, 0, 0, time.UTC), End: time.Date(2026, 6, 30, 21, 0, 0, 0, time.UTC)}

func invoiceOf(tenant, id string) account.Invoice {
	usd := func(minor int64) money.Amount { return money.Amount{Minor: minor, Currency: "USD"} }
	return account.Invoice{
		ID: id, Number: id, State: account.Final, Tenant: tenant, Issuer: "penstock", Plan: "gold", Zone: "Europe/Istanbul",
		Period: june, IssuedAt: now, Total: usd(9940),
		Lines: []account.Line{
			{Kind: account.FeeLine, Units: 1, UnitPrice: "99.00", Amount: usd(9900), Of: june},
			{Kind: account.UsageLine, Meter: "api-calls", From: 101, To: 500, Units: 400, UnitPrice: "0.001", Amount: usd(40), Of: june},
			{Kind: account.TopUpLine, Meter: "credits", Units: 100, Amount: usd(0), Of: june, Ref: "t1", Text: `=HYPERLINK("http://198.51.100.1","x")`},
			{Kind: account.RefundLine, Meter: "api-calls", Units: -3, Amount: usd(0), Of: june, Corrects: "INV-0000001"},
		},
		Counted: []account.Counted{{Meter: "api-calls", Calls: 500, Consumed: 500}},
	}
}

func (b *books) Profile(context.Context, string) (account.Profile, error) {
	return account.Profile{Zone: time.UTC, Period: june}, b.fault
}

// Invoices are a draft and the invoices of the two months before it.
func (b *books) Invoices(_ context.Context, tenant string, _, before time.Time, most int) ([]account.Invoice, error) {
	draft := invoiceOf(tenant, "draft-20260531T210000Z")
	draft.Number, draft.State, draft.IssuedAt = "", account.Draft, time.Time{}
	may, april := invoiceOf(tenant, "INV-6"), invoiceOf(tenant, "INV-5")
	may.Period.Start, april.Period.Start = june.Start.AddDate(0, -1, 0), june.Start.AddDate(0, -2, 0)
	var out []account.Invoice
	for _, i := range []account.Invoice{draft, may, april} {
		if i.Lines = nil; len(out) < most && (before.IsZero() || i.Period.Start.Before(before)) {
			out = append(out, i)
		}
	}
	return out, b.fault
}

func (b *books) Invoice(_ context.Context, tenant, id string, _ time.Time) (account.Invoice, error) {
	switch {
	case b.fault != nil:
		return account.Invoice{}, b.fault
	case tenant == "a" && id == "INV-1", tenant == "b" && id == "INV-7":
		return invoiceOf(tenant, id), nil
	}
	return account.Invoice{}, fmt.Errorf("%w: invoice %s of %s", account.ErrNotFound, id, tenant)
}

func (b *books) Usage(_ context.Context, tenant string, of period.Span) (account.Usage, error) {
	b.span = of
	day := account.UsageDay{Day: june.Start, Meter: "api-calls", Application: "@web", Service: "payments", Endpoint: "pay-" + tenant, Calls: 2, Units: 5, Returned: 1}
	zone, err := period.Zone("Europe/Istanbul")
	return account.Usage{Zone: zone, CountedTo: now, Days: []account.UsageDay{day}}, errors.Join(b.fault, err)
}

func (b *books) KeyUsage(ctx context.Context, tenant, key string, of period.Span) (account.Usage, error) {
	b.key = key
	return b.Usage(ctx, tenant, of)
}

func (b *books) Wallets(context.Context, string, time.Time) ([]account.Wallet, error) {
	return []account.Wallet{{
		Meter: "credits", Granted: 100, Consumed: 102,
		Grants:  []account.Grant{{ID: "t1", Units: 100, Spent: 100, GrantedAt: now, ExpiresAt: now, Reason: "order 17"}},
		Entries: []account.Entry{{At: now, Kind: account.Debit, Units: -102, Ref: "d1", Service: "payments", Endpoint: "pay", Flagged: "look"}},
	}}, b.fault
}

func (b *books) Denied(_ context.Context, d access.Denial) error {
	b.denials = append(b.denials, d)
	return nil
}

func (b *books) HasKey(_ context.Context, tenant, key string) (bool, error) {
	return key == tenant+"-1", b.fault
}

func (b *books) Verify(_ context.Context, token string, _ time.Time) (access.Grant, error) {
	if token != "token-a" && token != "token-b" {
		return access.Grant{}, fmt.Errorf("%w: %s", access.ErrRefused, token)
	}
	return access.Grant{Tenant: strings.TrimPrefix(token, "token-"), User: "u", JTI: "j"}, nil
}

const operator = "the operator's token"

func (b *books) Issue(_ context.Context, tenant, user string, ttl time.Duration, at time.Time) (access.Ticket, error) {
	return access.Ticket{Grant: access.Grant{JTI: "j1", Tenant: tenant, User: user, IssuedAt: at, ExpiresAt: at.Add(ttl)}, Token: "token-" + tenant, Code: "c 1"}, b.fault
}

func (b *books) Revoke(_ context.Context, jti string, _ time.Time) error {
	if b.fault == nil && jti != "j1" {
		return access.ErrNotFound
	}
	return b.fault
}

// A face is the server with a client that holds every exchange to the document.
type face struct {
	t     *testing.T
	url   string
	books *books
	check validator.Validator
	seen  map[string]bool
	calls []httpapi.Call
}

func newFace(t *testing.T) *face {
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
	f := &face{t: t, books: &books{}, check: check, seen: map[string]bool{}}
	srv := httptest.NewServer(httpapi.Handler(httpapi.Config{
		Reader: f.books, Gate: f.books, Audit: f.books, Issuer: f.books, Operators: []string{"another operator", operator}, PortalURL: "https://portal.example/",
		Now: func() time.Time { return now }, Timeout: time.Minute,
		Log: slog.New(slog.DiscardHandler), Observe: func(c httpapi.Call) { f.calls = append(f.calls, c) },
	}))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

type exchange struct {
	status int
	header http.Header
	body   string
}

// get asks with a token, and an Accept header unless it is empty.
func (f *face) get(token, path, accept string) exchange {
	f.t.Helper()
	return f.ask(http.MethodGet, token, path, accept, "")
}

func (f *face) ask(method, token, path, accept, body string) exchange {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
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
	e := exchange{resp.StatusCode, resp.Header.Clone(), string(text)}
	template, _, _ := strings.Cut(path, "?")
	for prefix, name := range map[string]string{"/v1/invoices/": "{id}", "/v1/portal-tokens/": "{jti}"} {
		if rest, ok := strings.CutPrefix(template, prefix); ok && rest != "" {
			template = prefix + name
		}
	}
	f.seen[fmt.Sprintf("%s %s %d", strings.ToLower(method), template, e.status)] = true
	if strings.HasPrefix(template, "/v1/") {
		resp.Body = io.NopCloser(bytes.NewReader(text))
		if ok, faults := f.check.ValidateHttpResponse(r, resp); !ok {
			for _, fault := range faults {
				f.t.Errorf("%s: %d %s is not the document's: %s %v", path, e.status, text, fault.Reason, fault.SchemaValidationErrors)
			}
		}
	}
	return e
}

func (f *face) want(status int, e exchange) exchange {
	f.t.Helper()
	if e.status != status {
		f.t.Errorf("answered %d %s, want %d", e.status, e.body, status)
	}
	return e
}

// TestContract guarantees that every answer is the document's, and that every answer of
// the document can be had.
func TestContract(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	for _, path := range []string{"/v1/invoices", "/v1/invoices/INV-1", "/v1/usage", "/v1/wallet"} {
		f.want(http.StatusOK, f.get("token-a", path, ""))
		f.want(http.StatusUnauthorized, f.get("", path, ""))
		f.want(http.StatusNotAcceptable, f.get("token-a", path, "application/pdf"))
		f.books.fault = fmt.Errorf("%w: away", account.ErrUnavailable)
		if e := f.want(http.StatusServiceUnavailable, f.get("token-a", path, "")); e.header.Get("Retry-After") == "" || strings.Contains(e.body, "away") {
			t.Errorf("%s: %+v", path, e)
		}
		f.books.fault = errors.New("what a stranger must not learn")
		if e := f.want(http.StatusInternalServerError, f.get("token-a", path, "")); strings.Contains(e.body, "stranger") {
			t.Errorf("%s tells its cause: %s", path, e.body)
		}
		f.books.fault = nil
	}
	f.want(http.StatusUnprocessableEntity, f.get("token-a", "/v1/invoices?limit=0", ""))
	f.want(http.StatusNotFound, f.get("token-a", "/v1/invoices/INV-9", ""))
	f.want(http.StatusNotFound, f.get("token-a", "/v1/usage?api_key=b-1", ""))
	f.want(http.StatusUnprocessableEntity, f.get("token-a", "/v1/usage?from=yesterday", ""))
	f.tokens()
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths {
		delete(item, "parameters")
		for method, raw := range item {
			var op struct{ Responses map[string]json.RawMessage }
			if err := json.Unmarshal(raw, &op); err != nil {
				t.Fatal(err)
			}
			for status := range op.Responses {
				if !f.seen[method+" "+path+" "+status] {
					t.Errorf("nobody was answered %s by %s %s", status, method, path)
				}
			}
		}
	}
	for _, path := range []string{"/openapi.json", "/openapi.yaml"} {
		f.want(http.StatusOK, f.get("", path, ""))
	}
	f.want(http.StatusNotFound, f.get("token-a", "/v2/invoices", ""))
	if len(f.calls) == 0 {
		t.Error("no call was observed")
	}
}

// TestInvoicePages guarantees that cursors lead through the invoices once, the newest first,
// and that a cursor that was made up, altered or another tenant's is refused.
func TestInvoicePages(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	page := func(query string) (ids []string, next string) {
		t.Helper()
		var p struct {
			Items []struct {
				ID string `json:"id"`
			} `json:"items"`
			NextCursor string `json:"next_cursor"`
		}
		if err := json.Unmarshal([]byte(f.want(http.StatusOK, f.get("token-a", "/v1/invoices"+query, "")).body), &p); err != nil {
			t.Fatal(err)
		}
		for _, i := range p.Items {
			ids = append(ids, i.ID)
		}
		return ids, p.NextCursor
	}
	all := []string{"draft-20260531T210000Z", "INV-6", "INV-5"}
	if got, next := page(""); !slices.Equal(got, all) || next != "" {
		t.Errorf("by default %v and then %q, want %v", got, next, all)
	}
	var cursor string
	for limit := 1; limit <= 3; limit++ {
		var got []string
		for next, more := "", true; more; more = next != "" {
			var ids []string
			ids, next = page(fmt.Sprintf("?limit=%d&cursor=%s", limit, next))
			if len(ids) > limit {
				t.Fatalf("a page of %d has %v", limit, ids)
			}
			if got = append(got, ids...); next != "" {
				cursor = next
			}
		}
		if !slices.Equal(got, all) {
			t.Errorf("in pages of %d: %v, want %v", limit, got, all)
		}
	}
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=501": "limit", "limit=many": "limit", "limit=": "limit",
		"cursor=!!": "cursor", "cursor=INV-6": "cursor", "cursor=" + cursor + "A": "cursor", "cursor=" + cursor[:len(cursor)-2]: "cursor", "cursor=AAAAAAAA" + cursor[8:]: "cursor",
	} {
		if e := f.want(http.StatusUnprocessableEntity, f.get("token-a", "/v1/invoices?"+query, "")); !strings.Contains(e.body, `"errors":[{"field":"`+field+`"`) {
			t.Errorf("%s is refused by %s", query, e.body)
		}
	}
	f.want(http.StatusUnprocessableEntity, f.get("token-b", "/v1/invoices?cursor="+cursor, ""))
}

// tokens asks for every answer that has to do with portal tokens.
func (f *face) tokens() {
	f.t.Helper()
	const path = "/v1/portal-tokens"
	issue := func(body string) exchange { return f.ask(http.MethodPost, operator, path, "", body) }
	e := f.want(http.StatusCreated, issue(`{"tenant": "a", "user": "u1", "ttl_seconds": 60}`))
	want := `{"token":"token-a","jti":"j1","expires_at":"2026-06-30T12:01:00Z","enter_url":"https://portal.example/portal/enter?code=c+1"}` + "\n"
	if e.body != want {
		f.t.Errorf("issued %s, want %s", e.body, want)
	}
	if e := f.want(http.StatusCreated, issue(`{"tenant": "a"}`)); !strings.Contains(e.body, "2026-06-30T13:00:00Z") {
		f.t.Errorf("by default issued %s, want for an hour", e.body)
	}
	for field, body := range map[string]string{
		"tenant": `{"tenant": ""}`, "user": `{"tenant": "a", "user": "` + strings.Repeat("u", 257) + `"}`, "ttl_seconds": `{"tenant": "a", "ttl_seconds": 0}`,
	} {
		if e := f.want(http.StatusUnprocessableEntity, issue(body)); !strings.Contains(e.body, `"field":"`+field+`"`) {
			f.t.Errorf("%s is refused by %s", body, e.body)
		}
	}
	for _, body := range []string{`{"tenant": "a\u0000"}`, `{"tenant": "a", "user": "\u0000"}`} {
		f.want(http.StatusUnprocessableEntity, issue(body))
	}
	for body, field := range map[string]string{
		`{"tenant": "a", "ttl": 1}`: "ttl", `{"Tenant": "a"}`: "Tenant", `{"tenant": 1}`: "tenant", `{"tenant": "a", "ttl_seconds": 1.5}`: "ttl_seconds",
	} {
		if e := f.want(http.StatusBadRequest, issue(body)); !strings.Contains(e.body, `"errors":[{"field":"`+field+`"`) {
			f.t.Errorf("%s is refused by %s", body, e.body)
		}
	}
	for _, body := range []string{``, `{`, `[]`, `{"tenant": 1}`, `{"tenant": "a", "ttl": 1}`, `{"tenant": "a"} {}`, `{"tenant": "a", "ttl_seconds": 1.5}`, `"` + strings.Repeat("a", 20_000) + `"`} {
		f.want(http.StatusBadRequest, issue(body))
	}
	for _, token := range []string{"", "token-a", operator + "x", operator[1:]} {
		f.want(http.StatusUnauthorized, f.ask(http.MethodPost, token, path, "", `{"tenant": "a"}`))
		f.want(http.StatusUnauthorized, f.ask(http.MethodDelete, token, path+"/j1", "", ""))
	}
	f.want(http.StatusUnauthorized, f.get(operator, "/v1/usage", ""))
	f.want(http.StatusNoContent, f.ask(http.MethodDelete, operator, path+"/j1", "", ""))
	f.want(http.StatusNotFound, f.ask(http.MethodDelete, operator, path+"/j2", "", ""))
	for status, fault := range map[int]error{http.StatusServiceUnavailable: account.ErrUnavailable, http.StatusInternalServerError: errors.New("hidden")} {
		f.books.fault = fault
		f.want(status, issue(`{"tenant": "a"}`))
		f.want(status, f.ask(http.MethodDelete, operator, path+"/j1", "", ""))
	}
	f.books.fault = nil
}

// TestFC30 guarantees for programs that what is another tenant's and what is not there is
// one answer, body and headers, in every form, and that each is kept for the audit.
func TestFC30(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	accepts := []string{"application/json", "text/csv", "application/pdf"}
	var first *exchange
	for _, path := range []string{"/v1/invoices/INV-7", "/v1/invoices/INV-999", "/v1/usage?api_key=b-1", "/v1/usage?api_key=zzz"} {
		for _, accept := range accepts {
			e := f.want(http.StatusNotFound, f.get("token-a", path, accept))
			e.header.Del("Date")
			if first == nil {
				first = &e
			}
			if !reflect.DeepEqual(e, *first) {
				t.Errorf("%s as %s: %+v, want as the first: %+v", path, accept, e, *first)
			}
		}
	}
	if len(f.books.denials) != 12 || f.books.denials[0].Ref != "INV-7" || f.books.denials[0].Tenant != "a" || f.books.denials[6].Kind != access.KindAPIKey {
		t.Errorf("the audit has %+v", f.books.denials)
	}
	for _, accept := range accepts[:2] {
		f.want(http.StatusOK, f.get("token-a", "/v1/invoices/INV-1", accept))
		f.want(http.StatusOK, f.get("token-a", "/v1/usage?api_key=a-1", accept))
	}
	f.want(http.StatusNotAcceptable, f.get("token-a", "/v1/invoices/INV-1", accepts[2]))
	if f.books.key != "a-1" {
		t.Errorf("the key asked for is %q", f.books.key)
	}
}

// TestS1TenantOfTheToken guarantees that no parameter changes whose usage is shown, and
// that a token in the URL opens nothing.
func TestS1TenantOfTheToken(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	for _, q := range []string{"tenant=b", "customer=b", "customer_id=b", "tenant_id=b", "access_token=token-b"} {
		e := f.want(http.StatusOK, f.get("token-a", "/v1/usage?"+q, ""))
		if !strings.Contains(e.body, "pay-a") || strings.Contains(e.body, "pay-b") {
			t.Errorf("%s: %s", q, e.body)
		}
	}
	f.want(http.StatusUnauthorized, f.get("", "/v1/usage?access_token=token-a&token=token-a", ""))
	for _, token := range []string{"token-c", "token-a token-a", " "} {
		f.want(http.StatusUnauthorized, f.get(token, "/v1/usage", ""))
	}
}

// TestCSV guarantees the table's form: RFC 4180, a heading, text that a spreadsheet would
// run disarmed, numbers left numbers.
func TestCSV(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	e := f.want(http.StatusOK, f.get("token-a", "/v1/invoices/INV-1", "text/csv;q=0.9, application/pdf"))
	if !strings.HasPrefix(e.header.Get("Content-Type"), "text/csv") || !strings.Contains(e.body, "\r\n") {
		t.Errorf("%v %q", e.header, e.body)
	}
	rows, err := csv.NewReader(strings.NewReader(e.body)).ReadAll()
	if err != nil || len(rows) != 6 {
		t.Fatalf("rows %v %v, want a heading, four lines and the total", rows, err)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	if got := rows[3][column["text"]]; got != `'=HYPERLINK("http://198.51.100.1","x")` {
		t.Errorf("the formula is %q", got)
	}
	if got := rows[4][column["units"]]; got != "-3" {
		t.Errorf("the negative number is %q", got)
	}
	if got := rows[5]; got[column["line"]] != "total" || got[column["amount"]] != "99.40" {
		t.Errorf("the total is %v", got)
	}
	e = f.want(http.StatusOK, f.get("token-a", "/v1/usage", "text/csv"))
	if rows, err := csv.NewReader(strings.NewReader(e.body)).ReadAll(); err != nil || len(rows) != 2 || !slices.Contains(rows[1], "'@web") || !slices.Contains(rows[1], "2026-06-01T00:00:00+03:00") {
		t.Errorf("usage %v %v", rows, err)
	}
}

// TestAccept guarantees which form an Accept header gets.
func TestAccept(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	for accept, want := range map[string]string{
		"": "application/json", "*/*": "application/json", "text/*": "text/csv", "text/csv;q=0.5, application/json;q=0.4": "text/csv",
		"application/*, text/csv;q=0": "application/json", "application/pdf, */*;q=0.1": "application/json",
		"application/json;q=0": "", "application/pdf": "", "text/html": "", "text/csv;q=x": "",
	} {
		e := f.get("token-a", "/v1/invoices/INV-1", accept)
		if got := e.header.Get("Content-Type"); want == "" && e.status != http.StatusNotAcceptable || want != "" && !strings.HasPrefix(got, want) {
			t.Errorf("%q is answered %d as %s, want %q", accept, e.status, got, want)
		}
	}
	if e := f.get("token-a", "/v1/invoices/INV-1", "application/pdf"); !strings.Contains(e.body, "PDF is not made") {
		t.Errorf("406 says %s", e.body)
	}
}

// TestUsageSpan guarantees what is shown when nothing is said, and what is too much.
func TestUsageSpan(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	for query, want := range map[string]period.Span{
		"":                           {Start: june.Start, End: now},
		"?from=2026-06-02T00:00:00Z": {Start: time.Date(2026, 6, 2, 0, 0, 0, 0, time.UTC), End: now},
		"?to=2026-06-02T00:00:00Z":   {Start: june.Start, End: time.Date(2026, 6, 2, 0, 0, 0, 0, time.UTC)},
		"?to=2026-05-02T00:00:00Z":   {Start: time.Date(2026, 4, 2, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 5, 2, 0, 0, 0, 0, time.UTC)},
	} {
		f.want(http.StatusOK, f.get("token-a", "/v1/usage"+query, ""))
		if !f.books.span.Start.Equal(want.Start) || !f.books.span.End.Equal(want.End) {
			t.Errorf("%q shows %v, want %v", query, f.books.span, want)
		}
	}
	for _, query := range []string{
		"?from=2026-07-02T00:00:00Z", "?from=2020-07-02T00:00:00Z", "?to=x",
		"?from=9999-12-30T00:00:00Z&to=9999-12-31T00:00:00Z", "?from=0001-06-01T00:00:00Z&to=0001-06-02T00:00:00Z",
	} {
		f.want(http.StatusUnprocessableEntity, f.get("token-a", "/v1/usage"+query, ""))
	}
}

// TestMethods guarantees that nothing but reading is answered.
func TestMethods(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, "INVENTED"} {
		r, err := http.NewRequestWithContext(t.Context(), method, f.url+"/v1/wallet", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s is answered %d, Allow %q", method, resp.StatusCode, resp.Header.Get("Allow"))
		}
	}
	seen := map[httpapi.Operation]bool{}
	for _, c := range f.calls {
		seen[c.Operation] = true
	}
	if got := slices.Collect(maps.Keys(seen)); len(got) != 1 || got[0] != httpapi.OpWallet {
		t.Errorf("observed as %v", got)
	}
}
