package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/loadtest/frozen"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/verdict"
)

// What is promised of a decision while the counter store hangs, with the
// gateway's default budget of 50 ms, and of the time until all is as before.
const (
	promisedFrozen   = 60 * time.Millisecond  // p99.9
	promisedLongest  = 150 * time.Millisecond // of all
	promisedRecovery = 5 * time.Second
)

func runFrozen(ctx context.Context, c *call, args []string) (r report, err error) {
	o := frozen.Options{Say: c.say}
	c.flags.Float64Var(&o.Rate, "rate", 300, "decisions a second, a third of them for each failure mode")
	c.flags.DurationVar(&o.Freeze, "for", 20*time.Second, "how long the counter store hangs")
	c.flags.DurationVar(&o.Around, "around", 6*time.Second, "how long is sent before and after")
	if err := c.parse(args); err != nil {
		return r, err
	}
	switch {
	case o.Rate <= 3*frozen.LocalRate:
		return r, c.refuse("-rate: want more than %d, so that the rule that is counted locally refuses some", 3*frozen.LocalRate)
	case o.Freeze < time.Second || o.Around <= promisedRecovery:
		return r, c.refuse("-for, -around: want at least 1s, and more than the %v in which all must be as before", promisedRecovery)
	case c.system.EnvFile != "":
		return r, c.refuse("-env: %v", frozen.ErrNotOurs)
	}
	s, err := c.open(ctx, "frozen")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	machine, err := s.Describe(ctx)
	if err != nil {
		return r, err
	}
	r = report{Name: "frozen", Machine: machine, Options: map[string]any{
		"rate": o.Rate, "for": o.Freeze.String(), "around": o.Around.String(), "kafka": c.system.Kafka,
	}}
	result, err := frozen.Run(ctx, s, o)
	if err != nil {
		return r, err
	}
	r.Machine.LoadAfter = system.Load()
	r.Result, r.Verdict = result, judgeFrozen(result)
	for _, m := range []struct {
		mode string
		frozen.Answers
	}{{"open", result.Open}, {"closed", result.Closed}, {"local", result.Local}} {
		_, _ = fmt.Fprintf(c.table, "%s: %d sent, %d passed, %d limited, %d closed\n", m.mode, m.Sent, m.Passed, m.Limited, m.Closed)
		if m.Wrong > 0 {
			_, _ = fmt.Fprintf(c.table, "%s: %d wrong, one of them: %s\n", m.mode, m.Wrong, m.Example)
		}
	}
	_, _ = fmt.Fprintf(c.table, "the last answer without the store came %v after it went on\n", result.Recovered)
	return r, stats.Table(c.table, result.Rows())
}

func judgeFrozen(r frozen.Result) verdict.Verdict {
	share := int64(frozen.LocalBurst + frozen.LocalRate*time.Duration(r.Hung).Seconds() + 1)
	v := verdict.Verdict{Checks: []verdict.Check{
		verdict.AtMost("decisions while the counter store hangs, p99.9", r.Frozen.P999, promisedFrozen),
		verdict.AtMost("those of the open rule, p99.9", r.Open.Took.P999, promisedFrozen),
		verdict.AtMost("those of the closed rule, p99.9", r.Closed.Took.P999, promisedFrozen),
		verdict.AtMost("those of the local rule, p99.9", r.Local.Took.P999, promisedFrozen),
		verdict.AtMost("the longest of all", r.Frozen.Max, promisedLongest),
		verdict.Exactly("of the open rule: let through", int64(r.Open.Passed), int64(r.Open.Sent)),
		verdict.Exactly("of the closed rule: refused with 503", int64(r.Closed.Closed), int64(r.Closed.Sent)),
		verdict.Exactly("of the local rule: let through or refused with 429", int64(r.Local.Passed+r.Local.Limited), int64(r.Local.Sent)),
		{
			What: "of the local rule: let through", Promised: fmt.Sprintf("9 tenths of %d to %d", share, share), Measured: fmt.Sprint(r.Local.Passed),
			Held: int64(r.Local.Passed) <= share && 10*int64(r.Local.Passed) >= 9*share,
		},
		verdict.Exactly("requests that failed", int64(r.Failed), 0),
		verdict.Exactly("decisions without the counter store before it hung", int64(r.Early), 0),
		verdict.AtMost("until all is as before", r.Recovered, promisedRecovery),
	}}
	if late := time.Duration(r.Late.P999); late > (promisedFrozen-50*time.Millisecond)/2 {
		v.None = fmt.Sprintf("the generator was late by %v at p99.9", stats.Millis(late))
	}
	return v
}
