package decide

import (
	"net/netip"
	"slices"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// The statuses of a decision, numbered as HTTP does.
const (
	statusOK           = 200
	statusUnauthorized = 401
	statusForbidden    = 403
	statusTooMany      = 429
	statusUnavailable  = 503
)

// An inquiry is one request on its way to its Decision.
type inquiry struct {
	rules    *Snapshot
	query    *Query
	tenant   *Tenant
	request  rule.Request
	endpoint *EndpointDef // nil: none
	id       [16]byte
	cost     int64
	peek     bool

	winners   []*rule.Rule // the ones that count, by id
	unlimited []*rule.Rule // rates that never refuse: winners that need no counter
	blocking  *rule.Rule   // an enforced block rule, beside which nothing counts
	trying    *rule.Rule   // a block rule in shadow
	room      [8]*rule.Rule

	at      time.Time      // when it was decided, by the store's clock or the best estimate of it
	asked   limit.Decision // what the store was asked last; its charges are the winners'
	said    []Limit        // memory for what each winner says
	results []limit.Result // what it said of them; nil: it did not decide
	charged bool           // it charged something
	paid    time.Time      // when that was charged, by the store's clock
}

// newInquiry looks up what the catalogue adds to a query.
func newInquiry(rules *Snapshot, q *Query, id [16]byte) *inquiry {
	in := new(inquiry)
	in.begin(rules, q, id)
	return in
}

func (in *inquiry) begin(rules *Snapshot, q *Query, id [16]byte) {
	*in = inquiry{rules: rules, query: q, id: id, tenant: rules.tenantOf(q.Tenant), cost: 1}
	in.request = rule.Request{
		Tenant: q.Tenant, Plan: in.tenant.Plan, Application: q.Application, User: q.User, APIKey: q.APIKey,
		Service: q.Service, Endpoint: q.Endpoint, Address: plain(q.Address),
		Method: q.Method, Path: q.Path, Labels: q.Labels,
	}
	if e := rules.endpointOf(q); e != nil {
		in.endpoint = e
		in.request.Endpoint, in.cost = e.ID, e.Cost
		if in.request.Service == "" {
			in.request.Service = e.Service
		}
	}
	if q.Cost != nil {
		in.cost = *q.Cost
		in.peek = in.cost == 0
	}
	in.request.Cost = in.cost
}

// tenantOf is the tenant of a query: one that is not in the catalogue has no
// plan and lives in UTC.
func (s *Snapshot) tenantOf(id string) *Tenant {
	if t := s.Tenant(id); t != nil {
		return t
	}
	return s.stranger
}

// endpointOf is the endpoint of a query, nil when it has none.
func (s *Snapshot) endpointOf(q *Query) *EndpointDef {
	switch {
	case q.Endpoint != "":
		return s.EndpointByID(q.Endpoint)
	case q.Service == "" || q.Path == "":
		return nil
	default:
		return s.Endpoint(q.Service, q.Method, q.Path)
	}
}

// plain is an address as rules write it: IPv4 as such, and without a zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// match finds the rules that apply at now. Block rules count nothing.
func (in *inquiry) match(now time.Time) {
	all := in.rules.winners(in.room[:0], &in.request, now)
	in.winners = all[:0]
	for _, r := range all {
		switch {
		case r.Kind == rule.Rate && r.Limit == rule.Unlimited:
			in.unlimited = append(in.unlimited, r)
		case r.Kind != rule.Block:
			in.winners = append(in.winners, r)
		case r.Mode == rule.Enforce:
			in.blocking = r
		default:
			in.trying = r
		}
	}
	if in.blocking != nil {
		in.winners, in.unlimited = nil, nil
	}
}

// units is what a rule charges for the request.
func (in *inquiry) units(r *rule.Rule) int64 {
	if r.Cost != nil && !in.peek {
		return *r.Cost
	}
	return in.cost
}

// limitOf is how many units a rule sells: of a prepaid wallet, all that was
// granted less what expired.
func (in *inquiry) limitOf(r *rule.Rule) int64 {
	if r.Wallet == rule.Prepaid {
		return in.rules.granted(in.request.Tenant, r.Meter)
	}
	return r.Limit
}

// question is what the store is asked, in the periods that run at a time by its
// clock.
func (in *inquiry) question(at time.Time) limit.Decision {
	if in.asked.Charges == nil {
		in.asked.Charges = make([]limit.Charge, len(in.winners))
	}
	var address string
	if in.remembers() || slices.ContainsFunc(in.winners, func(r *rule.Rule) bool { return r.Subject.Has(rule.IP) }) {
		address = network(in.request.Address)
	}
	for i, r := range in.winners {
		c := &in.asked.Charges[i]
		*c = limit.Charge{} // what follows is not copied
		c.Algorithm, c.Cost, c.Soft = r.Algorithm, in.units(r), r.Soft
		c.Limit, c.Window, c.Burst, c.MaxDelay = in.limitOf(r), r.Window, r.Burst, r.MaxDelay
		id := &c.Counter
		id.Shadow, id.Kind, id.Subject = r.Mode == rule.Shadow, r.Kind, r.Subject
		id.Tenant, id.Application = in.request.Tenant, in.request.Application
		id.User, id.APIKey, id.Address = in.request.User, in.request.APIKey, address
		id.Meter, id.Algorithm, id.Window = r.Meter, r.Algorithm, r.Window
		if scope := r.Scope(); scope != rule.Global {
			id.Service = in.request.Service
			if scope == rule.Endpoint {
				id.Endpoint = in.request.Endpoint
			}
		}
		if r.Period != nil {
			running := in.tenant.running(r, at)
			c.Span = running.Span
			id.Unit, id.Count, id.Start = running.Unit, running.Count, running.Start
		}
		id.Reduce()
	}
	in.asked.Leases = in.leases()
	if in.remembers() {
		in.asked.Request = in.remember(address)
	}
	return in.asked
}

// network is a client's address as counters name it.
func network(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return ""
	case a.Is4():
		return a.String()
	default:
		p, _ := a.Prefix(64)
		return p.String()
	}
}
