package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// TestFC10 guarantees that giving back works where it matters: when nothing is
// left, once for each id, and never more than was charged.
func TestFC10(t *testing.T) { overModel(t, caseFC10) }

// TestW1 guarantees that a wallet lets one debit pass as long as it has
// something left, and then nothing until it is topped up.
func TestW1(t *testing.T) { overModel(t, caseW1) }

// TestW2 guarantees that of two debits at once that overdraw a wallet one
// passes.
func TestW2(t *testing.T) { overModel(t, caseW2) }

// TestE3EveryWay guarantees of every algorithm that one request id, three times
// at once, is one decision, three equal answers and three equal receipts.
func TestE3EveryWay(t *testing.T) { eachWay(t, caseE3Way) }

// TestRefundEveryWay guarantees of every algorithm that what is given back can
// be spent again, and no more than that.
func TestRefundEveryWay(t *testing.T) { eachWay(t, caseRefundWay) }

// TestSettleEveryWay guarantees of every algorithm that the true cost is what
// counts in the end, also past the limit.
func TestSettleEveryWay(t *testing.T) { eachWay(t, caseSettleWay) }

// charged is the receipt of a decision that must have charged.
func (r *rig) charged(q decide.Query) decide.Receipt {
	r.t.Helper()
	d := r.ask(q)
	receipt, ok := d.Receipt()
	if !ok {
		r.t.Fatalf("no receipt of %+v", d)
	}
	return receipt
}

// refund gives back and must.
func (r *rig) refund(receipt decide.Receipt, id string, units int64) decide.Correction {
	r.t.Helper()
	c, err := r.Refund(r.t.Context(), receipt, id, units)
	if err != nil {
		r.t.Fatalf("Refund(%q, %d) = %v", id, units, err)
	}
	return c
}

// settle settles and must.
func (r *rig) settle(receipt decide.Receipt, cost int64) decide.Correction {
	r.t.Helper()
	c, err := r.Settle(r.t.Context(), receipt, cost)
	if err != nil {
		r.t.Fatalf("Settle(%d) = %v", cost, err)
	}
	return c
}

// left is what acme has left under a rule.
func (r *rig) left(id string) int64 {
	r.t.Helper()
	return left(r.ask(decide.Query{Tenant: "acme", Cost: units(0)}), id)
}

// caseFC10: a fixed window of 10, all used. 1 is given back, and again under the
// same id: 1 is left. One request passes, the next does not; a negative cost is
// none, and 50 are more than was charged.
func caseFC10(t *testing.T, r *rig) {
	r.rule(window(rule.FixedWindow)("ten", 10))
	receipt := r.charged(decide.Query{Tenant: "acme", Cost: units(10)})
	for i := range 2 {
		c := r.refund(receipt, "r1", 1)
		if c.Units != 1 || c.RefundedTotal != 1 || c.Replayed != (i == 1) || r.left("ten") != 1 {
			t.Errorf("refund %d: %+v, %d left; want 1", i+1, c, r.left("ten"))
		}
	}
	for i, want := range []decide.Outcome{decide.Allow, decide.Deny} {
		if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != want || left(d, "ten") != 0 {
			t.Errorf("request %d: %s, %+v, want %s", i+1, d.Outcome, d.Limits, want)
		}
	}
	if _, err := r.Decide(t.Context(), decide.Query{Tenant: "acme", Cost: units(-1)}); !errors.Is(err, decide.ErrCost) {
		t.Errorf("cost -1: %v, want ErrCost", err)
	}
	if _, err := r.Refund(t.Context(), receipt, "r2", 50); !errors.Is(err, decide.ErrRefundExceeds) || r.left("ten") != 0 {
		t.Errorf("refund of 50: %v, %d left; want ErrRefundExceeds", err, r.left("ten"))
	}
}

