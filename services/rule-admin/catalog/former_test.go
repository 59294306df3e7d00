package catalog_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/internal/condition"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
)

// A desk is a catalogue whose time the test moves.
type desk struct {
	t     *testing.T
	store *catalogtest.Memory
	c     *catalog.Catalog
	now   time.Time
}

func newDesk(t *testing.T, now string) *desk {
	t.Helper()
	at := instant(t, now)
	store := catalogtest.NewMemory(at)
	return &desk{t, store, catalog.New(store, rand.Reader, condition.Compile), at}
}

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func (d *desk) at(now string) {
	d.t.Helper()
	next := instant(d.t, now)
	d.store.Advance(next.Sub(d.now))
	d.now = next
}

func (d *desk) tenant(text string) []catalog.FormerPeriod {
	d.t.Helper()
	return catalogtest.Put(d.t, d.c, catalog.KindTenant, "acme", text, catalogtest.Any).Object.Kept.Former
}

func (d *desk) quota(match, period string, limit int) *catalog.Previous {
	d.t.Helper()
	return d.rule("q", match, period, limit)
}

func (d *desk) rule(id, match, period string, limit int) *catalog.Previous {
	d.t.Helper()
	text := fmt.Sprintf(`{"kind":"quota","subject":["tenant"],"limit":%d,"match":%s,"period":%s}`, limit, match, period)
	return catalogtest.Put(d.t, d.c, catalog.KindRule, id, text, catalogtest.Any).Object.Kept.Previous
}

// is fails the test unless the previous period is the wanted one: its period as
// JSON and its end; "" is none.
func (d *desk) is(p *catalog.Previous, period, end string) {
	d.t.Helper()
	if p == nil || period == "" {
		if p != nil || period != "" {
			d.t.Errorf("previous period is %+v, want %q", p, period)
		}
		return
	}
	text, err := json.Marshal(p.Period)
	if err != nil {
		d.t.Fatal(err)
	}
	gotEnd := ""
	if !p.End.IsZero() {
		gotEnd = p.End.Format(time.RFC3339)
	}
	if string(text) != period || gotEnd != end {
		d.t.Errorf("previous period is %s until %q, want %s until %q", text, gotEnd, period, end)
	}
}

// TestRulePeriodChanges guarantees that a rule whose period changes carries the
// running one to its promised end, through whatever changes meanwhile.
func TestRulePeriodChanges(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	const month, week, day = `{"unit":"month","zone":"Europe/Istanbul"}`, `{"unit":"week","zone":"Europe/Istanbul"}`, `{"unit":"day","zone":"Europe/Istanbul"}`
	const wasMonth = `{"unit":"month","count":1,"alignment":"calendar","zone":"Europe/Istanbul"}`
	const monthEnd = "2026-11-30T21:00:00Z"
	d.is(d.quota(`{}`, month, 1), "", "")
	d.is(d.quota(`{}`, month, 2), "", "") // a limit changes at once
	d.is(d.quota(`{}`, week, 2), wasMonth, monthEnd)
	d.at("2026-11-16T12:00:00Z")
	d.is(d.quota(`{}`, week, 3), wasMonth, monthEnd) // an unrelated change keeps it
	d.at("2026-11-29T12:00:00Z")
	d.is(d.quota(`{}`, day, 3), wasMonth, monthEnd) // weeks never came into force
	d.is(d.quota(`{}`, month, 3), "", "")           // back again: nothing had changed
	d.is(d.quota(`{}`, day, 3), wasMonth, monthEnd) // and away
	d.at("2026-11-30T20:59:59Z")                    // the last second
	d.is(d.quota(`{}`, day, 4), wasMonth, monthEnd) // still the month
	d.at("2026-11-30T21:00:00Z")                    // days are in force
	d.is(d.quota(`{}`, day, 5), "", "")             // the month is over
	d.at("2026-12-01T12:00:00Z")                    // a day runs to 21:00Z
	d.is(d.quota(`{}`, month, 5), `{"unit":"day","count":1,"alignment":"calendar","zone":"Europe/Istanbul"}`, "2026-12-01T21:00:00Z")
}

