package topics

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
)

// Group is the consumer group.
const Group = "usage-indexer"

// Aside is the topic of records that are set aside, unless it is configured.
const Aside = usagev1.Topic + ".dlq." + Group

const (
	// settleEvery is how often holes are looked at.
	settleEvery = 10 * time.Second
	// rebalance is how long the group waits for a member that is busy with the
	// store, or died while it joined: then its batch is handled again.
	rebalance = 30 * time.Second
)

// A Broker is read in a group and written to.
type Broker interface {
	Writer
	Consume(ctx context.Context, g kafka.Group, h kafka.GroupHandler) error
}

// An Indexer has the events of usage.v1 indexed.
type Indexer struct {
	pipeline *pipeline
	aside    *aside
	broker   Broker
	replicas int16
	log      *slog.Logger
	metrics  *metrics
	streams  *streams
	hand     hand
}

// New returns an indexer. The topic for what it sets aside is made with the given
// replicas (0 leaves it to the brokers).
func New(cfg Config, broker Broker, aside string, replicas int16, registry wire.Registry, store Store, log *slog.Logger, registerer prometheus.Registerer, now func() time.Time) (*Indexer, error) {
	x := &Indexer{
		pipeline: newPipeline(cfg, registry, store, log, now), aside: newAside(aside, broker, log),
		broker: broker, replicas: replicas, log: log, streams: newStreams(), hand: hand{now: now},
	}
	var err error
	if x.metrics, err = newMetrics(registerer, x); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return x, nil
}

func newAside(topic string, w Writer, log *slog.Logger) *aside {
	return &aside{topic: topic, writer: w, log: log}
}

// Run reads until ctx ends. A batch that is not done then is left uncommitted:
// whoever reads it next finds its documents there.
func (x *Indexer) Run(ctx context.Context) error {
	if err := x.aside.prepare(ctx, x.replicas); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { x.watch(watching) })
	defer wg.Wait()
	defer stop()
	return x.broker.Consume(ctx, kafka.Group{
		ID: Group, Topics: []string{usagev1.Topic}, MaxRecords: x.pipeline.cfg.Batch * x.pipeline.cfg.Writers,
		RebalanceTimeout: rebalance,
	}, x)
}

// Ready returns why nothing can be read, or nil.
func (x *Indexer) Ready(ctx context.Context) error { return x.pipeline.ready(ctx) }

// watch gives up holes also while nothing comes.
func (x *Indexer) watch(ctx context.Context) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			x.lost(x.streams.settle(x.pipeline.now()), "they did not come")
		case <-ctx.Done():
			return
		}
	}
}

// lost counts events that were numbered and are not in the topic.
func (x *Indexer) lost(n int64, why string) {
	if n > 0 {
		x.metrics.gaps.Add(float64(n))
		x.log.Error("events are missing from the topic, by their numbers", "events", n, "known_by", why)
	}
}

// Handle has a batch indexed.
func (x *Indexer) Handle(ctx context.Context, records []kafka.Record) error {
	began := time.Now()
	x.hand.take(records)
	defer x.hand.let()
	fates, err := x.pipeline.run(ctx, records)
	if err != nil {
		return err
	}
	var put []kafka.Record
	for i := range fates {
		if fates[i].reason != "" {
			put = append(put, x.aside.recordOf(&records[i], &fates[i]))
		}
	}
	if err := x.aside.put(ctx, put); err != nil {
		return err
	}
	x.aside.tell(records, fates)
	x.count(records, fates)
	x.metrics.batchSeconds.Observe(time.Since(began).Seconds())
	return nil
}

// count counts a batch that is done.
func (x *Indexer) count(records []kafka.Record, fates []fate) {
	now := x.pipeline.now()
	var lost, repeats int64
	for i := range fates {
		f := &fates[i]
		if f.reason != "" {
			x.metrics.setAside[f.reason].Inc()
		} else {
			x.metrics.delay.Observe(now.Sub(time.UnixMicro(f.ts)).Seconds())
		}
		if f.known {
			again, given := x.streams.see(records[i].Partition, f.stream, f.sequence, now)
			lost += given
			if again {
				repeats++
			}
		}
	}
	x.metrics.repeats.Add(float64(repeats))
	x.lost(lost, "there are too many gaps to wait for all")
}

// Assigned is told what is read from now on, and forgets what was known of it: it
// may have been read by others meanwhile.
func (x *Indexer) Assigned(partitions map[string][]int32) {
	for _, p := range partitions[usagev1.Topic] {
		x.lost(x.streams.revoke(p), "the partition was read by others")
	}
}

// Revoked is told what is read by others from now on.
func (x *Indexer) Revoked(partitions map[string][]int32) {
	for _, p := range partitions[usagev1.Topic] {
		x.lost(x.streams.revoke(p), "the partition is read by others now")
	}
}

// A hand holds the batch that is being indexed.
type hand struct {
	now    func() time.Time
	mu     sync.Mutex
	oldest time.Time // when the oldest record in hand was written; zero: none is
}

func (h *hand) take(records []kafka.Record) {
	oldest := h.now()
	for i := range records {
		if t := records[i].Timestamp; t.Before(oldest) && t.UnixMilli() > 0 {
			oldest = t
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.oldest = oldest
}

func (h *hand) let() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.oldest = time.Time{}
}

// age is how long ago the oldest record in hand was written, 0 when none is.
func (h *hand) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.oldest.IsZero() {
		return 0
	}
	return max(0, h.now().Sub(h.oldest))
}
