package limit_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// forEach runs a test of every kind.
func forEach(t *testing.T, test func(t *testing.T, k kind)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// allowedOf asks n times at once and counts.
func (s store) allowedOf(n int, now time.Time, charge limit.Charge) (count int) {
	s.t.Helper()
	for range n {
		if s.ask(now, charge).Allowed {
			count++
		}
	}
	return count
}

// TestFC06RefusedAttemptsDoNotLockOut guarantees that who is refused and tries
// on is let in as soon as who waits, by every algorithm: 10 in 600 s, and a
// request every 30 s.
func TestFC06RefusedAttemptsDoNotLockOut(t *testing.T) {
	t.Parallel()
	every := func(from, to, step int) (at []int) {
		for i := from; i <= to; i += step {
			at = append(at, i)
		}
		return at
	}
	twice := slices.Concat(every(0, 270, 30), every(600, 870, 30))
	bucket := slices.Concat(every(0, 540, 30), every(600, 1140, 60)) // half a unit comes back from one to the next
	want := map[string][]int{
		"sliding_window_log": twice,
		"fixed_window":       twice,
		"quota":              twice,
		"renewable wallet":   twice,
		"prepaid wallet":     every(0, 270, 30),
		// One of the first ten is forgotten each 60 s.
		"sliding_window_counter": slices.Concat(every(0, 270, 30), every(660, 1140, 60)),
		"token_bucket":           bucket,
		"leaky_bucket":           bucket,
		"gcra":                   bucket,
		// No more than one may be ahead, for waits are up to a minute.
		"leaky_bucket as a queue": slices.Concat([]int{0, 30}, every(60, 1140, 60)),
	}
	forEach(t, func(t *testing.T, k kind) {
		s, got, logged := newStore(t), []int(nil), 0
		for _, at := range every(0, 1170, 30) {
			now := noon.Add(time.Duration(at) * time.Second)
			c := k.charge(now, 10, 600*time.Second, 1)
			if s.ask(now, c).Allowed {
				got = append(got, at)
			}
			logged = max(logged, len(s.state.Counters[c.Counter.Canonical()].Log))
		}
		if !slices.Equal(got, want[k.name]) {
			t.Errorf("allowed at %v\nwant       %v", got, want[k.name])
		}
		if logged > 10 {
			t.Errorf("%d entries in the log, want at most 10", logged)
		}
	})
}

// TestFC07RequestsInOneInstantAllCount guarantees that requests of one instant
// do not collapse into one, by every algorithm.
func TestFC07RequestsInOneInstantAllCount(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		s := newStore(t)
		one := k.charge(noon, 3, time.Minute, 1)
		if n := s.allowedOf(10, noon, one); n != 3 {
			t.Errorf("%d of 10 allowed, want 3", n)
		}
		if n := len(s.state.Counters[one.Counter.Canonical()].Log); one.Algorithm == rule.SlidingWindowLog && n != 3 {
			t.Errorf("%d entries in the log, want 3", n)
		}
		s = newStore(t)
		if n := s.allowedOf(2, noon, k.charge(noon, 3, time.Minute, 3)); n != 1 {
			t.Errorf("%d of 2 of cost 3 allowed, want 1", n)
		}
	})
}

// TestFC09IdleTimeStoresNoMoreThanTheLimit guarantees FC-09's second half by
// every algorithm, and its first by all that leak.
func TestFC09IdleTimeStoresNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	steady := []int64{9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2}
	forEach(t, func(t *testing.T, k kind) {
		if !k.renews {
			return
		}
		s := newStore(t)
		for i, want := range steady {
			now := noon.Add(time.Duration(i) * time.Second)
			c := k.charge(now, 10, 30*time.Second, 1)
			if r := s.ask(now, c).Results[0]; c.Algorithm.Bucket() && (!r.Passed || r.Remaining != want) {
				t.Errorf("t = %d s: %+v, want %d remaining", i, r, want)
			}
		}
		later := noon.Add(86_410 * time.Second)
		if n := s.allowedOf(25, later, k.charge(later, 10, 30*time.Second, 1)); n != 10 {
			t.Errorf("after a day's pause %d of 25 were allowed, want 10", n)
		}
	})
}

