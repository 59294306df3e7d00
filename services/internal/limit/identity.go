package limit

import (
	"time"

	"penstock.dev/services/internal/rule"
)

// owned are the dimensions that are only known within a tenant.
const owned = rule.Tenant | rule.Application | rule.User | rule.APIKey

// Canonical is the identity without what does not identify: values outside its
// subject, the service of an endpoint, the algorithm and window of a quota, the
// period of a rate. Two identities name one counter exactly when their
// canonical forms are equal.
func (id Identity) Canonical() Identity {
	id.Reduce()
	return id
}

// Reduce makes id its canonical form.
func (id *Identity) Reduce() {
	if id.Subject&owned == 0 {
		id.Tenant = ""
	}
	for _, d := range [...]struct {
		bit   rule.Subject
		value *string
	}{
		{rule.Application, &id.Application}, {rule.User, &id.User}, {rule.APIKey, &id.APIKey}, {rule.IP, &id.Address},
	} {
		if !id.Subject.Has(d.bit) {
			*d.value = ""
		}
	}
	if id.Endpoint != "" {
		id.Service = "" // endpoint ids are unique over all services
	}
	if id.Kind == rule.Rate {
		id.Window = id.Window.Truncate(time.Microsecond)
	} else {
		id.Algorithm, id.Window = "", 0
	}
	if id.Kind != rule.Quota && id.Kind != rule.Wallet || id.Unit == "" { // a prepaid wallet has no period
		id.Unit, id.Count, id.Start = "", 0, time.Time{}
	} else {
		id.Start = time.UnixMicro(id.Start.UnixMicro()).UTC()
	}
}
