// Package rule holds the rule: to whom, where, how often, how much, and what
// is counted. It knows which rules can be kept, which match a request, and
// which of two matching rules is the more specific.
package rule

import (
	"net/netip"
	"time"

	"penstock.dev/services/internal/period"
)

// Unlimited is the greatest limit, 2^53-1: up to it Go and Redis's Lua count
// whole numbers alike. A limit of Unlimited never refuses.
const Unlimited int64 = 1<<53 - 1

// Bounds of a rate (docs/adr/0035 and the ones after it say why).
const (
	MaxWindow    = 366 * 24 * time.Hour
	MaxPerSecond = 1_000_000     // units a second
	MaxCapacity  = 1_000_000_000 // units that may pass at once
	MaxPriority  = 1_000_000     // and no lower than its negative
	MaxDelay     = time.Minute   // in the queue of a leaky bucket
	MaxLease     = time.Hour     // that units are held for
	MaxCondition = 4096          // bytes of a condition
)

// A Mode says whether a rule cuts.
type Mode string

// Enforce cuts; Shadow is evaluated and reported, never cuts, and never
// charges an enforced counter.
const (
	Enforce Mode = "enforce"
	Shadow  Mode = "shadow"
)

// A Kind says what a rule does.
type Kind string

// The kinds of rule.
const (
	Rate   Kind = "rate"
	Quota  Kind = "quota"
	Wallet Kind = "wallet"
	Block  Kind = "block"
)

// An Algorithm says how a rule counts.
type Algorithm string

// The algorithms. NoAlgorithm is a block rule's.
const (
	NoAlgorithm          Algorithm = "none"
	FixedWindow          Algorithm = "fixed_window"
	SlidingWindowLog     Algorithm = "sliding_window_log"
	SlidingWindowCounter Algorithm = "sliding_window_counter"
	TokenBucket          Algorithm = "token_bucket"
	LeakyBucket          Algorithm = "leaky_bucket"
	GCRA                 Algorithm = "gcra"
	CalendarQuota        Algorithm = "quota"
	OverdraftWallet      Algorithm = "overdraft_wallet"
)

// A FailureMode says what happens when the counter store does not decide.
type FailureMode string

// Open passes, Closed answers 503, Local counts in process.
const (
	Open   FailureMode = "open"
	Closed FailureMode = "closed"
	Local  FailureMode = "local"
)

// A WalletMode says whether a wallet renews. NoWallet is every other kind's.
type WalletMode string

// Prepaid never resets; Renewable starts each period untouched.
const (
	NoWallet  WalletMode = "none"
	Prepaid   WalletMode = "prepaid"
	Renewable WalletMode = "renewable"
)

// A Condition is an expression that must hold beside a rule's selectors. It is
// safe for concurrent use. Package condition compiles them.
type Condition interface {
	// Text is the expression as it was written.
	Text() string
	// Holds reports whether the expression is true of a request. One that
	// cannot be evaluated, for it asks for a label that is not there, does not
	// hold.
	Holds(q *Request) bool
}

// A Subject is the set of dimensions that own a counter. The zero Subject is
// one global counter.
type Subject uint8

// The dimensions, in the order they are written.
const (
	Tenant Subject = 1 << iota
	Application
	User
	APIKey
	IP
)

// Dimensions lists each dimension with the name it has on the wire and in JSON.
var Dimensions = []struct {
	Bit  Subject
	Name string
}{{Tenant, "tenant"}, {Application, "application"}, {User, "user"}, {APIKey, "api_key"}, {IP, "ip"}}

// Has reports whether every dimension of d is in s.
func (s Subject) Has(d Subject) bool { return s&d == d }

// Names returns the dimensions in order, e.g. [tenant user].
func (s Subject) Names() []string {
	names := []string{}
	for _, d := range Dimensions {
		if s.Has(d.Bit) {
			names = append(names, d.Name)
		}
	}
	return names
}

// A Match is the selectors of a rule, all of which must hold. An empty
// selector is any.
type Match struct {
	Tenant      string
	Plan        string // the plan of the request's tenant
	Application string
	User        string
	APIKey      string // id, never the secret
	Service     string // id
	Endpoint    string // id
	Networks    []netip.Prefix
}

// Thresholds are the levels that are announced.
type Thresholds struct {
	Percent []int32 // of the limit, ascending, each 1 to 100
	Left    []int64 // units left, descending
}

// A Lease is what a gateway may hold of a busy counter, and spend by itself
// (docs/adr/0072).
type Lease struct {
	Units int64         // at any time, 1 to the rule's capacity
	TTL   time.Duration // from being charged to being spent at most, whole microseconds up to MaxLease and the window
}

// Reserve is at how many units of those that are held the others are taken again.
func (l Lease) Reserve() int64 { return l.Units / 4 }

// Batch is how many units are taken at once: together with the reserve, all.
func (l Lease) Batch() int64 { return l.Units - l.Reserve() }

