// Package portaltest gives tests an account to look at: a reader, a gate and an
// audit in memory, and the names that a customer could make harm with.
package portaltest

import (
	"context"
	"errors"
	"sync"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// Names that run as script where they are not escaped (FC-32).
const (
	TenantName = `<img src=x onerror=alert(1)>`
	KeyName    = `</script><script>alert(2)</script>`
	RuleName   = `"onmouseover="alert(3)`
)

// A Names is what things are called in an account.
type Names struct{ Tenant, Key, Rule string }

// Plain and Hostile are names as customers have them, and as attackers do.
var (
	Plain   = Names{"acme", "acme-1", "API calls"}
	Hostile = Names{TenantName, KeyName, RuleName}
)

// Now is the time of the account: 23 July 2026, 14:32:05 in Istanbul.
func Now() time.Time { return time.Date(2026, 7, 23, 11, 32, 5, 0, time.UTC) }

// Tokens of the gate: whose they are.
const (
	TokenA = "token-a" // acme's
	TokenB = "token-b" // globex's
)

// A Gate knows two tokens and a code, "code-a", for the first.
type Gate struct {
	mu      sync.Mutex
	revoked map[string]bool
	used    bool
}

// Verify knows TokenA and TokenB.
func (g *Gate) Verify(_ context.Context, token string, _ time.Time) (access.Grant, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	tenant := map[string]string{TokenA: "acme", TokenB: "globex"}[token]
	if tenant == "" || g.revoked[token] {
		return access.Grant{}, access.ErrRefused
	}
	return access.Grant{JTI: token, Tenant: tenant, User: "u1", ExpiresAt: Now().Add(time.Hour)}, nil
}

// Redeem takes "code-a" once.
func (g *Gate) Redeem(_ context.Context, code string, _ time.Time) (access.Grant, string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if code != "code-a" || g.used {
		return access.Grant{}, "", access.ErrRefused
	}
	g.used = true
	return access.Grant{JTI: TokenA, Tenant: "acme", ExpiresAt: Now().AddDate(100, 0, 0)}, TokenA, nil // a browser has a clock of its own
}

// Revoke ends a token.
func (g *Gate) Revoke(_ context.Context, jti string, _ time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.revoked == nil {
		g.revoked = map[string]bool{}
	}
	g.revoked[jti] = true
	return nil
}

// An Audit keeps denials.
type Audit struct {
	mu     sync.Mutex
	Key    string // the key of acme
	denied []access.Denial
}

// Denied keeps one.
func (a *Audit) Denied(_ context.Context, d access.Denial) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denied = append(a.denied, d)
	return nil
}

// HasKey knows acme's key.
func (a *Audit) HasKey(_ context.Context, tenant, key string) (bool, error) {
	return tenant == "acme" && key == a.Key, nil
}

// All are the denials so far.
func (a *Audit) All() []access.Denial {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]access.Denial(nil), a.denied...)
}

// ErrDown is what a Book answers for parts that are down.
var ErrDown = errors.New("no books today")

// A Book is an account.Reader of two tenants: acme, whose account is full, and
// globex, who has one invoice and nothing else.
type Book struct {
	Names Names
	Empty bool            // acme has nothing, too
	Down  map[string]bool // parts that cannot be read: profile, usage, quotas, cuts, wallets, invoices
}

var _ account.Reader = (*Book)(nil)

func istanbul() *time.Location {
	z, err := period.Zone("Europe/Istanbul")
	if err != nil {
		return time.UTC
	}
	return z
}

func day(month time.Month, d int) time.Time {
	return time.Date(2026, month, d, 0, 0, 0, 0, istanbul()).UTC()
}

func at(d, hour, minute, second int) time.Time {
	return time.Date(2026, 7, d, hour, minute, second, 0, istanbul()).UTC()
}

func (b *Book) has(tenant string) bool { return tenant == "acme" && !b.Empty }

// Profile is the tenant's.
func (b *Book) Profile(_ context.Context, tenant string) (account.Profile, error) {
	if b.Down["profile"] {
		return account.Profile{}, account.ErrUnavailable
	}
	p := account.Profile{Tenant: tenant, Zone: istanbul(), CountedTo: Now()}
	if b.has(tenant) {
		p.Name, p.Plan, p.PlanName, p.Currency = b.Names.Tenant, "gold", "Gold", "USD"
	}
	if b.Empty {
		p.CountedTo = time.Time{}
	}
	return p, nil
}

