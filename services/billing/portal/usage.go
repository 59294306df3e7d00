package portal

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// maxBars is how many quotas are shown before the rest is folded away.
const maxBars = 5

type usageView struct {
	Scope, Counted string
	Months, Meters []option
	CSV, LiveURL   string
	Live           liveUsage
	Days           daysView
	Ends           endsView
	Loss           *lossView
}

// liveUsage is the part of the page that moves.
type liveUsage struct {
	Banner     *bannerView
	Stats      []stat
	Quotas     []quotaView
	MoreQuotas []quotaView
	More       string
	NoQuotas   *missing
	Wallets    []walletView
	NoWallets  *missing
	Now        bool // the month that runs: quotas and wallets are of now
}

type bannerView struct {
	Title string
	Says  []string
}

type legend struct {
	Class, Fill, Text, Value string
	Ghost, Gate, Outline     bool
}

type daysView struct {
	Meter   string
	Plot    plot
	Legend  []legend
	Rows    [][]string
	Empty   bool
	Missing *missing
}

type endRow struct {
	Method, Path        string
	Other               bool
	Calls, Each, Units  string
	Share               string
	Cut, LastCut        string
	IsCut               bool
	calls, units, gross int64
	cut                 int64
	last                time.Time
}

type endsView struct {
	Says               string
	Rows               []endRow
	Calls, Units, Cuts string
	Back               string
	Missing            *missing
}

// A reading is what the usage page is made of.
type reading struct {
	month                        time.Time
	meter                        string
	meters                       []string
	usage                        account.Usage
	cuts                         []account.Cut
	quotas                       []account.Quota
	wallets                      []account.Wallet
	draft                        *account.Invoice
	noUsage, noCuts              *missing
	noQuotas, noWallets, noDraft *missing
}

func (v *visit) readUsage() (reading, error) {
	month, err := v.monthOf()
	if err != nil {
		return reading{}, err
	}
	ctx, tenant := v.r.Context(), v.grant.Tenant
	r := reading{month: month}
	r.usage, r.noUsage = partOf(v, "usage", func() (account.Usage, error) { return v.Reader.Usage(ctx, tenant, monthSpan(month)) })
	r.cuts, r.noCuts = partOf(v, "cuts", func() ([]account.Cut, error) { return v.Reader.Cuts(ctx, tenant, monthSpan(month)) })
	if v.current(month) {
		r.quotas, r.noQuotas = partOf(v, "quotas", func() ([]account.Quota, error) { return v.Reader.Quotas(ctx, tenant, v.now.UTC()) })
		r.wallets, r.noWallets = partOf(v, "wallet", func() ([]account.Wallet, error) { return v.Reader.Wallets(ctx, tenant, v.now.UTC()) })
		r.draft, r.noDraft = partOf(v, "invoice", v.runningDraft)
	}
	if !r.usage.CountedTo.IsZero() {
		v.who.CountedTo = r.usage.CountedTo
	}
	return r, r.choose(v.r.URL.Query().Get("meter"))
}

// choose settles which meter the page is about: the one asked for, else the one
// most used.
func (r *reading) choose(asked string) error {
	used := map[string]int64{}
	for _, d := range r.usage.Days {
		used[d.Meter] += d.Units
	}
	for _, q := range r.quotas {
		used[q.Meter] += 0
	}
	r.meters = sorted(used)
	if asked != "" {
		if !slices.Contains(r.meters, asked) && r.noUsage == nil {
			return fmt.Errorf("%w: meter %.64q", errInput, asked)
		}
		r.meter = asked
		return nil
	}
	if len(r.meters) > 0 {
		r.meter = slices.MaxFunc(r.meters, func(a, b string) int { return cmp.Compare(used[a], used[b]) })
	}
	return nil
}