// TestFC10GivingBackWhenNothingIsLeft guarantees that units given back to an
// empty budget can be spent, once, by every algorithm.
func TestFC10GivingBackWhenNothingIsLeft(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		s := newStore(t)
		all := k.charge(noon, 10, 10*time.Second, 10)
		if !s.ask(noon, all).Allowed {
			t.Fatal("cannot spend")
		}
		remaining := func() int64 { return s.ask(noon, k.charge(noon, 10, 10*time.Second, 0)).Results[0].Remaining }
		for _, tt := range []struct {
			id        string
			units     int64
			effect    limit.Effect
			remaining int64
		}{
			{"r1", 1, limit.Corrected, 1},
			{"r1", 1, limit.Repeated, 1},
			{"r2", 50, limit.Exceeds, 1},
		} {
			a := s.correct(noon, refundOf(all, noon, tt.id, tt.units))
			if a.Effect != tt.effect || remaining() != tt.remaining {
				t.Errorf("refund %s of %d: %+v with %d remaining, want %s with %d", tt.id, tt.units, a, remaining(), tt.effect, tt.remaining)
			}
		}
		one := k.charge(noon, 10, 10*time.Second, 1)
		if first, second := s.ask(noon, one), s.ask(noon, one); !first.Allowed || first.Results[0].Remaining != 0 || second.Allowed {
			t.Errorf("%+v, %+v, want one allowed", first, second)
		}
		if a := s.correct(noon, refundOf(all, noon, "r3", 50)); a.Effect != limit.Exceeds || remaining() != 0 {
			t.Errorf("refund of 50: %+v with %d remaining", a, remaining())
		}
		if _, err := limit.Decide(s.state, noon, limit.Decision{Charges: []limit.Charge{k.charge(noon, 10, 10*time.Second, -1)}}); !errors.Is(err, limit.ErrBounds) || remaining() != 0 {
			t.Errorf("a cost of -1: %v with %d remaining, want ErrBounds and 0", err, remaining())
		}
	})
}

// TestFC11ExactlyTheLimitFits guarantees that a cost of the whole limit passes
// after its stated wait and not before, that one more never does, and that a
// limit of 0 denies. A wallet passes any cost and is told of in W1.
func TestFC11ExactlyTheLimitFits(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		s := newStore(t)
		ask := func(after time.Duration, cost int64) limit.Result {
			now := noon.Add(after)
			return s.ask(now, k.charge(now, 10, 10*time.Second, cost)).Results[0]
		}
		if r := ask(0, 10); !r.Passed || r.Remaining != 0 {
			t.Fatalf("emptying: %+v", r)
		}
		wait := 10 * time.Second
		switch k.name {
		case "sliding_window_counter":
			wait *= 2 // this window counts in the next
		case "prepaid wallet":
			wait = limit.Never
		}
		if r := ask(0, 10); r.Passed || r.RetryAfter != wait {
			t.Errorf("cost 10: %+v, want a wait of %v", r, wait)
		}
		if r := ask(0, 11); r.Passed || !k.wallet && r.RetryAfter != limit.Never {
			t.Errorf("cost 11: %+v, want never", r)
		}
		if wait != limit.Never {
			if r := ask(wait-us, 10); r.Passed || r.RetryAfter != us {
				t.Errorf("cost 10 a microsecond early: %+v, want refused", r)
			}
			if r := ask(wait, 10); !r.Passed || r.Remaining != 0 {
				t.Errorf("cost 10 in time: %+v, want passed with 0 remaining", r)
			}
		}
		s = newStore(t)
		for range 100 {
			r := s.ask(noon, k.charge(noon, 0, time.Minute, 1)).Results[0]
			if r.Passed || r.Remaining != 0 || r.RetryAfter != limit.Never {
				t.Fatalf("limit 0: %+v", r)
			}
		}
	})
}

