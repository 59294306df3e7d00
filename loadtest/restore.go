package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/loadtest/restore"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/verdict"
)

// promisedRestore is what is promised for a million counters.
const promisedRestore = time.Minute

func runRestore(ctx context.Context, c *call, args []string) (r report, err error) {
	var o restore.Options
	c.flags.IntVar(&o.Counters, "counters", 1_000_000, "quotas to restore")
	c.flags.IntVar(&o.Tenants, "tenants", 1000, "tenants they are of")
	if err := c.parse(args); err != nil {
		return r, err
	}
	switch {
	case o.Counters < 1000 || o.Tenants < 1:
		return r, c.refuse("-counters and -tenants: want at least 1000 and 1")
	case c.system.EnvFile != "":
		return r, c.refuse("-env: this empties the counter store, so it starts a system of its own")
	}
	o.Say = c.say
	s, err := c.open(ctx, "restore")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	machine, err := s.Describe(ctx)
	if err != nil {
		return r, err
	}
	r = report{Name: "restore", Machine: machine, Options: map[string]any{"counters": o.Counters, "tenants": o.Tenants}}
	result, err := restore.Run(ctx, s, o)
	if err != nil {
		return r, err
	}
	r.Machine.LoadAfter = system.Load()
	r.Result = result
	r.Verdict.Checks = append(r.Verdict.Checks,
		verdict.AtMost("from empty to vouched for", stats.Millis(result.Emptied*float64(time.Second)), promisedRestore*time.Duration(max(1, o.Counters/1_000_000))),
		verdict.Exactly("counters that are missing", max(0, int64(o.Counters)-result.Restored), 0),
		verdict.Exactly("counters that are wrong, of a thousand", int64(result.Wrong), 0))
	_, err = fmt.Fprintf(c.table, "%d counters restored in %.1f s, %.1f s after the store was emptied\n", o.Counters, result.Took, result.Emptied)
	return r, err
}
