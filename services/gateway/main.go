// Gateway is the gate: it answers for every request whether it passes, and
// forwards those that do.
//
// It reads rules.v1, keeps counters in Redis, tells every decision to usage.v1,
// and keeps on disk a snapshot of the rules and what Kafka does not take. Its
// promises and knobs are in README.md.
package main

import (
	"context"
	"fmt"
	"time"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/httpapi"
	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
)

func main() { boot.Main("gateway", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first:
// the gate closes and its last requests end before the counters and the rules
// they need go, and what they did is told before Kafka is left.
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
	store, leases, err := openStore(cfg, p)
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	book := decide.NewBook()
	rules, err := topics.New(cfg.rules(), broker, broker.Registry(), book, p.Log, p.Metrics, time.Now)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	told, err := usage.New(cfg.usage(p.Stopping), broker, broker.Registry(), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	gateways := &presence{}
	service := decide.NewService(book, leases, store.Now, decide.NewID, decide.Options{Gateways: gateways.count})
	decisions, err := observe.NewDecisions(service, p.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	requests, err := observe.NewRequests(p.Metrics, gateways.count)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	desk := ask.New(ask.Config{Tokens: cfg.decisionTokens, Receipts: cfg.receipts}, ask.Deps{
		Catalogue: func() ask.Catalogue { return book.Current() }, Decider: decisions, Recorder: told, Now: store.Now,
	})
	gate := proxyapi.Serve(cfg.proxy(), proxyapi.Deps{
		Catalogue: func() proxyapi.Catalogue { return book.Current() }, Decider: decisions,
		Own: httpapi.New(desk, p.Log), Meter: meter{requests}, Recorder: told, Log: p.Log,
	})

	safety := newSafety(store, func() bool { return book.Current().Count(decide.WalletKind) > 0 }, cfg.unsafe == refuseUnsafe, p.Log)
	ready := admin.Ready{
		"rules": rules.Ready, "counters": vouched(onceReady(store.Ready), store.Vouched, safety.unsafe), "http": accepts(cfg.listen),
		"kafka": remarked("rule changes do not arrive", broker.Ping), "usage": told.Ready,
	}
	doors := faces(cfg, gate, desk, ready, p.Log)

	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, ready),
		boot.Close("redis", store),
		boot.Close("kafka", broker),
		after(rules.Serving(), boot.Part{Name: "safety", Run: safety.run}),
		boot.Part{Name: "usage.v1", Run: told.Run},
		boot.Part{Name: "rules.v1", Run: rules.Run},
		after(rules.Serving(), gateways.part(store, cfg.gatewayID, p.Log)),
		boot.Close("leases", leases),
		after(rules.Serving(), after(safety.serving, doors)),
	)
}
