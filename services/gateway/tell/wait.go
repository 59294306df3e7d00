package tell

import (
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// Queued reports whether a decision says how long its request waits: one that
// passes and that a leaky bucket had a say in.
func Queued(d *decide.Decision) bool {
	if d.Outcome != decide.Allow {
		return false
	}
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Algorithm == rule.LeakyBucket && l.Mode == rule.Enforce {
			return true
		}
	}
	return d.Delay > 0
}

// Endless reports whether no time brings units back: a prepaid wallet waits for
// a top-up.
func Endless(l *decide.Limit) bool { return l.Kind == rule.Wallet && l.PeriodEnd.IsZero() }

// Retry is the wait of a refusal in whole seconds, at least 1.
func Retry(d *decide.Decision) int64 { return max(1, Seconds(d.RetryAfter)) }

// Seconds is a wait in whole seconds, rounded up.
func Seconds(d time.Duration) int64 { return whole(d, time.Second) }

// Milliseconds is a wait in whole ones, rounded up.
func Milliseconds(d time.Duration) int64 { return whole(d, time.Millisecond) }

func whole(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}