// A Rule is one limit. Defaults are filled in; the zero Rule is invalid.
type Rule struct {
	ID      string // e.g. acme-burst
	Name    string
	Version int64 // rising per id

	Enabled   bool
	Mode      Mode
	Kind      Kind
	Algorithm Algorithm
	Subject   Subject
	Match     Match
	Condition Condition // nil: none
	Meter     string    // what is counted, e.g. api-calls

	Limit      int64         // units per window or period; 0 denies, Unlimited never refuses
	Window     time.Duration // of a rate, whole microseconds
	Burst      int64         // capacity of a bucket, units
	MaxDelay   time.Duration // of a leaky bucket as a queue, up to MaxDelay; 0: refuses instead
	Wallet     WalletMode    // of a wallet
	Period     *period.Spec  // of a quota or a renewable wallet
	Former     *period.Former
	Cost       *int64 // fixed units per request; nil: the decision's or the endpoint's
	Soft       bool   // reports and charges, never cuts
	Lease      *Lease // of a rate; nil: every request is charged by itself
	OnFailure  FailureMode
	Thresholds Thresholds
	Priority   int32 // the higher wins among equally specific rules

	ValidFrom time.Time // first instant; zero: always
	ValidTo   time.Time // first instant no longer; zero: never
}

// A Request is what a rule is matched against. An empty value is an absent
// dimension.
type Request struct {
	Tenant      string
	Plan        string // of the tenant
	Application string
	User        string
	APIKey      string // id
	Service     string // id
	Endpoint    string // id
	Address     netip.Addr

	// The rest is for conditions alone.
	Method string
	Path   string // behind the service's prefix
	Labels map[string]string
	Cost   int64 // units asked
}

// Matches reports whether the rule applies to the request at now: it is
// enabled and valid then, every selector and its condition hold, and the request
// has every dimension of its subject.
func (r *Rule) Matches(q *Request, now time.Time) bool {
	return r.Enabled &&
		(r.ValidFrom.IsZero() || !now.Before(r.ValidFrom)) &&
		(r.ValidTo.IsZero() || now.Before(r.ValidTo)) &&
		r.Match.holds(q) && r.Subject.owned(q) && (r.Condition == nil || r.Condition.Holds(q))
}

func (m *Match) holds(q *Request) bool {
	return is(m.Tenant, q.Tenant) && is(m.Plan, q.Plan) && is(m.Application, q.Application) &&
		is(m.User, q.User) && is(m.APIKey, q.APIKey) && is(m.Service, q.Service) && is(m.Endpoint, q.Endpoint) &&
		(len(m.Networks) == 0 || within(m.Networks, q.Address))
}

func is(selector, value string) bool { return selector == "" || selector == value }

func within(networks []netip.Prefix, a netip.Addr) bool {
	for _, n := range networks {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

func (s Subject) owned(q *Request) bool {
	return (!s.Has(Tenant) || q.Tenant != "") &&
		(!s.Has(Application) || q.Application != "") &&
		(!s.Has(User) || q.User != "") &&
		(!s.Has(APIKey) || q.APIKey != "") &&
		(!s.Has(IP) || q.Address.IsValid())
}

// A Group is the rules among which one wins: those that measure the same
// thing over the same span. Block rules form one group of their own, and a
// shadow rule never displaces an enforced one.
type Group struct {
	Mode    Mode
	Kind    Kind
	Subject Subject
	Meter   string
	Window  time.Duration
	Unit    period.Unit
	Count   int
}

// Group returns the group that the rule competes in.
func (r *Rule) Group() Group {
	if r.Kind == Block {
		return Group{Mode: r.Mode, Kind: Block}
	}
	g := Group{Mode: r.Mode, Kind: r.Kind, Subject: r.Subject, Meter: r.Meter, Window: r.Window}
	if r.Period != nil {
		g.Unit, g.Count = r.Period.Unit, r.Period.Count
	}
	return g
}

// Beats reports whether r wins over o when both match and are of one group:
// more exact subject selectors first (api key > user > application > tenant >
// plan > client network > any), then scope (endpoint > service > global), then
// priority, then the smaller id. A network selects the subject's dimension ip,
// so it counts before the scope.
func (r *Rule) Beats(o *Rule) bool {
	if a, b := r.Match.exactness(), o.Match.exactness(); a != b {
		return a > b
	}
	if r.Priority != o.Priority {
		return r.Priority > o.Priority
	}
	return r.ID < o.ID
}

// exactness orders matches: each selector outweighs all that follow it.
func (m *Match) exactness() (n int) {
	for _, exact := range []bool{
		m.APIKey != "", m.User != "", m.Application != "", m.Tenant != "", m.Plan != "", len(m.Networks) > 0,
		m.Endpoint != "", m.Service != "",
	} {
		n <<= 1
		if exact {
			n |= 1
		}
	}
	return n
}

// A Scope says how wide a rule's counter is.
type Scope string

// The scopes, from the widest.
const (
	Global   Scope = "global"
	Service  Scope = "service"
	Endpoint Scope = "endpoint"
)

// Scope is derived from the selectors.
func (r *Rule) Scope() Scope {
	switch {
	case r.Match.Endpoint != "":
		return Endpoint
	case r.Match.Service != "":
		return Service
	default:
		return Global
	}
}

// Capacity is what can pass at once, in units: the burst of a bucket, else the
// limit.
func (r *Rule) Capacity() int64 {
	switch r.Algorithm { //nolint:exhaustive // all others share one answer
	case TokenBucket, LeakyBucket, GCRA:
		return r.Burst
	default:
		return r.Limit
	}
}
