package decide_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// A lender is the model of the store, at the time that it is, and of who has its
// counters.
type lender struct {
	mu      sync.Mutex
	state   limit.State
	run     int // of the store
	asked   int // questions
	fail    error
	stay    error // of what is given back
	returns int
	net     map[rule.Subject]int64 // units charged and not given back
	trip    func()                 // half of one
}

func newLender() *lender {
	return &lender{state: limit.NewState(), net: map[rule.Subject]int64{}, trip: func() {}}
}

func (l *lender) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	var trip func()
	l.set(func() { trip = l.trip })
	trip()
	defer trip()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.fail != nil {
		return limit.Answer{}, l.fail
	}
	a, err := limit.Decide(l.state, time.Now(), d)
	if a.Charged {
		for i := range d.Charges {
			l.net[d.Charges[i].Counter.Subject] += d.Charges[i].Cost
		}
	}
	return a, err
}

func (l *lender) DecideAll(ctx context.Context, all []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(all)), make([]error, len(all))
	for i := range all {
		answers[i], errs[i] = l.Decide(ctx, all[i])
	}
	return answers, errs
}

func (l *lender) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return limit.Correct(l.state, time.Now(), c)
}

// set changes the store.
func (l *lender) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// holder is who has any counter.
func (l *lender) holder(limit.Identity) decide.Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &holder{l, l.run}
}

type holder struct {
	*lender
	was int
}

func (h *holder) Lasts() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.run == h.was
}

// GiveBack is a refund of a decision that nobody else corrects.
func (h *holder) GiveBack(_ context.Context, c limit.Charge, at time.Time) (int64, error) {
	if !h.Lasts() {
		return 0, errors.New("it is another's")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.returns++
	if h.stay != nil {
		return 0, h.stay
	}
	back := limit.Correction{Tenant: "leases", At: at, Cost: c.Cost, Items: []limit.Item{{Charge: c}}, Refund: "r"}
	binary.BigEndian.PutUint64(back.DecisionID[:], uint64(h.returns))
	a, err := limit.Correct(h.state, time.Now(), back)
	if err != nil || a.Effect != limit.Corrected {
		return 0, err
	}
	h.net[c.Counter.Subject] += a.Items[0].Units
	return -a.Items[0].Units, nil
}

// A tenure is a service with leases.
type tenure struct {
	*rig
	store  *lender
	leases *decide.Leases
}

func newTenure(t *testing.T, store *lender, rules ...*rule.Rule) *tenure {
	t.Helper()
	v := &tenure{store: store}
	v.leases = decide.NewLeases(decide.NewDenials(store, 1024, time.Now), store.holder, 1000, time.Now)
	v.rig = newRig(t, v.leases, time.Now, rules...)
	t.Cleanup(v.close)
	return v
}

func (v *tenure) close() {
	if err := v.leases.Close(); err != nil {
		v.t.Error(err)
	}
}

// asks is how many questions the store got while f ran, leases included.
func (v *tenure) asks(f func()) int {
	var before, after int
	v.store.set(func() { before = v.store.asked })
	f()
	synctest.Wait()
	v.store.set(func() { after = v.store.asked })
	return after - before
}

// sell asks n times, and returns how often that passed.
func (v *tenure) sell(n int, q decide.Query) (passed int) {
	v.t.Helper()
	for range n {
		if v.ask(q).Outcome == decide.Allow {
			passed++
		}
		synctest.Wait()
	}
	return passed
}

// left is what the store would sell of a tenant's only limit.
func (v *tenure) left(q decide.Query) int64 {
	q.Cost = units(0)
	return v.ask(q).Limits[0].Remaining
}

// leased is a rule of n a minute that may be leased.
func leased(a rule.Algorithm, n, units int64, ttl time.Duration) *rule.Rule {
	r := rate("leased", rule.Tenant, n)
	r.Algorithm, r.Lease = a, &rule.Lease{Units: units, TTL: ttl}
	if !a.Bucket() {
		r.Burst = 0
	}
	return r
}

var globex = decide.Query{Tenant: "globex"}

// rates are the algorithms that can be leased.
var rates = []rule.Algorithm{
	rule.GCRA, rule.TokenBucket, rule.LeakyBucket, rule.FixedWindow, rule.SlidingWindowCounter, rule.SlidingWindowLog,
}

// TestLeases guarantees that a counter which is asked about often is asked once
// for many: what is sold is what was charged, the answers say what is left, and
// in the end the counter has exactly what was sold.
func TestLeases(t *testing.T) {
	t.Parallel()
	for _, a := range rates {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v := newTenure(t, newLender(), leased(a, 100, 20, 20*time.Second))
				if n := v.asks(func() { v.sell(19, globex) }); n != 19 || v.leases.Len() != 0 {
					t.Errorf("19 units: %d questions, %d leases; want 19 and none", n, v.leases.Len())
				}
				if n := v.asks(func() { v.sell(1, globex) }); n != 2 || v.leases.Len() != 1 {
					t.Errorf("the twentieth: %d questions, %d leases; want it and a lease's", n, v.leases.Len())
				}
				time.Sleep(100 * time.Millisecond) // a unit earns back in 600
				var first, last decide.Decision
				if n := v.asks(func() {
					first = v.ask(globex)
					v.sell(7, globex)
					last = v.ask(globex)
				}); n != 0 || last.Outcome != decide.Allow {
					t.Errorf("9 units of a lease of 15: %d questions, %s", n, last.Outcome)
				}
				if first.Limits[0].Remaining != 79 || last.Limits[0].Remaining != 71 || first.ID == last.ID {
					t.Errorf("first %d remain, then %d, want 79 and 71", first.Limits[0].Remaining, last.Limits[0].Remaining)
				}
				if u, ok := last.Usage(); !ok || u.Verdict != decide.VerdictAllow || u.Cost != 1 || !u.At.Equal(time.Now()) || u.RuleID != "leased" {
					t.Errorf("its event is %+v, %t", u, ok)
				}
				if n := v.asks(func() { v.sell(1, globex) }); n != 1 {
					t.Errorf("at a quarter: %d questions, want the next lease's", n)
				}
				if n := v.asks(func() { v.sell(10, globex) }); n != 0 {
					t.Errorf("over the end of a lease: %d questions", n)
				}
				v.close()
				if left := v.left(globex); left != 100-40 {
					t.Errorf("%d left after 40 were sold", left)
				}
				if got, want := v.leases.Units(), (decide.LeaseUnits{Taken: 30, Spent: 20, Returned: 10}); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
				if n := v.asks(func() { v.sell(1, globex) }); n != 1 {
					t.Errorf("once closed: %d questions, want 1", n)
				}
			})
		})
	}
}

