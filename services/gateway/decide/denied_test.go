package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// A denier is a gate that remembers denials.
type denier struct {
	*gate
	denials *decide.Denials
}

func newDenier(t *testing.T, rules ...*rule.Rule) *denier {
	t.Helper()
	d := &denier{gate: &gate{store: &modelStore{state: limit.NewState(), now: t0}, now: t0}}
	d.denials = decide.NewDenials(d.store, 1024, func() time.Time { return d.now })
	d.rig = newRig(t, d.denials, func() time.Time { return d.now }, rules...)
	return d
}

// asks is how many questions the store got while f ran.
func (d *denier) asks(f func()) int {
	before := len(d.store.asked)
	f()
	return len(d.store.asked) - before
}

// refused asks, and wants a refusal for which the store was asked so often.
func (d *denier) refused(q decide.Query, asks int) decide.Decision {
	d.t.Helper()
	var got decide.Decision
	if n := d.asks(func() { got = d.ask(q) }); got.Outcome != decide.Deny || n != asks {
		d.t.Errorf("%+v: %s by %q after %d questions, want DENY after %d", q, got.Outcome, got.RuleID, n, asks)
	}
	return got
}

var acme = decide.Query{Tenant: "acme", Application: "web", Service: "payments", Method: "POST", Path: "/v1/pay"}

// TestDenialsAreRepeated guarantees that a denial is said again without the
// store, as it would be by then, until its wait is over and for a second at
// most.
func TestDenialsAreRepeated(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 10), rate("wide", rule.Tenant|rule.Application, 100)) // a unit in 6 s
	d.ask(with(acme, func(q *decide.Query) { q.Cost = units(10) }))
	first := d.refused(acme, 1)
	d.at(t0.Add(400 * time.Millisecond))
	again := d.refused(acme, 0)
	if again.ID == first.ID {
		t.Error("two decisions have one id")
	}
	if first.RetryAfter-again.RetryAfter != 400*time.Millisecond || again.Limits[0].Reset != first.Limits[0].Reset-400*time.Millisecond {
		t.Errorf("after 0.4 s the wait went from %v to %v, the reset from %v to %v", first.RetryAfter, again.RetryAfter, first.Limits[0].Reset, again.Limits[0].Reset)
	}
	first.Limits[0].Reset, first.Limits[1].Reset, again.Limits[0].Reset, again.Limits[1].Reset = 0, 0, 0, 0
	if !reflect.DeepEqual(first.Limits, again.Limits) || again.Code != first.Code || again.RuleID != first.RuleID || !again.CanRetry {
		t.Errorf("%+v, then %+v", first, again)
	}
	if u, ok := again.Usage(); !ok || u.Verdict != decide.VerdictDeny || !u.At.Equal(d.now) {
		t.Errorf("its event is %+v, %t", u, ok)
	}
	d.at(t0.Add(time.Second))
	d.refused(acme, 1)
	d.at(t0.Add(5900 * time.Millisecond))
	d.refused(acme, 1)
	d.at(t0.Add(6 * time.Second)) // the wait is over, though no second has passed
	if n := d.asks(func() { first = d.ask(acme) }); n != 1 || first.Outcome != decide.Allow {
		t.Errorf("after its wait: %s after %d questions", first.Outcome, n)
	}
	if got := d.denials.Hits(); got != 1 {
		t.Errorf("%d answers without the store, want 1", got)
	}
}

func with(q decide.Query, change func(*decide.Query)) decide.Query {
	change(&q)
	return q
}

// TestDenialsAreOfOneQuestion guarantees what is not answered by the denial of
// something else.
func TestDenialsAreOfOneQuestion(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 10))
	d.ask(with(acme, func(q *decide.Query) { q.Cost = units(8) }))
	d.refused(with(acme, func(q *decide.Query) { q.Cost = units(3) }), 1)
	for name, change := range map[string]func(*decide.Query){
		"a lower cost":   func(q *decide.Query) { q.Cost = units(1) },
		"a peek":         func(q *decide.Query) { q.Cost = units(0) },
		"another tenant": func(q *decide.Query) { q.Tenant, q.Cost = "globex", units(3) },
	} {
		if n := d.asks(func() { d.ask(with(acme, change)) }); n != 1 {
			t.Errorf("%s: %d questions, want 1", name, n)
		}
	}
	d.refused(with(acme, func(q *decide.Query) { q.Cost, q.RequestID = units(3), "r" }), 1)
	d.refused(with(acme, func(q *decide.Query) { q.Cost, q.Path, q.Address = units(3), "/v2", netip.MustParseAddr("203.0.113.9") }), 0)
}

