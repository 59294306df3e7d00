package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
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

// TestDenialsChangeNothing guarantees that a service which remembers denials lets
// pass what one that does not does, whatever is asked when; and that it tells
// nobody to wait for longer. Others may have charged since, so it may be for less.
func TestDenialsChangeNothing(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	soft := rate("soft", rule.Tenant, 3)
	soft.Soft = true
	shadow := rate("shadow", rule.Tenant|rule.User, 1)
	shadow.Mode = rule.Shadow
	rules := []*rule.Rule{rate("burst", rule.Tenant, 20), rate("each", rule.Tenant|rule.Application, 7), quota("month", 400), soft, shadow}
	plain, remembering := newGate(t, rules...), newDenier(t, rules...)
	now, repeated := t0, 0
	for step := range 20_000 {
		if rng.IntN(4) == 0 {
			now = now.Add(time.Duration(rng.IntN(1200)) * time.Millisecond)
			plain.at(now)
			remembering.at(now)
		}
		q := decide.Query{
			Tenant: fmt.Sprint("t", rng.IntN(3)), Application: fmt.Sprint("a", rng.IntN(2)), User: fmt.Sprint("u", rng.IntN(2)), Service: "s", Cost: units(int64(rng.IntN(9))),
		}
		want := plain.ask(q)
		var got decide.Decision
		if remembering.asks(func() { got = remembering.ask(q) }) == 0 {
			repeated++
		}
		if got.Outcome != want.Outcome || got.RetryAfter > want.RetryAfter && want.CanRetry {
			t.Fatalf("seed %d, step %d: %+v is %s by %q in %v, want %s by %q in %v", seed, step, q, got.Outcome, got.RuleID, got.RetryAfter, want.Outcome, want.RuleID, want.RetryAfter)
		}
	}
	if repeated < 1000 {
		t.Errorf("seed %d: %d of 20,000 were repeated: too few to tell", seed, repeated)
	}
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

// TestManyDenials guarantees that denials may be asked for and made by many at
// once, and that no more are held than there are places.
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

// BenchmarkDenials measures a decision that the store refuses, one that is
// refused without it, and one that passes while others of its tenant are
// refused; the store answers at no cost.
func BenchmarkDenials(b *testing.B) {
	no := storeFunc(func(d limit.Decision) (limit.Answer, error) {
		return limit.Answer{Now: t0, Allowed: d.Charges[0].Cost == 2, Results: []limit.Result{{Passed: d.Charges[0].Cost == 2, RetryAfter: time.Second}}}, nil
	})
	book := decide.NewBook()
	book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: "burst", Version: 1, Object: rate("burst", rule.Tenant, 10)}})
	now := func() time.Time { return t0 }
	for _, bench := range []struct {
		name  string
		store decide.Store
		cost  int64
	}{
		{"asked", no, 1},
		{"repeated", decide.NewDenials(no, 1024, now), 1},
		{"passed", decide.NewDenials(no, 1024, now), 2},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s := decide.NewService(book, bench.store, now, decide.NewID, decide.Options{})
			q := with(acme, func(q *decide.Query) { q.Cost = units(1) })
			if _, err := s.Decide(b.Context(), q); err != nil {
				b.Fatal(err)
			}
			q.Cost = &bench.cost
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Decide(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
