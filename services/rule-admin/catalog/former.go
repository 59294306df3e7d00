package catalog

import (
	"context"
	"maps"
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

// A definition is the period of a rule as readers take it, with the one that
// it had before.
type definition struct {
	spec  period.Spec
	was   period.Spec
	until time.Time // last instant that was governed; zero: there was none before
	end   time.Time // of what ran at until; zero: it depends on the tenant
}

func (r RulePeriod) definition() definition {
	var f rule.Faults // it was validated when it was put
	d := definition{spec: r.Period.spec(&f)}
	if p := r.Previous; p != nil {
		d.was, d.until, d.end = p.Period.spec(&f), r.ChangedAt, p.End
		if !d.end.IsZero() && !d.until.Before(d.end) { // the record has changed again since
			d.until = d.end.Add(-time.Microsecond)
		}
	}
	return d
}

// line is the timeline that the gateways make of the records of a rule and a
// tenant.
func (d definition) line(h home) period.Timeline {
	l := period.Timeline{Current: complete(d.spec, h.zone, h.anchor)}
	if !d.until.IsZero() {
		zone, anchor := h.at(d.until)
		l.Former = append(l.Former, period.Former{Spec: complete(d.was, zone, anchor), Until: d.until, End: d.end})
	}
	for _, p := range h.former {
		spec := d.spec
		if !p.Until.After(d.until) {
			spec = d.was
		}
		if z, err := period.Zone(p.Zone); err == nil && open(spec) {
			l.Former = append(l.Former, period.Former{Spec: complete(spec, z, p.Anchor), Until: p.Until})
		}
	}
	return l
}

// complete is a definition that lacks nothing: without an anchor of the rule or
// the tenant, anniversaries are those of 1970.
func complete(s period.Spec, zone *time.Location, anchor time.Time) period.Spec {
	if anchor.IsZero() {
		anchor = firstInstant
	}
	return s.In(zone, anchor)
}

// open reports whether a definition leaves its zone or its anchor to the tenant.
func open(s period.Spec) bool {
	return s.Zone == nil || s.Alignment == period.Anniversary && s.Anchor.IsZero()
}

// formerPeriods returns the former zones and anchors that a tenant carries
// after it has become what after says: of those that it had, and of the one
// that it leaves, as few as leave every running period as it is. The common
// periods count as running while there is room, because a rule that is deleted
// and made again goes on counting where it was.
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
	distinct := map[definition]bool{} // many rules have a month, and nothing before it
	for _, r := range rules {
		distinct[r.definition()] = true
	}
	running := slices.Collect(maps.Keys(distinct))
	needed := len(running)
	for _, unit := range []period.Unit{period.Month, period.Week, period.Day, period.Year, period.Hour} {
		running = append(running, definition{spec: period.Spec{Unit: unit, Count: 1, Alignment: period.Calendar}})
	}
	for ; ; running = running[:len(running)-1] {
		kept := next.fewest(running, now)
		switch {
		case len(kept) <= MaxFormer:
			return kept, nil
		case len(running) == needed:
			var f rule.Faults
			f.Add("zone", "changed %d times while periods of its rules are running, want at most %d", len(kept), MaxFormer)
			return nil, faultError(ErrConflict, f)
		}
	}
}

// fewest returns the fewest former periods with which what is running at now
// keeps its start and its end. An item on which no running period depends may
// still keep another item, which a period of another length needs, from having
// come into force. So each is taken away on trial, and the lines are read again.
func (h home) fewest(defs []definition, now time.Time) []FormerPeriod {
	type promise struct {
		definition
		running period.Running
	}
	var promised []promise
	for _, d := range defs {
		if r, err := d.line(h).Running(now); err == nil {
			promised = append(promised, promise{d, r})
		}
	}
	broken := func(p promise) bool {
		r, err := p.line(h).Running(now)
		return err != nil || r != p.running
	}
	for all, before := h.former, 0; len(all) != before; {
		before = len(all)
		for i := len(all) - 1; i >= 0; i-- {
			h.former = slices.Concat(all[:i], all[i+1:])
			if !slices.ContainsFunc(promised, broken) {
				all = h.former
			}
		}
		h.former = all
	}
	return h.former
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
// counts for another tenant, or is of another kind, has no running period.
func previousPeriod(ctx context.Context, tx Tx, before, after *Object, now time.Time) (*Previous, error) {
	was, is := before.Body.(*Rule), after.Body.(*Rule) // the store keeps kinds apart
	tenant := matchTenant(was)
	if was.Period == nil || is.Period == nil || tenant != matchTenant(is) || Or(was.Does, "") != Or(is.Does, "") {
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
// of its one tenant. It tries to carry nothing, then what the rule carries, then
// each definition that may govern the running period, and takes the first of
// which readers make that period.
func previousOfOne(old, next RulePeriod, h home, now time.Time) (*Previous, error) {
	line := old.definition().line(h)
	running, err := line.Running(now)
	if err != nil {
		return nil, err
	}
	specs := []period.Spec{line.Current}
	for _, f := range slices.Backward(line.Former) {
		specs = append(specs, f.Spec)
	}
	for _, s := range specs {
		specs = append(specs, beginning(s, running.Start)...)
	}
	tries := []*Previous{nil, old.Previous}
	for _, s := range specs {
		if s.Unit == running.Unit && s.Count == running.Count {
			tries = append(tries, &Previous{Period: written(s), Until: now, End: running.End})
		}
	}
	for _, p := range tries {
		next.Previous = p
		if r, err := next.definition().line(h).Running(now); err == nil && r == running {
			return p, nil
		}
	}
	return tries[len(tries)-1], nil // and its end is right
}

// beginning returns definitions of anniversaries that may say a period of s
// which begins at start, the end of another, and is shorter for it: from there
// on; where an hour comes twice, by a clock that knows no such hour; and for the
// 31st in a short month, from the anchor's day, at the time of start.
func beginning(s period.Spec, start time.Time) []period.Spec {
	from, even, day := s, s, s
	from.Alignment, from.Anchor = period.Anniversary, start
	even.Alignment, even.Anchor, even.Zone = period.Anniversary, start, time.UTC
	anchor, local := s.Anchor.In(s.Zone), start.In(s.Zone)
	day.Anchor = time.Date(anchor.Year(), anchor.Month(), anchor.Day(),
		local.Hour(), local.Minute(), local.Second(), local.Nanosecond(), s.Zone).UTC()
	if s.Alignment != period.Anniversary || day.Anchor.Before(firstInstant) {
		return []period.Spec{from, even}
	}
	return []period.Spec{from, day, even}
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