// TestRulePeriodFields guarantees that a change of zone, unit, count, alignment
// or anchor is one, and that writing a default out is none.
func TestRulePeriodFields(t *testing.T) {
	t.Parallel()
	const was = `{"unit":"month","zone":"UTC"}`
	tests := []struct {
		name, next string
		changes    bool
	}{
		{"defaults written out", `{"unit":"month","count":1,"alignment":"calendar","zone":"UTC"}`, false},
		{"another zone", `{"unit":"month","zone":"Europe/Istanbul"}`, true},
		{"another unit", `{"unit":"week","zone":"UTC"}`, true},
		{"another count", `{"unit":"month","count":2,"zone":"UTC"}`, true},
		{"an anchor", `{"unit":"month","alignment":"anniversary","anchor":"2026-01-05T00:00:00Z","zone":"UTC"}`, true},
	}
	for _, tt := range tests {
		d := newDesk(t, "2026-11-15T12:00:00Z")
		d.quota(`{}`, was, 1)
		if p := d.quota(`{}`, tt.next, 1); (p != nil) != tt.changes {
			t.Errorf("%s: previous period is %+v", tt.name, p)
		}
	}
	d := newDesk(t, "2026-11-15T12:00:00Z")
	anniversary := func(anchor string) string {
		return `{"unit":"month","alignment":"anniversary","zone":"UTC","anchor":"` + anchor + `"}`
	}
	d.quota(`{}`, anniversary("2026-01-20T00:00:00Z"), 1)
	d.is(d.quota(`{}`, anniversary("2026-01-20T03:00:00+03:00"), 1), "", "") // the same instant
	d.is(d.quota(`{}`, anniversary("2026-01-25T00:00:00Z"), 1),
		`{"unit":"month","count":1,"alignment":"anniversary","zone":"UTC","anchor":"2026-01-20T00:00:00Z"}`, "2026-11-20T00:00:00Z")
}

// TestRulePeriodOfATenant guarantees that a rule for one tenant which leaves its
// zone to it carries the zone that governs the running period, which may be one
// that the tenant has left.
func TestRulePeriodOfATenant(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	d.tenant(`{"zone":"Europe/Istanbul"}`)
	const acme = `{"tenant":"acme"}`
	d.quota(acme, `{"unit":"month"}`, 1)
	d.is(d.quota(acme, `{"unit":"month","zone":"Europe/Istanbul"}`, 1), "", "") // the tenant's zone by name is no change
	d.is(d.quota(acme, `{"unit":"month"}`, 1), "", "")
	d.tenant(`{"zone":"America/New_York"}`)
	const was = `{"unit":"month","count":1,"alignment":"calendar","zone":"Europe/Istanbul"}`
	d.is(d.quota(acme, `{"unit":"week"}`, 1), was, "2026-11-30T21:00:00Z")
	d.is(d.quota(acme, `{"unit":"month"}`, 1), "", "") // the tenant carries Istanbul for all its months
	d.at("2026-12-15T12:00:00Z")
	d.is(d.quota(acme, `{"unit":"month"}`, 2), "", "")
	d.is(d.quota(acme, `{"unit":"day"}`, 2), `{"unit":"month","count":1,"alignment":"calendar","zone":"America/New_York"}`, "2027-01-01T05:00:00Z")
	catalogtest.Put(t, d.c, catalog.KindTenant, "globex", `{}`, catalog.Condition{})
	d.is(d.quota(`{"tenant":"globex"}`, `{"unit":"day"}`, 2), "", "") // for another tenant nothing is running
}

// TestRulePeriodOfManyTenants guarantees that a rule which leaves its zone to
// many tenants carries its old period without an end, for each has its own,
// and no longer than until the first of them has ended.
func TestRulePeriodOfManyTenants(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	const was = `{"unit":"month"}`
	d.quota(`{}`, `{"unit":"month"}`, 1)
	d.is(d.quota(`{}`, `{"unit":"week"}`, 1), was, "")
	d.at("2026-11-30T09:59:59Z") // December begins at 10:00Z where it begins first
	d.is(d.quota(`{}`, `{"unit":"week"}`, 2), was, "")
	d.is(d.quota(`{}`, `{"unit":"day"}`, 2), was, "")
	d.is(d.quota(`{}`, `{"unit":"month"}`, 2), "", "")
	d.is(d.quota(`{}`, `{"unit":"day"}`, 2), was, "")
	d.at("2026-11-30T10:00:00Z")
	d.is(d.quota(`{}`, `{"unit":"day"}`, 3), "", "")
}

