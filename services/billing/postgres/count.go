package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/metering"
)

// Count counts events that were read up to the given positions, in one transaction.
// Events that were counted before have no effect. now is when they are counted.
func (s *Store) Count(ctx context.Context, events []metering.Event, read []metering.Position, now time.Time) (metering.Result, error) {
	var result metering.Result
	err := s.inTx(ctx, "count", func(tx pgx.Tx) error {
		result = metering.Result{}
		whole, skipped, err := lockPartitions(ctx, tx, read, now)
		if err != nil {
			return err
		}
		result.Skipped = skipped
		streams, err := loadStreams(ctx, tx, events)
		if err != nil {
			return err
		}
		fresh := take(streams, events, whole, now, &result)
		calendar, err := loadCalendar(ctx, tx, fresh, now)
		if err != nil {
			return err
		}
		batch := metering.NewBatch()
		for _, e := range fresh {
			if err := batch.Add(e, calendar); err != nil {
				return err
			}
		}
		w := &writer{batch: &pgx.Batch{}}
		w.positions(read, now)
		w.streams(streams, now)
		w.periods(calendar)
		w.usage(batch, &result)
		w.cuts(batch)
		w.counters(batch, whole, events)
		if err := tx.SendBatch(ctx, w.batch).Close(); err != nil {
			return err
		}
		return moveWallets(ctx, tx, batch.Movements, &result)
	})
	return result, err
}

// lockPartitions locks the rows of what was read, and says of which partitions the
// topic was read from its beginning, and how many records lie between what was read
// before and this. A topic that was made anew begins before, and so does one that is read
// from before counting began.
func lockPartitions(ctx context.Context, tx pgx.Tx, read []metering.Position, now time.Time) (whole map[int32]bool, skipped int64, err error) {
	var ids []int32
	var firsts []int64
	first := map[int32]int64{}
	for _, p := range slices.SortedFunc(slices.Values(read), func(a, b metering.Position) int { return int(a.Partition - b.Partition) }) {
		ids, firsts = append(ids, p.Partition), append(firsts, p.First)
		first[p.Partition] = p.First
	}
	if _, err := tx.Exec(ctx, `INSERT INTO partitions (partition, first_offset, next_offset, record_at, changed_at)
		SELECT p, f, f, 'epoch', $3 FROM unnest($1::int[], $2::bigint[]) AS r(p, f) ORDER BY p
		ON CONFLICT (partition) DO UPDATE SET first_offset = excluded.first_offset WHERE partitions.first_offset > excluded.first_offset`, ids, firsts, now); err != nil {
		return nil, 0, err
	}
	rows, err := tx.Query(ctx, `SELECT partition, first_offset, next_offset FROM partitions WHERE partition = ANY($1) ORDER BY partition FOR UPDATE`, ids)
	if err != nil {
		return nil, 0, err
	}
	whole = map[int32]bool{}
	var id int32
	var from, next int64
	_, err = pgx.ForEachRow(rows, []any{&id, &from, &next}, func() error {
		whole[id] = from == 0
		skipped += max(0, first[id]-next)
		return nil
	})
	return whole, skipped, err
}

type streamState struct {
	*metering.Stream
	known []metering.Hole // as they are in the database
}

func loadStreams(ctx context.Context, tx pgx.Tx, events []metering.Event) (map[metering.ID]*streamState, error) {
	seen := map[metering.ID]bool{}
	var ids [][16]byte
	for i := range events {
		if id := events[i].Stream; !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	streams := map[metering.ID]*streamState{}
	rows, err := tx.Query(ctx, `SELECT id, partition, next, last_at FROM streams WHERE id = ANY($1)`, ids)
	if err != nil {
		return nil, err
	}
	var id [16]byte
	var partition int32
	var next int64
	var last time.Time
	if _, err = pgx.ForEachRow(rows, []any{&id, &partition, &next, &last}, func() error {
		streams[id] = &streamState{Stream: &metering.Stream{ID: id, Partition: partition, Next: next, LastAt: last.UTC()}}
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = tx.Query(ctx, `SELECT stream, from_seq, to_seq, after_at, before_at, noticed_at FROM gaps WHERE stream = ANY($1) ORDER BY from_seq`, ids)
	if err != nil {
		return nil, err
	}
	var h metering.Hole
	var after, noticed *time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &h.From, &h.To, &after, &h.Before, &noticed}, func() error {
		h.After, h.Noticed = zero(after), zero(noticed)
		if st := streams[id]; st != nil {
			st.Holes, st.known = append(st.Holes, h), append(st.known, h)
		}
		return nil
	})
	return streams, err
}

// take returns the events that were not counted before.
func take(streams map[metering.ID]*streamState, events []metering.Event, whole map[int32]bool, now time.Time, r *metering.Result) []*metering.Event {
	fresh := make([]*metering.Event, 0, len(events))
	for i := range events {
		e := &events[i]
		st := streams[e.Stream]
		if st == nil {
			st = &streamState{Stream: metering.NewStream(e.Stream, e.Partition, e.Sequence, whole[e.Partition])}
			streams[e.Stream] = st
		}
		if !st.See(e.Sequence, e.At, now) {
			r.Repeats++
			continue
		}
		r.Counted++
		fresh = append(fresh, e)
	}
	for _, st := range streams {
		r.Missing += holes(st.Holes) - holes(st.known)
	}
	return fresh
}

func holes(of []metering.Hole) (n int64) {
	for _, h := range of {
		n += h.Missing()
	}
	return n
}

// CountedTo is when the newest record that was counted came, by partition.
func (s *Store) CountedTo(ctx context.Context) (map[int32]time.Time, error) {
	out := map[int32]time.Time{}
	err := s.inTx(ctx, "counted to", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT partition, record_at FROM partitions`)
		if err != nil {
			return err
		}
		var p int32
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&p, &at}, func() error {
			out[p] = at.UTC()
			return nil
		})
		return err
	})
	return out, err
}
