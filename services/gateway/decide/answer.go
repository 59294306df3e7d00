package decide

import (
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// passed is the answer to a request that no rule holds up.
func (in *inquiry) passed() Decision {
	d := Decision{
		ID: in.id, Outcome: Allow, Status: statusOK, Cost: in.cost,
		RulesVersion: in.rules.revision, Peek: in.peek, basis: in,
	}
	for _, r := range in.unlimited {
		l := terms(r, period.Span{})
		l.Passed, l.Remaining = true, rule.Unlimited
		d.Limits = append(d.Limits, l)
	}
	return d
}

// uncounted is the answer to a request that no counter is asked about.
func (in *inquiry) uncounted() Decision {
	d := in.passed()
	if in.blocking != nil {
		d.Outcome, d.Status, d.Code, d.RuleID = Blocked, statusForbidden, BlockedByRule, in.blocking.ID
	}
	return d
}

// decided is what the store's answer means.
func (in *inquiry) decided(a *limit.Answer) Decision {
	d := in.passed()
	if !a.Now.IsZero() {
		in.at = a.Now
	}
	in.results = a.Results
	d.Limits = append(in.limits(a.Results), d.Limits...)
	if a.Allowed {
		return d
	}
	refusing := -1
	for i, r := range in.winners {
		if !a.Results[i].Passed && cuts(r) && (refusing < 0 || a.Results[i].RetryAfter > a.Results[refusing].RetryAfter) {
			refusing = i
		}
	}
	if refusing < 0 { // a refusal that no rule stands for is no answer
		return in.degraded()
	}
	d.refuse(in.winners[refusing], in.units(in.winners[refusing]), &a.Results[refusing])
	return d
}

// refuse turns d into a refusal by r of so many units.
func (d *Decision) refuse(r *rule.Rule, units int64, got *limit.Result) {
	d.Outcome, d.Status, d.RuleID = Deny, statusTooMany, r.ID
	switch {
	case units > r.Capacity():
		d.Code = CostExceedsLimit
		return
	case r.Kind == rule.Rate:
		d.Code = RateLimited
	default:
		d.Code = QuotaExceeded
	}
	if got.RetryAfter != limit.Never {
		d.CanRetry, d.RetryAfter = true, got.RetryAfter
	}
}

// cuts reports whether a rule can refuse a request.
func cuts(r *rule.Rule) bool { return r.Mode == rule.Enforce && !r.Soft }

// degraded is the answer when the store did not decide. What can never pass is
// refused even then; else one closed rule closes, and otherwise the request
// passes uncounted. A rule that never refuses closes nothing.
func (in *inquiry) degraded() Decision {
	d := in.passed()
	d.Degraded, in.results = true, nil
	var closed *rule.Rule
	for _, r := range in.winners {
		switch units := in.units(r); {
		case !cuts(r) || r.Limit == rule.Unlimited:
		case units > r.Capacity():
			d.refuse(r, units, nil)
			return d
		case closed == nil && r.OnFailure == rule.Closed:
			closed = r
		}
	}
	if closed != nil {
		d.Outcome, d.Status, d.Code, d.RuleID = Deny, statusUnavailable, StoreUnavailable, closed.ID
		d.CanRetry, d.RetryAfter = true, degradedWait
	}
	return d
}

// limits lists what every winner said.
func (in *inquiry) limits(results []limit.Result) []Limit {
	list := make([]Limit, len(in.winners))
	for i, r := range in.winners {
		list[i] = terms(r, in.spans[i])
		list[i].said(&results[i])
	}
	return list
}

// terms is the part of a Limit that the rule and its period give.
func terms(r *rule.Rule, span period.Span) Limit {
	l := Limit{
		RuleID: r.ID, Kind: r.Kind, Algorithm: r.Algorithm, Meter: r.Meter, Mode: r.Mode, Soft: r.Soft,
		Limit: r.Limit, Window: r.Window,
	}
	if r.Period != nil {
		l.PeriodStart, l.PeriodEnd = span.Start, span.End
		l.Window = span.End.Sub(span.Start)
	}
	return l
}

// said adds the part that the store gave.
func (l *Limit) said(r *limit.Result) {
	l.Passed, l.Remaining, l.Reset = r.Passed, r.Remaining, r.Reset
	l.Consumed, l.Refunded = r.Consumed, r.Refunded
}
