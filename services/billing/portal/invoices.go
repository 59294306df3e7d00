package portal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// How many invoices are shown.
const (
	newInvoices  = 12  // beside one, and where the running one is looked for
	invoicesPage = 100 // on a page of the list
)

type invoicesView struct {
	Counted      string
	Rows         []invoiceRow
	Missing      *missing
	Older, First string // URLs; empty: there is none
}

type invoiceRow struct {
	Number, URL        string
	Name               string // of the period
	Period, Plan       string
	State, Tone, Total string
	Current            bool
}

type invoiceView struct {
	Number, Title, Says string
	State, Tone         string
	CSV, JSON           string
	Stats               []stat
	Groups              []lineGroup
	Currency, Total     string
	To                  []fact
	Loss                *lossView
	Others              []invoiceRow
}

type lineGroup struct {
	Title string
	Lines []lineRow
}

type lineRow struct {
	Text, Code, Below       string
	Quantity, Price, Amount string
}

func (v *visit) invoices() error {
	body := invoicesView{Counted: v.counted()}
	var before time.Time
	if text := v.r.URL.Query().Get("before"); text != "" {
		micros, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: before %.32q", errInput, text)
		}
		before, body.First = time.UnixMicro(micros).UTC(), "/portal/invoices"
	}
	var all []account.Invoice
	all, body.Missing = partOf(v, "invoice", func() ([]account.Invoice, error) {
		return v.Reader.Invoices(v.r.Context(), v.grant.Tenant, v.now.UTC(), before, invoicesPage+1)
	})
	if len(all) > invoicesPage {
		all = all[:invoicesPage]
		body.Older = "/portal/invoices?before=" + strconv.FormatInt(all[invoicesPage-1].Period.Start.UnixMicro(), 10)
	}
	for _, i := range all {
		body.Rows = append(body.Rows, v.invoiceRow(i, ""))
	}
	return v.show("invoices", v.lang.word("invoices"), "invoices", false, body)
}

func (v *visit) invoiceRow(i account.Invoice, current string) invoiceRow {
	l := v.lang
	z := zoneOf(i, v.who.Zone)
	out := invoiceRow{
		Number: numberOf(i, l), URL: "/portal/invoices/" + inPath(i.ID), Name: l.periodName(i.Period, z),
		Period: l.periodDays(i.Period, z), Plan: i.PlanName, Total: l.money(i.Total), Current: i.ID == current,
	}
	if out.Plan == "" {
		out.Plan = i.Plan
	}
	out.State, out.Tone = v.state(i)
	return out
}

func (v *visit) state(i account.Invoice) (text, tone string) {
	switch {
	case i.State == account.Final:
		return v.lang.word("inv.final"), "ok"
	case i.Running(v.now):
		return v.lang.word("inv.running"), "line"
	default:
		return v.lang.word("inv.draft"), "line"
	}
}

// numberOf is what an invoice is called: a draft has no number yet.
func numberOf(i account.Invoice, l lang) string {
	if i.Number != "" {
		return i.Number
	}
	return l.word("inv.draft")
}

// zoneOf is the zone that an invoice was made in.
func zoneOf(i account.Invoice, otherwise *time.Location) *time.Location {
	if z, err := period.Zone(i.Zone); err == nil {
		return z
	}
	return otherwise
}

// periodName is the month when a period is one, else its days.
func (l lang) periodName(s period.Span, z *time.Location) string {
	start, end := s.Start.In(z), s.End.In(z)
	if start.Day() == 1 && start.Equal(startOfDay(start, 0)) && end.Equal(start.AddDate(0, 1, 0)) {
		return l.month(start)
	}
	return l.periodDays(s, z)
}

// periodDays are the first and the last day of a period.
func (l lang) periodDays(s period.Span, z *time.Location) string {
	start, last := s.Start.In(z), s.End.In(z).Add(-time.Microsecond)
	from := l.day(start)
	if start.Year() != last.Year() {
		from = l.day(start) + " " + start.Format("2006")
	}
	return l.word("time.to", from, l.day(last)+" "+last.Format("2006"))
}

