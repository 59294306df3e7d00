//go:build integration

package counters_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// everywhere is a rate that is everybody's, outside any tenant's slot, and
// hardly refills.
func everywhere(a rule.Algorithm, meter string, max, cost int64) limit.Charge {
	c := rate(a, "", max, rule.MaxWindow, cost)
	c.Counter.Subject, c.Counter.Meter = 0, meter
	return c
}

// from is a rate of an address, in a slot of its own.
func from(addr string, max, cost int64) limit.Charge {
	c := rate(rule.FixedWindow, "", max, rule.MaxWindow, cost)
	c.Counter.Subject, c.Counter.Address = rule.IP, addr
	return c
}

// remaining is what a counter has left.
func remaining(t testing.TB, s *counters.Store, c limit.Charge) int64 {
	t.Helper()
	c.Cost = 0
	return decide(t, s, c).Results[0].Remaining
}

// rates are the algorithms that rates have.
var rates = []rule.Algorithm{
	rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.TokenBucket, rule.LeakyBucket, rule.GCRA,
}

// clusterCompensates: what decisions charged outside their tenant's slot comes
// back when their tenant is refused, or was answered before, whatever counts.
func clusterCompensates(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	stores := []*counters.Store{openCluster(t, c, generous), openCluster(t, c, generous)}
	for _, a := range rates {
		who := "compensated " + string(a)
		all, full := everywhere(a, who, 1000, 2), quota(who, span, 6, 2)
		addr := from("203.0.113.1", 1_000_000, 2)
		addr.Counter.Meter = who
		allowed := crowd(t, 200, func(i int) (limit.Answer, error) {
			a, err := stores[i%2].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{full, all, addr}})
			if err == nil && a.Charged != a.Allowed {
				t.Errorf("%s: %+v, want it charged when it is allowed", who, a)
			}
			return a, err
		})
		if allowed != 3 {
			t.Errorf("%s: %d allowed, want 3", who, allowed)
		}
		eventually(t, 10*time.Second, who+" is given back", func() bool {
			return remaining(t, stores[0], all) == 994 && remaining(t, stores[1], addr) == 999_994
		})
		// The same request again charges nothing, anywhere.
		replayed := crowd(t, 50, func(i int) (limit.Answer, error) {
			return stores[i%2].Decide(t.Context(), limit.Decision{
				Charges: []limit.Charge{all, addr, quota(who+" again", span, 6, 2)},
				Request: limit.Request{Tenant: who + " again", ID: "r", DecisionID: [16]byte{byte(i)}},
			})
		})
		if replayed != 50 {
			t.Errorf("%s: %d of 50 equal requests allowed", who, replayed)
		}
		eventually(t, 10*time.Second, who+" is given back after replays", func() bool {
			return remaining(t, stores[0], all) == 992 && remaining(t, stores[1], addr) == 999_992
		})
	}
}

// clusterGivesBackWhatFailed: what decisions charged outside their tenant's slot
// comes back too when there they are stale, in conflict, or cannot be decided;
// and it does so for those of a batch that do not pass.
func clusterGivesBackWhatFailed(t *testing.T, c *redistest.Cluster) {
	s, now := openCluster(t, c, generous), time.Now()
	span := month(now)
	past := period.Span{Start: span.Start.AddDate(0, -1, 0), End: span.Start}
	bad := gcra("unreadable", 10, time.Second, 10, 1)
	if err := c.Client().Set(t.Context(), counters.Key(bad.Counter), "\x02a newer layout", 0).Err(); err != nil {
		t.Fatal(err)
	}
	request := limit.Request{Tenant: "in conflict", ID: "r"}
	if _, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{quota("in conflict", span, 10, 1)}, Request: request}); err != nil {
		t.Fatal(err)
	}
	request.Fingerprint[0] = 1
	for name, tt := range map[string]struct {
		charge  limit.Charge
		request limit.Request
		ended   func(limit.Answer, error) bool
	}{
		"stale":      {charge: quota("stale", past, 10, 1), ended: func(a limit.Answer, err error) bool { return err == nil && a.Stale }},
		"conflict":   {charge: quota("in conflict", span, 10, 1), request: request, ended: func(a limit.Answer, err error) bool { return err == nil && a.Conflict }},
		"unreadable": {charge: bad, ended: func(_ limit.Answer, err error) bool { return errors.Is(err, counters.ErrValue) }},
	} {
		for _, alg := range rates {
			all := everywhere(alg, "given back, "+name, 100, 1)
			for range 5 {
				a, err := s.Decide(t.Context(), limit.Decision{Charges: []limit.Charge{all, tt.charge}, Request: tt.request})
				if !tt.ended(a, err) || a.Charged || a.Allowed {
					t.Errorf("%s, %s: %+v, %v", name, alg, a, err)
				}
			}
			eventually(t, 10*time.Second, name+" is given back to "+string(alg), func() bool { return remaining(t, s, all) == 100 })
		}
	}
	for _, alg := range rates {
		all, few := everywhere(alg, "given back, batch", 100, 1), quota("batch "+string(alg), span, 20, 1)
		answers, errs := s.DecideAll(t.Context(), slices.Repeat([]limit.Decision{{Charges: []limit.Charge{all, few}}}, 50))
		allowed := 0
		for i, a := range answers {
			if errs[i] != nil {
				t.Errorf("%s: %v", alg, errs[i])
			}
			if a.Allowed {
				allowed++
			}
		}
		if allowed != 20 {
			t.Errorf("%s: %d of a batch of 50 allowed, want 20", alg, allowed)
		}
		eventually(t, 10*time.Second, "a batch is given back to "+string(alg), func() bool { return remaining(t, s, all) == 80 })
	}
}