// TestLeasesOfMany guarantees that questions which come together are answered
// from leases too, and that several counters are spent from together or not at
// all.
func TestLeasesOfMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wide := leased(rule.TokenBucket, 1000, 50, 20*time.Second)
		wide.ID, wide.Subject = "wide", 0
		v := newTenure(t, newLender(), leased(rule.FixedWindow, 200, 20, 20*time.Second), wide)
		many := make([]decide.Query, 10)
		for i := range many {
			many[i] = globex
		}
		ask := func() {
			all, errs := v.DecideAll(t.Context(), many)
			for i := range all {
				if errs[i] != nil || all[i].Outcome != decide.Allow || len(all[i].Limits) != 2 {
					t.Errorf("%d: %+v, %v", i, all[i], errs[i])
				}
			}
		}
		// The narrow one is leased at the twentieth, the wide one at the fiftieth.
		for _, want := range []int{10, 11, 10, 10, 11, 1, 0, 2} {
			if n := v.asks(ask); n != want {
				t.Errorf("%d questions, want %d", n, want)
			}
		}
		v.close()
		if narrow, wide := left(v.ask(decide.Query{Tenant: "globex", Cost: units(0)}), "leased"), left(v.ask(decide.Query{Tenant: "globex", Cost: units(0)}), "wide"); narrow != 120 || wide != 920 {
			t.Errorf("%d and %d left, want 120 and 920", narrow, wide)
		}
	})
}