// july are what passed, what was given back, what passed unchecked and what was
// cut, by day.
var july = [][4]int64{
	{41223, 0, 0, 357},
	{43137, 20, 0, 311},
	{42463, 0, 0, 484},
	{18184, 0, 0, 121},
	{18130, 0, 0, 111},
	{39736, 0, 0, 321},
	{41812, 0, 0, 758},
	{40052, 0, 0, 401},
	{42999, 0, 0, 829},
	{42705, 0, 0, 503},
	{20614, 0, 0, 62},
	{20302, 0, 0, 93},
	{40172, 94, 0, 338},
	{44937, 0, 3804, 1730},
	{40385, 0, 0, 612},
	{43066, 0, 0, 489},
	{42533, 0, 0, 306},
	{18188, 0, 0, 83},
	{19831, 0, 0, 111},
	{41166, 500, 0, 615},
	{41983, 0, 0, 446},
	{43976, 0, 0, 4009},
	{25426, 0, 0, 3178},
}

// Usage is acme's July.
func (b *Book) Usage(_ context.Context, tenant string, of period.Span) (account.Usage, error) {
	if b.Down["usage"] {
		return account.Usage{}, ErrDown
	}
	u := account.Usage{Zone: istanbul(), CountedTo: Now()}
	if !b.has(tenant) || !of.Contains(day(7, 5)) {
		return u, nil
	}
	for i, n := range july {
		rest := n[0]
		for _, e := range []struct {
			method, path string
			each, share  int64
		}{
			{"GET", "/v1/payments/{id}", 1, 33}, {"GET", "/v1/exports/monthly", 20, 11}, {"GET", "/v1/balance", 1, 4}, {"POST", "/v1/refunds", 2, 3},
		} {
			units := n[0] * e.share / 100 / e.each * e.each
			rest -= units
			u.Days = append(u.Days, account.UsageDay{
				Day: day(7, i+1), Meter: "api-calls", Service: "pay", Endpoint: e.path, Method: e.method, Path: e.path, Calls: units / e.each, Units: units,
			})
		}
		u.Days = append(u.Days, account.UsageDay{
			Day: day(7, i+1), Meter: "api-calls", Service: "pay", Endpoint: "pay", Method: "POST", Path: "/v1/pay",
			Calls: rest, Units: rest, Returned: n[1], Degraded: n[2],
		})
	}
	return u, nil
}

// Quotas are one near its limit, one used up, one at ease and a soft one.
func (b *Book) Quotas(_ context.Context, tenant string, _ time.Time) ([]account.Quota, error) {
	if b.Down["quotas"] {
		return nil, ErrDown
	}
	if !b.has(tenant) {
		return nil, nil
	}
	month := period.Span{Start: day(7, 1), End: day(8, 1)}
	return []account.Quota{
		{Rule: "acme-month", Name: b.Names.Rule, Meter: "api-calls", Limit: 1_000_000, Consumed: 813020, Returned: 614, Unit: period.Month, Count: 1, Period: month, LastSeen: Now(), Thresholds: []int{80, 100}},
		{Rule: "acme-exports-day", Name: "Exports", Meter: "exports", APIKey: b.Names.Key, Limit: 200, Consumed: 200, Unit: period.Day, Count: 1, Period: period.Span{Start: day(7, 23), End: day(7, 24)}, LastSeen: Now(), Thresholds: []int{80}},
		{Rule: "acme-reports", Meter: "reports", Limit: 5000, Consumed: 1204, Unit: period.Week, Count: 1, Period: period.Span{Start: day(7, 20), End: day(7, 27)}, LastSeen: Now(), Thresholds: []int{80}},
		{Rule: "acme-sms", Name: "Text messages", Meter: "sms", Limit: 10000, Consumed: 11320, Soft: true, Unit: period.Month, Count: 1, Period: month, LastSeen: Now(), Thresholds: []int{80}},
	}, nil
}