// TestFullCountersGiveBackWhatTheyCount guarantees that no way around a limit
// leads over corrections: what a soft charge or a settlement had no room for
// does not come back in other decisions' place.
func TestFullCountersGiveBackWhatTheyCount(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, w *way) {
		v := w.make("ten", 10)
		r.sell(w, v, 10)
		r.charged(decide.Query{Tenant: "acme", Cost: units(8)})
		receipt := r.charged(decide.Query{Tenant: "acme", Cost: units(1)})
		if _, err := r.Settle(t.Context(), receipt, 100); err != nil {
			t.Fatal(err)
		}
		if c := r.refund(receipt, "r", 0); c.Units != 100 || r.left("ten") != 2 {
			t.Errorf("settled at 100 and given back: %+v and %d left, want 2", c, r.left("ten"))
		}
		soft := *v
		soft.Version, soft.Soft = v.Version+1, true
		r.rule(&soft)
		receipt = r.charged(decide.Query{Tenant: "acme", Cost: units(50)})
		before := r.left("ten")
		if c := r.refund(receipt, "r", 0); c.Units != 50 || before != 0 || r.left("ten") > 2 {
			t.Errorf("a soft 50 given back: %+v and %d left, want at most 2", c, r.left("ten"))
		}
	})
}

// caseW1: a balance of 5. A cost of 8 passes and leaves -3, then 1 does not; a
// top-up of 3 makes 0, and 1 does not pass; one of 10 makes 10, and 1 leaves 9.
func caseW1(t *testing.T, r *rig) {
	prepaid := ways[len(ways)-1]
	r.sell(&prepaid, prepaid.make("purse", 0), 5)
	for _, tt := range []struct {
		granted, cost int64
		outcome       decide.Outcome
		balance, left int64
	}{
		{5, 8, decide.Allow, -3, 0},
		{5, 1, decide.Deny, -3, 0},
		{8, 0, decide.Allow, 0, 0},
		{8, 1, decide.Deny, 0, 0},
		{18, 0, decide.Allow, 10, 10},
		{18, 1, decide.Allow, 9, 9},
	} {
		r.grant("acme", tt.granted)
		d := r.ask(decide.Query{Tenant: "acme", Cost: &tt.cost})
		l := d.Limits[0]
		if d.Outcome != tt.outcome || l.Limit != tt.granted || l.Balance != tt.balance || l.Remaining != tt.left || l.Reset != 0 || !l.PeriodEnd.IsZero() {
			t.Errorf("granted %d, cost %d: %s %+v, want %s and a balance of %d", tt.granted, tt.cost, d.Outcome, l, tt.outcome, tt.balance)
		}
		if d.Outcome == decide.Deny && (d.Status != 429 || d.Code != decide.WalletEmpty || d.CanRetry) {
			t.Errorf("granted %d, cost %d: %+v, want wallet-empty and no wait", tt.granted, tt.cost, d)
		}
	}
}

