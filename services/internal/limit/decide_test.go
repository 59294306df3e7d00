package limit_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// TestV1RefusalChargesNothing guarantees that one refused charge refuses all,
// in either order, and leaves every counter as it was.
func TestV1RefusalChargesNothing(t *testing.T) {
	t.Parallel()
	for _, reverse := range []bool{false, true} {
		s := newStore(t)
		ask := func(charges ...limit.Charge) limit.Answer {
			if reverse {
				slices.Reverse(charges)
			}
			return s.ask(t0, charges...)
		}
		ask(quota("acme", 1, 1))
		a := ask(gcra("acme", 10, time.Second, 10, 4), quota("acme", 1, 1), quota("other", 5, 2))
		if a.Allowed || a.Charged {
			t.Errorf("%+v", a)
		}
		if got := s.used(quota("other", 5, 0)); got != 0 {
			t.Errorf("the other quota was charged %d", got)
		}
		if r := ask(gcra("acme", 10, time.Second, 10, 0)).Results[0]; r.Remaining != 10 {
			t.Errorf("the rate was charged: %+v", r)
		}
	}
}

// TestFC08OneRuleDoesNotBurnAnother guarantees that what one integrator is
// refused costs its organisation nothing, with the rules in either order.
func TestFC08OneRuleDoesNotBurnAnother(t *testing.T) {
	t.Parallel()
	for _, reverse := range []bool{false, true} {
		s := newStore(t)
		ask := func(who string) limit.Answer {
			charges := []limit.Charge{quota("org", 10, 1), quota("org/"+who, 5, 1)}
			if reverse {
				slices.Reverse(charges)
			}
			return s.ask(t0, charges...)
		}
		count := func(who string, n int) (allowed int) {
			for range n {
				if ask(who).Allowed {
					allowed++
				}
			}
			return allowed
		}
		if a, b := count("a", 8), count("b", 5); a != 5 || b != 5 {
			t.Errorf("a %d of 8, b %d of 5 allowed, want 5 and 5", a, b)
		}
		if last := ask("b"); last.Allowed || last.Results[0].Passed || last.Results[1].Passed {
			t.Errorf("b's last: %+v, want both rules to refuse", last)
		}
		if org, b := s.used(quota("org", 10, 0)), s.used(quota("org/b", 5, 0)); org != 10 || b != 5 {
			t.Errorf("organisation %d, b %d, want 10 and 5", org, b)
		}
	}
}

