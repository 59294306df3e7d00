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

// A RulePeriod is the period of a rule, with what it had before.
type RulePeriod struct {
	RuleID    string
	Period    Period
	Previous  *Previous // nil: none
	ChangedAt time.Time // of the rule's record, of which readers derive what it does not say
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
		after.Kept.Previous, err = previousPeriod(ctx, tx, before, after, at.Now)
		return "", err
	}
	return "", nil
}

// A home is the zone and the anchor of a tenant, with those it had before.
type home struct {
	zone   *time.Location
	anchor time.Time
	former []FormerPeriod
}

// home returns the tenant's.
func (t *Tenant) home(former []FormerPeriod) home {
	var f rule.Faults // it was validated when it was put
	h := home{zone: zone(&f, "zone", Or(t.Zone, "UTC")), former: former}
	if t.Anchor != nil {
		h.anchor = instant(&f, "anchor", *t.Anchor)
	}
	return h
}

// at returns the zone and anchor that the tenant had at a time.
func (h home) at(t time.Time) (*time.Location, time.Time) {
	for _, p := range h.former {
		if !p.Until.Before(t) {
			if z, err := period.Zone(p.Zone); err == nil {
				return z, p.Anchor
			}
		}
	}
	return h.zone, h.anchor
}

// A past is a definition that was in force. Item is the place in a tenant's
// former periods that it comes from, -1 when it is the rule's own.
type past struct {
	period.Former
	item int
}

// A line is the definition of a rule's periods for one tenant with those before
// it, as the gateways make it of the records.
type line struct {
	past    []past
	current period.Spec
}

// line makes the rule's periods for a tenant.
func (r RulePeriod) line(h home) line {
	var f rule.Faults // it was validated when it was put
	spec := r.Period.spec(&f)
	was := spec
	until := r.ChangedAt
	l := line{current: spec.In(h.zone, h.anchor)}
	if p := r.Previous; p != nil {
		if !p.End.IsZero() && !until.Before(p.End) { // the record has changed again since
			until = p.End.Add(-time.Microsecond)
		}
		was = p.Period.spec(&f)
		l.past = append(l.past, past{period.Former{Spec: was.In(h.at(until)), Until: until, End: p.End}, -1})
	}
	for i, p := range h.former {
		s := spec
		if r.Previous != nil && !p.Until.After(until) {
			s = was
		}
		if z, err := period.Zone(p.Zone); err == nil && open(s) {
			l.past = append(l.past, past{period.Former{Spec: s.In(z, p.Anchor), Until: p.Until}, i})
		}
	}
	slices.SortStableFunc(l.past, func(a, b past) int { return a.Until.Compare(b.Until) })
	return l
}

// A run is the period that is running.
type run struct {
	spec  period.Spec // that governs it
	span  period.Span
	items []int // of a tenant's former periods: the one that governs it, and the one that it begins at the end of
}

// like reports whether two runs are one to a counter.
func (r run) like(o run) bool {
	return r.spec.Unit == o.spec.Unit && r.spec.Count == o.spec.Count && r.span.Start.Equal(o.span.Start) && r.span.End.Equal(o.span.End)
}

// running returns the period that is running at now.
func (l line) running(now time.Time) (run, error) {
	var from time.Time // when the definition at hand came into force
	items := []int{-1}
	for _, p := range l.past {
		if !from.IsZero() && !p.Until.After(from) {
			continue // it never came into force
		}
		end := p.End
		if end.IsZero() {
			span, err := p.Spec.At(p.Until)
			if err != nil {
				return run{}, err
			}
			end = span.End
		}
		if now.Before(end) {
			r, err := since(p.Spec, now, from, append(items, p.item))
			if r.span.End.After(end) {
				r.span.End = end
			}
			return r, err
		}
		from, items = end, []int{p.item}
	}
	return since(l.current, now, from, items)
}

// since returns the period of spec that contains now, without what lies before
// from.
func since(spec period.Spec, now, from time.Time, items []int) (run, error) {
	span, err := spec.At(now)
	if from.After(span.Start) {
		span.Start = from
	} else {
		items = items[1:] // it does not begin at the end of another
	}
	return run{spec, span, items}, err
}

// open reports whether a definition leaves its zone or its anchor to the tenant.
func open(s period.Spec) bool {
	return s.Zone == nil || s.Alignment == period.Anniversary && s.Anchor.IsZero()
}

