package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/period"
)

// A form is a media type of an answer.
type form string

const (
	asJSON form = "application/json"
	asCSV  form = "text/csv"
)

// formOf is the first of the forms that the Accept header takes, by its weights. A header
// that takes none of them is errNotAcceptable; PDF is not made here.
func formOf(r *http.Request, forms ...form) (form, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return forms[0], nil
	}
	best, weight := form(""), 0.0
	for _, f := range forms {
		if q := weightOf(accept, f); q > weight {
			best, weight = f, q
		}
	}
	if best == "" {
		return "", &unacceptable{forms}
	}
	return best, nil
}

// weightOf is the weight that the most exact range of an Accept header gives a form.
func weightOf(accept string, f form) float64 {
	kind, _, _ := strings.Cut(string(f), "/")
	exact, weight := 0, 0.0
	for item := range strings.SplitSeq(accept, ",") {
		media, parameters, _ := strings.Cut(item, ";")
		match := 0
		switch strings.ToLower(strings.TrimSpace(media)) {
		case string(f):
			match = 3
		case kind + "/*":
			match = 2
		case "*/*":
			match = 1
		}
		if match > exact {
			exact, weight = match, quality(parameters)
		}
	}
	return weight
}

func quality(parameters string) float64 {
	for p := range strings.SplitSeq(parameters, ";") {
		if name, value, _ := strings.Cut(strings.TrimSpace(p), "="); strings.EqualFold(name, "q") {
			if q, err := strconv.ParseFloat(value, 64); err == nil && q >= 0 && q <= 1 {
				return q
			}
			return 0
		}
	}
	return 1
}

type unacceptable struct{ forms []form }

func (u *unacceptable) Error() string {
	names := make([]string, len(u.forms))
	for i, f := range u.forms {
		names[i] = string(f)
	}
	return "this is answered as " + strings.Join(names, " or ") + "; PDF is not made"
}

func (u *unacceptable) Unwrap() error { return errNotAcceptable }

// An answer is a document, or rows of a table.
type answer struct {
	document any
	rows     [][]string // not nil: CSV
	name     string     // of the file
}

type invoicesPage struct {
	Items      []account.InvoiceDocument `json:"items"`
	NextCursor string                    `json:"next_cursor"`
}

// How many invoices a page has.
const (
	defaultPage = 100
	maxPage     = 500
)

type invoicesRequest struct {
	before time.Time // zero: the first page
	limit  int
}

func decodeInvoices(ctx context.Context, r *http.Request) (any, error) {
	if _, err := formOf(r, asJSON); err != nil {
		return nil, err
	}
	q, req := r.URL.Query(), invoicesRequest{limit: defaultPage}
	if q.Has("limit") {
		var err error
		if req.limit, err = strconv.Atoi(q.Get("limit")); err != nil || req.limit < 1 || req.limit > maxPage {
			return nil, &fieldFault{"limit", fmt.Sprintf("is %.128q, want 1 to %d", q.Get("limit"), maxPage)}
		}
	}
	var err error
	req.before, err = openCursor(grantOf(ctx).Tenant, q.Get("cursor"))
	return req, err
}

func (h *handler) invoices(ctx context.Context, request any) (any, error) {
	req, tenant := request.(invoicesRequest), grantOf(ctx).Tenant // decodeInvoices made it
	list, err := h.cfg.Reader.Invoices(ctx, tenant, h.cfg.Now(), req.before, req.limit+1)
	if err != nil {
		return nil, err
	}
	page := invoicesPage{Items: []account.InvoiceDocument{}}
	if len(list) > req.limit {
		list = list[:req.limit]
		page.NextCursor = sealCursor(tenant, list[req.limit-1].Period.Start)
	}
	for _, i := range list {
		page.Items = append(page.Items, i.Document())
	}
	return answer{document: page}, nil
}

