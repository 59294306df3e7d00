//go:build integration

package counters_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// charged is what a decision of that cost, answered a, could be corrected by:
// what a receipt says. Each has an id of its own.
func charged(a *limit.Answer, cost int64, charges ...limit.Charge) limit.Correction {
	c := limit.Correction{Tenant: charges[0].Counter.Tenant, At: a.Now, Cost: cost}
	binary.BigEndian.PutUint64(c.DecisionID[:], rand.Uint64())
	for _, charge := range charges {
		c.Items = append(c.Items, limit.Item{Charge: charge})
	}
	return c
}

// refund is c as a refund.
func refund(c limit.Correction, id string, units int64) limit.Correction {
	c.Refund, c.Units = id, units
	return c
}

// settle is c as a settlement.
func settle(c limit.Correction, cost int64) limit.Correction {
	c.Refund, c.Settle = "", cost
	return c
}

// correctAt corrects at a time of the test's choosing.
func correctAt(t testing.TB, s *counters.Store, now time.Time, c limit.Correction) limit.CorrectionAnswer {
	t.Helper()
	a, err := s.CorrectAt(t.Context(), now, c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// correct corrects by the server's clock.
func correct(t testing.TB, s *counters.Store, c limit.Correction) limit.CorrectionAnswer {
	t.Helper()
	a, err := s.Correct(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestIntegrationFC10RefundOfAnEmptyBudget guarantees that units come back where
// none are left, once per refund, and never more than were charged.
func TestIntegrationFC10RefundOfAnEmptyBudget(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		charge := func(cost int64) limit.Charge { return k.charge("acme", noon, 10, time.Minute, cost) }
		remaining := func() int64 { return at(t, s, noon, charge(0)).Results[0].Remaining }
		first := at(t, s, noon, charge(10))
		c := charged(&first, 10, charge(10))
		if n := remaining(); n != 0 {
			t.Fatalf("%d remain of an empty budget", n)
		}
		for _, effect := range []limit.Effect{limit.Corrected, limit.Repeated} {
			a := correctAt(t, s, noon, refund(c, "r1", 1))
			if a.Effect != effect || a.Units != 1 || a.RefundedTotal != 1 || a.Left != 9 {
				t.Errorf("r1: %+v, want it %s with 1 given back and 9 left", a, effect)
			}
			if n := remaining(); n != 1 {
				t.Errorf("r1 %s: %d remain, want 1", effect, n)
			}
		}
		if a := at(t, s, noon, charge(1)); !a.Allowed || a.Results[0].Remaining != 0 {
			t.Errorf("the first request: %+v, want allowed with 0 remaining", a)
		}
		if a := at(t, s, noon, charge(1)); a.Allowed {
			t.Errorf("the second request: %+v, want denied", a)
		}
		if _, err := s.At(t.Context(), noon, limit.Decision{Charges: []limit.Charge{charge(-1)}}); !errors.Is(err, limit.ErrBounds) {
			t.Errorf("a cost of -1: %v, want ErrBounds", err)
		}
		if a := correctAt(t, s, noon, refund(c, "r2", 50)); a.Effect != limit.Exceeds || a.Left != 9 {
			t.Errorf("r2: %+v, want that it exceeds 9 left", a)
		}
		if n := remaining(); n != 0 {
			t.Errorf("%d remain, want 0", n)
		}
	})
}

// TestIntegrationR1RefundTwice guarantees that a call of 5 that took a budget
// from 95 to 100 is given back once, however often that is asked, and under
// whatever id.
func TestIntegrationR1RefundTwice(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		charge := func(cost int64) limit.Charge { return k.charge("acme", noon, 100, time.Minute, cost) }
		at(t, s, noon, charge(95))
		a := at(t, s, noon, charge(5))
		c := charged(&a, 5, charge(5))
		for i, id := range []string{"r", "r", "s"} {
			got := correctAt(t, s, noon, refund(c, id, 0))
			if want := []limit.Effect{limit.Corrected, limit.Repeated, limit.Exceeds}[i]; got.Effect != want {
				t.Errorf("refund %d: %+v, want %s", i+1, got, want)
			}
			r := at(t, s, noon, charge(0)).Results[0]
			if r.Remaining != 5 || k.totals && (r.Consumed != 100 || r.Refunded != 5) {
				t.Errorf("after refund %d: %+v, want 95 used", i+1, r)
			}
		}
	})
}