// formerPeriods returns the former zones and anchors that a tenant carries
// after it has become what after says: of those that it had, and of the one
// that it leaves, each that a period which is running now depends on. The
// common periods count as running, because a rule that is deleted and made
// again goes on counting where it was.
func formerPeriods(before *Object, after *Tenant, rules []RulePeriod, now time.Time) ([]FormerPeriod, error) {
	old := before.Body.(*Tenant).home(before.Kept.Former) // the store keeps kinds apart
	next := after.home(slices.Clone(old.former))
	if !old.anchor.IsZero() && next.anchor.IsZero() {
		if err := anchorNeeded(rules); err != nil {
			return nil, err
		}
	}
	if old.zone.String() != next.zone.String() || !old.anchor.Equal(next.anchor) {
		next.former = append(next.former, FormerPeriod{Zone: old.zone.String(), Anchor: old.anchor, Until: now})
	}
	if len(next.former) == 0 {
		return nil, nil
	}
	needed := map[int]bool{}
	need := func(r RulePeriod) {
		if run, err := r.line(next).running(now); err == nil {
			for _, i := range run.items {
				needed[i] = i >= 0
			}
		}
	}
	for _, r := range rules {
		need(r)
	}
	if n := count(needed); n > MaxFormer {
		var f rule.Faults
		f.Add("zone", "changed %d times while periods of its rules are running, want at most %d", n, MaxFormer)
		return nil, faultError(ErrConflict, f)
	}
	for _, unit := range []period.Unit{period.Month, period.Week, period.Day, period.Year, period.Hour} {
		u := string(unit)
		if count(needed) <= MaxFormer-2 { // one period depends on two at most
			need(RulePeriod{Period: Period{Unit: &u}})
		}
	}
	var kept []FormerPeriod
	for i, p := range next.former {
		if needed[i] {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

func count(set map[int]bool) (n int) {
	for _, in := range set {
		if in {
			n++
		}
	}
	return n
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

// previousPeriod returns the period that a rule carries beside its own, so that
// the one which is running ends as it was promised, and one that began at the
// end of another goes on; nil when it need not carry any. A rule that now
// counts for another tenant has no running period.
func previousPeriod(ctx context.Context, tx Tx, before, after *Object, now time.Time) (*Previous, error) {
	was, is := before.Body.(*Rule), after.Body.(*Rule) // the store keeps kinds apart
	tenant := matchTenant(was)
	if was.Period == nil || is.Period == nil || tenant != matchTenant(is) {
		return nil, nil
	}
	old := RulePeriod{Period: *was.Period, Previous: before.Kept.Previous, ChangedAt: before.ChangedAt}
	next := RulePeriod{Period: *is.Period, ChangedAt: now}
	if tenant == "" {
		var f rule.Faults
		if old.ownEnds(&f) || open(is.Period.spec(&f)) {
			return previousOfMany(old, next, now), nil
		}
		return previousOfOne(old, next, home{zone: time.UTC}, now)
	}
	owner, err := tx.Object(ctx, KindTenant, tenant)
	if err != nil || owner == nil {
		return nil, err
	}
	return previousOfOne(old, next, owner.Body.(*Tenant).home(owner.Kept.Former), now) // as above
}

func matchTenant(r *Rule) string {
	if r.Match == nil {
		return ""
	}
	return Or(r.Match.Tenant, "")
}

// ownEnds reports whether each tenant has its own end of the rule's periods.
func (r RulePeriod) ownEnds(f *rule.Faults) bool {
	return open(r.Period.spec(f)) || r.Previous != nil && open(r.Previous.Period.spec(f))
}

// previousOfOne is for a rule whose zone and anchor are known: its own, or those
// of its one tenant. It tries to carry nothing, then what the rule carries, and
// else says what is running.
func previousOfOne(old, next RulePeriod, h home, now time.Time) (*Previous, error) {
	running, err := old.line(h).running(now)
	if err != nil {
		return nil, err
	}
	for _, p := range []*Previous{nil, old.Previous} {
		next.Previous = p
		if r, err := next.line(h).running(now); err == nil && r.like(running) {
			return p, nil
		}
	}
	spec := running.spec
	if regular, err := spec.At(now); err == nil && !regular.Start.Equal(running.span.Start) {
		// It began at the end of another: as an anniversary it begins there.
		spec.Alignment, spec.Anchor = period.Anniversary, running.span.Start
	}
	return &Previous{Period: written(spec), Until: now, End: running.span.End}, nil
}

// previousOfMany is for a rule that leaves its zone to many tenants, so that its
// running periods end at many instants, which readers derive from the time of
// the rule's last change. It carries an old period that has one end until the
// periods that began there are over, and one that has many while it is running
// for every tenant there may be.
func previousOfMany(old, next RulePeriod, now time.Time) *Previous {
	var f rule.Faults // both were validated when they were put
	was, is := old.Period.spec(&f), next.Period.spec(&f)
	kept := old.Previous
	if kept.over(is, now) {
		kept = nil
	}
	runs := kept != nil && (kept.End.IsZero() || now.Before(kept.End)) // and not what came after it
	if !runs && !same(was, is) {
		kept, runs = &Previous{Period: old.Period, Until: now}, true
		if span, err := was.At(now); err == nil { // it names its zone
			kept.End = span.End
		}
	}
	if runs && same(kept.Period.spec(&f), is) {
		return nil
	}
	return kept
}

// over reports whether nothing depends any more on the former period of a rule
// that is next now.
func (p *Previous) over(next period.Spec, now time.Time) bool {
	if p == nil {
		return true
	}
	var f rule.Faults
	spec := p.Period.spec(&f)
	const quarter = 15 * time.Minute
	for off := -12 * time.Hour; off <= 14*time.Hour; off += quarter {
		zone := time.FixedZone("", int(off.Seconds()))
		if p.End.IsZero() {
			if span, err := spec.In(zone, time.Time{}).At(p.Until); err != nil || !now.Before(span.End) {
				return true // it has ended for a tenant there
			}
		} else if span, err := next.In(zone, time.Time{}).At(p.End); err == nil && now.Before(span.End) {
			return false // what began at its end is running for a tenant there
		}
	}
	return !p.End.IsZero()
}

// same reports whether two definitions have the same periods.
func same(a, b period.Spec) bool {
	return a.Unit == b.Unit && a.Count == b.Count && a.Alignment == b.Alignment && a.Anchor.Equal(b.Anchor) &&
		(a.Zone == nil) == (b.Zone == nil) && (a.Zone == nil || a.Zone.String() == b.Zone.String())
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
