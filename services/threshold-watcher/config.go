package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"time"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/threshold-watcher/topics"
)

type config struct {
	kafka       kafka.Knobs
	adminListen string
	instance    string // empty: chosen at random
	keep        time.Duration
	batch       int
	session     time.Duration
	timeout     time.Duration
	aside       string
	replicas    int // of topics that are created
	check       bool
}

func knobs(c *config, getenv func(string) string) *conf.Set {
	s := conf.New("threshold-watcher", getenv)
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9094", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	c.kafka.Register(s)
	s.String(&c.instance, "instance", "", "name of this instance, which no other running one has; one that comes back under its name ends at once the transaction it died in; empty: a random one")
	s.Duration(&c.keep, "keep", 8*24*time.Hour, "how long finished periods are remembered for late events and replays, 1h-10000h; longer than usage.v1 is kept")
	s.Int(&c.batch, "batch", 500, "most events of one transaction, 1-50000")
	s.Duration(&c.session, "session-timeout", 10*time.Second, "how long an instance that died keeps its partitions, 6s-30m")
	s.Duration(&c.timeout, "transaction-timeout", 10*time.Second, "how long a transaction of an instance that died may hold up readers, 1s-15m")
	s.String(&c.aside, "dlq-topic", topics.Aside, "topic for records that are no events")
	s.Int(&c.replicas, "topic-replicas", 0, "replicas of topics when they are created, 0-9; 0 leaves it to the brokers")
	return s
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	s := knobs(&c, getenv)
	if err := s.Parse(args); err != nil {
		return c, err
	}
	c.check = s.Check()
	if c.instance == "" {
		c.instance = rand.Text()
	}
	return c, conf.Refuse(c.Validate())
}

var (
	topicNames = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)
	instances  = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,200}$`)
)

// Validate returns every fault at once.
func (c *config) Validate() error {
	var faults []error
	refuse := func(ok bool, knob, format string, a ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), fmt.Errorf(format, a...)))
		}
	}
	refuse(c.adminListen != "", "admin-listen", "empty")
	refuse(instances.MatchString(c.instance), "instance", "%q is not 1-200 of a-z A-Z 0-9 . _ -", c.instance)
	refuse(within(c.keep, time.Hour, 10_000*time.Hour), "keep", "%v is not 1h-10000h", c.keep)
	refuse(within(c.batch, 1, 50_000), "batch", "%d is not 1-50000", c.batch)
	refuse(within(c.session, 6*time.Second, 30*time.Minute), "session-timeout", "%v is not 6s-30m", c.session)
	refuse(within(c.timeout, time.Second, 15*time.Minute), "transaction-timeout", "%v is not 1s-15m", c.timeout)
	refuse(topicNames.MatchString(c.aside), "dlq-topic", "%q is not 1-249 of a-z A-Z 0-9 . _ -", c.aside)
	refuse(within(c.replicas, 0, 9), "topic-replicas", "%d is not 0-9", c.replicas)
	return errors.Join(append(faults, c.kafka.Validate())...)
}

func within[T int | time.Duration](v, least, most T) bool { return v >= least && v <= most }

// watching is what the watcher is told.
func (c *config) watching() topics.Config {
	return topics.Config{
		Instance: c.instance, Keep: c.keep, Batch: c.batch, Session: c.session, Timeout: c.timeout, Aside: c.aside, Replicas: int16(c.replicas),
	}
}
