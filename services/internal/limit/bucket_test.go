package limit_test

import (
	"errors"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// TestBucket guarantees that a subject never spends more than its burst at
// once, earns units back at its rate and no faster, and is told exactly how
// long to wait.
func TestBucket(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	// 10 units a second, 3 at once: one unit costs 100 ms.
	for _, tt := range []struct {
		name      string
		spent     int64         // units, at t0
		later     time.Duration // when the cost is asked
		cost      int64
		passed    bool
		remaining int64
		retry     time.Duration
		reset     time.Duration
	}{
		{"a fresh subject may spend its whole burst", 0, 0, 3, true, 0, 0, 100 * ms},
		{"a fresh subject may never spend more", 0, 0, 4, false, 3, limit.Never, 0},
		{"a cost of zero asks and spends nothing", 2, 0, 0, true, 1, 0, 100 * ms},
		{"a cost of zero passes a spent subject", 3, 0, 0, true, 0, 0, 100 * ms},
		{"the last unit is sold", 2, 0, 1, true, 0, 0, 100 * ms},
		{"a spent subject waits for one unit", 3, 0, 1, false, 0, 100 * ms, 100 * ms},
		{"a spent subject waits for all units", 3, 0, 3, false, 0, 300 * ms, 100 * ms},
		{"parts of a unit are earned and not shown", 3, 150 * ms, 2, false, 1, 50 * ms, 50 * ms},
		{"one microsecond early is too early", 3, 100*ms - time.Microsecond, 1, false, 0, time.Microsecond, time.Microsecond},
		{"in time is in time", 3, 100 * ms, 1, true, 0, 0, 100 * ms},
		{"idle time beyond the burst earns nothing", 3, time.Hour, 3, true, 0, 0, 100 * ms},
		{"a full subject has nothing to wait for", 3, time.Hour, 0, true, 3, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			if tt.spent > 0 && !s.ask(t0, gcra("acme", 10, time.Second, 3, tt.spent)).Allowed {
				t.Fatal("cannot spend")
			}
			a := s.ask(t0.Add(tt.later), gcra("acme", 10, time.Second, 3, tt.cost))
			if want := (limit.Result{Passed: tt.passed, Remaining: tt.remaining, RetryAfter: tt.retry, Reset: tt.reset}); a.Results[0] != want {
				t.Errorf("got  %+v\nwant %+v", a.Results[0], want)
			}
			if a.Charged != (tt.passed && tt.cost > 0) {
				t.Errorf("charged = %v", a.Charged)
			}
		})
	}
}

// TestFC09SteadyHitsLoseNoFractions guarantees that a bucket keeps leaking
// while it is used, and stores no more than its capacity while it is not.
func TestFC09SteadyHitsLoseNoFractions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, want := range []int64{9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2} {
		a := s.ask(t0.Add(time.Duration(i)*time.Second), gcra("acme", 10, 30*time.Second, 10, 1))
		if !a.Allowed || a.Results[0].Remaining != want {
			t.Errorf("t = %d s: allowed %v, remaining %d, want %d", i, a.Allowed, a.Results[0].Remaining, want)
		}
	}
	allowed := 0
	for range 25 {
		if s.ask(t0.Add(86_410*time.Second), gcra("acme", 10, 30*time.Second, 10, 1)).Allowed {
			allowed++
		}
	}
	if allowed != 10 {
		t.Errorf("after a day's pause %d of 25 were allowed, want 10", allowed)
	}
}

// TestFC11FullBurstFits guarantees that exactly the burst fits after the
// stated wait, that more never does, and that a limit of 0 denies everything.
func TestFC11FullBurstFits(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ask := func(after time.Duration, cost int64) limit.Result {
		return s.ask(t0.Add(after), gcra("acme", 10, 10*time.Second, 10, cost)).Results[0]
	}
	if r := ask(0, 10); !r.Passed {
		t.Fatalf("emptying: %+v", r)
	}
	if r := ask(0, 10); r.Passed || r.RetryAfter != 10*time.Second {
		t.Errorf("cost 10: %+v, want a wait of 10s", r)
	}
	if r := ask(0, 11); r.Passed || r.RetryAfter != limit.Never {
		t.Errorf("cost 11: %+v, want never", r)
	}
	if r := ask(10*time.Second, 10); !r.Passed || r.Remaining != 0 {
		t.Errorf("cost 10 after 10 s: %+v, want passed with 0 remaining", r)
	}
	for range 100 {
		r := s.ask(t0, gcra("zero", 0, time.Minute, 10, 1)).Results[0]
		if r.Passed || r.Remaining != 0 || r.RetryAfter != limit.Never {
			t.Fatalf("limit 0: %+v", r)
		}
	}
}

