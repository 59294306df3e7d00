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
)

// TestIntegrationE1WhatFits guarantees used + cost ≤ limit on a real Redis.
func TestIntegrationE1WhatFits(t *testing.T) {
	t.Parallel()
	s := openStore(t, redistest.Start(t).URL, generous)
	span := month(time.Now())
	decide(t, s, quota("acme", span, 100, 99))
	if a := decide(t, s, quota("acme", span, 100, 2)); a.Allowed || a.Results[0].Consumed != 99 {
		t.Errorf("cost 2: %+v, want refused with 99 used", a)
	}
	if a := decide(t, s, quota("acme", span, 100, 1)); !a.Allowed || a.Results[0].Consumed != 100 {
		t.Errorf("cost 1: %+v, want allowed with 100 used", a)
	}
}

// TestIntegrationE2Contention guarantees that 1,000 requests at once through
// three gateways buy exactly the 100 units that there are, of a quota and of a
// rate.
func TestIntegrationE2Contention(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	for name, charge := range map[string]limit.Charge{
		"quota": quota("acme", span, 100, 1),
		"gcra":  gcra("acme", 1, 24*time.Hour, 100, 1),
	} {
		stores := []*counters.Store{}
		for range 3 {
			stores = append(stores, openStore(t, server.URL, generous))
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		allowed, remaining := 0, map[int64]int{}
		for i := range 1000 {
			wg.Go(func() {
				a, err := stores[i%3].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{charge}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if a.Allowed {
					allowed++
					remaining[a.Results[0].Remaining]++
				}
			})
		}
		wg.Wait()
		if allowed != 100 {
			t.Errorf("%s: %d allowed, want 100", name, allowed)
		}
		for left := range int64(100) {
			if remaining[left] != 1 {
				t.Errorf("%s: %d answers say that %d remain, want 1: each sees the others", name, remaining[left], left)
			}
		}
		if a := decide(t, stores[0], charge); a.Allowed || name == "quota" && a.Results[0].Consumed != 100 {
			t.Errorf("%s: afterwards %+v, want 100 used", name, a)
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

// TestIntegrationFC08OneRuleDoesNotBurnAnother guarantees that what one
// integrator is refused costs its organisation nothing, in either order.
func TestIntegrationFC08OneRuleDoesNotBurnAnother(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	span := month(time.Now())
	for _, reverse := range []bool{false, true} {
		s := openStore(t, server.URL, generous)
		org := fmt.Sprint("org ", reverse)
		ask := func(who string, cost int64) limit.Answer {
			charges := []limit.Charge{quota(org, span, 10, cost), quota(org+who, span, 5, cost)}
			if reverse {
				slices.Reverse(charges)
			}
			return decide(t, s, charges...)
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
		if a := decide(t, s, quota(org, span, 10, 0), quota(org+"b", span, 5, 0)); a.Results[0].Consumed != 10 || a.Results[1].Consumed != 5 {
			t.Errorf("%+v, want 10 and 5 used", a)
		}
	}
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
// what was used, whatever the limit was.
func TestIntegrationFC15LoweredLimit(t *testing.T) {
	t.Parallel()
	s := openStore(t, redistest.Start(t).URL, generous)
	span := month(time.Now())
	decide(t, s, quota("acme", span, 5_000_000, 35))
	if a := decide(t, s, quota("acme", span, 10, 1)); a.Allowed || a.Results[0].Remaining != 0 || a.Results[0].Consumed != 35 {
		t.Errorf("lowered to 10: %+v, want refused, 0 remaining, 35 used", a)
	}
	if a := decide(t, s, quota("acme", span, 100, 1)); !a.Allowed || a.Results[0].Remaining != 64 {
		t.Errorf("raised to 100: %+v, want allowed, 64 remaining", a)
	}
}
