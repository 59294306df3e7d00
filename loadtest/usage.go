package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"penstock.dev/deploy/local/server"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/usage"
	"penstock.dev/loadtest/verdict"
)

func runUsage(ctx context.Context, c *call, args []string) (r report, err error) {
	var o usage.Options
	c.flags.IntVar(&o.Events, "events", 1_000_000, "events to produce")
	c.flags.IntVar(&o.Tenants, "tenants", 200, "tenants they are of")
	c.flags.IntVar(&o.Streams, "streams", 4, "runs of gateways that number them")
	c.flags.Float64Var(&o.Refuse, "refuse", 0.05, "share of documents that the store refuses with 429, 0 to 0.9")
	c.flags.Float64Var(&o.Lose, "lose", 0.01, "share of the store's answers that are lost, 0 to 0.9")
	c.flags.DurationVar(&o.Kill, "kill", 30*time.Second, "between two kills of the indexer; 0 kills nothing")
	c.flags.BoolVar(&o.Restart, "restart", true, "kill the broker once, too")
	c.flags.Uint64Var(&o.Seed, "seed", 1, "of all that is random")
	if err := c.parse(args); err != nil {
		return r, err
	}
	switch {
	case o.Events < 1 || o.Tenants < 1 || o.Streams < 1:
		return r, c.refuse("-events, -tenants, -streams: want at least 1")
	case o.Refuse < 0 || o.Refuse > 0.9 || o.Lose < 0 || o.Lose > 0.9:
		return r, c.refuse("-refuse, -lose: want 0 to 0.9")
	case c.system.EnvFile != "":
		return r, c.refuse("-env: this kills what it measures, so it starts a system of its own")
	}
	o.Say = c.say
	return c.measureUsage(ctx, o)
}

// measureUsage starts a store, the front before it, and a system that sees the
// front alone.
func (c *call) measureUsage(ctx context.Context, o usage.Options) (r report, err error) {
	_, dir, err := system.Scratch()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.Store, err = server.StartElasticsearch(ctx, filepath.Join(dir, "store"), server.ElasticsearchOptions{}); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, o.Store.Stop(context.WithoutCancel(ctx))) }()
	if o.Front, err = usage.Listen(ctx, o.Store.URL, o.Refuse, o.Lose, o.Seed); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, o.Front.Close()) }()
	c.system.ElasticsearchURL = o.Front.URL
	s, err := c.open(ctx, "usage")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	machine, err := s.Describe(ctx)
	if err != nil {
		return r, err
	}
	r = report{Name: "usage", Machine: machine, Options: map[string]any{
		"events": o.Events, "tenants": o.Tenants, "streams": o.Streams, "refuse": o.Refuse, "lose": o.Lose,
		"kill": o.Kill.String(), "restart": o.Restart, "seed": o.Seed, "kafka": c.system.Kafka,
	}}
	result, err := usage.Run(ctx, s, o)
	if err != nil {
		return r, err
	}
	r.Machine.LoadAfter = system.Load()
	r.Result, r.Verdict = result, judgeUsage(o, result)
	_, _ = fmt.Fprintf(c.table, "%d events on usage.v1 in %.1f s, %d documents after %.1f s: %.0f a second\n",
		result.Events, result.Produced, result.Documents, result.Indexed, result.PerSecond)
	_, _ = fmt.Fprintf(c.table, "%d bulk requests, %d documents refused, %d answers lost, indexer killed %d times, broker %d times\n",
		result.Requests, result.Refused, result.Lost, result.Kills, result.Restarts)
	_, _ = fmt.Fprintf(c.table, "CPU: indexer %.1f s (%.0f documents a second and core), store %.1f s, broker %.1f s\n",
		result.IndexerCPU, float64(result.Documents)/result.IndexerCPU, result.StoreCPU, result.BrokerCPU)
	return r, nil
}

func judgeUsage(o usage.Options, r usage.Result) verdict.Verdict {
	var v verdict.Verdict
	if o.Kill > 0 && r.Kills == 0 || o.Refuse > 0 && r.Refused == 0 {
		v.None = "nothing went wrong that was to go wrong: too few events"
	}
	v.Checks = append(v.Checks,
		verdict.Exactly("documents", int64(r.Documents), int64(r.Events)),
		verdict.Exactly("units in them", r.UnitsFound, r.Units),
		verdict.Exactly("streams with a gap or a repeat", int64(r.Broken), 0),
		verdict.Exactly("events set aside", r.SetAside, 0))
	return v
}
