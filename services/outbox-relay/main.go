// Outbox-relay carries committed outbox rows to Kafka, in commit order, within
// milliseconds.
//
// It reads rule-admin's write-ahead log by logical replication, writes
// rules.v1, and keeps a replication slot. Its promises and knobs are in
// README.md.
package main

import (
	"context"
	"fmt"
	"time"

	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/outbox-relay/postgres"
	"penstock.dev/services/outbox-relay/topics"
)

// deliverWithin bounds how long after reading it an event may reach a broker.
// PostgreSQL gives the slot to another relay once this one has been silent for
// wal_sender_timeout (60 s by default): an event older than that would follow
// newer versions. What is given up is read again.
const deliverWithin = 15 * time.Second

func main() { boot.Main("outbox-relay", run) }

// run wires the service and blocks until ctx ends. Parts stop last to first:
// the source stops reading and settles what is in flight before the producer
// closes.
func run(ctx context.Context, p boot.Process) error {
	cfg, err := parseConfig(p.Args, p.Getenv)
	if err != nil || cfg.check {
		return err
	}
	broker, err := kafka.New(cfg.producer(p.Service), p.Log, p.Metrics)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	publisher := topics.New(broker)
	source := postgres.New(postgres.Config{
		URL: cfg.databaseURL.Reveal(), Slot: cfg.slot, Publication: cfg.publication, MaxInFlight: cfg.maxInFlight,
	}, publisher.Publish, p.Log, p.Metrics)

	return p.Run(ctx,
		admin.Part(cfg.adminListen, p, admin.Ready{"kafka": broker.Ping, "outbox": source.Ready}),
		boot.Close("kafka", broker),
		boot.Part{Name: "slot", Run: source.Watch},
		boot.Part{Name: "outbox", Run: func(ctx context.Context) error {
			if err := publisher.Prepare(ctx, int16(cfg.replicas)); err != nil {
				return err
			}
			return source.Run(ctx)
		}},
	)
}
