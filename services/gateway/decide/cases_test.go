package decide_test

import (
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// The cases below hold whatever keeps the counters. Each gets a rig with an
// empty catalogue and untouched counters, and none takes a second. Here they
// run over the model, which is the specification; behind the tag integration
// over a real Redis.

// TestFC08 guarantees that a request refused by one rule burns no other rule's
// budget.
func TestFC08(t *testing.T) { overModel(t, caseFC08) }

// TestFC15 guarantees that lowering a limit leaves what was used.
func TestFC15(t *testing.T) { overModel(t, caseFC15) }

// TestC1 guarantees that an upgrade in the middle of a period keeps what was
// used.
func TestC1(t *testing.T) { overModel(t, caseC1) }

// TestC3 guarantees that a rule that is deleted and made anew keeps what was
// used.
func TestC3(t *testing.T) { overModel(t, caseC3) }

// TestE1 guarantees that a cost that does not fit is refused whole.
func TestE1(t *testing.T) { overModel(t, caseE1) }

func overModel(t *testing.T, run func(*testing.T, *rig)) {
	t.Parallel()
	run(t, newGate(t).rig)
}

// caseFC08: an organisation has 10 a minute, each integrator in it 5. What A is
// refused costs the organisation nothing, so B gets its 5; then both rules are
// full and stay where they were. The order in which rules came does not matter.
func caseFC08(t *testing.T, r *rig) {
	organisation, integrator := rate("organisation", rule.Tenant, 10), rate("integrator", rule.Tenant|rule.Application, 5)
	for _, order := range [][]*rule.Rule{{organisation, integrator}, {integrator, organisation}} {
		tenant := "acme-" + order[0].ID
		r.put(decide.RuleKind, "organisation", nil)
		r.put(decide.RuleKind, "integrator", nil)
		for _, v := range order {
			r.rule(v)
		}
		send := func(app string, n int) (allowed int, last decide.Decision) {
			for range n {
				if last = r.ask(decide.Query{Tenant: tenant, Application: app}); last.Outcome == decide.Allow {
					allowed++
				}
			}
			return allowed, last
		}
		if n, last := send("a", 8); n != 5 || last.RuleID != "integrator" {
			t.Errorf("%s: A got %d, then refused by %q; want 5, then integrator", tenant, n, last.RuleID)
		}
		if n, _ := send("b", 5); n != 5 {
			t.Errorf("%s: B got %d, want 5", tenant, n)
		}
		for range 2 { // a refusal moves nothing, however often
			n, last := send("b", 1)
			if n != 0 || left(last, "organisation") != 0 || left(last, "integrator") != 0 {
				t.Errorf("%s: B's sixth: %d allowed, %+v", tenant, n, last.Limits)
			}
		}
		if d := r.ask(decide.Query{Tenant: tenant, Application: "c", Cost: units(0)}); left(d, "organisation") != 0 || left(d, "integrator") != 5 {
			t.Errorf("%s: left %+v, want 0 and 5", tenant, d.Limits)
		}
	}
}

// caseFC15: 35 of 5,000,000 used. Lowered to 10, the next request is refused
// with limit 10, remaining 0 and 35 used; at 100 it passes with 64 left. The
// reset stays, and a new name changes nothing.
func caseFC15(t *testing.T, r *rig) {
	r.rule(quota("month", 5_000_000))
	first := r.ask(decide.Query{Tenant: "acme", Cost: units(35)}).Limits[0]
	tests := []struct {
		limit             int64
		name              string
		outcome           decide.Outcome
		code              decide.Code
		remaining, usedBy int64
	}{
		{10, "", decide.Deny, decide.QuotaExceeded, 0, 35},
		{100, "", decide.Allow, "", 64, 36},
		{100, "another name", decide.Allow, "", 63, 37},
	}
	for _, tt := range tests {
		changed := quota("month", tt.limit)
		changed.Name = tt.name
		r.rule(changed)
		d := r.ask(decide.Query{Tenant: "acme"})
		l := d.Limits[0]
		if d.Outcome != tt.outcome || d.Code != tt.code || l.Limit != tt.limit || l.Remaining != tt.remaining || l.Consumed != tt.usedBy {
			t.Errorf("limit %d: %s %q %+v, want %s, %d remaining, %d used", tt.limit, d.Outcome, d.Code, l, tt.outcome, tt.remaining, tt.usedBy)
		}
		if !l.PeriodEnd.Equal(first.PeriodEnd) || !l.PeriodStart.Equal(first.PeriodStart) {
			t.Errorf("limit %d: the period moved from %v to %v", tt.limit, first.PeriodEnd, l.PeriodEnd)
		}
	}
}

// caseC1: 900 of Basic's 1000 used; upgraded to Pro with 5000, 4100 remain, in
// the same period.
func caseC1(t *testing.T, r *rig) {
	basic, pro := quota("basic-month", 1000), quota("pro-month", 5000)
	basic.Match.Plan, pro.Match.Plan = "basic", "pro"
	r.rule(basic)
	r.rule(pro)
	r.tenant(&decide.Tenant{ID: "acme", Plan: "basic"})
	before := r.ask(decide.Query{Tenant: "acme", Cost: units(900)}).Limits[0]
	r.tenant(&decide.Tenant{ID: "acme", Plan: "pro"})
	after := r.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]
	if after.RuleID != "pro-month" || after.Remaining != 4100 || !after.PeriodEnd.Equal(before.PeriodEnd) {
		t.Errorf("after the upgrade %+v, want 4100 remaining until %v", after, before.PeriodEnd)
	}
}

