package rule

import (
	"fmt"
	"time"
)

// A Miss is one reason why a rule does not apply to a request.
type Miss struct {
	Field   string // of the rule, as it is named in JSON, e.g. match.service
	Message string
}

// Misses returns every reason why the rule does not apply to the request at
// now; none exactly when it Matches.
func (r *Rule) Misses(q *Request, now time.Time) (misses []Miss) {
	add := func(field, format string, args ...any) {
		misses = append(misses, Miss{field, fmt.Sprintf(format, args...)})
	}
	if !r.Enabled {
		add("enabled", "is false")
	}
	if !r.ValidFrom.IsZero() && now.Before(r.ValidFrom) {
		add("valid_from", "is %s, and that lies ahead", r.ValidFrom.Format(time.RFC3339Nano))
	}
	if !r.ValidTo.IsZero() && !now.Before(r.ValidTo) {
		add("valid_to", "is %s, and that is over", r.ValidTo.Format(time.RFC3339Nano))
	}
	m := &r.Match
	for _, s := range []struct{ name, selector, value string }{
		{"tenant", m.Tenant, q.Tenant},
		{"plan", m.Plan, q.Plan},
		{"application", m.Application, q.Application},
		{"user", m.User, q.User},
		{"api_key", m.APIKey, q.APIKey},
		{"service", m.Service, q.Service},
		{"endpoint", m.Endpoint, q.Endpoint},
	} {
		switch {
		case is(s.selector, s.value):
		case s.value == "":
			add("match."+s.name, "is %q, and the request has none", clip(s.selector))
		default:
			add("match."+s.name, "is %q, and the request's is %q", clip(s.selector), clip(s.value))
		}
	}
	switch {
	case len(m.Networks) == 0 || within(m.Networks, q.Address):
	case !q.Address.IsValid():
		add("match.networks", "are set, and the request has no client address")
	default:
		add("match.networks", "do not have %s", q.Address)
	}
	for _, d := range Dimensions {
		if r.Subject.Has(d.Bit) && !d.Bit.owned(q) {
			add("subject", "has %s, and the request has none", d.Name)
		}
	}
	if r.Condition != nil {
		if fault := unmet(r.Condition, q); fault != "" {
			add("condition", "%s", fault)
		}
	}
	return misses
}

// unmet says why a condition does not hold, or nothing.
func unmet(c Condition, q *Request) string {
	if e, ok := c.(interface {
		Evaluate(*Request) (bool, error)
	}); ok {
		if _, err := e.Evaluate(q); err != nil {
			return "cannot be evaluated, so it does not hold: " + err.Error()
		}
	}
	if c.Holds(q) {
		return ""
	}
	return "is false"
}

// Advantage says by what r Beats o: the first selector, in the order of their
// weight, that r has and o has not, e.g. match.tenant; else priority, else id.
// It is empty when r does not beat o.
func (r *Rule) Advantage(o *Rule) string {
	if !r.Beats(o) {
		return ""
	}
	a, b := r.Match.exactness(), o.Match.exactness()
	selectors := [...]string{"api_key", "user", "application", "tenant", "plan", "networks", "endpoint", "service"}
	for i, name := range selectors {
		bit := 1 << (len(selectors) - 1 - i)
		if a&bit != b&bit {
			return "match." + name
		}
	}
	if r.Priority != o.Priority {
		return "priority"
	}
	return "id"
}
