package catalog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/catalog/catalogtest"
)

// reader answers for counters by what they count, and notes how often it was
// asked.
type reader struct {
	asked int
	names []string
}

func name(id limit.Identity) string {
	parts := []string{string(id.Kind), id.Tenant, id.Meter, id.Service, id.Endpoint, string(id.Unit)}
	if !id.Start.IsZero() {
		parts = append(parts, id.Start.UTC().Format("2006-01-02T15Z"))
	}
	if id.Shadow {
		parts = append(parts, "shadow")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

func (r *reader) totals(_ context.Context, ids []limit.Identity) ([]limit.Totals, error) {
	r.asked++
	out := make([]limit.Totals, len(ids))
	for i, id := range ids {
		r.names = append(r.names, name(id))
		out[i] = limit.Totals{Consumed: int64(10 * (i + 1)), Refunded: int64(i)}
	}
	return out, nil
}

// TestUsageCounters guarantees which counters a tenant is shown: each quota and
// wallet that is its own and holds now, once, in the period that runs by its
// zone; and that the counters are those that gateways charge.
func TestUsageCounters(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		rules map[string]string
		want  []string // rule, and its counter
	}{
		{"none", nil, nil},
		{
			"the tenant's zone begins its periods",
			map[string]string{"day": `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"day"}}`},
			[]string{"day: quota tokyo api-calls day 2026-11-14T15Z"},
		},
		{
			"a rule's own zone goes before",
			map[string]string{"day": `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"day","zone":"UTC"}}`},
			[]string{"day: quota tokyo api-calls day 2026-11-15T00Z"},
		},
		{
			"wallets of both sorts",
			map[string]string{
				"prepaid": `{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"meter":"credits"}`,
				"monthly": `{"kind":"wallet","wallet":"renewable","subject":["tenant"],"limit":5,"period":{"unit":"month"}}`,
			},
			[]string{"monthly: wallet tokyo api-calls month 2026-10-31T15Z", "prepaid: wallet tokyo credits"},
		},
		{
			"one of those that compete, the more specific",
			map[string]string{
				"all":  `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"month"}}`,
				"own":  `{"kind":"quota","subject":["tenant"],"match":{"tenant":"tokyo"},"limit":9,"period":{"unit":"month"}}`,
				"year": `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"year"}}`,
			},
			[]string{"own: quota tokyo api-calls month 2026-10-31T15Z", "year: quota tokyo api-calls year 2025-12-31T15Z"},
		},
		{
			"those of a service and of shadow beside the others",
			map[string]string{
				"all":     `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"hour"}}`,
				"service": `{"kind":"quota","subject":["tenant"],"match":{"service":"payments"},"limit":5,"period":{"unit":"hour"}}`,
				"shadow":  `{"kind":"quota","subject":["tenant"],"limit":1,"period":{"unit":"hour"},"mode":"shadow"}`,
			},
			[]string{
				"all: quota tokyo api-calls hour 2026-11-15T12Z", "service: quota tokyo api-calls payments hour 2026-11-15T12Z",
				"shadow: quota tokyo api-calls hour 2026-11-15T12Z shadow",
			},
		},
		{
			"nothing that does not hold, counts otherwise, or is another's",
			map[string]string{
				"off":    `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"hour"},"enabled":false}`,
				"over":   `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"hour"},"valid_to":"2026-11-15T12:00:00Z"}`,
				"ahead":  `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"hour"},"valid_from":"2026-11-15T12:00:00.000001Z"}`,
				"users":  `{"kind":"quota","subject":["tenant","user"],"limit":5,"period":{"unit":"hour"}}`,
				"rate":   `{"kind":"rate","algorithm":"gcra","subject":["tenant"],"limit":5,"window":"1s"}`,
				"theirs": `{"kind":"quota","subject":["tenant"],"match":{"tenant":"acme"},"limit":5,"period":{"unit":"hour"}}`,
				"plan":   `{"kind":"quota","subject":["tenant"],"match":{"plan":"gold"},"limit":5,"period":{"unit":"hour"}}`,
			},
			nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := seeded(t)
			catalogtest.Put(t, c, catalog.KindTenant, "tokyo", `{"zone":"Asia/Tokyo"}`, catalog.Condition{})
			for id, text := range tt.rules {
				catalogtest.Put(t, c, catalog.KindRule, id, text, catalog.Condition{})
			}
			var r reader
			u, err := c.TenantUsage(t.Context(), "tokyo", t0, r.totals)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, counter := range u.Counters {
				got = append(got, counter.Rule.ID+": "+r.names[i])
				if counter.Consumed != int64(10*(i+1)) || counter.Refunded != int64(i) {
					t.Errorf("%s has %+v, want what its counter says", counter.Rule.ID, counter.Totals)
				}
			}
			if !slices.Equal(got, tt.want) || r.asked != 1 {
				t.Errorf("counters %q in %d questions, want %q in one", got, r.asked, tt.want)
			}
		})
	}
}

