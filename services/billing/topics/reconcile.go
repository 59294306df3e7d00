package topics

import (
	"context"
	"log/slog"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/reconcile"
	"penstock.dev/services/internal/kafka"
)

// A Ranger reads a topic once, between offsets.
type Ranger interface {
	ReadRange(ctx context.Context, topic string, from, to map[int32]int64, handle func([]kafka.Record) error) (map[int32]kafka.Range, error)
}

// An Again is what reading usage.v1 again gave.
type Again struct {
	Lines                     map[reconcile.Line]reconcile.Sum
	Read, Repeats, Unreadable int64
	Since                     time.Time // before it, records are gone, or were never counted; zero: none are
}

// ReadAgain adds up what usage.v1 has of each partition below its offset in next, each
// event once. Periods and days are the calendar's. first is where counting began: what
// the topic has before it was not counted and is not read.
func ReadAgain(ctx context.Context, source Ranger, registry wire.Registry, first, next map[int32]int64, in metering.Calendar, log *slog.Logger) (Again, error) {
	a := rereading{
		decoder: usagev1.NewDecoder(wire.NewIDs(registry, usagev1.Subject)), in: in, log: log,
		streams: map[metering.ID]*metering.Stream{}, oldest: map[int32]time.Time{},
		Again: Again{Lines: map[reconcile.Line]reconcile.Sum{}},
	}
	ranges, err := source.ReadRange(ctx, usagev1.Topic, first, next, func(records []kafka.Record) error { return a.take(ctx, records) })
	for p, r := range ranges {
		if at := a.oldest[p]; r.From > 0 && at.After(a.Since) {
			a.Since = at // the partition does not begin where the topic did
		}
	}
	return a.Again, err
}

type rereading struct {
	Again
	decoder *usagev1.Decoder
	in      metering.Calendar
	log     *slog.Logger
	streams map[metering.ID]*metering.Stream
	oldest  map[int32]time.Time // record of each partition
}

func (a *rereading) take(ctx context.Context, records []kafka.Record) error {
	batch := metering.NewBatch()
	for i := range records {
		r := &records[i]
		if _, known := a.oldest[r.Partition]; !known {
			a.oldest[r.Partition] = r.Timestamp
		}
		a.Read++
		var e usagev1.Event
		err := again(ctx, a.log, "reading waits for the schema registry", func() (err error) {
			e, err = a.decoder.Decode(ctx, r.Key, r.Value)
			return lasting(err)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			a.Unreadable++
			continue
		}
		m := meter(&e, r)
		s := a.streams[m.Stream]
		if s == nil {
			s = metering.NewStream(m.Stream, m.Partition, m.Sequence, false)
			a.streams[m.Stream] = s
		}
		if !s.See(m.Sequence, m.At, m.Arrived) {
			a.Repeats++
			continue
		}
		if err := batch.Add(&m, a.in); err != nil {
			return err
		}
	}
	for k, c := range batch.Usage {
		l := reconcile.Line{Tenant: k.Tenant, Meter: k.Meter, Period: k.Period, Day: k.Day}
		sum := a.Lines[l]
		sum.Plus(reconcile.SumOf(*c))
		a.Lines[l] = sum
	}
	return nil
}
