package catalog

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog/strict"
)

// A Rule is one limit, as it was put.
type Rule struct {
	Name       *string     `json:"name,omitzero"`
	Enabled    *bool       `json:"enabled,omitzero"`
	Mode       *string     `json:"mode,omitzero"`
	Does       *string     `json:"kind,omitzero"` // rule.Kind; the name Kind is the method that every body has
	Algorithm  *string     `json:"algorithm,omitzero"`
	Wallet     *string     `json:"wallet,omitzero"`
	Subject    []string    `json:"subject,omitzero"`
	Match      *Match      `json:"match,omitzero"`
	Condition  *string     `json:"condition,omitzero"`
	Limit      *int64      `json:"limit,omitzero"`
	Window     *string     `json:"window,omitzero"`
	Burst      *int64      `json:"burst,omitzero"`
	Period     *Period     `json:"period,omitzero"`
	Meter      *string     `json:"meter,omitzero"`
	Cost       *int64      `json:"cost,omitzero"`
	OnFailure  *string     `json:"on_failure,omitzero"`
	Thresholds []Threshold `json:"thresholds,omitzero"`
	Priority   *int64      `json:"priority,omitzero"`
	Soft       *bool       `json:"soft,omitzero"`
	MaxDelay   *string     `json:"max_delay,omitzero"`
	Lease      *Lease      `json:"lease,omitzero"`
	ValidFrom  *string     `json:"valid_from,omitzero"`
	ValidTo    *string     `json:"valid_to,omitzero"`
}

// A Match is a rule's selectors.
type Match struct {
	Tenant      *string  `json:"tenant,omitzero"`
	Plan        *string  `json:"plan,omitzero"`
	Application *string  `json:"application,omitzero"`
	User        *string  `json:"user,omitzero"` // need not be catalogued
	APIKey      *string  `json:"api_key,omitzero"`
	Service     *string  `json:"service,omitzero"`
	Endpoint    *string  `json:"endpoint,omitzero"`
	Networks    []string `json:"networks,omitzero"`
}

// A Period is a repeating span of calendar time.
type Period struct {
	Unit      *string `json:"unit,omitzero"`
	Count     *int64  `json:"count,omitzero"`
	Alignment *string `json:"alignment,omitzero"`
	Zone      *string `json:"zone,omitzero"`   // IANA; absent: the tenant's
	Anchor    *string `json:"anchor,omitzero"` // RFC 3339; absent: the tenant's
}

// A Lease is what a gateway may hold of a rate, and spend by itself.
type Lease struct {
	Units *int64  `json:"units,omitzero"`
	TTL   *string `json:"ttl,omitzero"`
}

// Kind is KindRule.
func (*Rule) Kind() Kind { return KindRule }

func (r *Rule) read(o *strict.Object) {
	r.Name, r.Enabled, r.Mode = o.Text("name"), o.Bool("enabled"), o.Text("mode")
	r.Does, r.Algorithm, r.Wallet = o.Text("kind"), o.Text("algorithm"), o.Text("wallet")
	r.Subject, r.Condition = o.Texts("subject"), o.Text("condition")
	if m := o.Object("match"); m != nil {
		r.Match = &Match{
			Tenant: m.Text("tenant"), Plan: m.Text("plan"), Application: m.Text("application"), User: m.Text("user"),
			APIKey: m.Text("api_key"), Service: m.Text("service"), Endpoint: m.Text("endpoint"), Networks: m.Texts("networks"),
		}
		m.Close()
	}
	r.Limit, r.Window, r.Burst = o.Int("limit"), o.Text("window"), o.Int("burst")
	if p := o.Object("period"); p != nil {
		r.Period = &Period{
			Unit: p.Text("unit"), Count: p.Int("count"), Alignment: p.Text("alignment"), Zone: p.Text("zone"), Anchor: p.Text("anchor"),
		}
		p.Close()
	}
	r.Meter, r.Cost, r.OnFailure = o.Text("meter"), o.Int("cost"), o.Text("on_failure")
	if levels := o.Either("thresholds"); levels != nil {
		r.Thresholds = readThresholds(levels)
	}
	r.Priority, r.Soft, r.MaxDelay = o.Int("priority"), o.Bool("soft"), o.Text("max_delay")
	if l := o.Object("lease"); l != nil {
		r.Lease = &Lease{Units: l.Int("units"), TTL: l.Text("ttl")}
		l.Close()
	}
	r.ValidFrom, r.ValidTo = o.Text("valid_from"), o.Text("valid_to")
}

