//go:build integration

package counters_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// noon is the instant at which cases happen whose clock is the test's own: the
// windows and periods of the epoch's grid that they use begin there.
var noon = time.Date(2026, 11, 14, 12, 0, 0, 0, time.UTC)

// each runs a case for every way to count, on one server.
func each(t *testing.T, test func(t *testing.T, s *counters.Store, k kind)) {
	t.Helper()
	s := openStore(t, redistest.Start(t).URL, generous)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { test(t, s, k) })
	}
}

// TestIntegrationE1WhatFits guarantees used + cost ≤ limit on a real Redis,
// whatever counts; a wallet passes while anything is left.
func TestIntegrationE1WhatFits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		ask := func(who string, cost int64) limit.Answer {
			return at(t, s, noon, k.charge(who, noon, 100, time.Hour, cost))
		}
		ask("acme", 99)
		if a := ask("acme", 2); a.Allowed != k.wallet || !k.wallet && a.Results[0].Remaining != 1 {
			t.Errorf("cost 2: %+v, want allowed %v, else 1 left", a, k.wallet)
		}
		ask("other", 99)
		if a := ask("other", 1); !a.Allowed || a.Results[0].Remaining != 0 || k.totals && a.Results[0].Consumed != 100 {
			t.Errorf("cost 1: %+v, want allowed with 100 used", a)
		}
		if a := ask("other", 1); a.Allowed || a.Results[0].Remaining != 0 || k.totals && a.Results[0].Consumed != 100 {
			t.Errorf("one more: %+v, want refused with 100 used", a)
		}
	})
}

// TestIntegrationE2Contention guarantees that 1,000 requests at once through
// three gateways buy exactly the 100 units that there are, whatever counts, and
// that each sees those before it.
func TestIntegrationE2Contention(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{}
	for range 3 {
		stores = append(stores, openStore(t, server.URL, generous))
	}
	for _, k := range kinds {
		charge := k.charge("acme", time.Now(), 100, rule.MaxWindow, 1)
		var mu sync.Mutex
		remaining := map[int64]int{}
		allowed := crowd(t, 1000, func(i int) (limit.Answer, error) {
			a, err := stores[i%3].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{charge}})
			if a.Allowed {
				mu.Lock()
				defer mu.Unlock()
				remaining[a.Results[0].Remaining]++
			}
			return a, err
		})
		if allowed != 100 {
			t.Errorf("%s: %d allowed, want 100", k.name, allowed)
		}
		for left := range int64(100) {
			if remaining[left] != 1 {
				t.Errorf("%s: %d answers say that %d remain, want 1: each sees the others", k.name, remaining[left], left)
			}
		}
		if a := decide(t, stores[0], charge); a.Allowed || k.totals && a.Results[0].Consumed != 100 {
			t.Errorf("%s: afterwards %+v, want 100 used", k.name, a)
		}
	}
}

// TestIntegrationE2TogetherInOneDecision guarantees the same of decisions that
// charge every kind of counter at once: as many pass as the scarcest allows, and
// the others hold no more than that.
func TestIntegrationE2TogetherInOneDecision(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{}
	for range 3 {
		stores = append(stores, openStore(t, server.URL, generous))
	}
	for scarce := range kinds {
		var charges []limit.Charge
		for i, k := range kinds {
			most := int64(1000)
			if i == scarce {
				most = 60
			}
			charges = append(charges, k.charge(fmt.Sprint("acme ", scarce, i), time.Now(), most, rule.MaxWindow, 2))
		}
		allowed := crowd(t, 300, func(i int) (limit.Answer, error) {
			return stores[i%3].Decide(t.Context(), limit.Decision{Charges: charges})
		})
		if allowed != 30 {
			t.Errorf("scarce %s: %d allowed, want 30", kinds[scarce].name, allowed)
		}
		for i := range charges {
			charges[i].Cost = 0
		}
		for i, r := range decide(t, stores[0], charges...).Results {
			if used := charges[i].Limit - r.Remaining; used != 60 {
				t.Errorf("scarce %s: %s holds %d, want 60", kinds[scarce].name, kinds[i].name, used)
			}
		}
	}
}

