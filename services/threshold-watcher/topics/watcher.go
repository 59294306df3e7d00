package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas"
	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/threshold-watcher/threshold"
)

// Group is the consumer group.
const Group = "threshold-watcher"

// Aside is the topic of records that are set aside, unless it is configured.
const Aside = usagev1.Topic + ".dlq." + Group

// Kept is how long quota-events.v1 keeps announcements: longer than the longest
// period, so that a watcher which starts knows of a year.
const Kept = 400 * 24 * time.Hour

const (
	// fetchWait is how long a broker may hold a fetch that finds nothing.
	fetchWait = time.Second
	// rebalance is how long the group waits for a member that is busy, or reads back
	// what was announced.
	rebalance = 30 * time.Second
	// forgetEvery is how often finished periods are looked for.
	forgetEvery = time.Minute
)

// How long is waited before something is tried again.
const (
	waitMin = 100 * time.Millisecond
	waitMax = 5 * time.Second
)

// A Broker is read in a group, written to in transactions, and read back.
type Broker interface {
	EnsureTopics(ctx context.Context, topics []kafka.Topic) error
	Partitions(ctx context.Context, topic string) (int32, error)
	ReadPartition(ctx context.Context, topic string, partition int32, handle func([]kafka.Record) error) error
	Transact(ctx context.Context, g kafka.Group, t kafka.Transaction, h kafka.TransactHandler) error
}

// A Config says how a Watcher works.
type Config struct {
	Instance string        // unique among running instances: begins the transactional id
	Keep     time.Duration // how long finished periods are remembered; longer than usage.v1 keeps events
	Batch    int           // most events of one transaction
	Session  time.Duration // how long an instance that died keeps its partitions; 0: the group's default
	Timeout  time.Duration // how long a transaction of an instance that died stays open; 0: 10 s
	Aside    string        // topic for what is set aside
	Replicas int16         // of topics that are made; 0 leaves it to the brokers
}

// A Watcher announces thresholds.
type Watcher struct {
	cfg      Config
	broker   Broker
	registry wire.Registry
	usage    *usagev1.Decoder
	events   *quotaeventsv1.Decoder
	log      *slog.Logger
	metrics  *metrics
	now      func() time.Time
	waiting  atomic.Pointer[string] // what is waited for, be it the registry; nil: nothing
	begun    atomic.Pointer[string] // what keeps the watcher from joining the group; nil: nothing
	joined   atomic.Bool
	hand     hand

	ctx     context.Context //nolint:containedctx // of Run: what rebalances start lives as long
	reading sync.WaitGroup
	schema  uint32

	mu    sync.Mutex
	books map[int32]*book

	batch batch // Handle's and Settled's
}

// A batch is what Handle made of the last records, until it is settled.
type batch struct {
	books     []*book
	announced []threshold.Announcement
	asides    []aside
	out       []kafka.Record
}

// New returns a watcher.
func New(cfg Config, broker Broker, registry wire.Registry, log *slog.Logger, registerer prometheus.Registerer, now func() time.Time) (*Watcher, error) {
	w := &Watcher{
		cfg: cfg, broker: broker, registry: registry, log: log, now: now, books: map[int32]*book{}, hand: hand{now: now},
		usage:  usagev1.NewDecoder(wire.NewIDs(registry, usagev1.Subject)),
		events: quotaeventsv1.NewDecoder(wire.NewIDs(registry, quotaeventsv1.Subject)),
	}
	starting := "starting"
	w.begun.Store(&starting)
	var err error
	if w.metrics, err = newMetrics(registerer, w); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return w, nil
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if err := w.prepare(ctx); err != nil {
		return err
	}
	rctx, stop := context.WithCancel(ctx)
	w.ctx = rctx
	defer w.reading.Wait()
	defer stop()
	w.reading.Go(func() { w.forget(rctx) })
	return w.broker.Transact(ctx, kafka.Group{
		ID: Group, Topics: []string{usagev1.Topic}, MaxRecords: w.cfg.Batch, MaxWait: fetchWait,
		SessionTimeout: w.cfg.Session, RebalanceTimeout: rebalance,
	}, kafka.Transaction{ID: Group + "-" + w.cfg.Instance, Timeout: w.cfg.Timeout}, w)
}