// caseW2: a balance of 5 and two at once that cost 8: one passes. A balance of 8
// and a cost of 8 leaves 0 and no debt.
func caseW2(t *testing.T, r *rig) {
	prepaid := ways[len(ways)-1]
	r.sell(&prepaid, prepaid.make("purse", 0), 5)
	var answers [2]decide.Decision
	var both sync.WaitGroup
	for i := range answers {
		both.Go(func() {
			var err error
			if answers[i], err = r.Decide(t.Context(), decide.Query{Tenant: "acme", Cost: units(8)}); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	passed := 0
	for _, d := range answers {
		if d.Outcome == decide.Allow {
			passed++
		}
		if d.Limits[0].Balance != -3 {
			t.Errorf("%s with a balance of %d, want -3", d.Outcome, d.Limits[0].Balance)
		}
	}
	if passed != 1 {
		t.Errorf("%d passed, want 1", passed)
	}
	r.put(decide.WalletKind, "globex:api-calls", &decide.Wallet{Tenant: "globex", Meter: "api-calls", Granted: 8})
	if d := r.ask(decide.Query{Tenant: "globex", Cost: units(8)}); d.Outcome != decide.Allow || d.Limits[0].Balance != 0 {
		t.Errorf("8 of 8: %s %+v, want a balance of 0", d.Outcome, d.Limits[0])
	}
}

// caseE3Way: 10 used; the same request id, cost 5, three times at once: 15 used.
func caseE3Way(t *testing.T, r *rig, w *way) {
	r.sell(w, w.make("a", 100), 100)
	r.ask(decide.Query{Tenant: "acme", Cost: units(10)})
	var answers [3]decide.Decision
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = r.Decide(t.Context(), decide.Query{RequestID: "r-1", Tenant: "acme", Cost: units(5)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	replayed := 0
	first, ok := answers[0].Receipt()
	for i := range answers {
		d := &answers[i]
		if d.Replayed {
			replayed++
		}
		receipt, again := d.Receipt()
		if d.ID != answers[0].ID || d.Outcome != decide.Allow || left(*d, "a") != 85 || !ok || !again ||
			string(receipt.AppendBinary(nil)) != string(first.AppendBinary(nil)) {
			t.Errorf("answer %d: %+v with %+v, want that of the first with %+v", i, d, receipt, first)
		}
	}
	if replayed != 2 || r.left("a") != 85 {
		t.Errorf("%d replayed, %d left; want 2 and 85", replayed, r.left("a"))
	}
}

// caseRefundWay: 10 of 10 used by 4 and 6. 4 of the 6 are given back in two
// parts, 3 are too many for what is left of them, all the rest is 2; then 4 are
// what is used.
func caseRefundWay(t *testing.T, r *rig, w *way) {
	r.sell(w, w.make("a", 10), 10)
	r.ask(decide.Query{Tenant: "acme", Cost: units(4)})
	receipt := r.charged(decide.Query{Tenant: "acme", Cost: units(6)})
	for i, tt := range []struct {
		id           string
		units        int64
		given, total int64
		left         int64
		err          error
	}{
		{"f-1", 1, 1, 1, 1, nil},
		{"f-2", 3, 3, 4, 4, nil},
		{"f-1", 1, 1, 1, 4, nil}, // again: the first answer
		{"f-3", 3, 0, 0, 4, decide.ErrRefundExceeds},
		{"f-3", 0, 2, 6, 6, nil},
		{"", 0, 0, 0, 6, decide.ErrRefundExceeds},
	} {
		c, err := r.Refund(t.Context(), receipt, tt.id, tt.units)
		if !errors.Is(err, tt.err) || c.Units != tt.given || err == nil && (c.RefundedTotal != tt.total || c.Refund != tt.id || c.Cost != 6) {
			t.Errorf("refund %d, %q of %d: %+v %v, want %d given back", i, tt.id, tt.units, c, err, tt.given)
		}
		if got := r.left("a"); got != tt.left {
			t.Errorf("after refund %d, %q of %d: %d left, want %d", i, tt.id, tt.units, got, tt.left)
		}
	}
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(6)}); d.Outcome != decide.Allow {
		t.Errorf("what was given back: %s %+v", d.Outcome, d.Limits)
	}
	if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Deny {
		t.Errorf("one more: %s %+v", d.Outcome, d.Limits)
	}
}

// caseSettleWay: 5 of 10 estimated. The true cost is 12: more than there is, and
// the next request is refused. Another estimate of 5 has cost 2, so 3 come back;
// a third has cost nothing.
func caseSettleWay(t *testing.T, r *rig, w *way) {
	r.sell(w, w.make("a", 10), 10)
	receipt := r.charged(decide.Query{Tenant: "acme", Cost: units(5)})
	for i := range 2 {
		if c := r.settle(receipt, 12); c.Cost != 12 || c.Units != 7 || c.RefundedTotal != 0 || c.Refund != "" || c.Replayed != (i == 1) {
			t.Errorf("settlement %d: %+v, want 7 more", i+1, c)
		}
	}
	if _, err := r.Settle(t.Context(), receipt, 11); !errors.Is(err, decide.ErrAlreadySettled) {
		t.Errorf("settled at another cost: %v, want ErrAlreadySettled", err)
	}
	if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Deny || left(d, "a") != 0 || w.sells() && d.Limits[0].Consumed != 12 {
		t.Errorf("then: %s %+v, want a refusal", d.Outcome, d.Limits)
	}
	r.sell(w, w.make("a", 100), 100)
	before := r.left("a")
	receipt = r.charged(decide.Query{Tenant: "acme", Cost: units(5)})
	if c := r.settle(receipt, 2); c.Units != -3 || r.left("a") != before-2 {
		t.Errorf("settled at 2: %+v, %d left, want %d", c, r.left("a"), before-2)
	}
	if c := r.refund(receipt, "", 0); c.Units != 2 || c.RefundedTotal != 2 || len(c.Refund) != 36 || r.left("a") != before {
		t.Errorf("then all given back: %+v, %d left, want %d", c, r.left("a"), before)
	}
	receipt = r.charged(decide.Query{Tenant: "acme", Cost: units(5)})
	if c := r.settle(receipt, 0); c.Units != -5 || r.left("a") != before {
		t.Errorf("settled at 0: %+v, %d left, want %d", c, r.left("a"), before)
	}
}

// TestFC28 guarantees the counter's half of FC-28: of a wallet of 1,000 from which 1 was
// taken, a settlement at -1,618 moves nothing, and never does the wallet get back more than
// the 1, whatever else is asked for.
func TestFC28(t *testing.T) {
	t.Parallel()

	prepaid := &ways[len(ways)-1]
	g := newGate(t)
	g.sell(prepaid, prepaid.make("purse", 0), 1000)
	balance := func(when string, want int64) {
		t.Helper()
		if l := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]; l.Balance != want {
			t.Errorf("%s: a balance of %d, want %d", when, l.Balance, want)
		}
	}
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(1)})
	balance("1 taken", 999)
	for _, cost := range []int64{-1, -1618} {
		if c, err := g.Settle(t.Context(), receipt, cost); !errors.Is(err, decide.ErrCost) {
			t.Errorf("settled at %d: %+v %v, want ErrCost", cost, c, err)
		}
	}
	if c, err := g.Refund(t.Context(), receipt, "more", 1619); !errors.Is(err, decide.ErrRefundExceeds) {
		t.Errorf("1,619 given back: %+v %v, want ErrRefundExceeds", c, err)
	}
	balance("refused", 999)
	if c := g.settle(receipt, 0); c.Units != -1 {
		t.Errorf("settled at 0: %+v, want 1 given back", c)
	}
	balance("settled at 0", 1000)
	if c, err := g.Refund(t.Context(), receipt, "again", 1); !errors.Is(err, decide.ErrRefundExceeds) {
		t.Errorf("given back once more: %+v %v, want ErrRefundExceeds", c, err)
	}
	balance("in the end", 1000)
}

