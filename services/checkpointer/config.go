package main

import (
	"errors"
	"fmt"
	"time"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
)

// What is done about an unsafe store.
const (
	warnUnsafe   = "warn"
	refuseUnsafe = "refuse"
)

type config struct {
	adminListen string
	databaseURL conf.Secret
	kafka       kafka.Knobs
	redisURL    conf.Secret
	cluster     bool
	redisBudget time.Duration // a restore sends much at once, and nobody waits for it but quotas
	unsafe      string
	keeping     checkpoint.Config
	check       bool
	json        bool // of reconcile
	all         bool // of reconcile
}

func knobs(c *config, getenv func(string) string) *conf.Set {
	s := conf.New("checkpointer", getenv)
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9095", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	c.reach(s)
	s.String(&c.unsafe, "unsafe-store", warnUnsafe, "what to do about a counter store that deletes counters when its memory is full, or has wallets and no append-only file: warn, or refuse to start")
	s.Duration(&c.keeping.Watch, "watch-every", 100*time.Millisecond, "how often the counter store is looked at, 10ms-10s: as long goes a loss unnoticed here")
	s.Duration(&c.keeping.Every, "checkpoint-every", 30*time.Second, "how often what changed is saved, 100ms-1h")
	s.Duration(&c.keeping.Sweep, "sweep-every", time.Minute, "how often all counters are compared, 100ms-24h: as long may one that was deleted be missing to a gateway that never saw it")
	s.Duration(&c.keeping.Patience, "tail-patience", 10*time.Second, "how long an emptied store waits for usage.v1 while nothing of it comes, 0s-10m; then it is restored without the rest, and what was used since the checkpoint may be used again")
	return s
}

// reach registers where the servers are.
func (c *config) reach(s *conf.Set) {
	s.Secret(&c.databaseURL, "database-url", "PostgreSQL that holds the checkpoints, postgres://…; the user must own its tables")
	s.Secret(&c.redisURL, "redis-url", "counter store, redis://[user:password@]host:port[/db], rediss:// or unix://")
	s.Bool(&c.cluster, "redis-cluster", false, "redis-url names a node of a Redis Cluster, and more of them as ?addr=host:port&addr=host:port")
	s.Duration(&c.redisBudget, "redis-budget", 2*time.Second, "longest wait for one answer of the counter store, 1ms-10s")
	c.kafka.Register(s)
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	err := c.parse(knobs(&c, getenv), args)
	return c, err
}

func (c *config) parse(s *conf.Set, args []string) error {
	if err := s.Parse(args); err != nil {
		return err
	}
	c.check = s.Check()
	return conf.Refuse(c.Validate())
}

// Validate returns every fault at once.
func (c *config) Validate() error {
	faults := []error{c.reachable()}
	refuse := func(ok bool, knob, format string, a ...any) {
		if !ok {
			faults = append(faults, fault(knob, format, a...))
		}
	}
	refuse(c.adminListen != "", "admin-listen", "empty")
	refuse(c.unsafe == warnUnsafe || c.unsafe == refuseUnsafe, "unsafe-store", "%q is not warn or refuse", c.unsafe)
	for _, d := range []struct {
		knob          string
		value         time.Duration
		least, utmost time.Duration
	}{
		{"watch-every", c.keeping.Watch, 10 * time.Millisecond, 10 * time.Second},
		{"checkpoint-every", c.keeping.Every, 100 * time.Millisecond, time.Hour},
		{"sweep-every", c.keeping.Sweep, 100 * time.Millisecond, 24 * time.Hour},
		{"tail-patience", c.keeping.Patience, 0, 10 * time.Minute},
	} {
		refuse(d.value >= d.least && d.value <= d.utmost, d.knob, "%v, want %v to %v", d.value, d.least, d.utmost)
	}
	return errors.Join(faults...)
}

// reachable are the faults of where the servers are.
func (c *config) reachable() error {
	faults := []error{c.kafka.Validate()}
	if c.databaseURL.Reveal() == "" {
		faults = append(faults, fault("database-url", "empty"))
	}
	if c.redisURL.Reveal() == "" {
		faults = append(faults, fault("redis-url", "empty"))
	} else if err := c.counters().Validate(); err != nil {
		faults = append(faults, fault("redis-url", "%w", err))
	}
	return errors.Join(faults...)
}

func fault(knob, format string, a ...any) error {
	return fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), fmt.Errorf(format, a...))
}

func (c *config) counters() counters.Config {
	return counters.Config{URL: c.redisURL.Reveal(), Budget: c.redisBudget, Cluster: c.cluster}
}