// cursorCheck is how many bytes of a digest a cursor begins with: one that was made up,
// altered or given to another tenant is refused. It is no secret.
const cursorCheck = 8

// sealCursor returns the cursor of the invoices of periods that start before an instant.
func sealCursor(tenant string, before time.Time) string {
	at := binary.BigEndian.AppendUint64(nil, uint64(before.UnixMicro()))
	sum := sha256.Sum256(append([]byte("invoices/1/"+tenant+"\x00"), at...))
	return base64.RawURLEncoding.EncodeToString(append(sum[:cursorCheck], at...))
}

// openCursor returns the instant; zero for the first page.
func openCursor(tenant, cursor string) (time.Time, error) {
	if cursor == "" {
		return time.Time{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil && len(b) == cursorCheck+8 {
		before := time.UnixMicro(int64(binary.BigEndian.Uint64(b[cursorCheck:]))).UTC()
		if sealCursor(tenant, before) == cursor {
			return before, nil
		}
	}
	return time.Time{}, &fieldFault{"cursor", "is not a cursor of this list"}
}

type invoiceRequest struct {
	id, path string
	form     form
	unformed error // the form that is asked for is not made: said of what is the tenant's alone
}

func decodeInvoice(_ context.Context, r *http.Request) (any, error) {
	f, err := formOf(r, asJSON, asCSV)
	return invoiceRequest{r.PathValue("id"), r.URL.Path, f, err}, nil
}

func (h *handler) invoice(ctx context.Context, request any) (any, error) {
	req := request.(invoiceRequest) // decodeInvoice made it
	i, err := h.cfg.Reader.Invoice(ctx, grantOf(ctx).Tenant, req.id, h.cfg.Now())
	if err != nil {
		return nil, h.denied(ctx, err, access.KindInvoice, req.id, req.path)
	}
	if req.unformed != nil {
		return nil, req.unformed
	}
	if req.form == asCSV {
		return answer{rows: i.Rows(), name: i.ID}, nil
	}
	return answer{document: i.Document()}, nil
}

// denied keeps that something was asked for that is not the tenant's. What cannot be kept
// is not answered as if it had been.
func (h *handler) denied(ctx context.Context, err error, kind, ref, path string) error {
	if !errors.Is(err, account.ErrNotFound) {
		return err
	}
	g := grantOf(ctx)
	if kept := h.cfg.Audit.Denied(ctx, access.Denial{
		At: h.cfg.Now(), Tenant: g.Tenant, User: g.User, JTI: g.JTI, Kind: kind, Ref: ref, Path: path,
	}); kept != nil {
		return kept
	}
	return err
}

// maxDays is the longest span of usage that is answered at once.
const maxDays = 400

type usageRequest struct {
	from, to  time.Time // zero: not said
	key, path string
	form      form
	unformed  error // as an invoiceRequest's
}

func decodeUsage(_ context.Context, r *http.Request) (any, error) {
	f, err := formOf(r, asJSON, asCSV)
	q := r.URL.Query()
	req := usageRequest{key: q.Get("api_key"), path: r.URL.Path, form: f, unformed: err}
	for name, at := range map[string]*time.Time{"from": &req.from, "to": &req.to} {
		if value := q.Get(name); value != "" {
			if *at, err = time.Parse(time.RFC3339, value); err != nil {
				return nil, &fieldFault{name, "is no instant like 2026-11-30T09:00:00Z"}
			}
		}
	}
	return req, nil
}

type usageDocument struct {
	Zone      string    `json:"zone"`
	CountedTo string    `json:"counted_to,omitempty"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	Items     []dayLine `json:"items"`
}

type dayLine struct {
	Day         string `json:"day"` // its first instant in the tenant's zone
	Meter       string `json:"meter"`
	Application string `json:"application"`
	Service     string `json:"service"`
	Endpoint    string `json:"endpoint"`
	Method      string `json:"method"`
	Path        string `json:"path"`
	Calls       int64  `json:"calls"`
	Units       int64  `json:"units"`
	Returned    int64  `json:"returned"`
	Net         int64  `json:"net"`
	Degraded    int64  `json:"degraded"`
	Prepaid     int64  `json:"prepaid"`
}

func (h *handler) usage(ctx context.Context, request any) (any, error) {
	req := request.(usageRequest) // decodeUsage made it
	tenant := grantOf(ctx).Tenant
	if req.key != "" {
		has, err := h.cfg.Audit.HasKey(ctx, tenant, req.key)
		if err != nil {
			return nil, err
		}
		if !has {
			return nil, h.denied(ctx, account.ErrNotFound, access.KindAPIKey, req.key, req.path)
		}
	}
	if req.unformed != nil {
		return nil, req.unformed
	}
	span, err := h.span(ctx, tenant, req)
	if err != nil {
		return nil, err
	}
	var u account.Usage
	if req.key == "" {
		u, err = h.cfg.Reader.Usage(ctx, tenant, span)
	} else {
		u, err = h.cfg.Reader.KeyUsage(ctx, tenant, req.key, span)
	}
	if err != nil {
		return nil, err
	}
	if req.form == asCSV {
		return answer{rows: usageRows(u), name: "usage"}, nil
	}
	return answer{document: document(u, span)}, nil
}

// span is what was asked for; by default the running billing period, else this month.
func (h *handler) span(ctx context.Context, tenant string, req usageRequest) (period.Span, error) {
	now := h.cfg.Now()
	span := period.Span{Start: req.from, End: req.to}
	if span.Start.IsZero() {
		p, err := h.cfg.Reader.Profile(ctx, tenant)
		if err != nil {
			return span, err
		}
		if span.Start = p.Period.Start; span.Start.IsZero() {
			local := now.In(p.Zone)
			span.Start = time.Date(local.Year(), local.Month(), 1, 0, 0, 0, 0, p.Zone)
		}
		if !span.End.IsZero() && !span.Start.Before(span.End) {
			span.Start = span.End.AddDate(0, -1, 0)
		}
	}
	if span.End.IsZero() {
		span.End = now
	}
	switch {
	case span.Start.Year() < 2000 || span.End.Year() > 2100:
		return span, &fieldFault{"from", "and to are not of the years 2000 to 2100"}
	case !span.Start.Before(span.End):
		return span, &fieldFault{"to", "is not after from"}
	case span.End.Sub(span.Start) > maxDays*24*time.Hour:
		return span, &fieldFault{"from", "is more than 400 days before to"}
	}
	return span, nil
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func document(u account.Usage, span period.Span) usageDocument {
	out := usageDocument{Zone: u.Zone.String(), CountedTo: instant(u.CountedTo), From: instant(span.Start), To: instant(span.End), Items: []dayLine{}}
	for _, d := range u.Days {
		out.Items = append(out.Items, dayLine{
			Day: d.Day.In(u.Zone).Format(time.RFC3339), Meter: d.Meter, Application: d.Application, Service: d.Service, Endpoint: d.Endpoint,
			Method: d.Method, Path: d.Path, Calls: d.Calls, Units: d.Units, Returned: d.Returned, Net: d.Net(), Degraded: d.Degraded, Prepaid: d.Prepaid,
		})
	}
	return out
}

func usageRows(u account.Usage) [][]string {
	rows := [][]string{{"day", "meter", "application", "service", "endpoint", "method", "path", "calls", "units", "returned", "net", "degraded", "prepaid"}}
	for _, d := range u.Days {
		row := []string{d.Day.In(u.Zone).Format(time.RFC3339)}
		for _, s := range []string{d.Meter, d.Application, d.Service, d.Endpoint, d.Method, d.Path} {
			row = append(row, account.SafeCell(s))
		}
		for _, n := range []int64{d.Calls, d.Units, d.Returned, d.Net(), d.Degraded, d.Prepaid} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, row)
	}
	return rows
}
