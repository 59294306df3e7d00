package counters_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/counters"
)

// TestBreaker guarantees when callers are spared: after several misses in a
// row and no fewer, but for one probe a while, until the store replies.
func TestBreaker(t *testing.T) {
	t.Parallel()
	var b counters.Breaker
	now := time.Unix(1_800_000_000, 0)
	miss := func() bool { return b.Miss(now, now) }

	for round := range 3 {
		for i := range counters.BreakerMisses - 1 {
			if miss() || !b.Allow(now) {
				t.Fatalf("round %d: open after %d misses", round, i+1)
			}
		}
		if round < 2 && b.Hit() {
			t.Fatal("a closed breaker says it was open")
		}
	}
	if !miss() || b.Allow(now) {
		t.Fatalf("closed after %d misses", counters.BreakerMisses)
	}

	wait := counters.BreakerMinWait
	for range 6 {
		if b.Allow(now.Add(wait - time.Nanosecond)) {
			t.Errorf("a probe before %v", wait)
		}
		now = now.Add(wait)
		if !b.Allow(now) || b.Allow(now) {
			t.Errorf("after %v: want one probe and no more", wait)
		}
		if miss() {
			t.Error("an open breaker opened")
		}
		wait = min(2*wait, counters.BreakerMaxWait)
	}
	if b.Miss(now.Add(-time.Hour), now); b.Allow(now.Add(wait-time.Nanosecond)) || !b.Allow(now.Add(wait)) {
		t.Error("a call from before the breaker opened moved the probe")
	}
	if !b.Hit() || !b.Allow(now) || miss() {
		t.Error("a reply did not close the breaker")
	}
}

// TestBreakerOutlivesItsProbe guarantees that a probe whose caller never came
// back does not keep the breaker open for good.
func TestBreakerOutlivesItsProbe(t *testing.T) {
	t.Parallel()
	var b counters.Breaker
	now := time.Unix(1_800_000_000, 0)
	for range counters.BreakerMisses {
		b.Miss(now, now)
	}
	for range 3 {
		now = now.Add(counters.BreakerMinWait)
		if !b.Allow(now) {
			t.Fatal("no further probe")
		}
	}
}
