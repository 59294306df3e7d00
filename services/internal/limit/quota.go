package limit

import (
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// A quota sells limit units within one period. What was used is what was
// consumed less what was refunded; both only rise. A lowered limit may lie
// below what was used: nothing remains, and nothing is forgotten.
type quota struct {
	limit int64
	span  period.Span
	floor Totals
}

// A cost above the limit never passes; else the next period is waited for,
// also where consumed has come to the end of its numbers.
func (q quota) ask(v Value, units, now int64) verdict {
	v = v.atLeast(q.floor)
	room := min(q.limit-v.used(), rule.Unlimited-v.Consumed)
	switch {
	case units == 0, units <= room, q.limit == rule.Unlimited:
		return passes
	case units > q.limit:
		return refusedFor(-1)
	default:
		return refusedFor(q.span.End.UnixMicro() - now)
	}
}

func (q quota) take(v Value, units, _ int64) (Value, int64) {
	return v.atLeast(q.floor).consume(units)
}

func (q quota) add(v Value, units, _, now int64) (Value, int64) { return q.take(v, units, now) }

func (q quota) show(v Value, now int64, r *Result) {
	v = v.atLeast(q.floor)
	r.Consumed, r.Refunded = v.Consumed, v.Refunded
	r.Remaining = v.remaining(q.limit, q.limit == rule.Unlimited)
	r.Reset = time.Duration(q.span.End.UnixMicro()-now) * time.Microsecond
}

func (q quota) give(v Value, units, _, _ int64) (Value, int64) {
	return v.atLeast(q.floor).refund(units)
}

// atLeast is v where it is no less than the floor.
func (v Value) atLeast(floor Totals) Value {
	v.Consumed, v.Refunded = max(v.Consumed, floor.Consumed), max(v.Refunded, floor.Refunded)
	return v
}

// used is what was consumed and not given back.
func (v Value) used() int64 { return v.Consumed - v.Refunded }

// remaining is what is left of a limit, as far as it can be counted.
func (v Value) remaining(limit int64, unlimited bool) int64 {
	left := limit - v.used()
	if !unlimited {
		left = min(left, rule.Unlimited-v.Consumed)
	}
	return min(limit, max(0, left))
}

// consume raises what was consumed, up to rule.Unlimited, and says by how much.
func (v Value) consume(units int64) (Value, int64) {
	units = min(units, rule.Unlimited-v.Consumed)
	v.Consumed += units
	return v, units
}

// refund raises what was refunded, and says by how much. What is given back was
// consumed: a counter that says less has lost something.
func (v Value) refund(units int64) (Value, int64) {
	units = max(0, min(units, rule.Unlimited-v.Refunded))
	v.Refunded += units
	v.Consumed = max(v.Consumed, v.Refunded)
	return v, units
}
