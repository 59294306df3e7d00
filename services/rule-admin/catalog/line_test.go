package catalog_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/rule-admin/catalog"
)

// line is what a gateway makes of the records of a rule and of tenant acme.
type line struct{ period.Timeline }

func (d *desk) line(id string) line {
	d.t.Helper()
	o, err := d.c.Object(d.t.Context(), catalog.KindRule, id)
	if err != nil {
		d.t.Fatal(err)
	}
	owner, err := d.c.Object(d.t.Context(), catalog.KindTenant, "acme")
	if err != nil {
		d.t.Fatal(err)
	}
	l := line{period.Timeline{Current: d.complete(*o.Body.(*catalog.Rule).Period, owner, time.Time{})}}
	former, until := *o.Body.(*catalog.Rule).Period, time.Time{}
	if p := o.Kept.Previous; p != nil {
		former, until = p.Period, o.ChangedAt
		if !p.End.IsZero() && !until.Before(p.End) {
			until = p.End.Add(-time.Microsecond)
		}
		l.Former = append(l.Former, period.Former{Spec: d.complete(former, owner, until), Until: until, End: p.End})
	}
	for _, p := range owner.Kept.Former {
		was := *o.Body.(*catalog.Rule).Period
		if !p.Until.After(until) {
			was = former
		}
		if was.Zone == nil || catalog.Or(was.Alignment, "") == "anniversary" && was.Anchor == nil {
			l.Former = append(l.Former, period.Former{Spec: d.complete(was, owner, p.Until), Until: p.Until})
		}
	}
	return l
}

// complete is a definition with the zone and anchor that the tenant had until a
// time, which is zero for those of today.
func (d *desk) complete(p catalog.Period, owner *catalog.Object, until time.Time) period.Spec {
	d.t.Helper()
	body := owner.Body.(*catalog.Tenant)
	zone, anchor := catalog.Or(body.Zone, "UTC"), time.Unix(0, 0)
	if body.Anchor != nil {
		anchor = instant(d.t, *body.Anchor)
	}
	for _, f := range owner.Kept.Former {
		if !until.IsZero() && !f.Until.Before(until) {
			zone, anchor = f.Zone, f.Anchor
			break
		}
	}
	if anchor.IsZero() {
		anchor = time.Unix(0, 0)
	}
	return specOf(d.t, p).In(load(d.t, zone), anchor)
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
