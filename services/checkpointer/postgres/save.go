package postgres

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/postgres"
	"penstock.dev/services/internal/rule"
)

// Save raises counters to what parts and live say, and contains the parts, in one
// transaction.
func (b *Books) Save(ctx context.Context, parts []*checkpoint.Part, live map[string]limit.Totals) (held []checkpoint.Saved, stale []*checkpoint.Part, err error) {
	if err := b.usable(); err != nil {
		return nil, nil, err
	}
	err = postgres.InTx(ctx, b.pool, func(tx pgx.Tx) error {
		if stale, err = contain(ctx, tx, parts); err != nil {
			return err
		}
		fresh := func(p *checkpoint.Part) bool { return !slices.Contains(stale, p) }
		changed := checkpoint.Merge(parts, fresh)
		for _, c := range changed {
			c.Raise(live[c.Key])
		}
		if held, err = raise(ctx, tx, changed, all); err != nil {
			return err
		}
		for _, p := range parts {
			if !fresh(p) {
				continue
			}
			if err := stream(ctx, tx, p); err != nil {
				return err
			}
			if err := forget(ctx, tx, p); err != nil {
				return err
			}
		}
		return correct(ctx, tx, parts)
	})
	if err != nil {
		return nil, nil, fail("save a checkpoint", err)
	}
	return held, stale, nil
}

// contain moves the offsets of parts on, but of those that are not where the part
// began: somebody else has them, or the books were emptied.
func contain(ctx context.Context, tx pgx.Tx, parts []*checkpoint.Part) (stale []*checkpoint.Part, err error) {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b *checkpoint.Part) int { return int(a.Partition) - int(b.Partition) })
	for _, p := range parts {
		tag, err := tx.Exec(ctx, `
			INSERT INTO partitions AS p (partition, next)
			SELECT $1, $3 WHERE $2 = 0 OR EXISTS (SELECT FROM partitions WHERE partition = $1)
			ON CONFLICT (partition) DO UPDATE SET next = EXCLUDED.next, saved_at = now() WHERE p.next = $2`,
			p.Partition, p.Stored, p.Next)
		if err != nil {
			return nil, err
		}
		if tag.RowsAffected() == 0 {
			stale = append(stale, p)
		}
	}
	return stale, nil
}

// rows is how many counters one statement raises.
const rows = 10_000

// raiseCounters raises many counters. Both numbers only rise.
const raiseCounters = `
	INSERT INTO counters AS c (key, kind, meter, period_start, period_end, limit_units, consumed, refunded, told, expires_at)
	SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::timestamptz[])
	ON CONFLICT (key) DO UPDATE SET
		consumed = GREATEST(c.consumed, EXCLUDED.consumed), refunded = GREATEST(c.refunded, EXCLUDED.refunded),
		told = GREATEST(-9007199254740991, LEAST(9007199254740991, c.told + EXCLUDED.told)), expires_at = GREATEST(c.expires_at, EXCLUDED.expires_at), changed_at = now(),
		kind = EXCLUDED.kind,
		meter = CASE WHEN EXCLUDED.meter = '' THEN c.meter ELSE EXCLUDED.meter END,
		period_start = CASE WHEN EXCLUDED.meter = '' THEN c.period_start ELSE EXCLUDED.period_start END,
		period_end = CASE WHEN EXCLUDED.meter = '' THEN c.period_end ELSE EXCLUDED.period_end END,
		limit_units = CASE WHEN EXCLUDED.meter = '' THEN c.limit_units ELSE EXCLUDED.limit_units END`

// Which rows are written. A sweep, of which most are known, leaves those as they are.
const (
	all    = ``
	higher = ` WHERE c.consumed < EXCLUDED.consumed OR c.refunded < EXCLUDED.refunded OR c.expires_at < EXCLUDED.expires_at`
)

const returnCounters = ` RETURNING key, consumed, refunded, expires_at`