// TestIntegrationFC29 guarantees that of 50 debits of 3 at once, through two gateways, from
// a wallet of 100 exactly 34 are made: it goes below zero once, to -2, and each debit
// that was made has a balance of its own.
func TestIntegrationFC29(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL
	stores := []*counters.Store{openStore(t, url, generous), openStore(t, url, generous)}
	span := month(time.Now())
	for name, charge := range map[string]limit.Charge{"prepaid": prepaid("acme", 100, 3), "renewable": renewable("acme", span, 100, 3)} {
		var mu sync.Mutex
		spent := map[int64]int{}
		made := crowd(t, 50, func(i int) (limit.Answer, error) {
			a, err := stores[i%2].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{charge}})
			if a.Allowed {
				mu.Lock()
				defer mu.Unlock()
				spent[a.Results[0].Consumed]++
			}
			return a, err
		})
		if made != 34 {
			t.Errorf("%s: %d debits were made, want 34", name, made)
		}
		for n := int64(3); n <= 102; n += 3 {
			if spent[n] != 1 {
				t.Errorf("%s: %d debits say that %d is spent, want 1: each sees the others", name, spent[n], n)
			}
		}
		charge.Cost = 1
		if a := decide(t, stores[0], charge); a.Allowed || a.Results[0].Consumed != 102 || a.Results[0].Remaining != 0 {
			t.Errorf("%s: afterwards %+v, want a balance of -2", name, a)
		}
	}
}