// TestFC12ClocksThatDisagreeSellNothingTwice guarantees FC-12 by every
// algorithm: of a limit of 4 no more than 4 are sold at one instant, whichever
// clock is asked in between, and what a clock that is ahead has sold is sold.
func TestFC12ClocksThatDisagreeSellNothingTwice(t *testing.T) {
	t.Parallel()
	start := noon.Add(time.Minute)
	forEach(t, func(t *testing.T, k kind) {
		charge := k.charge(start, 4, 2*time.Second, 1)
		totals := !k.renews || charge.Algorithm == rule.CalendarQuota || k.wallet
		if totals && k.renews {
			charge.Span = month // one that both clocks are in
			charge.Counter.Start = month.Start
		}
		ask := func(s store, after time.Duration, n int) int {
			return s.allowedOf(n, start.Add(after), charge)
		}
		s := newStore(t)
		if n := ask(s, 0, 4) + ask(s, -10*time.Second, 1) + ask(s, 0, 4); n != 4 {
			t.Errorf("with a clock behind %d allowed at one instant, want 4", n)
		}
		later := 0
		if charge.Algorithm.Bucket() {
			later = 2
		}
		if n := ask(s, time.Second, 3); n != later {
			t.Errorf("%d allowed a second later, want %d", n, later)
		}

		s, later = newStore(t), 4
		if totals {
			later = 0
		}
		if n := ask(s, 0, 5); n != 4 {
			t.Errorf("%d allowed, want 4", n)
		}
		if n := ask(s, 10*time.Second, 5); n != later {
			t.Errorf("%d allowed by the clock that is 10 s ahead, want %d", n, later)
		}
		if n := ask(s, 0, 5) + ask(s, 10*time.Second, 5); n != 0 {
			t.Errorf("%d allowed once it is back, want 0", n)
		}
	})
}

// decided makes the correction of a decision of that charge.
func decided(c limit.Charge, at time.Time) limit.Correction {
	c.Floor = limit.Totals{}
	return limit.Correction{Tenant: "acme", DecisionID: [16]byte{1}, At: at, Cost: c.Cost, Items: []limit.Item{{Charge: c}}}
}

func refundOf(c limit.Charge, at time.Time, id string, units int64) limit.Correction {
	r := decided(c, at)
	r.Refund, r.Units = id, units
	return r
}

