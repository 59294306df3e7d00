// Package limit is the specification of every algorithm: pure Go models of
// what the counter store's script does. The script is held to them by
// differential tests, and where the two differ the model is right.
//
// A decision asks several counters at once and is all-or-nothing: if one
// enforced charge is refused, nothing is charged anywhere.
package limit

import (
	"math"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// Never is the RetryAfter of a charge that no wait can help.
const Never = time.Duration(math.MaxInt64)

// An Identity is what a counter measures. It never contains the rule's id, so
// a plan change, or deleting and re-creating a rule, keeps consumption
// (docs/adr: keys).
type Identity struct {
	Shadow  bool
	Kind    rule.Kind
	Subject rule.Subject // which of the values below own the counter

	Tenant      string // qualifies application, user and api key whether or not it is in Subject
	Application string
	User        string
	APIKey      string
	Address     string // client network in text, e.g. 203.0.113.9 or 2001:db8:1:2::/64

	Meter    string
	Service  string // id, of a service's or endpoint's rule
	Endpoint string // id, of an endpoint's rule

	Algorithm rule.Algorithm // of a rate
	Window    time.Duration  // of a rate

	Unit  period.Unit // of a quota or a renewable wallet, as are the next two; zero for a prepaid one
	Count int
	Start time.Time // the period's first instant
}

// A Charge asks one counter for units.
type Charge struct {
	Counter   Identity
	Algorithm rule.Algorithm
	Cost      int64 // units, 0 to rule.Unlimited; 0 changes nothing
	Soft      bool  // charges and reports, never refuses

	Limit    int64         // units per window or period; of a prepaid wallet, all that was ever granted
	Window   time.Duration // of a rate
	Burst    int64         // capacity of a bucket, units
	MaxDelay time.Duration // of a leaky bucket as a queue: the longest wait in it; 0: refuse instead
	Span     period.Span   // of a quota or a renewable wallet, by the caller's estimate of the store's clock

	// Floor is the least that a quota's or wallet's counter is known to have
	// held. A store that holds less has lost something, and takes it over.
	Floor Totals
}

// Totals are what a quota or a wallet has come to, in units. Both only rise.
type Totals struct {
	Consumed int64
	Refunded int64
}

// A Decision is one request's question to the store.
type Decision struct {
	Charges []Charge

	// Weigh asks what each charge would come to, and charges nothing. Allowed
	// says whether all would have passed.
	Weigh bool

	// Leases are what may be held of each charge's counter by who asks; none: the
	// store is to be asked. The store itself takes no notice.
	Leases []rule.Lease

	// Request makes the decision idempotent where it is set: a decision that
	// charged is answered again, for a day, and charges nothing.
	Request Request
}

// MaxNote bounds a Request's Note, in bytes.
const MaxNote = 4096

// A Request is a client-supplied id of a decision. The zero Request is none.
type Request struct {
	Tenant      string // scope of the id; Address where anonymous
	Address     string
	ID          string // 1-256 bytes
	DecisionID  [16]byte
	Fingerprint [16]byte // of dimensions and cost; another one under the same ID is a conflict

	// Note is kept with the answer and handed back with a replay, up to
	// MaxNote bytes: what the asker needs to read the results by then, when
	// the rules may be others.
	Note []byte
}

// A Result is what one charge came to.
type Result struct {
	Passed     bool          // whether this charge alone would pass
	Remaining  int64         // units that could be spent right now, 0 to the capacity, rounded down
	RetryAfter time.Duration // zero when Passed; else the shortest wait after which the same cost passes, or Never
	Reset      time.Duration // to the end of the window or period; of a bucket or a log, until Remaining rises next; 0: it does not
	Delay      time.Duration // of a leaky bucket as a queue that passed: how long the request waits in it
	Consumed   int64         // of a quota or a wallet, after the decision
	Refunded   int64         // of a quota or a wallet, after the decision
	Clipped    bool          // of what was charged: the counter was full and counts less than the cost, so nothing of it can be given back
}

// An Answer is the store's.
type Answer struct {
	Allowed bool      // every enforced charge passed
	Charged bool      // something was charged by this decision
	Now     time.Time // the store's clock
	Results []Result  // in the order of the charges

	// Taken is when what the decision spends was charged, by the store's clock,
	// where that was before the decision; zero: by the decision.
	Taken time.Time

	// Stale: the store's clock lies outside a charge's Span; nothing was
	// evaluated but Now. Ask again with spans that contain Now.
	Stale bool

	// Lost: the store does not vouch for what it holds, because it was emptied
	// or replaced, and the decision has an enforced quota or wallet. Nothing
	// was evaluated.
	Lost bool

	// Replayed: a decision with this request id had charged; DecisionID is
	// its id and Results are its results, as they were then.
	Replayed   bool
	Conflict   bool // the id is known with another fingerprint; nothing was charged
	DecisionID [16]byte
	Decided    time.Time // of a replay: when the first decision was made, by the store's clock
	Note       []byte    // of a replay: the first decision's
}
