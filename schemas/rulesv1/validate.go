package rulesv1

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"penstock.dev/schemas/internal/check"
	"penstock.dev/schemas/wire"
)

const maxExact = check.MaxExact

const (
	maxWindow   = 31_622_400_000_000 // µs, 366 days
	maxCapacity = 1_000_000_000      // units
	maxPriority = 1_000_000
	maxConnect  = 600_000_000    // µs
	maxResponse = 3_600_000_000  // µs
	maxIdle     = 86_400_000_000 // µs
	maxDelay    = 60_000_000     // µs
	maxLease    = 3_600_000_000  // µs
)

// Validate returns a *wire.FieldError for the first field that breaks the
// bounds of its doc in rules.v1.avsc, or nil. An UNKNOWN symbol breaks them:
// who writes a record says what it means.
func (r *Record) Validate() error {
	if err := r.checkIdentity(); err != nil {
		return err
	}
	if r.Kind == KindUnknown {
		return &wire.FieldError{Field: "kind", Problem: "is UNKNOWN"}
	}
	if field := r.unknownSymbol(); field != "" {
		return &wire.FieldError{Field: field, Problem: "has no known symbol"}
	}
	var c check.Check
	c.Bytes("changed_by", r.ChangedBy, 0, 256)
	c.Items("requires", len(r.Requires), 8)
	for i, name := range r.Requires {
		c.Feature(check.Item("requires", i), name)
	}
	c.Enter(string(r.Kind))
	switch r.Kind {
	case KindTenant:
		r.Tenant.check(&c)
	case KindApplication:
		c.ID("tenant", r.Application.Tenant)
		c.Bytes("name", r.Application.Name, 0, 256)
	case KindUser:
		c.ID("tenant", r.User.Tenant)
		c.Bytes("name", r.User.Name, 0, 256)
	case KindAPIKey:
		r.APIKey.check(&c)
	case KindService:
		r.Service.check(&c)
	case KindEndpoint:
		r.Endpoint.check(&c)
	case KindPlan:
		r.Plan.check(&c)
	case KindRule:
		r.Rule.check(&c)
	case KindWallet:
		r.Wallet.check(&c, r.ID)
	case KindGrant:
		r.Grant.check(&c)
	case KindUnknown:
	}
	return c.Err()
}

// body returns whether the field of kind k is set, and how many kinds' are.
func (r *Record) body(k Kind) (set bool, count int) {
	for _, field := range [...]struct {
		kind Kind
		set  bool
	}{
		{KindTenant, r.Tenant != nil},
		{KindApplication, r.Application != nil},
		{KindUser, r.User != nil},
		{KindAPIKey, r.APIKey != nil},
		{KindService, r.Service != nil},
		{KindEndpoint, r.Endpoint != nil},
		{KindPlan, r.Plan != nil},
		{KindRule, r.Rule != nil},
		{KindWallet, r.Wallet != nil},
		{KindGrant, r.Grant != nil},
	} {
		if field.set {
			count++
			set = set || field.kind == k
		}
	}
	return set, count
}

// checkIdentity checks what must be true even of a record that this reader is
// too old for: it is one object's, and its version and revision count.
func (r *Record) checkIdentity() error {
	var c check.Check
	switch set, count := r.body(r.Kind); {
	case !r.Kind.Known() && r.Kind != KindUnknown:
		c.Fail("kind", "is %.16q, which is no kind", r.Kind)
	case r.Kind == KindUnknown && count > 0, r.Kind != KindUnknown && (!set || count != 1):
		c.Fail("kind", "is %s, want exactly its field set of the %d that are", r.Kind, count)
	}
	checkID(&c, "id", r.Kind, r.ID)
	c.Range("version", r.Version, 1, maxExact)
	c.Range("revision", r.Revision, 1, maxExact)
	c.Micros("changed_at", r.ChangedAt)
	return c.Err()
}