// clusterNeverOversells: many tenants at once buy no more of a rate that all
// share than there is, though others hold what they are about to give back; and
// when all is quiet, what is left is sold to the last unit.
func clusterNeverOversells(t *testing.T, c *redistest.Cluster) {
	const tenants, each, most = 8, 20, 100
	span := month(time.Now())
	stores := []*counters.Store{openCluster(t, c, generous), openCluster(t, c, generous), openCluster(t, c, generous)}
	for _, a := range rates {
		all := everywhere(a, "oversold "+string(a), most, 1)
		who := func(i int) string { return fmt.Sprint("oversold ", a, i%tenants) }
		var by [tenants]atomic.Int64
		ask := func(i int) (limit.Answer, error) {
			a, err := stores[i%3].Decide(t.Context(), limit.Decision{Charges: []limit.Charge{all, quota(who(i), span, each, 1)}})
			if a.Allowed {
				by[i%tenants].Add(1)
			}
			return a, err
		}
		// At first by half of the tenants, who are soon refused for themselves.
		allowed := crowd(t, 400, func(i int) (limit.Answer, error) { return ask(i % tenants / 2) })
		if allowed > tenants/2*each {
			t.Errorf("%s: %d allowed of %d for each of %d", a, allowed, each, tenants/2)
		}
		allowed += crowd(t, 600, ask)
		if allowed > most {
			t.Errorf("%s: %d allowed, of %d", a, allowed, most)
		}
		eventually(t, 10*time.Second, "what is held is given back", func() bool { return remaining(t, stores[0], all) == most-allowed })
		for i := range tenants {
			for by[i].Load() < each && allowed < most {
				a, err := ask(i)
				if err != nil || !a.Allowed {
					t.Fatalf("%s: %+v, %v: refused though %d of %d are sold, and %d to %s", all.Algorithm, a, err, allowed, most, by[i].Load(), who(i))
				}
				allowed++
			}
		}
		if a, err := ask(0); err != nil || a.Allowed || allowed != most {
			t.Errorf("%s: %d allowed of %d, and then %+v, %v", all.Algorithm, allowed, most, a, err)
		}
		for i := range tenants {
			got, err := stores[0].Usage(t.Context(), []limit.Identity{quota(who(i), span, each, 0).Counter})
			if err != nil || got[0].Consumed != by[i].Load() || by[i].Load() > each {
				t.Errorf("%s: %s used %v, %v; want the %d that were allowed, of %d", all.Algorithm, who(i), got, err, by[i].Load(), each)
			}
		}
	}
}