// TestDenialsEnd guarantees what ends a denial before its time: a change of the
// rules, and a correction of the same tenant.
func TestDenialsEnd(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 10))
	charged := d.ask(with(acme, func(q *decide.Query) { q.Cost = units(10) }))
	d.refused(acme, 1)
	d.refused(acme, 0)
	d.rule(rate("burst", rule.Tenant, 11))
	if got := d.ask(acme); got.Outcome != decide.Allow {
		t.Errorf("under the raised limit: %s", got.Outcome)
	}
	d.refused(acme, 1)
	d.refused(acme, 0)
	receipt, ok := charged.Receipt()
	if !ok {
		t.Fatal("no receipt")
	}
	if _, err := d.Refund(t.Context(), receipt, "", 2); err != nil {
		t.Fatal(err)
	}
	if got := d.ask(acme); got.Outcome != decide.Allow {
		t.Errorf("after a refund: %s", got.Outcome)
	}
	d.ask(acme)
	d.refused(acme, 1)
	d.store.fail = errors.New("away")
	if _, err := d.Refund(t.Context(), receipt, "r", 1); err == nil {
		t.Fatal("refunded without a store")
	}
	d.store.fail = nil
	d.refused(acme, 1) // whether anything was given back is not known
}

// TestDenialsEndWithATopUp guarantees that a top-up ends the denial of an empty
// wallet, for which no wait helps.
func TestDenialsEndWithATopUp(t *testing.T) {
	t.Parallel()
	d := newDenier(t, &rule.Rule{
		ID: "credit", Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Wallet: rule.Prepaid,
		Subject: rule.Tenant, Meter: "api-calls", OnFailure: rule.Closed,
	})
	d.refused(acme, 1)
	if got := d.refused(acme, 0); got.Code != decide.WalletEmpty || got.CanRetry {
		t.Errorf("%s, can retry: %t", got.Code, got.CanRetry)
	}
	d.grant("acme", 1)
	if got := d.ask(acme); got.Outcome != decide.Allow {
		t.Errorf("after a top-up: %s", got.Outcome)
	}
}

// TestDenialsEndWithThePeriod guarantees that no denial of a quota outlives its
// period, whichever clock is behind.
func TestDenialsEndWithThePeriod(t *testing.T) {
	t.Parallel()
	for _, behind := range []time.Duration{-200 * time.Millisecond, 0, 200 * time.Millisecond} {
		d := newDenier(t, quota("month", 10))
		end := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
		at := func(left time.Duration) { d.now, d.store.now = end.Add(-left-behind), end.Add(-left) }
		at(time.Second)
		d.ask(with(acme, func(q *decide.Query) { q.Cost = units(10) }))
		at(300 * time.Millisecond)
		d.ask(acme)
		at(299 * time.Millisecond)
		if got := d.refused(acme, 0); got.RetryAfter != 299*time.Millisecond {
			t.Errorf("%v behind: a wait of %v", behind, got.RetryAfter)
		}
		at(0)
		if got := d.ask(acme); got.Outcome != decide.Allow {
			t.Errorf("%v behind, in the next month: %s", behind, got.Outcome)
		}
	}
}

// TestDenialsWithoutAStore guarantees that a denial holds for its rest while the
// store is away; then the failure mode decides, every time anew.
func TestDenialsWithoutAStore(t *testing.T) {
	t.Parallel()
	closed := rate("burst", rule.Tenant, 10)
	closed.OnFailure = rule.Closed
	d := newDenier(t, closed)
	d.ask(with(acme, func(q *decide.Query) { q.Cost = units(10) }))
	d.refused(acme, 1)
	d.store.fail = errors.New("away")
	d.at(t0.Add(999 * time.Millisecond))
	if got := d.refused(acme, 0); got.Degraded || got.Code != decide.RateLimited {
		t.Errorf("while it holds: %s, degraded %t", got.Code, got.Degraded)
	}
	d.at(t0.Add(time.Second))
	for range 2 {
		if got := d.refused(acme, 1); !got.Degraded || got.Code != decide.StoreUnavailable {
			t.Errorf("after that: %s, degraded %t", got.Code, got.Degraded)
		}
	}
	d.store.fail = nil
	d.refused(acme, 1)
	d.refused(acme, 0)
}