// checkID checks the id of an object of kind, which a key or a record names. The
// ids of newer kinds may be of another form.
func checkID(c *check.Check, field string, kind Kind, id string) {
	switch {
	case kind == KindWallet:
		tenant, meter, _ := strings.Cut(id, ":")
		c.ID(field, tenant)
		c.Meter(field, meter)
	case kind.Known():
		c.ID(field, id)
	default:
		c.Bytes(field, id, 1, 512)
	}
}

// unknownSymbol returns the path of the first field whose symbol this reader
// does not know, or nothing. One that was never set counts.
func (r *Record) unknownSymbol() string {
	if r.Plan != nil && r.Plan.Fee != nil && !r.Plan.Fee.Period.Known() {
		return "plan.fee.period"
	}
	if r.Rule == nil {
		return ""
	}
	u := r.Rule
	switch {
	case !u.Mode.Known():
		return "rule.mode"
	case !u.Kind.Known():
		return "rule.kind"
	case !u.Algorithm.Known():
		return "rule.algorithm"
	case slices.ContainsFunc(u.Subject, func(d Dimension) bool { return !d.Known() }):
		return "rule.subject"
	case !u.Wallet.Known():
		return "rule.wallet"
	case !u.OnFailure.Known():
		return "rule.on_failure"
	case u.Period != nil && !u.Period.Unit.Known():
		return "rule.period.unit"
	case u.Period != nil && !u.Period.Alignment.Known():
		return "rule.period.alignment"
	case u.PreviousPeriod != nil && !u.PreviousPeriod.Unit.Known():
		return "rule.previous_period.unit"
	case u.PreviousPeriod != nil && !u.PreviousPeriod.Alignment.Known():
		return "rule.previous_period.alignment"
	}
	return ""
}

func (t *Tenant) check(c *check.Check) {
	c.Bytes("name", t.Name, 0, 256)
	c.OptionalID("plan", t.Plan)
	c.Zone("zone", t.Zone, 1)
	optionalMicros(c, "anchor", t.Anchor)
	if t.Currency != "" {
		c.Currency("currency", t.Currency)
	}
	c.Items("previous_periods", len(t.PreviousPeriods), 16)
	for i := range t.PreviousPeriods {
		p := &t.PreviousPeriods[i]
		c.EnterItem("previous_periods", i)
		c.Zone("zone", p.Zone, 1)
		optionalMicros(c, "anchor", p.Anchor)
		c.Micros("until", p.Until)
		c.That(i == 0 || p.Until >= t.PreviousPeriods[i-1].Until, "until", "is before the item ahead of it, want oldest first")
		c.Leave()
	}
}

func (k *APIKey) check(c *check.Check) {
	c.ID("tenant", k.Tenant)
	c.OptionalID("application", k.Application)
	c.Bytes("user", k.User, 0, 256)
	if len(k.Digest) != 32 {
		c.Fail("digest", "is %d bytes, want 32", len(k.Digest))
	}
}

func (s *Service) check(c *check.Check) {
	c.Bytes("name", s.Name, 0, 256)
	c.Bytes("upstream", s.Upstream, 1, 2048)
	c.That(strings.HasPrefix(s.Upstream, "http://") || strings.HasPrefix(s.Upstream, "https://"), "upstream", "is neither http nor https")
	c.Items("hosts", len(s.Hosts), 64)
	for i, host := range s.Hosts {
		c.Characters(check.Item("hosts", i), host, 1, 253)
		c.That(host == strings.ToLower(host), check.Item("hosts", i), "is not in lower case")
		port := strings.Contains(host, ":") && !strings.HasSuffix(host, "]") // an IPv6 address is in brackets
		c.That(!port, check.Item("hosts", i), "has a port")
	}
	c.Bytes("path_prefix", s.PathPrefix, 0, 1024)
	c.That(s.PathPrefix == "" || s.PathPrefix[0] == '/', "path_prefix", "does not begin with /")
	if s.Cors != nil {
		c.Enter("cors")
		c.Items("allowed_origins", len(s.Cors.AllowedOrigins), 64)
		for i, origin := range s.Cors.AllowedOrigins {
			c.Bytes(check.Item("allowed_origins", i), origin, 1, 256)
		}
		c.Leave()
	}
	c.Range("connect_timeout_us", s.ConnectTimeoutUS, 0, maxConnect)
	c.Range("response_timeout_us", s.ResponseTimeoutUS, 0, maxResponse)
	c.Range("idle_timeout_us", s.IdleTimeoutUS, 0, maxIdle)
}

