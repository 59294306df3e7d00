package limit

import "time"

// A Correction gives back what a decision charged, or charges the rest once
// its true cost is known. It is made once per Refund id, and settles once.
type Correction struct {
	Tenant     string // scope of the decision; Address where anonymous
	Address    string
	DecisionID [16]byte
	At         time.Time // when the decision was made, by the store's clock
	Cost       int64     // units that the decision charged, at least 1

	// Items are the counters that were charged. The Cost of each is what it was
	// charged, its Span the period that was charged.
	Items []Item

	Refund string // id of a refund, 1-128 bytes; empty: this settles
	Units  int64  // of a refund, units of Cost, at least 1; 0: all that is left
	Settle int64  // of a settlement: the true cost, 0 to rule.Unlimited
}

// An Item is one counter that a decision charged.
type Item struct {
	Charge

	// Fixed says that its rule fixes the cost: it gives back all at once, when a
	// refund or a settlement leaves nothing of the decision's cost.
	Fixed bool
}

// An Effect is what a Correction came to.
type Effect string

// The effects.
const (
	Corrected Effect = "corrected"
	Repeated  Effect = "repeated" // made before, with these answers; nothing changed
	Exceeds   Effect = "exceeds"  // more than is left was to be given back; nothing changed
	Settled   Effect = "settled"  // the decision was settled at another cost; nothing changed
	TooMany   Effect = "too many" // refunds of one decision; nothing changed
	Forgotten Effect = "lost"     // the store does not vouch for what it holds; nothing changed
)

// MaxRefunds is how many refunds of one decision are remembered.
const MaxRefunds = 100

// RememberCorrections is how long they are remembered: as long as a receipt is
// good for.
const RememberCorrections = 7 * 24 * time.Hour

// A CorrectionAnswer is the store's.
type CorrectionAnswer struct {
	Effect        Effect
	Now           time.Time // the store's clock
	Units         int64     // given back by a refund; charged by a settlement, negative when given back
	RefundedTotal int64     // given back by all refunds so far, units of Cost
	Left          int64     // that could still be given back, units of Cost
	Items         []Moved   // of Corrected, in order; else empty
}

// Moved is what became of one counter.
type Moved struct {
	Units  int64 // charged, negative when given back
	Totals       // of a quota or a wallet, afterwards
}