// Cuts are of every reason.
func (b *Book) Cuts(_ context.Context, tenant string, of period.Span) ([]account.Cut, error) {
	if b.Down["cuts"] {
		return nil, ErrDown
	}
	if !b.has(tenant) || !of.Contains(day(7, 5)) {
		return nil, nil
	}
	var out []account.Cut
	for i, n := range july {
		out = append(out, account.Cut{
			Day: day(7, i+1), Reason: account.TooFast, Rule: "acme-pay-burst", RuleName: b.Names.Rule, Meter: "api-calls", Algorithm: "gcra", Limit: 30,
			Window: time.Minute, APIKey: b.Names.Key, Service: "pay", Endpoint: "pay", Method: "POST", Path: "/v1/pay", Status: 429,
			Calls: n[3] / 2, Units: n[3], FirstSeen: at(i+1, 9, 0, 1), LastSeen: at(i+1, 14, 32, 1),
		})
	}
	cut := func(r account.Reason, rule, meter, path string, status int, calls int64, hour int) account.Cut {
		return account.Cut{
			Day: day(7, 23), Reason: r, Rule: rule, Meter: meter, APIKey: b.Names.Key, Application: "web", Service: "pay", Endpoint: path, Method: "GET",
			Path: path, Status: status, Calls: calls, Units: calls, FirstSeen: at(23, hour, 2, 9), LastSeen: at(23, hour, 29, 51),
		}
	}
	quota := cut(account.QuotaUsedUp, "acme-exports-day", "exports", "/v1/exports/monthly", 429, 97, 13)
	quota.Limit = 200
	blocked := cut(account.Blocked, "block-v0", "", "/v0/export", 403, 3, 11)
	blocked.LastSeen = blocked.FirstSeen
	return append(out, quota, blocked,
		cut(account.WalletEmpty, "acme-wallet", "credits", "/v1/messages", 429, 12, 12),
		cut(account.Unchecked, "acme-month", "api-calls", "/v1/pay", 503, 26, 3),
		cut(account.OtherReason, "", "", "", 429, 1, 2),
	), nil
}

// Wallets are one that is overdrawn.
func (b *Book) Wallets(_ context.Context, tenant string, _ time.Time) ([]account.Wallet, error) {
	if b.Down["wallets"] {
		return nil, ErrDown
	}
	if !b.has(tenant) {
		return nil, nil
	}
	return []account.Wallet{{
		Meter: "credits", Granted: 1000, Consumed: 1100,
		Grants: []account.Grant{
			{ID: "order-17", Units: 800, Spent: 800, GrantedAt: at(9, 11, 42, 0), Reason: b.Names.Key},
			{ID: "order-18", Units: 300, Spent: 200, Expired: 100, GrantedAt: at(10, 11, 42, 0), ExpiresAt: at(20, 0, 0, 0), Reason: "order 18"},
		},
		Entries: []account.Entry{
			{At: at(23, 14, 18, 31), Kind: account.Debit, Units: -200, Ref: "0190d9c2-8d6a-7b4e-b7a5-111111111111", Service: "sms", Endpoint: "/v1/messages"},
			{At: at(22, 10, 0, 0), Kind: account.Settled, Units: -20, Ref: "0190d9c2-8d6a-7b4e-b7a5-222222222222", Flagged: "charged more than reserved"},
			{At: at(21, 10, 0, 0), Kind: account.Refund, Units: 20, Ref: "0190d9c2-8d6a-7b4e-b7a5-333333333333", Endpoint: b.Names.Rule},
			{At: at(20, 0, 0, 0), Kind: account.Expiry, Units: -100, Ref: "order-18"},
			{At: at(12, 9, 0, 0), Kind: account.Debit, Units: -900, Ref: "0190d9c2-8d6a-7b4e-b7a5-444444444444", Endpoint: "/v1/messages"},
			{At: at(10, 11, 42, 0), Kind: account.TopUp, Units: 300, Ref: "order-18", Reason: "order 18"},
			{At: at(9, 11, 42, 0), Kind: account.TopUp, Units: 800, Ref: "order-17", Reason: b.Names.Key},
		},
	}}, nil
}

// Invoice ids: acme's draft and final one, and globex's.
const (
	DraftA = "draft-acme-2026-07"
	FinalA = "INV-2026-000006"
	FinalB = "INV-2026-000007"
)