// raise raises counters, which are in the order of their keys, and returns what
// those that were written have come to.
func raise(ctx context.Context, tx pgx.Tx, changed []*checkpoint.Counter, which string) (held []checkpoint.Saved, err error) {
	held = make([]checkpoint.Saved, 0, len(changed))
	for len(changed) > 0 {
		some := changed[:min(rows, len(changed))]
		changed = changed[len(some):]
		n := len(some)
		keys, kinds, meters := make([][]byte, n), make([]string, n), make([]string, n)
		starts, ends, expires := make([]*time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
		limits, consumed, refunded, told := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		for i, c := range some {
			keys[i], kinds[i], meters[i] = []byte(c.Key), string(c.Kind), c.Meter
			starts[i], ends[i], expires[i] = known(c.Start), known(c.End), known(c.Expires)
			limits[i], consumed[i], refunded[i], told[i] = c.Limit, c.Consumed, c.Refunded, c.Told
		}
		found, err := tx.Query(ctx, raiseCounters+which+returnCounters, keys, kinds, meters, starts, ends, limits, consumed, refunded, told, expires)
		if err != nil {
			return nil, err
		}
		var s checkpoint.Saved
		var key []byte
		var until *time.Time
		if _, err := pgx.ForEachRow(found, []any{&key, &s.Consumed, &s.Refunded, &until}, func() error {
			s.Key, s.Expiry = string(key), at(until)
			held = append(held, s)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// known is a time as a column has it: none where it is zero.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func at(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// Raise raises counters that the store was found to hold, and returns those that
// the books did not know so.
func (b *Books) Raise(ctx context.Context, saved []checkpoint.Saved) (held []checkpoint.Saved, err error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	counters := map[string]*checkpoint.Counter{}
	for _, s := range saved {
		counters[s.Key] = &checkpoint.Counter{Key: s.Key, Kind: kindOf(s.Key), Totals: s.Totals, Expires: s.Expiry}
	}
	err = postgres.InTx(ctx, b.pool, func(tx pgx.Tx) error {
		held, err = raise(ctx, tx, checkpoint.Sorted(counters), higher)
		return err
	})
	return held, fail("raise counters", err)
}

// kindOf is a counter's kind by its key.
func kindOf(key string) rule.Kind {
	if strings.Contains(key, "}:e:wallet:") || strings.Contains(key, "}:s:wallet:") {
		return rule.Wallet
	}
	return rule.Quota
}

// stream writes the streams of a part that have changed.
func stream(ctx context.Context, tx pgx.Tx, p *checkpoint.Part) error {
	seen := p.Seen()
	if len(seen) == 0 {
		return nil
	}
	ids, holes := make([][]byte, len(seen)), make([][]byte, len(seen))
	nexts, lost := make([]int64, len(seen)), make([]int64, len(seen))
	for i, s := range seen {
		ids[i], nexts[i], lost[i], holes[i] = s.ID[:], s.Next, s.Lost, []byte{}
		for _, h := range s.Holes {
			holes[i] = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(holes[i], uint64(h.From)), uint64(h.To))
		}
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO streams (partition, stream, next, holes, lost)
		SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[])
		ON CONFLICT (partition, stream) DO UPDATE
			SET next = EXCLUDED.next, holes = EXCLUDED.holes, lost = EXCLUDED.lost, seen_at = now()`,
		p.Partition, ids, nexts, holes, lost)
	return err
}

// forget has the books know corrections from now on only, where some before were not told.
func forget(ctx context.Context, tx pgx.Tx, p *checkpoint.Part) error {
	if !p.Hole {
		return nil
	}
	_, err := tx.Exec(ctx, `UPDATE custody SET since = GREATEST(since, now())`)
	return err
}

// correct writes what was told of corrections. Of one that is known nothing
// changes.
func correct(ctx context.Context, tx pgx.Tx, parts []*checkpoint.Part) error {
	var made []checkpoint.Correction
	for _, p := range parts {
		made = append(made, p.Made...)
	}
	if len(made) == 0 {
		return nil
	}
	tenants, decisions, refunds := make([][]byte, len(made)), make([][]byte, len(made)), make([][]byte, len(made))
	units, when := make([]int64, len(made)), make([]time.Time, len(made))
	for i := range made {
		c := &made[i]
		tenants[i], decisions[i], refunds[i], units[i], when[i] = []byte(c.Tenant), c.Decision[:], []byte(c.Refund), c.Units, c.At
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO corrections (tenant, decision, refund, units, made_at)
		SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[], $5::timestamptz[]) AS made (tenant, decision, refund, units, made_at)
		ORDER BY 1, 2, 3
		ON CONFLICT DO NOTHING`, tenants, decisions, refunds, units, when)
	return err
}
