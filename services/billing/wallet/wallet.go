// Package wallet keeps the ledger of a prepaid wallet: signed entries that are never
// changed, whose sum is the balance, and what of each top-up is spent.
//
// Balance = granted − consumed + refunded. Units are spent of the top-ups that are
// there when they are consumed: the lower priority number first, then the earlier
// end, then the older. Expiry takes what is unspent; how much that is says rule-admin,
// which reads the counters.
package wallet

import (
	"cmp"
	"slices"
	"time"
)

// A Grant is one top-up.
type Grant struct {
	ID        string
	Units     int64
	Spent     int64
	Expired   int64 // taken back at its end
	Ended     bool  // its end has been booked: nothing of it is spent or given back any more
	Priority  int
	GrantedAt time.Time
	ExpiresAt time.Time // zero: never
}

// Left is what can still be spent.
func (g Grant) Left() int64 { return g.Units - g.Spent - g.Expired }

// Spread spends units of the grants in their order, or gives units back, last spent
// first, where they are negative. It returns what found no room: units beyond all that
// was granted, owed by the next top-up, or negative where more came back than was spent
// of what has not ended. grants is changed.
func Spread(grants []Grant, units int64) (left int64) {
	order := Order(grants)
	if units >= 0 {
		for _, i := range order {
			if g := &grants[i]; !g.Ended {
				n := min(units, g.Left())
				g.Spent += n
				units -= n
			}
		}
		return units
	}
	for _, i := range slices.Backward(order) {
		if g := &grants[i]; !g.Ended {
			n := min(-units, g.Spent)
			g.Spent -= n
			units += n
		}
	}
	return units
}

// Order is the indices of the grants as they are spent.
func Order(grants []Grant) []int {
	order := make([]int, len(grants))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &grants[i], &grants[j]
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), ends(a, b), a.GrantedAt.Compare(b.GrantedAt), cmp.Compare(a.ID, b.ID))
	})
	return order
}

// ends compares when grants end; never is last.
func ends(a, b *Grant) int {
	switch never := a.ExpiresAt.IsZero(); {
	case never && b.ExpiresAt.IsZero():
		return 0
	case never:
		return 1
	case b.ExpiresAt.IsZero():
		return -1
	}
	return a.ExpiresAt.Compare(b.ExpiresAt)
}

// The flags of entries that a person should look at.
const (
	// FlagCapped marks a correction that would have given back more than its decision
	// was charged: a negative price mints no credit.
	FlagCapped = "gives back more than was charged"
	// FlagOrphan marks a correction of a decision that the ledger does not have.
	FlagOrphan = "corrects a decision that is not in the ledger"
)

// Correct says what a correction moves a balance by, given what its decision has left
// charged (charged less all that was given back so far). units is as events have it:
// negative gives back. known is whether the decision is in the ledger.
func Correct(left, units int64, known bool) (moves int64, flag string) {
	switch {
	case units >= 0:
		return -units, "" // a settlement above the estimate
	case !known:
		return -units, FlagOrphan
	case -units > left:
		return max(0, left), FlagCapped
	}
	return -units, ""
}
