package postgres

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"penstock.dev/services/billing/metering"
)

// A writer queues the statements of one batch: they go to the database together.
type writer struct{ batch *pgx.Batch }

func (w *writer) positions(read []metering.Position, now time.Time) {
	for _, p := range read {
		w.batch.Queue(`UPDATE partitions SET next_offset = $2, record_at = $3, changed_at = $4 WHERE partition = $1`, p.Partition, p.Next, p.At, now)
	}
}

func (w *writer) streams(streams map[metering.ID]*streamState, now time.Time) {
	var ids, gapped, gaps [][16]byte
	var partitions, gapPartitions []int32
	var nexts, froms, tos []int64
	var lasts, befores []time.Time
	var afters, noticed []*time.Time
	for id, st := range streams {
		ids, partitions, nexts, lasts = append(ids, id), append(partitions, st.Partition), append(nexts, st.Next), append(lasts, st.LastAt)
		if slices.Equal(st.Holes, st.known) {
			continue
		}
		gapped = append(gapped, id)
		for _, h := range st.Holes {
			gaps, gapPartitions = append(gaps, id), append(gapPartitions, st.Partition)
			froms, tos, noticed = append(froms, h.From), append(tos, h.To), append(noticed, null(h.Noticed))
			afters, befores = append(afters, null(h.After)), append(befores, h.Before)
		}
	}
	if len(ids) > 0 {
		w.batch.Queue(`INSERT INTO streams (id, partition, next, last_at, seen_at)
			SELECT i, p, n, l, $5 FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::timestamptz[]) AS s(i, p, n, l)
			ON CONFLICT (id) DO UPDATE SET next = excluded.next, last_at = excluded.last_at, seen_at = excluded.seen_at`,
			ids, partitions, nexts, lasts, now)
	}
	if len(gapped) > 0 {
		w.batch.Queue(`DELETE FROM gaps WHERE stream = ANY($1)`, gapped)
		w.batch.Queue(`INSERT INTO gaps (stream, partition, from_seq, to_seq, after_at, before_at, noticed_at)
			SELECT * FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[])`,
			gaps, gapPartitions, froms, tos, afters, befores, noticed)
	}
}

func (w *writer) periods(c *calendar) {
	var tenants []string
	var starts, ends []time.Time
	for _, p := range c.made {
		tenants, starts, ends = append(tenants, p.tenant), append(starts, p.Start), append(ends, p.End)
	}
	w.insertPeriods(tenants, starts, ends)
}

func (w *writer) insertPeriods(tenants []string, starts, ends []time.Time) {
	if len(tenants) > 0 {
		w.batch.Queue(`INSERT INTO periods (tenant, start_at, end_at) SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) ON CONFLICT DO NOTHING`,
			tenants, starts, ends)
	}
}

// columns are the values of a table's columns, row by row.
type columns struct {
	text  [][]string
	times [][]time.Time
	ints  [][]int64
}

func (c *columns) add(text []string, times []time.Time, ints []int64) {
	if c.text == nil {
		c.text, c.times, c.ints = make([][]string, len(text)), make([][]time.Time, len(times)), make([][]int64, len(ints))
	}
	for i, v := range text {
		c.text[i] = append(c.text[i], v)
	}
	for i, v := range times {
		c.times[i] = append(c.times[i], v)
	}
	for i, v := range ints {
		c.ints[i] = append(c.ints[i], v)
	}
}

// args are the columns as arguments, the texts first, then the times, then the numbers.
func (c *columns) args() (out []any) {
	for _, v := range c.text {
		out = append(out, v)
	}
	for _, v := range c.times {
		out = append(out, v)
	}
	for _, v := range c.ints {
		out = append(out, v)
	}
	return out
}

func (w *writer) usage(b *metering.Batch, r *metering.Result) {
	var rows, aside columns
	for k, c := range b.Usage {
		if k.Kind != metering.InPeriod {
			r.Late++
		}
		rows.add([]string{k.Tenant, string(k.Kind), k.Meter, k.Application, k.Service, k.Endpoint, k.APIKey},
			[]time.Time{k.Period, k.Into, k.Day}, []int64{c.Calls, c.Units, c.Returned, c.Degraded, c.Prepaid, c.Unpriced})
	}
	if len(b.Usage) > 0 {
		w.batch.Queue(`INSERT INTO usage AS u (tenant, kind, meter, application, service, endpoint, api_key, period_start, into_start, day, calls, units, returned, degraded, prepaid, unpriced)
			SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[],
				$11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[])
			ON CONFLICT (tenant, into_start, period_start, kind, day, meter, endpoint, service, application, api_key) DO UPDATE SET
				calls = u.calls + excluded.calls, units = u.units + excluded.units, returned = u.returned + excluded.returned,
				degraded = u.degraded + excluded.degraded, prepaid = u.prepaid + excluded.prepaid, unpriced = u.unpriced + excluded.unpriced`, rows.args()...)
	}
	for k, c := range b.Aside {
		r.Aside++
		aside.add([]string{k.Tenant, k.Meter}, []time.Time{k.Into}, []int64{c.Calls, c.Units, c.Returned})
	}
	if len(b.Aside) > 0 {
		w.batch.Queue(`INSERT INTO set_aside AS u (tenant, meter, into_start, calls, units, returned)
			SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[])
			ON CONFLICT (tenant, meter, into_start) DO UPDATE SET
				calls = u.calls + excluded.calls, units = u.units + excluded.units, returned = u.returned + excluded.returned`, aside.args()...)
	}
}