// TestFC12ElapsedTimeIsNeverNegative guarantees that a store whose clock goes
// back pays nothing back twice.
func TestFC12ElapsedTimeIsNeverNegative(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-10 * time.Second, 0} {
		s := newStore(t)
		allowed := func(now time.Time, n int) (count int) {
			for range n {
				if s.ask(now, gcra("acme", 2, time.Second, 4, 1)).Allowed {
					count++
				}
			}
			return count
		}
		if n := allowed(t0, 4) + allowed(t0.Add(skew), 1) + allowed(t0, 4); n != 4 {
			t.Errorf("skew %v: %d allowed at one instant, want 4", skew, n)
		}
		if n := allowed(t0.Add(time.Second), 3); n != 2 {
			t.Errorf("skew %v: %d allowed a second later, want 2", skew, n)
		}
		s = newStore(t)
		if n := allowed(t0, 3) + allowed(t0.Add(skew), 2) + allowed(t0, 4); n != 4 {
			t.Errorf("skew %v: %d allowed where one is charged by the earlier clock, want 4", skew, n)
		}
	}
}

// TestWaitsBeyondAnyClock guarantees that a wait of more than 142 years is
// never, and that one of less is stated.
func TestWaitsBeyondAnyClock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ask := func(cost int64) limit.Result { return s.ask(t0, gcra("acme", 1, rule.MaxWindow, 1e9, cost)).Results[0] }
	if r := ask(1e9); !r.Passed {
		t.Fatalf("%+v", r)
	}
	for _, tt := range []struct {
		cost int64
		want time.Duration
	}{{1, rule.MaxWindow}, {142, 142 * rule.MaxWindow}, {143, limit.Never}, {1e9, limit.Never}} {
		if r := ask(tt.cost); r.Passed || tt.want == limit.Never && r.RetryAfter != tt.want || (r.RetryAfter-tt.want).Abs() > 10*time.Second {
			t.Errorf("cost %d: %+v, want a wait of %v", tt.cost, r, tt.want)
		}
	}
}

// TestCarriedDebtIsNeverLess guarantees that a change of numbers forgives
// nothing that fits the new capacity: neither by another unit of account nor
// by a coarser tick.
func TestCarriedDebtIsNeverLess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		us := magnitude(t, "window", rule.MaxWindow.Microseconds())
		window := time.Duration(us) * time.Microsecond
		state := limit.NewState()
		ask := func(max, burst, cost int64) limit.Value {
			c := gcra("acme", max, window, burst, cost)
			if _, err := limit.Decide(state, t0, limit.Decision{Charges: []limit.Charge{c}}); err != nil {
				t.Fatal(err)
			}
			return state.Counters[c.Counter.Canonical()]
		}
		burst := magnitude(t, "burst", 1e6)
		old := ask(magnitude(t, "limit", us), burst, magnitude(t, "cost", burst))
		old.Debt -= rapid.Int64Range(0, old.Debt-1).Draw(t, "paid back") // parts of units
		for id := range state.Counters {
			state.Counters[id] = old
		}
		faster := magnitude(t, "next limit", us)
		next := ask(faster, magnitude(t, "more burst", 1e9-burst-1)+burst, 1)
		owed, now := big.NewRat(old.Debt, old.Unit), big.NewRat(next.Debt, next.Unit)
		owed.Add(owed, big.NewRat(1, 1))
		least := big.NewRat(1, 1000) // of a credit, for what doubles round down
		least.Mul(least, big.NewRat(1, next.Unit)).Add(least, now)
		if next.At > old.At { // a coarse tick had begun before now: the rest of it pays back, to one part in a million
			earned := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(next.At-old.At), big.NewInt(faster)), big.NewInt(us))
			least.Add(least, earned.Mul(earned, big.NewRat(1_000_001, 1_000_000)))
		}
		if least.Cmp(owed) < 0 || next.At < old.At {
			t.Fatalf("%+v and one unit became %+v", old, next)
		}
		if now.Sub(now, owed).Cmp(big.NewRat(2, next.Unit)) > 0 {
			t.Fatalf("%+v and one unit became %+v: more than rounding", old, next)
		}
	})
}