// TestQuotas guarantees used + cost ≤ limit, the wait to the period's end, and
// the values of cases FC-05, FC-15, E1, C1 and C3.
func TestQuotas(t *testing.T) {
	t.Parallel()
	spend := func(t *testing.T, units int64) store {
		t.Helper()
		s := newStore(t)
		if units > 0 && !s.ask(t0, quota("acme", 5_000_000, units)).Allowed {
			t.Fatal("cannot spend")
		}
		return s
	}
	left := month.End.Sub(t0)
	for _, tt := range []struct {
		name        string
		used        int64
		limit, cost int64
		want        limit.Result
	}{
		{"E1: what does not fit is refused whole", 99, 100, 2, limit.Result{Remaining: 1, RetryAfter: left, Reset: left, Consumed: 99}},
		{"E1: what just fits passes", 99, 100, 1, limit.Result{Passed: true, Reset: left, Consumed: 100}},
		{"C1: an upgrade keeps what was used", 900, 5000, 0, limit.Result{Passed: true, Remaining: 4100, Reset: left, Consumed: 900}},
		{"C3: a rule made anew counts on", 60, 100, 40, limit.Result{Passed: true, Reset: left, Consumed: 100}},
		{"C3: and not further", 60, 100, 41, limit.Result{Remaining: 40, RetryAfter: left, Reset: left, Consumed: 60}},
		{"FC-15: a lowered limit leaves nothing", 35, 10, 1, limit.Result{RetryAfter: left, Reset: left, Consumed: 35}},
		{"FC-15: a raised one leaves the difference", 35, 100, 1, limit.Result{Passed: true, Remaining: 64, Reset: left, Consumed: 36}},
		{"a cost above the limit never passes", 0, 10, 11, limit.Result{Remaining: 10, RetryAfter: limit.Never, Reset: left}},
		{"a cost of exactly the limit waits for the next period", 1, 10, 10, limit.Result{Remaining: 9, RetryAfter: left, Reset: left, Consumed: 1}},
		{"a limit of 0 denies", 0, 0, 1, limit.Result{RetryAfter: limit.Never, Reset: left}},
		{"a peek passes an overused quota", 35, 10, 0, limit.Result{Passed: true, Reset: left, Consumed: 35}},
		{"E4: the greatest limit is 2^53-1", 1, rule.Unlimited, 1, limit.Result{Passed: true, Remaining: rule.Unlimited - 2, Reset: left, Consumed: 2}},
		{"an unlimited quota never refuses", 1, rule.Unlimited, rule.Unlimited, limit.Result{Passed: true, Reset: left, Consumed: rule.Unlimited, Clipped: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spend(t, tt.used)
			if diff := cmp.Diff([]limit.Result{tt.want}, s.ask(t0, quota("acme", tt.limit, tt.cost)).Results); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("FC-05: exhausted one hour before the month ends", func(t *testing.T) {
		t.Parallel()
		s := spend(t, 5)
		if r := s.ask(month.End.Add(-time.Hour), quota("acme", 5, 1)).Results[0]; r.RetryAfter != time.Hour {
			t.Errorf("%+v, want a wait of 1h", r)
		}
	})
	t.Run("refunds make room and are not consumption undone", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.state.Counters[quota("acme", 0, 0).Counter.Canonical()] = limit.Value{Consumed: 100, Refunded: 30}
		want := limit.Result{Passed: true, Remaining: 25, Reset: left, Consumed: 105, Refunded: 30}
		if got := s.ask(t0, quota("acme", 100, 5)).Results[0]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
	t.Run("numbers that have come to their end refuse until the period does", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.state.Counters[quota("acme", 0, 0).Counter.Canonical()] = limit.Value{Consumed: rule.Unlimited, Refunded: rule.Unlimited}
		if r := s.ask(t0, quota("acme", 10, 1)).Results[0]; r.Passed || r.RetryAfter != left {
			t.Errorf("%+v, want refused until the period ends", r)
		}
	})
}

// TestE2OneHundredAndNoMore guarantees the count that a hundred units sell.
func TestE2OneHundredAndNoMore(t *testing.T) {
	t.Parallel()
	s, allowed := newStore(t), 0
	for range 1000 {
		if s.ask(t0, quota("acme", 100, 1)).Allowed {
			allowed++
		}
	}
	if used := s.used(quota("acme", 0, 0)); allowed != 100 || used != 100 {
		t.Errorf("%d allowed, used %d, want 100 and 100", allowed, used)
	}
}

// TestP1PeriodsBeginAnew guarantees that the counter of the next period is
// another one, and that a span that does not hold the store's time is stale
// and charges nothing.
func TestP1PeriodsBeginAnew(t *testing.T) {
	t.Parallel()
	istanbul, err := period.Zone("Europe/Istanbul")
	if err != nil {
		t.Fatal(err)
	}
	spec := period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar, Zone: istanbul}
	s := newStore(t)
	before, after := time.Date(2026, 1, 31, 20, 59, 59, 999_000_000, time.UTC), time.Date(2026, 1, 31, 21, 0, 0, 0, time.UTC)
	charge := func(at time.Time, cost int64) limit.Charge {
		c := quota("acme", 1000, cost)
		if c.Span, err = spec.At(at); err != nil {
			t.Fatal(err)
		}
		c.Counter.Start = c.Span.Start
		return c
	}
	s.ask(before, charge(before, 1000))
	if a := s.ask(before, charge(before, 1)); a.Allowed || a.Results[0].RetryAfter != time.Millisecond {
		t.Errorf("at 20:59:59.999Z: %+v, want refused for 1 ms", a)
	}
	if a := s.ask(after, charge(before, 1)); !a.Stale || a.Allowed || a.Charged || len(a.Results) != 0 || !a.Now.Equal(after) {
		t.Errorf("with the old span: %+v, want stale", a)
	}
	if a := s.ask(before, charge(after, 1)); !a.Stale {
		t.Errorf("with the next span: %+v, want stale", a)
	}
	if a := s.ask(after, charge(after, 1)); !a.Allowed || a.Results[0].Consumed != 1 {
		t.Errorf("at 21:00:00.000Z: %+v, want allowed with 1 used", a)
	}
}

// TestSoftAndShadow guarantees that soft charges report and charge and never
// cut, and that shadow ones neither cut nor charge where they or the enforced
// set would refuse.
func TestSoftAndShadow(t *testing.T) {
	t.Parallel()
	full, free := quota("full", 10, 5), quota("free", 100, 5)
	for _, tt := range []struct {
		name    string
		charges []limit.Charge
		allowed bool
		passed  []bool
		used    []int64 // of the charges' counters, after; full begins at 8
	}{
		{"a soft quota is overdrawn", []limit.Charge{soft(full), free}, true, []bool{false, true}, []int64{13, 5}},
		{"a soft charge of a refused decision is not charged", []limit.Charge{soft(free), full}, false, []bool{true, false}, []int64{0, 8}},
		{"a shadow refusal does not cut and is not charged", []limit.Charge{shadow(full), free}, true, []bool{false, true}, []int64{8, 5}},
		{"a shadow pass is charged", []limit.Charge{shadow(free), free}, true, []bool{true, true}, []int64{5, 5}},
		{"a shadow pass of a refused decision is not charged", []limit.Charge{shadow(free), full}, false, []bool{true, false}, []int64{0, 8}},
		{"one shadow refusal does not hold back another", []limit.Charge{shadow(full), shadow(free)}, true, []bool{false, true}, []int64{8, 5}},
		{"a soft shadow is charged past its limit", []limit.Charge{soft(shadow(full))}, true, []bool{false}, []int64{13}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			for _, c := range []limit.Charge{full, shadow(full)} {
				s.state.Counters[c.Counter.Canonical()] = limit.Value{Consumed: 8}
			}
			a := s.ask(t0, tt.charges...)
			if a.Allowed != tt.allowed {
				t.Errorf("allowed = %v", a.Allowed)
			}
			for i, c := range tt.charges {
				if a.Results[i].Passed != tt.passed[i] || s.used(c) != tt.used[i] {
					t.Errorf("charge %d: passed %v, used %d, want %v, %d", i, a.Results[i].Passed, s.used(c), tt.passed[i], tt.used[i])
				}
			}
		})
	}
	t.Run("a soft rate is never more than full", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		for range 5 {
			if a := s.ask(t0, soft(gcra("acme", 10, time.Second, 10, 7))); !a.Allowed {
				t.Fatalf("%+v", a)
			}
		}
		if r := s.ask(t0, soft(gcra("acme", 10, time.Second, 10, 11))).Results[0]; r.Passed || r.RetryAfter != limit.Never {
			t.Errorf("%+v", r)
		}
		if r := s.ask(t0.Add(time.Second), gcra("acme", 10, time.Second, 10, 10)).Results[0]; !r.Passed {
			t.Errorf("a second later: %+v, want all of it back", r)
		}
	})
}