// runningDraft is the draft of the period that runs, nil when nothing is billed.
func (v *visit) runningDraft() (*account.Invoice, error) {
	all, err := v.Reader.Invoices(v.r.Context(), v.grant.Tenant, v.now.UTC(), time.Time{}, newInvoices)
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.Running(v.now) {
			full, err := v.Reader.Invoice(v.r.Context(), v.grant.Tenant, i.ID, v.now.UTC())
			return &full, err
		}
	}
	return nil, nil //nolint:nilnil // no draft is an answer
}

func (v *visit) usage() error {
	r, err := v.readUsage()
	if err != nil {
		return err
	}
	q := url.Values{"month": {r.month.Format("2006-01")}}
	if r.meter != "" {
		q.Set("meter", r.meter)
	}
	body := usageView{
		Scope: v.lang.word("usage.scope", v.lang.month(r.month), v.who.Zone.String()), Counted: v.counted(),
		Months: v.monthOptions(r.month), CSV: "/portal/usage.csv?" + q.Encode(),
		Live: v.liveUsage(r), Days: v.days(r), Ends: v.ends(r), Loss: v.loss(r),
	}
	if v.current(r.month) {
		body.LiveURL = "/portal/usage/live?" + q.Encode()
	}
	if len(r.meters) > 1 {
		for _, m := range r.meters {
			body.Meters = append(body.Meters, option{m, m, m == r.meter})
		}
	}
	return v.show("usage", v.lang.word("usage"), "usage", body.LiveURL != "", body)
}

func (v *visit) usageLive() error {
	r, err := v.readUsage()
	if err != nil {
		return err
	}
	return v.fragment("usage", v.liveUsage(r))
}

func (v *visit) liveUsage(r reading) liveUsage {
	out := liveUsage{Stats: v.usageStats(r), NoQuotas: r.noQuotas, NoWallets: r.noWallets, Now: v.current(r.month)}
	for i, q := range r.quotas {
		if i < maxBars {
			out.Quotas = append(out.Quotas, v.quotaView(q))
		} else {
			out.MoreQuotas = append(out.MoreQuotas, v.quotaView(q))
		}
	}
	out.More = v.lang.word("quota.more", v.lang.num(int64(len(out.MoreQuotas))))
	for _, w := range r.wallets {
		out.Wallets = append(out.Wallets, v.walletView(w))
	}
	out.Banner = v.banner(r)
	return out
}

// banner says what refuses calls now, most urgent first.
func (v *visit) banner(r reading) *bannerView {
	l := v.lang
	b := &bannerView{}
	for _, q := range r.quotas {
		if refuses(q) {
			name, _ := l.quotaName(q)
			b.Says = append(b.Says, l.word("usage.now.quota", name, l.soon(q.Period.End.In(v.who.Zone), v.now)))
		}
	}
	for _, w := range r.wallets {
		if w.Balance() <= 0 {
			b.Says = append(b.Says, l.word("usage.now.wallet", w.Meter, l.num(w.Balance())))
		}
	}
	if len(b.Says) == 0 {
		return nil
	}
	b.Title = l.count("usage.now", int64(len(b.Says)))
	b.Says = b.Says[:min(3, len(b.Says))]
	return b
}

func (v *visit) usageStats(r reading) []stat {
	l := v.lang
	var out []stat
	if r.noUsage == nil {
		var net, back int64
		for _, d := range r.usage.Days {
			if d.Meter == r.meter {
				net, back = net+d.Net(), back+d.Returned
			}
		}
		q := mainQuota(r.quotas, r.meter)
		units := stat{Name: l.word("stat.units", l.monthName(r.month)), Value: l.num(net), Note: r.meter}
		if q != nil {
			if q.Unit == period.Month && q.Count == 1 {
				units.Note = l.word("stat.units.of", l.num(q.Limit), l.percent(q.Used(), q.Limit))
				if q.Used() != net { // it began later, or does not count all that is used
					units.Note = l.word("stat.units.quota", l.num(q.Used()), l.num(q.Limit), l.percent(q.Used(), q.Limit))
				}
			}
			out = append(out, units, v.pace(*q))
		} else {
			out = append(out, units)
		}
		if !v.current(r.month) || q == nil {
			out = append(out, stat{Name: l.word("stat.back"), Value: l.num(back), Note: l.word("stat.back.of")})
		}
	}
	if r.noCuts == nil {
		out = append(out, v.cutStat(r))
	}
	if v.current(r.month) && r.noDraft == nil {
		out = append(out, v.billStat(r.draft))
	}
	return out
}

