package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"penstock.dev/loadtest/bench"
)

func runBench(ctx context.Context, c *call, args []string) (r report, err error) {
	o := bench.Options{Say: c.say}
	var only string
	c.flags.StringVar(&only, "only", "", "scenarios by name, comma-separated; none: all")
	c.flags.IntVar(&o.Rounds, "rounds", 3, "how often each is measured")
	c.flags.DurationVar(&o.For, "for", 2500*time.Millisecond, "how long each is measured")
	c.flags.DurationVar(&o.Warm, "warm", 500*time.Millisecond, "how long each is warmed up")
	if err := c.parse(args); err != nil {
		return r, err
	}
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	if o.Scenarios, err = bench.Only(names); err != nil {
		return r, c.refuse("-only: %v", err)
	}
	o.System = c.system
	if c.out == "" {
		c.out = filepath.Join(".run", "bench.json")
	}
	result, err := bench.Run(ctx, o)
	if err != nil {
		return r, err
	}
	if len(result.Faults) > 0 {
		return r, errors.New("wrong:\n  " + strings.Join(result.Faults, "\n  "))
	}
	return report{Name: "bench", Machine: result.Machine, Result: result.Samples}, nil
}