// TestChargesOnOneCounterAddUp guarantees that two charges on one counter are
// weighed together, and that the wait is for both.
func TestChargesOnOneCounterAddUp(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	two := func(a, b int64) []limit.Charge {
		return []limit.Charge{gcra("acme", 10, time.Second, 10, a), gcra("acme", 10, time.Second, 10, b)}
	}
	if a := s.ask(t0, two(4, 4)...); !a.Allowed || a.Results[0].Remaining != 2 || a.Results[1].Remaining != 2 {
		t.Errorf("4 + 4 of 10: %+v", a)
	}
	a := s.ask(t0, two(2, 3)...)
	if a.Allowed || !a.Results[0].Passed || a.Results[1].Passed || a.Results[1].RetryAfter != 300*time.Millisecond {
		t.Errorf("2 + 3 of 2: %+v, want the second refused for 300ms", a)
	}
	if s.ask(t0.Add(300*time.Millisecond-time.Microsecond), two(2, 3)...).Allowed || !s.ask(t0.Add(300*time.Millisecond), two(2, 3)...).Allowed {
		t.Error("the stated wait is not exact")
	}
	if a := s.ask(t0, two(6, 5)...); a.Results[1].RetryAfter != limit.Never {
		t.Errorf("6 + 5 of a burst of 10: %+v, want never", a)
	}
	if a := s.ask(t0, shadow(quota("acme", 5, 6)), shadow(quota("acme", 5, 5))); !a.Results[1].Passed || a.Results[1].Consumed != 5 {
		t.Errorf("a shadow charge that was not charged counted: %+v", a)
	}
}

