package esindex

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// Waits between two tries of the same documents, before jitter.
const (
	againMin  = 100 * time.Millisecond
	againMax  = 15 * time.Second
	pausedMin = time.Second
	pausedMax = 30 * time.Second
)

// minCeiling is the least that a request is cut down to when the store finds
// requests too large, in bytes; single documents may be larger.
const minCeiling = 64 << 10

// Write returns once every entry is in the index or will never be, however long
// that takes: the outcomes are those of entries, in order. Its error is that of
// ctx, and then some of the entries may be in the index and some not.
func (s *Store) Write(ctx context.Context, entries []usagedoc.Entry) ([]usagedoc.Outcome, error) {
	w := writing{store: s, entries: entries, outcomes: make([]usagedoc.Outcome, len(entries)), most: s.cfg.BatchDocs}
	w.pending = make([]int, len(entries))
	for i := range w.pending {
		w.pending[i] = i
	}
	defer s.health.well(&w)
	for len(w.pending) > 0 {
		if err := w.step(ctx); err != nil {
			return w.outcomes, err
		}
	}
	return w.outcomes, nil
}

// A writing is one call of Write.
type writing struct {
	store    *Store
	entries  []usagedoc.Entry
	outcomes []usagedoc.Outcome
	pending  []int // entries without an outcome
	most     int   // documents of the next request: fewer while a large one is refused
	tries    int   // in a row that changed nothing
}

// step sends one request and settles what it can. Its error is ctx's.
func (w *writing) step(ctx context.Context) error {
	part := w.fitting()
	if err := w.store.prepare(ctx, w.entries, part); err != nil {
		return w.troubled(ctx, err)
	}
	items, err := w.store.bulk(ctx, w.entries, part)
	if err != nil {
		return w.refused(ctx, part, err)
	}
	worst := w.settle(part, items)
	w.store.widen()
	w.most = min(2*w.most, w.store.cfg.BatchDocs)
	if worst == nil {
		w.well()
		return nil
	}
	return w.wait(ctx, worst)
}

// fitting is the first part of what is pending that one request may hold, at least
// one.
func (w *writing) fitting() []int {
	size, ceiling := 0, int(w.store.ceiling.Load())
	for n, i := range w.pending {
		size += len(w.entries[i].Doc) + w.store.overhead()
		if n > 0 && (n >= w.most || size > ceiling) {
			return w.pending[:n]
		}
	}
	return w.pending
}

// settle gives an outcome to each entry of part that has ended, keeps the others
// pending, and returns the worst trouble among them, or nil.
func (w *writing) settle(part []int, items []item) *trouble {
	taken := false
	classes := make([]class, len(items))
	for n, it := range items {
		classes[n] = classifyItem(it.Status, it.Error)
		taken = taken || classes[n] == created || classes[n] == duplicate
	}
	var worst *trouble
	left := w.pending[:0:len(part)] // behind what is read
	rest := w.pending[len(part):]
	for n, i := range part {
		it, c := &items[n], classes[n]
		if c == doubtful {
			c = paused
			if taken {
				c = poison
			}
		}
		switch c {
		case created:
			w.done(i, usagedoc.Outcome{Verdict: usagedoc.Created})
		case duplicate:
			w.done(i, usagedoc.Outcome{Verdict: usagedoc.Duplicate})
		case poison:
			w.done(i, usagedoc.Outcome{Verdict: usagedoc.Rejected, Cause: it.Error.String()})
		case again, paused, smaller, malformed, doubtful:
			left = append(left, i)
			worst = worse(worst, c, it)
			if it.Error.Type == "index_not_found_exception" {
				w.store.forget(w.entries[i].Day)
			}
		}
	}
	w.pending = append(left, rest...)
	return worst
}

// worse returns the one of two troubles that is waited for longer.
func worse(t *trouble, c class, it *item) *trouble {
	of := causeUnavailable
	switch {
	case c == paused:
		of = causePaused
	case it.Status == 429:
		of = causeRejected
	}
	if t == nil || c == paused && t.class != paused {
		return &trouble{c, of, it.Error.String()}
	}
	return t
}

