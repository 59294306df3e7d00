// Webhooks is an example: it reads quota-events.v1 and sends each event to the
// endpoints of a list as a signed webhook, by Standard Webhooks
// (standardwebhooks.com). Take it as it is or as a start: it needs a Kafka, a schema
// registry and a directory that stays, and nothing else of Penstock is running in it.
//
// Three files: this one reads the topic, queue.go keeps what is to be sent, sender.go
// signs and sends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/wire"
)

type config struct {
	brokers, registry, group, endpoints, dir string
}

func main() {
	var c config
	flag.StringVar(&c.brokers, "brokers", "127.0.0.1:9092", "Kafka, host:port list")
	flag.StringVar(&c.registry, "registry", "http://127.0.0.1:8081", "schema registry, URL list")
	flag.StringVar(&c.group, "group", "webhooks", "consumer group: one per set of endpoints")
	flag.StringVar(&c.endpoints, "endpoints", "endpoints.json", "file with the endpoints, as in README.md")
	flag.StringVar(&c.dir, "dir", "webhooks", "directory for what is to be sent; back it up like a database")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil && !errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// run reads and sends until ctx ends.
func run(ctx context.Context, c config, log *slog.Logger) error {
	endpoints, err := readEndpoints(c.endpoints)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	var queues []*queue
	for _, e := range endpoints {
		q, err := openQueue(c.dir, e.ID)
		if err != nil {
			return err
		}
		queues = append(queues, q)
		// A goroutine each: an endpoint that is slow or down holds up no other.
		sending.Go(func() { newSender(e, q, log).run(ctx) })
	}
	log.Info("reading quota-events.v1; nothing listens here, endpoints are called", "brokers", c.brokers, "registry", c.registry, "group", c.group,
		"endpoints", len(endpoints), "dir", c.dir)
	return subscribe(ctx, c, log, func(e *quotaeventsv1.Event) error {
		body, err := payload(e)
		if err != nil {
			return err
		}
		for i, q := range queues {
			if endpoints[i].wants(e.TenantID) {
				if err := q.add(e.EventID, body, time.Now()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// subscribe calls keep with every event and commits what it has kept.
func subscribe(ctx context.Context, c config, log *slog.Logger, keep func(*quotaeventsv1.Event) error) error {
	reg, err := sr.NewClient(sr.URLs(strings.Split(c.registry, ",")...))
	if err != nil {
		return err
	}
	decoder := quotaeventsv1.NewDecoder(wire.NewIDs(registry{reg}, quotaeventsv1.Subject))
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(c.brokers, ",")...),
		kgo.ConsumerGroup(c.group), kgo.ConsumeTopics(quotaeventsv1.Topic),
		// Without this, events of transactions that were rolled back are seen, too.
		// They come again under the same event id, which the queue drops.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Commit after an event is on disk, and before a partition moves elsewhere.
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Warn("cannot read; trying again", "topic", topic, "partition", partition, "error", err)
		})
		for _, r := range fetches.Records() {
			if err := keepRecord(ctx, decoder, r, log, keep); err != nil {
				return err
			}
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			log.Warn("cannot commit; what was read may be read again, and is dropped then", "error", err)
		}
		client.AllowRebalance()
	}
}

// keepRecord decodes a record and keeps it. A record that can never be read is
// passed over; a registry that is away is waited for.
func keepRecord(ctx context.Context, decoder *quotaeventsv1.Decoder, r *kgo.Record, log *slog.Logger, keep func(*quotaeventsv1.Event) error) error {
	for {
		e, err := decoder.Decode(ctx, r.Key, r.Value)
		switch {
		case err == nil:
			return keep(&e)
		case errors.Is(err, wire.ErrSkip): // a type of event that is newer than this program
			return nil
		case errors.Is(err, wire.ErrPoison):
			log.Error("record is no event", "partition", r.Partition, "offset", r.Offset, "error", err)
			return nil
		}
		log.Warn("schema registry does not answer; waiting", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// registry is what the decoder asks for schemas.
type registry struct{ client *sr.Client }

// Register is not needed for reading.
func (registry) Register(context.Context, string, string) (uint32, error) {
	return 0, errors.New("this registry is read only")
}

// Schema looks a schema up.
func (r registry) Schema(ctx context.Context, id uint32) (string, []string, error) {
	schema, err := r.client.SchemaByID(ctx, int(id))
	if err != nil {
		return "", nil, err
	}
	return schema.Schema, []string{quotaeventsv1.Subject}, nil
}

// types are what subscribers call the events.
var types = map[quotaeventsv1.EventType]string{
	quotaeventsv1.EventTypeThresholdReached: "quota.threshold_reached",
	quotaeventsv1.EventTypeExhausted:        "quota.exhausted",
	quotaeventsv1.EventTypeOverdrawn:        "wallet.overdrawn",
	quotaeventsv1.EventTypeReplenished:      "quota.replenished",
}

// payload is the body of an event's webhook: type, timestamp and data, as Standard
// Webhooks advises. It is made once, for what is signed must not change.
func payload(e *quotaeventsv1.Event) ([]byte, error) {
	day := func(ms *int64) *time.Time {
		if ms == nil {
			return nil
		}
		t := time.UnixMilli(*ms).UTC()
		return &t
	}
	return json.Marshal(map[string]any{
		"type": types[e.Type], "timestamp": time.UnixMilli(e.TS).UTC(),
		"data": map[string]any{
			"event_id": e.EventID, "tenant_id": e.TenantID, "rule_id": e.RuleID, "meter": e.Meter, "period_start": day(e.PeriodStart), "period_end": day(e.PeriodEnd),
			"threshold_percent": e.ThresholdPercent, "threshold_left": e.ThresholdLeft, "limit": e.Limit, "consumed": e.Consumed, "arm": e.Arm,
			"cause_decision_id": e.CauseDecisionID,
		},
	})
}