// mainQuota is the meter's quota that belongs to the whole tenant, a month's
// before others.
func mainQuota(quotas []account.Quota, meter string) *account.Quota {
	var best *account.Quota
	for i, q := range quotas {
		if q.Meter != meter || q.Unlimited || q.Limit <= 0 || q.Application+q.User+q.APIKey != "" {
			continue
		}
		if best == nil || q.Unit == period.Month && best.Unit != period.Month {
			best = &quotas[i]
		}
	}
	return best
}

// pace says when a quota is reached if calls go on as they did in its period.
func (v *visit) pace(q account.Quota) stat {
	l := v.lang
	end := q.Period.End.In(v.who.Zone)
	if q.Used() >= q.Limit {
		return stat{Name: l.word("stat.reached"), Value: l.percent(q.Used(), q.Limit), Note: l.word("stat.reached.until", l.soon(end, v.now))}
	}
	passed, whole := v.now.Sub(q.Period.Start), q.Period.End.Sub(q.Period.Start)
	if passed <= 0 {
		passed = 1
	}
	atEnd := float64(q.Used()) * float64(whole) / float64(passed)
	if atEnd < float64(q.Limit) {
		return stat{
			Name: l.word("stat.pace"), Value: l.percent(int64(atEnd), q.Limit), Note: l.word("stat.pace.of", l.num(q.Limit)),
		}
	}
	at := q.Period.Start.Add(time.Duration(float64(passed) * float64(q.Limit) / float64(q.Used()))).In(v.who.Zone)
	at = at.Truncate(time.Hour)
	if at.Before(v.now) {
		at = v.now
	}
	return stat{Name: l.word("stat.reach"), Value: l.day(at), Note: l.word("stat.reach.at", minute(at))}
}

func (v *visit) cutStat(r reading) stat {
	l := v.lang
	var calls, units, passed int64
	for _, c := range r.cuts {
		calls, units = calls+c.Calls, units+c.Units
	}
	for _, d := range r.usage.Days {
		passed += d.Calls
	}
	out := stat{Name: l.word("stat.cut.past"), Value: l.num(calls), Note: l.word("stat.cut.units", l.num(units))}
	if v.current(r.month) {
		out.Name = l.word("stat.cut")
	}
	// A call that several meters count is in each of them: only one meter's calls
	// add up to all.
	if share := l.percent(calls, calls+passed); len(r.meters) == 1 && share != "" && r.noUsage == nil {
		out.Note = l.word("stat.cut.of", share, l.num(units))
	}
	return out
}

func (v *visit) billStat(draft *account.Invoice) stat {
	l := v.lang
	out := stat{Name: l.word("stat.bill"), Value: l.num(0), Note: l.word("stat.bill.none")}
	if draft == nil {
		return out
	}
	fee := money.Amount{Currency: draft.Total.Currency}
	for _, line := range draft.Lines {
		if line.Kind == account.FeeLine {
			fee.Minor += line.Amount.Minor
		}
	}
	rest := money.Amount{Minor: draft.Total.Minor - fee.Minor, Currency: fee.Currency}
	out.Value, out.Note = l.amount(draft.Total), l.word("stat.bill.of", l.amount(fee), l.amount(rest))
	out.Unit, out.UnitAfter = l.around(draft.Total)
	return out
}

// around is the currency where the language puts it: before or after.
func (l lang) around(a money.Amount) (before, after string) {
	if l == turkish {
		return "", string(a.Currency)
	}
	return string(a.Currency), ""
}

