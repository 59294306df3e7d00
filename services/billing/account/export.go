package account

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// An InvoiceDocument is an invoice as programs read it: JSON in snake case, money
// as decimals in text, times in RFC 3339.
type InvoiceDocument struct {
	ID       string            `json:"id"`
	Number   string            `json:"number"` // empty: a draft
	State    State             `json:"state"`
	Tenant   string            `json:"tenant"`
	Issuer   string            `json:"issuer"`
	Plan     string            `json:"plan"`
	PlanName string            `json:"plan_name"`
	Zone     string            `json:"zone"`
	Start    string            `json:"period_start"`
	End      string            `json:"period_end"`
	IssuedAt string            `json:"issued_at,omitempty"`
	Currency string            `json:"currency"`
	Total    string            `json:"total"`
	Lines    []LineDocument    `json:"lines,omitempty"`
	Counted  []CountedDocument `json:"counted,omitempty"`
}

// A LineDocument is one line of an InvoiceDocument.
type LineDocument struct {
	Kind      LineKind `json:"kind"`
	Meter     string   `json:"meter,omitempty"`
	From      int64    `json:"from,omitempty"`
	To        int64    `json:"to,omitempty"`
	Units     int64    `json:"units"`
	UnitPrice string   `json:"unit_price,omitempty"`
	Amount    string   `json:"amount"`
	Degraded  int64    `json:"degraded,omitempty"`
	Corrects  string   `json:"corrects,omitempty"`
	Start     string   `json:"period_start,omitempty"`
	End       string   `json:"period_end,omitempty"`
	Ref       string   `json:"ref,omitempty"`
	Text      string   `json:"text,omitempty"`
}

// A CountedDocument is how one meter was counted. Losses are there when they are
// 0, too.
type CountedDocument struct {
	Meter        string `json:"meter"`
	Calls        int64  `json:"calls"`
	Consumed     int64  `json:"consumed"`
	Returned     int64  `json:"returned"`
	Net          int64  `json:"net"`
	Degraded     int64  `json:"degraded"`
	Prepaid      int64  `json:"prepaid"`
	Lost         int64  `json:"lost"`
	Unattributed int64  `json:"unattributed"`
	SetAside     int64  `json:"set_aside"`
	Unpriced     int64  `json:"unpriced"`
}

// Document is the invoice for programs.
func (i Invoice) Document() InvoiceDocument {
	out := InvoiceDocument{
		ID: i.ID, Number: i.Number, State: i.State, Tenant: i.Tenant, Issuer: i.Issuer, Plan: i.Plan, PlanName: i.PlanName,
		Zone: i.Zone, Start: instant(i.Period.Start), End: instant(i.Period.End), IssuedAt: instant(i.IssuedAt),
		Currency: string(i.Total.Currency), Total: i.Total.Decimal(),
	}
	for _, l := range i.Lines {
		out.Lines = append(out.Lines, LineDocument{
			Kind: l.Kind, Meter: l.Meter, From: l.From, To: l.To, Units: l.Units, UnitPrice: l.UnitPrice, Amount: l.Amount.Decimal(),
			Degraded: l.Degraded, Corrects: l.Corrects, Start: instant(l.Of.Start), End: instant(l.Of.End), Ref: l.Ref, Text: l.Text,
		})
	}
	for _, c := range i.Counted {
		out.Counted = append(out.Counted, CountedDocument{
			Meter: c.Meter, Calls: c.Calls, Consumed: c.Consumed, Returned: c.Returned, Net: c.Net(), Degraded: c.Degraded,
			Prepaid: c.Prepaid, Lost: c.Lost, Unattributed: c.Unattributed, SetAside: c.SetAside, Unpriced: c.Unpriced,
		})
	}
	return out
}

// Rows is the invoice as a table: a heading, a row a line, and the total. Numbers
// are numbers; a text that a spreadsheet would run gets a ' in front.
func (i Invoice) Rows() [][]string {
	rows := [][]string{{
		"invoice", "state", "line", "meter", "from", "to", "units", "unit_price", "amount", "currency", "corrects",
		"period_start", "period_end", "ref", "text",
	}}
	name := i.Number
	if name == "" {
		name = i.ID
	}
	row := func(kind string, l Line) []string {
		return []string{
			SafeCell(name), string(i.State), kind, SafeCell(l.Meter), whole(l.From), whole(l.To), strconv.FormatInt(l.Units, 10), l.UnitPrice,
			l.Amount.Decimal(), string(i.Total.Currency), SafeCell(l.Corrects), instant(l.Of.Start), instant(l.Of.End), SafeCell(l.Ref), SafeCell(l.Text),
		}
	}
	for _, l := range i.Lines {
		rows = append(rows, row(string(l.Kind), l))
	}
	total := row("total", Line{Amount: i.Total, Of: i.Period})
	total[6] = "" // units of several meters do not add up
	return append(rows, total)
}

// SafeCell keeps a spreadsheet from running a text as a formula: its first character is
// one that begins one, wide forms included, or one that is skipped before it.
func SafeCell(s string) string {
	if first, _ := utf8.DecodeRuneInString(s); s != "" && strings.ContainsRune("=+-@＝＋－＠\t\r\n", first) {
		return "'" + s
	}
	return s
}

func whole(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
