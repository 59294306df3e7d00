package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/metering"
	"penstock.dev/services/internal/kafka"
)

// Group is the consumer group.
const Group = "billing"

// Aside is the topic of records that are set aside.
const Aside = usagev1.Topic + ".dlq." + Group

// rebalance is how long the group waits for a member that is busy with the database.
const rebalance = 30 * time.Second

// A Book counts events once, and takes changes of the catalogue.
type Book interface {
	Catalogue
	Count(ctx context.Context, events []metering.Event, read []metering.Position, now time.Time) (metering.Result, error)
	// CountedTo is when the newest record that was counted came, by partition.
	CountedTo(ctx context.Context) (map[int32]time.Time, error)
}

// A Broker is read and written.
type Broker interface {
	Writer
	Log
	Consume(ctx context.Context, g kafka.Group, h kafka.GroupHandler) error
	Lag(ctx context.Context, group, topic string) (map[int32]int64, error)
}

// A Config says how events are counted.
type Config struct {
	Batch    int           // most events of one transaction
	Replicas int16         // of the topic for what is set aside; 0 leaves it to the brokers
	AtRisk   time.Duration // how long an event may wait before it is told of loudly
}

// A Counter has what happens counted.
type Counter struct {
	cfg     Config
	broker  Broker
	decoder *usagev1.Decoder
	book    Book
	rules   *rules
	aside   *aside
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time
	watch   *watch
}

// New returns a counter.
func New(cfg Config, broker Broker, registry wire.Registry, book Book, log *slog.Logger, registerer prometheus.Registerer, now func() time.Time) (*Counter, error) {
	m, err := newMetrics(registerer)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &Counter{
		cfg: cfg, broker: broker, decoder: usagev1.NewDecoder(wire.NewIDs(registry, usagev1.Subject)), book: book,
		rules: &rules{
			source: broker, decoder: rulesv1.NewDecoder(wire.NewIDs(registry, rulesv1.Subject)), catalogue: book,
			log: log, metrics: m, now: now, caughtUp: make(chan struct{}),
		},
		aside: &aside{topic: Aside, replicas: cfg.Replicas, writer: broker, log: log},
		log:   log, metrics: m, now: now, watch: newWatch(cfg.AtRisk),
	}, nil
}

// Run follows both topics until ctx ends.
func (c *Counter) Run(ctx context.Context) error {
	if err := c.aside.prepare(ctx); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	var ruled error
	wg.Go(func() {
		defer stop()
		ruled = c.rules.run(running)
	})
	wg.Go(func() { c.watchLag(running) })
	var counted error
	select {
	case <-c.rules.caughtUp:
		counted = c.broker.Consume(running, kafka.Group{
			ID: Group, Topics: []string{usagev1.Topic}, MaxRecords: c.cfg.Batch, RebalanceTimeout: rebalance,
		}, c)
	case <-running.Done():
	}
	stop()
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(counted, ruled)
}

// Ready returns why events are not counted, or nil.
func (c *Counter) Ready(context.Context) error {
	select {
	case <-c.rules.caughtUp:
		return c.watch.ready()
	default:
		return errors.New("rules.v1 is not read to its end yet")
	}
}

// Through is an instant before which everything that came into the topic is counted, by
// whichever member; zero while that is not known. Nothing should become final that ended
// after it.
func (c *Counter) Through() time.Time { return c.watch.through() }

// Handle has a batch counted.
func (c *Counter) Handle(ctx context.Context, records []kafka.Record) error {
	began := time.Now()
	events := make([]metering.Event, 0, len(records))
	which := make([]int, 0, len(records)) // of records, for each event
	var refusals []refusal
	for i := range records {
		e, err := c.decode(ctx, &records[i])
		switch {
		case err == nil:
			events, which = append(events, meter(&e, &records[i])), append(which, i)
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			refusals = append(refusals, refusal{&records[i], reasonOf(err), err.Error()})
		}
	}
	if err := c.count(ctx, records, events, which, &refusals); err != nil {
		return err
	}
	if len(refusals) > 0 {
		if err := c.aside.put(ctx, refusals); err != nil {
			return err
		}
	}
	for _, f := range refusals {
		c.metrics.setAside[f.reason].Inc()
	}
	c.watch.counted(records)
	c.metrics.batchSeconds.Observe(time.Since(began).Seconds())
	return nil
}

func reasonOf(err error) reason {
	if errors.Is(err, wire.ErrUnknownID) {
		return unknownSchema
	}
	return undecodable
}

func (c *Counter) decode(ctx context.Context, r *kafka.Record) (e usagev1.Event, err error) {
	err = again(ctx, c.log, "counting waits for the schema registry", func() (err error) {
		e, err = c.decoder.Decode(ctx, r.Key, r.Value)
		return lasting(err)
	})
	return e, err
}

// count has events counted, in one transaction if the books take them: what they refuse
// for good is found by halves and set aside. Events are of the records that which names.
func (c *Counter) count(ctx context.Context, records []kafka.Record, events []metering.Event, which []int, refusals *[]refusal) error {
	var result metering.Result
	err := again(ctx, c.log, "counting waits for the database", func() (err error) {
		result, err = c.book.Count(ctx, events, positions(records), c.now())
		return err
	})
	switch {
	case err == nil:
		c.told(result)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case len(events) == 0:
		return err
	case len(events) == 1:
		*refusals = append(*refusals, refusal{&records[which[0]], refused, err.Error()})
		return c.count(ctx, records, nil, nil, refusals)
	}
	half := len(events) / 2
	cut := which[half] // the first record of the second half
	rest := make([]int, 0, len(which)-half)
	for _, i := range which[half:] {
		rest = append(rest, i-cut)
	}
	if err := c.count(ctx, records[:cut], events[:half], which[:half], refusals); err != nil {
		return err
	}
	return c.count(ctx, records[cut:], events[half:], rest, refusals)
}

func (c *Counter) told(r metering.Result) {
	c.metrics.events.Add(float64(r.Counted))
	c.metrics.repeats.Add(float64(r.Repeats))
	c.metrics.missing.Add(float64(max(0, r.Missing)))
	c.metrics.late.Add(float64(r.Late))
	c.metrics.outOfTime.Add(float64(r.Aside))
	c.metrics.flagged.Add(float64(r.Flagged))
	if r.Skipped > 0 {
		c.metrics.skipped.Add(float64(r.Skipped))
		c.log.Error("records of usage.v1 were deleted before they were counted: their usage is lost to billing", "records", r.Skipped)
	}
	if r.Flagged > 0 {
		c.log.Error("entries of the wallets' ledger were flagged: a person must look at them", "entries", r.Flagged)
	}
}

// positions is how far records were read.
func positions(records []kafka.Record) []metering.Position {
	var out []metering.Position
	for i := range records {
		r := &records[i]
		if n := len(out); n == 0 || out[n-1].Partition != r.Partition {
			out = append(out, metering.Position{Partition: r.Partition, First: r.Offset})
		}
		p := &out[len(out)-1]
		p.Next, p.At = r.Offset+1, r.Timestamp.UTC()
	}
	return out
}

// Assigned is told what is read from now on. The books know where it stands.
func (c *Counter) Assigned(map[string][]int32) {}

// Revoked is told what is read by others from now on.
func (c *Counter) Revoked(partitions map[string][]int32) { c.watch.forget(partitions[usagev1.Topic]) }