// TestNoLease guarantees what is decided by the store alone.
func TestNoLease(t *testing.T) {
	t.Parallel()
	another := func(change func(*rule.Rule)) *rule.Rule {
		r := leased(rule.GCRA, 10_000, 10, time.Second)
		r.ID, r.Subject = "another", 0
		change(r)
		return r
	}
	for name, tt := range map[string]struct {
		rules []*rule.Rule
		query decide.Query
	}{
		"a request id":           {query: decide.Query{Tenant: "globex", RequestID: "r"}},
		"a peek":                 {query: decide.Query{Tenant: "globex", Cost: units(0)}},
		"a cost above the lease": {query: decide.Query{Tenant: "globex", Cost: units(11)}},
		"a rule without a lease": {rules: []*rule.Rule{another(func(r *rule.Rule) { r.Lease = nil })}},
		"a quota":                {rules: []*rule.Rule{quota("month", 10_000)}},
		"a shadow":               {rules: []*rule.Rule{another(func(r *rule.Rule) { r.Mode = rule.Shadow })}},
		"a soft limit":           {rules: []*rule.Rule{another(func(r *rule.Rule) { r.Soft = true })}},
		"no cost":                {rules: []*rule.Rule{another(func(r *rule.Rule) { r.Cost = units(0) })}},
		"a log beside another":   {rules: []*rule.Rule{another(func(r *rule.Rule) { r.Algorithm, r.Burst = rule.SlidingWindowLog, 0 })}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v := newTenure(t, newLender(), leased(rule.GCRA, 10_000, 10, time.Second))
				plain := v.asks(func() { v.sell(30, globex) })
				for _, r := range tt.rules {
					v.rule(r)
				}
				q := tt.query
				if q.Tenant == "" {
					q = globex
				}
				if n := v.asks(func() { v.sell(30, q) }); n < 30 || plain >= 30 {
					t.Errorf("%d of 30 asked, and %d plain ones", n, plain)
				}
			})
		})
	}
}

// TestColdCountersAreNotLeased guarantees that who asks less in a lease's time
// than it holds never gets one, however long it goes on.
func TestColdCountersAreNotLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newTenure(t, newLender(), leased(rule.GCRA, 1000, 10, time.Second))
		if n := v.asks(func() {
			for range 100 {
				v.sell(1, globex)
				time.Sleep(112 * time.Millisecond)
			}
		}); n != 100 {
			t.Errorf("%d questions, want 100", n)
		}
	})
}

// TestLeasesEnd guarantees what ends a lease before it is spent, and that what is
// left of it goes back, once: its time, its window, a change of its rule.
func TestLeasesEnd(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, a rule.Algorithm) *tenure {
		v := newTenure(t, newLender(), leased(a, 100, 10, 20*time.Second))
		v.sell(13, globex)
		if left := v.left(globex); left != 82 {
			t.Fatalf("%d left, want 82: there is no lease", left)
		}
		return v
	}
	t.Run("time", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			v := begin(t, rule.SlidingWindowLog)
			time.Sleep(20*time.Second - 1)
			if n := v.asks(func() { v.sell(1, globex) }); n != 0 {
				t.Errorf("a moment before its end: %d questions", n)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if left := v.left(globex); left != 86 || v.leases.Len() != 0 {
				t.Errorf("%d left, %d leases; want 86 and none", left, v.leases.Len())
			}
			v.sell(1, globex)
			if left := v.left(globex); left != 85 || v.store.returns != 1 {
				t.Errorf("%d left after %d returns, want 85 after 1", left, v.store.returns)
			}
		})
	})
	for _, a := range []rule.Algorithm{rule.FixedWindow, rule.SlidingWindowCounter} {
		t.Run("window of "+string(a), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(50 * time.Second) // windows begin at whole minutes
				v := begin(t, a)
				time.Sleep(10*time.Second - 1)
				if n := v.asks(func() { v.sell(1, globex) }); n != 0 {
					t.Errorf("a moment before the end of the window: %d questions", n)
				}
				time.Sleep(time.Nanosecond)
				if n := v.asks(func() { v.sell(1, globex) }); n != 1 {
					t.Errorf("in the next window: %d questions, want 1", n)
				}
				want := map[rule.Algorithm]int64{rule.FixedWindow: 99, rule.SlidingWindowCounter: 85}[a]
				if left := v.left(globex); left != want {
					t.Errorf("%d left, want %d: 14 were sold in the window before", left, want)
				}
			})
		})
	}
	t.Run("rule", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			v := begin(t, rule.GCRA)
			v.rule(leased(rule.GCRA, 50, 10, 20*time.Second))
			if n := v.asks(func() { v.sell(1, globex) }); n != 1 {
				t.Errorf("after a change %d questions, want 1", n)
			}
			if left := v.left(globex); left != 50-14 {
				t.Errorf("%d left, want %d", left, 50-14)
			}
			time.Sleep(time.Second)
			if n := v.asks(func() { v.sell(20, globex) }); n >= 15 {
				t.Errorf("a second later %d questions of 20: it is not leased again", n)
			}
		})
	})
}

