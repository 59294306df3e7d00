// Threshold-watcher announces that a quota or a wallet reached a threshold.
//
// It reads usage.v1 in a consumer group, writes quota-events.v1 in transactions, and
// keeps no database: what was announced is read back from quota-events.v1. What is no
// event goes to a topic of its own. Its promises and knobs are in README.md.
package main

import (
	"context"
	"fmt"
	"time"

	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/threshold-watcher/topics"
)

func main() { boot.Main("threshold-watcher", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first: the
// watcher gives its partitions back before its client closes.
func run(ctx context.Context, p boot.Process) error {
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	broker, err := kafka.New(cfg.kafka.Config(p.Service), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	watcher, err := topics.New(cfg.watching(), broker, broker.Registry(), p.Log, p.Metrics, time.Now)
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, admin.Ready{"kafka": broker.Ping, "usage.v1": watcher.Ready}),
		boot.Close("kafka", broker),
		boot.Part{Name: "usage.v1", Run: watcher.Run},
	)
}
