// Package catalog is what billing is told of the catalogue: tenants, plans and grants,
// of which it must know every version, and endpoints and rules, of which it shows the
// names. Versions rise per object; the higher one counts, so that a repeat changes
// nothing.
package catalog

import (
	"time"

	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/period"
)

// A Change is one object as it is from some instant on. Exactly one of the pointers is
// set, that of its kind, unless it is deleted.
type Change struct {
	Kind     Kind
	ID       string
	Version  int64
	At       time.Time
	Deleted  bool
	Tenant   *Tenant
	Plan     *rating.Plan // ID and Version are the change's
	Endpoint *Endpoint
	Rule     *Rule
	Wallet   *Wallet
	Grant    *Grant
	APIKey   *APIKey
}

// A Kind is a kind of object.
type Kind string

// The kinds that billing knows.
const (
	KindTenant   Kind = "tenant"
	KindPlan     Kind = "plan"
	KindEndpoint Kind = "endpoint"
	KindRule     Kind = "rule"
	KindWallet   Kind = "wallet"
	KindGrant    Kind = "grant"
	KindAPIKey   Kind = "api_key"
)

// A Tenant is a customer.
type Tenant struct {
	Name     string
	Plan     string // id; empty: none
	Zone     string // IANA
	Anchor   time.Time
	Currency string
	Former   []Former
}

// A Former is a zone and an anchor that a tenant had.
type Former struct {
	Zone   string
	Anchor time.Time
	Until  time.Time
}

// An Endpoint is a method and a path template of a service.
type Endpoint struct {
	Service, Method, Path string
	Cost                  int64 // units of one call
}

// A Rule is what is shown of a rule.
type Rule struct {
	Name       string
	Kind       string // rate, quota, wallet or block
	Algorithm  string
	Meter      string
	Limit      int64
	Window     time.Duration
	Subject    []string // dimensions
	Thresholds []int    // per cent
	Unit       period.Unit
	Count      int
}

// A Wallet is what was granted on a meter, less what expired.
type Wallet struct {
	Tenant, Meter string
	GrantedTotal  int64
}

// A Grant is one top-up.
type Grant struct {
	Tenant, Meter string
	Units         int64
	Priority      int
	GrantedAt     time.Time
	ExpiresAt     time.Time // zero: never
	Expired       int64     // units found unspent at its end
	Reason        string
}

// An APIKey is whose a key is. One that is revoked was theirs.
type APIKey struct{ Tenant string }