// TestIntegrationR2RefundToThePeriodCharged guarantees that a refund after the
// month ended, in the zone of the quota, goes to the month that was charged.
func TestIntegrationR2RefundToThePeriodCharged(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	spec := period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar, Zone: zone}
	end := time.Date(2026, 4, 1, 4, 0, 0, 0, time.UTC)
	within := func(now time.Time) period.Span {
		span, err := spec.At(now)
		if err != nil {
			t.Fatal(err)
		}
		return span
	}
	p1, p2 := within(end.Add(-time.Microsecond)), within(end)
	if !p1.End.Equal(end) || !p2.Start.Equal(end) {
		t.Fatalf("periods %v and %v, want them to meet at %v", p1, p2, end)
	}
	s := openStore(t, redistest.Start(t).URL, generous)
	if err := s.Vouch(t.Context()); err != nil { // from the beginning of time
		t.Fatal(err)
	}
	for name, charge := range map[string]func(span period.Span, cost int64) limit.Charge{
		"quota":            func(span period.Span, cost int64) limit.Charge { return quota("acme", span, 1000, cost) },
		"renewable wallet": func(span period.Span, cost int64) limit.Charge { return renewable("acme", span, 1000, cost) },
	} {
		at(t, s, end.Add(-time.Hour), charge(p1, 493))
		call := at(t, s, end.Add(-time.Minute), charge(p1, 7))
		at(t, s, end.Add(time.Second), charge(p2, 20))
		a := correctAt(t, s, end.Add(3*time.Second), refund(charged(&call, 7, charge(p1, 7)), "r", 0))
		if want := []limit.Moved{{Units: -7, Totals: limit.Totals{Consumed: 500, Refunded: 7}}}; a.Effect != limit.Corrected || !cmp.Equal(want, a.Items) {
			t.Errorf("%s: %+v, want 7 given back to the first month", name, a)
		}
		got, err := s.Usage(t.Context(), []limit.Identity{charge(p1, 0).Counter, charge(p2, 0).Counter})
		if diff := cmp.Diff([]limit.Totals{{Consumed: 500, Refunded: 7}, {Consumed: 20}}, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestIntegrationLateRefundOfARate guarantees where units go that come back when
// the window of their rate is over: nowhere, but to a sliding counter while the
// window still counts, and to a bucket as far as it owes.
func TestIntegrationLateRefundOfARate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		algorithm rule.Algorithm
		after     time.Duration
		back      int64 // of 6
	}{
		{rule.FixedWindow, time.Minute - time.Microsecond, 6},
		{rule.FixedWindow, time.Minute, 0},
		{rule.SlidingWindowLog, time.Minute - time.Microsecond, 6},
		{rule.SlidingWindowLog, time.Minute, 0},
		{rule.SlidingWindowCounter, time.Minute, 6},
		{rule.SlidingWindowCounter, 2*time.Minute - time.Microsecond, 6},
		{rule.SlidingWindowCounter, 2 * time.Minute, 0},
		{rule.GCRA, 0, 6},
		{rule.TokenBucket, 24 * time.Hour, 6}, // what has been paid back since is not counted out
	} {
		t.Run(fmt.Sprint(tt.algorithm, " after ", tt.after), func(t *testing.T) {
			t.Parallel()
			s := openStore(t, redistest.Start(t).URL, generous)
			c := rate(tt.algorithm, "acme", 10, time.Minute, 6)
			a := at(t, s, noon, c)
			if got := correctAt(t, s, noon.Add(tt.after), refund(charged(&a, 6, c), "r", 0)); got.Effect != limit.Corrected || got.Units != 6 || got.Items[0].Units != -tt.back {
				t.Errorf("%+v, want %d given back to the counter", got, tt.back)
			}
			c.Cost = 0
			if r := at(t, s, noon.Add(tt.after), c).Results[0]; r.Remaining != 10 && tt.back > 0 || r.Remaining > 10 {
				t.Errorf("%+v, want 10 remaining", r)
			}
		})
	}
}