// TestR1 guarantees the case's numbers: 95 used, a call that costs 5 makes 100;
// its upstream fails, and giving back twice makes 95, once.
func TestR1(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 100))
	g.ask(decide.Query{Tenant: "acme", Cost: units(95)})
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(5)})
	if left := g.left("month"); left != 0 {
		t.Errorf("%d left, want 0", left)
	}
	for i := range 2 {
		if c := g.refund(receipt, "", 0); c.Units != 5 || c.RefundedTotal != 5 || c.Replayed != (i == 1) || g.left("month") != 5 {
			t.Errorf("refund %d: %+v, %d left, want 5", i+1, c, g.left("month"))
		}
	}
	if _, err := g.Refund(t.Context(), receipt, "another", 1); !errors.Is(err, decide.ErrRefundExceeds) || g.left("month") != 5 {
		t.Errorf("under another id: %v, %d left, want ErrRefundExceeds and 5", err, g.left("month"))
	}
}

// TestR2 guarantees the case's numbers: of 500 used in New York's March, 7 are
// given back three seconds into April, of which 20 are used: 493 and 20.
func TestR2(t *testing.T) {
	t.Parallel()

	april := time.Date(2026, time.April, 1, 4, 0, 0, 0, time.UTC)
	g := newGate(t, quota("month", 1000))
	g.tenant(&decide.Tenant{ID: "acme", Zone: zone(t, "America/New_York")})
	g.at(april.Add(-time.Second))
	g.ask(decide.Query{Tenant: "acme", Cost: units(493)})
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(7)})
	g.at(april)
	g.ask(decide.Query{Tenant: "acme", Cost: units(20)})
	g.at(april.Add(3 * time.Second))
	c := g.refund(receipt, "", 0)
	u, _ := c.Usage()
	if k := u.AppendCounters(nil); len(k) != 1 || k[0].Consumed != 500 || k[0].Refunded != 7 || !k[0].Span.End.Equal(april) {
		t.Errorf("March: %+v, want 500 consumed and 7 refunded", k)
	}
	if l := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]; l.Consumed != 20 || l.Refunded != 0 || !l.PeriodStart.Equal(april) {
		t.Errorf("April: %+v, want 20 consumed", l)
	}
}