// TestAnswersThatAreNotRepeated guarantees that only a refusal by a limit, of a
// question that nobody asks twice under one id, is repeated.
func TestAnswersThatAreNotRepeated(t *testing.T) {
	t.Parallel()
	question := func(change func(*limit.Decision)) limit.Decision {
		d := limit.Decision{Charges: []limit.Charge{{Cost: 1, Counter: limit.Identity{Tenant: "acme"}}}}
		change(&d)
		return d
	}
	plain := question(func(*limit.Decision) {})
	wait := []limit.Result{{RetryAfter: time.Minute}}
	no := limit.Answer{Results: wait}
	for name, tt := range map[string]struct {
		asked  limit.Decision
		answer limit.Answer
		err    error
		asks   int // of two
	}{
		"a refusal":                {plain, no, nil, 1},
		"a refusal for ever":       {plain, limit.Answer{Results: []limit.Result{{RetryAfter: limit.Never}}}, nil, 1},
		"a pass":                   {plain, limit.Answer{Allowed: true, Charged: true, Results: []limit.Result{{Passed: true}}}, nil, 2},
		"what was charged":         {plain, limit.Answer{Charged: true, Results: wait}, nil, 2},
		"a replay":                 {plain, limit.Answer{Replayed: true, Results: wait}, nil, 2},
		"a conflict":               {plain, limit.Answer{Conflict: true, Results: wait}, nil, 2},
		"stale periods":            {plain, limit.Answer{Stale: true, Results: wait}, nil, 2},
		"a lost store":             {plain, limit.Answer{Lost: true, Results: wait}, nil, 2},
		"no answer":                {plain, no, errors.New("away"), 2},
		"too few results":          {plain, limit.Answer{}, nil, 2},
		"a refusal without a wait": {plain, limit.Answer{Results: []limit.Result{{}}}, nil, 2},
		"a soft limit's":           {question(func(d *limit.Decision) { d.Charges[0].Soft = true }), no, nil, 2},
		"a limit's in shadow":      {question(func(d *limit.Decision) { d.Charges[0].Counter.Shadow = true }), no, nil, 2},
		"under a request id":       {question(func(d *limit.Decision) { d.Request.ID = "r" }), no, nil, 2},
		"of what is only weighed":  {question(func(d *limit.Decision) { d.Weigh = true }), no, nil, 2},
		"of nothing":               {limit.Decision{}, limit.Answer{}, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asks := 0
			d := decide.NewDenials(storeFunc(func(limit.Decision) (limit.Answer, error) {
				asks++
				return tt.answer, tt.err
			}), 16, func() time.Time { return t0 })
			for range 2 {
				a, err := d.Decide(t.Context(), tt.asked)
				if !errors.Is(err, tt.err) || !reflect.DeepEqual(a, tt.answer) {
					t.Errorf("%+v, %v", a, err)
				}
			}
			if asks != tt.asks {
				t.Errorf("%d questions of two, want %d", asks, tt.asks)
			}
		})
	}
}

// TestOvertakenDenial guarantees that a denial which was on its way while a
// correction made room is not repeated.
func TestOvertakenDenial(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 10))
	charged := d.ask(with(acme, func(q *decide.Query) { q.Cost = units(10) }))
	receipt, _ := charged.Receipt()
	slow := &overtaken{Store: d.store}
	d.denials.Store = slow
	slow.before = func() {
		slow.before = nil
		if _, err := d.Refund(t.Context(), receipt, "", 10); err != nil {
			t.Error(err)
		}
	}
	d.ask(acme)
	if got := d.ask(acme); got.Outcome != decide.Allow {
		t.Errorf("after the refund: %s", got.Outcome)
	}
}

