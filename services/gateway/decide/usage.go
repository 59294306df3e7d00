package decide

import (
	"net/netip"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// A Verdict is an outcome as an event tells it, where shadow and failure modes
// show.
type Verdict string

// The verdicts, spelled as usage.v1 spells them.
const (
	VerdictAllow         Verdict = "ALLOW"
	VerdictDeny          Verdict = "DENY"
	VerdictShadowDeny    Verdict = "SHADOW_DENY" // passed, and a shadow rule would have refused
	VerdictDegradedAllow Verdict = "DEGRADED_ALLOW"
	VerdictDegradedDeny  Verdict = "DEGRADED_DENY"
	VerdictBlocked       Verdict = "BLOCKED"
	VerdictRefund        Verdict = "REFUND"
	VerdictSettle        Verdict = "SETTLE"
)

// A Usage is what there is to tell of one decision, or of its correction, once.
// Decision.Usage and Correction.Usage fill in what the domain knows, and the
// face that asked the rest. It outlives the decision, and points to nothing
// that changes.
type Usage struct {
	ID           [16]byte // of the event: the decision's, and of a correction one of its own
	Decision     [16]byte // the decision, or the one that is corrected
	RefundID     string   // of a refund
	At           time.Time
	Verdict      Verdict
	Tenant       string
	Application  string
	User         string
	APIKey       string // id
	Address      netip.Addr
	Service      string // id
	Endpoint     string // id
	Template     string // of the endpoint's path
	Method       string
	RuleID       string // the rule that refused, else the tightest; empty: none
	Algorithm    rule.Algorithm
	Cost         int64 // units asked; of a refund given back; of a settlement the true cost
	RulesVersion int64

	Status    int           // what the client is answered, 0 of a correction; a face may know better than the decision
	Latency   time.Duration // of the decision; by the face
	KeyDigest [32]byte      // SHA-256 of the API key that was presented, by the face; zero: none was
	Upstream  Upstream      // by the face
	Labels    string        // one JSON object of strings, or empty; by the face

	counters []Counter
}

// Corrects reports whether this tells of a refund or a settlement.
func (u *Usage) Corrects() bool { return u.Verdict == VerdictRefund || u.Verdict == VerdictSettle }

// Upstream is what an upstream did with a request. The zero Upstream was not
// reached.
type Upstream struct {
	Reached bool
	Status  int           // 0: no answer came
	Took    time.Duration // from sending the request to the end of the answer
}

// A Counter is the counter of one rule that sells units, after a decision.
type Counter struct {
	Rule     *rule.Rule
	Identity *limit.Identity
	Span     period.Span // zero for a prepaid wallet
	Limit    int64       // units per period; of a prepaid wallet, all that was granted less what expired
	Units    int64       // charged, negative when given back; of a degraded pass, owed though nothing was charged
	Observed bool        // whether the store answered; else the rest is 0
	Consumed int64
	Refunded int64
}

// Usage returns what there is to tell of the decision. It is false for one that
// makes no event: a peek, or the repeat of one that has made its own.
func (d *Decision) Usage() (Usage, bool) {
	in := d.basis
	if in == nil || d.Peek || d.Replayed {
		return Usage{}, false
	}
	u := Usage{
		ID: d.ID, Decision: d.ID, At: in.at, Tenant: in.request.Tenant, Application: in.request.Application, User: in.request.User,
		APIKey: in.request.APIKey, Address: in.request.Address,
		Service: in.request.Service, Endpoint: in.request.Endpoint, Method: in.query.Method,
		Cost: d.Cost, RulesVersion: d.RulesVersion, Status: d.Status, counters: in.counters(d.Outcome == Allow),
	}
	if in.endpoint != nil {
		u.Template = in.endpoint.Path
	}
	deciding := in.ruleByID(d.RuleID)
	u.Verdict = d.verdict()
	if u.Verdict == VerdictAllow {
		if r := in.shadowRefusal(); r != nil {
			u.Verdict, deciding = VerdictShadowDeny, r
		}
	}
	if deciding != nil {
		u.RuleID, u.Algorithm = deciding.ID, deciding.Algorithm
	} else if l := d.Tightest(); l != nil {
		u.RuleID, u.Algorithm = l.RuleID, l.Algorithm
	}
	return u, true
}

func (d *Decision) verdict() Verdict {
	switch {
	case d.Outcome == Blocked:
		return VerdictBlocked
	case d.Outcome == Allow && d.Degraded:
		return VerdictDegradedAllow
	case d.Outcome == Allow:
		return VerdictAllow
	case d.Degraded:
		return VerdictDegradedDeny
	default:
		return VerdictDeny
	}
}

// ruleByID is the rule of a refusal, nil when there is none.
func (in *inquiry) ruleByID(id string) *rule.Rule {
	if id == "" {
		return nil
	}
	if in.blocking != nil && in.blocking.ID == id {
		return in.blocking
	}
	for _, r := range in.winners {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// shadowRefusal is the shadow rule that would have refused, the one with the
// longest wait where there are several, or nil. A block never ends.
func (in *inquiry) shadowRefusal() (refusing *rule.Rule) {
	if in.trying != nil {
		return in.trying
	}
	var wait time.Duration
	for i := range in.results {
		r, got := in.winners[i], &in.results[i]
		if r.Mode == rule.Shadow && !r.Soft && !got.Passed && (refusing == nil || got.RetryAfter > wait) {
			refusing, wait = r, got.RetryAfter
		}
	}
	return refusing
}

// AppendCounters appends the counters of every quota and wallet that applied,
// refused ones included, by rule id. They are valid as long as u is.
func (u *Usage) AppendCounters(dst []Counter) []Counter { return append(dst, u.counters...) }

// counters are copies: what is told may be looked at later than anything else of
// the decision.
func (in *inquiry) counters(allowed bool) []Counter {
	total := 0
	for _, r := range in.winners {
		if totals(r) {
			total++
		}
	}
	if total == 0 {
		return nil
	}
	list, identities := make([]Counter, 0, total), make([]limit.Identity, 0, total)
	for i, r := range in.winners {
		if !totals(r) {
			continue
		}
		charge := &in.asked.Charges[i]
		identities = append(identities, charge.Counter)
		c := Counter{Rule: r, Identity: &identities[len(identities)-1], Span: charge.Span, Limit: charge.Limit}
		if in.results == nil {
			if allowed && r.Mode == rule.Enforce {
				c.Units = charge.Cost
			}
		} else {
			got := &in.results[i]
			c.Observed, c.Consumed, c.Refunded = true, got.Consumed, got.Refunded
			if allowed && (got.Passed || r.Soft) {
				c.Units = charge.Cost
			}
		}
		list = append(list, c)
	}
	return list
}

// totals reports whether a rule's counter has totals, which are billed.
func totals(r *rule.Rule) bool { return r.Kind == rule.Quota || r.Kind == rule.Wallet }

// UnknownKey is the refusal of a request whose API key is not in the catalogue.
// What it claims to be is not believed: it is anonymous.
func (s *Snapshot) UnknownKey(q Query, at time.Time) Decision {
	q.Tenant, q.Application, q.User, q.APIKey, q.RequestID = "", "", "", "", ""
	in := newInquiry(s, &q, NewID(at))
	in.at = at
	d := in.passed()
	d.Outcome, d.Status, d.Code = Deny, statusUnauthorized, UnknownKey
	return d
}