// TestUsageShown guarantees the names and the arithmetic of what callers see.
func TestUsageShown(t *testing.T) {
	t.Parallel()
	c, store := seeded(t)
	catalogtest.Put(t, c, catalog.KindRule, "credits",
		`{"kind":"wallet","wallet":"prepaid","subject":["tenant"],"match":{"tenant":"acme"},"meter":"credits","condition":"cost > 1"}`, catalog.Condition{})
	store.Grant("acme", "credits", 15)
	var r reader
	u, err := c.TenantUsage(t.Context(), "acme", t0, r.totals)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"tenant":"acme","counters":[` +
		`{"rule_id":"acme-month","kind":"quota","algorithm":"quota","meter":"api-calls","mode":"enforce","soft":false,"narrowed":false,` +
		`"limit":1000,"consumed":10,"refunded":0,"remaining":990,"reset_seconds":1328400,"period_start":"2026-10-31T21:00:00Z","period_end":"2026-11-30T21:00:00Z"},` +
		`{"rule_id":"credits","kind":"wallet","algorithm":"overdraft_wallet","wallet":"prepaid","meter":"credits","mode":"enforce","soft":false,"narrowed":true,` +
		`"limit":15,"consumed":20,"refunded":1,"remaining":0,"balance":-4}]}`
	if string(text) != want {
		t.Errorf("shown\n%s, want\n%s", text, want)
	}
}

// TestUsageKeepsAPromisedPeriod guarantees that usage is that of the period which
// runs, and not of one in the zone that was put a moment ago.
func TestUsageKeepsAPromisedPeriod(t *testing.T) {
	t.Parallel()
	c, _ := seeded(t)
	catalogtest.Put(t, c, catalog.KindRule, "day", `{"kind":"quota","subject":["tenant"],"limit":5,"period":{"unit":"day"}}`, catalog.Condition{})
	catalogtest.Put(t, c, catalog.KindTenant, "globex", `{"zone":"Asia/Tokyo"}`, catalogtest.Any)
	var r reader
	if _, err := c.TenantUsage(t.Context(), "globex", t0, r.totals); err != nil || !slices.Equal(r.names, []string{"quota globex api-calls day 2026-11-15T00Z"}) {
		t.Errorf("reads %q, %v, want the day that began in UTC", r.names, err)
	}
}

// TestUsagePages guarantees that pages have every tenant once, in order, also
// those without counters, and that a page asks the counters once.
func TestUsagePages(t *testing.T) {
	t.Parallel()
	c, _ := seeded(t)
	for i := range 7 {
		catalogtest.Put(t, c, catalog.KindTenant, fmt.Sprintf("t%d", i), `{}`, catalog.Condition{})
		catalogtest.Put(t, c, catalog.KindRule, fmt.Sprintf("t%d-day", i),
			fmt.Sprintf(`{"kind":"quota","subject":["tenant"],"match":{"tenant":"t%d"},"limit":5,"period":{"unit":"day"}}`, i), catalog.Condition{})
	}
	var got []string
	pages := 0
	for after := ""; ; pages++ {
		var r reader
		page, err := c.Usage(t.Context(), after, 4, t0, r.totals)
		if err != nil {
			t.Fatal(err)
		}
		if r.asked != 1 {
			t.Errorf("a page asked the counters %d times", r.asked)
		}
		if len(page) == 0 {
			break
		}
		for _, u := range page {
			got = append(got, u.Tenant)
			if u.Counters == nil {
				t.Errorf("%s has null for counters", u.Tenant)
			}
			for _, counter := range u.Counters {
				if place := counter.Refunded; r.names[place] != name(limit.Identity{
					Kind: counter.Rule.Kind, Tenant: u.Tenant, Meter: counter.Rule.Meter, Unit: counter.Rule.Period.Unit, Start: counter.Span.Start,
				}) {
					t.Errorf("%s has for its %s what %s holds", u.Tenant, counter.Rule.ID, r.names[place])
				}
			}
		}
		after = got[len(got)-1]
	}
	if want := []string{"acme", "globex", "t0", "t1", "t2", "t3", "t4", "t5", "t6"}; !slices.Equal(got, want) || pages != 3 {
		t.Errorf("%d pages of %q, want 3 of %q", pages, got, want)
	}
}

// TestUsageRefused guarantees what usage answers without counters, and for who
// is not there.
func TestUsageRefused(t *testing.T) {
	t.Parallel()
	c, store := seeded(t)
	away := errors.New("connection refused")
	broken := func(context.Context, []limit.Identity) ([]limit.Totals, error) { return nil, away }
	var r reader
	for _, tt := range []struct {
		name   string
		tenant string
		totals catalog.Totals
		want   []error
		says   string
	}{
		{"no counter store", "acme", nil, []error{catalog.ErrNoCounters}, "-redis-url"},
		{"one that is away", "acme", broken, []error{catalog.ErrNoCounters, away}, ""},
		{"nobody", "nobody", r.totals, []error{catalog.ErrNotFound}, "nobody"},
		{"nobody who could be", "no/body", r.totals, []error{catalog.ErrNotFound}, ""},
	} {
		_, err := c.TenantUsage(t.Context(), tt.tenant, t0, tt.totals)
		for _, want := range tt.want {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %v and %q", tt.name, err, want, tt.says)
			}
		}
	}
	if _, err := c.Usage(t.Context(), "no/body", 1, t0, r.totals); !errors.Is(err, catalog.ErrInvalid) {
		t.Errorf("a page behind what is no id: %v", err)
	}
	store.Fail(catalog.ErrUnavailable)
	if _, err := c.Usage(t.Context(), "", 1, t0, r.totals); !errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("without a store: %v", err)
	}
}
