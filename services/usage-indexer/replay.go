package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/topics"
)

// A replayConfig is the service's own and what is to be replayed.
type replayConfig struct {
	config
	days     int
	from, to string
	rate     int
	span     topics.Span
}

func parseReplay(args []string, getenv func(string) string, now time.Time) (replayConfig, error) {
	var c replayConfig
	s := knobs(&c.config, getenv)
	s.Int(&c.days, "days", 0, "replay the last so many days, 1-10000")
	s.String(&c.from, "from", "", "replay from this instant on, RFC 3339, instead of -days")
	s.String(&c.to, "to", "", "and up to this one; empty: up to now")
	s.Int(&c.rate, "rate", 0, "most events a second, 0-1000000; 0: as fast as the store takes them")
	err := c.parse(s, args, func() error { return c.between(now) })
	return c, err
}

// between reads the span and returns every fault of it.
func (c *replayConfig) between(now time.Time) error {
	var faults []error
	at := func(knob, value string) time.Time {
		if value == "" {
			return time.Time{}
		}
		t, err := time.Parse(time.RFC3339, value)
		if err != nil {
			faults = append(faults, fault(knob, "%q is no instant like 2026-11-30T09:00:00Z", value))
		}
		return t
	}
	c.span = topics.Span{From: at("from", c.from), To: at("to", c.to), Rate: c.rate}
	switch {
	case c.from != "" && c.days != 0:
		faults = append(faults, fault("days", "is instead of -from, and both are set"))
	case c.from == "" && !within(c.days, 1, 10_000):
		faults = append(faults, fault("days", "%d is not 1-10000; say how far back to go, or -from", c.days))
	case c.from == "":
		c.span.From = now.Add(-time.Duration(c.days) * 24 * time.Hour)
	}
	if !c.span.To.IsZero() && !c.span.From.Before(c.span.To) {
		faults = append(faults, fault("to", "is not after the beginning"))
	}
	if !within(c.rate, 0, 1_000_000) {
		faults = append(faults, fault("rate", "%d is not 0-1000000", c.rate))
	}
	return errors.Join(faults...)
}

// replay has what the topic still holds indexed again, beside whatever runs, and
// prints what it did.
func replay(ctx context.Context, p boot.Process, args []string, out io.Writer) error {
	cfg, err := parseReplay(args, p.Getenv, time.Now())
	if err != nil || cfg.check {
		return err
	}
	broker, err := kafka.New(cfg.kafka.Config(p.Service+"-replay"), p.Log, nil)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	store, err := esindex.New(cfg.store, p.Log, nil, time.Now)
	if err != nil {
		return errors.Join(fmt.Errorf("store: %w", err), broker.Close())
	}
	tally, err := topics.Replay(ctx, cfg.indexing(), cfg.span, broker, broker.Registry(), store, p.Log, time.Now)
	_, perr := fmt.Fprintln(out, tally)
	return errors.Join(err, perr, broker.Close())
}