func (w *writer) cuts(b *metering.Batch) {
	var rows columns
	for k, c := range b.Cuts {
		rows.add([]string{k.Tenant, k.Reason, k.Rule, k.Algorithm, k.Application, k.APIKey, k.Service, k.Endpoint},
			[]time.Time{k.Day, c.First, c.Last}, []int64{int64(k.Status), c.Calls, c.Units})
	}
	if len(b.Cuts) == 0 {
		return
	}
	w.batch.Queue(`INSERT INTO cuts AS u (tenant, reason, rule, algorithm, application, api_key, service, endpoint, day, first_seen, last_seen, status, calls, units)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
			$9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::int[], $13::bigint[], $14::bigint[])
		ON CONFLICT (tenant, day, rule, endpoint, api_key, application, service, reason, algorithm, status) DO UPDATE SET
			calls = u.calls + excluded.calls, units = u.units + least(excluded.units, 9223372036854775807 - u.units),
			first_seen = least(u.first_seen, excluded.first_seen), last_seen = greatest(u.last_seen, excluded.last_seen)`, rows.args()...)
}

func (w *writer) counters(b *metering.Batch, whole map[int32]bool, events []metering.Event) {
	if len(b.Counters) == 0 {
		return
	}
	from := map[string]bool{} // tenants whose partition was read from its beginning
	for i := range events {
		from[events[i].Tenant] = whole[events[i].Partition]
	}
	var rows columns
	var wallet, soft []bool
	var starts, ends []*time.Time
	for _, c := range b.Counters {
		base, refundedBase := c.FirstConsumed, c.FirstRefunded
		if from[c.Tenant] {
			base, refundedBase = 0, 0
		}
		rows.add([]string{c.Key, c.Tenant, c.Last.Meter, c.Last.Rule, c.Application, c.User, c.APIKey}, []time.Time{c.LastAt},
			[]int64{c.Last.Limit, c.Consumed, c.Refunded, base, refundedBase, c.Charged, c.Returned})
		wallet, soft = append(wallet, c.Last.Wallet), append(soft, c.Last.Soft)
		starts, ends = append(starts, null(c.Last.Start)), append(ends, null(c.Last.End))
	}
	w.batch.Queue(`INSERT INTO counters AS u (key, tenant, meter, rule, application, username, api_key, last_at,
			lim, consumed, refunded, consumed_base, refunded_base, charged, returned, wallet, soft, period_start, period_end)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[],
			$9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
			$16::bool[], $17::bool[], $18::timestamptz[], $19::timestamptz[])
		ON CONFLICT (key) DO UPDATE SET
			consumed = greatest(u.consumed, excluded.consumed), refunded = greatest(u.refunded, excluded.refunded),
			consumed_base = least(u.consumed_base, excluded.consumed_base), refunded_base = least(u.refunded_base, excluded.refunded_base),
			charged = u.charged + excluded.charged, returned = u.returned + excluded.returned,
			lim = CASE WHEN excluded.last_at >= u.last_at THEN excluded.lim ELSE u.lim END,
			rule = CASE WHEN excluded.last_at >= u.last_at THEN excluded.rule ELSE u.rule END,
			soft = CASE WHEN excluded.last_at >= u.last_at THEN excluded.soft ELSE u.soft END,
			application = CASE WHEN excluded.last_at >= u.last_at THEN excluded.application ELSE u.application END,
			username = CASE WHEN excluded.last_at >= u.last_at THEN excluded.username ELSE u.username END,
			api_key = CASE WHEN excluded.last_at >= u.last_at THEN excluded.api_key ELSE u.api_key END,
			meter = CASE WHEN excluded.last_at >= u.last_at THEN excluded.meter ELSE u.meter END,
			last_at = greatest(u.last_at, excluded.last_at)`, append(rows.args(), wallet, soft, starts, ends)...)
}
