//go:build integration

package decide_test

import (
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/redistest"
	"penstock.dev/services/internal/rule"
)

// TestIntegrationDenialsNeedNoRedis guarantees that what a real Redis has refused
// is refused again while Redis stands still, one at a time and many at once, with
// a rate, a quota, a shadow and a soft rule beside it, and that Redis is asked again
// when that is over.
func TestIntegrationDenialsNeedNoRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisStore(t, server.URL)
	clock := time.Now()
	denials := decide.NewDenials(store, 1024, func() time.Time { return clock })
	soft, shadow := rate("soft", rule.Tenant, 2), rate("shadow", rule.Tenant|rule.User, 1)
	soft.Soft, shadow.Mode = true, rule.Shadow
	hourly := rate("hourly", rule.Tenant, 10)
	hourly.Window = 10 * time.Hour
	r := newRig(t, denials, store.Now, quota("month", 100), rate("a-address", rule.IP, 1000), hourly, soft, shadow)
	q := with(acme, func(q *decide.Query) { q.User, q.Address, q.Cost = "u", t0Address, units(4) })
	charged := r.ask(q)
	r.ask(q)
	first := r.ask(q)
	if charged.Outcome != decide.Allow || first.Outcome != decide.Deny || first.RuleID != "hourly" {
		t.Fatalf("%s, then %s by %q", charged.Outcome, first.Outcome, first.RuleID)
	}

	server.Freeze()
	clock = clock.Add(maxRepeated - time.Microsecond)
	again := []decide.Decision{r.ask(q)}
	many, errs := r.DecideAll(t.Context(), []decide.Query{q, q, q})
	for i, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
		again = append(again, many[i])
	}
	server.Thaw()
	for i := range again {
		d := &again[i]
		if d.Outcome != decide.Deny || d.Degraded || d.RuleID != "hourly" || d.ID == first.ID || len(d.Limits) != len(first.Limits) {
			t.Errorf("%+v", d)
			continue
		}
		if passed := first.RetryAfter - d.RetryAfter; passed != maxRepeated-time.Microsecond {
			t.Errorf("the wait went from %v to %v", first.RetryAfter, d.RetryAfter)
		}
		for k := range d.Limits {
			was, is := first.Limits[k], d.Limits[k]
			if was.Reset, is.Reset = 0, 0; was != is {
				t.Errorf("%+v, then %+v", was, is)
			}
		}
	}
	if denials.Hits() != 4 {
		t.Errorf("%d answers without Redis, want 4", denials.Hits())
	}

	clock = clock.Add(time.Microsecond)
	if d := r.ask(q); d.Outcome != decide.Deny || denials.Hits() != 4 {
		t.Errorf("after a second: %s, %d answers without Redis", d.Outcome, denials.Hits())
	}
	receipt, _ := charged.Receipt()
	if _, err := r.Refund(t.Context(), receipt, "", 0); err != nil {
		t.Fatal(err)
	}
	if d := r.ask(q); d.Outcome != decide.Allow || d.Degraded {
		t.Errorf("after a refund: %s by %q", d.Outcome, d.RuleID)
	}
	for _, l := range r.ask(with(q, func(q *decide.Query) { q.Cost = units(0) })).Limits {
		if l.RuleID == "month" && l.Remaining != 92 {
			t.Errorf("the month has %d left, want 92: refusals charge nothing", l.Remaining)
		}
	}
}

// maxRepeated is how long a denial is repeated at most.
const maxRepeated = time.Second

// TestIntegrationDenialsOfACluster guarantees that a refusal by one slot of a
// cluster is repeated, and leaves nothing charged in another.
func TestIntegrationDenialsOfACluster(t *testing.T) {
	t.Parallel()
	store := openStore(t, counters.Config{URL: redistest.StartCluster(t).URL, Cluster: true})
	clock := time.Now()
	denials := decide.NewDenials(store, 1024, func() time.Time { return clock })
	hourly := rate("hourly", rule.Tenant, 10)
	hourly.Window = 10 * time.Hour
	address := quota("address", 100)
	address.Subject = rule.IP
	r := newRig(t, denials, store.Now, hourly, address)
	q := with(acme, func(q *decide.Query) { q.Address, q.Cost = t0Address, units(10) })
	if d := r.ask(q); d.Outcome != decide.Allow {
		t.Fatalf("%s by %q", d.Outcome, d.RuleID)
	}
	for range 100 {
		if d := r.ask(q); d.Outcome != decide.Deny || d.Degraded || d.RuleID != "hourly" {
			t.Fatalf("%+v", d)
		}
	}
	if denials.Hits() != 99 {
		t.Errorf("%d of 100 denials were repeated, want 99", denials.Hits())
	}
	left := func() int64 {
		for _, l := range r.ask(with(q, func(q *decide.Query) { q.Cost = units(0) })).Limits {
			if l.RuleID == "address" {
				return l.Remaining
			}
		}
		return -1
	}
	for deadline := time.Now().Add(20 * time.Second); left() != 90; { // given back behind the answer
		if time.Now().After(deadline) {
			t.Fatalf("the address has %d left, want 90", left())
		}
	}
}

// BenchmarkDenialsOfRedis is BenchmarkDenials with a real Redis.
func BenchmarkDenialsOfRedis(b *testing.B) {
	store := redisStore(b, redistest.Start(b).URL)
	s := decide.NewService(denyingBook(), store, store.Now, decide.NewID, decide.Options{})
	if _, err := s.Decide(b.Context(), with(acme, func(q *decide.Query) { q.Cost = units(10) })); err != nil {
		b.Fatal(err)
	}
	compareDenials(b, store, store.Now)
}
