package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"penstock.dev/loadtest/bench"
)

func runBench(ctx context.Context, c *call, args []string) (r report, err error) {
	o := bench.Options{Say: c.say}
	var only string
	c.flags.StringVar(&only, "only", "", "scenarios by name, comma-separated; none: all")
	c.flags.IntVar(&o.Rounds, "rounds", 3, "how often each is measured; medians are told")
	c.flags.DurationVar(&o.For, "for", 2*time.Second, "how long each is measured")
	c.flags.DurationVar(&o.Warm, "warm", 500*time.Millisecond, "how long each is warmed up")
	if err := c.parse(args); err != nil {
		return r, err
	}
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	o.Scenarios, err = bench.Only(names)
	switch {
	case err != nil:
		return r, c.refuse("-only: %v", err)
	case o.Rounds < 1 || o.For < 100*time.Millisecond || o.For > 10*time.Second || o.Warm < 0 || o.Warm > 5*time.Second:
		return r, c.refuse("-rounds, -for, -warm: want at least 1, 100ms to 10s, 0s to 5s")
	case c.system.EnvFile != "":
		return r, c.refuse("-env: what is compared shares a Redis, so it starts a system of its own")
	}
	o.System = c.system
	result, err := bench.Run(ctx, o)
	if err != nil {
		return r, err
	}
	if c.out == "" {
		c.out = filepath.Join(result.Root, ".run", "bench.json")
	}
	outcomes := result.Outcomes()
	r = report{Name: "bench", Machine: result.Machine}
	r.Verdict.Checks, r.Verdict.None = bench.Targets(outcomes), bench.Doubt(outcomes)
	file := map[string]any{
		"machine": r.Machine, "targets": r.Verdict.Checks, "faults": result.Faults,
		"options": map[string]any{"rounds": o.Rounds, "for": o.For.String(), "warm": o.Warm.String(), "kafka": c.system.Kafka, "envoyproxy/ratelimit": bench.EnvoyVersion},
	}
	for name, outcome := range outcomes {
		file[name] = outcome
	}
	r.file = file
	_, _ = fmt.Fprintln(c.table)
	if err := bench.Table(c.table, o.Scenarios, outcomes); err != nil {
		return r, err
	}
	if len(result.Faults) > 0 {
		err = errors.New("wrong:\n  " + strings.Join(result.Faults, "\n  "))
	}
	return r, err
}