// TestE3RequestIDs guarantees that a request id charges once for a day, is
// answered as it was, and is nobody else's.
func TestE3RequestIDs(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	request := limit.Request{Tenant: "acme", ID: "r-1", DecisionID: [16]byte{1}, Fingerprint: [16]byte{7}, Note: []byte("acme-month")}
	ask := func(at time.Duration, cost int64, change func(*limit.Request)) limit.Answer {
		r := request
		change(&r)
		c := quota("acme", 100, cost)
		c.Span.End = c.Span.End.AddDate(1, 0, 0)
		return s.decide(t0.Add(at), limit.Decision{Charges: []limit.Charge{c}, Request: r})
	}
	same := func(*limit.Request) {}

	if a := ask(0, 101, same); a.Allowed || a.Replayed {
		t.Fatalf("refused: %+v", a)
	}
	if a := ask(0, 0, same); !a.Allowed || a.Charged || a.DecisionID != [16]byte{} {
		t.Fatalf("a peek: %+v", a)
	}
	first := ask(0, 5, same)
	if !first.Charged || first.Replayed || first.DecisionID != request.DecisionID {
		t.Fatalf("first: %+v", first)
	}
	for range 2 {
		again := ask(time.Hour, 5, func(r *limit.Request) { r.DecisionID, r.Note = [16]byte{2}, nil })
		want := limit.Answer{
			Allowed: true, Replayed: true, Now: first.Now.Add(time.Hour), Decided: first.Now, Results: first.Results,
			DecisionID: request.DecisionID, Note: request.Note,
		}
		if diff := cmp.Diff(want, again); diff != "" {
			t.Errorf("again: %s", diff)
		}
	}
	if used := s.used(quota("acme", 0, 0)); used != 5 {
		t.Errorf("used %d, want 5", used)
	}
	if a := ask(time.Hour, 5, func(r *limit.Request) { r.Fingerprint[0]++ }); !a.Conflict || a.Allowed || a.Charged {
		t.Errorf("another fingerprint: %+v, want a conflict", a)
	}
	if a := ask(time.Hour, 5, func(r *limit.Request) { r.Tenant = "other" }); !a.Charged {
		t.Errorf("another tenant's: %+v, want a decision of its own", a)
	}
	if a := ask(time.Hour, 5, func(r *limit.Request) { r.Tenant, r.Address = "", "acme" }); !a.Charged {
		t.Errorf("an address's: %+v, want a decision of its own", a)
	}
	if a := ask(limit.Remember, 5, same); !a.Charged {
		t.Errorf("a day later: %+v, want a new decision", a)
	}
}

// TestUncountableDecisions guarantees that what cannot be counted is an error
// and charges nothing.
func TestUncountableDecisions(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*limit.Charge){
		"a negative cost":     func(c *limit.Charge) { c.Cost = -1 },
		"a cost of 2^53":      func(c *limit.Charge) { c.Cost = rule.Unlimited + 1 },
		"a limit of 2^53":     func(c *limit.Charge) { c.Limit = rule.Unlimited + 1 },
		"a negative limit":    func(c *limit.Charge) { c.Limit = -1 },
		"an unknown":          func(c *limit.Charge) { c.Algorithm = "guess" },
		"no span":             func(c *limit.Charge) { c.Span = period.Span{} },
		"a span turned round": func(c *limit.Charge) { c.Span.Start, c.Span.End = c.Span.End, c.Span.Start },
		"a rate of no window": func(c *limit.Charge) { c.Algorithm = rule.GCRA },
	} {
		s := newStore(t)
		bad := quota("acme", 10, 1)
		spoil(&bad)
		_, err := limit.Decide(s.state, t0, limit.Decision{Charges: []limit.Charge{quota("free", 10, 1), bad}})
		if !errors.Is(err, limit.ErrBounds) || len(s.state.Counters) != 0 {
			t.Errorf("%s: %v, %d counters, want ErrBounds and none", name, err, len(s.state.Counters))
		}
	}
}