// Refs returns what the selectors name, but for users: they need not be
// catalogued.
func (r *Rule) Refs() []Ref {
	m := r.Match
	if m == nil {
		return nil
	}
	refs := ref(nil, "match.tenant", KindTenant, m.Tenant)
	refs = ref(refs, "match.plan", KindPlan, m.Plan)
	refs = ref(refs, "match.application", KindApplication, m.Application)
	refs = ref(refs, "match.api_key", KindAPIKey, m.APIKey)
	refs = ref(refs, "match.service", KindService, m.Service)
	return ref(refs, "match.endpoint", KindEndpoint, m.Endpoint)
}

// Validate returns every fault.
func (r *Rule) Validate() rule.Faults {
	faults := r.Match.empty()
	out, more := r.Resolve("rule")
	if len(more) == 0 {
		reachable(&faults, &out)
	}
	return once(append(faults, more...))
}

// reachable refuses a max_delay that no request can ever wait: a queue holds
// burst units, which leave it in burst × window ÷ limit.
func reachable(f *rule.Faults, r *rule.Rule) {
	if r.MaxDelay == 0 || r.Limit == 0 || r.Limit == rule.Unlimited || r.Burst == 0 {
		return
	}
	longest := new(big.Rat).SetFrac(
		new(big.Int).Mul(big.NewInt(r.Burst), big.NewInt(int64(r.Window))), big.NewInt(r.Limit)) // ns
	if longest.Cmp(new(big.Rat).SetInt64(int64(r.MaxDelay))) >= 0 {
		return
	}
	holds, _ := longest.Float64()
	room := new(big.Int).Mul(big.NewInt(int64(r.MaxDelay)), big.NewInt(r.Limit))
	room.Add(room, big.NewInt(int64(r.Window)-1)).Div(room, big.NewInt(int64(r.Window))) // rounded up
	f.Add("max_delay", "is %v, and a queue of %d units is empty after %v: that is the longest that a request can wait",
		r.MaxDelay, r.Burst, time.Duration(holds).Round(time.Microsecond))
	f.Add("burst", "is %d, want at least %v for this max_delay", r.Burst, room)
}

// empty refuses selectors that are there and select nothing: a template whose
// variable was empty would make a rule for one a rule for all.
func (m *Match) empty() rule.Faults {
	var f rule.Faults
	if m == nil {
		return f
	}
	for _, s := range []struct {
		field string
		empty bool
	}{
		{"tenant", m.Tenant != nil && *m.Tenant == ""},
		{"plan", m.Plan != nil && *m.Plan == ""},
		{"application", m.Application != nil && *m.Application == ""},
		{"user", m.User != nil && *m.User == ""},
		{"api_key", m.APIKey != nil && *m.APIKey == ""},
		{"service", m.Service != nil && *m.Service == ""},
		{"endpoint", m.Endpoint != nil && *m.Endpoint == ""},
		{"networks", m.Networks != nil && len(m.Networks) == 0},
	} {
		if s.empty {
			f.Add("match."+s.field, "is empty: leave it out to match any")
		}
	}
	return f
}

// Resolve returns the rule with its defaults filled in, and every fault.
func (r *Rule) Resolve(id string) (rule.Rule, rule.Faults) {
	var f rule.Faults
	kind, ok := required(&f, "kind", r.Does)
	if !ok {
		return rule.Rule{}, f
	}
	out := rule.Rule{
		ID: id, Name: Or(r.Name, ""), Enabled: Or(r.Enabled, true),
		Mode: rule.Mode(Or(r.Mode, string(rule.Enforce))), Kind: rule.Kind(kind),
		Meter: Or(r.Meter, "api-calls"), Cost: r.Cost, Soft: Or(r.Soft, false),
		Priority: clamp(Or(r.Priority, 0)),
	}
	out.Algorithm = r.algorithm(&f, out.Kind)
	out.OnFailure = r.onFailure(out.Kind)
	out.Subject = r.subject(&f, out.Kind)
	out.Match = r.match(&f)
	if r.Condition != nil {
		out.Condition = uncompiled(*r.Condition)
	}
	out.Wallet = r.wallet(&f, out.Kind)
	r.capacity(&f, &out)
	if r.MaxDelay != nil {
		out.MaxDelay, _ = duration(&f, "max_delay", *r.MaxDelay)
	}
	out.Period = r.period(&f)
	out.Thresholds = r.thresholds(&f, out.Kind)
	if r.ValidFrom != nil {
		out.ValidFrom = instant(&f, "valid_from", *r.ValidFrom)
	}
	if r.ValidTo != nil {
		out.ValidTo = instant(&f, "valid_to", *r.ValidTo)
	}
	out.Lease = r.lease(&f)
	f = append(f, out.Validate()...)
	return out, once(f)
}