// caseC3: 60 of 100 used; deleted, and made anew under another id, the rule
// lets 40 pass and refuses the 41st.
func caseC3(t *testing.T, r *rig) {
	r.rule(quota("month", 100))
	r.ask(decide.Query{Tenant: "acme", Cost: units(60)})
	r.put(decide.RuleKind, "month", nil)
	if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Allow || len(d.Limits) != 0 {
		t.Errorf("without the rule: %+v", d)
	}
	r.rule(quota("another", 100))
	for i := range 41 {
		if d := r.ask(decide.Query{Tenant: "acme"}); (d.Outcome == decide.Allow) != (i < 40) {
			t.Fatalf("request %d: %s, %+v", i+1, d.Outcome, d.Limits)
		}
	}
}

// caseE1: 99 of 100 used; a cost of 2 is refused and changes nothing, a cost of
// 1 passes.
func caseE1(t *testing.T, r *rig) {
	r.rule(quota("month", 100))
	r.ask(decide.Query{Tenant: "acme", Cost: units(99)})
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(2)}); d.Outcome != decide.Deny || d.Limits[0].Consumed != 99 {
		t.Errorf("cost 2: %s, %d used, want DENY and 99", d.Outcome, d.Limits[0].Consumed)
	}
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(1)}); d.Outcome != decide.Allow || d.Limits[0].Consumed != 100 {
		t.Errorf("cost 1: %s, %d used, want ALLOW and 100", d.Outcome, d.Limits[0].Consumed)
	}
}

// left is what a rule has remaining, -1 when it is not in the list.
func left(d decide.Decision, id string) int64 {
	for _, l := range d.Limits {
		if l.RuleID == id {
			return l.Remaining
		}
	}
	return -1
}

// TestFC05QuotaEndsWithTheMonth guarantees that a quota used up an hour before
// the month ends refuses with 429 and the whole hour to wait, and passes the
// moment the new month begins.
func TestFC05QuotaEndsWithTheMonth(t *testing.T) {
	t.Parallel()

	g := newGate(t, quota("month", 5))
	end := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	g.at(end.Add(-time.Hour))
	g.ask(decide.Query{Tenant: "acme", Cost: units(5)})
	if d := g.ask(decide.Query{Tenant: "acme"}); d.Status != 429 || d.Code != decide.QuotaExceeded || d.RetryAfter != 3600*time.Second {
		t.Errorf("decision %+v, want 429 and an hour to wait", d)
	}
	g.at(end)
	if d := g.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Allow || d.Limits[0].Remaining != 4 {
		t.Errorf("in the new month: %+v", d)
	}
}