// A dayCount is one day of one meter.
type dayCount struct{ allowed, unchecked, cut int64 }

func (d dayCount) sum() int64 { return d.allowed + d.unchecked + d.cut }

// byDay adds the meter's days up. Refusals by rules that are not known any more
// have no meter; they are counted with the only meter when there is one.
func (r reading) byDay(zone *time.Location) map[int]dayCount {
	out := map[int]dayCount{}
	for _, d := range r.usage.Days {
		if d.Meter == r.meter {
			n := out[d.Day.In(zone).Day()]
			n.allowed, n.unchecked = n.allowed+d.Units-d.Degraded, n.unchecked+d.Degraded
			out[d.Day.In(zone).Day()] = n
		}
	}
	for _, c := range r.cuts {
		if c.Meter == r.meter || c.Meter == "" && len(r.meters) <= 1 {
			n := out[c.Day.In(zone).Day()]
			n.cut += c.Units
			out[c.Day.In(zone).Day()] = n
		}
	}
	return out
}

func (v *visit) days(r reading) daysView {
	l := v.lang
	out := daysView{Meter: r.meter}
	if out.Missing = cmp.Or(r.noUsage, r.noCuts); out.Missing != nil {
		return out
	}
	counts := r.byDay(v.who.Zone)
	var all dayCount
	var most int
	for day, n := range counts {
		all.allowed, all.unchecked, all.cut = all.allowed+n.allowed, all.unchecked+n.unchecked, all.cut+n.cut
		if best := counts[most].sum(); n.sum() > best || n.sum() == best && day < most {
			most = day
		}
	}
	says := l.word("days.aria.none", l.month(r.month))
	if out.Empty = all.sum() == 0; !out.Empty {
		at := time.Date(r.month.Year(), r.month.Month(), most, 0, 0, 0, 0, v.who.Zone)
		says = l.word("days.aria", l.num(all.allowed+all.unchecked), l.num(all.cut), l.month(r.month), l.day(at))
	}
	slots, ghost := v.daySlots(r, counts)
	gate := r.gate()
	out.Plot = l.draw(232, slots, gate, says)
	out.Legend = []legend{
		{Class: "f-pass", Text: l.word("days.allowed"), Value: l.num(all.allowed)},
		{Fill: "url(#h-pass)", Text: l.word("days.unchecked"), Value: l.num(all.unchecked)},
		{Class: "f-cut", Text: l.word("days.cut"), Value: l.num(all.cut)},
	}
	if ghost {
		out.Legend = append(out.Legend, legend{Ghost: true, Text: l.word("days.rest")})
	}
	if gate > 0 {
		out.Legend = append(out.Legend, legend{Gate: true, Text: l.word("days.gate", l.num(gate))})
	}
	for _, day := range slices.Backward(sortedDays(counts)) {
		n := counts[day]
		at := time.Date(r.month.Year(), r.month.Month(), day, 0, 0, 0, 0, v.who.Zone)
		out.Rows = append(out.Rows, []string{l.day(at), l.num(n.allowed), l.num(n.unchecked), l.num(n.cut)})
	}
	return out
}

func sortedDays(m map[int]dayCount) []int {
	out := make([]int, 0, len(m))
	for d := range m {
		out = append(out, d)
	}
	slices.Sort(out)
	return out
}

// gate is how much a day fits a calendar month's quota, 0 when there is none.
func (r reading) gate() int64 {
	q := mainQuota(r.quotas, r.meter)
	if q == nil || q.Unit != period.Month || q.Count != 1 {
		return 0
	}
	days := max(1, (q.Period.End.Sub(q.Period.Start)+12*time.Hour)/(24*time.Hour)) // whole, though clocks change
	return q.Limit / int64(days)
}

