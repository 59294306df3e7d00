// Usage-indexer makes every decision of the gateways a document that people can
// search.
//
// It reads usage.v1, writes daily indices in Elasticsearch or OpenSearch, and keeps
// a consumer group's offsets; what cannot be a document goes to a topic of its own.
// Its promises and knobs are in README.md. "usage-indexer replay -days N" has what
// the topic still holds indexed again.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/topics"
)

func main() { boot.Main("usage-indexer", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first: the
// reader gives its partitions back before its client closes.
func run(ctx context.Context, p boot.Process) error {
	if len(p.Args) > 0 && p.Args[0] == "replay" {
		return replay(ctx, p, p.Args[1:], os.Stdout)
	}
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	broker, err := kafka.New(cfg.kafka.Config(p.Service), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	store, err := esindex.New(cfg.store, p.Log, p.Metrics, time.Now)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	indexer, err := topics.New(cfg.indexing(), broker, cfg.aside, int16(cfg.replicas), broker.Registry(), store, p.Log, p.Metrics, time.Now)
	if err != nil {
		return fmt.Errorf("indexer: %w", err)
	}
	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, admin.Ready{"kafka": broker.Ping, "usage.v1": indexer.Ready, "store": store.Ready}),
		boot.Close("kafka", broker),
		boot.Part{Name: "store", Run: store.Maintain},
		boot.Part{Name: "usage.v1", Run: indexer.Run},
	)
}