// TestTenantZoneChanges guarantees that a tenant carries each former zone or
// anchor under which a period is running, and no other.
func TestTenantZoneChanges(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	zones := func(former []catalog.FormerPeriod) string {
		out := ""
		for _, p := range former {
			out += p.Zone + " "
		}
		return out
	}
	want := func(former []catalog.FormerPeriod, want string) {
		t.Helper()
		if got := zones(former); got != want {
			t.Errorf("%v: former zones %q, want %q", d.now, got, want)
		}
	}
	want(d.tenant(`{}`), "")
	want(d.tenant(`{"zone":"UTC"}`), "") // as it was
	want(d.tenant(`{"zone":"Europe/Istanbul"}`), "UTC ")
	want(d.tenant(`{"zone":"Europe/Istanbul","name":"x"}`), "UTC ")
	want(d.tenant(`{"zone":"Asia/Tokyo"}`), "UTC ") // Istanbul never governed a period
	d.at("2026-11-15T20:30:00Z")                    // Tokyo's hours run
	want(d.tenant(`{"zone":"Asia/Kolkata"}`), "UTC Asia/Tokyo ")
	d.at("2026-11-16T20:00:00Z") // Kolkata's days run
	want(d.tenant(`{"zone":"Europe/Berlin"}`), "UTC Asia/Kolkata ")
	d.at("2027-06-15T12:00:00Z") // Berlin's year began late, at the end of that of UTC
	want(d.tenant(`{"zone":"Europe/Berlin"}`), "UTC ")
	d.at("2028-01-01T12:00:00Z")
	want(d.tenant(`{"zone":"Europe/Berlin"}`), "")

	d = newDesk(t, "2026-11-15T12:00:00Z")
	d.tenant(`{"anchor":"2026-01-31T10:00:00Z"}`)
	d.quota(`{"tenant":"acme"}`, `{"unit":"month","alignment":"anniversary"}`, 1)
	former := d.tenant(`{"anchor":"2026-02-15T10:00:00Z"}`)
	if len(former) != 1 || !former[0].Anchor.Equal(instant(t, "2026-01-31T10:00:00Z")) || !former[0].Until.Equal(d.now) {
		t.Errorf("after a new anchor: %+v, want the old one", former)
	}
	_, err := d.c.Put(t.Context(), catalog.Put{Kind: catalog.KindTenant, ID: "acme", Text: []byte(`{}`), Condition: catalogtest.Any})
	var fault *catalog.FaultError
	if !errors.Is(err, catalog.ErrConflict) || !errors.As(err, &fault) || fault.Faults[0].Field != "anchor" {
		t.Errorf("taking an anchor that a rule needs: %v, want a conflict about anchor", err)
	}
}

// TestTenantZonesAreBounded guarantees that however often a tenant moves, it
// carries few former zones: two at most for each length of period that is
// running.
func TestTenantZonesAreBounded(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	d.quota(`{}`, `{"unit":"day","count":3}`, 1)
	all := []string{"UTC", "Europe/Istanbul", "Asia/Kolkata", "America/New_York", "Pacific/Auckland"}
	most := 0
	for i := range 400 {
		former := d.tenant(`{"zone":"` + all[i%len(all)] + `"}`)
		most = max(most, len(former))
		d.store.Advance(time.Duration(i%7) * 97 * time.Minute)
		d.now = d.now.Add(time.Duration(i%7) * 97 * time.Minute)
	}
	if most > 12 || most < 3 {
		t.Errorf("carried %d former zones at most, want no more than two for each of hour, day, week, month, year and three days", most)
	}
}

