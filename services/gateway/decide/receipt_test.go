package decide_test

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// sameReceipt compares receipts by what they say.
var sameReceipt = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})}

// TestReceiptSaysWhatWasCharged guarantees that a receipt has exactly the
// counters that were charged, each with what it was charged and the period it
// was charged in, and that it comes back whole from its bytes: for any rules
// of any kind, any request, and whatever the store let pass.
func TestReceiptSaysWhatWasCharged(t *testing.T) {
	t.Parallel()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	reach := map[string]int{}
	for range 1500 {
		var asked limit.Decision
		var answer limit.Answer
		store := storeFunc(func(d limit.Decision) (limit.Answer, error) {
			asked = d
			answer = limit.Answer{Allowed: true, Now: t0.Add(time.Duration(rng.IntN(1000)) * time.Microsecond), Results: make([]limit.Result, len(d.Charges))}
			for i := range answer.Results {
				c := &d.Charges[i]
				passed := !c.Soft && !c.Counter.Shadow || rng.IntN(2) == 0
				answer.Results[i].Passed = passed
				answer.Charged = answer.Charged || c.Cost > 0 && (passed || c.Soft)
				answer.Results[i].Clipped = c.Soft && c.Cost > 0 && rng.IntN(3) == 0
			}
			return answer, nil
		})
		r := newRig(t, store, func() time.Time { return t0 })
		r.tenant(&decide.Tenant{ID: "acme", Plan: "gold", Zone: zone(t, "Europe/Istanbul")})
		for range rng.IntN(12) {
			r.rule(anyRule(rng))
		}
		q := anyQuery(rng)
		d := r.ask(q)
		got, ok := d.Receipt()
		if ok != answer.Charged {
			t.Fatalf("a receipt: %v, charged: %v", ok, answer.Charged)
		}
		if !ok {
			reach["nothing"]++
			continue
		}
		var want []limit.Charge
		for i, c := range asked.Charges {
			if c.Cost > 0 && (answer.Results[i].Passed || c.Soft) {
				reach[string(c.Counter.Kind)]++
				if answer.Results[i].Clipped {
					c.Cost = 0 // nothing of it is given back
					reach["clipped"]++
				}
				want = append(want, c)
			}
		}
		var charges []limit.Charge
		for _, c := range got.Charged {
			charges = append(charges, c.Charge)
			if c.Fixed {
				reach["fixed"]++
			}
		}
		if diff := cmp.Diff(want, charges); diff != "" {
			t.Fatalf("charged (-want +got)\n%s", diff)
		}
		if got.DecisionID != d.ID || !got.At.Equal(answer.Now) || got.Cost != max(1, d.Cost) || got.Tenant != q.Tenant || got.User != q.User ||
			got.Address != q.Address || got.Method != q.Method {
			t.Fatalf("receipt %+v of %+v", got, q)
		}
		bytes := got.AppendBinary([]byte("before"))
		back, err := decide.ParseReceipt(bytes[len("before"):])
		if diff := cmp.Diff(got, back, sameReceipt); err != nil || diff != "" {
			t.Fatalf("%v (-receipt +parsed)\n%s", err, diff)
		}
	}
	for _, what := range []string{"nothing", "rate", "quota", "wallet", "fixed", "clipped"} {
		if reach[what] < 10 {
			t.Errorf("%d receipts of %s: the generator no longer reaches them", reach[what], what)
		}
	}
}

// anyRule is a rule of any kind, algorithm, mode and scope that anyQuery may
// meet.
func anyRule(rng *rand.Rand) *rule.Rule {
	r := randomRule(rng, "r-"+string(rune('a'+rng.IntN(26))))
	r.Enabled, r.ValidFrom, r.ValidTo, r.Match.Networks = true, time.Time{}, time.Time{}, nil
	r.Version, r.Soft = 1+rng.Int64N(100), rng.IntN(4) == 0
	switch r.Kind {
	case rule.Rate:
		algorithms := []rule.Algorithm{
			rule.GCRA, rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.TokenBucket, rule.LeakyBucket,
		}
		r.Algorithm = algorithms[rng.IntN(len(algorithms))]
		if r.Algorithm == rule.LeakyBucket {
			r.MaxDelay = time.Duration(rng.IntN(3)) * time.Second
		}
	case rule.Quota:
		r.Subject |= rule.Tenant
		r.Thresholds = rule.Thresholds{Percent: []int32{80, 100}, Left: []int64{10}}
		if rng.IntN(2) == 0 {
			r.Kind, r.Algorithm, r.Subject, r.Wallet = rule.Wallet, rule.OverdraftWallet, rule.Tenant, rule.Renewable
			if rng.IntN(2) == 0 {
				r.Wallet, r.Period, r.Limit = rule.Prepaid, nil, 0
			}
		}
		if r.Period != nil {
			units := []period.Unit{period.Hour, period.Day, period.Week, period.Month, period.Year}
			r.Period.Unit, r.Period.Count = units[rng.IntN(len(units))], 1+rng.IntN(3)
		}
	case rule.Block, rule.Wallet:
		r.Mode = rule.Shadow
	}
	if rng.IntN(4) == 0 {
		r.Cost = units(rng.Int64N(4))
	}
	return r
}