// TestDenialsOfSharedCounters guarantees that a correction ends the denials of
// every counter that it touches: also of one that several tenants share, and
// whichever of a request's counters comes first.
func TestDenialsOfSharedCounters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rules  []*rule.Rule
		second string // who is refused
	}{
		"a tenant's behind an address's":    {[]*rule.Rule{rate("a", rule.IP, 1000), rate("b", rule.Tenant, 10)}, "acme"},
		"an address's behind a tenant's":    {[]*rule.Rule{rate("a", rule.Tenant, 1000), rate("b", rule.IP, 10)}, "globex"},
		"an address's":                      {[]*rule.Rule{rate("b", rule.IP, 10)}, "globex"},
		"an address's between two tenant's": {[]*rule.Rule{rate("a", rule.Tenant, 1000), rate("b", rule.IP, 10), rate("c", rule.Tenant|rule.User, 1000)}, "globex"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDenier(t, tt.rules...)
			charged := d.ask(decide.Query{Tenant: "acme", User: "u", Address: t0Address, Cost: units(10)})
			q := decide.Query{Tenant: tt.second, User: "u", Address: t0Address}
			d.refused(q, 1)
			d.refused(q, 0)
			receipt, _ := charged.Receipt()
			if _, err := d.Refund(t.Context(), receipt, "", 0); err != nil {
				t.Fatal(err)
			}
			if got := d.ask(q); got.Outcome != decide.Allow {
				t.Errorf("after the refund: %s by %q", got.Outcome, got.RuleID)
			}
		})
	}
}

// TestDenialsOfASlowStore guarantees that a denial ends with its wait as the store
// meant it, and not later by what the answer took.
func TestDenialsOfASlowStore(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 120)) // a unit in half a second
	d.ask(with(acme, func(q *decide.Query) { q.Cost = units(120) }))
	slow := &overtaken{Store: d.store}
	d.denials.Store = slow
	slow.before = func() { d.at(t0.Add(300 * time.Millisecond)) }
	d.refused(acme, 1)
	slow.before = nil
	d.at(t0.Add(499 * time.Millisecond))
	d.refused(acme, 0)
	d.at(t0.Add(500 * time.Millisecond))
	if got := d.ask(acme); got.Outcome != decide.Allow {
		t.Errorf("when its wait is over: %s, for another %v", got.Outcome, got.RetryAfter)
	}
}

// An overtaken store lets something happen between its denial and who asked.
type overtaken struct {
	decide.Store
	before func()
}

// Decide is Store's.
func (o *overtaken) Decide(ctx context.Context, d limit.Decision) (limit.Answer, error) {
	a, err := o.Store.Decide(ctx, d)
	if o.before != nil {
		o.before()
	}
	return a, err
}

// TestDenialsOfMany guarantees that of many questions only those go to the
// store that are not known, and that each has its own answer.
func TestDenialsOfMany(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 1))
	d.ask(acme)
	d.refused(acme, 1)
	globex := with(acme, func(q *decide.Query) { q.Tenant = "globex" })
	for _, tt := range []struct {
		queries []decide.Query
		want    []decide.Outcome
		asks    int
	}{
		{[]decide.Query{acme, globex, acme, globex}, []decide.Outcome{decide.Deny, decide.Allow, decide.Deny, decide.Deny}, 2},
		{[]decide.Query{acme, globex, acme}, []decide.Outcome{decide.Deny, decide.Deny, decide.Deny}, 0},
		{[]decide.Query{with(acme, func(q *decide.Query) { q.Tenant = "initech" })}, []decide.Outcome{decide.Allow}, 1},
	} {
		var got []decide.Decision
		var errs []error
		n := d.asks(func() { got, errs = d.DecideAll(t.Context(), tt.queries) })
		for i, want := range tt.want {
			if errs[i] != nil || got[i].Outcome != want {
				t.Errorf("%d of %+v: %s %v, want %s", i, tt.queries, got[i].Outcome, errs[i], want)
			}
		}
		if n != tt.asks {
			t.Errorf("%d questions, want %d", n, tt.asks)
		}
	}
}