// TestIntegrationGiveBackByAnotherClock guarantees what is given back of a charge
// whose time is known by another server's clock only, and is up to a second
// before: never what was charged later, nor to a window that may not have been
// charged.
func TestIntegrationGiveBackByAnotherClock(t *testing.T) {
	t.Parallel()
	s := openStore(t, redistest.Start(t).URL, generous)
	const second, ms = time.Second, time.Millisecond
	for i, tt := range []struct {
		algorithm rule.Algorithm
		charged   []time.Duration // when 5 were, each; after noon
		then, now time.Duration
		give      int64
		given     int64
		reset     time.Duration // of a log: when the first is over that is left
	}{
		{rule.SlidingWindowLog, []time.Duration{0, 3 * second, 4 * second}, 4 * second, 5 * second, 5, 5, 55 * second}, // the earliest that it may be
		{rule.SlidingWindowLog, []time.Duration{0, 4*second - ms}, 4 * second, 5 * second, 5, 5, 55 * second},
		{rule.SlidingWindowLog, []time.Duration{0, 3*second - ms, 4*second + ms}, 4 * second, 5 * second, 5, 0, 55 * second},
		{rule.SlidingWindowLog, []time.Duration{3 * second, 4 * second}, 4 * second, 5 * second, 8, 8, 59 * second},
		{rule.SlidingWindowLog, []time.Duration{3 * second}, 4 * second, 63 * second, 5, 0, 0}, // over
		{rule.FixedWindow, []time.Duration{4 * second}, 4*second + ms, 5 * second, 5, 5, 0},
		{rule.FixedWindow, []time.Duration{-ms, 4 * second}, ms, 5 * second, 5, 0, 0}, // may have been the window before
		{rule.SlidingWindowCounter, []time.Duration{4 * second}, 4*second + ms, 5 * second, 5, 5, 0},
		{rule.SlidingWindowCounter, []time.Duration{-ms, 4 * second}, ms, 5 * second, 5, 5, 0}, // of the window before
		{rule.SlidingWindowCounter, []time.Duration{4 * second}, ms, 5 * second, 5, 0, 0},
		{rule.GCRA, []time.Duration{4 * second}, 4 * second, 4 * second, 5, 5, 0},
	} {
		c := rate(tt.algorithm, fmt.Sprint("acme ", i), 20, time.Minute, 5)
		for _, when := range tt.charged {
			at(t, s, noon.Add(when), c)
		}
		before := at(t, s, noon.Add(tt.now), rate(tt.algorithm, c.Counter.Tenant, 20, time.Minute, 0)).Results[0]
		a, err := s.MoveAt(t.Context(), noon.Add(tt.now), noon.Add(tt.then), second, []limit.Item{{Charge: c}}, []int64{-tt.give})
		if err != nil || a.Items[0].Units != -tt.given {
			t.Errorf("%d, %s: %+v, %v; want %d given back", i, tt.algorithm, a, err, tt.given)
		}
		after := at(t, s, noon.Add(tt.now), rate(tt.algorithm, c.Counter.Tenant, 20, time.Minute, 0)).Results[0]
		if after.Remaining > before.Remaining+tt.given || tt.given > 0 && after.Remaining <= before.Remaining {
			t.Errorf("%d, %s: %d remained and %d do, with %d given back", i, tt.algorithm, before.Remaining, after.Remaining, tt.given)
		}
		if tt.reset > 0 && after.Reset != tt.reset {
			t.Errorf("%d, %s: the first is over in %v, want %v", i, tt.algorithm, after.Reset, tt.reset)
		}
	}
}