// TestIntegrationE3OneRequestID guarantees that three equal requests at once,
// through three gateways, charge once and are answered alike.
func TestIntegrationE3OneRequestID(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	decide(t, openStore(t, server.URL, generous), quota("acme", span, 100, 10))

	var wg sync.WaitGroup
	answers := make([]limit.Answer, 3)
	for i := range answers {
		s := openStore(t, server.URL, generous)
		wg.Go(func() {
			var err error
			answers[i], err = s.Decide(t.Context(), limit.Decision{
				Charges: []limit.Charge{quota("acme", span, 100, 5), gcra("acme", 10, time.Second, 10, 5)},
				Request: limit.Request{Tenant: "acme", ID: "r-1", DecisionID: [16]byte{byte(i + 1)}, Fingerprint: [16]byte{9}, Note: []byte{byte(i + 1)}},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	charged := slices.IndexFunc(answers, func(a limit.Answer) bool { return a.Charged })
	if charged < 0 {
		t.Fatalf("nobody charged: %+v", answers)
	}
	for i, a := range answers {
		if a.Replayed != (i != charged) || !a.Allowed || a.DecisionID != [16]byte{byte(charged + 1)} {
			t.Errorf("answer %d: %+v, want that of decision %d", i, a, charged+1)
		}
		if a.Replayed && (len(a.Note) != 1 || a.Note[0] != byte(charged+1)) {
			t.Errorf("answer %d has the note %v", i, a.Note)
		}
		if diff := cmp.Diff(answers[charged].Results, a.Results); diff != "" {
			t.Errorf("answer %d differs: %s", i, diff)
		}
	}
	if a := decide(t, openStore(t, server.URL, generous), quota("acme", span, 100, 0)); a.Results[0].Consumed != 15 {
		t.Errorf("used %d, want 15", a.Results[0].Consumed)
	}
}

// TestIntegrationFC05Waits guarantees waits to the microsecond: what a face
// rounds up to whole seconds is right before it does.
func TestIntegrationFC05Waits(t *testing.T) {
	t.Parallel()
	s := openStore(t, redistest.Start(t).URL, generous)
	t0 := time.Date(2026, 11, 14, 9, 30, 0, 0, time.UTC)
	minute := gcra("acme", 5, time.Minute, 5, 5)
	at(t, s, t0, minute)
	for _, tt := range []struct {
		after, want time.Duration
		cost        int64
	}{
		{58_600 * time.Millisecond, 1_400 * time.Millisecond, 5},
		{59_950 * time.Millisecond, 50 * time.Millisecond, 5},
		{59_999_999 * time.Microsecond, time.Microsecond, 5},
		{0, 12 * time.Second, 1},
	} {
		c := minute
		c.Cost = tt.cost
		if a := at(t, s, t0.Add(tt.after), c); a.Allowed || a.Results[0].RetryAfter != tt.want {
			t.Errorf("%v in: %+v, want a wait of %v", tt.after, a, tt.want)
		}
	}
	if a := at(t, s, t0.Add(time.Minute), minute); !a.Allowed {
		t.Errorf("after a minute: %+v, want allowed", a)
	}
	span := month(t0)
	at(t, s, t0, quota("acme", span, 5, 5))
	if a := at(t, s, span.End.Add(-time.Hour), quota("acme", span, 5, 1)); a.Allowed || a.Results[0].RetryAfter != time.Hour {
		t.Errorf("one hour before the month ends: %+v, want a wait of 1h", a)
	}
}

// TestIntegrationFC05EveryAlgorithm guarantees that whatever counts says a wait
// that is neither too short nor too long by a microsecond.
func TestIntegrationFC05EveryAlgorithm(t *testing.T) {
	t.Parallel()
	const rest = 1_400 * time.Millisecond // of the minute
	waits := map[string]time.Duration{
		string(rule.SlidingWindowCounter): rest + time.Minute, // what it counted of this minute fades in the next
		"prepaid wallet":                  limit.Never,
	}
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		ask := func(after time.Duration, cost int64) limit.Answer {
			now := noon.Add(after)
			return at(t, s, now, k.charge("acme", now, 5, time.Minute, cost))
		}
		ask(0, 5)
		want, other := waits[k.name]
		if !other {
			want = rest
		}
		a := ask(time.Minute-rest, 5)
		if a.Allowed || a.Results[0].RetryAfter != want {
			t.Fatalf("1.4 s before the minute ends: %+v, want a wait of %v", a, want)
		}
		if want == limit.Never {
			return
		}
		if a := ask(time.Minute-rest+want-time.Microsecond, 5); a.Allowed || a.Results[0].RetryAfter != time.Microsecond {
			t.Errorf("a microsecond early: %+v, want a wait of 1µs", a)
		}
		if a := ask(time.Minute-rest+want, 5); !a.Allowed {
			t.Errorf("in time: %+v, want allowed", a)
		}
	})
}

// TestIntegrationFC08OneRuleDoesNotBurnAnother guarantees that what one
// integrator is refused costs its organisation nothing, in either order,
// whatever counts.
func TestIntegrationFC08OneRuleDoesNotBurnAnother(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		for _, reverse := range []bool{false, true} {
			org := fmt.Sprint("org ", reverse)
			ask := func(who string, cost int64) limit.Answer {
				charges := []limit.Charge{k.charge(org, noon, 10, time.Minute, cost), k.charge(org+who, noon, 5, time.Minute, cost)}
				if reverse {
					slices.Reverse(charges)
				}
				a := at(t, s, noon, charges...)
				if reverse {
					slices.Reverse(a.Results)
				}
				return a
			}
			count := func(who string, n int) (allowed int) {
				for range n {
					if ask(who, 1).Allowed {
						allowed++
					}
				}
				return allowed
			}
			if a, b := count("a", 8), count("b", 5); a != 5 || b != 5 {
				t.Errorf("a %d of 8, b %d of 5 allowed, want 5 and 5", a, b)
			}
			if last := ask("b", 1); last.Allowed || last.Results[0].Passed || last.Results[1].Passed {
				t.Errorf("b's last: %+v, want both to refuse", last)
			}
			a := ask("b", 0)
			if a.Results[0].Remaining != 0 || a.Results[1].Remaining != 0 || k.totals && (a.Results[0].Consumed != 10 || a.Results[1].Consumed != 5) {
				t.Errorf("%+v, want 10 and 5 used", a)
			}
		}
	})
}

// TestIntegrationFC13ScriptCacheLost guarantees that a flushed script cache
// and a restarted server are not seen by callers, and that readiness is more
// than a ping.
func TestIntegrationFC13ScriptCacheLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := openStore(t, server.URL, generous)
	span := month(time.Now())
	results := make(chan bool, 7)
	ask := func() {
		a, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{quota("acme", span, 5, 1)}})
		if err != nil {
			t.Error(err)
		}
		results <- a.Allowed
	}
	for range 3 {
		ask()
	}
	if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(ask)
	}
	wg.Wait()
	server.Kill()
	if err := s.Ready(t.Context()); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("Ready without a server = %v", err)
	}
	server.Restart()
	eventually(t, 5*time.Second, "ready again", func() bool { return s.Ready(t.Context()) == nil })
	ask()
	allowed := 0
	for range 7 {
		if <-results {
			allowed++
		}
	}
	if used := decide(t, s, quota("acme", span, 5, 0)).Results[0].Consumed; allowed != 5 || used != 5 {
		t.Errorf("%d allowed, used %d, want 5 and 5", allowed, used)
	}
}

