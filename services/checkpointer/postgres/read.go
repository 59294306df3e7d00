package postgres

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/checkpointer/checkpoint"
)

// Parts returns partitions of usage.v1 as they are contained, also those that are
// not yet; all that are, where none are named.
func (b *Books) Parts(ctx context.Context, partitions []int32) ([]*checkpoint.Part, error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	stored := map[int32]int64{}
	for _, p := range partitions {
		stored[p] = 0
	}
	streams := map[int32]map[[16]byte]*checkpoint.Stream{}
	var batch pgx.Batch
	batch.Queue(`SELECT partition, next FROM partitions WHERE $1::integer[] IS NULL OR partition = ANY($1)`, partitions).Query(func(rows pgx.Rows) error {
		var partition int32
		var next int64
		_, err := pgx.ForEachRow(rows, []any{&partition, &next}, func() error {
			stored[partition] = next
			return nil
		})
		return err
	})
	batch.Queue(`SELECT partition, stream, next, holes, lost FROM streams WHERE $1::integer[] IS NULL OR partition = ANY($1)`, partitions).Query(func(rows pgx.Rows) error {
		var partition int32
		var id, holes []byte
		var next, lost int64
		_, err := pgx.ForEachRow(rows, []any{&partition, &id, &next, &holes, &lost}, func() error {
			s := &checkpoint.Stream{Next: next, Lost: lost}
			copy(s.ID[:], id)
			for ; len(holes) >= 16; holes = holes[16:] {
				s.Holes = append(s.Holes, checkpoint.Hole{From: int64(binary.BigEndian.Uint64(holes)), To: int64(binary.BigEndian.Uint64(holes[8:]))})
			}
			if streams[partition] == nil {
				streams[partition] = map[[16]byte]*checkpoint.Stream{}
			}
			streams[partition][s.ID] = s
			return nil
		})
		return err
	})
	if err := b.snapshot(ctx, &batch); err != nil {
		return nil, fail("read offsets", err)
	}
	parts := make([]*checkpoint.Part, 0, len(stored))
	for p, next := range stored {
		parts = append(parts, checkpoint.NewPart(p, next, streams[p]))
	}
	return parts, nil
}

// snapshot runs statements that see the database as it is at one moment.
func (b *Books) snapshot(ctx context.Context, batch *pgx.Batch) error {
	tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing was written
	return tx.SendBatch(ctx, batch).Close()
}

// Counters returns counters that are not over, by key, after a key.
func (b *Books) Counters(ctx context.Context, after string, n int, now time.Time) ([]checkpoint.Counter, error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	found, err := b.pool.Query(ctx, `
		SELECT key, kind, meter, period_start, period_end, limit_units, consumed, refunded, told, expires_at FROM counters
		WHERE key > $1 AND (expires_at IS NULL OR expires_at > $3) ORDER BY key LIMIT $2`, []byte(after), n, now)
	if err != nil {
		return nil, fail("read counters", err)
	}
	page := make([]checkpoint.Counter, 0, n)
	var c checkpoint.Counter
	var key []byte
	var kind string
	var start, end, until *time.Time
	_, err = pgx.ForEachRow(found, []any{&key, &kind, &c.Meter, &start, &end, &c.Limit, &c.Consumed, &c.Refunded, &c.Told, &until}, func() error {
		c.Key = string(key)
		c.Kind, c.Start, c.End, c.Expires = kindOf(c.Key), at(start), at(end), at(until)
		page = append(page, c)
		return nil
	})
	return page, fail("read counters", err)
}

// Corrections returns n at most of those since a time that come after one, by
// tenant, decision and refund.
func (b *Books) Corrections(ctx context.Context, since time.Time, after checkpoint.Correction, n int) ([]checkpoint.Correction, error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	found, err := b.pool.Query(ctx, `
		SELECT tenant, decision, refund, units, made_at FROM corrections
		WHERE made_at > $1 AND (tenant, decision, refund) > ($2, $3, $4) ORDER BY tenant, decision, refund LIMIT $5`,
		since, []byte(after.Tenant), after.Decision[:], []byte(after.Refund), n)
	if err != nil {
		return nil, fail("read corrections", err)
	}
	var made []checkpoint.Correction
	var c checkpoint.Correction
	var tenant, id, refund []byte
	_, err = pgx.ForEachRow(found, []any{&tenant, &id, &refund, &c.Units, &c.At}, func() error {
		copy(c.Decision[:], id)
		c.Tenant, c.Refund, c.At = string(tenant), string(refund), c.At.UTC()
		made = append(made, c)
		return nil
	})
	return made, fail("read corrections", err)
}
