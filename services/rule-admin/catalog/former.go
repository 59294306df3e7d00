package catalog

import (
	"context"
	"slices"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// MaxFormer is how many former zones and anchors a tenant carries.
const MaxFormer = 16

// A RulePeriod is a period that a rule has, or had until its running one ends.
type RulePeriod struct {
	RuleID string
	Period Period
}

// keep fills in what goes with the object beside its body.
func (c *Catalog) keep(ctx context.Context, tx Tx, at Moment, before, after *Object) (secret string, err error) {
	switch body := after.Body.(type) {
	case *APIKey:
		if before != nil {
			after.Kept.Digest = before.Kept.Digest
			return "", nil
		}
		secret, after.Kept.Digest, err = newSecret(c.random)
		return secret, err
	case *Tenant:
		if before == nil {
			return "", nil
		}
		rules, err := tx.TenantPeriods(ctx, after.ID)
		if err != nil {
			return "", err
		}
		after.Kept.Former, err = formerPeriods(before, body, rules, at.Now)
		return "", err
	case *Rule:
		if before == nil {
			return "", nil
		}
		after.Kept.Previous, err = previousPeriod(ctx, tx, before, body, at.Now)
		return "", err
	}
	return "", nil
}

// inZone returns the zone and the anchor of a tenant.
func (t *Tenant) inZone() (*time.Location, time.Time) {
	var f rule.Faults // it was validated when it was put
	z := zone(&f, "zone", Or(t.Zone, "UTC"))
	if t.Anchor == nil {
		return z, time.Time{}
	}
	return z, instant(&f, "anchor", *t.Anchor)
}

// formerPeriods returns the former zones and anchors that a tenant carries
// after it has become what after says: of those that it had, and of the one
// that it leaves, each that governs a period which is running now.
func formerPeriods(before *Object, after *Tenant, rules []RulePeriod, now time.Time) ([]FormerPeriod, error) {
	was := before.Body.(*Tenant) //nolint:forcetypeassert // the store keeps kinds apart
	former := slices.Clone(before.Kept.Former)
	oldZone, oldAnchor := was.inZone()
	newZone, newAnchor := after.inZone()
	if !newAnchor.Equal(oldAnchor) && newAnchor.IsZero() {
		if err := anchorNeeded(rules); err != nil {
			return nil, err
		}
	}
	if oldZone.String() != newZone.String() || !oldAnchor.Equal(newAnchor) {
		former = append(former, FormerPeriod{Zone: oldZone.String(), Anchor: oldAnchor, Until: now})
	}
	governs := make([]bool, len(former))
	for _, spec := range openSpecs(rules) {
		line := period.Timeline{Former: tenantFormer(former, spec), Current: spec.In(newZone, newAnchor)}
		if i, _, err := running(line, now); err == nil && i >= 0 {
			governs[slices.IndexFunc(former, func(p FormerPeriod) bool { return p.Until.Equal(line.Former[i].Until) })] = true
		}
	}
	var needed []FormerPeriod
	for i, p := range former {
		if governs[i] {
			needed = append(needed, p)
		}
	}
	if len(needed) > MaxFormer {
		var f rule.Faults
		f.Add("zone", "changed %d times while periods of its rules are running, want at most %d", len(needed), MaxFormer)
		return nil, faultError(ErrConflict, f)
	}
	return needed, nil
}

// anchorNeeded returns ErrConflict when a rule of the tenant has anniversary
// periods and no anchor of its own.
func anchorNeeded(rules []RulePeriod) error {
	for _, r := range rules {
		if Or(r.Period.Alignment, "") == string(period.Anniversary) && r.Period.Anchor == nil {
			var f rule.Faults
			f.Add("anchor", "is needed by rule/%s, whose anniversary periods have none of their own", r.RuleID)
			return faultError(ErrConflict, f)
		}
	}
	return nil
}

// openSpecs returns the periods that the rules leave to their tenant, and the
// common ones, because a rule that is deleted and made again goes on counting
// where it was.
func openSpecs(rules []RulePeriod) []period.Spec {
	var specs []period.Spec
	for _, unit := range []period.Unit{period.Hour, period.Day, period.Week, period.Month, period.Year} {
		specs = append(specs, period.Spec{Unit: unit, Count: 1, Alignment: period.Calendar})
	}
	for _, r := range rules {
		var f rule.Faults
		if spec := r.Period.spec(&f); len(f) == 0 && !slices.ContainsFunc(specs, func(s period.Spec) bool { return same(s, spec) }) {
			specs = append(specs, spec)
		}
	}
	return specs
}

// tenantFormer returns a period under each former zone and anchor of a tenant.
func tenantFormer(former []FormerPeriod, spec period.Spec) []period.Former {
	out := make([]period.Former, 0, len(former))
	for _, p := range former {
		z, err := period.Zone(p.Zone)
		if err == nil {
			out = append(out, period.Former{Spec: spec.In(z, p.Anchor), Until: p.Until})
		}
	}
	return out
}

// running returns which of the former definitions governs the period that
// contains now, -1 for the current one, and when that period ends.
func running(l period.Timeline, now time.Time) (former int, end time.Time, err error) {
	var from time.Time
	for i, f := range l.Former {
		if !from.IsZero() && !f.Until.After(from) {
			continue // it never came into force
		}
		end := f.End
		if end.IsZero() {
			span, err := f.Spec.At(f.Until)
			if err != nil {
				return -1, time.Time{}, err
			}
			end = span.End
		}
		if now.Before(end) {
			return i, end, nil
		}
		from = end
	}
	span, err := l.Current.At(now)
	return -1, span.End, err
}

// same reports whether two definitions have the same periods.
func same(a, b period.Spec) bool {
	return a.Unit == b.Unit && a.Count == b.Count && a.Alignment == b.Alignment && a.Anchor.Equal(b.Anchor) &&
		(a.Zone == nil) == (b.Zone == nil) && (a.Zone == nil || a.Zone.String() == b.Zone.String())
}

// previousPeriod returns the period that a rule carries as the one that is
// still running, after it has become what after says; nil when there is none.
// A rule that now counts for another tenant has no running period.
func previousPeriod(ctx context.Context, tx Tx, before *Object, after *Rule, now time.Time) (*Previous, error) {
	was := before.Body.(*Rule) //nolint:forcetypeassert // the store keeps kinds apart
	tenant := matchTenant(was)
	if was.Period == nil || after.Period == nil || tenant != matchTenant(after) {
		return nil, nil
	}
	var f rule.Faults // both were validated when they were put
	old, next := was.Period.spec(&f), after.Period.spec(&f)
	kept := before.Kept.Previous
	if kept.over(now) {
		kept = nil
	}
	if same(old, next) {
		return kept, nil
	}
	open := old.Zone == nil || old.Alignment == period.Anniversary && old.Anchor.IsZero()
	if open && tenant == "" { // each tenant has its own end
		if kept == nil {
			kept = &Previous{Period: *was.Period, Until: now}
		}
		if same(kept.Period.spec(&f), next) {
			return nil, nil
		}
		return kept, nil
	}
	var owner *Object
	if tenant != "" {
		var err error
		if owner, err = tx.Object(ctx, KindTenant, tenant); err != nil {
			return nil, err
		}
	}
	return settle(old, next, kept, owner, now)
}

// settle finds the definition that governs the running period of a rule whose
// zone and anchor are known, its own or its tenant's.
func settle(old, next period.Spec, kept *Previous, owner *Object, now time.Time) (*Previous, error) {
	zone, anchor := time.UTC, time.Time{}
	var former []FormerPeriod
	if owner != nil {
		zone, anchor = owner.Body.(*Tenant).inZone() //nolint:forcetypeassert // the store keeps kinds apart
		former = owner.Kept.Former
	}
	line := period.Timeline{Current: old.In(zone, anchor)}
	if old.Zone == nil || old.Alignment == period.Anniversary && old.Anchor.IsZero() {
		line.Former = tenantFormer(former, old)
	}
	if kept != nil {
		var f rule.Faults
		line.Former = append(line.Former, period.Former{Spec: kept.Period.spec(&f).In(zone, anchor), Until: kept.Until, End: kept.End})
		slices.SortStableFunc(line.Former, func(a, b period.Former) int { return a.Until.Compare(b.Until) })
	}
	i, end, err := running(line, now)
	if err != nil {
		return nil, err
	}
	governing := line.Current
	if i >= 0 {
		governing = line.Former[i].Spec
	}
	if same(governing, next.In(zone, anchor)) {
		return nil, nil
	}
	return &Previous{Period: written(governing), Until: now, End: end}, nil
}

func matchTenant(r *Rule) string {
	if r.Match == nil {
		return ""
	}
	return Or(r.Match.Tenant, "")
}

// over reports whether the former period has ended: where each tenant has its
// own end, whether one may have.
func (p *Previous) over(now time.Time) bool {
	switch {
	case p == nil:
		return true
	case !p.End.IsZero():
		return !now.Before(p.End)
	}
	var f rule.Faults
	spec := p.Period.spec(&f)
	const quarter = 15 * time.Minute
	for off := -12 * time.Hour; off <= 14*time.Hour; off += quarter {
		span, err := spec.In(time.FixedZone("", int(off.Seconds())), time.Time{}).At(p.Until)
		if err != nil || !now.Before(span.End) {
			return true
		}
	}
	return false
}

// written is a definition as an operator would write it.
func written(s period.Spec) Period {
	unit, alignment, count := string(s.Unit), string(s.Alignment), int64(s.Count)
	p := Period{Unit: &unit, Count: &count, Alignment: &alignment}
	if s.Zone != nil {
		z := s.Zone.String()
		p.Zone = &z
	}
	if !s.Anchor.IsZero() && s.Alignment == period.Anniversary {
		a := s.Anchor.UTC().Format(time.RFC3339Nano)
		p.Anchor = &a
	}
	return p
}
