package topics

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/threshold-watcher/threshold"
)

// A book is what was announced in one partition.
type book struct {
	partition int32
	ready     chan struct{}      // closed when it has been read back
	stop      context.CancelFunc // ends the reading

	mu sync.Mutex // of what follows; Handle and the janitor share it
	*threshold.Book
}

// open begins to read back what was announced in a partition.
func (w *Watcher) open(partition int32) {
	ctx, stop := context.WithCancel(w.ctx)
	b := &book{partition: partition, ready: make(chan struct{}), stop: stop, Book: threshold.NewBook(w.cfg.Keep)}
	w.mu.Lock()
	if old := w.books[partition]; old != nil {
		old.stop()
	}
	w.books[partition] = b
	w.mu.Unlock()
	w.reading.Go(func() { w.rebuild(ctx, b) })
}

// close forgets a partition, which somebody else reads now.
func (w *Watcher) close(partition int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.books[partition]; b != nil {
		b.stop()
		delete(w.books, partition)
	}
}

// rebuild reads a book until it is done or ctx ends.
func (w *Watcher) rebuild(ctx context.Context, b *book) {
	wait := waitMin
	for {
		began := time.Now()
		fresh := threshold.NewBook(w.cfg.Keep)
		n := 0
		err := w.broker.ReadPartition(ctx, quotaeventsv1.Topic, b.partition, func(records []kafka.Record) error {
			n += len(records)
			return w.restore(ctx, fresh, records)
		})
		if err == nil {
			fresh.Forget(w.now())
			fresh.Commit()
			b.mu.Lock()
			b.Book = fresh
			b.mu.Unlock()
			w.metrics.rebuild.Observe(time.Since(began).Seconds())
			w.log.Info("partition ready", "partition", b.partition, "events", n, "counters", fresh.Len(), "seconds", time.Since(began).Seconds())
			close(b.ready)
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.log.Warn("what was announced cannot be read back; trying again", "partition", b.partition, "error", err.Error())
		if pause(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, waitMax)
	}
}

// restore puts records of quota-events.v1 into a book.
func (w *Watcher) restore(ctx context.Context, b *threshold.Book, records []kafka.Record) error {
	for i := range records {
		r := &records[i]
		if r.Value == nil {
			continue
		}
		e, err := w.eventOf(ctx, r)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, wire.ErrSkip):
			continue
		case err == nil:
			var a threshold.Announcement
			if a, err = announcementOf(&e, r.Headers); err == nil {
				b.Restore(&a)
				continue
			}
		}
		w.metrics.unread.Inc()
		w.log.Error("what was announced cannot be understood; it may be announced again", "topic", r.Topic,
			"partition", r.Partition, "offset", r.Offset, "key", string(r.Key), "error", err.Error())
	}
	b.Forget(w.now())
	b.Commit()
	return nil
}

// eventOf decodes a record of quota-events.v1, waiting for the registry.
func (w *Watcher) eventOf(ctx context.Context, r *kafka.Record) (e quotaeventsv1.Event, err error) {
	err = w.patiently(ctx, func() error {
		e, err = w.events.Decode(ctx, r.Key, r.Value)
		return err
	})
	return e, err
}

// patiently calls decode until its answer is about the record and not about the
// registry, or ctx ends.
func (w *Watcher) patiently(ctx context.Context, decode func() error) error {
	wait := waitMin
	for {
		err := decode()
		final := err == nil || errors.Is(err, wire.ErrPoison) || errors.Is(err, wire.ErrSkip) || errors.Is(err, wire.ErrSetAside)
		if final || ctx.Err() != nil {
			if final && wait > waitMin {
				w.waiting.Store(nil)
				w.log.Info("schema found")
			}
			return err
		}
		if why := err.Error(); w.waiting.Swap(&why) == nil {
			w.log.Warn("schema registry does not answer; reading waits for it", "error", why)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, waitMax)
	}
}

// wait returns once the book of a partition has been read back.
func (w *Watcher) wait(ctx context.Context, partition int32) (*book, error) {
	w.mu.Lock()
	b := w.books[partition]
	w.mu.Unlock()
	if b == nil {
		return nil, fmt.Errorf("partition %d is not this instance's", partition)
	}
	select {
	case <-b.ready:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// all are the books of the partitions that are this instance's.
func (w *Watcher) all() []*book {
	w.mu.Lock()
	defer w.mu.Unlock()
	books := make([]*book, 0, len(w.books))
	for _, b := range w.books {
		books = append(books, b)
	}
	return books
}

// held is the number of counters that are remembered.
func (w *Watcher) held() int {
	n := 0
	for _, b := range w.all() {
		b.mu.Lock()
		n += b.Len()
		b.mu.Unlock()
	}
	return n
}

func (w *Watcher) assigned() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.books)
}

// forget drops finished periods now and then until ctx ends.
func (w *Watcher) forget(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, b := range w.all() {
				b.mu.Lock()
				b.Forget(w.now())
				b.mu.Unlock()
			}
		case <-ctx.Done():
			return
		}
	}
}

// pause waits for d or the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