// TestChangedBucketKeepsWhatWasSpent guarantees that new numbers hold at once,
// for what was spent under the old ones.
func TestChangedBucketKeepsWhatWasSpent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		limit, burst int64
		remaining    int64
		retry        time.Duration // for all of the burst
	}{
		{"unchanged", 60, 10, 3, 7 * time.Second},
		{"half the rate", 30, 10, 3, 14 * time.Second},
		{"another rate with another unit of account", 7, 10, 3, 60 * time.Second},
		{"a greater burst", 60, 100, 93, 7 * time.Second},
		{"a smaller burst is full, not more than full", 60, 5, 0, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.ask(t0, gcra("acme", 60, time.Minute, 10, 7))
			r := s.ask(t0, gcra("acme", tt.limit, time.Minute, tt.burst, tt.burst)).Results[0]
			if r.Passed || r.Remaining != tt.remaining || r.RetryAfter != tt.retry {
				t.Errorf("%+v, want remaining %d, retry after %v", r, tt.remaining, tt.retry)
			}
		})
	}
	t.Run("a limit of 0 for a while forgets nothing", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.ask(t0, gcra("acme", 60, time.Minute, 10, 7))
		s.ask(t0, soft(gcra("acme", 0, time.Minute, 10, 1)))
		if r := s.ask(t0, gcra("acme", 60, time.Minute, 10, 0)).Results[0]; r.Remaining != 3 {
			t.Errorf("%+v, want 3 remaining", r)
		}
	})
}

// TestBoundsOfBuckets guarantees that what cannot be counted is refused, and
// that the extremes of what is promised are not.
func TestBoundsOfBuckets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		limit  int64
		window time.Duration
		burst  int64
		valid  bool
	}{
		{"a million a second", 1_000_000, time.Second, 1_000_000_000, true},
		{"a million a second, over a year", 1_000_000 * 366 * 86400, rule.MaxWindow, 1_000_000_000, true},
		{"one a year, a billion at once", 1, rule.MaxWindow, 1_000_000_000, true},
		{"one a microsecond", 1, time.Microsecond, 1, true},
		{"nothing", 0, time.Hour, 0, true},
		{"more than a million a second", 1_000_001, time.Second, 1, false},
		{"two a microsecond", 2, time.Microsecond, 1, false},
		{"no window", 1, 0, 1, false},
		{"half a microsecond", 1, 1500 * time.Nanosecond, 1, false},
		{"more than 366 days", 1, rule.MaxWindow + time.Microsecond, 1, false},
		{"a burst above a billion", 1, time.Second, 1_000_000_001, false},
		{"a negative limit", -1, time.Second, 1, false},
		{"a negative burst", 1, time.Second, -1, false},
	} {
		if _, err := limit.NewBucket(tt.limit, tt.window, tt.burst); (err == nil) != tt.valid || err != nil && !errors.Is(err, limit.ErrBounds) {
			t.Errorf("%s: NewBucket = %v, valid %v", tt.name, err, tt.valid)
		}
	}
}

// rates draws any rate that is promised.
func rates(t *rapid.T) (max int64, window time.Duration, burst int64) {
	us := magnitude(t, "window", rule.MaxWindow.Microseconds())
	max = magnitude(t, "limit", us)
	burst = magnitude(t, "burst", rule.MaxCapacity)
	return max, time.Duration(us) * time.Microsecond, burst
}

// magnitude draws from 1 to most, every order of magnitude alike, and round
// numbers often.
func magnitude(t *rapid.T, name string, most int64) int64 {
	top := int64(1)
	for range rapid.IntRange(0, 62).Draw(t, name+" bits") {
		top *= 2
		if top >= most {
			top = most
			break
		}
	}
	n := rapid.Int64Range(1, top).Draw(t, name)
	if rapid.Bool().Draw(t, name+" round") {
		for p := int64(1_000_000_000_000); p > 1; p /= 10 {
			if n >= p {
				return n / p * p
			}
		}
	}
	return n
}