func (w *writing) done(i int, o usagedoc.Outcome) {
	w.outcomes[i] = o
	w.store.metrics.documents[o.Verdict].Inc()
}

// refused deals with a request that came to nothing.
func (w *writing) refused(ctx context.Context, part []int, err error) error {
	var t *trouble
	if !errors.As(err, &t) {
		return w.troubled(ctx, err)
	}
	switch {
	case t.class == smaller && len(part) > 1:
		w.halve(part, true)
		if t.cause == causeTooLarge {
			w.store.metrics.retries[t.cause].Inc()
			return ctx.Err() // there is nothing to wait for
		}
	case t.class == malformed && len(part) > 1:
		w.halve(part, false)
		w.store.metrics.retries[t.cause].Inc()
		return ctx.Err()
	case t.cause == causeTooLarge, t.class == malformed:
		i := part[0]
		if w.store.takesRequests(ctx, w.entries[i].Day) {
			w.done(i, usagedoc.Outcome{Verdict: usagedoc.Rejected, Cause: t.text})
			w.pending = w.pending[1:]
			w.most = min(2*w.most, w.store.cfg.BatchDocs)
			w.well()
			return ctx.Err()
		}
		t = &trouble{paused, causePaused, t.text}
	}
	return w.wait(ctx, t)
}

// halve makes the next request half as large, and where its size was the fault
// remembers that for the requests of others.
func (w *writing) halve(part []int, large bool) {
	w.most = max(1, len(part)/2)
	if !large {
		return
	}
	size := 0
	for _, i := range part {
		size += len(w.entries[i].Doc) + w.store.overhead()
	}
	w.store.narrow(size / 2)
}

// narrow lowers the ceiling of requests.
func (s *Store) narrow(bytes int) {
	bytes = max(bytes, min(minCeiling, s.cfg.BatchBytes))
	for {
		now := s.ceiling.Load()
		if int64(bytes) >= now || s.ceiling.CompareAndSwap(now, int64(bytes)) {
			return
		}
	}
}

// widen raises the ceiling a little, after a request that was taken.
func (s *Store) widen() {
	now, full := s.ceiling.Load(), int64(s.cfg.BatchBytes)
	if now < full {
		s.ceiling.CompareAndSwap(now, min(full, now+now/16+1))
	}
}

// troubled waits after an error of no bulk request.
func (w *writing) troubled(ctx context.Context, err error) error {
	var t *trouble
	if !errors.As(err, &t) {
		t = &trouble{again, causeTransport, err.Error()}
	}
	if t.class != paused {
		t.class = again
	}
	return w.wait(ctx, t)
}

// wait tells of a trouble and waits before the next try. Its error is ctx's.
func (w *writing) wait(ctx context.Context, t *trouble) error {
	s := w.store
	if err := ctx.Err(); err != nil {
		return err // the trouble may be no more than that
	}
	w.tries++
	s.metrics.retries[t.cause].Inc()
	if since, first := s.health.ill(w, t); first && t.class == paused {
		s.log.Error("the store refuses documents until an operator helps; nothing is lost, reading waits",
			"reason", t.text, "documents", len(w.pending))
	} else if w.tries == warnAfter {
		s.log.Warn("the store does not take documents; trying again until it does",
			"reason", t.text, "documents", len(w.pending), "since", since.String())
	}
	timer := time.NewTimer(backoff(t.class, w.tries))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// warnAfter is how many tries in a row may fail before the log tells: a few are
// how a busy store asks for a pause.
const warnAfter = 4

func (w *writing) well() {
	if w.tries >= warnAfter {
		w.store.log.Info("the store takes documents again", "tries", w.tries)
	}
	w.tries = 0
	w.store.health.well(w)
}

// backoff is how long to wait before try n+1, exponential, with jitter of a half.
func backoff(c class, n int) time.Duration {
	first, most := againMin, againMax
	if c == paused {
		first, most = pausedMin, pausedMax
	}
	d := min(first<<min(n-1, 20), most)
	return d/2 + rand.N(d/2+1)
}
