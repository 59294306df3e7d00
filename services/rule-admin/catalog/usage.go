package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// A Counting is what a page of usage is made of.
type Counting struct {
	Tenants []*Object                   // in the order of their ids' bytes
	Rules   []*Object                   // quotas and wallets that may count for one of them
	Granted map[string]map[string]int64 // of prepaid wallets: by tenant and meter
}

// Totals reads counters, in order.
type Totals func(ctx context.Context, ids []limit.Identity) ([]limit.Totals, error)

// A Usage is what a tenant has used.
type Usage struct {
	Tenant   string    `json:"tenant"`
	Counters []Counter `json:"counters"`
}

// A Counter is a quota or a wallet of a tenant with what it holds.
type Counter struct {
	Rule *rule.Rule
	At   time.Time // when it was read
	Span period.Span
	limit.Totals
	Limit int64 // of a prepaid wallet, all that was granted
}

// MarshalJSON returns what callers are shown, under the names that decisions
// have.
func (c Counter) MarshalJSON() ([]byte, error) {
	r, m := c.Rule, &c.Rule.Match
	balance := c.Limit - c.Consumed + c.Refunded
	out := struct {
		RuleID       string     `json:"rule_id"`
		Kind         rule.Kind  `json:"kind"`
		Algorithm    string     `json:"algorithm"`
		Wallet       string     `json:"wallet,omitempty"`
		Meter        string     `json:"meter"`
		Mode         rule.Mode  `json:"mode"`
		Soft         bool       `json:"soft"`
		Service      string     `json:"service,omitempty"`
		Endpoint     string     `json:"endpoint,omitempty"`
		Narrowed     bool       `json:"narrowed"`
		Limit        int64      `json:"limit"`
		Consumed     int64      `json:"consumed"`
		Refunded     int64      `json:"refunded"`
		Remaining    int64      `json:"remaining"`
		Balance      *int64     `json:"balance,omitempty"`
		ResetSeconds *int64     `json:"reset_seconds,omitempty"`
		PeriodStart  *time.Time `json:"period_start,omitempty"`
		PeriodEnd    *time.Time `json:"period_end,omitempty"`
	}{
		RuleID: r.ID, Kind: r.Kind, Algorithm: string(r.Algorithm), Meter: r.Meter, Mode: r.Mode, Soft: r.Soft,
		Service: m.Service, Endpoint: m.Endpoint, Narrowed: narrowed(r),
		Limit: c.Limit, Consumed: c.Consumed, Refunded: c.Refunded, Remaining: max(0, balance),
	}
	if r.Kind == rule.Wallet {
		out.Wallet, out.Balance = string(r.Wallet), &balance
	}
	if r.Period != nil {
		seconds := int64((c.Span.End.Sub(c.At) + time.Second - 1) / time.Second)
		out.ResetSeconds, out.PeriodStart, out.PeriodEnd = &seconds, &c.Span.Start, &c.Span.End
	}
	return json.Marshal(out)
}

// narrowed reports whether a rule counts only part of what its scope has.
func narrowed(r *rule.Rule) bool {
	m := &r.Match
	return m.Application != "" || m.User != "" || m.APIKey != "" || len(m.Networks) > 0 || r.Condition != nil
}

// Usage returns what tenants have used at now, at most most of them, in the
// order of their ids' bytes behind the id after: each quota and wallet whose
// counter is the tenant's alone. It asks the store once and the counters once.
func (c *Catalog) Usage(ctx context.Context, after string, most int, now time.Time, totals Totals) ([]Usage, error) {
	if after != "" && !isID(after) {
		return nil, fmt.Errorf("%w: after %q, which is no id", ErrInvalid, clip(after))
	}
	found, err := c.store.Counting(ctx, after, most, "")
	if err != nil {
		return nil, err
	}
	return found.usage(ctx, now, totals)
}

// TenantUsage is Usage of one tenant, or ErrNotFound.
func (c *Catalog) TenantUsage(ctx context.Context, tenant string, now time.Time, totals Totals) (Usage, error) {
	missing := fmt.Errorf("%w: %s %s", ErrNotFound, KindTenant, clip(tenant))
	if !isID(tenant) {
		return Usage{}, missing
	}
	found, err := c.store.Counting(ctx, "", 1, tenant)
	if err != nil {
		return Usage{}, err
	}
	if len(found.Tenants) == 0 {
		return Usage{}, missing
	}
	all, err := found.usage(ctx, now, totals)
	if err != nil {
		return Usage{}, err
	}
	return all[0], nil
}

