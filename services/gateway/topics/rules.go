package topics

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/decide/trie"
	"penstock.dev/services/internal/kafka"
)

// How long a record waits before its schema is asked for again.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// A Log is read from its start, for ever.
type Log interface {
	ReadLog(ctx context.Context, topic string, h kafka.LogHandler) error
}

// A Config is how a Rules deals with the disk.
type Config struct {
	Dir   string        // of the snapshot; empty: none is kept
	Wait  time.Duration // for the log, before the snapshot decides; 0: it does at once
	Every time.Duration // least time between two snapshots
}

// Rules follows rules.v1 into a book. It is safe for concurrent use.
type Rules struct {
	cfg     Config
	source  Log
	schemas *schemas
	decoder *rulesv1.Decoder
	book    *decide.Book
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics

	serving chan struct{} // closed once rules are in force
	changed chan struct{} // holds one when there is something to save

	mu       sync.Mutex
	stage    *stage
	before   *snapshot // what was in force before this replay; nil once caught up, or when there was nothing
	caughtUp bool      // the replay reached the end that the log had when it began
	served   bool      // serving is closed
	cold     bool      // the book holds what was before and not the log
	coldErr  error     // why it does not though it should
	orphaned bool      // the log was empty and what was before stayed
	stalled  error     // why the next record has to wait; nil: it has not
	saved    time.Time // when the snapshot on disk was taken
}

// A stage is one replay: everything the log said since its start.
type stage struct {
	book    *decide.Book
	read    int // records, of any sort
	records records
	aside   map[string]*aside
}

// An aside is a record that was set aside and is the newest of its key.
type aside struct {
	mark
	reason reason
	cause  string
	kind   decide.Kind
	id     string
	blind  bool // nothing good is known of the key,
	void   bool // and it is known that there was nothing
}

func newStage() *stage {
	return &stage{book: decide.NewBook(), records: newRecords(), aside: map[string]*aside{}}
}

// New returns a Rules that follows source into book, which nobody else may
// write. It finds schemas in registry, or while that is away in the snapshot.
func New(cfg Config, source Log, registry wire.Registry, book *decide.Book, log *slog.Logger, registerer prometheus.Registerer, now func() time.Time) (*Rules, error) {
	r := &Rules{
		cfg: cfg, source: source, schemas: newSchemas(registry), book: book, log: log, now: now,
		serving: make(chan struct{}), changed: make(chan struct{}, 1), stage: newStage(),
	}
	r.decoder = rulesv1.NewDecoder(r.schemas.ids)
	var err error
	if r.metrics, err = newMetrics(registerer, r); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return r, nil
}

// Serving is closed once the book holds rules to decide by: what the log says,
// or the snapshot. Until then nothing may pass.
func (r *Rules) Serving() <-chan struct{} { return r.serving }

// Run follows the log until ctx ends. When it returns, what is in force is on
// disk.
func (r *Rules) Run(ctx context.Context) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	r.load()
	fallBack := time.AfterFunc(r.cfg.Wait, func() { r.fallBack(running) })
	defer fallBack.Stop()
	var saver sync.WaitGroup
	saver.Go(func() { r.keepSaved(running) })
	err := r.source.ReadLog(ctx, rulesv1.Topic, kafka.LogHandler{
		Records:   func(batch []kafka.Record) error { return r.take(ctx, batch) },
		CaughtUp:  func() { r.catchUp(ctx) },
		Recreated: r.beginAgain,
	})
	cancel()
	saver.Wait()
	r.save()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("follow %s: %w", rulesv1.Topic, err)
	}
	return err
}

// take brings a batch into force. Its error is ctx's.
func (r *Rules) take(ctx context.Context, batch []kafka.Record) error {
	items := make([]item, 0, len(batch))
	wait := retryMin
	for i := 0; i < len(batch); {
		it, err := r.read(ctx, &batch[i])
		if err == nil {
			items = append(items, it)
			wait = retryMin
			i++
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.apply(items) // what came before does not wait
		items = items[:0]
		r.stall(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, retryMax)
		}
	}
	r.apply(items)
	r.stall(nil)
	return nil
}

// stall notes why the log is not being followed, nil when it is.
func (r *Rules) stall(cause error) {
	r.mu.Lock()
	news := (r.stalled == nil) != (cause == nil)
	r.stalled = cause
	r.mu.Unlock()
	switch {
	case news && cause != nil:
		r.log.Warn("a rule change waits for the schema registry", "error", cause.Error())
	case news:
		r.log.Info("rule changes are read again")
	}
}

// apply brings what was read into force.
func (r *Rules) apply(items []item) {
	if len(items) == 0 {
		return
	}
	changes := make([]decide.Change, len(items))
	for i := range items {
		changes[i] = items[i].change
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.stage.book.Apply(changes)
	now := r.now()
	edit := r.stage.records.Edit()
	for i := range items {
		r.stage.read++
		if !news[i] {
			continue
		}
		r.stage.note(&items[i], edit, r.caughtUp)
		if r.caughtUp && items[i].aside == nil {
			r.metrics.propagation.Observe(max(0, now.Sub(items[i].changedAt).Seconds()))
		}
	}
	r.stage.records = edit.Map()
	r.metrics.lastRecord.Set(seconds(now))
	r.serve()
	r.touch()
}

// note keeps what a snapshot will need of an item.
func (s *stage) note(it *item, edit *trie.Editor[string, kept], caughtUp bool) {
	switch {
	case !it.change.Kind.Decides():
	case it.aside != nil:
		it.aside.blind = s.book.Blind(it.change.Kind, it.change.ID)
		it.aside.void = it.aside.blind && caughtUp // everything there was had been read
		if old := s.aside[it.key]; old != nil && old.blind {
			it.aside.blind, it.aside.void = true, old.void
		}
		s.aside[it.key] = it.aside
	case it.change.Object == nil:
		delete(s.aside, it.key)
		edit.Delete(it.key)
	default:
		delete(s.aside, it.key)
		edit.Set(it.key, kept{it.change.Version, bytes.Clone(it.value)}) // without the batch around it
	}
}
