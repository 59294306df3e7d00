package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/loadtest/decisions"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/verdict"
)

// promisedDecision is what is promised of a decision, p99, at 1,000 a second
// beside everything else.
const promisedDecision = 7100 * time.Microsecond

func runDecisions(ctx context.Context, c *call, args []string) (r report, err error) {
	var o decisions.Options
	c.flags.Float64Var(&o.Schedule.Rate, "rate", 1000, "decisions a second, and proxied requests a second when these are alone")
	c.flags.DurationVar(&o.Schedule.For, "for", 30*time.Second, "how long, for each of the four measurements")
	c.flags.Float64Var(&o.Beside.Changes, "changes", 100, "beside: changes of rules a second")
	c.flags.Float64Var(&o.Beside.Proxied, "proxied", 200, "beside: proxied requests a second")
	if err := c.parse(args); err != nil {
		return r, err
	}
	if o.Schedule.Rate <= 0 || o.Schedule.Count() < 1 || o.Beside.Changes <= 0 || o.Beside.Proxied <= 0 {
		return r, c.refuse("-rate, -for, -changes and -proxied: want more than nothing")
	}
	o.Say = c.say
	s, err := c.open(ctx, "decisions")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	machine, err := s.Describe(ctx)
	if err != nil {
		return r, err
	}
	r = report{Name: "decisions", Machine: machine, Options: map[string]any{
		"rate": o.Schedule.Rate, "for": o.Schedule.For.String(), "kafka": c.system.Kafka, "volatile": c.system.Volatile,
		"beside_changes": o.Beside.Changes, "beside_proxied": o.Beside.Proxied,
	}}
	result, err := decisions.Run(ctx, s, o)
	if err != nil {
		return r, err
	}
	r.Machine.LoadAfter = system.Load()
	r.Result, r.Verdict = result, judgeDecisions(result)
	for _, line := range notes(result) {
		_, _ = fmt.Fprintln(c.table, line)
	}
	return r, stats.Table(c.table, result.Rows())
}

// notes are what the table has no column for.
func notes(r decisions.Result) []string {
	lines := []string{fmt.Sprintf("%d units let through, %d charged", r.Allowed, r.Charged)}
	for _, s := range []struct {
		name string
		decisions.Stream
	}{
		{"quiet decisions", r.Quiet},
		{"quiet proxied", r.QuietProxied},
		{"direct", r.QuietDirect},
		{"beside decisions", r.Beside},
		{"beside proxied", r.BesideProxied},
	} {
		line := fmt.Sprintf("%s: %d sent, %d failed, %d refused, %d degraded", s.name, s.Sent, s.Failed, s.Refused, s.Degraded)
		if h := s.Histogram; h != nil {
			line += fmt.Sprintf("; the gateway counts %d decisions, p50 %v, p99 %v", h.Count, h.P50, h.P99)
		}
		if s.Failed > 0 {
			line += "; one failure: " + s.Failure
		}
		lines = append(lines, line)
	}
	return lines
}

func judgeDecisions(r decisions.Result) verdict.Verdict {
	v := verdict.Verdict{Checks: []verdict.Check{
		verdict.AtMost("decisions, beside everything else, p99", r.Beside.Latency.P99, promisedDecision),
		verdict.AtMost("proxied requests, upstream included, beside everything else, p99", r.BesideProxied.Latency.P99, promisedDecision),
	}}
	for _, s := range []decisions.Stream{r.Quiet, r.QuietProxied, r.Beside, r.BesideProxied} {
		if late := time.Duration(s.Late.P99); late > promisedDecision/2 {
			v.None = fmt.Sprintf("the generator was late by %v at p99", stats.Millis(late))
		}
	}
	failed := r.Quiet.Failed + r.QuietProxied.Failed + r.Beside.Failed + r.BesideProxied.Failed + r.ChangesFailed
	degraded := r.Quiet.Degraded + r.QuietProxied.Degraded + r.Beside.Degraded + r.BesideProxied.Degraded
	v.Checks = append(v.Checks,
		verdict.Exactly("requests and changes that failed", int64(failed), 0),
		verdict.Exactly("decisions without the counter store", int64(degraded), 0),
		verdict.Exactly("units charged, of those let through", r.Charged, r.Allowed))
	return v
}
