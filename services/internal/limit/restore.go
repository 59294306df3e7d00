package limit

import "time"

// A Saved is a quota or a wallet as somebody keeps it who may have to restore
// it.
type Saved struct {
	Totals
	Expiry time.Time // when its counter may be forgotten; zero: never
}

// Restore is what becomes of a counter that is known to have held known, at the
// store's time now: both numbers are the greater, and it lives as long as the
// one that lives longer. One whose time is over is not made anew, and of nothing
// nothing is made. Where it does not differ from have, nothing is to be done.
func Restore(have Saved, there bool, known Saved, now time.Time) (Saved, bool) {
	switch {
	case there:
		have.Consumed, have.Refunded = max(have.Consumed, known.Consumed), max(have.Refunded, known.Refunded)
		if !have.Expiry.IsZero() && known.Expiry.After(have.Expiry) {
			have.Expiry = known.Expiry
		}
		return have, true
	case known.Totals == Totals{}, !known.Expiry.IsZero() && !known.Expiry.After(now):
		return Saved{}, false
	default:
		return known, true
	}
}