// TestDecisionsAreAllOrNothing guarantees for any mixture of charges: a
// refusal changes no counter, a pass charges exactly the costs of what is
// enforced or soft, used never exceeds the limit of an enforced quota, and
// after the longest wait of the refusing charges the same decision passes,
// one microsecond sooner not.
func TestDecisionsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := limit.NewState()
		now := t0
		for range rapid.IntRange(1, 30).Draw(t, "decisions") {
			d := limit.Decision{Charges: rapid.SliceOfN(rapid.Custom(charge), 1, 6).Draw(t, "charges")}
			for name, n := range map[string]time.Duration{"s": time.Second, "us": time.Microsecond} {
				now = now.Add(time.Duration(rapid.Int64Range(0, 20).Draw(t, name)) * n)
			}
			ask := func(at time.Time) (limit.Answer, bool) {
				before := snapshot(s)
				a, err := limit.Decide(s, at, d)
				if err != nil {
					t.Fatal(err)
				}
				changed := !cmp.Equal(before, s.Counters)
				if changed && !a.Allowed {
					t.Fatalf("a refusal changed a counter: %+v", d)
				}
				if changed && !a.Charged {
					t.Fatalf("a decision that charged nothing changed a counter: %+v", d)
				}
				return a, a.Allowed
			}
			a, ok := ask(now)
			anySoft := slices.ContainsFunc(d.Charges, func(c limit.Charge) bool { return c.Soft })
			for i, r := range a.Results {
				c := d.Charges[i]
				if r.Remaining < 0 || r.Remaining > max(c.Limit, c.Burst) || r.Passed != (r.RetryAfter == 0) || r.Reset < 0 {
					t.Fatalf("charge %+v: result %+v", c, r)
				}
				if a.Allowed && c.Algorithm == rule.CalendarQuota && !anySoft && !c.Counter.Shadow && c.Cost > 0 && r.Consumed > c.Limit {
					t.Fatalf("sold %d of %d", r.Consumed, c.Limit)
				}
			}
			wait := longest(&d, &a)
			if ok || wait == limit.Never || !now.Add(wait).Before(month.End) {
				continue
			}
			if _, early := ask(now.Add(wait - time.Microsecond)); early {
				t.Fatalf("passed before its wait of %v: %+v", wait, d)
			}
			if _, passed := ask(now.Add(wait)); !passed {
				t.Fatalf("refused after its wait of %v: %+v", wait, d)
			}
			now = now.Add(wait)
		}
	})
}

// charge draws one of a few counters, so that they meet.
func charge(t *rapid.T) limit.Charge {
	who := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "who")
	cost := rapid.Int64Range(0, 6).Draw(t, "cost")
	var c limit.Charge
	switch k := rapid.SampledFrom(kinds).Draw(t, "kind"); k.name {
	case "quota":
		c = quota(who, 60, cost)
	case "renewable wallet":
		c = renewable(30, month, cost)
	case "prepaid wallet":
		c = prepaid(30, cost)
	default:
		c = k.charge(t0, 10, 10*time.Second, cost)
	}
	c.Counter.Tenant = who
	c.Soft = rapid.IntRange(0, 5).Draw(t, "soft") == 0
	c.Counter.Shadow = rapid.IntRange(0, 5).Draw(t, "shadow") == 0
	return c
}

func longest(d *limit.Decision, a *limit.Answer) (wait time.Duration) {
	for i, r := range a.Results {
		if c := d.Charges[i]; !r.Passed && !c.Soft && !c.Counter.Shadow {
			wait = max(wait, r.RetryAfter)
		}
	}
	return wait
}

func snapshot(s limit.State) map[limit.Identity]limit.Value {
	c := make(map[limit.Identity]limit.Value, len(s.Counters))
	for id, v := range s.Counters {
		c[id] = v
	}
	return c
}
