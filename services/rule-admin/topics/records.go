// Package topics turns changes of the catalogue into records of rules.v1, and
// knows the id that the schema registry gave their schema. It talks to no
// broker: the outbox does, by way of the relay.
package topics

import (
	"fmt"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// Record returns the record of a change: the framed object, or a tombstone.
// The error is catalog.ErrNoSchema while no id is known; a tombstone needs
// none.
func (s *Schema) Record(c catalog.Change, at catalog.Moment) (catalog.Record, error) {
	if c.After == nil {
		return catalog.Record{
			Topic: rulesv1.Topic, Key: rulesv1.Key(rulesv1.Kind(c.Before.Kind), c.Before.ID), Type: string(c.Before.Kind) + ".deleted",
		}, nil
	}
	o := c.After
	r, err := control(o, at)
	if err != nil {
		return catalog.Record{}, fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	return s.framed(&r)
}

// control is the object as rules.v1 says it, defaults filled in.
func control(o *catalog.Object, at catalog.Moment) (rulesv1.Record, error) {
	r := rulesv1.Record{
		Kind: rulesv1.Kind(o.Kind), ID: o.ID, Version: o.Version, Revision: at.Revision,
		ChangedAt: o.ChangedAt.UnixMicro(), ChangedBy: o.ChangedBy, Requires: []string{},
	}
	switch b := o.Body.(type) {
	case *catalog.Tenant:
		r.Tenant = tenant(b, o.Kept)
	case *catalog.Application:
		r.Application = &rulesv1.Application{Tenant: catalog.Or(b.Tenant, ""), Name: catalog.Or(b.Name, "")}
	case *catalog.User:
		r.User = &rulesv1.User{Tenant: catalog.Or(b.Tenant, ""), Name: catalog.Or(b.Name, "")}
	case *catalog.APIKey:
		r.APIKey = &rulesv1.APIKey{
			Tenant: catalog.Or(b.Tenant, ""), Application: catalog.Or(b.Application, ""), User: catalog.Or(b.User, ""),
			Digest: o.Kept.Digest,
		}
	case *catalog.Service:
		r.Service = service(b)
	case *catalog.Endpoint:
		r.Endpoint = &rulesv1.Endpoint{
			Service: catalog.Or(b.Service, ""), Method: catalog.Or(b.Method, ""), Path: catalog.Or(b.Path, ""),
			Cost: catalog.Or(b.Cost, 1), RefundOn: b.RefundOn,
		}
	case *catalog.Plan:
		r.Plan = plan(b)
	case *catalog.Rule:
		var err error
		r.Rule, err = ruleRecord(o.ID, b, o.Kept)
		return r, err
	}
	return r, nil
}

func tenant(b *catalog.Tenant, kept catalog.Kept) *rulesv1.Tenant {
	t := &rulesv1.Tenant{
		Name: catalog.Or(b.Name, ""), Plan: catalog.Or(b.Plan, ""), Zone: catalog.Or(b.Zone, "UTC"),
		Anchor: parsed(b.Anchor), Currency: catalog.Or(b.Currency, ""),
	}
	for _, p := range kept.Former {
		t.PreviousPeriods = append(t.PreviousPeriods, rulesv1.FormerPeriod{Zone: p.Zone, Anchor: micros(p.Anchor), Until: p.Until.UnixMicro()})
	}
	return t
}

func service(b *catalog.Service) *rulesv1.Service {
	s := &rulesv1.Service{
		Name: catalog.Or(b.Name, ""), Upstream: catalog.Or(b.Upstream, ""), Hosts: b.Hosts,
		PathPrefix: catalog.Or(b.PathPrefix, ""), StripPrefix: catalog.Or(b.StripPrefix, false),
		ConnectTimeoutUS:  catalog.Timeout(b.ConnectTimeout).Microseconds(),
		ResponseTimeoutUS: catalog.Timeout(b.ResponseTimeout).Microseconds(),
		IdleTimeoutUS:     catalog.Timeout(b.IdleTimeout).Microseconds(),
	}
	if b.CORS != nil {
		s.Cors = &rulesv1.Cors{AllowedOrigins: b.CORS.AllowedOrigins}
	}
	return s
}

func plan(b *catalog.Plan) *rulesv1.Plan {
	p := &rulesv1.Plan{Name: catalog.Or(b.Name, "")}
	if b.Fee != nil {
		p.Fee = &rulesv1.Fee{
			Amount: catalog.Or(b.Fee.Amount, 0), Currency: catalog.Or(b.Fee.Currency, ""), Period: rulesv1.PeriodUnit(catalog.Or(b.Fee.Period, "")),
		}
	}
	for _, meter := range b.Meters() {
		p.Included = append(p.Included, rulesv1.Included{Meter: meter, Units: b.Included[meter]})
	}
	for _, o := range b.Overage {
		p.Overage = append(p.Overage, rulesv1.Overage{Meter: catalog.Or(o.Meter, ""), UpTo: o.UpTo, UnitPrice: catalog.Or(o.UnitPrice, "")})
	}
	return p
}

func ruleRecord(id string, b *catalog.Rule, kept catalog.Kept) (*rulesv1.Rule, error) {
	v, faults := b.Resolve(id)
	if len(faults) > 0 {
		return nil, faults
	}
	r := &rulesv1.Rule{
		Name: v.Name, Enabled: v.Enabled, Mode: rulesv1.Mode(v.Mode), Kind: rulesv1.RuleKind(v.Kind), Algorithm: rulesv1.Algorithm(v.Algorithm),
		Subject: subject(v.Subject), Match: match(v.Match), WindowUS: v.Window.Microseconds(), MaxDelayUS: v.MaxDelay.Microseconds(),
		Condition: catalog.Or(b.Condition, ""), Wallet: rulesv1.WalletMode(v.Wallet),
		Meter: v.Meter, Cost: v.Cost, OnFailure: rulesv1.OnFailure(v.OnFailure),
		ThresholdsPercent: v.Thresholds.Percent, ThresholdsLeft: v.Thresholds.Left,
		Priority: v.Priority, Soft: v.Soft, ValidFrom: micros(v.ValidFrom), ValidTo: micros(v.ValidTo),
	}
	if v.Kind != rule.Block && v.Wallet != rule.Prepaid {
		r.Limit = &v.Limit
	}
	if v.Algorithm.Bucket() {
		r.Burst = &v.Burst
	}
	if l := v.Lease; l != nil {
		r.Lease = &rulesv1.Lease{Units: l.Units, TTLUS: l.TTL.Microseconds()}
	}
	if b.Period != nil {
		r.Period = periodRecord(b.Period)
	}
	if p := kept.Previous; p != nil {
		r.PreviousPeriod, r.PeriodEffectiveAt = periodRecord(&p.Period), micros(p.End)
	}
	return r, nil
}

func subject(s rule.Subject) []rulesv1.Dimension {
	out := []rulesv1.Dimension{}
	for _, name := range s.Names() {
		out = append(out, rulesv1.Dimension(name))
	}
	return out
}

func match(m rule.Match) *rulesv1.Match {
	out := &rulesv1.Match{
		Tenant: m.Tenant, Plan: m.Plan, Application: m.Application, User: m.User, APIKey: m.APIKey, Service: m.Service, Endpoint: m.Endpoint,
	}
	for _, n := range m.Networks {
		out.Networks = append(out.Networks, n.String())
	}
	return out
}

func periodRecord(p *catalog.Period) *rulesv1.Period {
	return &rulesv1.Period{
		Unit: rulesv1.PeriodUnit(catalog.Or(p.Unit, "")), Count: int32(catalog.Or(p.Count, 1)),
		Alignment: rulesv1.Alignment(catalog.Or(p.Alignment, string(rulesv1.AlignmentCalendar))),
		Zone:      catalog.Or(p.Zone, ""), Anchor: parsed(p.Anchor),
	}
}

// parsed is a time that catalog accepted, or nil.
func parsed(s *string) *int64 {
	if s == nil {
		return nil
	}
	t, err := time.Parse(time.RFC3339, *s)
	if err != nil {
		return nil
	}
	return micros(t)
}

// micros is nil for the zero time.
func micros(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	us := t.UnixMicro()
	return &us
}
