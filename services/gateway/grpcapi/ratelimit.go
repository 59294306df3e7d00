package grpcapi

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"penstock.dev/proto/ratelimitv3"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/tell"
	"penstock.dev/services/internal/rule"
)

// ShouldRateLimit decides about each descriptor on its own. The answer is
// OVER_LIMIT if one of them is refused.
func (f *Face) ShouldRateLimit(ctx context.Context, in *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	c := limitCallOf(in)
	qs, refused, err := read(&c, nil)
	if err != nil {
		return nil, err
	}
	b := ask.Batch{Questions: qs}
	if err := f.desk.AnswerEach(ctx, &b); err != nil {
		return nil, err
	}
	var out limited
	if err := out.tell(told(refused, b.Outcomes)); err != nil {
		return nil, err
	}
	return out.message(), nil
}

// told is the outcome of every descriptor, where those that were asked came to
// outcomes.
func told(refused []ask.Faults, outcomes []ask.Outcome) []ask.Outcome {
	if refused == nil {
		return outcomes
	}
	all := make([]ask.Outcome, len(refused))
	for i, faults := range refused {
		if err := faults.Err(); err != nil {
			all[i].Err = err
		} else {
			all[i], outcomes = outcomes[0], outcomes[1:]
		}
	}
	return all
}

// tell makes l the answer to all descriptors.
func (l *limited) tell(answered []ask.Outcome) error {
	l.reset()
	for i := range answered {
		o := &answered[i]
		if o.Err != nil && ask.ProblemOf(o.Err).Code != "malformed" {
			return o.Err
		}
		s := statusOf(o)
		l.statuses, l.over = append(l.statuses, s), l.over || s.over
	}
	o := telling(answered)
	if l.over {
		l.body = appendProblem(l.body, o)
		l.headers = append(l.headers, header{"content-type", "application/problem+json"})
	}
	if o.Err == nil {
		l.headers = appendLimits(l.headers, o.Decision)
	}
	return nil
}

// telling is the outcome that the headers and the body tell of: the refusal
// with the longest wait, one that no wait helps before all; where none is
// refused, the limit that is reached first.
func telling(answered []ask.Outcome) *ask.Outcome {
	best := &answered[0]
	for i := range answered[1:] {
		if o := &answered[i+1]; graver(o, best) {
			best = o
		}
	}
	return best
}

func graver(a, b *ask.Outcome) bool {
	switch x, y := gravity(a), gravity(b); {
	case x != y:
		return x > y
	case a.Err != nil:
		return false
	case a.Decision.Outcome != decide.Allow:
		return a.Decision.RetryAfter > b.Decision.RetryAfter
	}
	x, y := a.Decision.Tightest(), b.Decision.Tightest()
	return x != nil && (y == nil || x.Remaining < y.Remaining || x.Remaining == y.Remaining && x.Reset > y.Reset)
}

// gravity orders outcomes: passed, refused for a while, refused for good,
// unreadable.
func gravity(o *ask.Outcome) int {
	switch {
	case o.Err != nil:
		return 3
	case o.Decision.Outcome == decide.Allow:
		return 0
	case o.Decision.CanRetry:
		return 1
	default:
		return 2
	}
}

// statusOf is the status of one descriptor.
func statusOf(o *ask.Outcome) limitStatus {
	if o.Err != nil {
		return limitStatus{over: true}
	}
	d := o.Decision
	s := limitStatus{over: d.Outcome != decide.Allow}
	l := decisive(d)
	if l == nil {
		return s
	}
	s.limited, s.rule, s.limit, s.remaining = true, l.RuleID, narrow(l.Limit), narrow(l.Remaining)
	s.unit, s.multiplier = unitOf(l)
	if !tell.Endless(l) {
		s.resets, s.reset = true, tell.Seconds(l.Reset)
	}
	return s
}

// decisive is the limit that a status shows: that of the rule that refused,
// else the tightest. What the counter store did not answer has none: nil.
func decisive(d *decide.Decision) *decide.Limit {
	if d.Outcome != decide.Allow {
		for i := range d.Limits {
			if d.Limits[i].RuleID == d.RuleID {
				return &d.Limits[i]
			}
		}
	}
	return d.Tightest()
}

// narrow is a number of units as far as this API can say it.
func narrow(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

const day = 24 * time.Hour

// units of Envoy's API, the longest first.
var units = []struct {
	unit ratelimitv3.RateLimitResponse_RateLimit_Unit
	span time.Duration
}{
	{ratelimitv3.RateLimitResponse_RateLimit_WEEK, 7 * day},
	{ratelimitv3.RateLimitResponse_RateLimit_DAY, day},
	{ratelimitv3.RateLimitResponse_RateLimit_HOUR, time.Hour},
	{ratelimitv3.RateLimitResponse_RateLimit_MINUTE, time.Minute},
	{ratelimitv3.RateLimitResponse_RateLimit_SECOND, time.Second},
}

// unitOf is the window or period of a limit as so many units: the longest that
// it has a whole number of. A month and a year are as long as they happen to be.
func unitOf(l *decide.Limit) (ratelimitv3.RateLimitResponse_RateLimit_Unit, uint32) {
	window := l.Window
	if l.Kind != rule.Rate {
		window = window.Round(day) // a day of a change of time is one too
		switch days := window / day; {
		case days >= 28 && days <= 31:
			return ratelimitv3.RateLimitResponse_RateLimit_MONTH, 1
		case days == 365 || days == 366:
			return ratelimitv3.RateLimitResponse_RateLimit_YEAR, 1
		case days == 0:
			window = l.Window
		}
	}
	for _, u := range units {
		if window > 0 && window%u.span == 0 {
			return u.unit, uint32(min(window/u.span, math.MaxUint32))
		}
	}
	return ratelimitv3.RateLimitResponse_RateLimit_UNKNOWN, 1
}

// limitNames are tell's in lower case, as HTTP/2 has them.
var limitNames = func() (names [len(tell.Names)]string) {
	for i, name := range tell.Names {
		names[i] = strings.ToLower(name)
	}
	return names
}()

var degradedName = strings.ToLower(tell.Degraded)

// appendLimits appends the headers that every answer carries.
func appendLimits(dst []header, d *decide.Decision) []header {
	add := func(name, value string) {
		if value != "" {
			dst = append(dst, header{name, value})
		}
	}
	for i, value := range tell.Limits(d) {
		add(limitNames[i], value)
	}
	if d.Degraded {
		add(degradedName, "true")
	}
	if d.CanRetry {
		add("retry-after", strconv.FormatInt(tell.Retry(d), 10))
	}
	return dst
}