func (f Counting) usage(ctx context.Context, now time.Time, totals Totals) ([]Usage, error) {
	if totals == nil {
		return nil, fmt.Errorf("%w: this service was started without a counter store (-redis-url)", ErrNoCounters)
	}
	byTenant := map[string][]counting{} // "" are those of all
	for _, o := range f.Rules {
		if r, ok := countingOf(o, now); ok {
			byTenant[r.rule.Match.Tenant] = append(byTenant[r.rule.Match.Tenant], r)
		}
	}
	out := make([]Usage, len(f.Tenants))
	var ids []limit.Identity
	for i, o := range f.Tenants {
		body, _ := o.Body.(*Tenant) // the store keeps kinds apart
		out[i] = Usage{Tenant: o.ID, Counters: []Counter{}}
		home := body.home(o.Kept.Former)
		for _, r := range winning(slices.Concat(byTenant[o.ID], byTenant[""]), Or(body.Plan, "")) {
			counter, id, err := r.counter(o.ID, home, now)
			if err != nil {
				return nil, fmt.Errorf("rule %s of tenant %s: %w", r.rule.ID, o.ID, err)
			}
			if r.rule.Wallet == rule.Prepaid {
				counter.Limit = f.Granted[o.ID][r.rule.Meter]
			}
			out[i].Counters = append(out[i].Counters, counter)
			ids = append(ids, id)
		}
	}
	values, err := totals(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCounters, err)
	}
	for i := range out {
		n := len(out[i].Counters)
		for j := range n {
			out[i].Counters[j].Totals = values[j]
		}
		values = values[n:]
	}
	return out, nil
}

// A counting is a rule that counts for tenants.
type counting struct {
	rule   *rule.Rule
	period RulePeriod
}

// countingOf resolves a rule; ok is false when nothing is counted by it now, or
// not by tenant alone.
func countingOf(o *Object, now time.Time) (c counting, ok bool) {
	body, _ := o.Body.(*Rule) // the store keeps kinds apart
	r, faults := body.Resolve(o.ID)
	if len(faults) > 0 || r.Subject != rule.Tenant || !r.Enabled || r.Kind != rule.Quota && r.Kind != rule.Wallet ||
		!r.ValidFrom.IsZero() && now.Before(r.ValidFrom) || !r.ValidTo.IsZero() && !now.Before(r.ValidTo) {
		return c, false
	}
	c.rule = &r
	if body.Period != nil {
		c.period = RulePeriod{RuleID: o.ID, Period: *body.Period, Previous: o.Kept.Previous, ChangedAt: o.ChangedAt}
	}
	return c, true
}

// winning returns the rules that count for a tenant of a plan, by id: among
// those that select the same traffic of it and compete, the one that wins.
func winning(rules []counting, plan string) []counting {
	type traffic struct {
		group       rule.Group
		application string
		user        string
		key         string
		service     string
		endpoint    string
		networks    string
		condition   string
	}
	best := map[traffic]counting{}
	for _, c := range rules {
		r, m := c.rule, &c.rule.Match
		if m.Plan != "" && m.Plan != plan {
			continue
		}
		t := traffic{
			group: r.Group(), application: m.Application, user: m.User, key: m.APIKey, service: m.Service, endpoint: m.Endpoint,
			networks: fmt.Sprint(m.Networks),
		}
		if r.Condition != nil {
			t.condition = r.Condition.Text()
		}
		if o, ok := best[t]; !ok || r.Beats(o.rule) {
			best[t] = c
		}
	}
	var out []counting
	for _, c := range best {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b counting) int { return strings.Compare(a.rule.ID, b.rule.ID) })
	return out
}

// counter is the rule's counter of a tenant, and its identity.
func (c counting) counter(tenant string, h home, now time.Time) (Counter, limit.Identity, error) {
	r := c.rule
	out := Counter{Rule: r, At: now, Limit: r.Limit}
	id := limit.Identity{
		Shadow: r.Mode == rule.Shadow, Kind: r.Kind, Subject: rule.Tenant, Tenant: tenant, Meter: r.Meter,
		Service: r.Match.Service, Endpoint: r.Match.Endpoint,
	}
	if r.Period != nil {
		running, err := c.period.definition().line(h).Running(now)
		if err != nil {
			return out, id, err
		}
		out.Span = running.Span
		id.Unit, id.Count, id.Start = running.Unit, running.Count, running.Start
	}
	return out, id, nil
}