// TestRefundOfALateHour guarantees that what is given back goes to the period
// that was charged, though it is over, the rule has gone and the plan is another
// by then: the period that runs is not touched.
func TestRefundOfALateHour(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 10))
	wallet := ways[len(ways)-2].make("purse", 10)
	wallet.Meter = "credits"
	g.rule(wallet)
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(7)})
	december := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	g.at(december)
	g.put(decide.RuleKind, "purse", nil)
	g.rule(quota("other", 10))
	g.put(decide.RuleKind, "month", nil)
	g.ask(decide.Query{Tenant: "acme", Cost: units(3)})
	c := g.refund(receipt, "late", 5)
	u, ok := c.Usage()
	if !ok || u.Verdict != decide.VerdictRefund || u.ID != c.EventID || u.Decision != receipt.DecisionID || u.RefundID != "late" || u.Cost != 5 ||
		!u.At.Equal(december) || u.Status != 0 || u.Tenant != "acme" {
		t.Errorf("told as %+v %v", u, ok)
	}
	november := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	counters := u.AppendCounters(nil)
	if len(counters) != 2 {
		t.Fatalf("%d counters, want the quota and the wallet", len(counters))
	}
	for _, k := range counters {
		if k.Units != -5 || k.Consumed != 7 || k.Refunded != 5 || !k.Observed || k.Limit != 10 || !k.Span.Start.Equal(november) || !k.Identity.Start.Equal(november) {
			t.Errorf("counter of %s: %+v", k.Rule.ID, k)
		}
	}
	if l := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]; l.Consumed != 3 || l.Refunded != 0 {
		t.Errorf("December: %+v, want 3 consumed and nothing refunded", l)
	}
	g.at(december.Add(-time.Microsecond))
	if l := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]; l.Consumed != 7 || l.Refunded != 5 || l.Remaining != 8 {
		t.Errorf("November: %+v, want 7 consumed and 5 refunded", l)
	}
}

// TestRefundOfFixedCosts guarantees that a rule that fixes its cost gives it back
// with the last unit of the decision's, and that a decision which cost nothing
// but that gives it back whole.
func TestRefundOfFixedCosts(t *testing.T) {
	t.Parallel()

	calls := quota("calls", 10)
	calls.Meter, calls.Cost = "calls", units(2)
	g := newGate(t, quota("month", 100), calls)
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(5)})
	for i, tt := range []struct{ units, month, calls int64 }{{4, 99, 8}, {1, 100, 10}} {
		c := g.refund(receipt, fmt.Sprint(i), tt.units)
		u, _ := c.Usage()
		if k := u.AppendCounters(nil); len(k) != 2 || k[0].Rule.ID != "calls" || k[0].Units != tt.calls/10*-2 || k[1].Units != -tt.units {
			t.Errorf("refund %d is told as %+v", i, k)
		}
		if m, n := g.left("month"), g.left("calls"); m != tt.month || n != tt.calls {
			t.Errorf("refund %d: %d and %d left, want %d and %d", i, m, n, tt.month, tt.calls)
		}
	}
	g.put(decide.EndpointKind, "free", &decide.EndpointDef{ID: "free", Service: "s", Path: "/free", Cost: 0})
	receipt = g.charged(decide.Query{Tenant: "acme", Service: "s", Path: "/free"})
	if g.left("calls") != 8 || len(receipt.Charged) != 1 || receipt.Cost != 1 {
		t.Errorf("a free call: %d left, %+v", g.left("calls"), receipt)
	}
	if c := g.refund(receipt, "", 0); c.Units != 1 || g.left("calls") != 10 {
		t.Errorf("given back: %+v, %d left", c, g.left("calls"))
	}
}