func (s store) correct(now time.Time, c limit.Correction) limit.CorrectionAnswer {
	s.t.Helper()
	a, err := limit.Correct(s.state, now, c)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// TestR1RefundsOnce guarantees R1: a refund that is asked for twice is made
// once, and consumption itself never falls.
func TestR1RefundsOnce(t *testing.T) {
	t.Parallel()
	for name, charge := range map[string]func(cost int64) limit.Charge{
		"quota":            func(cost int64) limit.Charge { return quota("acme", 100, cost) },
		"renewable wallet": func(cost int64) limit.Charge { return renewable(100, month, cost) },
		"prepaid wallet":   func(cost int64) limit.Charge { return prepaid(100, cost) },
	} {
		s := newStore(t)
		s.ask(noon, charge(95))
		call := charge(5)
		if used := s.ask(noon, call).Results[0].Consumed; used != 100 {
			t.Fatalf("%s: used %d, want 100", name, used)
		}
		for i, effect := range []limit.Effect{limit.Corrected, limit.Repeated} {
			a := s.correct(noon.Add(time.Second), refundOf(call, noon, "upstream-502", 0))
			if a.Effect != effect || a.Units != 5 || a.RefundedTotal != 5 || a.Left != 0 || s.used(call) != 95 {
				t.Errorf("%s, refund %d: %+v, used %d, want %s of 5 and 95", name, i, a, s.used(call), effect)
			}
		}
		if r := s.ask(noon, charge(0)).Results[0]; r.Consumed != 100 || r.Refunded != 5 || r.Remaining != 5 {
			t.Errorf("%s: %+v, want 100 consumed and 5 refunded", name, r)
		}
	}
}

// TestR2RefundsGoToTheirPeriod guarantees R2: a refund that comes after the
// period has ended goes to the period that was charged, and not to the running
// one.
func TestR2RefundsGoToTheirPeriod(t *testing.T) {
	t.Parallel()
	newYork, err := period.Zone("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	spec := period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar, Zone: newYork}
	last := time.Date(2026, 4, 1, 3, 59, 59, 0, time.UTC) // of P1
	for name, charge := range map[string]func(span period.Span, cost int64) limit.Charge{
		"quota": func(span period.Span, cost int64) limit.Charge {
			c := quota("acme", 1000, cost)
			c.Counter.Start, c.Span = span.Start, span
			return c
		},
		"renewable wallet": func(span period.Span, cost int64) limit.Charge { return renewable(1000, span, cost) },
	} {
		in := func(at time.Time, cost int64) limit.Charge {
			span, err := spec.At(at)
			if err != nil {
				t.Fatal(err)
			}
			return charge(span, cost)
		}
		s, later := newStore(t), time.Date(2026, 4, 1, 4, 0, 3, 0, time.UTC)
		call := in(last, 7)
		s.ask(last, in(last, 493))
		s.ask(last, call)
		s.ask(later, in(later, 20))
		a := s.correct(later, refundOf(call, last, "r1", 0))
		if a.Effect != limit.Corrected || len(a.Items) != 1 || a.Items[0] != (limit.Moved{Units: -7, Totals: limit.Totals{Consumed: 500, Refunded: 7}}) {
			t.Errorf("%s: %+v, want 7 of 500 given back", name, a)
		}
		if p1, p2 := s.used(call), s.used(in(later, 0)); p1 != 493 || p2 != 20 {
			t.Errorf("%s: P1 %d, P2 %d, want 493, 20", name, p1, p2)
		}
	}
}

// TestSettling guarantees that a decision is settled once, for more or for
// less, by every algorithm that has room for it.
func TestSettling(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		for _, tt := range []struct {
			name        string
			to          int64
			units, left int64
			remaining   int64
		}{
			{"for less", 2, -4, 2, 8},
			{"for more", 9, 3, 9, 1},
			{"for nothing", 0, -6, 0, 10},
			{"for as much", 6, 0, 6, 4},
		} {
			s := newStore(t)
			call := k.charge(noon, 10, 10*time.Second, 6)
			s.ask(noon, call)
			settle := decided(call, noon)
			settle.Settle = tt.to
			for _, effect := range []limit.Effect{limit.Corrected, limit.Repeated} {
				a := s.correct(noon, settle)
				if a.Effect != effect || a.Units != tt.units || a.Left != tt.left {
					t.Errorf("%s: %+v, want %s of %d with %d left", tt.name, a, effect, tt.units, tt.left)
				}
			}
			settle.Settle++
			if a := s.correct(noon, settle); a.Effect != limit.Settled {
				t.Errorf("%s: at another cost %+v, want refused", tt.name, a)
			}
			if r := s.ask(noon, k.charge(noon, 10, 10*time.Second, 0)).Results[0]; r.Remaining != tt.remaining {
				t.Errorf("%s: %+v, want %d remaining", tt.name, r, tt.remaining)
			}
		}
	})
}

// TestEveryAlgorithmSoftAndInShadow guarantees for every algorithm that a soft
// charge reports and never cuts, that a shadow one neither cuts nor charges
// where it refuses, and that its counter is its own.
func TestEveryAlgorithmSoftAndInShadow(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		ask := func(s store, change func(limit.Charge) limit.Charge, cost int64) limit.Answer {
			return s.ask(noon, change(k.charge(noon, 10, time.Minute, cost)))
		}
		value := func(s store, change func(limit.Charge) limit.Charge) limit.Value {
			return s.state.Counters[change(k.charge(noon, 0, time.Minute, 0)).Counter.Canonical()]
		}
		plain := func(c limit.Charge) limit.Charge { return c }

		s := newStore(t)
		ask(s, plain, 10)
		if a := ask(s, soft, 3); !a.Allowed || a.Results[0].Passed || !a.Charged || a.Results[0].Remaining != 0 {
			t.Errorf("soft, full: %+v, want allowed, refused and charged", a)
		}
		if a := ask(s, plain, 1); a.Allowed {
			t.Errorf("enforced after it: %+v, want refused", a)
		}
		if a := ask(s, shadow, 10); !a.Allowed || !a.Results[0].Passed || !a.Charged {
			t.Errorf("shadow, untouched: %+v, want passed and charged", a)
		}
		before := value(s, shadow)
		if a := ask(s, shadow, 1); !a.Allowed || a.Results[0].Passed || a.Charged || !cmp.Equal(before, value(s, shadow)) {
			t.Errorf("shadow, full: %+v, want allowed, refused and not charged", a)
		}
	})
}

