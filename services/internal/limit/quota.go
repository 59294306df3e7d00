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
	room := min(q.limit-(v.Consumed-v.Refunded), rule.Unlimited-v.Consumed)
	switch {
	case units == 0, units <= room, q.limit == rule.Unlimited:
		return passes
	case units > q.limit:
		return refusedFor(-1)
	default:
		return refusedFor(q.span.End.UnixMicro() - now)
	}
}

func (q quota) take(v Value, units, _ int64) Value { return v.atLeast(q.floor).consume(units) }

func (q quota) show(v Value, now int64, r *Result) {
	v = v.atLeast(q.floor)
	r.Consumed, r.Refunded = v.Consumed, v.Refunded
	r.Remaining = min(q.limit, max(0, q.limit-(v.Consumed-v.Refunded)))
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

// consume raises what was consumed, up to rule.Unlimited.
func (v Value) consume(units int64) Value {
	v.Consumed += min(units, rule.Unlimited-v.Consumed)
	return v
}

// refund raises what was refunded, up to what was consumed, and says by how
// much.
func (v Value) refund(units int64) (Value, int64) {
	given := max(0, min(units, v.Consumed-v.Refunded))
	v.Refunded += given
	return v, given
}
