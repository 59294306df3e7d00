package limit_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// balance is what a wallet has, of the units that were granted.
func balance(granted int64, r limit.Result) int64 { return granted - r.Consumed + r.Refunded }

// TestWallets guarantees that a wallet passes whatever a request costs while
// its balance is above 0, that waiting helps a renewable one and not a prepaid
// one, and that a top-up is in force at once.
func TestWallets(t *testing.T) {
	t.Parallel()
	left := month.End.Sub(noon)
	five, monthly := prepaid(5, 0), renewable(5, month, 0)
	none, noneMonthly, most, unlimited := five, monthly, five, monthly
	none.Limit, noneMonthly.Limit, most.Limit, unlimited.Limit = 0, 0, rule.Unlimited, rule.Unlimited
	answers{
		{"an untouched prepaid wallet has no end", five, nil, 0, 0, limit.Result{Passed: true, Remaining: 5}},
		{"an untouched renewable one has its period's", monthly, nil, 0, 0, limit.Result{Passed: true, Remaining: 5, Reset: left}},
		{"a prepaid one is overdrawn once", five, nil, 0, 8, limit.Result{Passed: true, Consumed: 8}},
		{"and not twice, however long one waits", five, []spend{{0, 8}}, 0, 1, limit.Result{RetryAfter: limit.Never, Consumed: 8}},
		{"a renewable one is overdrawn once", monthly, nil, 0, 8, limit.Result{Passed: true, Reset: left, Consumed: 8}},
		{"and refuses until its period ends", monthly, []spend{{0, 8}}, time.Hour, 1, limit.Result{RetryAfter: left - time.Hour, Reset: left - time.Hour, Consumed: 8}},
		{"an exact debit overdraws nothing", five, []spend{{0, 2}}, 0, 3, limit.Result{Passed: true, Consumed: 5}},
		{"a balance of 0 refuses", five, []spend{{0, 5}}, 0, 1, limit.Result{RetryAfter: limit.Never, Consumed: 5}},
		{"a peek passes an overdrawn one", five, []spend{{0, 8}}, 0, 0, limit.Result{Passed: true, Consumed: 8}},
		{"nothing granted", none, nil, 0, 1, limit.Result{RetryAfter: limit.Never}},
		{"a renewable limit of 0 never passes", noneMonthly, nil, 0, 1, limit.Result{RetryAfter: limit.Never, Reset: left}},
		{"a soft one is overdrawn further", soft(five), []spend{{0, 8}}, 0, 4, limit.Result{RetryAfter: limit.Never, Consumed: 12}},
		{"2^53-1 granted is an amount", most, []spend{{0, rule.Unlimited}}, 0, 1, limit.Result{RetryAfter: limit.Never, Consumed: rule.Unlimited}},
		{"numbers come to their end", most, []spend{{0, 2}}, 0, rule.Unlimited - 1, limit.Result{Remaining: rule.Unlimited - 2, RetryAfter: limit.Never, Consumed: 2}},
		{"2^53-1 a month is unlimited", unlimited, []spend{{0, rule.Unlimited}}, 0, 9, limit.Result{Passed: true, Reset: left, Consumed: rule.Unlimited, Clipped: true}},
	}.run(t)
	t.Run("a renewable wallet begins each period untouched", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.ask(month.End.Add(-us), renewable(5, month, 8))
		next := period.Span{Start: month.End, End: month.End.AddDate(0, 1, 0)}
		if a := s.ask(month.End, renewable(5, month, 1)); !a.Stale {
			t.Errorf("by the old period: %+v, want stale", a)
		}
		if r := s.ask(month.End, renewable(5, next, 1)).Results[0]; !r.Passed || r.Remaining != 4 {
			t.Errorf("%+v, want passed with 4 remaining", r)
		}
	})
	t.Run("all charges of a decision on one wallet are one debit", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		a := s.ask(noon, prepaid(5, 4), prepaid(5, 4))
		if !a.Allowed || balance(5, a.Results[1]) != -3 {
			t.Errorf("%+v, want allowed with a balance of -3", a)
		}
	})
	t.Run("floors are taken over", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		c := prepaid(10, 1)
		c.Floor = limit.Totals{Consumed: 9, Refunded: 1}
		for _, want := range []int64{1, 0} {
			if r := s.ask(noon, c).Results[0]; !r.Passed || balance(10, r) != want {
				t.Errorf("%+v, want a balance of %d", r, want)
			}
		}
		if r := s.ask(noon, c).Results[0]; r.Passed {
			t.Errorf("%+v, want refused", r)
		}
	})
}

// TestW1WalletsAreOverdrawnOnce guarantees W1: a debit may take a wallet below
// zero once, and a top-up first pays that back.
func TestW1WalletsAreOverdrawnOnce(t *testing.T) {
	t.Parallel()
	s, granted := newStore(t), int64(5)
	for i, step := range []struct {
		topup, cost int64
		allowed     bool
		balance     int64
	}{
		{0, 8, true, -3},
		{0, 1, false, -3},
		{3, 0, true, 0},
		{0, 1, false, 0},
		{10, 0, true, 10},
		{0, 1, true, 9},
	} {
		granted += step.topup
		a := s.ask(noon, prepaid(granted, step.cost))
		if got := balance(granted, a.Results[0]); a.Allowed != step.allowed || got != step.balance {
			t.Errorf("step %d: allowed %v, balance %d, want %v, %d", i, a.Allowed, got, step.allowed, step.balance)
		}
	}
}

// TestW2OneOfTwoOverdraws guarantees W2: of two debits that each overdraw, one
// passes, and an exact debit overdraws nothing. It holds for both modes.
func TestW2OneOfTwoOverdraws(t *testing.T) {
	t.Parallel()
	for name, charge := range map[string]func(granted, cost int64) limit.Charge{
		"prepaid":   prepaid,
		"renewable": func(granted, cost int64) limit.Charge { return renewable(granted, month, cost) },
	} {
		s := newStore(t)
		first, second := s.ask(noon, charge(5, 8)), s.ask(noon, charge(5, 8))
		if !first.Allowed || second.Allowed || balance(5, second.Results[0]) != -3 {
			t.Errorf("%s, 5: %+v, %+v, want one allowed and a balance of -3", name, first, second)
		}
		s = newStore(t)
		if a := s.ask(noon, charge(8, 8)); !a.Allowed || balance(8, a.Results[0]) != 0 || a.Results[0].Remaining != 0 {
			t.Errorf("%s, 8: %+v, want allowed and a balance of 0", name, a)
		}
	}
}