// TestDenialsChangeNothing guarantees that a service which remembers denials says
// what the store would at that moment, whatever is asked and corrected when; but
// that it may refuse what a correction elsewhere made room for, for a second at
// most. The rule that it names refuses by the store too, and the wait is no longer:
// others may have charged since.
func TestDenialsChangeNothing(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	soft := rate("soft", rule.Tenant, 3)
	soft.Soft = true
	shadow := rate("shadow", rule.Tenant|rule.User, 1)
	shadow.Mode = rule.Shadow
	d := newDenier(t, rate("address", rule.IP, 60), rate("burst", rule.Tenant, 20), rate("each", rule.Tenant|rule.Application, 7), quota("month", 400), soft, shadow)
	now := func() time.Time { return d.now }
	elsewhere := decide.NewService(d.book, d.store, now, decide.NewID, decide.Options{})
	weighing := decide.NewService(d.book, storeFunc(func(asked limit.Decision) (limit.Answer, error) {
		asked.Weigh = true
		return limit.Decide(d.store.state, d.now, asked)
	}), now, decide.NewID, decide.Options{})
	var receipts []decide.Receipt
	never := t0.Add(-time.Hour)
	corrected := never // elsewhere, and not here since
	q, repeated, late := acme, 0, 0
	for step := range 20_000 {
		if rng.IntN(4) == 0 {
			d.at(d.now.Add(time.Duration(rng.IntN(1200)) * time.Millisecond))
		}
		if last := len(receipts) - 1; last >= 0 && rng.IntN(20) == 0 {
			by := d.Service
			corrected = never
			if rng.IntN(2) == 0 {
				by, corrected = elsewhere, d.now
			}
			if _, err := by.Refund(t.Context(), receipts[last], "", 0); err != nil {
				t.Fatal(err)
			}
			receipts = receipts[:last]
		}
		if rng.IntN(3) == 0 { // else the last one is asked again
			q = decide.Query{
				Tenant: fmt.Sprint("t", rng.IntN(3)), Application: fmt.Sprint("a", rng.IntN(2)), User: fmt.Sprint("u", rng.IntN(2)),
				Service: "s", Address: t0Address, Cost: units(int64(rng.IntN(9))),
			}
		}
		want, err := weighing.Decide(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var got decide.Decision
		asks := d.asks(func() { got = d.ask(q) })
		if r, charged := got.Receipt(); charged {
			receipts = append(receipts, r)
		}
		repeated += 1 - asks
		told := fmt.Sprintf("seed %d, step %d: %+v is %s by %q in %v, want %s by %q in %v", seed, step, q, got.Outcome, got.RuleID, got.RetryAfter, want.Outcome, want.RuleID, want.RetryAfter)
		switch {
		case asks == 0 && d.now.Sub(corrected) < time.Second:
			if got.Outcome != decide.Deny {
				t.Fatal(told)
			}
			if want.Outcome == decide.Allow {
				late++
			}
		case got.Outcome != want.Outcome || want.CanRetry && got.RetryAfter > want.RetryAfter || got.RuleID != "" && !refuses(&want, got.RuleID):
			t.Fatal(told)
		}
	}
	if repeated < 1000 || late < 10 {
		t.Errorf("seed %d: %d of 20,000 were repeated, %d of them late: too few to tell", seed, repeated, late)
	}
}

// refuses reports whether a rule does not let pass what d decided.
func refuses(d *decide.Decision, id string) bool {
	return slices.ContainsFunc(d.Limits, func(l decide.Limit) bool { return l.RuleID == id && !l.Passed })
}

// TestNoDenials guarantees that without places nothing is repeated.
func TestNoDenials(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 1))
	d.Service = decide.NewService(d.book, decide.NewDenials(d.store, 0, time.Now), func() time.Time { return d.now }, decide.NewID, decide.Options{})
	d.ask(acme)
	d.refused(acme, 1)
	d.refused(acme, 1)
}

// TestDenialsSharePlaces guarantees that as many denials are held as there are
// places, where they share them, and that the first to end makes room.
func TestDenialsSharePlaces(t *testing.T) {
	t.Parallel()
	d := newDenier(t, rate("burst", rule.Tenant, 1))
	d.Service = decide.NewService(d.book, decide.NewDenials(d.store, 4, func() time.Time { return d.now }), func() time.Time { return d.now }, decide.NewID, decide.Options{})
	query := func(i int) decide.Query { return decide.Query{Tenant: fmt.Sprint("t", i)} }
	for i := range 5 {
		d.ask(query(i))
	}
	for i := range 4 {
		d.refused(query(i), 1)
		d.at(d.now.Add(time.Millisecond))
	}
	for i := range 4 {
		d.refused(query(i), 0)
	}
	d.refused(query(4), 1)
	for i := 1; i < 5; i++ {
		d.refused(query(i), 0)
	}
	d.refused(query(0), 1)
}

