package catalog_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/rule-admin/catalog"
)

// line is what a gateway makes of the records of rule q and tenant acme.
type line struct{ period.Timeline }

func (d *desk) line() line {
	d.t.Helper()
	o, err := d.c.Object(d.t.Context(), catalog.KindRule, "q")
	if err != nil {
		d.t.Fatal(err)
	}
	owner, err := d.c.Object(d.t.Context(), catalog.KindTenant, "acme")
	if err != nil {
		d.t.Fatal(err)
	}
	zone := load(d.t, catalog.Or(owner.Body.(*catalog.Tenant).Zone, "UTC"))
	spec := specOf(d.t, *o.Body.(*catalog.Rule).Period)
	l := period.Timeline{Current: spec.In(zone, time.Time{})}
	former, until := spec, o.ChangedAt
	if p := o.Kept.Previous; p != nil {
		former = specOf(d.t, p.Period)
		if !p.End.IsZero() && !until.Before(p.End) {
			until = p.End.Add(-time.Microsecond)
		}
		l.Former = append(l.Former, period.Former{Spec: former.In(zone, time.Time{}), Until: until, End: p.End})
	}
	for _, p := range owner.Kept.Former {
		was := spec
		if o.Kept.Previous != nil && !p.Until.After(until) {
			was = former
		}
		if was.Zone == nil {
			l.Former = append(l.Former, period.Former{Spec: was.In(load(d.t, p.Zone), time.Time{}), Until: p.Until})
		}
	}
	return line{l}
}

func (l line) span(t *testing.T, at time.Time) period.Span {
	t.Helper()
	span, err := l.At(at)
	if err != nil {
		t.Fatal(err)
	}
	return span
}

func specOf(t *testing.T, p catalog.Period) period.Spec {
	t.Helper()
	spec := period.Spec{Unit: period.Unit(*p.Unit), Count: int(catalog.Or(p.Count, 1)), Alignment: period.Alignment(catalog.Or(p.Alignment, "calendar"))}
	if p.Anchor != nil {
		spec.Anchor = instant(t, *p.Anchor)
	}
	if p.Zone != nil {
		spec.Zone = load(t, *p.Zone)
	}
	return spec
}

func load(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := period.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}
