package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/billing/reconcile"
	"penstock.dev/services/billing/topics"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
)

// A reconcileConfig is what proving the books needs of the service's own.
type reconcileConfig struct {
	databaseURL conf.Secret
	kafka       kafka.Knobs
	json        bool
	check       bool
}

func parseReconcile(args []string, getenv func(string) string) (reconcileConfig, error) {
	var c reconcileConfig
	s := conf.New("billing reconcile", getenv)
	s.Secret(&c.databaseURL, "database-url", "PostgreSQL that holds the books, postgres://…")
	c.kafka.Register(s)
	s.Bool(&c.json, "json", false, "print the report as JSON")
	if err := s.Parse(args); err != nil {
		return c, err
	}
	c.check = s.Check()
	var fault error
	if c.databaseURL.Reveal() == "" {
		fault = fmt.Errorf("-database-url (%s): empty", conf.Env("database-url"))
	}
	return c, conf.Refuse(errors.Join(fault, c.kafka.Validate()))
}

// errBooks ends the process with 1: the books do not add up.
var errBooks = errors.New("the books do not add up")

// proveBooks reads usage.v1 again beside whatever runs, changes nothing, and prints what
// differs from the books.
func proveBooks(ctx context.Context, p boot.Process, args []string, out io.Writer) error {
	cfg, err := parseReconcile(args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	broker, err := kafka.New(cfg.kafka.Config(p.Service+"-reconcile"), p.Log, nil)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	store, err := postgres.Open(ctx, postgres.Config{URL: cfg.databaseURL.Reveal(), MaxConns: 2}, p.Log)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", boot.ErrConfig, err), broker.Close())
	}
	report, err := reconcileBooks(ctx, p, store, broker)
	err = errors.Join(err, store.Close(), broker.Close())
	if err != nil {
		return err
	}
	if err := printReport(out, report, cfg.json); err != nil {
		return err
	}
	if !report.OK() {
		return errBooks
	}
	return nil
}

func reconcileBooks(ctx context.Context, p boot.Process, store *postgres.Store, broker *kafka.Client) (*reconcile.Report, error) {
	store.TakeAsIs()
	books, err := store.Snapshot(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	again, err := topics.ReadAgain(ctx, broker, broker.Registry(), books.First, books.Next, books, p.Log)
	if err != nil {
		return nil, err
	}
	r := &books.Report
	r.Read, r.Repeats, r.Unreadable, r.Since = again.Read, again.Repeats, again.Unreadable, again.Since
	r.Differences, r.Compared = reconcile.Compare(books.Lines, again.Lines, again.Since)
	return r, nil
}

func printReport(out io.Writer, r *reconcile.Report, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			OK bool `json:"ok"`
			*reconcile.Report
		}{r.OK(), r})
	}
	for _, line := range r.Text() {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
