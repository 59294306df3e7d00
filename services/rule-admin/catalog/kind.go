package catalog

import "slices"

// A Kind says what an object is, e.g. rule. It is spelled as on rules.v1 and in
// the audit.
type Kind string

// The kinds.
const (
	KindTenant      Kind = "tenant"
	KindApplication Kind = "application"
	KindUser        Kind = "user"
	KindAPIKey      Kind = "api_key"
	KindService     Kind = "service"
	KindEndpoint    Kind = "endpoint"
	KindPlan        Kind = "plan"
	KindRule        Kind = "rule"
)

// KindTopUp is the kind of a top-up in the audit. It is no object: nobody puts
// or deletes one.
const KindTopUp Kind = "topup"

// Kinds returns every kind, those that others refer to first.
func Kinds() []Kind {
	return []Kind{KindPlan, KindTenant, KindApplication, KindUser, KindAPIKey, KindService, KindEndpoint, KindRule}
}

// Known reports whether k is one of the kinds.
func (k Kind) Known() bool { return slices.Contains(Kinds(), k) }

// blank returns an empty body of the kind, or nil.
func (k Kind) blank() Body {
	switch k {
	case KindTenant:
		return &Tenant{}
	case KindApplication:
		return &Application{}
	case KindUser:
		return &User{}
	case KindAPIKey:
		return &APIKey{}
	case KindService:
		return &Service{}
	case KindEndpoint:
		return &Endpoint{}
	case KindPlan:
		return &Plan{}
	case KindRule:
		return &Rule{}
	case KindTopUp: // is no object
	}
	return nil
}