// lease wants both of its parts.
func (r *Rule) lease(f *rule.Faults) *rule.Lease {
	if r.Lease == nil {
		return nil
	}
	units, _ := required(f, "lease.units", r.Lease.Units)
	l := &rule.Lease{Units: units}
	if ttl, ok := required(f, "lease.ttl", r.Lease.TTL); ok {
		l.TTL, _ = duration(f, "lease.ttl", ttl)
	}
	return l
}

// An uncompiled condition is the text of one: who keeps rules does not evaluate
// them. It never holds.
type uncompiled string

// Text is the condition.
func (u uncompiled) Text() string { return string(u) }

// Holds is false: nobody asks.
func (uncompiled) Holds(*rule.Request) bool { return false }

// Compile makes a condition of a text. The error says where the text is wrong.
type Compile func(text string) (rule.Condition, error)

// compiles adds to what is wrong with a body that its condition is no
// condition.
func compiles(compile Compile, body Body, err error) error {
	r, ok := body.(*Rule)
	if !ok || r.Condition == nil || *r.Condition == "" || len(*r.Condition) > rule.MaxCondition {
		return err
	}
	var faults *FaultError
	switch _, fault := compile(*r.Condition); {
	case fault == nil:
		return err
	case errors.As(err, &faults):
		faults.Faults.Add("condition", "%v", fault)
		return err
	default:
		var f rule.Faults
		f.Add("condition", "%v", fault)
		return faultError(ErrInvalid, f)
	}
}

// once keeps the first fault of each field: what follows from it is noise.
func once(f rule.Faults) rule.Faults {
	seen := map[string]bool{}
	return slices.DeleteFunc(f, func(fault rule.Fault) bool {
		again := seen[fault.Field]
		seen[fault.Field] = true
		return again
	})
}

func (r *Rule) algorithm(f *rule.Faults, kind rule.Kind) rule.Algorithm {
	if r.Algorithm != nil {
		return rule.Algorithm(*r.Algorithm)
	}
	switch kind {
	case rule.Quota:
		return rule.CalendarQuota
	case rule.Wallet:
		return rule.OverdraftWallet
	case rule.Block:
		return rule.NoAlgorithm
	case rule.Rate:
		f.Add("algorithm", "is missing")
	}
	return ""
}

// wallet is the mode of a wallet, which has no default: what is prepaid and
// what renews is sold differently.
func (r *Rule) wallet(f *rule.Faults, kind rule.Kind) rule.WalletMode {
	if r.Wallet == nil && kind == rule.Wallet {
		f.Add("wallet", "is missing: want prepaid or renewable")
		return ""
	}
	return rule.WalletMode(Or(r.Wallet, string(rule.NoWallet)))
}

func (r *Rule) onFailure(kind rule.Kind) rule.FailureMode {
	def := rule.Open
	if kind == rule.Quota || kind == rule.Wallet {
		def = rule.Closed
	}
	return rule.FailureMode(Or(r.OnFailure, string(def)))
}

func (r *Rule) subject(f *rule.Faults, kind rule.Kind) rule.Subject {
	if r.Subject == nil && kind != rule.Block {
		f.Add("subject", "is missing; [] is one counter for all")
	}
	var s rule.Subject
	for i, name := range r.Subject {
		at := fmt.Sprintf("subject[%d]", i)
		j := slices.IndexFunc(rule.Dimensions, func(d struct {
			Bit  rule.Subject
			Name string
		},
		) bool {
			return d.Name == name
		})
		switch {
		case j < 0:
			f.Add(at, "is %.64q, want tenant, application, user, api_key or ip", name)
		case s.Has(rule.Dimensions[j].Bit):
			f.Add(at, "is %q, which is there twice", name)
		default:
			s |= rule.Dimensions[j].Bit
		}
	}
	return s
}

