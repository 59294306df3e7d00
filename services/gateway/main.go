// Gateway is the gate: it answers for every request whether it passes, and
// forwards those that do.
//
// It reads rules.v1, keeps counters in Redis, and keeps a snapshot of the rules
// on disk. Its promises and knobs are in README.md.
package main

import (
	"context"
	"fmt"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
)

func main() { boot.Main("gateway", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first:
// the gate closes and its last requests end before the counters and the rules
// they need go.
func run(ctx context.Context, p boot.Process) error {
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	p.Log = p.Log.With("gateway_id", cfg.gatewayID)
	broker, err := kafka.New(cfg.kafka(), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	store, err := counters.Open(cfg.counters(), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	book := decide.NewBook()
	rules, err := topics.New(cfg.rules(), broker, broker.Registry(), book, p.Log, p.Metrics, time.Now)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	decisions, err := observe.NewDecisions(decide.NewService(book, store, store.Now, decide.NewID), p.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	requests, err := observe.NewRequests(p.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	api := httpapi.New(httpapi.Config{Tokens: cfg.decisionTokens}, httpapi.Deps{
		Catalogue: func() httpapi.Catalogue { return book.Current() }, Decider: decisions, Log: p.Log,
	})
	gate := proxyapi.Serve(cfg.proxy(), proxyapi.Deps{
		Catalogue: func() proxyapi.Catalogue { return book.Current() }, Decider: decisions,
		Own: api, Meter: meter{requests}, Log: p.Log,
	})

	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, admin.Ready{
			"rules": rules.Ready, "counters": onceReady(store.Ready), "http": accepts(cfg.listen),
			"kafka": remarked("rule changes do not arrive", broker.Ping),
		}),
		boot.Close("redis", store),
		boot.Close("kafka", broker),
		boot.Part{Name: "rules.v1", Run: rules.Run},
		after(rules.Serving(), gate),
	)
}