// TestLeasesOfALostStore guarantees that a store which is away is not needed as
// long as a lease lasts, that one which another has replaced ends its leases,
// and that nothing of them goes to the other.
func TestLeasesOfALostStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := leased(rule.FixedWindow, 100, 10, 20*time.Second)
		r.OnFailure = rule.Closed
		v := newTenure(t, newLender(), r)
		v.sell(12, globex)
		v.store.set(func() { v.store.fail = errors.New("away") })
		if passed := v.sell(20, globex); passed != 6 {
			t.Errorf("%d passed, want the 6 that were paid for", passed)
		}
		if d := v.ask(globex); d.Status != 503 || !d.Degraded {
			t.Errorf("then %+v, want what the rule says of failures", d)
		}
		v.store.set(func() { v.store.fail = nil })
		time.Sleep(1001 * time.Millisecond)
		v.sell(3, globex) // one of the store, two of the next lease
		v.store.set(func() { v.store.state, v.store.run = limit.NewState(), 1 })
		if n := v.asks(func() { v.sell(1, globex) }); n != 1 {
			t.Errorf("of the new store: %d questions, want 1", n)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if left := v.left(globex); left != 99 || v.store.returns != 0 {
			t.Errorf("the new store has %d left after %d returns, want 99 after none", left, v.store.returns)
		}
		if got, want := v.leases.Units(), (decide.LeaseUnits{Taken: 24, Spent: 10, Lost: 14}); got != want { // a lease was asked for in vain
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestLostReplies guarantees that nothing is given back or spent twice where a
// reply is lost: units that may have been charged count as spent.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newTenure(t, newLender(), leased(rule.FixedWindow, 100, 10, 20*time.Second))
		v.store.stay = errors.New("no reply")
		v.sell(12, globex)
		v.close()
		v.close()
		if got, want := v.leases.Units(), (decide.LeaseUnits{Taken: 8, Spent: 2, Lost: 6}); got != want || v.store.returns != 1 {
			t.Errorf("%+v after %d returns, want %+v after 1", got, v.store.returns, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		store := newLender()
		v := newTenure(t, store, leased(rule.FixedWindow, 1000, 10, 20*time.Second))
		v.sell(9, globex)
		store.set(func() { store.trip = func() { time.Sleep(500 * time.Microsecond) } })
		v.ask(globex) // and a lease is on its way
		store.set(func() { store.fail = errors.New("no reply") })
		time.Sleep(2 * time.Millisecond)
		store.set(func() { store.fail, store.trip = nil, func() {} })
		if n := v.asks(func() { v.sell(20, globex) }); n != 20 {
			t.Errorf("right after it: %d questions of 20", n)
		}
		if got, want := v.leases.Units(), (decide.LeaseUnits{Taken: 8, Lost: 8}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		time.Sleep(1001 * time.Millisecond)
		if n := v.asks(func() { v.sell(20, globex) }); n >= 20 {
			t.Errorf("a second later: %d questions of 20", n)
		}
	})
}

// TestLeasesNearTheLimit guarantees that the last units are sold one by one: who
// is refused a lease asks for each, and does not try again with each.
func TestLeasesNearTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newTenure(t, newLender(), leased(rule.FixedWindow, 35, 10, 20*time.Second))
		asked := 0
		passed := 0
		asked = v.asks(func() { passed = v.sell(100, globex) })
		// 10, three leases of 8, none, one and a denial.
		if want := 10 + 3 + 1 + 1 + 1; passed != 35 || asked != want {
			t.Errorf("%d of 35 sold with %d questions, want %d", passed, asked, want)
		}
	})
}

