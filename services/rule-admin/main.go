// Rule-admin is where operators write the catalogue: tenants, keys, services,
// plans and rules.
//
// It keeps the catalogue in PostgreSQL, with an audit of every change and an
// outbox that a relay carries to rules.v1. Its promises and knobs are in
// README.md.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/httpapi"
	"penstock.dev/services/rule-admin/ledger"
	"penstock.dev/services/rule-admin/observe"
	"penstock.dev/services/rule-admin/postgres"
	"penstock.dev/services/rule-admin/topics"
)

func main() { boot.Main("rule-admin", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first:
// callers leave before the database closes.
func run(ctx context.Context, p boot.Process) error {
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	tokens, err := parseTokens(cfg.tokens)
	if err != nil {
		return err
	}
	metrics := observe.New(p.Metrics)
	schema := topics.NewSchema(kafka.OpenRegistry(cfg.kafka.RegistryConfig()), cfg.kafka.RegistryShown(), p.Log)
	store, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.databaseURL.Reveal(), MaxConns: cfg.databaseMax, Keep: cfg.keep,
	}, schema.Record, p.Log)
	if err != nil {
		return fmt.Errorf("%w: %w", boot.ErrConfig, err)
	}
	face := httpapi.Config{
		Catalogue: catalog.New(metrics.Store(store), rand.Reader, condition.Compile), Audit: store.Audit, Now: time.Now,
		Tokens: tokens, Timeout: cfg.timeout, Log: p.Log,
		Observe: func(c httpapi.Call) { metrics.Request(string(c.Operation), string(c.Kind), c.Status, c.Took) },
	}
	parts := []boot.Part{
		admin.Part(cfg.adminListen, p, admin.Ready{"postgres": store.Ready, "schema": schema.Ready}),
		boot.Close("postgres", store),
	}
	var counted ledger.Counters
	if cfg.redisURL.Reveal() != "" {
		c, err := counters.Open(cfg.counters(), p.Log, p.Metrics)
		if err != nil {
			return fmt.Errorf("%w: %w", boot.ErrConfig, err)
		}
		counted, face.Totals = c, c.Usage
		parts = append(parts, boot.Close("redis", c))
	}
	books := ledger.New(metrics.Books(store.Ledger(schema.Entry)), counted, func(message string, err error) {
		p.Log.Warn(message, "error", err.Error()) //nolint:sloglint // each of the ledger's messages is a constant
	})
	face.Ledger = metrics.Ledger(books)

	prepared := make(chan struct{})
	return p.Run(ctx, append(parts,
		boot.Part{Name: "store", Run: func(ctx context.Context) error {
			if err := store.Prepare(ctx); err != nil {
				return err
			}
			close(prepared)
			found := make(chan error, 1)
			go func() { found <- schema.Run(ctx, store) }()
			return errors.Join(store.Tend(ctx, metrics.Outbox), <-found)
		}},
		boot.Part{Name: "expiry", Run: func(ctx context.Context) error {
			select {
			case <-prepared:
			case <-ctx.Done():
				return ctx.Err()
			}
			return books.Expire(ctx, metrics.Overdue)
		}},
		boot.Part{Name: "http", Run: httpapi.Serve(cfg.listen, httpapi.Handler(face))},
	)...)
}