// TestCountersGiveBackWhatTheyCount guarantees that a decision of 1 beside others
// of 5, settled higher and then refunded in whole, leaves the 5: also where the
// counter had no room for all of it, whatever is refunded first, and whenever
// it was settled while it counts.
func TestCountersGiveBackWhatTheyCount(t *testing.T) {
	t.Parallel()
	for name, charge := range map[string]limit.Charge{
		"fixed window": rate(rule.FixedWindow, 10, time.Hour, 1), "log": rate(rule.SlidingWindowLog, 10, time.Hour, 1),
		"counter": rate(rule.SlidingWindowCounter, 10, time.Hour, 1), "bucket": rate(rule.GCRA, 10, 1000*time.Hour, 1),
		"quota": quota("acme", 10, 1), "wallet": prepaid(10, 1),
	} {
		for _, settled := range []int64{1, 4, 5, 6, 100, rule.Unlimited} {
			for _, first := range []int64{0, 1, 3} { // given back before the rest, 0: nothing
				for _, wait := range []time.Duration{0, time.Minute} {
					s := newStore(t)
					others := charge
					others.Cost = 5
					s.ask(noon, others)
					s.ask(noon.Add(us), charge)
					now := noon.Add(us + wait)
					c := decided(charge, noon.Add(us))
					c.Settle = settled
					s.correct(now, c)
					if first > 0 && first < settled {
						s.correct(now, refundOf(charge, noon.Add(us), "r1", first))
					}
					a := s.correct(now, refundOf(charge, noon.Add(us), "r2", 0))
					peek := charge
					peek.Cost = 0
					r := s.ask(now, peek).Results[0]
					used := 10 - r.Remaining
					if r.Consumed == rule.Unlimited { // and counts no further
						used = r.Consumed - r.Refunded
					}
					if a.Effect != limit.Corrected || a.Left != 0 || used != 5 {
						t.Errorf("%s settled at %d, %d given back first, after %v: %+v and %+v, want 5 used", name, settled, first, wait, a, r)
					}
				}
			}
		}
	}
}

// TestSettledUnderAnotherRate guarantees that a settlement charges what it says
// and nothing else, also where the rate that was charged has been lowered or
// raised since.
func TestSettledUnderAnotherRate(t *testing.T) {
	t.Parallel()
	of := func(limited int64, cost int64) limit.Charge {
		c := rate(rule.GCRA, limited, time.Hour, cost)
		c.Burst = 100
		return c
	}
	for _, tt := range []struct {
		name              string
		then, now         int64 // an hour
		used              int64 // under the new rate
		remaining, settle int64 // 3 s later, before and after 1 unit more is charged
	}{
		{"lowered", 36_000, 10, 97, 0, 0},
		{"lowered, with room", 36_000, 10, 50, 47, 46},
		{"raised", 10, 36_000, 57, 70, 69},
		{"the same", 36_000, 36_000, 57, 70, 69},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var made []limit.Correction
			for i := range 3 {
				s.ask(noon, of(tt.then, 1))
				c := decided(of(tt.then, 1), noon)
				c.DecisionID[1] = byte(i)
				made = append(made, c)
			}
			s.ask(noon, of(tt.now, tt.used))
			later := noon.Add(3 * time.Second)
			left := func() int64 { return s.ask(later, of(tt.now, 0)).Results[0].Remaining }
			if n := left(); n != tt.remaining {
				t.Fatalf("%d remain, want %d", n, tt.remaining)
			}
			made[0].Settle = 2
			if a := s.correct(later, made[0]); a.Units != 1 || left() != tt.settle {
				t.Errorf("%+v and %d remain, want %d", a, left(), tt.settle)
			}
		})
	}
}