// TestPromiseIsKept guarantees, for random changes of rules and their tenant,
// what the gateways make of the records: a period that is running changes
// neither its start, which is part of its counter's name, nor its end. Some
// changes are made in the very microsecond in which a period ends.
func TestPromiseIsKept(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Europe/Istanbul", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"}
	anchors := []string{"2026-01-31T10:00:00Z", "2026-02-14T21:30:00Z", "2025-11-05T03:00:00Z"}
	units := []string{"hour", "day", "week", "month"}
	rules := []string{"q", "r", "all"}
	rapid.Check(t, func(rt *rapid.T) {
		pick := func(what string, of []string) string { return rapid.SampledFrom(of).Draw(rt, what) }
		d := newDesk(t, pick("start", []string{"2026-03-01T00:30:00Z", "2026-03-28T22:00:00Z", "2026-10-24T06:00:00Z"}))
		anchored := ""
		tenant := func() {
			if rapid.Bool().Draw(rt, "anchored") {
				anchored = `,"anchor":"` + pick("anchor", anchors) + `"`
			}
			d.tenant(`{"zone":"` + pick("zone", zones) + `"` + anchored + `}`)
		}
		quota := func(id string) {
			period := `{"unit":"` + pick("unit", units) + `","count":` + pick("count", []string{"1", "1", "2"})
			if rapid.Bool().Draw(rt, "zoned") {
				period += `,"zone":"` + pick("zone", zones) + `"`
			}
			switch rapid.IntRange(0, 3).Draw(rt, "alignment") {
			case 0:
				period += `,"alignment":"anniversary","anchor":"` + pick("anchor", anchors) + `"`
			case 1:
				if anchored != "" {
					period += `,"alignment":"anniversary"`
				}
			}
			d.rule(id, `{"tenant":"acme"}`, period+`}`, rapid.IntRange(0, 9).Draw(rt, "limit"))
		}
		spans := func() (all []period.Span) {
			for _, id := range rules {
				all = append(all, d.line(id).span(t, d.now))
			}
			return all
		}
		tenant()
		d.rule("all", `{}`, `{"unit":"`+pick("unit", units)+`"}`, 1)
		quota("q")
		quota("r")
		promised := spans()
		for range rapid.IntRange(1, 60).Draw(rt, "changes") {
			step := time.Duration(rapid.Int64Range(0, int64(30*time.Hour/time.Microsecond)).Draw(rt, "µs")) * time.Microsecond
			if i := rapid.IntRange(0, 2*len(rules)).Draw(rt, "boundary"); i < len(rules) {
				step = promised[i].End.Sub(d.now)
			}
			d.store.Advance(step)
			d.now = d.now.Add(step)
			before := spans()
			for i, span := range before {
				if promised[i].Contains(d.now) && span != promised[i] {
					rt.Fatalf("rule %s at %v: the period was promised to be %v and is %v", rules[i], d.now, promised[i], span)
				}
			}
			change := pick("change", []string{"tenant", "q", "r"})
			if change == "tenant" {
				tenant()
			} else {
				quota(change)
			}
			promised = spans()
			for i, span := range promised {
				if span != before[i] {
					rt.Fatalf("a change of %s at %v made %v of the running period %v of rule %s", change, d.now, span, before[i], rules[i])
				}
			}
		}
	})
}

// TestZoneThatNeverGoverned guarantees that a tenant goes on carrying a former
// zone that no running period depends on while it keeps a later one, which the
// hours need, from having governed the weeks. Without Istanbul, which it had
// until the 13th, UTC would seem to have governed the week of the 15th.
func TestZoneThatNeverGoverned(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-03-01T00:30:00Z")
	d.tenant(`{}`)
	d.quota(`{"tenant":"acme"}`, `{"unit":"week"}`, 1)
	d.at("2026-03-01T19:47:41Z")
	d.tenant(`{"zone":"Europe/Istanbul"}`)
	d.at("2026-03-13T19:45:05Z")
	d.tenant(`{"zone":"UTC"}`)
	d.at("2026-03-15T00:55:12Z")
	d.tenant(`{"zone":"Europe/Istanbul"}`)
	d.at("2026-03-16T00:25:49Z")
	want := period.Span{Start: instant(t, "2026-03-15T21:00:00Z"), End: instant(t, "2026-03-22T21:00:00Z")}
	for _, zone := range []string{"Europe/Istanbul", "America/New_York", "Asia/Kolkata"} {
		d.tenant(`{"zone":"` + zone + `"}`)
		if got := d.line("q").span(t, d.now); got != want {
			t.Errorf("in %s the running week is %v, want %v", zone, got, want)
		}
	}
}