// TestIntegrationFC15LoweredLimit guarantees that what remains is derived from
// what was used, whatever the limit was and whatever counts.
func TestIntegrationFC15LoweredLimit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *counters.Store, k kind) {
		high := int64(5_000_000)
		if k.name == string(rule.SlidingWindowLog) {
			high = rule.MaxLog
		}
		ask := func(max, cost int64) limit.Answer {
			return at(t, s, noon, k.charge("acme", noon, max, time.Hour, cost))
		}
		first := ask(high, 35)
		if a := ask(10, 1); a.Allowed || a.Results[0].Remaining != 0 || k.totals && a.Results[0].Consumed != 35 {
			t.Errorf("lowered to 10: %+v, want refused, 0 remaining, 35 used", a)
		}
		if a := ask(100, 1); !a.Allowed || a.Results[0].Remaining != 64 || k.totals && a.Results[0].Reset != first.Results[0].Reset {
			t.Errorf("raised to 100: %+v, want allowed, 64 remaining, and the same end", a)
		}
	})
}

// entries is how many charges the log of a counter holds on a server.
func entries(t *testing.T, server *redistest.Server, c limit.Charge) int64 {
	t.Helper()
	n, err := server.Client().StrLen(t.Context(), counters.Key(c.Counter)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return (n - 13) / 12
}

// TestIntegrationFC06RefusedAttempts guarantees that refused attempts leave
// nothing behind: a log of 10 per 600 s, asked every 30 s, lets the first ten
// pass, and ten again as soon as those have left, whoever of two is asked.
func TestIntegrationFC06RefusedAttempts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{openStore(t, server.URL, generous), openStore(t, server.URL, generous)}
	charge := rate(rule.SlidingWindowLog, "acme", 10, 600*time.Second, 1)
	var allowed []int
	for i := range 40 {
		if a := at(t, stores[i%2], noon.Add(time.Duration(i)*30*time.Second), charge); a.Allowed {
			allowed = append(allowed, 30*i)
		}
		if n := entries(t, server, charge); n > 10 {
			t.Errorf("attempt %d: %d entries, want at most 10", i, n)
		}
	}
	want := []int{
		0, 30, 60, 90, 120, 150, 180, 210, 240, 270, 600, 630, 660, 690, 720, 750, 780, 810, 840, 870,
	}
	if !slices.Equal(allowed, want) {
		t.Errorf("allowed at %v s, want %v", allowed, want)
	}
}