// TestZoneOfATenant guarantees that a quota without a zone runs in its tenant's,
// that a tenant that moves finishes the period it was promised, and that the
// next one begins there, in the new zone.
func TestZoneOfATenant(t *testing.T) {
	t.Parallel()

	istanbul, newYork := zone(t, "Europe/Istanbul"), zone(t, "America/New_York")
	g := newGate(t, quota("month", 1000))
	g.tenant(&decide.Tenant{ID: "acme", Zone: istanbul})
	of := func() period.Span {
		l := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]
		return period.Span{Start: l.PeriodStart, End: l.PeriodEnd}
	}
	november := period.Span{
		Start: time.Date(2026, time.October, 31, 21, 0, 0, 0, time.UTC),
		End:   time.Date(2026, time.November, 30, 21, 0, 0, 0, time.UTC),
	}
	if got := of(); got != november {
		t.Errorf("in Istanbul: %v, want %v", got, november)
	}
	g.tenant(&decide.Tenant{ID: "acme", Zone: newYork, Previous: []decide.FormerPeriod{{Zone: istanbul, Until: t0}}})
	if got := of(); got != november {
		t.Errorf("after the move: %v, want %v as promised", got, november)
	}
	g.at(november.End)
	rest := period.Span{Start: november.End, End: time.Date(2026, time.December, 1, 5, 0, 0, 0, time.UTC)}
	if got := of(); got != rest {
		t.Errorf("after the promised end: %v, want New York's November from there, %v", got, rest)
	}
	g.at(rest.End)
	december := period.Span{Start: rest.End, End: time.Date(2027, time.January, 1, 5, 0, 0, 0, time.UTC)}
	if got := of(); got != december {
		t.Errorf("then: %v, want %v", got, december)
	}
}

// TestPeriodOfARuleChanges guarantees that a changed period takes effect when
// the running one ends, and that a zone the rule names itself is not the
// tenant's to change.
func TestPeriodOfARuleChanges(t *testing.T) {
	t.Parallel()

	istanbul := zone(t, "Europe/Istanbul")
	g := newGate(t)
	g.tenant(&decide.Tenant{ID: "acme", Zone: zone(t, "America/New_York"), Previous: []decide.FormerPeriod{{Zone: time.UTC, Until: t0}}})
	r := quota("q", 1000)
	r.Period = &period.Spec{Unit: period.Day, Count: 1, Alignment: period.Calendar, Zone: istanbul}
	r.Former = &period.Former{
		Spec:  period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar, Zone: istanbul},
		Until: t0, End: time.Date(2026, time.November, 30, 21, 0, 0, 0, time.UTC),
	}
	g.rule(r)
	end := func() time.Time { return g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0].PeriodEnd }
	if got := end(); !got.Equal(r.Former.End) {
		t.Errorf("the running month ends at %v, want %v", got, r.Former.End)
	}
	g.at(r.Former.End)
	if got, want := end(), r.Former.End.Add(24*time.Hour); !got.Equal(want) {
		t.Errorf("then a day ends at %v, want %v", got, want)
	}
}

// TestOwnZoneIgnoresTheTenants guarantees that a tenant's move does not prolong
// a period of a rule that names its own zone: one that had been cut short ends
// when it was promised to.
func TestOwnZoneIgnoresTheTenants(t *testing.T) {
	t.Parallel()
	istanbul := zone(t, "Europe/Istanbul")
	r := quota("q", 1000)
	r.Period = &period.Spec{Unit: period.Day, Count: 1, Alignment: period.Calendar, Zone: istanbul}
	r.Former = &period.Former{
		Spec:  period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar, Zone: istanbul},
		Until: t0, End: t0.Add(time.Hour),
	}
	g := newGate(t, r)
	g.tenant(&decide.Tenant{
		ID: "acme", Zone: zone(t, "America/New_York"),
		Previous: []decide.FormerPeriod{{Zone: time.UTC, Until: t0.Add(-time.Hour)}},
	})
	if got := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0].PeriodEnd; !got.Equal(r.Former.End) {
		t.Errorf("the running period ends at %v, want %v as promised", got, r.Former.End)
	}
}

