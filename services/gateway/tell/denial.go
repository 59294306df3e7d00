package tell

import (
	"strconv"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// A Denial is why a decision does not let a request pass, in words.
type Denial struct {
	Title    string
	Detail   string
	Violated []string // ids of the rules that refused
	Retry    int64    // seconds until a retry may pass; 0: no wait helps, or nobody knows
}

// titles say of each code what it means.
var titles = map[decide.Code]string{
	"unknown-key":        "A known API key is needed",
	"blocked":            "This traffic is blocked",
	"rate-limited":       "Too many requests for now",
	"quota-exceeded":     "The quota of this period is used up",
	"wallet-empty":       "The wallet is empty",
	"cost-exceeds-limit": "The request costs more than can ever pass",
	"store-unavailable":  "The counter store does not answer",
}

// UnknownKey is the detail of a request whose API key is not in the catalogue.
const UnknownKey = "the API key is unknown or was revoked; a request without a key is anonymous"

// Title says what a code of a decision means.
func Title(code decide.Code) string { return titles[code] }

// Deny says why a decision does not let a request pass: the rule, and the knob
// that governs it.
func Deny(d *decide.Decision) Denial {
	n := Denial{Title: titles[d.Code]}
	b := appendDetail(make([]byte, 0, 256), d)
	if d.CanRetry {
		n.Retry = Retry(d)
		b = append(strconv.AppendInt(append(b, "; retry in "...), n.Retry, 10), " s"...)
	}
	n.Detail = string(b)
	for i := range d.Limits {
		if l := &d.Limits[i]; !l.Passed && l.Mode == rule.Enforce && !l.Soft {
			n.Violated = append(n.Violated, l.RuleID)
		}
	}
	if len(n.Violated) == 0 && d.RuleID != "" {
		n.Violated = []string{d.RuleID}
	}
	return n
}

// appendDetail appends all but the wait.
func appendDetail(b []byte, d *decide.Decision) []byte {
	l := &decide.Limit{}
	for i := range d.Limits {
		if d.Limits[i].RuleID == d.RuleID {
			l = &d.Limits[i]
		}
	}
	begin := b
	b = append(append(b, "rule "...), d.RuleID...)
	switch d.Code {
	case decide.RateLimited:
		if d.Degraded { // which has no numbers
			b = append(b, ": this gateway's share of its limit is used up, while the counter store does not answer (its "...)
			return append(appendKnobs(b, d.Refusing(), "on_failure"), ')')
		}
		b = append(strconv.AppendInt(append(b, ": "...), l.Limit, 10), " units per "...)
		b = append(append(b, l.Window.String()...), " are used up (its "...)
		return append(appendKnobs(b, d.Refusing()), ')')
	case decide.QuotaExceeded:
		b = strconv.AppendInt(append(b, ": "...), max(0, l.Consumed-l.Refunded), 10)
		b = strconv.AppendInt(append(b, " of "...), l.Limit, 10)
		b = l.PeriodEnd.UTC().AppendFormat(append(b, " units are used in the period that ends "...), time.RFC3339)
		return append(b, " (its limit and period)"...)
	case decide.WalletEmpty:
		b = append(append(append(b, ": the wallet of "...), l.Meter...), " has a balance of "...)
		b = append(strconv.AppendInt(b, l.Balance, 10), " units"...)
		if Endless(l) {
			return append(b, ", and no wait helps (its top-ups)"...)
		}
		b = l.PeriodEnd.UTC().AppendFormat(append(b, " in the period that ends "...), time.RFC3339)
		return append(b, " (its limit and period)"...)
	case decide.CostExceedsLimit:
		b = append(b, ": the cost is above what can ever pass at once (its "...)
		return append(appendCostKnobs(b, d.Refusing()), ')')
	case decide.UnknownKey:
		return append(begin, UnknownKey...)
	case decide.BlockedByRule:
		return append(b, " blocks this traffic (its match)"...)
	case decide.StoreUnavailable:
		return append(b, ": the counter store does not answer, or has lost what it held, and nothing passes uncounted (its on_failure)"...)
	default:
		return append(b, " does not let this request pass"...)
	}
}

// appendKnobs lists the fields of a rate that say when it refuses, and some more.
func appendKnobs(b []byte, r *rule.Rule, more ...string) []byte {
	fields := append(make([]string, 0, 8), "limit", "window")
	if r != nil && r.Algorithm.Bucket() {
		fields = append(fields, "burst")
	}
	if r != nil && r.MaxDelay > 0 {
		fields = append(fields, "max_delay")
	}
	return appendWords(b, append(fields, more...))
}

// appendCostKnobs lists what says whether a cost can ever pass a rule.
func appendCostKnobs(b []byte, r *rule.Rule) []byte {
	fields := append(make([]string, 0, 8), "limit")
	if r != nil && r.Kind == rule.Rate && r.Algorithm.Bucket() {
		fields = append(fields, "burst")
	}
	if r != nil && r.Cost != nil {
		return appendWords(b, append(fields, "cost"))
	}
	return append(appendWords(b, fields), ", and the endpoint's cost"...)
}

// appendWords lists words as a sentence does.
func appendWords(b []byte, words []string) []byte {
	for i, word := range words {
		switch i {
		case 0:
		case len(words) - 1:
			b = append(b, " and "...)
		default:
			b = append(b, ", "...)
		}
		b = append(b, word...)
	}
	return b
}
