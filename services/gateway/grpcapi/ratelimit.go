package grpcapi

import (
	"context"
	"encoding/json"
	"math"
	"slices"
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
	readings, err := read(&c)
	if err != nil {
		return nil, err
	}
	var outcomes []ask.Outcome
	if qs := appendQuestions(nil, readings); len(qs) > 0 {
		if outcomes, err = f.desk.AnswerEach(ctx, qs); err != nil {
			return nil, err
		}
	}
	out, err := overall(told(readings, outcomes))
	if err != nil {
		return nil, err
	}
	return out.message(), nil
}

// appendQuestions appends those of readings that can be asked.
func appendQuestions(qs []ask.Question, readings []reading) []ask.Question {
	for i := range readings {
		if len(readings[i].refused) == 0 {
			qs = append(qs, readings[i].Question)
		}
	}
	return qs
}

// told is the outcome of each reading, where those that were asked came to
// outcomes.
func told(readings []reading, outcomes []ask.Outcome) []ask.Outcome {
	if len(outcomes) == len(readings) {
		return outcomes
	}
	all := make([]ask.Outcome, len(readings))
	for i := range readings {
		if err := readings[i].refused.Err(); err != nil {
			all[i].Err = err
		} else {
			all[i], outcomes = outcomes[0], outcomes[1:]
		}
	}
	return all
}

// overall is the answer to all descriptors.
func overall(answered []ask.Outcome) (limited, error) {
	out := limited{statuses: make([]limitStatus, len(answered))}
	for i := range answered {
		o := &answered[i]
		if o.Err != nil && ask.ProblemOf(o.Err).Code != "malformed" {
			return limited{}, o.Err
		}
		out.statuses[i] = statusOf(o)
		out.over = out.over || out.statuses[i].over
	}
	o := telling(answered)
	if out.over {
		out.body = problem(o)
		out.headers = append(out.headers, header{"content-type", "application/problem+json"})
	}
	if o.Err == nil {
		out.headers = appendLimits(out.headers, &o.Decision)
	}
	return out, nil
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
	x, ok := a.Decision.Tightest()
	y, other := b.Decision.Tightest()
	return ok && (!other || x.Remaining < y.Remaining || x.Remaining == y.Remaining && x.Reset > y.Reset)
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
	d := &o.Decision
	s := limitStatus{over: d.Outcome != decide.Allow}
	l, ok := decisive(d)
	if !ok {
		return s
	}
	s.limited, s.rule, s.limit, s.remaining = true, l.RuleID, narrow(l.Limit), narrow(l.Remaining)
	s.unit, s.multiplier = unitOf(&l)
	if !tell.Endless(&l) {
		s.resets, s.reset = true, tell.Seconds(l.Reset)
	}
	return s
}

// decisive is the limit that a status shows: that of the rule that refused,
// else the tightest. What the counter store did not answer has none.
func decisive(d *decide.Decision) (decide.Limit, bool) {
	if d.Outcome != decide.Allow {
		for i := range d.Limits {
			if d.Limits[i].RuleID == d.RuleID {
				return d.Limits[i], true
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
	dst = slices.Grow(dst, len(limitNames)+2)
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

// problem is the body of a refusal (RFC 9457), as the gate's own refusals have
// it where it proxies.
func problem(o *ask.Outcome) []byte {
	body := struct {
		Type     string     `json:"type"`
		Title    string     `json:"title"`
		Status   int        `json:"status"`
		Detail   string     `json:"detail"`
		Code     string     `json:"code"`
		Errors   ask.Faults `json:"errors"`
		Violated []string   `json:"violated-policies,omitempty"`
	}{Errors: ask.Faults{}}
	if o.Err != nil {
		p := ask.ProblemOf(o.Err)
		body.Title, body.Status, body.Detail, body.Code = p.Title, p.Status, p.Detail(o.Err), p.Code
		body.Errors = append(body.Errors, ask.FaultsOf(o.Err)...)
	} else {
		n := tell.Deny(&o.Decision)
		body.Title, body.Status, body.Detail, body.Code = n.Title, o.Decision.Status, n.Detail, string(o.Decision.Code)
		body.Violated = n.Violated
	}
	body.Type = "https://penstock.dev/problems/" + body.Code
	text, err := json.Marshal(&body)
	if err != nil { // texts and numbers always marshal
		return nil
	}
	return append(text, '\n')
}
