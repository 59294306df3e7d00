package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/thresholds"
	"penstock.dev/loadtest/verdict"
)

// promisedEvent is what is promised from a request to its event, at 100 a second on
// the embedded broker.
const promisedEvent = 50 * time.Millisecond

func runThresholds(ctx context.Context, c *call, args []string) (r report, err error) {
	var o thresholds.Options
	c.flags.Float64Var(&o.Schedule.Rate, "rate", 100, "requests a second, each of which exhausts a quota")
	c.flags.DurationVar(&o.Schedule.For, "for", 30*time.Second, "how long")
	if err := c.parse(args); err != nil {
		return r, err
	}
	if o.Schedule.Rate <= 0 || o.Schedule.Count() < 1 {
		return r, c.refuse("-rate and -for: want at least one request")
	}
	o.Say = c.say
	s, err := c.open(ctx, "thresholds")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	machine, err := s.Describe(ctx)
	if err != nil {
		return r, err
	}
	r = report{Name: "thresholds", Machine: machine, Options: map[string]any{
		"rate": o.Schedule.Rate, "for": o.Schedule.For.String(), "kafka": c.system.Kafka,
	}}
	result, err := thresholds.Run(ctx, s, o)
	if err != nil {
		return r, err
	}
	r.Machine.LoadAfter = system.Load()
	r.Result, r.Verdict = result, judgeThresholds(o.Schedule, result)
	if result.Refused > 0 {
		c.say("%d requests did not exhaust a quota, one of them: %s", result.Refused, result.Failure)
	}
	_, _ = fmt.Fprintf(c.table, "%d requests at %.1f a second\n", result.Requests, result.Rate)
	return r, stats.Table(c.table, result.Rows())
}

func judgeThresholds(s pace.Schedule, r thresholds.Result) verdict.Verdict {
	var v verdict.Verdict
	if r.Rate < 0.95*s.Rate {
		v.None = fmt.Sprintf("%.1f requests a second were made, of %.1f", r.Rate, s.Rate)
	}
	v.Checks = append(v.Checks,
		verdict.AtMost("request to event, p99", r.Requested.P99, promisedEvent),
		verdict.Exactly("requests that did not exhaust a quota", int64(r.Refused), 0),
		verdict.Exactly("events missing", int64(r.Missing), 0),
		verdict.Exactly("events twice", int64(r.Twice), 0))
	return v
}
