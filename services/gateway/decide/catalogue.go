package decide

import "time"

// A Kind is a kind of object of the control plane.
type Kind string

// The kinds that have a say in decisions.
const (
	TenantKind   Kind = "tenant"
	KeyKind      Kind = "api_key"
	ServiceKind  Kind = "service"
	EndpointKind Kind = "endpoint"
	RuleKind     Kind = "rule"
	WalletKind   Kind = "wallet" // its id is <tenant>:<meter>
)

// Decides reports whether objects of the kind have a say in decisions.
func (k Kind) Decides() bool {
	switch k {
	case TenantKind, KeyKind, ServiceKind, EndpointKind, RuleKind, WalletKind:
		return true
	default:
		return false
	}
}

// A Key is an API key and the dimensions it resolves to.
type Key struct {
	ID          string
	Tenant      string
	Application string
	User        string
	Digest      [32]byte // SHA-256 of the secret
}

// A Tenant is what the catalogue says about a customer.
type Tenant struct {
	ID       string
	Plan     string         // id; empty: none
	Zone     *time.Location // of periods that name none; nil: UTC
	Anchor   time.Time      // of anniversary periods that name none; zero: none
	Previous []FormerPeriod // oldest first

	spans spanCache
}

// A FormerPeriod is the zone and anchor that a tenant had until a change.
type FormerPeriod struct {
	Zone   *time.Location
	Anchor time.Time
	Until  time.Time
}

// A Wallet is what a tenant was granted of a meter. Prepaid wallet rules sell
// it; one that is not in the catalogue was granted nothing.
type Wallet struct {
	Tenant  string
	Meter   string
	Granted int64 // units so far, less those that expired
}

// walletKey is what a wallet is looked up by.
type walletKey struct{ tenant, meter string }

func (w *Wallet) key() walletKey { return walletKey{w.Tenant, w.Meter} }

// A ServiceDef is a downstream service behind the gate.
type ServiceDef struct {
	ID, Name, Upstream string
	Hosts              []string // lower case, no port; empty: any
	PathPrefix         string   // begins with "/"; empty: any
	StripPrefix        bool     // the upstream sees the path behind the prefix
	CORS               *CORS    // nil: no preflight is answered

	ConnectTimeout, ResponseTimeout, IdleTimeout time.Duration // 0: the gateway's default
}

// CORS is what a service allows other origins.
type CORS struct {
	AllowedOrigins []string
}

// An EndpointDef is a method and path template of a service.
type EndpointDef struct {
	ID, Service string
	Method      string   // empty: any
	Path        string   // template behind the service's prefix, e.g. /v1/pay/{id}
	Cost        int64    // units a call costs unless the decision says otherwise
	RefundOn    []string // upstream outcomes that give the charge back: "503", "5xx", "timeout"
}
