package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/propagation"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/verdict"
)

// What is promised of a rule's change, commit to enforced, at 100 a second.
const (
	promisedP50 = 5 * time.Millisecond
	promisedP99 = 20 * time.Millisecond
)

func runPropagation(ctx context.Context, c *call, args []string) (r report, err error) {
	var o propagation.Options
	var debezium bool
	var polls string
	c.flags.Float64Var(&o.Schedule.Rate, "rate", 100, "changes of rules a second")
	c.flags.DurationVar(&o.Schedule.For, "for", 30*time.Second, "how long")
	c.flags.BoolVar(&debezium, "debezium", false, "run the real Debezium beside the relay, on the same outbox")
	c.flags.StringVar(&polls, "poll", "500,1", "with -debezium: its poll.interval.ms, one connector for each; 500 is its default")
	if err := c.parse(args); err != nil {
		return r, err
	}
	if o.Schedule.Rate <= 0 || o.Schedule.Count() < 1 {
		return r, c.refuse("-rate and -for: want at least one change")
	}
	if debezium {
		for word := range strings.SplitSeq(polls, ",") {
			ms, err := strconv.Atoi(strings.TrimSpace(word))
			if err != nil || ms < 1 {
				return r, c.refuse("-poll=%s: want milliseconds, comma-separated", polls)
			}
			o.Debezium = append(o.Debezium, ms)
		}
	}
	o.Say = c.say
	c.system.CommitTimes = true
	s, err := c.open(ctx, "propagation")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	machine, err := s.Describe(ctx)
	if err != nil {
		return r, err
	}
	r = report{Name: "propagation", Machine: machine, Options: map[string]any{
		"rate": o.Schedule.Rate, "for": o.Schedule.For.String(), "kafka": c.system.Kafka, "volatile": c.system.Volatile, "debezium_poll_ms": o.Debezium,
	}}
	result, err := propagation.Run(ctx, s, o)
	if err != nil {
		return r, err
	}
	r.Machine.LoadAfter = system.Load()
	r.Result, r.Verdict = result, judgePropagation(o.Schedule, result)
	if result.Failed > 0 {
		c.say("%d changes failed, one of them: %s", result.Failed, result.Failure)
	}
	_, _ = fmt.Fprintf(c.table, "%d changes at %.1f a second\n", result.Changes, result.Rate)
	return r, stats.Table(c.table, result.Rows())
}

func judgePropagation(s pace.Schedule, r propagation.Result) verdict.Verdict {
	var v verdict.Verdict
	if r.Rate < 0.95*s.Rate {
		v.None = fmt.Sprintf("%.1f changes a second were made, of %.1f", r.Rate, s.Rate)
	}
	for _, row := range r.Enforced {
		v.Checks = append(v.Checks,
			verdict.AtMost(row.Name+", p50", row.Summary.P50, promisedP50),
			verdict.AtMost(row.Name+", p99", row.Summary.P99, promisedP99))
	}
	v.Checks = append(v.Checks,
		verdict.Exactly("answers that contradict their rules_version", int64(r.Contradicted), 0),
		verdict.Exactly("changes refused", int64(r.Failed), 0),
		verdict.Exactly("changes lost", int64(r.Missing), 0))
	return v
}
