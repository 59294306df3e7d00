package decide

import (
	"crypto/sha256"
	"encoding/binary"

	"penstock.dev/services/internal/limit"
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
// in. The client's address counts for anonymous requests only.
func (q *Query) fingerprint(address string) (f [16]byte) {
	b := make([]byte, 0, 256)
	for _, s := range [...]string{q.Tenant, q.Application, q.User, q.APIKey, q.Service, q.Method, q.Path} {
		b = appendText(b, s)
	}
	if q.Path == "" {
		b = appendText(b, q.Endpoint)
	}
	if q.Tenant == "" {
		b = appendText(b, address)
	}
	if q.Cost != nil {
		b = binary.AppendVarint(b, *q.Cost)
	}
	sum := sha256.Sum256(b)
	copy(f[:], sum[:])
	return f
}

// replayed is the answer that a request id had before. A note that cannot be
// read costs the list of limits, not the answer.
func (in *inquiry) replayed(a *limit.Answer) Decision {
	d := in.passed()
	d.ID, d.Replayed = a.DecisionID, true
	n, ok := readNote(a.Note)
	if !ok || len(n.limits) != len(a.Results) {
		return d
	}
	for i := range n.limits {
		n.limits[i].said(&a.Results[i])
	}
	d.Cost, d.RulesVersion, d.Limits = n.cost, n.revision, append(n.limits, d.Limits...)
	return d
}
