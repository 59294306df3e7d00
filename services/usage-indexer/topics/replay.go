package topics

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/usagedoc"
)

// A Source is read once, without a group.
type Source interface {
	ReadSince(ctx context.Context, topic string, since time.Time, handle func([]kafka.Record) error) error
}

// A Span is what is replayed.
type Span struct {
	From time.Time // records written then or later
	To   time.Time // and before that; zero: up to now
	Rate int       // most records a second; 0: as fast as the store takes them
}

// A Tally is what a replay did.
type Tally struct {
	Read    int // records within the span
	Created int // documents that had been missing
	There   int // documents that were there
	Refused map[usagedoc.Reason]int
	Took    time.Duration
}

// String is the tally for a person.
func (t Tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events read: %d documents created, %d were there", t.Read, t.Created, t.There)
	for _, r := range reasons {
		if n := t.Refused[r]; n > 0 {
			fmt.Fprintf(&b, ", %d not taken (%s)", n, r)
		}
	}
	fmt.Fprintf(&b, "; %.1f s", t.Took.Seconds())
	if s := t.Took.Seconds(); s > 0 {
		fmt.Fprintf(&b, ", %.0f events a second", float64(t.Read)/s)
	}
	return b.String()
}

// Replay has what usage.v1 holds of a span indexed again, with the same documents
// and ids: what is there stays as it is. It touches neither the group nor its
// offsets, and sets nothing aside. The tally is right also when it ends early.
func Replay(ctx context.Context, cfg Config, span Span, source Source, registry wire.Registry, store Store, log *slog.Logger, now func() time.Time) (Tally, error) {
	p := newPipeline(cfg, registry, store, log, now)
	tally := Tally{Refused: map[usagedoc.Reason]int{}}
	began := time.Now()
	err := source.ReadSince(ctx, usagev1.Topic, span.From, func(records []kafka.Record) error {
		kept := records[:0]
		for _, r := range records {
			if !r.Timestamp.Before(span.From) && (span.To.IsZero() || r.Timestamp.Before(span.To)) {
				kept = append(kept, r)
			}
		}
		fates, err := p.run(ctx, kept)
		if err != nil {
			return err
		}
		tally.add(fates)
		log.Info("replaying", "read", tally.Read, "created", tally.Created, "there", tally.There)
		return pace(ctx, span.Rate, tally.Read, time.Since(began))
	})
	tally.Took = time.Since(began)
	if err != nil {
		return tally, fmt.Errorf("replay %s: %w", usagev1.Topic, err)
	}
	return tally, nil
}

func (t *Tally) add(fates []fate) {
	for i := range fates {
		t.Read++
		switch f := &fates[i]; {
		case f.reason != "":
			t.Refused[f.reason]++
		case f.verdict == usagedoc.Duplicate:
			t.There++
		default:
			t.Created++
		}
	}
}

// pace waits until n records in the given time are no more than the rate.
func pace(ctx context.Context, rate, n int, took time.Duration) error {
	if rate <= 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(float64(n)/float64(rate)*float64(time.Second)) - took)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