// TestMonthFromThe31st guarantees a month of the 31st that began late on the
// last day of February: a month from that instant would end on the 28th.
func TestMonthFromThe31st(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-02-28T10:30:00Z")
	d.tenant(`{}`)
	d.quota(`{}`, `{"unit":"hour","zone":"UTC"}`, 1)
	d.quota(`{}`, `{"unit":"month","alignment":"anniversary","anchor":"2026-01-31T10:00:00Z","zone":"UTC"}`, 1)
	d.at("2026-02-28T12:00:00Z")
	d.is(d.quota(`{}`, `{"unit":"hour","zone":"UTC"}`, 1),
		`{"unit":"month","count":1,"alignment":"anniversary","zone":"UTC","anchor":"2026-01-31T11:00:00Z"}`, "2026-03-31T10:00:00Z")
	want := period.Span{Start: instant(t, "2026-02-28T11:00:00Z"), End: instant(t, "2026-03-31T10:00:00Z")}
	if got := d.line("q").span(t, d.now); got != want {
		t.Errorf("the running month is %v, want %v", got, want)
	}
}

// TestFormerWithoutAnAnchor guarantees that a rule which counts from the
// tenant's anchor can be changed while the tenant carries a zone from when it
// had none.
func TestFormerWithoutAnAnchor(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	d.tenant(`{}`)
	if former := d.tenant(`{"zone":"Europe/Istanbul","anchor":"2026-01-31T10:00:00Z"}`); len(former) != 1 || !former[0].Anchor.IsZero() {
		t.Fatalf("former zones are %+v, want one without an anchor", former)
	}
	d.quota(`{"tenant":"acme"}`, `{"unit":"month","alignment":"anniversary"}`, 1)
	d.is(d.quota(`{"tenant":"acme"}`, `{"unit":"month","alignment":"anniversary"}`, 2), "", "")
}

// TestC1 guarantees the writing side of case C1: an upgrade in the middle of a
// period moves no period, and touches no rule.
func TestC1(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	plan := func(id string, limit int) *catalog.Object {
		catalogtest.Put(t, d.c, catalog.KindPlan, id, `{}`, catalogtest.Any)
		text := fmt.Sprintf(`{"kind":"quota","subject":["tenant"],"limit":%d,"match":{"plan":%q},"period":{"unit":"month"}}`, limit, id)
		return catalogtest.Put(t, d.c, catalog.KindRule, id, text, catalogtest.Any).Object
	}
	rules := []*catalog.Object{plan("basic", 1000), plan("pro", 5000)}
	d.tenant(`{"plan":"basic","zone":"Europe/Istanbul"}`)
	d.at("2026-11-20T12:00:00Z")
	if former := d.tenant(`{"plan":"pro","zone":"Europe/Istanbul"}`); len(former) > 0 {
		t.Errorf("the upgrade left the zones %+v behind", former)
	}
	for _, r := range rules {
		if now, err := d.c.Object(t.Context(), catalog.KindRule, r.ID); err != nil || now.Version != r.Version || now.Kept.Previous != nil {
			t.Errorf("rule %s is %+v (%v) after the upgrade", r.ID, now, err)
		}
	}
}

// TestC3 guarantees the writing side of case C3: a rule that is deleted and made
// again under another id names the same periods, also where its tenant moved
// before.
func TestC3(t *testing.T) {
	t.Parallel()
	d := newDesk(t, "2026-11-15T12:00:00Z")
	d.tenant(`{"zone":"Europe/Istanbul"}`)
	d.quota(`{"tenant":"acme"}`, `{"unit":"month"}`, 100)
	d.tenant(`{"zone":"America/New_York"}`)
	before := d.line("q").span(t, d.now)
	if err := d.c.Delete(t.Context(), catalog.Removal{Kind: catalog.KindRule, ID: "q"}); err != nil {
		t.Fatal(err)
	}
	d.at("2026-11-16T12:00:00Z")
	d.tenant(`{"zone":"America/New_York","name":"changed while there was no rule"}`)
	d.is(d.quota(`{"tenant":"acme"}`, `{"unit":"month"}`, 100), "", "")
	if after := d.line("q").span(t, d.now); after != before {
		t.Errorf("the rule made again counts in %v, want %v", after, before)
	}
}