// TestRefundOfALeasedDecision guarantees that a refund, and a settlement, of what
// was spent from a lease finds what was charged for it, in every algorithm.
func TestRefundOfALeasedDecision(t *testing.T) {
	t.Parallel()
	for _, a := range rates {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v := newTenure(t, newLender(), leased(a, 10_000, 10, 20*time.Second))
				v.sell(10, globex)
				time.Sleep(5 * time.Millisecond) // a unit earns back in 6
				q := decide.Query{Tenant: "globex", Cost: units(4)}
				var spent decide.Decision
				if n := v.asks(func() { spent = v.ask(q) }); n != 0 {
					t.Fatalf("%d questions: it was not leased", n)
				}
				receipt, ok := spent.Receipt()
				if again, err := decide.ParseReceipt(receipt.AppendBinary(nil)); !ok || err != nil || !again.At.Equal(receipt.At) || len(again.Charged) != 1 {
					t.Fatalf("receipt %+v, %t, read %+v, %v", receipt, ok, again, err)
				}
				v.close()
				before := v.left(globex)
				if c, err := v.Refund(t.Context(), receipt, "", 1); err != nil || c.Units != 1 || v.left(globex) != before+1 {
					t.Errorf("refund %+v, %v: %d left, want %d", c, err, v.left(globex), before+1)
				}
				if c, err := v.Settle(t.Context(), receipt, 2); err != nil || c.Units != -2 || v.left(globex) != before+3 {
					t.Errorf("settlement %+v, %v: %d left, want %d", c, err, v.left(globex), before+3)
				}
			})
		})
	}
}

// TestFewLeases guarantees that no more leases are held than there may be, and
// that others get one when those have ended.
func TestFewLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newLender()
		leases := decide.NewLeases(decide.NewDenials(store, 0, time.Now), store.holder, 3, time.Now)
		r := newRig(t, leases, time.Now, leased(rule.GCRA, 1000, 10, time.Second))
		for i := range 10 {
			for range 12 {
				r.ask(decide.Query{Tenant: fmt.Sprint("t", i)})
				synctest.Wait()
			}
			if n := leases.Len(); n != min(i+1, 3) {
				t.Errorf("%d leases after %d tenants", n, i+1)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := leases.Len(); n != 0 {
			t.Errorf("%d leases after their time", n)
		}
		for range 12 {
			r.ask(decide.Query{Tenant: "t9"})
			synctest.Wait()
		}
		if n := leases.Len(); n != 1 {
			t.Errorf("%d leases, want 1", n)
		}
		if err := leases.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A sale is units that passed.
type sale struct {
	at    time.Time
	units int64
}

// TestLeasesNeverOversell guarantees, for gateways that share a store and ask
// whatever, what a limit promises with leases: in a window of the grid no more than
// the limit; in any other stretch no more than without leases, and what was held
// when it began. When all has been given back the counter has what was sold.
func TestLeasesNeverOversell(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const most, size, gateways = 300, 10, 3
	for n, a := range rates {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				store := newLender()
				store.trip = func() { time.Sleep(500 * time.Microsecond) }
				r := leased(a, most, size, 2*time.Second)
				r.Window = 20 * time.Second
				all := make([]*tenure, gateways)
				for i := range all {
					all[i] = newTenure(t, store, r)
				}
				var sold []sale
				for range 12_000 {
					q := decide.Query{Tenant: "globex", Cost: units(1 + rng.Int64N(6)/4)}
					if d := all[rng.IntN(gateways)].ask(q); d.Outcome == decide.Allow {
						sold = append(sold, sale{time.Now(), *q.Cost})
					}
					wait := time.Duration(rng.IntN(25_000)) * time.Microsecond
					if rng.IntN(50) == 0 {
						wait *= 100
					}
					time.Sleep(wait)
				}
				u := unitsOf(all)
				if u.Taken != u.Spent+u.Returned+u.Lost || u.Spent < 500 || u.Returned < 20 {
					t.Errorf("%+v: more or less than was taken, or too few to tell", u)
				}
				if a.Bucket() {
					promised(t, sold, size*gateways, 2*r.Window, func(passed time.Duration) int64 {
						return r.Burst + r.Limit*(passed.Microseconds()+1)/r.Window.Microseconds() + 1
					})
				} else if a == rule.SlidingWindowLog {
					promised(t, sold, size*gateways, r.Window, func(time.Duration) int64 { return r.Limit })
				} else {
					promisedOnGrid(t, sold, r)
				}
			})
		})
	}
}

