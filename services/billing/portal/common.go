package portal

import (
	"fmt"
	"slices"
	"time"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/period"
)

// monthsBack is how many months a list offers.
const monthsBack = 6

// An option is one choice of a list.
type option struct {
	Value, Text string
	Chosen      bool
}

// A fact is a name and what it is.
type fact struct {
	Name, Value string
	Bold        bool
}

// A stat is one number that answers a page.
type stat struct {
	Name, Unit, Value, UnitAfter, Note string
}

// monthOf is the month that a request is about: the parameter's, else now's. It
// is one of those that monthOptions offers.
func (v *visit) monthOf() (time.Time, error) {
	this := time.Date(v.now.Year(), v.now.Month(), 1, 0, 0, 0, 0, v.now.Location())
	text := v.r.URL.Query().Get("month")
	if text == "" {
		return this, nil
	}
	m, err := time.ParseInLocation("2006-01", text, v.now.Location())
	if err != nil || m.After(this) || m.Before(this.AddDate(0, 1-monthsBack, 0)) {
		return time.Time{}, fmt.Errorf("%w: month %.16q", errInput, text)
	}
	return m, nil
}

func (v *visit) monthOptions(chosen time.Time) []option {
	var out []option
	for i := range monthsBack {
		m := time.Date(v.now.Year(), v.now.Month()-time.Month(i), 1, 0, 0, 0, 0, v.now.Location())
		out = append(out, option{m.Format("2006-01"), v.lang.month(m), m.Equal(chosen)})
	}
	return out
}

func monthSpan(month time.Time) period.Span {
	return period.Span{Start: month.UTC(), End: month.AddDate(0, 1, 0).UTC()}
}

func (v *visit) current(month time.Time) bool { return monthSpan(month).Contains(v.now) }

// counted says how fresh the numbers are.
func (v *visit) counted() string {
	at := v.who.CountedTo
	if at.IsZero() {
		return v.lang.word("counted.none")
	}
	at = at.In(v.who.Zone)
	text := clock(at)
	if !at.After(startOfDay(v.now, 0)) {
		text = v.lang.moment(at, v.now)
	}
	return v.lang.word("counted", text)
}

// A quotaView is one quota's bar with its words.
type quotaView struct {
	Name      string
	Code      bool // the name is an id
	Per       string
	Tag, Tone string
	Used, Of  string
	Bar       meterBar
	Below     string
	Right     string
}

// perWord says how often a quota renews.
func (l lang) perWord(u period.Unit, count int) string {
	switch {
	case count == 1:
		return l.word("per." + string(u))
	case count > 1:
		return l.word("per."+string(u)+"s", count)
	default:
		return ""
	}
}

// quotaName is what a quota is called, with whose it is.
func (l lang) quotaName(q account.Quota) (name string, isID bool) {
	if q.Name != "" {
		return q.Name, false
	}
	return q.Rule, true
}

func (l lang) quotaOwner(q account.Quota) string {
	switch {
	case q.APIKey != "":
		return l.word("of.key", q.APIKey)
	case q.User != "":
		return l.word("of.user", q.User)
	case q.Application != "":
		return l.word("of.app", q.Application)
	default:
		return ""
	}
}

func (v *visit) quotaView(q account.Quota) quotaView {
	l := v.lang
	out := quotaView{Per: l.perWord(q.Unit, q.Count), Used: l.num(q.Used())}
	out.Name, out.Code = l.quotaName(q)
	if owner := l.quotaOwner(q); owner != "" {
		if out.Per != "" {
			out.Per += " · "
		}
		out.Per += owner
	}
	resets := q.Period.End.In(v.who.Zone)
	out.Below = l.word("quota.resets", l.soon(resets, v.now), l.until(resets, v.now))
	if q.Unlimited {
		out.Of = l.word("quota.unlimited")
		out.Bar = meterBar{Class: "ok", Fill: "0%", Says: l.word("quota.says.free", out.Name, out.Used)}
		return out
	}
	share := l.percent(q.Used(), q.Limit)
	if share == "" {
		share = l.percent(1, 1)
	}
	out.Of = "/ " + l.num(q.Limit)
	out.Bar = quotaBar(q.Used(), q.Limit, q.Soft, q.Thresholds, l.word("quota.says", out.Name, out.Used, l.num(q.Limit), share))
	out.Right = l.word("quota.left", share, l.num(q.Left()))
	switch out.Bar.Class {
	case "near":
		out.Tag, out.Tone = l.word("quota.near"), "near"
	case "over":
		out.Tag, out.Tone = l.word("quota.over"), "cut"
	case "soft":
		out.Tag, out.Tone = l.word("quota.soft"), "soft"
		out.Right = l.word("quota.beyond", share, l.num(q.Used()-q.Limit))
	}
	if q.Soft {
		out.Below = l.word("quota.isoft", l.soon(resets, v.now))
	}
	return out
}

// refuses reports whether a quota refuses calls now.
func refuses(q account.Quota) bool { return !q.Unlimited && !q.Soft && q.Used() >= q.Limit }

// A walletView is one wallet's bar with its words.
type walletView struct {
	Meter     string
	Balance   string
	Tag, Tone string
	Bar       walletBar
	TopUp     string // least units that open it again; empty: it is open
	Facts     []fact
	Of        string
	Least     string
}

func (v *visit) walletView(w account.Wallet) walletView {
	l := v.lang
	b := w.Balance()
	out := walletView{
		Meter: w.Meter, Balance: l.num(b), Of: l.word("wallet.of", l.num(w.Granted)),
		Bar: l.drawWallet(b, w.Granted, l.word("wallet.bar", l.num(b), l.num(w.Granted))),
		Facts: []fact{
			{Name: l.word("wallet.granted"), Value: l.num(w.Granted)},
			{Name: l.word("wallet.consumed"), Value: l.num(w.Consumed)},
			{Name: l.word("wallet.back"), Value: l.num(w.Returned)},
		},
	}
	if b <= 0 {
		out.Tone, out.Tag = "cut", l.word("wallet.empty")
		if b < 0 {
			out.Tag = l.word("wallet.over")
		}
		out.TopUp = l.num(1 - b)
		out.Least = l.word("wallet.least", out.TopUp)
	}
	return out
}

// A nowView is what refuses calls now.
type nowView struct {
	Quotas  []quotaView
	Wallets []walletView
	Of      string
}

// Any reports whether something does.
func (n nowView) Any() bool { return len(n.Quotas)+len(n.Wallets) > 0 }

func (v *visit) refusing(quotas []account.Quota, wallets []account.Wallet) nowView {
	var out nowView
	for _, q := range quotas {
		if refuses(q) {
			view := v.quotaView(q)
			resets := q.Period.End.In(v.who.Zone)
			view.Below, view.Right = v.lang.word("quota.frees", v.lang.soon(resets, v.now)), v.lang.until(resets, v.now)
			out.Quotas = append(out.Quotas, view)
		}
	}
	for _, w := range wallets {
		if w.Balance() <= 0 {
			out.Wallets = append(out.Wallets, v.walletView(w))
		}
	}
	out.Of = v.lang.word("cuts.now.of", v.lang.num(int64(len(out.Quotas)+len(out.Wallets))), v.lang.num(int64(len(quotas)+len(wallets))))
	return out
}

// dayLabel names the days that get a label on a phone: one in seven.
func wideLabel(day int) bool { return (day-1)%7 != 0 }

// sorted returns a map's keys in order.
func sorted[K ~string, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