func anyQuery(rng *rand.Rand) decide.Query {
	q := randomRequest(rng)
	return decide.Query{
		Tenant: q.Tenant, Application: q.Application, User: q.User, APIKey: q.APIKey, Address: q.Address,
		Service: q.Service, Endpoint: q.Endpoint, Method: "POST", Cost: units(rng.Int64N(5)),
	}
}

// TestReplayKeepsItsReceipt guarantees that who asks again under a request id
// gets the receipt of the first decision, equal to the last byte, though the
// rules and the catalogue are others by then, and the answer that went with it.
func TestReplayKeepsItsReceipt(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("address", rule.IP, 10), rate("burst", rule.Tenant, 10), quota("month", 100))
	fixed := quota("fixed", 100)
	fixed.Meter, fixed.Cost = "calls", units(1)
	trial := quota("trial", 1)
	trial.Meter, trial.Mode = "trial", rule.Shadow
	g.rule(fixed)
	g.rule(trial)
	g.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay/{id}", Cost: 5})
	q := decide.Query{
		RequestID: "r-1", Tenant: "acme", User: "u1", Address: netip.MustParseAddr("203.0.113.9"),
		Service: "payments", Method: "POST", Path: "/v1/pay/17",
	}
	d := g.ask(q)
	first, ok := d.Receipt()
	if !ok || len(first.Charged) != 4 || first.Template != "/v1/pay/{id}" || first.Cost != 5 {
		t.Fatalf("receipt %+v %v, want four counters charged for 5 units", first, ok)
	}
	g.at(t0.Add(time.Hour))
	for _, id := range []string{"address", "month", "fixed"} {
		g.put(decide.RuleKind, id, nil)
	}
	g.put(decide.EndpointKind, "pay", nil)
	again := g.ask(q)
	second, ok := again.Receipt()
	if !again.Replayed || !ok || !slices.Equal(first.AppendBinary(nil), second.AppendBinary(nil)) {
		t.Errorf("replayed %v, receipt %v (-first +again)\n%s", again.Replayed, ok, cmp.Diff(first, second, sameReceipt))
	}
}

// TestNothingHasNoReceipt guarantees that there is no receipt where nothing was
// charged.
func TestNothingHasNoReceipt(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("burst", rule.Tenant, 1))
	closed := quota("q", 10)
	closed.Match.Tenant, closed.OnFailure = "globex", rule.Open
	g.rule(closed)
	free := rate("free", rule.Tenant, 10)
	free.Match.Tenant, free.Cost = "initech", units(0)
	g.rule(free)
	for name, q := range map[string]decide.Query{
		"a request that no rule counts":     {},
		"a peek":                            {Tenant: "acme", Cost: units(0)},
		"a refusal":                         {Tenant: "acme", Cost: units(2)},
		"a rule that charges nothing":       {Tenant: "initech"},
		"a request id that charges nothing": {Tenant: "initech", RequestID: "r-1"},
	} {
		d := g.ask(q)
		if r, ok := d.Receipt(); ok {
			t.Errorf("%s has a receipt: %+v", name, r)
		}
	}
	g.store.fail = errors.New("away")
	d := g.ask(decide.Query{Tenant: "globex"})
	if r, ok := d.Receipt(); ok || !d.Degraded {
		t.Errorf("a degraded pass has a receipt: %v %+v", d.Degraded, r)
	}
	if _, ok := (&decide.Decision{}).Receipt(); ok {
		t.Error("what is no decision has a receipt")
	}
}

// FuzzParseReceipt guarantees that any bytes are a receipt or ErrReceipt: never
// a panic, never more memory than they have, and what is a receipt says the
// same once it was written again.
func FuzzParseReceipt(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	passing := storeFunc(func(d limit.Decision) (limit.Answer, error) {
		a := limit.Answer{Allowed: true, Charged: true, Now: t0, Results: make([]limit.Result, len(d.Charges))}
		for i := range a.Results {
			a.Results[i].Passed = true
		}
		return a, nil
	})
	for range 20 {
		book := decide.NewBook()
		for i := range rng.IntN(6) {
			r := anyRule(rng)
			book.Apply([]decide.Change{{Kind: decide.RuleKind, ID: r.ID, Version: int64(i + 1), Object: r}})
		}
		s := decide.NewService(book, passing, func() time.Time { return t0 }, decide.NewID, decide.Options{})
		d, err := s.Decide(f.Context(), anyQuery(rng))
		if err != nil {
			f.Fatal(err)
		}
		if r, ok := d.Receipt(); ok {
			f.Add(r.AppendBinary(nil))
		}
	}
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decide.ParseReceipt(b)
		if err != nil {
			if !errors.Is(err, decide.ErrReceipt) || !cmp.Equal(r, decide.Receipt{}, sameReceipt) {
				t.Fatalf("%v left %+v", err, r)
			}
			return
		}
		if r.Cost < 1 || len(r.Charged) == 0 || len(r.Charged) > len(b) {
			t.Fatalf("receipt %+v of %d bytes", r, len(b))
		}
		back, err := decide.ParseReceipt(r.AppendBinary(nil))
		if diff := cmp.Diff(r, back, sameReceipt); err != nil || diff != "" {
			t.Fatalf("%v (-first +again)\n%s", err, diff)
		}
	})
}