// unitsOf closes gateways and adds up what became of the units that they held.
func unitsOf(all []*tenure) (sum decide.LeaseUnits) {
	for _, v := range all {
		v.close()
		u := v.leases.Units()
		sum = decide.LeaseUnits{Taken: sum.Taken + u.Taken, Spent: sum.Spent + u.Spent, Returned: sum.Returned + u.Returned, Lost: sum.Lost + u.Lost}
	}
	return sum
}

// promised checks that in any stretch below window no more was sold than bound
// says, and what may have been held.
func promised(t *testing.T, sold []sale, held int64, window time.Duration, bound func(time.Duration) int64) {
	t.Helper()
	refused := false
	for i := range sold {
		n := int64(0)
		for _, s := range sold[i:] {
			passed := s.at.Sub(sold[i].at)
			if passed >= window {
				break
			}
			if n += s.units; n > bound(passed)+held {
				t.Fatalf("%d sold within %v, want at most %d, and %d held", n, passed, bound(passed), held)
			}
			refused = refused || n > bound(passed)*9/10
		}
	}
	if !refused {
		t.Error("nowhere near the limit: nothing is told")
	}
}

// promisedOnGrid checks that in no window of the grid more was sold than the limit.
func promisedOnGrid(t *testing.T, sold []sale, r *rule.Rule) {
	t.Helper()
	grid, full := map[int64]int64{}, 0
	for _, s := range sold {
		grid[s.at.UnixMicro()/r.Window.Microseconds()] += s.units
	}
	for window, n := range grid {
		if n > r.Limit {
			t.Errorf("%d sold in window %d, want at most %d", n, window, r.Limit)
		}
		if n > r.Limit*9/10 {
			full++
		}
	}
	if full == 0 {
		t.Error("nowhere near the limit: nothing is told")
	}
}

// TestLeasesHoldNoMore guarantees that whenever a gateway is killed, also while the
// next lease comes and goes beside what is left of the last, at most one lease of
// each counter was charged and not sold: also of a rule beside another whose lease
// is often missing.
func TestLeasesHoldNoMore(t *testing.T) {
	t.Parallel()
	const most, size, beside = 100_000, 20, 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for n, a := range []rule.Algorithm{rule.FixedWindow, rule.GCRA} {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			store := newLender()
			store.trip = func() { time.Sleep(500 * time.Microsecond) }
			r := leased(a, most, size, 50*time.Millisecond)
			r.Window = rule.MaxWindow
			wide := *r
			wide.ID, wide.Subject, wide.Lease = "wide", 0, &rule.Lease{Units: beside, TTL: 20 * time.Millisecond}
			v := newTenure(t, store, r, &wide)
			sold, fullest := int64(0), int64(0)
			for range 5000 {
				q := decide.Query{Tenant: "globex", Cost: units(1 + rng.Int64N(6))}
				if v.ask(q).Outcome != decide.Allow {
					t.Fatal("refused")
				}
				sold += *q.Cost
				store.set(func() {
					narrow, wide := store.net[rule.Tenant]-sold, store.net[0]-sold
					if min(narrow, wide) < 0 || narrow > size || wide > beside {
						t.Fatalf("%d and %d units are charged and not sold, want at most %d and %d", narrow, wide, size, beside)
					}
					fullest = max(fullest, narrow)
				})
				time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
			}
			if fullest != size {
				t.Errorf("%d units were held at most, want %d at times", fullest, size)
			}
			if u := unitsOf([]*tenure{v}); u.Taken != u.Spent+u.Returned+u.Lost || u.Spent < 500 || u.Returned < 100 {
				t.Errorf("%+v: more or less than was taken, or too few to tell", u)
			}
		})
	}
}

// A doubtful Holder is one that knows better whether it lasts.
type doubtful struct {
	decide.Holder
	lasts func() bool
}