func (e *Endpoint) check(c *check.Check) {
	c.ID("service", e.Service)
	c.Characters("method", e.Method, 0, 32)
	c.Bytes("path", e.Path, 1, 1024)
	c.Range("cost", e.Cost, 0, maxExact)
	c.Items("refund_on", len(e.RefundOn), 16)
	for i, outcome := range e.RefundOn {
		c.Characters(check.Item("refund_on", i), outcome, 1, 16)
	}
}

// price is a decimal: 1 to 12 digits and at most 12 after the point.
var price = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,12})?$`)

func (p *Plan) check(c *check.Check) {
	c.Bytes("name", p.Name, 0, 256)
	if p.Fee != nil {
		c.Enter("fee")
		c.Range("amount", p.Fee.Amount, 0, maxExact)
		c.Currency("currency", p.Fee.Currency)
		c.Leave()
	}
	c.Items("included", len(p.Included), 64)
	seen := map[string]bool{}
	for i, in := range p.Included {
		c.EnterItem("included", i)
		c.Meter("meter", in.Meter)
		c.That(!seen[in.Meter], "meter", "is there twice")
		c.Range("units", in.Units, 0, maxExact)
		c.Leave()
		seen[in.Meter] = true
	}
	c.Items("overage", len(p.Overage), 256)
	last := map[string]int64{} // where the meter's steps end so far; -1 for no end
	for i, o := range p.Overage {
		c.EnterItem("overage", i)
		c.Meter("meter", o.Meter)
		c.That(last[o.Meter] >= 0, "meter", "has a step after its last")
		if o.UpTo == nil {
			last[o.Meter] = -1
		} else {
			c.Range("up_to", *o.UpTo, 1, maxExact)
			c.That(*o.UpTo > last[o.Meter], "up_to", "does not rise")
			last[o.Meter] = *o.UpTo
		}
		c.That(price.MatchString(o.UnitPrice), "unit_price", "is no decimal of 1 to 12 digits and at most 12 after the point")
		c.Leave()
	}
}

func (w *Wallet) check(c *check.Check, id string) {
	c.ID("tenant", w.Tenant)
	c.Meter("meter", w.Meter)
	c.That(id == w.Tenant+":"+w.Meter, "tenant", "and meter are not the id's")
	c.Range("granted_total", w.GrantedTotal, 0, maxExact)
}

func (g *Grant) check(c *check.Check) {
	c.ID("tenant", g.Tenant)
	c.Meter("meter", g.Meter)
	c.Range("units", g.Units, 1, maxExact)
	c.Range("priority", int64(g.Priority), -maxPriority, maxPriority)
	c.Micros("granted_at", g.GrantedAt)
	optionalMicros(c, "expires_at", g.ExpiresAt)
	c.Range("expired_units", g.ExpiredUnits, 0, g.Units)
	c.Bytes("reason", g.Reason, 0, 256)
}

func optionalMicros(c *check.Check, name string, v *int64) {
	if v != nil {
		c.Micros(name, *v)
	}
}

func optionalRange(c *check.Check, name string, v *int64, least, most int64) {
	if v != nil {
		c.Range(name, *v, least, most)
	}
}

func checkNetworks(c *check.Check, networks []string) {
	c.Items("networks", len(networks), 256)
	for i, n := range networks {
		c.Characters(check.Item("networks", i), n, 3, 43)
		if _, err := netip.ParsePrefix(n); err != nil {
			c.Fail(check.Item("networks", i), "is no network in CIDR notation")
		}
	}
}
