package ledger

import (
	"cmp"
	"slices"

	"penstock.dev/services/internal/limit"
)

// settle spreads what was consumed since the last look over the open top-ups,
// and returns the wallet as it is then and the top-ups of which more or less is
// spent. open is changed.
//
// So units are spent from what was there when they were consumed: a top-up that
// came later with a lower priority number takes nothing back from one before it.
// Totals that fell, of a store that lost data, are taken for the last ones.
func (w Wallet) settle(open []TopUp, now limit.Totals) (Wallet, []TopUp) {
	now.Consumed, now.Refunded = max(now.Consumed, w.Consumed), max(now.Refunded, w.Refunded)
	units := now.Consumed - w.Consumed - (now.Refunded - w.Refunded) + w.Owed
	before := make(map[string]int64, len(open))
	for _, t := range open {
		before[t.ID] = t.Spent
	}
	w.Totals, w.Owed = now, 0
	if units >= 0 {
		w.Owed = burn(open, units)
	} else {
		w.Owed = -restore(open, -units)
	}
	var changed []TopUp
	for _, t := range open {
		if t.Spent != before[t.ID] {
			changed = append(changed, t)
		}
	}
	return w, changed
}

// burn spends units of the top-ups in their order, and returns how many there
// were too many.
func burn(open []TopUp, units int64) (left int64) {
	for _, t := range inOrder(open) {
		n := min(units, t.Units-t.Spent)
		t.Spent += n
		units -= n
	}
	return units
}

// restore gives units back to the top-ups, the last that were spent first, and
// returns how many there were too many: those of top-ups that have expired.
func restore(open []TopUp, units int64) (left int64) {
	for _, t := range slices.Backward(inOrder(open)) {
		n := min(units, t.Spent)
		t.Spent -= n
		units -= n
	}
	return units
}

// inOrder returns the top-ups as they are spent: by priority, the lower number
// first, then by expiry, the earlier first and never last, then by age.
func inOrder(open []TopUp) []*TopUp {
	order := make([]*TopUp, len(open))
	for i := range open {
		order[i] = &open[i]
	}
	slices.SortStableFunc(order, func(a, b *TopUp) int {
		if c := cmp.Compare(a.Priority, b.Priority); c != 0 {
			return c
		}
		switch {
		case a.ExpiresAt.IsZero() || b.ExpiresAt.IsZero():
			return cmp.Compare(btoi(a.ExpiresAt.IsZero()), btoi(b.ExpiresAt.IsZero()))
		default:
			return a.ExpiresAt.Compare(b.ExpiresAt)
		}
	})
	return order
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
