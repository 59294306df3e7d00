package decide

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"penstock.dev/services/internal/rule"
)

// Rules lie in buckets by the values of all their exact selectors and by their
// network, so that every rule of a bucket that a request leads to has selectors
// that hold. Which selectors a rule has is its class; a request looks into one
// bucket per class that is in use, which is few (Srinivasan et al., "Packet
// Classification using Tuple Space Search", 1999).

// The exact selectors.
const (
	selTenant = iota
	selPlan
	selApplication
	selUser
	selKey
	selService
	selEndpoint
	selectors
)

// A class is which selectors a rule has.
type class struct {
	exact   uint8 // one bit a selector
	network bool  // and if so,
	v4      bool  // of which family,
	bits    uint8 // and how long
}

// values are the selectors of a rule, or the dimensions of a request that meet
// them.
type values [selectors]string

// A bucket holds the rules whose class and values are equal. Rules is never
// changed, only replaced.
type bucket struct {
	class   class
	network netip.Prefix
	rules   []*rule.Rule // at least one
	next    *bucket      // another one with the same hash
}

func valuesOf(m *rule.Match) values {
	return values{m.Tenant, m.Plan, m.Application, m.User, m.APIKey, m.Service, m.Endpoint}
}

// present is which of the values are there.
func (v *values) present() (exact uint8) {
	for i, s := range v {
		if s != "" {
			exact |= 1 << i
		}
	}
	return exact
}

// hashes are the hashes of the values that are there.
func (v *values) hashes() (h [selectors]uint64) {
	for i, s := range v {
		if s != "" {
			h[i] = maphash.String(seed, s)
		}
	}
	return h
}

// place is where the bucket of a class lies, given the hashes of its values.
func (c class) place(h *[selectors]uint64, network netip.Prefix) uint64 {
	n := mix(1, uint64(c.exact))
	for i := range selectors {
		if c.exact&(1<<i) != 0 {
			n = mix(n, h[i])
		}
	}
	if c.network {
		n = mix(n, hashOf(network))
	}
	return n
}

// mix folds v into h. Its constant is 2^64 divided by the golden ratio.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// holds reports whether the bucket is the one for these values. Only hashes
// have been compared so far.
func (b *bucket) holds(c class, v *values, network netip.Prefix) bool {
	if b.class != c || b.network != network {
		return false
	}
	own := valuesOf(&b.rules[0].Match)
	for i := range selectors {
		if c.exact&(1<<i) != 0 && own[i] != v[i] {
			return false
		}
	}
	return true
}

// classify calls use for every bucket that a rule belongs to: one per network.
func classify(r *rule.Rule, use func(class, netip.Prefix)) {
	v := valuesOf(&r.Match)
	c := class{exact: v.present()}
	if len(r.Match.Networks) == 0 {
		use(c, netip.Prefix{})
		return
	}
	var seen []netip.Prefix
	for _, n := range r.Match.Networks {
		if n = n.Masked(); n.IsValid() && !slices.Contains(seen, n) {
			seen = append(seen, n)
			use(class{c.exact, true, n.Addr().Is4(), uint8(n.Bits())}, n)
		}
	}
}

func (d *draft) addRule(r *rule.Rule) {
	if !r.Enabled {
		return
	}
	d.ruleCount++
	v := valuesOf(&r.Match)
	h := v.hashes()
	classify(r, func(c class, network netip.Prefix) {
		at := c.place(&h, network)
		first, _ := d.rules.Get(at)
		d.rules.Set(at, first.with(r, c, &v, network))
		if d.w.classes[c]++; d.w.classes[c] == 1 {
			d.regrouped = true
		}
	})
}

func (d *draft) removeRule(r *rule.Rule) {
	if !r.Enabled {
		return
	}
	d.ruleCount--
	v := valuesOf(&r.Match)
	h := v.hashes()
	classify(r, func(c class, network netip.Prefix) {
		at := c.place(&h, network)
		first, _ := d.rules.Get(at)
		if first = first.without(r); first == nil {
			d.rules.Delete(at)
		} else {
			d.rules.Set(at, first)
		}
		if d.w.classes[c]--; d.w.classes[c] == 0 {
			delete(d.w.classes, c)
			d.regrouped = true
		}
	})
}