// TestIntegrationSettle guarantees that a settlement charges the rest past the
// limit, or gives back what was too much, once, and that at 0 it takes fixed
// costs back too.
func TestIntegrationSettle(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		for i, tt := range []struct {
			cost, again int64
			remaining   int64 // of 10, afterwards
			fixed       int64 // of 10 of the rule of fixed cost
		}{
			{cost: 4, again: 5, remaining: 6, fixed: 7},
			{cost: 9, again: 4, remaining: 1, fixed: 7},
			{cost: 50, again: 0, remaining: 0, fixed: 7},
			{cost: 0, again: 4, remaining: 10, fixed: 10},
			{cost: 1, again: 2, remaining: 9, fixed: 7},
		} {
			who := fmt.Sprint("acme ", i)
			charge, fixed := k.charge(who, noon, 10, time.Minute, 4), k.charge(who+" fixed", noon, 10, time.Minute, 3)
			a := at(t, s, noon, charge, fixed)
			c := charged(&a, 4, charge, fixed)
			c.Items[1].Fixed = true
			first := correctAt(t, s, noon, settle(c, tt.cost))
			if first.Effect != limit.Corrected || first.Units != tt.cost-4 || first.Left != tt.cost {
				t.Errorf("settled at %d: %+v", tt.cost, first)
			}
			same := correctAt(t, s, noon, settle(c, tt.cost))
			first.Effect, first.Items = limit.Repeated, nil
			if diff := cmp.Diff(first, same, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("settled at %d again: %s", tt.cost, diff)
			}
			if a := correctAt(t, s, noon, settle(c, tt.again)); a.Effect != limit.Settled || a.Left != tt.cost {
				t.Errorf("settled at %d and then at %d: %+v", tt.cost, tt.again, a)
			}
			charge.Cost, fixed.Cost = 0, 0
			r := at(t, s, noon, charge, fixed).Results
			if r[0].Remaining != tt.remaining || r[1].Remaining != tt.fixed {
				t.Errorf("settled at %d: %d and %d remain, want %d and %d", tt.cost, r[0].Remaining, r[1].Remaining, tt.remaining, tt.fixed)
			}
			if k.totals && tt.cost > 4 && (r[0].Consumed != tt.cost || r[0].Refunded != 0) {
				t.Errorf("settled at %d: %+v, want all of it consumed", tt.cost, r[0])
			}
		}
	})
}

// TestIntegrationW1Overdraft guarantees that a wallet passes one request below
// nothing, and that top-ups count from where it then is.
func TestIntegrationW1Overdraft(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		if !k.wallet {
			return
		}
		for i, step := range []struct {
			granted, cost int64
			allowed       bool
			balance       int64
		}{
			{5, 8, true, -3},
			{5, 1, false, -3},
			{8, 0, true, 0},
			{8, 1, false, 0},
			{18, 0, true, 10},
			{18, 1, true, 9},
		} {
			a := at(t, s, noon, k.charge("acme", noon, step.granted, time.Minute, step.cost))
			r := a.Results[0]
			if a.Allowed != step.allowed || step.granted-r.Consumed+r.Refunded != step.balance || r.Remaining != max(0, step.balance) {
				t.Errorf("step %d: %+v, want allowed %v and a balance of %d", i+1, a, step.allowed, step.balance)
			}
		}
	})
}

// TestIntegrationW2TwoAtOnce guarantees that of two requests at once for more
// than is there, through two gateways, one passes; and that what is exactly
// there leaves no overdraft.
func TestIntegrationW2TwoAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{openStore(t, server.URL, generous), openStore(t, server.URL, generous)}
	for _, k := range kinds {
		if !k.wallet {
			continue
		}
		for i := range 50 {
			who, now := fmt.Sprint("acme ", i), time.Now()
			both := func(who string, balance int64) (int64, limit.Result) {
				allowed := crowd(t, 2, func(i int) (limit.Answer, error) {
					return stores[i].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{k.charge(who, now, balance, rule.MaxWindow, 8)}})
				})
				return allowed, decide(t, stores[0], k.charge(who, now, balance, rule.MaxWindow, 0)).Results[0]
			}
			if allowed, r := both(who, 5); allowed != 1 || r.Consumed != 8 {
				t.Errorf("%s: a balance of 5: %d allowed, then %+v; want one and -3", k.name, allowed, r)
			}
			if allowed, r := both(who+" exactly", 8); allowed != 1 || r.Consumed != 8 || r.Remaining != 0 {
				t.Errorf("%s: a balance of 8: %d allowed, then %+v; want one and 0", k.name, allowed, r)
			}
		}
	}
}

