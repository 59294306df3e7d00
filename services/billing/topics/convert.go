package topics

import (
	"strings"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"

	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/rating"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/money"
	"penstock.dev/services/internal/period"
)

// text is a string that PostgreSQL holds: it has no zero character.
func text(s string) string {
	if strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

func micros(us int64) time.Time { return time.UnixMicro(us).UTC() }

// instant is a time that may be absent.
func instant(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return micros(*us)
}

// meter is what an event of the topic says to billing.
func meter(e *usagev1.Event, r *kafka.Record) metering.Event {
	out := metering.Event{
		ID: metering.ID(e.EventID), Decision: metering.ID(e.DecisionID), Stream: metering.ID(e.StreamID), Sequence: e.Sequence,
		Partition: r.Partition, At: micros(e.TS), Arrived: arrived(r, e.TS), Verdict: metering.Verdict(e.Decision.String()), Status: int(e.Status),
		Tenant: text(e.Tenant), Application: text(e.Application), User: text(e.User), APIKey: text(e.APIKey),
		Service: text(e.Service), Endpoint: text(e.Endpoint), Rule: text(e.RuleID), Algorithm: text(e.Algorithm), Cost: e.Cost,
	}
	if len(e.Counters) == 0 {
		return out
	}
	out.Counters = make([]metering.Counter, len(e.Counters))
	for i := range e.Counters {
		c := &e.Counters[i]
		k := metering.Counter{
			Key: text(c.Key), Meter: c.Meter, Rule: text(c.RuleID), Wallet: c.Kind == usagev1.CounterKindWallet, Enforced: c.Mode == usagev1.ModeEnforce,
			Soft: c.Soft, Observed: c.Observed, Limit: c.Limit, Units: c.Units, Consumed: c.Consumed, Refunded: c.Refunded,
		}
		if c.PeriodEnd != 0 {
			k.Start, k.End = micros(c.PeriodStart), micros(c.PeriodEnd)
		}
		out.Counters[i] = k
	}
	return out
}

// arrived is when a record came into the topic. One without a time came when it was
// decided.
func arrived(r *kafka.Record, ts int64) time.Time {
	if r.Timestamp.UnixMilli() <= 0 {
		return micros(ts)
	}
	return r.Timestamp.UTC()
}

// change is what a record of rules.v1 says to billing; false: nothing.
func change(r *rulesv1.Record) (catalog.Change, bool, error) {
	c := catalog.Change{Kind: catalog.Kind(r.Kind), ID: text(r.ID), Version: r.Version, At: micros(r.ChangedAt)}
	var err error
	switch {
	case r.Tenant != nil:
		c.Tenant = tenant(r.Tenant)
	case r.Plan != nil:
		c.Plan, err = plan(r)
	case r.Endpoint != nil:
		e := r.Endpoint
		c.Endpoint = &catalog.Endpoint{Service: e.Service, Method: e.Method, Path: text(e.Path), Cost: e.Cost}
	case r.Rule != nil:
		c.Rule = rule(r.Rule)
	case r.APIKey != nil:
		c.APIKey = &catalog.APIKey{Tenant: r.APIKey.Tenant}
	case r.Wallet != nil:
		c.Wallet = &catalog.Wallet{Tenant: r.Wallet.Tenant, Meter: r.Wallet.Meter, GrantedTotal: r.Wallet.GrantedTotal}
	case r.Grant != nil:
		g := r.Grant
		c.Grant = &catalog.Grant{
			Tenant: g.Tenant, Meter: g.Meter, Units: g.Units, Priority: int(g.Priority), GrantedAt: micros(g.GrantedAt),
			ExpiresAt: instant(g.ExpiresAt), Expired: g.ExpiredUnits, Reason: text(g.Reason),
		}
	default:
		return c, false, nil
	}
	return c, true, err
}

// deletion is what a tombstone says; false: nothing that billing keeps.
func deletion(kind rulesv1.Kind, id string, version int64, at time.Time) (catalog.Change, bool) {
	k := catalog.Kind(kind)
	kept := k == catalog.KindTenant || k == catalog.KindPlan || k == catalog.KindEndpoint || k == catalog.KindRule
	return catalog.Change{Kind: k, ID: id, Version: version, At: at, Deleted: true}, kept
}

func tenant(t *rulesv1.Tenant) *catalog.Tenant {
	out := &catalog.Tenant{Name: text(t.Name), Plan: t.Plan, Zone: t.Zone, Anchor: instant(t.Anchor), Currency: t.Currency}
	for _, f := range t.PreviousPeriods {
		out.Former = append(out.Former, catalog.Former{Zone: f.Zone, Anchor: instant(f.Anchor), Until: micros(f.Until)})
	}
	return out
}

// plan is a plan with its prices. The error is a price that is none: a negative one.
func plan(r *rulesv1.Record) (*rating.Plan, error) {
	p := &rating.Plan{ID: r.ID, Name: text(r.Plan.Name), Version: r.Version, Included: map[string]int64{}, Steps: map[string][]rating.Step{}}
	if f := r.Plan.Fee; f != nil {
		p.Fee, p.Period = money.Amount{Minor: f.Amount, Currency: money.Currency(f.Currency)}, period.Unit(f.Period)
	}
	for _, i := range r.Plan.Included {
		p.Included[i.Meter] = i.Units
	}
	for _, o := range r.Plan.Overage {
		price, err := money.ParsePrice(o.UnitPrice)
		if err != nil {
			return nil, err
		}
		step := rating.Step{Price: price}
		if o.UpTo != nil {
			step.UpTo = *o.UpTo
		}
		p.Steps[o.Meter] = append(p.Steps[o.Meter], step)
	}
	return p, p.Validate()
}

func rule(r *rulesv1.Rule) *catalog.Rule {
	out := &catalog.Rule{
		Name: text(r.Name), Kind: string(r.Kind), Algorithm: string(r.Algorithm), Meter: r.Meter, Window: time.Duration(r.WindowUS) * time.Microsecond,
	}
	if r.Limit != nil {
		out.Limit = *r.Limit
	}
	for _, d := range r.Subject {
		out.Subject = append(out.Subject, string(d))
	}
	for _, t := range r.ThresholdsPercent {
		out.Thresholds = append(out.Thresholds, int(t))
	}
	if r.Period != nil {
		out.Unit, out.Count = period.Unit(r.Period.Unit), int(r.Period.Count)
	}
	return out
}