// clusterCorrects: corrections reach counters in every slot, once.
func clusterCorrects(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	s, other := openCluster(t, c, generous), openCluster(t, c, generous)
	for _, a := range rates {
		who := "corrected " + string(a)
		q, r, all, addr, fixed := quota(who, span, 100, 10), rate(a, who, 100, rule.MaxWindow, 10), everywhere(a, who, 100, 10), from("203.0.113.2", 100, 10), everywhere(a, who+" fixed", 100, 3)
		addr.Counter.Meter = who
		for owner, charges := range map[string][]limit.Charge{
			"tenant":    {q, all, r, addr, fixed},
			"nobody":    {all, fixed},
			"address":   {addr, all, fixed},
			"elsewhere": {all, fixed}, // nothing of it in the owner's slot
		} {
			items := make([]limit.Item, len(charges))
			left := func() (n []int64) {
				for i := range charges {
					n = append(n, remaining(t, other, charges[i]))
				}
				return n
			}
			full := left()
			answer := decide(t, s, charges...)
			correction := charged(&answer, 10, charges...)
			for i := range items {
				correction.Items[i].Fixed = charges[i].Counter.Meter == fixed.Counter.Meter
			}
			correction.Tenant, correction.Address = "", ""
			switch owner {
			case "tenant", "elsewhere":
				correction.Tenant = who
			case "address":
				correction.Address = addr.Counter.Address
			}
			expect := func(what string, got limit.CorrectionAnswer, effect limit.Effect, used, usedFixed, moved, movedFixed int64) {
				t.Helper()
				want := slices.Clone(full)
				for i := range want {
					u, m := used, moved
					if correction.Items[i].Fixed {
						u, m = usedFixed, movedFixed
					}
					want[i] -= u
					if effect == limit.Corrected && got.Items[i].Units != m {
						t.Errorf("%s of %s, %s: item %d moved by %d, want %d", who, owner, what, i, got.Items[i].Units, m)
					}
				}
				if got.Effect != effect {
					t.Errorf("%s of %s, %s: %+v, want %s", who, owner, what, got, effect)
				}
				if diff := cmp.Diff(want, left()); diff != "" {
					t.Errorf("%s of %s, %s: what remains: -want +got\n%s", who, owner, what, diff)
				}
			}
			expect("refund", correct(t, s, refund(correction, "r", 4)), limit.Corrected, 6, 3, -4, 0)
			expect("refund again", correct(t, other, refund(correction, "r", 4)), limit.Repeated, 6, 3, 0, 0)
			expect("settle", correct(t, other, settle(correction, 7)), limit.Corrected, 3, 3, -3, 0)
			expect("settle again", correct(t, s, settle(correction, 7)), limit.Repeated, 3, 3, 0, 0)
			expect("too much", correct(t, s, refund(correction, "s", 4)), limit.Exceeds, 3, 3, 0, 0)
			expect("the rest", correct(t, s, refund(correction, "t", 0)), limit.Corrected, 0, 0, -3, -3)
			expect("the rest again", correct(t, other, refund(correction, "t", 0)), limit.Repeated, 0, 0, 0, 0)
			correction.DecisionID[15]++
			answer = decide(t, s, charges...)
			correction.At = answer.Now
			expect("settle higher", correct(t, s, settle(correction, 13)), limit.Corrected, 13, 3, 3, 0)
			expect("settle higher again", correct(t, s, settle(correction, 13)), limit.Repeated, 13, 3, 0, 0)
			// Where it is not known that there was room, the 3 do not come back.
			whole := correct(t, other, refund(correction, "u", 0))
			for i, n := range left() {
				fixed := correction.Items[i].Fixed
				if used, moved := full[i]-n, -whole.Items[i].Units; fixed && (used != 0 || moved != 3) || !fixed && (used != 13-moved || moved != 13 && moved != 10) {
					t.Errorf("%s of %s, all of it: item %d moved by %d, %d used; want 13, or 10 outside the owner's slot", who, owner, i, -moved, used)
				}
			}
		}
	}
}

// clusterCorrectsMoving: while a slot is moved to another master, corrections of
// what is known there are made, each once; a first one waits until it is known
// where its mark is to be.
func clusterCorrectsMoving(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	s, other := openCluster(t, c, generous), openCluster(t, c, generous)
	q, r := quota("amended", span, 1000, 100), rate(rule.SlidingWindowLog, "amended", 1000, rule.MaxWindow, 100)
	all := everywhere(rule.FixedWindow, "amended", 1000, 100)
	a := decide(t, s, q, r, all)
	known := charged(&a, 100, q, r, all)
	given := int64(0)
	again := func() {
		t.Helper()
		for i, s := range []*counters.Store{s, other} {
			given++
			got := correct(t, s, refund(known, fmt.Sprint(given), 1))
			if got.Effect != limit.Corrected || got.RefundedTotal != given {
				t.Errorf("store %d: refund %d: %+v", i, given, got)
			}
			if got := correct(t, s, refund(known, "1", 1)); got.Effect != limit.Repeated || got.RefundedTotal != 1 {
				t.Errorf("store %d: the first again: %+v", i, got)
			}
		}
	}
	again()
	for range 3 {
		to := c.Nodes[0]
		if c.Master(counters.Key(q.Counter)) == to {
			to = c.Nodes[1]
		}
		m := c.Migrate(counters.Key(q.Counter), to)
		again()
		first := decide(t, s, q, r, all)
		var made limit.CorrectionAnswer
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { made, err = other.Correct(t.Context(), settle(charged(&first, 100, q, r, all), 0)) })
		m.Keys()
		again()
		m.End()
		again()
		wg.Wait()
		if err != nil || made.Effect != limit.Corrected || made.Items[0].Units != -100 || made.Items[2].Units != -100 {
			t.Errorf("a first correction: %+v, %v", made, err)
		}
	}
	for _, c := range []limit.Charge{q, r, all} {
		if n := remaining(t, s, c); n != 900+given {
			t.Errorf("%s: %d remain, want %d", c.Algorithm, n, 900+given)
		}
	}
}