// TestBucketsAreExact guarantees that every rate within the bounds is kept to
// one part in a million, exactly wherever whole numbers below 2^53 allow it,
// and that nothing the arithmetic adds up passes 2^53.
func TestBucketsAreExact(t *testing.T) {
	t.Parallel()
	const exact = 1 << 53
	check := func(t interface{ Fatalf(string, ...any) }, max int64, window time.Duration, burst int64) {
		b, err := limit.NewBucket(max, window, burst)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if b.Capacity != burst || b.Unit < 1 || b.Refill < 1 || b.Tick < 1 {
			t.Fatalf("%d per %v, burst %d: %+v", max, window, burst, b)
		}
		if b.Unit > exact/(2*burst) || b.Refill > exact {
			t.Fatalf("%+v counts past 2^53", b)
		}
		us := window.Microseconds()
		asked := big.NewRat(max, us)
		kept := new(big.Rat).SetFrac(big.NewInt(b.Refill), new(big.Int).Mul(big.NewInt(b.Unit), big.NewInt(b.Tick)))
		wrong := new(big.Rat).Sub(new(big.Rat).Quo(kept, asked), big.NewRat(1, 1))
		if wrong.Abs(wrong).Cmp(big.NewRat(1, 1_000_000)) > 0 {
			t.Fatalf("%d per %v, burst %d: %+v is wrong by %s", max, window, burst, b, wrong.FloatString(12))
		}
		g := new(big.Int).GCD(nil, nil, big.NewInt(max), big.NewInt(us)).Int64()
		if us/g <= exact/(2*burst) && (wrong.Sign() != 0 || b.Tick != 1) {
			t.Fatalf("%d per %v, burst %d could be exact: %+v", max, window, burst, b)
		}
		// A tick is a negligible part of the time that one unit takes.
		if b.Tick > 1 && big.NewRat(b.Tick, 1).Cmp(new(big.Rat).Quo(big.NewRat(1, 1_000_000), asked)) > 0 {
			t.Fatalf("%d per %v, burst %d: tick of %d µs", max, window, burst, b.Tick)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		max, window, burst := rates(t)
		check(t, max, window, burst)
	})
	for _, max := range []int64{1, 3, 7, 10, 60, 999_983, 1_000_000, 86_399_999_999} {
		for _, window := range []time.Duration{time.Microsecond, time.Second, 59_999_999 * time.Microsecond, 24 * time.Hour, 31*24*time.Hour - time.Microsecond, rule.MaxWindow} {
			for _, burst := range []int64{1, 10, 1_000_003, 999_999_937, rule.MaxCapacity} {
				if max <= window.Microseconds() {
					check(t, max, window, burst)
				}
			}
		}
	}
}

// TestNeverOversellsNorUndersells guarantees the promise that a customer pays
// for. However a buyer times its requests, units sold never exceed burst +
// rate × elapsed; who never idles is only refused what would exceed it; and
// RetryAfter is exact: waiting it serves, one microsecond less does not.
func TestNeverOversellsNorUndersells(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		max, window, burst := rates(t)
		b, err := limit.NewBucket(max, window, burst)
		if err != nil {
			t.Fatal(err)
		}
		state, now, sold := limit.NewState(), t0, int64(0)
		ask := func(now time.Time, cost int64) limit.Answer {
			a, err := limit.Decide(state, now, limit.Decision{Charges: []limit.Charge{gcra("acme", max, window, burst, cost)}})
			if err != nil {
				t.Fatal(err)
			}
			if a.Charged {
				sold += cost
			}
			return a
		}
		// spare is what burst + rate × elapsed leaves over units, in credits.
		spare := func(units int64) *big.Int {
			ticks := now.UnixMicro()/b.Tick - t0.UnixMicro()/b.Tick
			s := new(big.Int).Mul(big.NewInt(burst-units), big.NewInt(b.Unit))
			return s.Add(s, new(big.Int).Mul(big.NewInt(b.Refill), big.NewInt(ticks)))
		}
		idled := false
		for step := range rapid.Int64Range(1, 40).Draw(t, "requests") {
			cost := min(burst, magnitude(t, "cost", burst))
			if a := ask(now, cost); !a.Allowed {
				rounding := big.NewInt(b.Refill * (step + 1)) // a tick pays back at once what it can
				if !idled && spare(sold+cost).Cmp(rounding) >= 0 {
					t.Fatalf("%d per %v, burst %d: refused %d after %d in %v", max, window, burst, cost, sold, now.Sub(t0))
				}
				wait := a.Results[0].RetryAfter
				if wait > 50*366*24*time.Hour {
					return
				}
				now = now.Add(wait)
				if ask(now.Add(-time.Microsecond), cost).Allowed {
					t.Fatalf("served cost %d before its RetryAfter of %v", cost, wait)
				}
				if !ask(now, cost).Allowed {
					t.Fatalf("refused cost %d after its RetryAfter of %v", cost, wait)
				}
			} else if idle := rapid.Int64Range(0, 3).Draw(t, "idle"); idle > 0 {
				idled = true
				now = now.Add((time.Duration(idle) * (window / time.Duration(max))).Truncate(time.Microsecond))
				now = now.Add(time.Duration(rapid.Int64Range(0, 5).Draw(t, "idle us")) * time.Microsecond)
				if r := ask(now, 0).Results[0]; r.Remaining > burst {
					t.Fatalf("%d of %d remain", r.Remaining, burst)
				}
			}
			if spare(sold).Sign() < 0 {
				t.Fatalf("%d per %v, burst %d: sold %d in %v", max, window, burst, sold, now.Sub(t0))
			}
		}
	})
}