// TestChangedUnitKeepsWhatWasUsed guarantees that a quota whose unit or count
// changes hands nothing out again: until the running period ends, its counter
// is the one that period was promised under.
func TestChangedUnitKeepsWhatWasUsed(t *testing.T) {
	t.Parallel()

	end := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	for name, changed := range map[string]period.Spec{
		"a month becomes a day":   {Unit: period.Day, Count: 1, Alignment: period.Calendar},
		"a month becomes two":     {Unit: period.Month, Count: 2, Alignment: period.Calendar},
		"a month becomes an hour": {Unit: period.Hour, Count: 1, Alignment: period.Calendar},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := quota("q", 50)
			g := newGate(t, r)
			g.ask(decide.Query{Tenant: "acme", Cost: units(20)})
			next := *r
			next.Limit, next.Period = 60, &changed
			next.Former = &period.Former{Spec: *r.Period, Until: t0, End: end}
			g.rule(&next)
			if l := g.ask(decide.Query{Tenant: "acme", Cost: units(1)}).Limits[0]; l.Consumed != 21 || l.Remaining != 39 {
				t.Errorf("before the month ends: %d used, %d left, want 21 and 39", l.Consumed, l.Remaining)
			}
			g.at(end)
			if l := g.ask(decide.Query{Tenant: "acme", Cost: units(1)}).Limits[0]; l.Consumed != 1 {
				t.Errorf("after it: %d used, want 1", l.Consumed)
			}
		})
	}
}

// TestRuleAndTenantChange guarantees that a period ends as it was promised when
// both the rule and its tenant change while it runs: each change is weighed
// with what the other said at its time.
func TestRuleAndTenantChange(t *testing.T) {
	t.Parallel()

	istanbul, newYork := zone(t, "Europe/Istanbul"), zone(t, "America/New_York")
	november := func(day, hour int) time.Time { return time.Date(2026, time.November, day, hour, 0, 0, 0, time.UTC) }
	calendar := func(unit period.Unit) period.Spec {
		return period.Spec{Unit: unit, Count: 1, Alignment: period.Calendar}
	}
	tests := []struct {
		name     string
		was, is  period.Unit
		changed  time.Time
		previous []decide.FormerPeriod // then New York
		at       time.Time
		want     period.Span
	}{
		{
			"the month that ran when the tenant moved ends in its old zone, though the rule is daily since",
			period.Month, period.Day, november(20, 12),
			[]decide.FormerPeriod{{Zone: istanbul, Until: november(10, 12)}},
			november(25, 12),
			period.Span{Start: time.Date(2026, time.October, 31, 21, 0, 0, 0, time.UTC), End: november(30, 21)},
		},
		{
			"and then a day begins, in the new zone",
			period.Month, period.Day, november(20, 12),
			[]decide.FormerPeriod{{Zone: istanbul, Until: november(10, 12)}},
			november(30, 22),
			period.Span{Start: november(30, 21), End: time.Date(2026, time.December, 1, 5, 0, 0, 0, time.UTC)},
		},
		{
			"the day that ran when the rule changed ends in the zone of that day",
			period.Day, period.Month, november(20, 12),
			[]decide.FormerPeriod{{Zone: istanbul, Until: november(5, 12)}, {Zone: time.UTC, Until: november(10, 12)}},
			november(20, 13),
			period.Span{Start: november(20, 5), End: november(21, 5)},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			g := newGate(t)
			g.tenant(&decide.Tenant{ID: "acme", Zone: newYork, Previous: tt.previous})
			r := quota("q", 10)
			is := calendar(tt.is)
			r.Period, r.Former = &is, &period.Former{Spec: calendar(tt.was), Until: tt.changed}
			g.rule(r)
			g.at(tt.at)
			l := g.ask(decide.Query{Tenant: "acme"}).Limits[0]
			if got := (period.Span{Start: l.PeriodStart, End: l.PeriodEnd}); got != tt.want {
				t.Errorf("period %v, want %v", got, tt.want)
			}
		})
	}
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := period.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}