// clusterLostCorrections: a correction whose reply is lost is not sent again by
// itself; asked again, nothing in its owner's slot moves twice.
func clusterLostCorrections(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	s, proxies := proxied(t, c, time.Second)
	direct := openCluster(t, c, generous)
	q, all := quota("uncorrected", span, 100, 10), everywhere(rule.GCRA, "uncorrected", 100, 10)
	a := decide(t, direct, q, all)
	made := charged(&a, 10, q, all)
	correct(t, s, refund(made, "r", 1)) // from now on the script is known
	owner := c.Master(counters.Key(q.Counter))
	p := proxies[owner.Addr]
	before := p.sent("evalsha")
	p.set(func() { p.lose = scriptReply })
	if _, err := s.Correct(t.Context(), settle(made, 7)); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	p.set(func() { p.lose = nil })
	if sent := p.sent("evalsha") - before; sent != 1 {
		t.Errorf("sent %d times, want once", sent)
	}
	if n := remaining(t, direct, all); n != 91 {
		t.Errorf("elsewhere %d remain, want 91: it was not known that it is corrected", n)
	}
	for range 2 {
		var got limit.CorrectionAnswer
		eventually(t, 5*time.Second, "it is answered again", func() (ok bool) {
			var err error
			got, err = s.Correct(t.Context(), settle(made, 7))
			return err == nil
		})
		if got.Effect != limit.Repeated || got.Units != -3 || got.RefundedTotal != 1 || got.Left != 6 {
			t.Errorf("asked again: %+v, want -3 repeated", got)
		}
		if n := remaining(t, direct, q); n != 94 {
			t.Errorf("%d remain, want 94", n)
		}
	}
}

// clusterReturns: what is given back is counted, and so is what is not, which is
// asked once.
func clusterReturns(t *testing.T, c *redistest.Cluster) {
	span := month(time.Now())
	s, proxies := proxied(t, c, time.Second)
	full, all := quota("returns", span, 1, 1), everywhere(rule.FixedWindow, "returns", 1000, 1)
	for i := 1; c.Master(counters.Key(full.Counter)) == c.Master(counters.Key(all.Counter)); i++ {
		full = quota(fmt.Sprint("returns ", i), span, 1, 1)
	}
	decide(t, s, full, all)
	decide(t, s, full, all) // from now on the scripts are known
	returned := s.Returned()
	read := func(result string) float64 { return value(t, returned, "penstock_counters_given_back_total", result) }
	eventually(t, 5*time.Second, "one is given back", func() bool { return read("given") == 1 && read("failed") == 0 })
	p := proxies[c.Master(counters.Key(all.Counter)).Addr]
	before, replies := p.sent("evalsha"), 0
	p.set(func() {
		p.lose = func(reply []byte) bool {
			if scriptReply(reply) {
				replies++
			}
			return replies > 1
		}
	})
	if a := decide(t, s, full, all); a.Allowed {
		t.Errorf("%+v, want refused", a)
	}
	eventually(t, 5*time.Second, "one is not given back", func() bool { return read("given") == 1 && read("failed") == 1 })
	p.set(func() { p.lose = nil })
	if sent := p.sent("evalsha") - before; sent != 2 {
		t.Errorf("sent %d times, want once to charge and once to give back", sent)
	}
	if n := remaining(t, openCluster(t, c, generous), all); n != 999 {
		t.Errorf("%d remain, want 999: the reply alone was lost", n)
	}
}