func (r *Rule) match(f *rule.Faults) rule.Match {
	m := r.Match
	if m == nil {
		return rule.Match{}
	}
	for _, s := range []struct {
		field string
		id    *string
	}{
		{"match.tenant", m.Tenant},
		{"match.application", m.Application},
		{"match.api_key", m.APIKey},
	} {
		if s.id != nil && *s.id != "" {
			f.ID(s.field, *s.id)
		}
	}
	out := rule.Match{
		Tenant: Or(m.Tenant, ""), Plan: Or(m.Plan, ""), Application: Or(m.Application, ""), User: Or(m.User, ""),
		APIKey: Or(m.APIKey, ""), Service: Or(m.Service, ""), Endpoint: Or(m.Endpoint, ""),
	}
	for _, text := range m.Networks {
		n, _ := netip.ParsePrefix(text) // the zero prefix of an error is a fault of its own
		out.Networks = append(out.Networks, n)
	}
	return out
}

// capacity reads how much passes, and in which window.
func (r *Rule) capacity(f *rule.Faults, out *rule.Rule) {
	switch {
	case out.Kind == rule.Block && r.Limit != nil:
		f.Add("limit", "is set, and a block has none")
	case out.Wallet == rule.Prepaid && r.Limit != nil:
		f.Add("limit", "is set, and a prepaid wallet has what was granted")
	case out.Kind == rule.Block || out.Kind == rule.Wallet && out.Wallet != rule.Renewable:
	case r.Limit == nil:
		f.Add("limit", "is missing")
	}
	out.Limit = Or(r.Limit, 0)
	switch {
	case r.Window == nil && out.Kind == rule.Rate:
		f.Add("window", "is missing")
	case r.Window != nil && out.Kind != rule.Rate:
		f.Add("window", "is set, and only a rate has one")
	case r.Window != nil:
		out.Window, _ = duration(f, "window", *r.Window)
	}
	switch {
	case r.Burst != nil && !out.Algorithm.Bucket():
		f.Add("burst", "is set, and only token_bucket, leaky_bucket and gcra have one")
	case !out.Algorithm.Bucket():
	case r.Burst == nil && out.Limit == rule.Unlimited:
		out.Burst = rule.MaxCapacity // what never refuses needs no more
	default:
		out.Burst = Or(r.Burst, out.Limit)
	}
}

func (r *Rule) period(f *rule.Faults) *period.Spec {
	if r.Period == nil {
		return nil
	}
	spec := r.Period.spec(f)
	return &spec
}

// spec returns the period with its defaults filled in.
func (p *Period) spec(f *rule.Faults) period.Spec {
	spec := period.Spec{
		Unit: period.Unit(Or(p.Unit, "")), Count: int(clamp(Or(p.Count, 1))),
		Alignment: period.Alignment(Or(p.Alignment, string(period.Calendar))),
	}
	if p.Unit == nil {
		f.Add("period.unit", "is missing")
	}
	if p.Zone != nil {
		spec.Zone = zone(f, "period.zone", *p.Zone)
	}
	if p.Anchor != nil {
		spec.Anchor = instant(f, "period.anchor", *p.Anchor)
	}
	return spec
}

// clamp makes an int32 of v that is out of bounds whenever v is.
func clamp(v int64) int32 { return int32(max(-1<<31, min(v, 1<<31-1))) }

// The span of time in which periods may be anchored and rules may begin and
// end. Periods are exact within it.
var (
	firstInstant = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	lastInstant  = time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Instant wants a time in RFC 3339 and whole microseconds, of the years 1970 to
// 2149.
func Instant(f *rule.Faults, field, s string) time.Time { return instant(f, field, s) }

// instant wants a time in RFC 3339 and whole microseconds.
func instant(f *rule.Faults, field, s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	switch {
	case err != nil:
		f.Add(field, "is %.64q, want a time in RFC 3339, e.g. 2026-01-31T10:00:00Z", s)
		return time.Time{}
	case t.Before(firstInstant) || !t.Before(lastInstant):
		f.Add(field, "is %.64q, want the years 1970 to 2149", s)
	case t.Nanosecond()%1000 != 0:
		f.Add(field, "is %.64q, want whole microseconds", s)
	}
	return t.UTC()
}

// duration wants Go's syntax, e.g. 60s.
func duration(f *rule.Faults, field, s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	if err != nil {
		f.Add(field, "is %.64q, want a duration like 60s or 1h30m", s)
		return 0, false
	}
	return d, true
}

// zone wants an IANA time zone that this build knows.
func zone(f *rule.Faults, field, s string) *time.Location {
	const most = 64
	if s == "" || s == "Local" || len(s) > most {
		f.Add(field, "is %.64q, want an IANA time zone of 1 to %d characters, e.g. Europe/Istanbul", s, most)
		return nil
	}
	z, err := period.Zone(s)
	if err != nil {
		f.Add(field, "is %.64q, which is no IANA time zone", s)
		return nil
	}
	return z
}
