package limit

import (
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// A wallet passes whatever a request costs while its balance is above 0, and so
// goes below 0 by one request at most: balance = limit − consumed + refunded.
// All charges of a decision on one wallet are one debit.
//
// A prepaid wallet's limit is all that was ever granted, and waiting does not
// help an empty one. A renewable one sells its limit anew each period, and its
// counter is the period's. Consumed never passes rule.Unlimited.
type wallet struct {
	limit int64
	span  period.Span // zero: prepaid
	floor Totals
}

func (w wallet) prepaid() bool { return w.span == period.Span{} }

func (w wallet) ask(v Value, units, now int64) verdict {
	v = v.atLeast(w.floor)
	unlimited := w.limit == rule.Unlimited && !w.prepaid()
	switch {
	case units == 0, unlimited, w.limit-v.used() > 0 && units <= rule.Unlimited-v.Consumed:
		return passes
	case w.prepaid(), w.limit == 0, units > rule.Unlimited:
		return refusedFor(-1)
	default:
		return refusedFor(w.span.End.UnixMicro() - now)
	}
}

func (w wallet) take(v Value, units, _ int64) (Value, int64) {
	return v.atLeast(w.floor).consume(units)
}

func (w wallet) add(v Value, units, _, now int64) (Value, int64) { return w.take(v, units, now) }

func (w wallet) show(v Value, now int64, r *Result) {
	v = v.atLeast(w.floor)
	r.Consumed, r.Refunded = v.Consumed, v.Refunded
	r.Remaining = v.remaining(w.limit, w.limit == rule.Unlimited && !w.prepaid())
	if !w.prepaid() {
		r.Reset = time.Duration(w.span.End.UnixMicro()-now) * time.Microsecond
	}
}

func (w wallet) give(v Value, units, _, _ int64) (Value, int64) {
	return v.atLeast(w.floor).refund(units)
}