// TestCorrectionsThatAreNone guarantees that units, costs and ids out of bounds
// are refused before the store is asked, and what the store's silence and its
// losses mean.
func TestCorrectionsThatAreNone(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 100))
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(5)})
	corrections := g.store.corrections
	for _, tt := range []struct {
		name string
		call func() (decide.Correction, error)
		want error
	}{
		{"negative units", func() (decide.Correction, error) { return g.Refund(t.Context(), receipt, "a", -1) }, decide.ErrCost},
		{"units beyond counting", func() (decide.Correction, error) { return g.Refund(t.Context(), receipt, "a", rule.Unlimited+1) }, decide.ErrCost},
		{"a negative cost", func() (decide.Correction, error) { return g.Settle(t.Context(), receipt, -1) }, decide.ErrCost},
		{"a cost beyond counting", func() (decide.Correction, error) { return g.Settle(t.Context(), receipt, rule.Unlimited+1) }, decide.ErrCost},
		{"a long id", func() (decide.Correction, error) { return g.Refund(t.Context(), receipt, strings.Repeat("x", 129), 1) }, decide.ErrRefundID},
		{"a receipt of nothing", func() (decide.Correction, error) { return g.Refund(t.Context(), decide.Receipt{Cost: 1}, "a", 1) }, decide.ErrNothingCharged},
	} {
		if c, err := tt.call(); !errors.Is(err, tt.want) || c.EventID != [16]byte{} {
			t.Errorf("%s: %+v %v, want %v", tt.name, c, err, tt.want)
		}
	}
	if g.store.corrections != corrections {
		t.Error("the store was asked")
	}
	if c := g.refund(receipt, strings.Repeat("x", 128), 1); c.Units != 1 {
		t.Errorf("an id of 128 bytes: %+v", c)
	}
	g.store.fail = errAway
	if _, err := g.Refund(t.Context(), receipt, "b", 1); !errors.Is(err, decide.ErrStoreUnavailable) || !errors.Is(err, errAway) {
		t.Errorf("without the store: %v, want ErrStoreUnavailable", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Settle(ctx, receipt, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("without a caller: %v, want canceled", err)
	}
	g.store.fail = nil
	for effect, want := range map[limit.Effect]error{
		limit.Forgotten: decide.ErrStoreUnavailable, limit.TooMany: decide.ErrTooManyRefunds, limit.Settled: decide.ErrAlreadySettled,
		limit.Exceeds: decide.ErrRefundExceeds, "unheard of": decide.ErrStoreUnavailable,
	} {
		g.store.effect = effect
		if _, err := g.Refund(t.Context(), receipt, "c", 1); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", effect, err, want)
		}
	}
}

// TestTooManyRefunds guarantees that refunds of one decision come to an end, and
// that those that were made are still known then.
func TestTooManyRefunds(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 1000))
	receipt := g.charged(decide.Query{Tenant: "acme", Cost: units(500)})
	for i := range limit.MaxRefunds {
		g.refund(receipt, fmt.Sprint(i), 1)
	}
	if _, err := g.Refund(t.Context(), receipt, "one more", 1); !errors.Is(err, decide.ErrTooManyRefunds) {
		t.Errorf("one more: %v, want ErrTooManyRefunds", err)
	}
	if c := g.refund(receipt, "7", 1); !c.Replayed || c.RefundedTotal != 8 {
		t.Errorf("the eighth again: %+v", c)
	}
	if got := g.left("month"); got != 600 {
		t.Errorf("%d left, want 600", got)
	}
}

