package catalog

import (
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// A Tenant is a customer.
type Tenant struct {
	Name     *string `json:"name,omitzero"`
	Plan     *string `json:"plan,omitzero"`
	Zone     *string `json:"zone,omitzero"`   // IANA; absent: UTC
	Anchor   *string `json:"anchor,omitzero"` // RFC 3339, of anniversary periods that name none
	Currency *string `json:"currency,omitzero"`
}

// Kind is KindTenant.
func (*Tenant) Kind() Kind { return KindTenant }

func (t *Tenant) read(o *strict.Object) {
	t.Name, t.Plan, t.Zone = o.Text("name"), o.Text("plan"), o.Text("zone")
	t.Anchor, t.Currency = o.Text("anchor"), o.Text("currency")
}

// Validate returns every fault.
func (t *Tenant) Validate() rule.Faults {
	var f rule.Faults
	name(&f, t.Name)
	optionalID(&f, "plan", t.Plan)
	if t.Zone != nil {
		zone(&f, "zone", *t.Zone)
	}
	if t.Anchor != nil {
		instant(&f, "anchor", *t.Anchor)
	}
	if t.Currency != nil {
		currency(&f, "currency", *t.Currency)
	}
	return f
}

// Refs returns the plan.
func (t *Tenant) Refs() []Ref { return ref(nil, "plan", KindPlan, t.Plan) }

// An Application is a program of a tenant.
type Application struct {
	Tenant *string `json:"tenant,omitzero"`
	Name   *string `json:"name,omitzero"`
}

// Kind is KindApplication.
func (*Application) Kind() Kind { return KindApplication }

func (a *Application) read(o *strict.Object) { a.Tenant, a.Name = o.Text("tenant"), o.Text("name") }

// Validate returns every fault.
func (a *Application) Validate() rule.Faults {
	var f rule.Faults
	f.ID("tenant", Or(a.Tenant, ""))
	name(&f, a.Name)
	return f
}

// Refs returns the tenant.
func (a *Application) Refs() []Ref { return ref(nil, "tenant", KindTenant, a.Tenant) }

// A User is a catalogued user of a tenant. Users that are not catalogued are
// counted just as well.
type User struct {
	Tenant *string `json:"tenant,omitzero"`
	Name   *string `json:"name,omitzero"`
}

// Kind is KindUser.
func (*User) Kind() Kind { return KindUser }

func (u *User) read(o *strict.Object) { u.Tenant, u.Name = o.Text("tenant"), o.Text("name") }

// Validate returns every fault.
func (u *User) Validate() rule.Faults {
	var f rule.Faults
	f.ID("tenant", Or(u.Tenant, ""))
	name(&f, u.Name)
	return f
}

// Refs returns the tenant.
func (u *User) Refs() []Ref { return ref(nil, "tenant", KindTenant, u.Tenant) }

// An APIKey is a credential and the dimensions that it stands for. Its secret
// is shown once and kept by nobody.
type APIKey struct {
	Tenant      *string `json:"tenant,omitzero"`
	Application *string `json:"application,omitzero"`
	User        *string `json:"user,omitzero"` // need not be catalogued
}

// Kind is KindAPIKey.
func (*APIKey) Kind() Kind { return KindAPIKey }

func (k *APIKey) read(o *strict.Object) {
	k.Tenant, k.Application, k.User = o.Text("tenant"), o.Text("application"), o.Text("user")
}

// Validate returns every fault.
func (k *APIKey) Validate() rule.Faults {
	var f rule.Faults
	f.ID("tenant", Or(k.Tenant, ""))
	optionalID(&f, "application", k.Application)
	if k.User != nil {
		f.Text("user", *k.User, 1, rule.MaxText)
	}
	return f
}

// Refs returns the tenant and the application.
func (k *APIKey) Refs() []Ref {
	return ref(ref(nil, "tenant", KindTenant, k.Tenant), "application", KindApplication, k.Application)
}
