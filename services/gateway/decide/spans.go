package decide

import (
	"sync/atomic"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// maxTimelines is how many quotas a tenant's timelines are remembered for. A
// tenant under more works them out again.
const maxTimelines = 32

// A spanCache remembers when the periods of a tenant's quotas begin and end. It
// belongs to one version of the tenant and names rules by version, so it is
// never stale. It is safe for concurrent use.
type spanCache struct {
	timelines atomic.Pointer[[]timeline]
}

// A timeline is of one version of a rule.
type timeline struct {
	rule *rule.Rule
	memo *period.Memo
}

// running is the period of a quota for this tenant that runs at a time. Without
// one, which no valid definition comes to, the quota has a single period.
func (t *Tenant) running(r *rule.Rule, at time.Time) period.Running {
	running, err := t.timeline(r).Running(at)
	if err != nil {
		forever := period.Span{Start: time.UnixMicro(0).UTC(), End: time.Unix(rule.Unlimited/1e6, 0).UTC()}
		return period.Running{Span: forever, Unit: r.Period.Unit, Count: r.Period.Count}
	}
	return running
}

func (t *Tenant) timeline(r *rule.Rule) *period.Memo {
	var known []timeline
	if p := t.spans.timelines.Load(); p != nil {
		known = *p
	}
	for i := range known {
		if known[i].rule == r {
			return known[i].memo
		}
	}
	memo := period.NewMemo(t.line(r))
	if len(known) >= maxTimelines {
		known = known[1:]
	}
	list := append(append(make([]timeline, 0, len(known)+1), known...), timeline{r, memo})
	t.spans.timelines.Store(&list) // one that another request adds now may be lost, and is made again
	return memo
}

// line is the definition of a quota's periods for this tenant, with what was in
// force before: the rule's former definition, and the zones and anchors that
// the tenant had. Those change nothing where the rule names its own.
func (t *Tenant) line(r *rule.Rule) period.Timeline {
	line := period.Timeline{Current: t.specAt(*r.Period, time.Time{})}
	if r.Former != nil {
		f := *r.Former
		f.Spec = t.specAt(f.Spec, f.Until)
		line.Former = append(line.Former, f)
	}
	for _, p := range t.Previous {
		spec := *r.Period
		if r.Former != nil && !p.Until.After(r.Former.Until) {
			spec = r.Former.Spec
		}
		if spec.Zone == nil || spec.Alignment == period.Anniversary && spec.Anchor.IsZero() {
			line.Former = append(line.Former, period.Former{Spec: complete(spec, p.Zone, p.Anchor), Until: p.Until})
		}
	}
	return line
}

// specAt is a definition with the zone and anchor that the tenant had until a
// time, which is zero for those of today.
func (t *Tenant) specAt(spec period.Spec, until time.Time) period.Spec {
	if !until.IsZero() {
		for _, p := range t.Previous {
			if !p.Until.Before(until) {
				return complete(spec, p.Zone, p.Anchor)
			}
		}
	}
	return complete(spec, t.Zone, t.Anchor)
}

// complete is a definition that lacks nothing: what neither the rule nor the
// tenant names is UTC, and the first of 1970.
func complete(spec period.Spec, zone *time.Location, anchor time.Time) period.Spec {
	if zone == nil {
		zone = time.UTC
	}
	if anchor.IsZero() {
		anchor = time.Unix(0, 0).UTC()
	}
	return spec.In(zone, anchor)
}