// prepare waits until both topics are there with as many partitions each, and the
// schema of what is written is registered.
func (w *Watcher) prepare(ctx context.Context) error {
	wait := waitMin
	for {
		err := w.try(ctx)
		if err == nil {
			w.begun.Store(nil)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if why := err.Error(); *w.begun.Swap(&why) != why {
			w.log.Warn("cannot start yet; trying again", "error", why)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, waitMax)
	}
}

func (w *Watcher) try(ctx context.Context) error {
	read, err := w.broker.Partitions(ctx, usagev1.Topic)
	if err != nil {
		return err
	}
	err = w.broker.EnsureTopics(ctx, []kafka.Topic{{
		Name: quotaeventsv1.Topic, Partitions: read, Replication: w.cfg.Replicas,
		Config: map[string]string{"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(Kept.Milliseconds(), 10)},
	}})
	if err != nil {
		return err
	}
	written, err := w.broker.Partitions(ctx, quotaeventsv1.Topic)
	switch {
	case err != nil:
		return err
	case written != read:
		return fmt.Errorf("%s has %d partitions and %s has %d: they must have as many", usagev1.Topic, read, quotaeventsv1.Topic, written)
	}
	if w.schema, err = w.registry.Register(ctx, quotaeventsv1.Subject, schemas.QuotaEventsV1); err != nil {
		return fmt.Errorf("schema registry: %w", err)
	}
	if err := w.broker.EnsureTopics(ctx, []kafka.Topic{asideTopic(w.cfg.Aside, w.cfg.Replicas)}); err != nil && ctx.Err() == nil {
		w.log.Error("the topic for records that are set aside cannot be made; the first of them will wait for it",
			"topic", w.cfg.Aside, "error", err.Error())
	}
	return ctx.Err()
}

// Ready returns why nothing can be announced, or nil: this instance is a member of
// the group, and what was announced in its partitions has been read back.
func (w *Watcher) Ready(context.Context) error {
	if why := w.begun.Load(); why != nil {
		return errors.New(*why)
	}
	if !w.joined.Load() {
		return fmt.Errorf("has not joined the group %s yet", Group)
	}
	for _, b := range w.all() {
		select {
		case <-b.ready:
		default:
			return fmt.Errorf("reading back what was announced in partition %d of %s", b.partition, quotaeventsv1.Topic)
		}
	}
	if why := w.waiting.Load(); why != nil {
		return fmt.Errorf("waiting for the schema registry: %s", *why)
	}
	return nil
}

// Handle returns what is announced because of a batch, and what is set aside of it.
func (w *Watcher) Handle(ctx context.Context, records []kafka.Record) ([]kafka.Record, error) {
	w.hand.take(records)
	defer w.hand.let()
	w.batch = batch{announced: w.batch.announced[:0]}
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].Partition == records[0].Partition {
			n++
		}
		if err := w.observe(ctx, records[:n]); err != nil {
			w.settle(false)
			return nil, err
		}
		records = records[n:]
	}
	if len(w.batch.out) == 0 {
		w.settle(true)
	}
	return w.batch.out, nil
}

// observe is Handle of the records of one partition.
func (w *Watcher) observe(ctx context.Context, records []kafka.Record) error {
	b, err := w.wait(ctx, records[0].Partition)
	if err != nil {
		return err
	}
	w.batch.books = append(w.batch.books, b)
	for i := range records {
		r := &records[i]
		var e usagev1.Event
		err := w.patiently(ctx, func() (err error) {
			e, err = w.usage.Decode(ctx, r.Key, r.Value)
			return err
		})
		switch {
		case err == nil:
			u := usageOf(&e)
			w.announce(b, &u)
		case errors.Is(err, wire.ErrUnknownID):
			w.setAside(r, UnknownSchema, err)
		case errors.Is(err, wire.ErrPoison):
			w.setAside(r, Undecodable, err)
		default:
			return err
		}
	}
	return nil
}

// announce adds to the batch what is announced because of u.
func (w *Watcher) announce(b *book, u *threshold.Usage) {
	if len(u.Counters) == 0 {
		return
	}
	first := len(w.batch.announced)
	b.mu.Lock()
	announced, late := b.Observe(w.batch.announced, u, w.now())
	b.mu.Unlock()
	w.batch.announced = announced[:first]
	w.metrics.late.Add(float64(late))
	for i := first; i < len(announced); i++ {
		a := &announced[i]
		e := eventOf(a)
		body, err := quotaeventsv1.AppendEvent(nil, &e)
		if err != nil { // bounds that usage.v1 does not have: nobody waits for that
			w.metrics.refused.Inc()
			w.log.Error("announcement cannot be written", "event_id", e.EventID, "tenant", e.TenantID, "error", err.Error())
			continue
		}
		w.batch.announced = append(w.batch.announced, *a)
		w.batch.out = append(w.batch.out, kafka.Record{
			Topic: quotaeventsv1.Topic, Key: []byte(quotaeventsv1.Key(e.TenantID)), Value: wire.Frame(nil, w.schema, body),
			Headers: headersOf(a), Partition: b.partition,
		})
	}
}

func (w *Watcher) setAside(r *kafka.Record, reason Reason, err error) {
	a := aside{record: r, reason: reason, detail: err.Error()}
	w.batch.asides = append(w.batch.asides, a)
	w.batch.out = append(w.batch.out, a.written(w.cfg.Aside))
}

// Settled is told whether the last batch is stored.
func (w *Watcher) Settled(committed bool) { w.settle(committed) }

// settle makes what a batch did to the books stay, or takes it back.
func (w *Watcher) settle(committed bool) {
	for _, b := range w.batch.books {
		b.mu.Lock()
		if committed {
			b.Commit()
		} else {
			b.Rollback()
		}
		b.mu.Unlock()
	}
	w.batch.books = nil
	if !committed {
		return
	}
	now := w.now()
	for i := range w.batch.announced {
		a := &w.batch.announced[i]
		w.metrics.announced[a.Type].Inc()
		w.metrics.delay.Observe(max(0, now.Sub(time.UnixMilli(a.At)).Seconds()))
	}
	for i := range w.batch.asides {
		w.metrics.setAside[w.batch.asides[i].reason].Inc()
	}
	tell(w.log, w.batch.asides, w.cfg.Aside)
}

// Assigned begins to read back what was announced in the partitions.
func (w *Watcher) Assigned(partitions map[string][]int32) {
	for _, p := range partitions[usagev1.Topic] {
		w.open(p)
	}
	w.joined.Store(true)
}

// Revoked forgets the partitions.
func (w *Watcher) Revoked(partitions map[string][]int32) {
	for _, p := range partitions[usagev1.Topic] {
		w.close(p)
	}
}

// A hand holds the batch that is being handled.
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