// TestIntegrationOneRequestIDOfManyChargesOnce guarantees that equal requests at
// once, through three gateways, charge once, whatever counts.
func TestIntegrationOneRequestIDOfManyChargesOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{openStore(t, server.URL, generous), openStore(t, server.URL, generous), openStore(t, server.URL, generous)}
	for i, k := range kinds {
		charge := k.charge("acme", time.Now(), 100, rule.MaxWindow, 5)
		var charged, replayed atomic.Int64
		allowed := crowd(t, 200, func(n int) (limit.Answer, error) {
			a, err := stores[n%3].Decide(t.Context(), limit.Decision{
				Charges: []limit.Charge{charge},
				Request: limit.Request{Tenant: "acme", ID: k.name, DecisionID: [16]byte{byte(i), byte(n)}},
			})
			if a.Charged {
				charged.Add(1)
			}
			if a.Replayed {
				replayed.Add(1)
			}
			return a, err
		})
		if allowed != 200 || charged.Load() != 1 || replayed.Load() != 199 {
			t.Errorf("%s: %d allowed, %d charged, %d replayed, want 200, 1 and 199", k.name, allowed, charged.Load(), replayed.Load())
		}
		charge.Cost = 0
		if r := decide(t, stores[0], charge).Results[0]; r.Remaining != 95 {
			t.Errorf("%s: %+v, want 95 remaining", k.name, r)
		}
	}
}

// TestIntegrationRefundsAtOnce guarantees that refunds of one decision at once,
// through three gateways, give back no more than it charged, each id once.
func TestIntegrationRefundsAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{openStore(t, server.URL, generous), openStore(t, server.URL, generous), openStore(t, server.URL, generous)}
	for _, k := range kinds {
		charge := k.charge("acme", time.Now(), 100, rule.MaxWindow, 50)
		decide(t, stores[0], charge) // others', which must stay
		a := decide(t, stores[0], charge)
		c := charged(&a, 50, charge)
		var mu sync.Mutex
		given, most := map[string]int64{}, int64(0)
		var wg sync.WaitGroup
		for n := range 300 {
			wg.Go(func() {
				id := fmt.Sprint("r", n%60)
				got, err := stores[n%3].Correct(t.Context(), refund(c, id, 1+int64(n%60)%4))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				most = max(most, got.RefundedTotal)
				if got.Effect == limit.Corrected {
					if given[id] > 0 {
						t.Errorf("%s: %s was made twice", k.name, id)
					}
					given[id] += got.Units
				}
			})
		}
		wg.Wait()
		sum := int64(0)
		for _, units := range given {
			sum += units
		}
		charge.Cost = 0
		r := decide(t, stores[0], charge).Results[0]
		if sum > 50 || sum < 47 || sum != most || r.Remaining != sum {
			t.Errorf("%s: %d given back, told of %d, and %d remain; want the same of all and 47 to 50", k.name, sum, most, r.Remaining)
		}
	}
}

// TestIntegrationCorrectionOfALostStore guarantees that a store that does not
// vouch for what it holds corrects nothing, until it is vouched for; and never
// what was decided before it was emptied, for it does not know what became of
// that since. A restart that keeps the data forgets nothing.
func TestIntegrationCorrectionOfALostStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, counters.Config{URL: server.URL, Budget: generous})
	q := quota("acme", month(time.Now()), 100, 5)
	c := limit.Correction{Tenant: "acme", At: time.Now(), Cost: 5, Items: []limit.Item{{Charge: q}}}
	for _, c := range []limit.Correction{refund(c, "r", 0), settle(c, 9)} {
		if a := correct(t, s, c); a.Effect != limit.Forgotten {
			t.Errorf("%+v, want lost", a)
		}
	}
	if n := server.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
	adopter := openStore(t, server.URL, generous)
	c.At = decide(t, adopter, q).Now
	if a := correct(t, s, refund(c, "r", 3)); a.Effect != limit.Corrected || a.Items[0].Refunded != 3 {
		t.Errorf("%+v, want 3 given back", a)
	}
	if err := server.Client().Set(t.Context(), counters.EpochKey, fmt.Sprintf("another run:%d", c.At.UnixMicro()), 0).Err(); err != nil {
		t.Fatal(err)
	}
	if a := correct(t, adopter, refund(c, "s", 1)); a.Effect != limit.Corrected || a.Items[0].Refunded != 4 {
		t.Errorf("after a restart: %+v, want 1 more given back", a)
	}
	for round := range 2 {
		if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			decide(t, adopter, gcra("acme", 10, time.Hour, 10, 1)) // begins what is held
		}
		for _, c := range []limit.Correction{refund(c, "r", 3), refund(c, "t", 0), settle(c, 9)} {
			if a := correct(t, adopter, c); a.Effect != limit.Forgotten {
				t.Errorf("emptied: %+v, want it refused: nobody knows what was given back", a)
			}
		}
	}
	a := decide(t, adopter, q)
	if a := correct(t, adopter, refund(charged(&a, 5, q), "r", 0)); a.Effect != limit.Corrected || a.Units != 5 {
		t.Errorf("decided since: %+v, want 5 given back", a)
	}
}