// daySlots are the bars of a month. Today's is solid so far, with the rest that
// the last days let expect.
func (v *visit) daySlots(r reading, counts map[int]dayCount) (slots []slot, ghost bool) {
	l := v.lang
	last := r.month.AddDate(0, 1, -1).Day()
	for day := 1; day <= last; day++ {
		at := time.Date(r.month.Year(), r.month.Month(), day, 0, 0, 0, 0, v.who.Zone)
		today := v.current(r.month) && day == v.now.Day()
		n := counts[day]
		s := slot{ahead: at.After(v.now), now: today}
		if day%2 == 1 || today {
			s.label, s.wide = strconv.Itoa(day), wideLabel(day) && !today
		}
		if v.current(r.month) && !today && (day == v.now.Day()-1 || day == v.now.Day()+1) {
			s.label = "" // room for today's
		}
		s.title = l.day(at) + ": " + l.word("days.allowed") + " " + l.num(n.allowed)
		if n.unchecked > 0 {
			s.title += ", " + l.word("days.unchecked") + " " + l.num(n.unchecked)
		}
		s.title += ", " + l.word("days.cut") + " " + l.num(n.cut)
		s.parts = []part{{class: "f-pass", value: n.allowed}, {fill: "url(#h-pass)", value: n.unchecked}, {class: "f-cut", value: n.cut}}
		if today {
			s.ghost = max(0, lastDays(counts, day)-n.sum())
			ghost = s.ghost > 0
		}
		slots = append(slots, s)
	}
	return slots, ghost
}

// lastDays is the mean of up to seven days before one, 0 when there are none.
func lastDays(counts map[int]dayCount, today int) int64 {
	var sum, days int64
	for d := max(1, today-7); d < today; d++ {
		if n := counts[d]; n.sum() > 0 {
			sum, days = sum+n.sum(), days+1
		}
	}
	if days == 0 {
		return 0
	}
	return sum / days
}

func (v *visit) ends(r reading) endsView {
	l := v.lang
	out := endsView{Missing: cmp.Or(r.noUsage, r.noCuts)}
	if out.Missing != nil {
		return out
	}
	out.Says = l.word("ends.says", l.month(r.month))
	rows := r.byEndpoint()
	var calls, units, cut, back int64
	for _, row := range rows {
		calls, units, cut = calls+row.calls, units+row.units, cut+row.cut
		back += row.gross - row.units
	}
	for _, row := range rows {
		row.Calls, row.Units, row.Cut = l.num(row.calls), l.num(row.units), l.num(row.cut)
		row.Each = "–"
		if row.calls > 0 {
			row.Each = l.word("ends.mixed")
			if row.gross%row.calls == 0 {
				row.Each = l.num(row.gross / row.calls)
			}
		}
		row.Share = "0%"
		if units > 0 && row.units > 0 {
			row.Share = perCent(100 * float64(row.units) / float64(units))
		}
		row.IsCut, row.LastCut = row.cut > 0, l.word("never")
		if !row.last.IsZero() {
			row.LastCut = l.instantToday(row.last.In(v.who.Zone), v.now)
		}
		out.Rows = append(out.Rows, row)
	}
	out.Calls, out.Units, out.Cuts = l.num(calls), l.num(units), l.num(cut)
	out.Back = l.word("ends.back", l.num(back))
	return out
}

// instantToday writes the time alone when it is today's.
func (l lang) instantToday(t, now time.Time) string {
	if !t.Before(startOfDay(now, 0)) {
		return clock(t)
	}
	return l.instant(t, now)
}

