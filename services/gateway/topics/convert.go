package topics

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unique"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// What is wrong with a record that was decoded, and what the house does not
// serve.
var (
	errInvalid     = errors.New("invalid")
	errUnsupported = errors.New("not available in this version")
)

// object is the domain's word for what a record holds, nil for kinds that have
// no say in decisions. Its error wraps errInvalid or errUnsupported.
func object(r *rulesv1.Record) (any, error) {
	switch r.Kind { //nolint:exhaustive // the others decide nothing
	case rulesv1.KindTenant:
		return tenant(r.ID, r.Tenant)
	case rulesv1.KindAPIKey:
		return apiKey(r.ID, r.APIKey)
	case rulesv1.KindService:
		return service(r.ID, r.Service), nil
	case rulesv1.KindEndpoint:
		e := r.Endpoint
		return &decide.EndpointDef{
			ID: r.ID, Service: same(e.Service), Method: same(e.Method), Path: e.Path,
			Cost: e.Cost, RefundOn: slices.Clone(e.RefundOn),
		}, nil
	case rulesv1.KindRule:
		return ruleOf(r)
	case rulesv1.KindWallet:
		w := r.Wallet
		return &decide.Wallet{Tenant: w.Tenant, Meter: same(w.Meter), Granted: w.GrantedTotal}, nil
	default:
		return nil, nil
	}
}

func tenant(id string, r *rulesv1.Tenant) (*decide.Tenant, error) {
	t := &decide.Tenant{ID: id, Plan: same(r.Plan), Anchor: instant(r.Anchor)}
	var err error
	if t.Zone, err = zone(r.Zone); err != nil {
		return nil, fmt.Errorf("tenant.zone: %w", err)
	}
	for i, p := range r.PreviousPeriods {
		z, err := zone(p.Zone)
		if err != nil {
			return nil, fmt.Errorf("tenant.previous_periods[%d].zone: %w", i, err)
		}
		t.Previous = append(t.Previous, decide.FormerPeriod{Zone: z, Anchor: instant(p.Anchor), Until: time.UnixMicro(p.Until).UTC()})
	}
	return t, nil
}

func apiKey(id string, r *rulesv1.APIKey) (*decide.Key, error) {
	k := &decide.Key{ID: id, Tenant: r.Tenant, Application: r.Application, User: r.User}
	if len(r.Digest) != len(k.Digest) {
		return nil, fmt.Errorf("%w: api_key.digest has %d bytes, want %d", errInvalid, len(r.Digest), len(k.Digest))
	}
	copy(k.Digest[:], r.Digest)
	return k, nil
}

func service(id string, r *rulesv1.Service) *decide.ServiceDef {
	s := &decide.ServiceDef{
		ID: id, Name: r.Name, Upstream: r.Upstream, Hosts: slices.Clone(r.Hosts),
		PathPrefix: r.PathPrefix, StripPrefix: r.StripPrefix,
		ConnectTimeout:  micros(r.ConnectTimeoutUS),
		ResponseTimeout: micros(r.ResponseTimeoutUS),
		IdleTimeout:     micros(r.IdleTimeoutUS),
	}
	if r.Cors != nil {
		s.CORS = &decide.CORS{AllowedOrigins: slices.Clone(r.Cors.AllowedOrigins)}
	}
	return s
}

// ruleOf is the rule of a record. A part of it that is not served here makes
// the whole rule unsupported: without it the rule would mean something else.
func ruleOf(record *rulesv1.Record) (*rule.Rule, error) {
	r := record.Rule
	v := &rule.Rule{
		ID: record.ID, Name: r.Name, Version: record.Version,
		Enabled: r.Enabled, Mode: constant(r.Mode, rule.Enforce, rule.Shadow),
		Kind: constant(r.Kind, rule.Rate, rule.Quota, rule.Wallet, rule.Block),
		Algorithm: constant(r.Algorithm, rule.NoAlgorithm, rule.GCRA, rule.CalendarQuota, rule.TokenBucket, rule.LeakyBucket,
			rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.OverdraftWallet),
		Meter: same(r.Meter), Window: micros(r.WindowUS), MaxDelay: micros(r.MaxDelayUS), Cost: r.Cost, Soft: r.Soft,
		Wallet:     constant(r.Wallet, rule.NoWallet, rule.Prepaid, rule.Renewable),
		OnFailure:  constant(r.OnFailure, rule.Open, rule.Closed, rule.Local),
		Thresholds: rule.Thresholds{Percent: r.ThresholdsPercent, Left: r.ThresholdsLeft},
		Priority:   r.Priority, ValidFrom: instant(r.ValidFrom), ValidTo: instant(r.ValidTo),
	}
	if r.Limit != nil {
		v.Limit = *r.Limit
	}
	if r.Burst != nil {
		v.Burst = *r.Burst
	}
	if r.Lease != nil {
		v.Lease = &rule.Lease{Units: r.Lease.Units, TTL: micros(r.Lease.TTLUS)}
	}
	if err := complete(v, record); err != nil {
		return nil, err
	}
	if faults := v.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("%w: rule: %w", errInvalid, faults)
	}
	v.Name = "" // nobody asks a gateway
	return v, nil
}