// ownInvoice is the tenant's invoice of the request. One that is not theirs and
// one that is not there are written down and answered alike.
func (v *visit) ownInvoice() (account.Invoice, error) {
	id := v.r.PathValue("id")
	i, err := v.Reader.Invoice(v.r.Context(), v.grant.Tenant, id, v.now.UTC())
	if errors.Is(err, account.ErrNotFound) || err == nil && i.Tenant != v.grant.Tenant {
		return account.Invoice{}, v.denied(access.KindInvoice, id)
	}
	return i, err
}

// invoiceFile is an invoice for a program.
func (v *visit) invoiceFile() error {
	i, err := v.ownInvoice()
	if err != nil {
		return err
	}
	name := fileName(i)
	switch v.r.PathValue("file") {
	case "csv":
		return v.csv(name+".csv", i.Rows())
	case "json":
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		if err := e.Encode(i.Document()); err != nil {
			return fmt.Errorf("%w: %w", errPage, err)
		}
		v.w.Header().Set("Content-Type", "application/json")
		v.w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.json"`)
		_, _ = v.w.Write(b.Bytes()) // the client is gone
		return nil
	default:
		return account.ErrNotFound
	}
}

// fileName has nothing that a header or a file system would take amiss.
func fileName(i account.Invoice) string {
	name := i.Number
	if name == "" {
		name = "draft-" + i.Period.Start.Format(time.DateOnly)
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, name)
}

func (v *visit) invoice() error {
	i, err := v.ownInvoice()
	if err != nil {
		return err
	}
	l := v.lang
	z := zoneOf(i, v.who.Zone)
	base := "/portal/invoices/" + inPath(i.ID)
	body := invoiceView{
		Number: numberOf(i, l), Title: l.word("inv.title", l.periodName(i.Period, z)), Says: l.word("inv.changes"),
		CSV: base + "/csv", JSON: base + "/json", Stats: v.invoiceStats(i),
		Groups: v.lineGroups(i, z), Currency: string(i.Total.Currency), Total: l.amount(i.Total),
		To: v.billedTo(i, z), Loss: v.lossOf(i.Counted),
	}
	body.State, body.Tone = v.state(i)
	if i.State == account.Final {
		body.Says = l.word("inv.issued", l.date(i.IssuedAt.In(z)))
	}
	others, _ := partOf(v, "invoice", func() ([]account.Invoice, error) {
		return v.Reader.Invoices(v.r.Context(), v.grant.Tenant, v.now.UTC(), time.Time{}, newInvoices)
	})
	if !slices.ContainsFunc(others, func(o account.Invoice) bool { return o.ID == i.ID }) {
		others = append(others, i) // it is older
	}
	for _, o := range others {
		body.Others = append(body.Others, v.invoiceRow(o, i.ID))
	}
	return v.show("invoice", body.Title, "invoices", false, body)
}

func (v *visit) invoiceStats(i account.Invoice) []stat {
	l := v.lang
	total := stat{Name: l.word("inv.total"), Value: l.amount(i.Total), Note: l.word("inv.without")}
	total.Unit, total.UnitAfter = l.around(i.Total)
	out := []stat{total}
	if best := mostCounted(i.Counted); best != nil {
		s := stat{Name: l.word("inv.net", best.Meter), Value: l.num(best.Net()), Note: l.word("inv.included.no")}
		for _, line := range i.Lines {
			if line.Kind == account.IncludedLine && line.Meter == best.Meter {
				s.Note = l.word("inv.included", l.num(line.Units))
			}
		}
		out = append(out, s)
	}
	corrections := money.Amount{Currency: i.Total.Currency}
	var lines int64
	for _, line := range i.Lines {
		if isCorrection(line.Kind) {
			corrections.Minor, lines = corrections.Minor+line.Amount.Minor, lines+1
		}
	}
	note := l.word("inv.corrected.none")
	if lines > 0 {
		note = l.count("inv.corrected", lines)
	}
	var lost int64
	for _, c := range i.Counted {
		lost += c.Lost + c.Unattributed + c.SetAside
	}
	lostNote := l.word("inv.lost.none")
	if lost > 0 {
		lostNote = l.word("inv.lost.some")
	}
	return append(out,
		stat{Name: l.word("inv.corrections"), Value: l.amount(corrections), Note: note},
		stat{Name: l.word("inv.lost"), Value: l.num(lost), Note: lostNote},
	)
}

