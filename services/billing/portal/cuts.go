package portal

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
)

// linesPerPage is how long a timeline is before "Older".
const linesPerPage = 40

// A reason is how one kind of refusal is drawn and told.
type reason struct {
	code  account.Reason
	word  string
	class string // solid
	fill  string // or a pattern
	tone  string // of its tag
}

// reasons are in the order of the chart, from the axis up.
var reasons = []reason{
	{account.TooFast, "why.fast", "f-cut", "", ""},
	{account.QuotaUsedUp, "why.quota", "f-shut", "", "cut"},
	{account.WalletEmpty, "why.wallet", "", "url(#h-cut)", "cut"},
	{account.Blocked, "why.blocked", "o-cut", "", ""},
	{account.Unchecked, "why.unchecked", "f-near", "", "near"},
	{account.OtherReason, "why.other", "f-ink", "", ""},
}

type cutsView struct {
	Says, Counted         string
	Months, Reasons, Keys []option
	LiveURL               string
	Live                  cutsLive
	Title, Share          string
	Plot                  plot
	Legend                []legend
	Empty                 bool
	Missing               *missing
	Lines                 []cutLine
	Shown                 string
	Older, First          string // URLs; empty: there is none
}

type cutsLive struct {
	Now     nowView
	Missing *missing
}

// A cutLine is the repeats of one refusal on a day.
type cutLine struct {
	ISO, Day, Times, Calls string
	Says                   string
	Method, Path           string
	Other                  bool
	Tag, Tone              string
	Rule, State            string
	Free, FreeTone         string
	Key, Application       string
}

// A choice is what of the month is shown.
type choice struct {
	month  time.Time
	reason account.Reason
	key    string
	before int64 // microseconds of the last line that was shown; 0: from the newest
}

func (v *visit) choice() (choice, error) {
	q := v.r.URL.Query()
	month, err := v.monthOf()
	if err != nil {
		return choice{}, err
	}
	c := choice{month: month, reason: account.Reason(q.Get("reason")), key: q.Get("key")}
	if c.reason != "" && !slices.ContainsFunc(reasons, func(r reason) bool { return r.code == c.reason }) {
		return choice{}, fmt.Errorf("%w: reason %.32q", errInput, c.reason)
	}
	if text := q.Get("before"); text != "" {
		if c.before, err = strconv.ParseInt(text, 10, 64); err != nil {
			return choice{}, fmt.Errorf("%w: before %.32q", errInput, text)
		}
	}
	if c.key != "" {
		has, err := v.Audit.HasKey(v.r.Context(), v.grant.Tenant, c.key)
		if err != nil {
			return choice{}, err
		}
		if !has {
			return choice{}, v.denied(access.KindAPIKey, c.key)
		}
	}
	return c, nil
}

// url is the page's address with this choice.
func (c choice) url(before int64) string {
	q := url.Values{"month": {c.month.Format("2006-01")}}
	if c.reason != "" {
		q.Set("reason", string(c.reason))
	}
	if c.key != "" {
		q.Set("key", c.key)
	}
	if before > 0 {
		q.Set("before", strconv.FormatInt(before, 10))
	}
	return "/portal/cuts?" + q.Encode()
}

func (v *visit) cuts() error {
	c, err := v.choice()
	if err != nil {
		return err
	}
	l := v.lang
	all, missing := partOf(v, "cuts", func() ([]account.Cut, error) {
		return v.Reader.Cuts(v.r.Context(), v.grant.Tenant, monthSpan(c.month))
	})
	quotas, wallets, live := v.readNow()
	body := cutsView{
		Says: l.word("cuts.says", l.month(c.month)), Counted: v.counted(), Missing: missing, Live: live,
		Months: v.monthOptions(c.month),
	}
	if v.current(c.month) {
		body.LiveURL = "/portal/cuts/live"
	}
	body.Reasons = append(body.Reasons, option{"", l.word("cuts.reasons"), c.reason == ""})
	for _, r := range reasons {
		body.Reasons = append(body.Reasons, option{string(r.code), l.word(r.word), c.reason == r.code})
	}
	body.Keys = append([]option{{"", l.word("cuts.keys"), c.key == ""}}, keysOf(all, c.key)...)
	if missing == nil {
		chosen := slices.DeleteFunc(slices.Clone(all), func(cut account.Cut) bool {
			return c.reason != "" && cut.Reason != c.reason || c.key != "" && cut.APIKey != c.key
		})
		v.cutsChart(&body, c, chosen)
		v.cutsLines(&body, c, chosen, quotas, wallets)
	}
	return v.show("cuts", l.word("cuts"), "cuts", body.LiveURL != "", body)
}