// byEndpoint adds the meter's month up by endpoint, the most used first.
func (r reading) byEndpoint() []endRow {
	type key struct{ method, path string }
	rows := map[key]*endRow{}
	at := func(method, path, endpoint, service string) *endRow {
		if path == "" {
			path = endpoint
			if path == "" {
				path = service
			}
		}
		k := key{method, path}
		if rows[k] == nil {
			rows[k] = &endRow{Method: method, Path: path, Other: path == ""}
		}
		return rows[k]
	}
	for _, d := range r.usage.Days {
		if d.Meter == r.meter {
			row := at(d.Method, d.Path, d.Endpoint, d.Service)
			row.calls, row.units, row.gross = row.calls+d.Calls, row.units+d.Net(), row.gross+d.Units
		}
	}
	for _, c := range r.cuts {
		row := at(c.Method, c.Path, c.Endpoint, c.Service)
		row.cut += c.Calls
		if c.LastSeen.After(row.last) {
			row.last = c.LastSeen
		}
	}
	out := make([]endRow, 0, len(rows))
	for _, row := range rows {
		out = append(out, *row)
	}
	slices.SortFunc(out, func(a, b endRow) int {
		return cmp.Or(cmp.Compare(b.units, a.units), cmp.Compare(b.cut, a.cut), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method))
	})
	return out
}

// A lossView is how the running invoice was counted: losses are numbers, also
// when they are 0.
type lossView struct {
	Says  string
	Parts []lossPart
	Why   bool
}

type lossPart struct {
	Meter       string
	Facts, Loss []fact
}

func (v *visit) loss(r reading) *lossView {
	if r.draft == nil || len(r.draft.Counted) == 0 {
		return nil
	}
	out := v.lossOf(r.draft.Counted)
	out.Says = v.lang.word("loss.draft", v.lang.day(r.draft.Period.Start.In(v.who.Zone)), v.lang.day(r.draft.Period.End.In(v.who.Zone)))
	return out
}

func (v *visit) lossOf(counted []account.Counted) *lossView {
	l := v.lang
	out := &lossView{}
	for _, c := range counted {
		p := lossPart{
			Meter: c.Meter,
			Facts: []fact{
				{Name: l.word("loss.consumed"), Value: l.num(c.Consumed)},
				{Name: l.word("loss.back"), Value: l.num(-c.Returned)},
				{Name: l.word("loss.net"), Value: l.num(c.Net()), Bold: true},
			},
			Loss: []fact{
				{Name: l.word("loss.unchecked"), Value: l.num(c.Degraded)},
				{Name: l.word("loss.gaps"), Value: l.num(c.Lost)},
				{Name: l.word("loss.unattributed"), Value: l.num(c.Unattributed)},
				{Name: l.word("loss.aside"), Value: l.num(c.SetAside)},
				{Name: l.word("loss.unpriced"), Value: l.num(c.Unpriced)},
			},
		}
		if c.Prepaid != 0 {
			p.Facts = append(p.Facts, fact{Name: l.word("loss.prepaid"), Value: l.num(c.Prepaid)})
		}
		out.Why = out.Why || c.Degraded > 0
		out.Parts = append(out.Parts, p)
	}
	return out
}

// usageCSV is the month by day, endpoint and meter, for a program.
func (v *visit) usageCSV() error {
	month, err := v.monthOf()
	if err != nil {
		return err
	}
	u, err := v.Reader.Usage(v.r.Context(), v.grant.Tenant, monthSpan(month))
	if err != nil {
		return err
	}
	rows := [][]string{{"day", "meter", "application", "service", "endpoint", "method", "path", "calls", "units", "returned", "net", "unchecked", "prepaid"}}
	for _, d := range u.Days {
		row := []string{d.Day.In(v.who.Zone).Format(time.DateOnly)}
		for _, s := range []string{d.Meter, d.Application, d.Service, d.Endpoint, d.Method, d.Path} {
			row = append(row, account.SafeCell(s))
		}
		for _, n := range []int64{d.Calls, d.Units, d.Returned, d.Net(), d.Degraded, d.Prepaid} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, row)
	}
	return v.csv("usage-"+month.Format("2006-01")+".csv", rows)
}

func (v *visit) csv(name string, rows [][]string) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.UseCRLF = true // RFC 4180
	if err := w.WriteAll(rows); err != nil {
		return fmt.Errorf("%w: %w", errPage, err)
	}
	v.w.Header().Set("Content-Type", "text/csv; charset=utf-8; header=present")
	v.w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	_, _ = v.w.Write(b.Bytes()) // the client is gone
	return nil
}