// TestIntegrationFC07OneInstant guarantees that requests of one instant are
// counted one by one, one after another and at once through two gateways; and
// that a cost of 3 fills a log of 3.
func TestIntegrationFC07OneInstant(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := []*counters.Store{openStore(t, server.URL, generous), openStore(t, server.URL, generous)}
	for _, k := range kinds {
		one := func(who string) func(i int) (limit.Answer, error) {
			return func(i int) (limit.Answer, error) {
				answers, err := stores[i%2].At(t.Context(), noon, limit.Decision{Charges: []limit.Charge{k.charge(who, noon, 3, time.Minute, 1)}})
				if err != nil {
					return limit.Answer{}, err
				}
				return answers[0], nil
			}
		}
		inOrder := 0
		for i := range 10 {
			if a, err := one("in order")(i); err != nil {
				t.Fatal(err)
			} else if a.Allowed {
				inOrder++
			}
		}
		if atOnce := crowd(t, 10, one("at once")); inOrder != 3 || atOnce != 3 {
			t.Errorf("%s: %d of 10 in order and %d at once, want 3 of each", k.name, inOrder, atOnce)
		}
		for i, want := range []bool{true, false} {
			if a := at(t, stores[i], noon, k.charge("whole", noon, 3, time.Minute, 3)); a.Allowed != want {
				t.Errorf("%s: cost 3, the %d. time: %+v, want allowed %v", k.name, i+1, a, want)
			}
		}
	}
	for _, who := range []string{"in order", "at once"} {
		if n := entries(t, server, rate(rule.SlidingWindowLog, who, 3, time.Minute, 1)); n != 3 {
			t.Errorf("%s: %d entries, want 3", who, n)
		}
	}
}

// TestIntegrationFC09SteadyHits guarantees that a bucket that is in use goes on
// leaking: 10 per 30 s, hit each second through two gateways by turns; and that a
// day's pause stores no more than it holds.
func TestIntegrationFC09SteadyHits(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL
	stores := []*counters.Store{openStore(t, url, generous), openStore(t, url, generous)}
	for _, a := range []rule.Algorithm{rule.LeakyBucket, rule.TokenBucket, rule.GCRA} {
		charge := rate(a, "acme", 10, 30*time.Second, 1)
		var remaining []int64
		for i := range 11 {
			remaining = append(remaining, at(t, stores[i%2], noon.Add(time.Duration(i)*time.Second), charge).Results[0].Remaining)
		}
		if want := []int64{9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2}; !slices.Equal(remaining, want) {
			t.Errorf("%s: %v remain, want %v", a, remaining, want)
		}
		allowed := 0
		for i := range 25 {
			if at(t, stores[i%2], noon.Add(10*time.Second+24*time.Hour), charge).Allowed {
				allowed++
			}
		}
		if allowed != 10 {
			t.Errorf("%s: %d of 25 allowed after a day, want 10", a, allowed)
		}
	}
}

// TestIntegrationFC11WhatFits guarantees that the whole capacity may be asked
// for, after the wait that is stated, and that more than it is never told to
// wait; and that a limit of 0 refuses everything.
func TestIntegrationFC11WhatFits(t *testing.T) {
	t.Parallel()
	s := openStore(t, redistest.Start(t).URL, generous)
	for _, a := range []rule.Algorithm{rule.GCRA, rule.TokenBucket, rule.LeakyBucket} {
		ask := func(after time.Duration, cost int64) (limit.Answer, limit.Result) {
			answer := at(t, s, noon.Add(after), rate(a, "acme", 10, 10*time.Second, cost))
			return answer, answer.Results[0]
		}
		ask(0, 10)
		if answer, r := ask(0, 10); answer.Allowed || r.RetryAfter != 10*time.Second {
			t.Errorf("%s: cost 10: %+v, want a wait of 10 s", a, answer)
		}
		if answer, r := ask(0, 11); answer.Allowed || r.RetryAfter != limit.Never {
			t.Errorf("%s: cost 11: %+v, want never", a, answer)
		}
		if answer, r := ask(10*time.Second, 10); !answer.Allowed || r.Remaining != 0 {
			t.Errorf("%s: cost 10 after the wait: %+v, want allowed and 0 left", a, answer)
		}
	}
	for _, k := range kinds {
		for range 100 {
			if a := at(t, s, noon, k.charge("nothing", noon, 0, 10*time.Second, 1)); a.Allowed {
				t.Fatalf("%s: a limit of 0 allows %+v", k.name, a)
			}
		}
	}
}