// TestIntegrationFirstDecisionIsCorrected guarantees that the very first charge
// of a store can be given back, also where it is none that the store must vouch
// for.
func TestIntegrationFirstDecisionIsCorrected(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		s := openStore(t, redistest.Start(t).URL, generous)
		charge := k.charge("first", time.Now(), 100, time.Hour, 5)
		a := decide(t, s, charge)
		if a := correct(t, s, refund(charged(&a, 5, charge), "r", 0)); a.Effect != limit.Corrected || a.Items[0].Units != -5 {
			t.Errorf("%s: %+v, want 5 given back", k.name, a)
		}
	}
}

// TestIntegrationRefundOfALostCounter guarantees that what is given back of a
// counter that was deleted is not lost: who remembers more of it takes both
// over.
func TestIntegrationRefundOfALostCounter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	knows, other := openStore(t, server.URL, generous), openStore(t, server.URL, generous)
	q := quota("acme", month(time.Now()), 100, 30)
	var made []limit.Correction
	for i := range 3 {
		a := decide(t, knows, q)
		c := charged(&a, 30, q)
		c.DecisionID[0] = byte(i)
		made = append(made, c)
	}
	if err := server.Client().Del(t.Context(), counters.Key(q.Counter)).Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range made[:2] {
		if a := correct(t, other, refund(c, "r", 0)); a.Effect != limit.Corrected || a.Items[0].Units != -30 {
			t.Errorf("%+v, want 30 given back", a)
		}
	}
	q.Cost = 0
	if r := decide(t, knows, q).Results[0]; r.Consumed != 90 || r.Refunded != 60 || r.Remaining != 70 {
		t.Errorf("%+v, want 90 consumed, 60 refunded and 70 remaining", r)
	}
}

// TestIntegrationLostReplyOfACorrection guarantees that a correction whose reply
// is lost is not sent again by itself, and that who asks again learns what it
// came to and moves nothing twice.
func TestIntegrationLostReplyOfACorrection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := openStore(t, server.URL, generous)
	correct(t, direct, limit.Correction{Tenant: "acme", Cost: 1, At: time.Now()}) // from now on the script is known
	for _, k := range kinds {
		for n, c := range []struct {
			amend func(limit.Correction) limit.Correction
			left  int64 // of 100, afterwards
			units int64
		}{
			{func(c limit.Correction) limit.Correction { return refund(c, "r", 3) }, 93, 3},
			{func(c limit.Correction) limit.Correction { return settle(c, 30) }, 70, 20},
		} {
			who := fmt.Sprint("acme ", n)
			charge := k.charge(who, time.Now(), 100, rule.MaxWindow, 10)
			a := decide(t, direct, charge)
			made := c.amend(charged(&a, 10, charge))
			p := newProxy(t, server.Addr)
			s := openStore(t, "redis://"+p.addr, time.Second)
			if err := s.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := p.sent("evalsha")
			p.set(func() { p.lose = scriptReply })
			if _, err := s.Correct(t.Context(), made); !errors.Is(err, counters.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", k.name, err)
			}
			p.set(func() { p.lose = nil })
			if sent := p.sent("evalsha") - before; sent != 1 || p.sent("$4\r\neval\r\n") > 0 {
				t.Errorf("%s: sent %d times, want once", k.name, sent)
			}
			for range 2 {
				if got := correct(t, s, made); got.Effect != limit.Repeated || got.Units != c.units {
					t.Errorf("%s: asked again: %+v, want %d repeated", k.name, got, c.units)
				}
				charge.Cost = 0
				if r := decide(t, direct, charge).Results[0]; r.Remaining != c.left {
					t.Errorf("%s: %+v, want %d remaining", k.name, r, c.left)
				}
			}
		}
	}
}

