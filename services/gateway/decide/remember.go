package decide

import (
	"crypto/sha256"
	"encoding/binary"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// remembers reports whether the request may have been decided before, under
// the client's request id: also when no rule counts it any more.
func (in *inquiry) remembers() bool { return in.query.RequestID != "" && !in.peek }

// remember makes the decision idempotent under the client's request id.
func (in *inquiry) remember(address string) limit.Request {
	r := limit.Request{
		Tenant: in.request.Tenant, ID: in.query.RequestID,
		DecisionID: in.id, Fingerprint: in.query.fingerprint(address), Note: in.note(),
	}
	if r.Tenant == "" {
		r.Address = address
	}
	return r
}

// fingerprint is of what must be the same when a request id comes again: the
// dimensions and the cost as they were asked, not as the catalogue fills them
// in. The client's address is the one that counters name.
func (q *Query) fingerprint(address string) (f [16]byte) {
	b := make([]byte, 0, 256)
	for _, s := range [...]string{q.Tenant, q.Application, q.User, q.APIKey, address, q.Service, q.Method, q.Path} {
		b = appendText(b, s)
	}
	if q.Path == "" {
		b = appendText(b, q.Endpoint)
	}
	if q.Cost != nil {
		b = binary.AppendVarint(b, *q.Cost)
	}
	sum := sha256.Sum256(b)
	copy(f[:], sum[:])
	return f
}

// replayed is the answer that a request id had before, and its receipt. A note
// that cannot be read costs the list of limits and the receipt, not the answer.
func (in *inquiry) replayed(a *limit.Answer) Decision {
	d := in.passed()
	d.ID, d.Replayed, d.Limits = a.DecisionID, true, nil
	n, ok := in.readNote(a.Note)
	if !ok || len(n.charges) != len(a.Results) {
		return d
	}
	limits := make([]Limit, len(n.charges))
	for i := range n.charges {
		c := &n.charges[i]
		limits[i] = c.terms()
		limits[i].said(&a.Results[i])
		if cut := limits[i].Mode == rule.Enforce && !c.Soft; cut {
			d.Delay = max(d.Delay, a.Results[i].Delay)
		}
	}
	d.Cost, d.RulesVersion, d.Limits = n.cost, n.revision, byRule(limits, n.unlimited)
	first := in.receipt(d.ID, a.Decided, n.cost, n.revision, n.ticket, a.Results)
	d.first = &first
	return d
}
