package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/internal/kafka"
)

// A Log is read from its start, for ever.
type Log interface {
	ReadLog(ctx context.Context, topic string, h kafka.LogHandler) error
}

// A Catalogue takes changes; those that it knows have no effect.
type Catalogue interface {
	Learn(ctx context.Context, changes []catalog.Change, now time.Time) error
}

// How long a batch waits before it is tried again.
const (
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// rules follows rules.v1 into the catalogue.
type rules struct {
	source    Log
	decoder   *rulesv1.Decoder
	catalogue Catalogue
	log       *slog.Logger
	metrics   *metrics
	now       func() time.Time
	caughtUp  chan struct{}
}

func (r *rules) run(ctx context.Context) error {
	return r.source.ReadLog(ctx, rulesv1.Topic, kafka.LogHandler{
		Records:  func(batch []kafka.Record) error { return r.take(ctx, batch) },
		CaughtUp: func() { close(r.caughtUp) },
	})
}

// take takes a batch, waiting for the registry and the database for as long as it takes.
// Its error is ctx's.
func (r *rules) take(ctx context.Context, batch []kafka.Record) error {
	var changes []catalog.Change
	for i := range batch {
		c, ok, err := r.read(ctx, &batch[i])
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			r.aside(string(batch[i].Key), err)
		case ok:
			changes = append(changes, c)
		}
	}
	return r.learn(ctx, changes)
}

func (r *rules) learn(ctx context.Context, changes []catalog.Change) error {
	if len(changes) == 0 {
		return nil
	}
	err := again(ctx, r.log, "the catalogue waits for the database", func() error { return r.catalogue.Learn(ctx, changes, r.now()) })
	switch {
	case err == nil:
		r.metrics.rules.Add(float64(len(changes)))
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case len(changes) == 1:
		r.aside(string(changes[0].Kind)+"/"+changes[0].ID, err)
		return nil
	}
	half := len(changes) / 2
	if err := r.learn(ctx, changes[:half]); err != nil {
		return err
	}
	return r.learn(ctx, changes[half:])
}

// read is what a record says; false: nothing that billing keeps.
func (r *rules) read(ctx context.Context, rec *kafka.Record) (catalog.Change, bool, error) {
	if rec.Value == nil {
		return tombstone(rec)
	}
	var out rulesv1.Record
	err := again(ctx, r.log, "the catalogue waits for the schema registry", func() (err error) {
		out, err = r.decoder.Decode(ctx, rec.Key, rec.Value)
		return lasting(err)
	})
	if errors.Is(err, wire.ErrSkip) {
		return catalog.Change{}, false, nil
	}
	if err != nil {
		return catalog.Change{}, false, err
	}
	return change(&out)
}

func tombstone(rec *kafka.Record) (catalog.Change, bool, error) {
	kind, id, err := rulesv1.ParseKey(rec.Key)
	if errors.Is(err, wire.ErrSkip) {
		return catalog.Change{}, false, nil
	}
	if err != nil {
		return catalog.Change{}, false, err
	}
	for _, h := range rec.Headers {
		if h.Key == rulesv1.HeaderVersion {
			version, err := rulesv1.ParseVersion(h.Value)
			if err != nil {
				return catalog.Change{}, false, err
			}
			c, ok := deletion(kind, id, version, rec.Timestamp.UTC())
			return c, ok, nil
		}
	}
	return catalog.Change{}, false, fmt.Errorf("%w: tombstone without a version", wire.ErrPoison)
}

// aside tells of a record that was not taken.
func (r *rules) aside(key string, err error) {
	r.metrics.rulesAside.Inc()
	r.log.Error("a change of the catalogue cannot be taken; what was known before stays", "key", key, "error", err.Error())
}

// errLater wraps an error that is waited out.
var errLater = errors.New("later")

// lasting wraps what decoding may do better later in errLater.
func lasting(err error) error {
	if err == nil || errors.Is(err, wire.ErrPoison) || errors.Is(err, wire.ErrSkip) || errors.Is(err, wire.ErrSetAside) {
		return err
	}
	return fmt.Errorf("%w: %w", errLater, err)
}

// again calls do until it succeeds or fails for good, waiting longer each time. It
// returns do's error, or ctx's.
func again(ctx context.Context, log *slog.Logger, waits string, do func() error) error {
	wait, told := retryMin, false
	for {
		err := do()
		if err == nil || !errors.Is(err, errLater) && !errors.Is(err, account.ErrUnavailable) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !told {
			told = true
			log.Warn("waiting", "why", waits, "error", err.Error())
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait = min(2*wait, retryMax)
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