func usd(minor int64) money.Amount { return money.Amount{Minor: minor, Currency: "USD"} }

func (b *Book) all() []account.Invoice {
	month := func(m time.Month) period.Span { return period.Span{Start: day(m, 1), End: day(m+1, 1)} }
	counted := account.Counted{Meter: "api-calls", Calls: 720000, Consumed: 935132, Returned: 614, Degraded: 1204}
	june := account.Invoice{
		ID: FinalA, Number: FinalA, State: account.Final, Tenant: "acme", Issuer: "Penstock Ltd", Plan: "gold", PlanName: "Gold",
		Zone: "Europe/Istanbul", Period: month(6), IssuedAt: day(7, 1), Total: usd(36752), Counted: []account.Counted{counted},
		Lines: []account.Line{
			{Kind: account.FeeLine, Units: 1, UnitPrice: "99.00", Amount: usd(9900), Of: month(6)},
			{Kind: account.IncludedLine, Meter: "api-calls", From: 1, To: 100000, Units: 100000, Amount: usd(0), Of: month(6)},
			{Kind: account.UsageLine, Meter: "api-calls", From: 100001, To: 500000, Units: 400000, UnitPrice: "0.00040", Amount: usd(16000), Of: month(6)},
			{Kind: account.UsageLine, Meter: "api-calls", From: 500001, Units: 434518, UnitPrice: "0.00025", Amount: usd(10863), Degraded: 1204, Of: month(6)},
			{Kind: account.TopUpLine, Meter: "credits", Units: 1000, Amount: usd(0), Ref: "order-17", Text: b.Names.Key, Of: month(6)},
			{Kind: account.PrepaidLine, Meter: "credits", Units: 900, Amount: usd(0), Of: month(6)},
			{Kind: account.RefundLine, Meter: "api-calls", Units: -320, UnitPrice: "0.00040", Amount: usd(-13), Corrects: "INV-2026-000002", Of: month(5)},
			{Kind: account.SettledLine, Meter: "api-calls", Units: 41, UnitPrice: "0.00040", Amount: usd(2), Corrects: "INV-2026-000002", Of: month(5)},
		},
	}
	draft := account.Invoice{
		ID: DraftA, State: account.Draft, Tenant: "acme", Plan: "gold", PlanName: b.Names.Rule, Zone: "Europe/Istanbul", Period: month(7), Total: usd(33710),
		Counted: []account.Counted{{Meter: "api-calls", Calls: 719925, Consumed: 813020, Returned: 614, Degraded: 3804}},
		Lines: []account.Line{
			{Kind: account.FeeLine, Units: 1, Amount: usd(9900), Of: month(7)},
			{Kind: account.UsageLine, Meter: "api-calls", From: 100001, To: 500000, Units: 400000, UnitPrice: "0.00040", Amount: usd(16000), Of: month(7)},
			{Kind: account.UsageLine, Meter: "api-calls", From: 500001, Units: 312406, UnitPrice: "0.00025", Amount: usd(7810), Of: month(7)},
		},
	}
	globex := june
	globex.ID, globex.Number, globex.Tenant, globex.PlanName = FinalB, FinalB, "globex", "Silver"
	return []account.Invoice{draft, june, globex}
}

// Invoices are the tenant's, without lines.
func (b *Book) Invoices(_ context.Context, tenant string, _, before time.Time, most int) ([]account.Invoice, error) {
	if b.Down["invoices"] {
		return nil, ErrDown
	}
	var out []account.Invoice
	for _, i := range b.all() {
		if i.Tenant == tenant && !b.Empty && len(out) < most && (before.IsZero() || i.Period.Start.Before(before)) {
			i.Lines = nil
			out = append(out, i)
		}
	}
	return out, nil
}

// Invoice is the tenant's.
func (b *Book) Invoice(_ context.Context, tenant, id string, _ time.Time) (account.Invoice, error) {
	if b.Down["invoices"] {
		return account.Invoice{}, ErrDown
	}
	for _, i := range b.all() {
		if i.Tenant == tenant && i.ID == id && !b.Empty {
			return i, nil
		}
	}
	return account.Invoice{}, account.ErrNotFound
}