func (v *visit) cutsLive() error {
	_, _, live := v.readNow()
	return v.fragment("cuts", live)
}

func (v *visit) readNow() ([]account.Quota, []account.Wallet, cutsLive) {
	quotas, noQuotas := partOf(v, "quotas", func() ([]account.Quota, error) {
		return v.Reader.Quotas(v.r.Context(), v.grant.Tenant, v.now.UTC())
	})
	wallets, noWallets := partOf(v, "wallet", func() ([]account.Wallet, error) {
		return v.Reader.Wallets(v.r.Context(), v.grant.Tenant, v.now.UTC())
	})
	return quotas, wallets, cutsLive{Now: v.refusing(quotas, wallets), Missing: cmp.Or(noQuotas, noWallets)}
}

// keysOf are the keys whose calls were cut, and the one that is chosen.
func keysOf(all []account.Cut, chosen string) []option {
	seen := map[string]bool{}
	for _, c := range all {
		if c.APIKey != "" {
			seen[c.APIKey] = true
		}
	}
	if chosen != "" {
		seen[chosen] = true
	}
	var out []option
	for _, k := range sorted(seen) {
		out = append(out, option{k, k, k == chosen})
	}
	return out
}

func (v *visit) cutsChart(body *cutsView, c choice, cuts []account.Cut) {
	l := v.lang
	days := map[int]map[account.Reason]int64{}
	totals := map[account.Reason]int64{}
	var calls, most int64
	var mostDay time.Time
	sums := map[int]int64{}
	for _, cut := range cuts {
		day := cut.Day.In(v.who.Zone).Day()
		if days[day] == nil {
			days[day] = map[account.Reason]int64{}
		}
		days[day][cut.Reason] += cut.Calls
		totals[cut.Reason] += cut.Calls
		sums[day] += cut.Calls
		calls += cut.Calls
		if sums[day] > most {
			most, mostDay = sums[day], cut.Day.In(v.who.Zone)
		}
	}
	month := l.month(c.month)
	says := l.word("cuts.none")
	body.Empty = calls == 0
	switch calls {
	case 0:
		body.Title = says
	case 1:
		body.Title = l.word("cuts.one", month)
	default:
		body.Title = l.word("cuts.many", l.num(calls), month)
	}
	if calls > 0 {
		says = l.word("cuts.aria", l.num(calls), month, l.day(mostDay))
	}
	for _, r := range reasons {
		if totals[r.code] > 0 || r.code != account.OtherReason {
			body.Legend = append(body.Legend, legend{
				Class: r.class, Fill: r.fill, Text: l.word(r.word), Value: l.num(totals[r.code]), Outline: r.class == "o-cut",
			})
		}
	}
	body.Plot = l.draw(168, v.cutSlots(c.month, days, sums), 0, says)
}

func (v *visit) cutSlots(month time.Time, days map[int]map[account.Reason]int64, sums map[int]int64) []slot {
	var slots []slot
	for day := 1; day <= month.AddDate(0, 1, -1).Day(); day++ {
		at := time.Date(month.Year(), month.Month(), day, 0, 0, 0, 0, v.who.Zone)
		today := v.current(month) && day == v.now.Day()
		s := slot{ahead: at.After(v.now), now: today, title: v.lang.word("cuts.bar", v.lang.day(at), v.lang.num(sums[day]))}
		if day%2 == 1 || today {
			s.label, s.wide = strconv.Itoa(day), wideLabel(day) && !today
		}
		if v.current(month) && !today && (day == v.now.Day()-1 || day == v.now.Day()+1) {
			s.label = "" // room for today's
		}
		for _, r := range reasons {
			s.parts = append(s.parts, part{r.class, r.fill, days[day][r.code]})
		}
		slots = append(slots, s)
	}
	return slots
}

// cutsLines are a page of the timeline, the newest first. Lines of the same
// instant stay on one page.
func (v *visit) cutsLines(body *cutsView, c choice, cuts []account.Cut, quotas []account.Quota, wallets []account.Wallet) {
	l := v.lang
	slices.SortStableFunc(cuts, func(a, b account.Cut) int { return b.LastSeen.Compare(a.LastSeen) })
	var all, shown int64
	var last int64
	for _, cut := range cuts {
		all += cut.Calls
	}
	for _, cut := range cuts {
		at := cut.LastSeen.UnixMicro()
		if c.before > 0 && at >= c.before {
			continue
		}
		if len(body.Lines) >= linesPerPage && at != last {
			body.Older = c.url(last)
			break
		}
		last = at
		shown += cut.Calls
		body.Lines = append(body.Lines, v.cutLine(cut, quotas, wallets))
	}
	if c.before > 0 {
		body.First = c.url(0)
	}
	body.Shown = l.word("cuts.shown", l.num(int64(len(body.Lines))), l.num(shown), l.num(all))
}