func mostCounted(counted []account.Counted) *account.Counted {
	var best *account.Counted
	for i, c := range counted {
		if best == nil || c.Net() > best.Net() {
			best = &counted[i]
		}
	}
	return best
}

func isCorrection(k account.LineKind) bool {
	return k == account.LateLine || k == account.RefundLine || k == account.SettledLine
}

// lineGroups are the lines in the order they are printed, under a heading each.
func (v *visit) lineGroups(i account.Invoice, z *time.Location) []lineGroup {
	var out []lineGroup
	for _, g := range []struct {
		word string
		has  func(account.LineKind) bool
	}{
		{"inv.g.plan", func(k account.LineKind) bool { return k == account.FeeLine }},
		{"inv.g.usage", func(k account.LineKind) bool { return k == account.IncludedLine || k == account.UsageLine }},
		{"inv.g.wallet", func(k account.LineKind) bool { return k == account.PrepaidLine || k == account.TopUpLine }},
		{"inv.g.corrections", isCorrection},
	} {
		group := lineGroup{Title: v.lang.word(g.word)}
		for _, line := range i.Lines {
			if g.has(line.Kind) {
				group.Lines = append(group.Lines, v.lineRow(i, line, z))
			}
		}
		if len(group.Lines) > 0 {
			out = append(out, group)
		}
	}
	return out
}

func (v *visit) lineRow(i account.Invoice, line account.Line, z *time.Location) lineRow {
	l := v.lang
	out := lineRow{Quantity: l.num(line.Units), Price: l.decimal(line.UnitPrice), Amount: l.amount(line.Amount)}
	if line.UnitPrice == "" {
		out.Price = ""
	}
	if line.Corrects != "" {
		out.Below = l.word("line.corrects", line.Corrects)
		if line.Of.Start != i.Period.Start && !line.Of.Start.IsZero() {
			out.Below += ", " + l.periodName(line.Of, z)
		}
	}
	switch line.Kind {
	case account.FeeLine:
		plan := i.PlanName
		if plan == "" {
			plan = i.Plan
		}
		out.Text, out.Quantity, out.Below = l.word("line.fee", plan), l.num(1), l.periodDays(i.Period, z)
		if out.Price == "" {
			out.Price = out.Amount
		}
	case account.IncludedLine:
		out.Text, out.Below = l.word("line.included", line.Meter), l.word("line.included.of")
	case account.UsageLine:
		out.Text = l.usageLine(line)
		if line.Degraded > 0 {
			out.Below = l.word("line.unchecked", l.num(line.Degraded))
		}
	case account.TopUpLine:
		out.Text, out.Code, out.Below = l.word("line.topup", line.Meter), line.Ref, line.Text
	case account.PrepaidLine, account.LateLine, account.RefundLine, account.SettledLine:
		out.Text = l.word("line."+string(line.Kind), line.Meter)
		if line.Text != "" {
			out.Below = strings.TrimPrefix(out.Below+". "+l.word("line.apart", line.Text), ". ")
		}
	default:
		out.Text = line.Meter
	}
	return out
}

func (l lang) usageLine(line account.Line) string {
	switch {
	case line.From > 0 && line.To > 0:
		return l.word("line.usage", line.Meter, l.num(line.From), l.num(line.To))
	case line.From > 0:
		return l.word("line.usage.from", line.Meter, l.num(line.From))
	default:
		return l.word("line.usage.all", line.Meter)
	}
}

func (v *visit) billedTo(i account.Invoice, z *time.Location) []fact {
	l := v.lang
	name := v.who.Name
	if name == "" {
		name = i.Tenant
	}
	plan := i.PlanName
	if plan == "" {
		plan = i.Plan
	}
	start, end := i.Period.Start.In(z), i.Period.End.In(z)
	out := []fact{
		{Name: l.word("inv.tenant"), Value: name},
		{Name: l.word("inv.plan"), Value: plan},
		{Name: l.word("inv.period"), Value: l.word("time.to", l.date(start)+", "+minute(start), l.date(end)+", "+minute(end))},
		{Name: l.word("inv.zone"), Value: z.String()},
		{Name: l.word("inv.currency"), Value: string(i.Total.Currency)},
	}
	if i.Issuer != "" {
		out = append(out, fact{Name: l.word("inv.issuer"), Value: i.Issuer})
	}
	return out
}