// complete adds to a rule what has parts of its own.
func complete(v *rule.Rule, record *rulesv1.Record) error {
	r := record.Rule
	for _, name := range r.Subject {
		bit, ok := subjects[name]
		if !ok {
			return fmt.Errorf("%w: rule.subject %q", errUnsupported, name)
		}
		v.Subject |= bit
	}
	var err error
	if v.Condition, err = compile(r.Condition); err != nil {
		return err
	}
	if r.Match != nil {
		if v.Match, err = match(r.Match); err != nil {
			return err
		}
	}
	if r.Period != nil {
		if v.Period, err = spec(r.Period); err != nil {
			return fmt.Errorf("rule.period.%w", err)
		}
	}
	if r.PreviousPeriod != nil {
		former, err := spec(r.PreviousPeriod)
		if err != nil {
			return fmt.Errorf("rule.previous_period.%w", err)
		}
		v.Former = &period.Former{Spec: *former, Until: time.UnixMicro(record.ChangedAt).UTC(), End: instant(r.PeriodEffectiveAt)}
		if end := v.Former.End; !end.IsZero() && !v.Former.Until.Before(end) { // the record has changed again since
			v.Former.Until = end.Add(-time.Microsecond)
		}
	}
	return nil
}

var subjects = map[rulesv1.Dimension]rule.Subject{
	rulesv1.DimensionTenant: rule.Tenant, rulesv1.DimensionApplication: rule.Application,
	rulesv1.DimensionUser: rule.User, rulesv1.DimensionAPIKey: rule.APIKey, rulesv1.DimensionIP: rule.IP,
}

func match(r *rulesv1.Match) (rule.Match, error) {
	m := rule.Match{
		Tenant: r.Tenant, Plan: same(r.Plan), Application: r.Application, User: r.User, APIKey: r.APIKey,
		Service: same(r.Service), Endpoint: same(r.Endpoint),
	}
	for i, text := range r.Networks {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return rule.Match{}, fmt.Errorf("%w: rule.match.networks[%d]: %w", errInvalid, i, err)
		}
		m.Networks = append(m.Networks, n)
	}
	return m, nil
}

func spec(r *rulesv1.Period) (*period.Spec, error) {
	s := &period.Spec{
		Unit:  constant(r.Unit, period.Hour, period.Day, period.Week, period.Month, period.Year),
		Count: int(r.Count), Alignment: constant(r.Alignment, period.Calendar, period.Anniversary),
		Anchor: instant(r.Anchor),
	}
	if r.Zone != "" {
		z, err := zone(r.Zone)
		if err != nil {
			return nil, fmt.Errorf("zone: %w", err)
		}
		s.Zone = z
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return s, nil
}

// zone finds a time zone. One that this binary has never heard of may be known
// to a newer one.
func zone(name string) (*time.Location, error) {
	z, err := period.Zone(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsupported, err)
	}
	return z, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// instant is a time of the wire, zero when there is none.
func instant(us *int64) time.Time {
	if us == nil {
		return time.Time{}
	}
	return time.UnixMicro(*us).UTC()
}

// constant is the constant that a symbol of the wire is equal to, so that a
// million rules share its text. A symbol that is none stays what it is, for
// Validate to refuse.
func constant[T, S ~string](symbol S, constants ...T) T {
	for _, c := range constants {
		if string(c) == string(symbol) {
			return c
		}
	}
	return T(symbol)
}

// same is the one copy of a text that many objects hold.
func same(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