// TestCorrectionsAddUp guarantees the books of a tenant under any history of
// decisions, refunds and settlements, in any order and repeated at will: what a
// quota has consumed less what it was refunded is the sum of what its decisions
// have cost in the end, no decision gives back more than it has cost, the same
// question has the same answer, and the events say the same as the counters.
func TestCorrectionsAddUp(t *testing.T) {
	t.Parallel()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type entry struct {
		receipt  decide.Receipt
		settled  int64 // -1: not
		refunded int64
		refunds  map[string]decide.Correction
		cost     int64
	}
	reach := map[string]int{}
	for range 30 {
		wallet := ways[len(ways)-2].make("purse", 1000)
		wallet.Meter = "credits"
		g := newGate(t, quota("month", 1000), wallet)
		var ledger []*entry
		events := map[string]int64{} // units by meter
		tell := func(u decide.Usage, ok bool) {
			if ok {
				for _, c := range u.AppendCounters(nil) {
					events[c.Rule.Meter] += c.Units
				}
			}
		}
		for range 120 {
			g.at(g.now.Add(time.Duration(rng.IntN(1000)) * time.Millisecond))
			if len(ledger) == 0 || rng.IntN(4) == 0 {
				d := g.ask(decide.Query{Tenant: "acme", Cost: units(1 + rng.Int64N(60))})
				tell(d.Usage())
				if receipt, ok := d.Receipt(); ok {
					ledger = append(ledger, &entry{receipt: receipt, settled: -1, cost: d.Cost, refunds: map[string]decide.Correction{}})
				}
				continue
			}
			e := ledger[rng.IntN(len(ledger))]
			if rng.IntN(3) == 0 {
				cost := rng.Int64N(2*e.cost + 1)
				c, err := g.Settle(t.Context(), e.receipt, cost)
				switch {
				case err == nil && c.Replayed:
					if cost != e.settled {
						t.Fatalf("settled at %d and then at %d", e.settled, cost)
					}
				case err == nil:
					if e.settled >= 0 || c.Units != max(cost, e.refunded)-e.cost {
						t.Fatalf("settled at %d after %d: %+v with %d refunded", cost, e.settled, c, e.refunded)
					}
					e.settled, e.cost = cost, max(cost, e.refunded)
					reach["settled"]++
				case errors.Is(err, decide.ErrAlreadySettled):
					if e.settled < 0 || e.settled == cost {
						t.Fatalf("settled at %d: %v for %d", e.settled, err, cost)
					}
					reach["settled twice"]++
				default:
					t.Fatal(err)
				}
				tell(c.Usage())
				continue
			}
			id := fmt.Sprint(rng.IntN(6))
			asked := rng.Int64N(40)
			c, err := g.Refund(t.Context(), e.receipt, id, asked)
			known, repeat := e.refunds[id]
			switch {
			case err == nil && c.Replayed:
				if !repeat || c.Units != known.Units || c.RefundedTotal != known.RefundedTotal {
					t.Fatalf("refund %q again: %+v, want %+v", id, c, known)
				}
				reach["repeated"]++
			case err == nil:
				if e.refunded += c.Units; repeat || asked > 0 && c.Units != asked || asked == 0 && e.refunded != e.cost || c.RefundedTotal != e.refunded || e.refunded > e.cost {
					t.Fatalf("refund %q of %d: %+v with %d of %d refunded", id, asked, c, e.refunded, e.cost)
				}
				e.refunds[id] = c
				reach["refunded"]++
			case errors.Is(err, decide.ErrRefundExceeds):
				if repeat || asked > 0 && asked <= e.cost-e.refunded || asked == 0 && e.refunded < e.cost {
					t.Fatalf("refund %q of %d with %d of %d refunded: %v", id, asked, e.refunded, e.cost, err)
				}
				reach["exceeds"]++
			default:
				t.Fatal(err)
			}
			tell(c.Usage())
		}
		want := int64(0)
		for _, e := range ledger {
			want += e.cost - e.refunded
		}
		for _, l := range g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits {
			if got := l.Consumed - l.Refunded; got != want || events[l.Meter] != want {
				t.Fatalf("%s: the counter says %d, the events %d, the ledger %d", l.Meter, got, events[l.Meter], want)
			}
		}
	}
	for _, what := range []string{"settled", "settled twice", "repeated", "refunded", "exceeds"} {
		if reach[what] < 20 {
			t.Errorf("%d %s: the generator no longer reaches them", reach[what], what)
		}
	}
}

// TestCorrectionSeesTheRequestsScope guarantees that a correction is made where
// the decision was: in the scope of its tenant, or of its client where it is
// anonymous.
func TestCorrectionSeesTheRequestsScope(t *testing.T) {
	t.Parallel()

	g := newGate(t, rate("address", rule.IP, 10), rate("tenant", rule.Tenant, 10))
	for _, q := range []decide.Query{{Tenant: "acme"}, {Address: t0Address}, {Tenant: "acme", Address: t0Address}} {
		receipt := g.charged(q)
		g.refund(receipt, "", 0)
		c := g.store.last
		if c.Tenant != q.Tenant || (c.Address != "") != (q.Tenant == "") || c.DecisionID != receipt.DecisionID || !c.At.Equal(t0) || c.Cost != 1 {
			t.Errorf("%+v is corrected as %+v", q, c)
		}
		var rules []string
		for _, i := range c.Items {
			rules = append(rules, i.Counter.Address)
		}
		if diff := cmp.Diff(len(receipt.Charged), len(rules)); diff != "" {
			t.Errorf("%+v: %s", q, diff)
		}
	}
}