// TestIntegrationSettlingDoesNotKeepCounters guarantees that a rate which is
// settled again and again lives no longer than one that is not: as long as it
// takes to be as new, and a little.
func TestIntegrationSettlingDoesNotKeepCounters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := openStore(t, server.URL, generous)
	for _, a := range rates {
		charge := rate(a, "acme", 1000, time.Second, 1)
		for i := range 20 {
			made := decide(t, s, charge)
			c := charged(&made, 1, charge)
			c.DecisionID[0] = byte(i)
			correct(t, s, settle(c, 100))
			correct(t, s, refund(c, "r", int64(i)))
		}
		ttl := lifeOf(t, server.Client(), counters.Key(charge.Counter))
		if most := 2*time.Second + 90*time.Second; ttl <= 0 || ttl > most {
			t.Errorf("%s lives for %v, want at most %v", a, ttl, most)
		}
	}
}

// TestIntegrationCorrectionsLiveForAWeek guarantees the expiry of what a
// correction writes: what is remembered of it lives for 7 days from the last
// one, and the counters as long as they are needed.
func TestIntegrationCorrectionsLiveForAWeek(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, client := openStore(t, server.URL, generous), server.Client()
	lives := func(key string) time.Duration { return lifeOf(t, client, key) }
	for _, k := range kinds {
		charge := k.charge("acme", time.Now(), 100, 24*time.Hour, 10)
		a := decide(t, s, charge)
		key := counters.Key(charge.Counter)
		before := lives(key)
		c := charged(&a, 10, charge)
		mark := counters.MarkKey(&c)
		if !strings.HasPrefix(mark, "{t:acme}:ref:") {
			t.Errorf("it is remembered under %q", mark)
		}
		for _, c := range []limit.Correction{refund(c, "r", 4), settle(c, 12)} {
			if err := client.PExpire(t.Context(), mark, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			correct(t, s, c)
			if ttl := lives(mark); ttl < 7*24*time.Hour-5*time.Second || ttl > 7*24*time.Hour {
				t.Errorf("%s: it is remembered for %v, want 7 days", k.name, ttl)
			}
			after := lives(key)
			if before < 0 && after != before || before >= 0 && (after < before-5*time.Second || after > before+5*time.Second+time.Hour*24) {
				t.Errorf("%s: the counter lives for %v, before it did for %v", k.name, after, before)
			}
		}
	}
}

// TestIntegrationCorrectionOfAnotherVersion guarantees that a value which this
// version cannot read is neither guessed at nor overwritten by a correction, and
// that nothing is half corrected.
func TestIntegrationCorrectionOfAnotherVersion(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, client := openStore(t, server.URL, generous), server.Client()
	for _, k := range kinds {
		good, bad := k.charge("good", time.Now(), 100, rule.MaxWindow, 5), k.charge("bad", time.Now(), 100, rule.MaxWindow, 5)
		a := decide(t, s, good)
		for _, value := range []string{"\x02a newer layout" + strings.Repeat("x", 40), "\x01short", "\x01" + strings.Repeat("x", 45)} {
			c := charged(&a, 5, good, bad)
			for _, key := range []string{counters.Key(bad.Counter), counters.MarkKey(&c)} {
				if err := client.Set(t.Context(), key, value, 0).Err(); err != nil {
					t.Fatal(err)
				}
				for _, c := range []limit.Correction{refund(c, "r", 2), settle(c, 9), settle(c, 2)} {
					if _, err := s.Correct(t.Context(), c); !errors.Is(err, counters.ErrUnavailable) || !errors.Is(err, counters.ErrValue) {
						t.Errorf("%s, %q: %v, want ErrUnavailable and ErrValue", k.name, value, err)
					}
				}
				if got := client.Get(t.Context(), key).Val(); got != value {
					t.Errorf("%s: %q became %q", k.name, value, got)
				}
				if err := client.Del(t.Context(), key).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		good.Cost = 0
		if r := decide(t, s, good).Results[0]; r.Remaining != 95 {
			t.Errorf("%s: the other counter was corrected: %+v", k.name, r)
		}
	}
}