func (d *doubtful) Lasts() bool { return d.lasts() }

// TestUnitsPutBackLate guarantees that units which were taken of a lease and are
// not spent do not come on top of the next, which was taken beside the reserve.
func TestUnitsPutBackLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 20
		store, doubt := newLender(), &atomic.Bool{}
		leases := decide.NewLeases(decide.NewDenials(store, 0, time.Now), func(id limit.Identity) decide.Holder {
			return &doubtful{store.holder(id), func() bool {
				if !doubt.CompareAndSwap(true, false) {
					return true
				}
				time.Sleep(time.Millisecond)
				return false
			}}
		}, 10, time.Now)
		r := newRig(t, leases, time.Now, leased(rule.FixedWindow, 1000, size, 20*time.Second))
		for range size {
			r.ask(globex)
		}
		synctest.Wait()
		doubt.Store(true)
		var asking sync.WaitGroup
		asking.Go(func() { r.ask(decide.Query{Tenant: "globex", Cost: units(4)}) }) // takes 4 of 15, and doubts
		synctest.Wait()
		for range 6 {
			r.ask(globex) // until a quarter is left
		}
		asking.Wait()
		synctest.Wait()
		if held := store.net[rule.Tenant] - size - 6 - 4; held != size {
			t.Errorf("%d units are held, want %d", held, size)
		}
		if err := leases.Close(); err != nil {
			t.Error(err)
		}
		if got, want := leases.Units(), (decide.LeaseUnits{Taken: 30, Spent: 6, Returned: 24}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestLeasesAtOnce guarantees that many who spend from leases while they come, end
// and change sell no more than was charged; it is for the race detector too.
func TestLeasesAtOnce(t *testing.T) {
	t.Parallel()
	const most = 20_000
	store := newLender()
	r := leased(rule.FixedWindow, most, 100, time.Hour)
	r.Window = 366 * 24 * time.Hour
	wide := leased(rule.GCRA, 1_000_000, 30, 100*time.Millisecond)
	wide.ID, wide.Subject = "wide", 0
	all := make([]*tenure, 3)
	for i := range all {
		all[i] = newTenure(t, store, r, wide)
	}
	var sold [12]int64
	var selling sync.WaitGroup
	for g := range sold {
		selling.Go(func() {
			for i := range 4000 {
				cost := int64(1 + i%3)
				d, err := all[g%3].Decide(t.Context(), decide.Query{Tenant: "globex", Cost: &cost})
				if err != nil {
					t.Error(err)
				} else if d.Outcome == decide.Allow {
					sold[g] += cost
				}
			}
		})
	}
	selling.Wait()
	total := int64(0)
	for g := range sold {
		total += sold[g]
	}
	if u := unitsOf(all); u.Taken != u.Spent+u.Returned+u.Lost || u.Spent == 0 {
		t.Errorf("%+v: more or less than was taken, or too few to tell", u)
	}
	after := all[0].ask(decide.Query{Tenant: "globex", Cost: units(0)})
	if remaining := left(after, "leased"); total+remaining != most {
		t.Errorf("%d sold and %d left, want %d together", total, remaining, most)
	}
}

// BenchmarkLease measures a decision that the store is asked for, and one that is
// spent from a lease; the store answers at no cost.
func BenchmarkLease(b *testing.B) {
	always := storeFunc(func(limit.Decision) (limit.Answer, error) {
		return limit.Answer{Now: t0, Allowed: true, Charged: true, Results: passes[:1]}, nil
	})
	r := leased(rule.GCRA, 1_000_000, 1_000_000, time.Minute)
	book := decide.NewBook()
	book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: r.ID, Version: 1, Object: r}})
	for name, most := range map[string]int{"asked": 0, "leased": 1} {
		b.Run(name, func(b *testing.B) {
			leases := decide.NewLeases(decide.NewDenials(always, 0, time.Now), newLender().holder, most, time.Now)
			s := decide.NewService(book, leases, time.Now, decide.NewID, decide.Options{})
			for range 2 {
				if _, err := s.Decide(b.Context(), with(globex, func(q *decide.Query) { q.Cost = units(500_000) })); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Decide(b.Context(), globex); err != nil {
					b.Fatal(err)
				}
			}
			if err := leases.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
