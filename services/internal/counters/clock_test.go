package counters_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
)

// TestClock guarantees that the estimate of the store's time is as good as the
// quickest recent answer, and follows a clock that was set.
func TestClock(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var c counters.Clock
	// answer takes in a reply after the round trip, half way through which the
	// store's clock was ahead of ours.
	answer := func(ahead, roundTrip time.Duration) {
		c.Learn(now.Add(roundTrip/2+ahead), now, now.Add(roundTrip))
	}
	for _, step := range []struct {
		name             string
		later            time.Duration
		ahead, roundTrip time.Duration
		want             time.Duration
	}{
		{"the first answer", 0, 300 * time.Millisecond, 10 * time.Millisecond, 300 * time.Millisecond},
		{"a quicker one is sharper", time.Millisecond, 303 * time.Millisecond, time.Millisecond, 303 * time.Millisecond},
		{"a slower one is not", time.Millisecond, 290 * time.Millisecond, 30 * time.Millisecond, 303 * time.Millisecond},
		{"until the sharp one is old", time.Minute, 290 * time.Millisecond, 30 * time.Millisecond, 290 * time.Millisecond},
		{"a clock that was set is believed at once", time.Millisecond, -time.Hour, 90 * time.Millisecond, -time.Hour},
	} {
		now = now.Add(step.later)
		answer(step.ahead, step.roundTrip)
		if got := c.Offset(); got != step.want {
			t.Errorf("%s: %v ahead, want %v", step.name, got, step.want)
		}
	}
}
