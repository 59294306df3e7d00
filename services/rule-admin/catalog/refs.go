package catalog

import (
	"context"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// neighbours are the objects that a body refers to, by field. A reference to
// nothing is nil.
type neighbours map[string]*Object

func look(ctx context.Context, tx Tx, refs []Ref) (neighbours, error) {
	near := neighbours{}
	for _, r := range refs {
		o, err := tx.Object(ctx, r.Kind, r.ID)
		if err != nil {
			return nil, err
		}
		near[r.Field] = o
	}
	return near, nil
}

// faults returns the references to nothing, and those that contradict each
// other: what belongs to one tenant cannot be used with another.
func (near neighbours) faults(body Body) rule.Faults {
	var f rule.Faults
	for _, r := range body.Refs() {
		if near[r.Field] == nil {
			f.Add(r.Field, "is %q, and there is no such %s", r.ID, r.Kind)
		}
	}
	switch b := body.(type) {
	case *APIKey:
		near.belongs(&f, "application", b.Application, owner{"tenant", b.Tenant})
	case *Rule:
		if m := b.Match; m != nil {
			near.belongs(&f, "match.application", m.Application, owner{"tenant", m.Tenant})
			near.belongs(&f, "match.api_key", m.APIKey, owner{"tenant", m.Tenant}, owner{"application", m.Application})
			near.belongs(&f, "match.endpoint", m.Endpoint, owner{"service", m.Service})
		}
		near.anchored(&f, b)
	}
	return f
}

// anchored wants anniversary periods to have an anchor: the rule's own, or that
// of the one tenant that the rule is for.
func (near neighbours) anchored(f *rule.Faults, r *Rule) {
	if r.Period == nil || Or(r.Period.Alignment, "") != string(period.Anniversary) || r.Period.Anchor != nil {
		return
	}
	if o := near["match.tenant"]; o != nil {
		if t, ok := o.Body.(*Tenant); ok && t.Anchor != nil {
			return
		}
	}
	f.Add("period.anchor", "is missing: anniversary periods need one, of the rule or of the tenant in match.tenant")
}

// An owner is a field of an object that says whose it is.
type owner struct {
	field string
	id    *string
}

// belongs wants the object that field refers to to be the owners'. An owner
// that is not named may be anybody.
func (near neighbours) belongs(f *rule.Faults, field string, id *string, owners ...owner) {
	o := near[field]
	if o == nil {
		return
	}
	for _, w := range owners {
		if is := owned(o.Body, w.field); Or(w.id, "") != "" && is != *w.id {
			f.Add(field, "is %q, whose %s is %q and not %q", *id, w.field, is, *w.id)
		}
	}
}

// owned returns the value of the field that says whose an object is.
func owned(body Body, field string) string {
	var id *string
	switch b := body.(type) {
	case *Application:
		id = b.Tenant
	case *User:
		id = b.Tenant
	case *Endpoint:
		id = b.Service
	case *APIKey:
		id = b.Tenant
		if field == "application" {
			id = b.Application
		}
	}
	return Or(id, "")
}

// moved returns the fields by which an object would change its owner. Those
// who refer to it took its owner for granted.
func moved(before, after Body) []string {
	var fields []string
	switch after.(type) {
	case *Application, *User:
		fields = []string{"tenant"}
	case *APIKey:
		fields = []string{"tenant", "application"}
	case *Endpoint:
		fields = []string{"service"}
	}
	var changed []string
	for _, field := range fields {
		if owned(before, field) != owned(after, field) {
			changed = append(changed, field)
		}
	}
	return changed
}

// unused returns an *InUseError when others refer to the object. The field is
// what was to change; empty: the object was to be deleted.
func unused(ctx context.Context, tx Tx, kind Kind, id, field string) error {
	referrers, total, err := tx.Referrers(ctx, kind, id, MaxNamed)
	if err != nil || total == 0 {
		return err
	}
	return &InUseError{Kind: kind, ID: id, Field: field, Referrers: referrers, More: total - len(referrers)}
}