// with returns a chain like b that has r in its bucket.
func (b *bucket) with(r *rule.Rule, c class, v *values, network netip.Prefix) *bucket {
	switch {
	case b == nil:
		return &bucket{c, network, []*rule.Rule{r}, nil}
	case b.holds(c, v, network):
		return &bucket{c, network, append(slices.Clip(b.rules), r), b.next}
	default:
		return &bucket{b.class, b.network, b.rules, b.next.with(r, c, v, network)}
	}
}

// without returns a chain like b that has no r, nil when nothing is left.
func (b *bucket) without(r *rule.Rule) *bucket {
	if b == nil {
		return nil
	}
	rules := b.rules
	if at := slices.Index(rules, r); at >= 0 {
		rules = slices.Concat(rules[:at], rules[at+1:])
	}
	next := b.next.without(r)
	if len(rules) == 0 {
		return next
	}
	return &bucket{b.class, b.network, rules, next}
}

// listClasses makes the list of classes anew when one came or went.
func (d *draft) listClasses() {
	if !d.regrouped {
		return
	}
	d.classes = make([]class, 0, len(d.w.classes))
	for c := range d.w.classes {
		d.classes = append(d.classes, c)
	}
}

// winners appends to won the rules that apply to q at now: of every group of
// rules that match, the one that beats the others. The order is by id.
func (s *Snapshot) winners(won []*rule.Rule, q *rule.Request, now time.Time) []*rule.Rule {
	v := values{q.Tenant, q.Plan, q.Application, q.User, q.APIKey, q.Service, q.Endpoint}
	h, present, owns := v.hashes(), v.present(), owned(q)
	var groups [16]rule.Group
	known := groups[:0]
	for _, c := range s.classes {
		if c.exact&^present != 0 {
			continue
		}
		var network netip.Prefix
		if c.network {
			if !q.Address.IsValid() || q.Address.Is4() != c.v4 {
				continue
			}
			network, _ = q.Address.Prefix(int(c.bits))
		}
		b, _ := s.rules.Get(c.place(&h, network))
		for ; b != nil && !b.holds(c, &v, network); b = b.next {
		}
		if b == nil {
			continue
		}
		for _, r := range b.rules {
			if owns.Has(r.Subject) && valid(r, now) {
				won, known = contend(won, known, r, q)
			}
		}
	}
	slices.SortFunc(won, byID)
	return won
}

// contend lets r compete with what has won so far. A condition is looked at
// last: where r loses all the same, it is not.
func contend(won []*rule.Rule, known []rule.Group, r *rule.Rule, q *rule.Request) ([]*rule.Rule, []rule.Group) {
	g := r.Group()
	at := slices.Index(known, g)
	switch {
	case at >= 0 && (r == won[at] || !r.Beats(won[at])):
		return won, known
	case r.Condition != nil && !r.Condition.Holds(q):
		return won, known
	case at >= 0:
		won[at] = r
		return won, known
	default:
		return append(won, r), append(known, g)
	}
}

func byID(a, b *rule.Rule) int {
	switch {
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	default:
		return 0
	}
}

func valid(r *rule.Rule, now time.Time) bool {
	return (r.ValidFrom.IsZero() || !now.Before(r.ValidFrom)) && (r.ValidTo.IsZero() || now.Before(r.ValidTo))
}

// owned is which dimensions a request has that can own a counter.
func owned(q *rule.Request) (s rule.Subject) {
	for _, d := range [...]struct {
		bit  rule.Subject
		owns bool
	}{
		{rule.Tenant, q.Tenant != ""},
		{rule.Application, q.Application != ""},
		{rule.User, q.User != ""},
		{rule.APIKey, q.APIKey != ""},
		{rule.IP, q.Address.IsValid()},
	} {
		if d.owns {
			s |= d.bit
		}
	}
	return s
}