// TestManyDenials guarantees that denials may be asked for, made and ended by many
// at once, and that no more are held than there are places.
func TestManyDenials(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	no := storeFunc(func(limit.Decision) (limit.Answer, error) {
		asked.Add(1)
		return limit.Answer{Now: t0, Results: []limit.Result{{RetryAfter: time.Second}}}, nil
	})
	book := decide.NewBook()
	book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: "burst", Version: 1, Object: rate("burst", rule.Tenant, 1)}})
	denials := decide.NewDenials(no, 100, func() time.Time { return t0 })
	s := decide.NewService(book, denials, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 2000 {
				tenant := fmt.Sprint("t", (i*7+g)%1000)
				if i%100 == 99 {
					denials.Forget(tenant)
				}
				if d, err := s.Decide(t.Context(), decide.Query{Tenant: tenant}); err != nil || d.Outcome != decide.Deny {
					t.Errorf("%s: %+v, %v", tenant, d, err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := asked.Load() + int64(denials.Hits()); n != 16_000 || asked.Load() < 1000 {
		t.Errorf("%d asked and %d repeated, want 16,000 in all", asked.Load(), denials.Hits())
	}
}

// BenchmarkDenials measures a decision that the store refuses, one that is refused
// without it, and one that is asked while its tenant is refused something else,
// where the store answers at no cost. And what remembering takes of each, and of
// one whose tenant is refused nothing.
func BenchmarkDenials(b *testing.B) {
	passed, refused := []limit.Result{{Passed: true}}, []limit.Result{{RetryAfter: time.Second}}
	no := storeFunc(func(asked limit.Decision) (limit.Answer, error) {
		if asked.Charges[0].Cost == 0 {
			return limit.Answer{Now: t0, Allowed: true, Results: passed}, nil
		}
		return limit.Answer{Now: t0, Results: refused}, nil
	})
	compareDenials(b, no, func() time.Time { return t0 })
	var last limit.Decision
	asking := decide.NewService(denyingBook(), storeFunc(func(asked limit.Decision) (limit.Answer, error) {
		last = asked
		return no(asked)
	}), func() time.Time { return t0 }, decide.NewID, decide.Options{})
	for name, costs := range map[string][]int64{"asked": {0}, "repeated": {1}, "passed": {1, 0}} {
		b.Run("remembering/"+name, func(b *testing.B) {
			d := decide.NewDenials(no, 1024, time.Now)
			for _, cost := range costs {
				if _, err := asking.Decide(b.Context(), with(acme, func(q *decide.Query) { q.Cost = &cost })); err != nil {
					b.Fatal(err)
				}
				if _, err := d.Decide(b.Context(), last); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Decide(b.Context(), last); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func denyingBook() *decide.Book {
	r := rate("burst", rule.Tenant, 10)
	r.Window = rule.MaxWindow
	book := decide.NewBook()
	book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: r.ID, Version: 1, Object: r}})
	return book
}

// compareDenials measures decisions of a tenant whom the store refuses a unit, and
// nothing but that; as many at once as there are processors.
func compareDenials(b *testing.B, store decide.Store, now func() time.Time) {
	for _, bench := range []struct {
		name   string
		places int
		cost   int64
	}{
		{"asked", 0, 1},
		{"repeated", 1024, 1},
		{"passed", 1024, 0},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s := decide.NewService(denyingBook(), decide.NewDenials(store, bench.places, time.Now), now, decide.NewID, decide.Options{})
			if d, err := s.Decide(b.Context(), acme); err != nil || d.Outcome != decide.Deny {
				b.Fatal(d, err)
			}
			q := with(acme, func(q *decide.Query) { q.Cost = &bench.cost })
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if d, err := s.Decide(b.Context(), q); err != nil || d.Degraded {
						b.Error(d, err)
						return
					}
				}
			})
		})
	}
}