// TestFixedCostsInAnyOrder guarantees that a rule of fixed cost gives back when
// nothing is left, whether a refund or a settlement leaves it so.
func TestFixedCostsInAnyOrder(t *testing.T) {
	t.Parallel()
	plain, fixed := quota("acme", 100, 10), quota("acme", 100, 3)
	fixed.Counter.Meter = "fixed"
	for settled, refunded := range map[int64]int64{0: 10, 3: 5, 5: 5} {
		for order := range 2 {
			s := newStore(t)
			s.ask(noon, plain, fixed)
			c := decided(plain, noon)
			c.Items = append(c.Items, limit.Item{Charge: fixed, Fixed: true})
			settle, refund := c, c
			settle.Settle = settled
			refund.Refund, refund.Units = "r", refunded
			if order == 0 {
				refund.Units = min(refunded, settled)
				s.correct(noon, settle)
				if settled > 0 {
					s.correct(noon, refund)
				}
			} else {
				s.correct(noon, refund)
				s.correct(noon, settle)
			}
			for _, charge := range []limit.Charge{plain, fixed} {
				charge.Cost = 0
				if r := s.ask(noon, charge).Results[0]; r.Remaining != 100 {
					t.Errorf("settled at %d and %d refunded, order %d: %s has %+v, want nothing charged", settled, refunded, order, charge.Counter.Meter, r)
				}
			}
		}
	}
}

// TestGivingBackLater guarantees what becomes of units that are given back when
// time has passed, or when the store has forgotten that they were charged.
func TestGivingBackLater(t *testing.T) {
	t.Parallel()
	fixed, log := rate(rule.FixedWindow, 8, 4*time.Second, 6), rate(rule.SlidingWindowLog, 8, 4*time.Second, 6)
	counter, bucket := rate(rule.SlidingWindowCounter, 8, 4*time.Second, 6), rate(rule.GCRA, 8, 4*time.Second, 6)
	for _, tt := range []struct {
		name      string
		charge    limit.Charge // of 6 units, at noon
		forgotten bool
		later     time.Duration // when 4 are given back
		moved     int64
		remaining int64 // of 8, then
	}{
		{"a window that is still open", fixed, false, 3 * time.Second, -4, 6},
		{"a window that is over", fixed, false, 4 * time.Second, 0, 8},
		{"the current window of a counter", counter, false, 3 * time.Second, -4, 6},
		{"the previous one, of which half counts", counter, false, 6 * time.Second, -4, 7},
		{"one that does not count", counter, false, 8 * time.Second, 0, 8},
		{"an entry that counts", log, false, 4*time.Second - us, -4, 6},
		{"an entry that has left", log, false, 4 * time.Second, 0, 8},
		{"a bucket that still owes", bucket, false, time.Second, -4, 8}, // 2 were paid back, 4 given
		{"a bucket that owes nothing any more", bucket, false, 4 * time.Second, -4, 8},
		{"a window that is not known", fixed, true, 0, 0, 8},
		{"a counter that is not known", counter, true, 0, 0, 8},
		{"an entry that is not known", log, true, 0, 0, 8},
		{"a bucket that is not known", bucket, true, 0, 0, 8},
		{"a quota that is not known, where it was consumed then", quota("acme", 8, 6), true, 0, -4, 8},
		{"a wallet that is not known, where it was consumed then", prepaid(8, 6), true, 0, -4, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			if !tt.forgotten {
				s.ask(noon, tt.charge)
			}
			now := noon.Add(tt.later)
			a := s.correct(now, refundOf(tt.charge, noon, "r1", 4))
			peek := tt.charge
			peek.Cost = 0
			if r := s.ask(now, peek).Results[0]; a.Units != 4 || a.Items[0].Units != tt.moved || r.Remaining != tt.remaining {
				t.Errorf("%+v and %d remaining, want %d moved and %d", a, r.Remaining, tt.moved, tt.remaining)
			}
		})
	}
	t.Run("entries of other instants stay", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		for i := range 3 {
			s.ask(noon.Add(time.Duration(i)*us), rate(rule.SlidingWindowLog, 8, 4*time.Second, 2))
		}
		s.correct(noon.Add(time.Second), refundOf(rate(rule.SlidingWindowLog, 8, 4*time.Second, 2), noon.Add(us), "r1", 2))
		want := []limit.Entry{{At: noon.UnixMicro(), Total: 2}, {At: noon.UnixMicro() + 2, Total: 4}}
		if got := s.state.Counters[log.Counter.Canonical()].Log; !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