func (v *visit) cutLine(cut account.Cut, quotas []account.Quota, wallets []account.Wallet) cutLine {
	l := v.lang
	first, last := cut.FirstSeen.In(v.who.Zone), cut.LastSeen.In(v.who.Zone)
	out := cutLine{
		ISO: last.Format(time.RFC3339), Day: l.dayOf(last, v.now), Times: clock(last), Calls: l.count("cuts.calls", cut.Calls),
		Method: cut.Method, Path: cmp.Or(cut.Path, cut.Endpoint, cut.Service), Rule: cmp.Or(cut.RuleName, cut.Rule),
		Key: cut.APIKey, Application: cut.Application, Tag: strconv.Itoa(cut.Status) + " " + string(cut.Reason),
	}
	out.Other = out.Path == ""
	if clock(first) != clock(last) {
		out.Times = l.word("time.to", clock(first), clock(last))
	}
	for _, r := range reasons {
		if r.code == cut.Reason {
			out.Tone = r.tone
		}
	}
	switch cut.Reason {
	case account.TooFast:
		v.tooFast(&out, cut)
	case account.QuotaUsedUp:
		v.usedUp(&out, cut, quotas)
	case account.WalletEmpty:
		v.walletEmpty(&out, cut, wallets)
	case account.Blocked:
		out.Says, out.Free = l.word("say.blocked"), l.word("free.never")
	case account.Unchecked:
		out.Says, out.State = l.word("say.unchecked"), l.word("state.unchecked")
		out.Free, out.FreeTone = l.word("free.retry"), "is-ok"
	case account.OtherReason:
		out.Says = l.word("say.other")
	default:
		out.Says = l.word("say.other")
	}
	return out
}

func (v *visit) tooFast(out *cutLine, cut account.Cut) {
	l := v.lang
	out.Says, out.Free, out.FreeTone = l.word("say.fast.some"), l.word("free.self"), "is-near"
	if cut.Limit <= 0 || cut.Window <= 0 {
		return
	}
	limit, window := l.num(cut.Limit), l.span(cut.Window)
	out.Says, out.State = l.word("say.fast", limit, window), l.word("state.fast", limit, window)
	free := cut.LastSeen.Add(cut.Window).In(v.who.Zone)
	if v.now.Before(free) {
		out.Free = l.word("free.within", window)
		return
	}
	out.Free, out.FreeTone = l.word("free.since", l.instantToday(free, v.now)), "is-ok"
}

func (v *visit) usedUp(out *cutLine, cut account.Cut, quotas []account.Quota) {
	l := v.lang
	out.Says, out.Free, out.FreeTone = l.word("say.quota.some"), l.word("free.quota.end"), "is-near"
	if cut.Limit > 0 {
		out.Says = l.word("say.quota", l.num(cut.Limit))
	}
	// The quota that refused is one of this rule's; the fullest speaks for them.
	var now *account.Quota
	for i, q := range quotas {
		mine := q.Rule == cut.Rule && (q.APIKey == "" || q.APIKey == cut.APIKey) && (q.Application == "" || q.Application == cut.Application)
		if mine && (now == nil || q.Left() < now.Left()) {
			now = &quotas[i]
		}
	}
	switch {
	case now == nil || now.Unlimited:
	case refuses(*now):
		end := now.Period.End.In(v.who.Zone)
		out.State = l.word("state.quota", l.num(now.Used()), l.num(now.Limit))
		out.Free, out.FreeTone = l.word("free.quota", l.soon(end, v.now), l.until(end, v.now)), "is-near"
	default:
		out.State = l.word("state.quota", l.num(now.Used()), l.num(now.Limit))
		out.Free, out.FreeTone = l.word("free.quota.again", l.num(now.Left())), "is-ok"
	}
}

func (v *visit) walletEmpty(out *cutLine, cut account.Cut, wallets []account.Wallet) {
	l := v.lang
	out.Says = l.word("say.wallet.some")
	if cut.Meter != "" {
		out.Says = l.word("say.wallet", cut.Meter)
	}
	for _, w := range wallets {
		if w.Meter != cut.Meter {
			continue
		}
		b := w.Balance()
		out.State = l.word("state.wallet", l.num(w.Granted), l.num(w.Consumed), l.num(b))
		if b <= 0 {
			out.Free, out.FreeTone = l.word("free.topup", l.num(1-b)), "is-cut"
		} else {
			out.Free, out.FreeTone = l.word("free.wallet", l.num(b)), "is-ok"
		}
	}
}
