package tell

import (
	"fmt"
	"strconv"
	"strings"
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
	n := Denial{Title: titles[d.Code], Detail: detail(d)}
	if d.CanRetry {
		n.Retry = Retry(d)
		n.Detail += "; retry in " + strconv.FormatInt(n.Retry, 10) + " s"
	}
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

func detail(d *decide.Decision) string {
	var l decide.Limit
	for i := range d.Limits {
		if d.Limits[i].RuleID == d.RuleID {
			l = d.Limits[i]
		}
	}
	switch d.Code {
	case decide.RateLimited:
		if d.Degraded { // which has no numbers
			return fmt.Sprintf("rule %s: this gateway's share of its limit is used up, while the counter store does not answer (its %s)", d.RuleID, knobs(d.Refusing(), "on_failure"))
		}
		return fmt.Sprintf("rule %s: %d units per %v are used up (its %s)", d.RuleID, l.Limit, l.Window, knobs(d.Refusing()))
	case decide.QuotaExceeded:
		return fmt.Sprintf("rule %s: %d of %d units are used in the period that ends %s (its limit and period)",
			d.RuleID, max(0, l.Consumed-l.Refunded), l.Limit, timestamp(l.PeriodEnd))
	case decide.WalletEmpty:
		if !Endless(&l) {
			return fmt.Sprintf("rule %s: the wallet of %s has a balance of %d units in the period that ends %s (its limit and period)",
				d.RuleID, l.Meter, l.Balance, timestamp(l.PeriodEnd))
		}
		return fmt.Sprintf("rule %s: the wallet of %s has a balance of %d units, and no wait helps (its top-ups)", d.RuleID, l.Meter, l.Balance)
	case decide.CostExceedsLimit:
		return fmt.Sprintf("rule %s: the cost is above what can ever pass at once (%s)", d.RuleID, costKnobs(d.Refusing()))
	case decide.BlockedByRule:
		return fmt.Sprintf("rule %s blocks this traffic (its match)", d.RuleID)
	case decide.UnknownKey:
		return UnknownKey
	case decide.StoreUnavailable:
		return fmt.Sprintf("rule %s: the counter store does not answer, or has lost what it held, and nothing passes uncounted (its on_failure)", d.RuleID)
	default:
		return fmt.Sprintf("rule %s does not let this request pass", d.RuleID)
	}
}

// knobs lists the fields of a rate that say when it refuses, and some more.
func knobs(r *rule.Rule, more ...string) string {
	fields := []string{"limit", "window"}
	if r != nil && r.Algorithm.Bucket() {
		fields = append(fields, "burst")
	}
	if r != nil && r.MaxDelay > 0 {
		fields = append(fields, "max_delay")
	}
	return list(append(fields, more...))
}

// costKnobs lists what says whether a cost can ever pass a rule.
func costKnobs(r *rule.Rule) string {
	fields := []string{"limit"}
	if r != nil && r.Kind == rule.Rate && r.Algorithm.Bucket() {
		fields = append(fields, "burst")
	}
	if r != nil && r.Cost != nil {
		return "its " + list(append(fields, "cost"))
	}
	return "its " + list(fields) + ", and the endpoint's cost"
}

// list is words as a sentence lists them.
func list(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
