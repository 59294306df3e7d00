// Package account is what billing knows of one tenant, as the tenant may see it:
// what was used, how much is left, what was cut and why, what the wallet holds and
// what the invoices say. It is read by the API and the portal, and answered by
// whoever keeps the books.
//
// Everything is of one tenant, which the caller has from a verified token. Units
// are whole; money is whole minor units of its currency; times are UTC, and days
// begin where the tenant's zone says.
package account

import (
	"context"
	"errors"
	"time"

	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// Errors of a Reader.
var (
	// ErrNotFound reports what is not there and what is another tenant's alike:
	// nobody may learn which.
	ErrNotFound = errors.New("not found")
	// ErrUnavailable reports books that cannot be read now and may be later.
	ErrUnavailable = errors.New("billing is unavailable")
)

// A Reader reads one tenant's account. A tenant that nothing is known of has an
// empty one; only Invoice answers ErrNotFound.
type Reader interface {
	// Profile is who the tenant is.
	Profile(ctx context.Context, tenant string) (Profile, error)
	// Usage is what was used in the days that a span touches, and when it was counted.
	Usage(ctx context.Context, tenant string, of period.Span) (Usage, error)
	// Quotas are the quotas whose period runs at now, those nearest to their limit
	// first. One whose rule is deleted limits nothing and is not among them.
	Quotas(ctx context.Context, tenant string, now time.Time) ([]Quota, error)
	// Cuts are the refused calls of the days that a span touches, the last first.
	Cuts(ctx context.Context, tenant string, of period.Span) ([]Cut, error)
	// Wallets are the prepaid wallets with their newest entries, by meter.
	Wallets(ctx context.Context, tenant string, now time.Time) ([]Wallet, error)
	// Invoices are the running draft and all before it, without lines, the newest first: at
	// most most of those whose period starts before an instant; zero: from the newest.
	Invoices(ctx context.Context, tenant string, now, before time.Time, most int) ([]Invoice, error)
	// Invoice is one with its lines. A draft is made up as of now.
	Invoice(ctx context.Context, tenant, id string, now time.Time) (Invoice, error)
}

// A Profile is a tenant as the catalogue has it.
type Profile struct {
	Tenant    string
	Name      string // to show; may be empty
	Plan      string // id; empty: none
	PlanName  string
	Currency  string // ISO 4217; empty: none
	Zone      *time.Location
	Period    period.Span // the billing period that runs; zero: nothing is billed
	CountedTo time.Time   // time of the newest event that was counted, of any tenant; zero: none yet
}

// Usage is what was used, by day, endpoint and meter.
type Usage struct {
	Zone      *time.Location
	CountedTo time.Time // as Profile's
	Days      []UsageDay
}

// A UsageDay is one day's use of one meter at one endpoint by one application.
type UsageDay struct {
	Day         time.Time // first instant of the day in the tenant's zone
	Meter       string    // e.g. api-calls
	Application string    // id; empty: none
	Service     string    // id
	Endpoint    string    // id; empty: none matched
	Method      string    // of the catalogued endpoint; empty: any, or not catalogued
	Path        string    // template of the catalogued endpoint; empty: not catalogued
	Calls       int64     // that passed
	Units       int64     // consumed
	Returned    int64     // given back
	Degraded    int64     // of Units: passed while the counters could not be read
	Prepaid     int64     // of Units, net: paid by a wallet
}

// Net is what is left of the units.
func (d UsageDay) Net() int64 { return d.Units - d.Returned }

// A Quota is how much of what was bought is used. It is as of the newest event.
type Quota struct {
	Rule        string // id
	Name        string // of the rule; may be empty
	Meter       string
	Application string // whose quota it is where each application has its own; else empty
	User        string // likewise
	APIKey      string // likewise
	Limit       int64  // units per period
	Unlimited   bool
	Consumed    int64
	Returned    int64
	Soft        bool // counted beyond the limit and never cut
	Unit        period.Unit
	Count       int         // units per period; 0: not known any more
	Period      period.Span // resets at its End
	LastSeen    time.Time
	Thresholds  []int // per cent, ascending
}

// Used is consumed net of what was given back.
func (q Quota) Used() int64 { return q.Consumed - q.Returned }

// Left is what may still be used, 0 when nothing.
func (q Quota) Left() int64 { return max(0, q.Limit-q.Used()) }

// A Reason is why calls were refused.
type Reason string

// The reasons. They are the codes of the answers, without what a client can mend.
const (
	TooFast     Reason = "rate-limited"
	QuotaUsedUp Reason = "quota-exceeded"
	WalletEmpty Reason = "wallet-empty"
	Blocked     Reason = "blocked"
	Unchecked   Reason = "store-unavailable" // the counters could not be read, and the rule refuses then
	OtherReason Reason = "refused"           // the rule is not known any more, or there was none
)

// A Cut is the refusals of one day by one rule at one endpoint.
type Cut struct {
	Day         time.Time // first instant of the day in the tenant's zone
	Reason      Reason
	Rule        string // id; empty: no rule
	RuleName    string
	Meter       string // of the rule, when it is still known
	Algorithm   string
	Limit       int64         // of the rule; 0: not known any more, for it was changed since
	Window      time.Duration // of a rate; 0: none, or as above
	Application string
	APIKey      string // id
	Service     string
	Endpoint    string
	Method      string
	Path        string
	Status      int   // answered
	Calls       int64 // refused
	Units       int64 // that they asked for
	FirstSeen   time.Time
	LastSeen    time.Time
}

// A Wallet is units that were bought ahead.
type Wallet struct {
	Meter    string
	Granted  int64 // less what expired
	Consumed int64
	Returned int64
	Grants   []Grant // in the order they are burnt
	Entries  []Entry // the newest first, at most MaxEntries
}

// MaxEntries is the most entries a wallet is shown with.
const MaxEntries = 200

// Balance is what is left; negative is owed.
func (w Wallet) Balance() int64 { return w.Granted - w.Consumed + w.Returned }

// A Grant is one top-up and what is left of it.
type Grant struct {
	ID        string
	Units     int64
	Spent     int64
	Expired   int64 // taken back at its end
	Priority  int   // the lower is burnt first, then the earlier end
	GrantedAt time.Time
	ExpiresAt time.Time // zero: never
	Reason    string    // e.g. order 17
}

// Left is what can still be spent of it.
func (g Grant) Left() int64 { return g.Units - g.Spent - g.Expired }

// An EntryKind says what moved a wallet.
type EntryKind string

// The kinds of entry.
const (
	TopUp   EntryKind = "topup"   // units were granted
	Expiry  EntryKind = "expiry"  // unspent units of a top-up ended
	Debit   EntryKind = "debit"   // a call was paid
	Refund  EntryKind = "refund"  // a call was given back
	Settled EntryKind = "settled" // a call's true cost became known: what it differed by
)

// An Entry is one line of a wallet's ledger. Entries are never changed; their sum
// is the balance.
type Entry struct {
	At       time.Time
	Kind     EntryKind
	Units    int64  // what the balance moved by: negative is spent
	Ref      string // the top-up, or the decision
	Service  string // of a call
	Endpoint string
	Reason   string // of a top-up
	Flagged  string // why a person should look at it; empty: nobody need
}

// A State is how far an invoice is.
type State string

// The states of an invoice. A draft changes with every event; a final one never does.
const (
	Draft State = "draft"
	Final State = "final"
)

// An Invoice is one period's bill.
type Invoice struct {
	ID       string // of a final one its number
	Number   string // without gaps per issuer; empty: a draft
	State    State
	Tenant   string
	Issuer   string
	Plan     string // id
	PlanName string
	Zone     string // IANA
	Period   period.Span
	IssuedAt time.Time // zero: a draft
	Total    money.Amount
	Lines    []Line // absent in lists
	Counted  []Counted
}

// Running reports whether a draft's period goes on.
func (i Invoice) Running(now time.Time) bool { return i.State == Draft && i.Period.Contains(now) }

// A LineKind says what a line is for.
type LineKind string

// The kinds of line, in the order they are printed.
const (
	FeeLine      LineKind = "fee"
	IncludedLine LineKind = "included"   // units that the fee covers: no money
	UsageLine    LineKind = "usage"      // one step of the price
	PrepaidLine  LineKind = "prepaid"    // units paid by a wallet: no money
	TopUpLine    LineKind = "topup"      // units granted in the period: no money
	LateLine     LineKind = "late"       // calls of an invoiced period that became known after it
	RefundLine   LineKind = "refund"     // units of an invoiced period that were given back
	SettledLine  LineKind = "settlement" // what settlements changed of an invoiced period
)

// A Line is one line of an invoice. Lines add up to the total.
type Line struct {
	Kind      LineKind
	Meter     string
	From, To  int64  // of a step: its first and last unit of the period, counted from 1; 0: none
	Units     int64  // negative: given back
	UnitPrice string // decimal, major units of the currency; empty: none
	Amount    money.Amount
	Degraded  int64       // of Units: passed while the counters could not be read
	Corrects  string      // number of the invoice that it corrects
	Of        period.Span // the period it is for: the invoice's, or of the one that it corrects
	Ref       string      // of a top-up
	Text      string      // of a top-up: its reason; of a correction in another currency: what it comes to, which is not in the total
}

// Counted is how one meter of an invoice was counted. It has no money.
type Counted struct {
	Meter        string
	Calls        int64
	Consumed     int64
	Returned     int64
	Degraded     int64 // of Consumed: passed while the counters could not be read
	Prepaid      int64 // of the net, paid by a wallet
	Lost         int64 // events that are missing by their numbers; may be other tenants'
	Unattributed int64 // units that counters have beyond their events: not billed
	SetAside     int64 // units that came too late to be billed
	Unpriced     int64 // settlements of calls that no counter of the meter counted: not billed
}

// Net is what is left of the units.
func (c Counted) Net() int64 { return c.Consumed - c.Returned }
