package decide

import (
	"slices"
	"strings"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// passed is the answer to a request that no rule holds up.
func (in *inquiry) passed() Decision {
	d := Decision{
		ID: in.id, Outcome: Allow, Status: statusOK, Cost: in.cost,
		RulesVersion: in.rules.revision, Peek: in.peek, basis: in,
		ShadowBlocked: in.trying != nil,
	}
	for _, r := range in.unlimited {
		var l Limit
		l.terms(r, period.Span{})
		d.Limits = append(d.Limits, *l.unlimited())
	}
	return d
}

// unlimited makes l what a rate that never refuses says.
func (l *Limit) unlimited() *Limit {
	l.Passed, l.Remaining = true, rule.Unlimited
	return l
}

// byRule is one list of two, each by rule id.
func byRule(counted, unlimited []Limit) []Limit {
	if len(unlimited) == 0 {
		return counted
	}
	all := slices.Concat(counted, unlimited)
	slices.SortFunc(all, func(a, b Limit) int { return strings.Compare(a.RuleID, b.RuleID) })
	return all
}

// uncounted is the answer to a request that no counter is asked about.
func (in *inquiry) uncounted() Decision {
	d := in.passed()
	if in.blocking != nil {
		d.Outcome, d.Status, d.Code, d.RuleID = Blocked, statusForbidden, BlockedByRule, in.blocking.ID
	}
	return d
}

// decided is what the store's answer means. It is false for a refusal that no
// rule stands for, which is no answer.
func (in *inquiry) decided(a *limit.Answer) (Decision, bool) {
	d := in.passed()
	if !a.Now.IsZero() {
		in.at = a.Now
	}
	in.results, in.charged, in.paid = a.Results, a.Charged, in.at
	if !a.Taken.IsZero() {
		in.paid = a.Taken
	}
	d.Limits = byRule(in.limits(a.Results), d.Limits)
	if a.Allowed {
		d.Delay = in.delay()
		return d, true
	}
	refusing := -1
	for i, r := range in.winners {
		if !a.Results[i].Passed && cuts(r) && (refusing < 0 || a.Results[i].RetryAfter > a.Results[refusing].RetryAfter) {
			refusing = i
		}
	}
	if refusing < 0 {
		return Decision{}, false
	}
	d.refuse(in.winners[refusing], in.units(in.winners[refusing]), a.Results[refusing].RetryAfter)
	return d, true
}

// delay is how long the request waits in the queues that it is in.
func (in *inquiry) delay() (longest time.Duration) {
	for i, r := range in.winners {
		if cuts(r) {
			longest = max(longest, in.results[i].Delay)
		}
	}
	return longest
}

// refuse turns d into a refusal by r of so many units, with the wait that may
// help.
func (d *Decision) refuse(r *rule.Rule, units int64, wait time.Duration) {
	d.Outcome, d.Status, d.RuleID = Deny, statusTooMany, r.ID
	switch {
	case exceeds(r, units):
		d.Code = CostExceedsLimit
		return
	case r.Kind == rule.Rate:
		d.Code = RateLimited
	case r.Kind == rule.Wallet:
		d.Code = WalletEmpty
	default:
		d.Code = QuotaExceeded
	}
	if wait != limit.Never {
		d.CanRetry, d.RetryAfter = true, wait
	}
}

// Refusing is the rule that refused, nil where none did.
func (d *Decision) Refusing() *rule.Rule {
	if d.basis == nil {
		return nil
	}
	return d.basis.ruleByID(d.RuleID)
}

// exceeds reports whether units can never pass, whatever was used. A wallet
// that has something left passes any.
func exceeds(r *rule.Rule, units int64) bool { return r.Kind != rule.Wallet && units > r.Capacity() }

// cuts reports whether a rule can refuse a request.
func cuts(r *rule.Rule) bool { return r.Mode == rule.Enforce && !r.Soft }

// limits lists what every winner said.
func (in *inquiry) limits(results []limit.Result) []Limit {
	list := in.said
	if list == nil {
		list = make([]Limit, len(in.winners))
	}
	for i, r := range in.winners {
		list[i].terms(r, in.asked.Charges[i].Span)
		list[i].Limit = in.asked.Charges[i].Limit
		list[i].said(&results[i])
	}
	return list
}

// terms makes l the part of a Limit that the rule and its period give.
func (l *Limit) terms(r *rule.Rule, span period.Span) {
	*l = Limit{}
	l.RuleID, l.Kind, l.Algorithm, l.Meter, l.Mode, l.Soft = r.ID, r.Kind, r.Algorithm, r.Meter, r.Mode, r.Soft
	l.Limit, l.Window = r.Limit, r.Window
	if r.Period != nil {
		l.PeriodStart, l.PeriodEnd = span.Start, span.End
		l.Window = span.End.Sub(span.Start)
	}
}

// said adds the part that the store gave.
func (l *Limit) said(r *limit.Result) {
	l.Passed, l.Remaining, l.Reset = r.Passed, r.Remaining, r.Reset
	l.Consumed, l.Refunded = r.Consumed, r.Refunded
	if l.Kind == rule.Wallet {
		l.Balance = l.Limit - r.Consumed + r.Refunded
	}
}
