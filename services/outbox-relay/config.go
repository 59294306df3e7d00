package main

import (
	"errors"
	"fmt"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
)

type config struct {
	adminListen string
	databaseURL conf.Secret
	slot        string
	publication string
	maxInFlight int
	kafka       kafka.Knobs
	replicas    int
	check       bool
}

func knobs(c *config, getenv func(string) string) *conf.Set {
	s := conf.New("outbox-relay", getenv)
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9091", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	s.Secret(&c.databaseURL, "database-url", "PostgreSQL that holds the outbox, postgres://…; the user needs REPLICATION and SELECT on the outbox")
	s.String(&c.slot, "slot", "penstock_relay", "logical replication slot, made when missing; one relay at a time reads it, others stand by")
	s.String(&c.publication, "publication", "penstock_outbox", "publication of the outbox tables, made by rule-admin")
	s.Int(&c.maxInFlight, "max-in-flight", 10_000, "events sent and not yet stored before reading pauses, 1-1000000")
	c.kafka.Register(s, kafka.OnlyBrokers)
	s.Int(&c.replicas, "topic-replicas", 0, "replicas of rules.v1 when the relay creates it, 0-9; 0 leaves it to the brokers")
	return s
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	s := knobs(&c, getenv)
	if err := s.Parse(args); err != nil {
		return config{}, err
	}
	c.check = s.Check()
	return c, c.Validate()
}

// Validate returns every fault at once.
func (c config) Validate() error {
	var faults []error
	refuse := func(ok bool, knob, format string, a ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), fmt.Errorf(format, a...)))
		}
	}
	refuse(c.adminListen != "", "admin-listen", "empty")
	refuse(c.databaseURL.Reveal() != "", "database-url", "empty")
	refuse(isName(c.slot), "slot", "%q is not 1-50 of a-z 0-9 _", c.slot)
	refuse(isName(c.publication), "publication", "%q is not 1-50 of a-z 0-9 _", c.publication)
	refuse(c.maxInFlight >= 1 && c.maxInFlight <= 1_000_000, "max-in-flight", "%d is not 1-1000000", c.maxInFlight)
	faults = append(faults, c.kafka.Validate())
	refuse(c.replicas >= 0 && c.replicas <= 9, "topic-replicas", "%d is not 0-9", c.replicas)
	return conf.Refuse(errors.Join(faults...))
}

// producer is the configuration of the client that writes rules.v1.
func (c config) producer(clientID string) kafka.Config {
	k := c.kafka.Config(clientID)
	k.MaxBufferedRecords = c.maxInFlight + 1
	k.DeliveryTimeout, k.CancelInFlight = deliverWithin, true
	return k
}

// isName reports whether s can stand in a replication command as it is, with
// room for the suffix of a temporary slot.
func isName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 50
}
