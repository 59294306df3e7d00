package decide

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// What Decide refuses to decide. Everything else is an answer.
var (
	// ErrRequestIDReused reports a request id that was used for another request
	// within a day.
	ErrRequestIDReused = errors.New("request id reused with other dimensions or cost")
	// ErrCost reports a cost, or units of a refund, below zero or above
	// rule.Unlimited.
	ErrCost = errors.New("cost out of bounds")
)

// A Query is one request, its dimensions resolved. An empty value is an absent
// dimension.
type Query struct {
	RequestID   string // client-supplied, 0-256 bytes; empty: not idempotent
	Tenant      string
	Application string
	User        string
	APIKey      string     // id, never the secret
	Address     netip.Addr // of the client, already grouped: IPv6 masked to its /64
	Service     string     // id
	Endpoint    string     // id; empty: found by Service, Method and Path
	Method      string
	Path        string            // behind the service's prefix
	Cost        *int64            // units, 0 to rule.Unlimited; 0 peeks; nil: the endpoint's, else 1
	Labels      map[string]string // for conditions and the event
}

// An Outcome is what becomes of a request.
type Outcome string

// The outcomes, spelled as the faces spell them.
const (
	Allow   Outcome = "ALLOW"
	Deny    Outcome = "DENY"
	Blocked Outcome = "BLOCKED"
)

// A Code says why a request does not pass. It is empty when it passes.
type Code string

// The codes, spelled as the faces spell them.
const (
	RateLimited      Code = "rate-limited"
	QuotaExceeded    Code = "quota-exceeded"
	WalletEmpty      Code = "wallet-empty"
	BlockedByRule    Code = "blocked"
	StoreUnavailable Code = "store-unavailable"
	CostExceedsLimit Code = "cost-exceeds-limit" // no wait helps
	UnknownKey       Code = "unknown-key"        // of Snapshot.UnknownKey: faces resolve keys
)

// A Decision is the answer to a Query.
type Decision struct {
	ID           [16]byte // UUIDv7; of the first decision when Replayed
	Outcome      Outcome
	Status       int // as an HTTP status: 200, 401, 403, 429 or 503
	Code         Code
	RuleID       string        // the rule that refused; empty when allowed
	RetryAfter   time.Duration // the shortest wait after which the same request may pass; meaningful when CanRetry
	CanRetry     bool          // false when allowed, or when no wait helps
	Delay        time.Duration // how long an allowed request is to wait before it goes on: the longest of its queues
	Degraded     bool          // the store did not decide
	Local        bool          // Degraded, and counted in this process
	Cost         int64         // units asked for; a rule of fixed cost charges its own
	RulesVersion int64         // revision of the rules that decided
	Limits       []Limit       // every winner by rule id, shadow and peek included; none when Degraded
	Replayed     bool          // a decision with this request id had charged; this is its answer
	Peek         bool          // asked with cost 0: nothing was charged

	ShadowBlocked bool // a block rule in shadow applies, which no limit shows

	basis *inquiry // what Usage and Receipt tell of
	first *Receipt // of a replay: what the first decision charged; nil: nothing, or it is not known
}

// A Limit is what one rule said about a request.
type Limit struct {
	RuleID    string
	Kind      rule.Kind
	Algorithm rule.Algorithm
	Meter     string
	Mode      rule.Mode
	Soft      bool          // never refuses
	Limit     int64         // units per window or period; of a prepaid wallet, all that was granted less what expired
	Remaining int64         // units that could be spent right now, rounded down
	Reset     time.Duration // to the end of the window or period; of a bucket or a log, until Remaining rises next; 0 for a prepaid wallet
	Window    time.Duration // of a rate, its window; of a quota or a renewable wallet, the length of its period
	Passed    bool          // whether this rule alone would let the request pass

	Consumed    int64     // of a quota or a wallet, after the decision
	Refunded    int64     // of a quota or a wallet, after the decision
	Balance     int64     // of a wallet, after the decision: Limit less what was consumed and not refunded; may be negative
	PeriodStart time.Time // of a quota or a renewable wallet
	PeriodEnd   time.Time // of a quota or a renewable wallet, exclusive
}

// Tightest returns the limit that is reached first: of the enforced rules, the
// one with the least remaining, then the longest reset. Rules that only report
// count where there are no others. It returns nil when there is none.
func (d *Decision) Tightest() (best *Limit) {
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Mode == rule.Enforce && (best == nil || l.tighter(best)) {
			best = l
		}
	}
	return best
}

func (l *Limit) tighter(o *Limit) bool {
	switch {
	case l.Soft != o.Soft:
		return o.Soft
	case l.Remaining != o.Remaining:
		return l.Remaining < o.Remaining
	default:
		return l.Reset > o.Reset
	}
}

// A Store keeps the counters. An error means that it did not decide, and that
// it is unknown whether anything was charged. What it was asked is its own until
// it has answered; after an error it may look at it for good.
type Store interface {
	// Decide evaluates every charge of d in one atomic step.
	Decide(ctx context.Context, d limit.Decision) (limit.Answer, error)
	// DecideAll is Decide of each, in order, in as few calls as can be. Both
	// results are as long as the decisions.
	DecideAll(ctx context.Context, decisions []limit.Decision) ([]limit.Answer, []error)
	// Correct gives back, or charges the rest of, what a decision charged. It
	// is safe to call again after an error: c is made once.
	Correct(ctx context.Context, c limit.Correction) (limit.CorrectionAnswer, error)
}
