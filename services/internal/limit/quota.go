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
}

// A cost above the limit never passes; else the next period is waited for,
// also where consumed has come to the end of its numbers.
func (q quota) ask(v Value, units, now int64) (bool, time.Duration) {
	room := min(q.limit-(v.Consumed-v.Refunded), rule.Unlimited-v.Consumed)
	switch {
	case units == 0, units <= room, q.limit == rule.Unlimited:
		return true, 0
	case units > q.limit:
		return false, Never
	default:
		return false, q.left(now)
	}
}

func (q quota) take(v Value, units, _ int64) Value {
	v.Consumed += min(units, rule.Unlimited-v.Consumed)
	return v
}

func (q quota) show(v Value, now int64, r *Result) {
	r.Consumed, r.Refunded = v.Consumed, v.Refunded
	r.Remaining = min(q.limit, max(0, q.limit-(v.Consumed-v.Refunded)))
	r.Reset = q.left(now)
}

// left is the rest of the period.
func (q quota) left(now int64) time.Duration {
	return time.Duration(q.span.End.UnixMicro()-now) * time.Microsecond
}
