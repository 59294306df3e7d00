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
	c := Identity{
		Shadow: id.Shadow, Kind: id.Kind, Subject: id.Subject,
		Meter: id.Meter, Service: id.Service, Endpoint: id.Endpoint,
	}
	if id.Subject&owned != 0 {
		c.Tenant = id.Tenant
	}
	for _, d := range []struct {
		bit      rule.Subject
		to, from *string
	}{
		{rule.Application, &c.Application, &id.Application},
		{rule.User, &c.User, &id.User},
		{rule.APIKey, &c.APIKey, &id.APIKey},
		{rule.IP, &c.Address, &id.Address},
	} {
		if id.Subject.Has(d.bit) {
			*d.to = *d.from
		}
	}
	if c.Endpoint != "" {
		c.Service = "" // endpoint ids are unique over all services
	}
	switch id.Kind {
	case rule.Rate:
		c.Algorithm, c.Window = id.Algorithm, id.Window.Truncate(time.Microsecond)
	case rule.Quota, rule.Wallet:
		if id.Unit == "" {
			break // a prepaid wallet has no period
		}
		c.Unit, c.Count, c.Start = id.Unit, id.Count, time.UnixMicro(id.Start.UnixMicro()).UTC()
	case rule.Block:
	}
	return c
}
