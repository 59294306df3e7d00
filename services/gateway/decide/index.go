package decide

import (
	"encoding/binary"
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

// A bucket holds the rules whose class and values are equal, at least one. What
// it points to is never changed, only replaced. Nearly all have one rule and no
// network, and what a request needs to know of it to see that it does not matter
// lies beside it: a million rules are in no cache, and each thing that is looked
// at is a wait for memory.
type bucket struct {
	first entry
	rest  *rest // nil: nothing
}

// A rest is what few buckets have.
type rest struct {
	more    []entry
	network netip.Prefix // the zero one: none
	next    *bucket      // another one with the same hash
}

// An entry is a rule in a bucket.
type entry struct {
	rule    *rule.Rule
	group   uint32       // the number of rule.Group
	subject rule.Subject // rule.Subject
	timed   bool         // whether it is valid for a time only
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
	n := mix(salt, uint64(c.exact))
	for i := range selectors {
		if c.exact&(1<<i) != 0 {
			n = mix(n, h[i])
		}
	}
	if c.network {
		a := network.Addr().As16()
		n = mix(mix(n, binary.BigEndian.Uint64(a[:8])), binary.BigEndian.Uint64(a[8:])^uint64(c.bits)<<56)
	}
	return n
}

var salt = hashOf(0)

// mix folds v into h. Its constant is 2^64 divided by the golden ratio.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// holds reports whether the bucket is the one for these values. Only hashes
// have been compared so far.
func (b *bucket) holds(c class, v *values, network netip.Prefix) bool {
	if b.network() != network {
		return false
	}
	own := valuesOf(&b.first.rule.Match)
	for i := range selectors {
		if c.exact&(1<<i) == 0 {
			if own[i] != "" {
				return false
			}
		} else if own[i] != v[i] {
			return false
		}
	}
	return true
}

func (b *bucket) network() netip.Prefix {
	if b.rest == nil {
		return netip.Prefix{}
	}
	return b.rest.network
}

func (b *bucket) more() []entry {
	if b.rest == nil {
		return nil
	}
	return b.rest.more
}

func (b *bucket) next() *bucket {
	if b.rest == nil {
		return nil
	}
	return b.rest.next
}

// at is the rule in the given place, nil when there are no more.
func (b *bucket) at(i int) *entry {
	if i == 0 {
		return &b.first
	}
	if more := b.more(); i <= len(more) {
		return &more[i-1]
	}
	return nil
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
	e := entry{rule: r, group: d.w.join(r.Group()), subject: r.Subject, timed: !r.ValidFrom.IsZero() || !r.ValidTo.IsZero()}
	classify(r, func(c class, network netip.Prefix) {
		at := c.place(&h, network)
		var first *bucket
		if b, ok := d.rules.Get(at); ok {
			first = &b
		}
		d.rules.Set(at, first.with(e, c, &v, network))
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
	d.w.leave(r.Group())
	v := valuesOf(&r.Match)
	h := v.hashes()
	classify(r, func(c class, network netip.Prefix) {
		at := c.place(&h, network)
		b, _ := d.rules.Get(at)
		if left := b.without(r); left == nil {
			d.rules.Delete(at)
		} else {
			d.rules.Set(at, *left)
		}
		if d.w.classes[c]--; d.w.classes[c] == 0 {
			delete(d.w.classes, c)
			d.regrouped = true
		}
	})
}

// A membership is the number of a group and how many rules are in it. Numbers
// are used again: within one snapshot one means one group.
type membership struct {
	number uint32
	rules  int
}

// join returns the number of a group that has one rule more.
func (w *writer) join(g rule.Group) uint32 {
	m, ok := w.groups[g]
	if !ok {
		m.number = uint32(len(w.groups))
		if last := len(w.numbers) - 1; last >= 0 {
			m.number, w.numbers = w.numbers[last], w.numbers[:last]
		}
	}
	m.rules++
	w.groups[g] = m
	return m.number
}

func (w *writer) leave(g rule.Group) {
	m := w.groups[g]
	if m.rules--; m.rules > 0 {
		w.groups[g] = m
		return
	}
	delete(w.groups, g)
	w.numbers = append(w.numbers, m.number)
}

// newBucket leaves out what is not there.
func newBucket(first entry, more []entry, network netip.Prefix, next *bucket) *bucket {
	b := &bucket{first: first}
	if len(more) > 0 || network.IsValid() || next != nil {
		b.rest = &rest{more, network, next}
	}
	return b
}

// with returns a chain like b, which may be nil, that has e in its bucket.
func (b *bucket) with(e entry, c class, v *values, network netip.Prefix) bucket {
	switch {
	case b == nil:
		return *newBucket(e, nil, network, nil)
	case b.holds(c, v, network):
		return *newBucket(b.first, append(slices.Clip(b.more()), e), network, b.next())
	default:
		next := b.next().with(e, c, v, network)
		return *newBucket(b.first, b.more(), b.network(), &next)
	}
}

// without returns a chain like b that has no r, nil when nothing is left.
func (b *bucket) without(r *rule.Rule) *bucket {
	if b == nil {
		return nil
	}
	next, first, more := b.next().without(r), b.first, b.more()
	if at := slices.IndexFunc(more, func(e entry) bool { return e.rule == r }); at >= 0 {
		more = slices.Concat(more[:at], more[at+1:])
	}
	if first.rule == r {
		if len(more) == 0 {
			return next
		}
		first, more = more[0], more[1:]
	}
	return newBucket(first, more, b.network(), next)
}

// listClasses makes the list of classes anew when one came or went. Those that
// win come first, so that the conditions of those that lose are not asked.
func (d *draft) listClasses() {
	if !d.regrouped {
		return
	}
	d.classes = make([]class, 0, len(d.w.classes))
	for c := range d.w.classes {
		d.classes = append(d.classes, c)
	}
	slices.SortFunc(d.classes, func(a, b class) int { return b.exactness() - a.exactness() })
}

// exactness orders classes as rule.Rule.Beats orders rules.
func (c class) exactness() (n int) {
	for _, s := range [...]int{selKey, selUser, selApplication, selTenant, selPlan} {
		n = n<<1 | int(c.exact>>s&1)
	}
	n <<= 1
	if c.network {
		n |= 1
	}
	for _, s := range [...]int{selEndpoint, selService} {
		n = n<<1 | int(c.exact>>s&1)
	}
	return n
}

// winners appends to won the rules that apply to q at now: of every group of
// rules that match, the one that beats the others. The order is by id.
func (s *Snapshot) winners(won []*rule.Rule, q *rule.Request, now time.Time) []*rule.Rule {
	v := values{q.Tenant, q.Plan, q.Application, q.User, q.APIKey, q.Service, q.Endpoint}
	h, present, owns := v.hashes(), v.present(), owned(q)
	var numbers [16]uint32
	groups := numbers[:0]
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
		first, ok := s.rules.Get(c.place(&h, network))
		if !ok {
			continue
		}
		b := &first
		for ; b != nil && !b.holds(c, &v, network); b = b.next() {
		}
		if b == nil {
			continue
		}
		for i := 0; ; i++ {
			e := b.at(i)
			if e == nil {
				break
			}
			if owns.Has(e.subject) && (!e.timed || valid(e.rule, now)) {
				won, groups = contend(won, groups, e, q)
			}
		}
	}
	slices.SortFunc(won, byID)
	return won
}

// contend lets a rule compete with what has won so far. A condition is asked
// last: where its rule loses all the same, it is not.
func contend(won []*rule.Rule, groups []uint32, e *entry, q *rule.Request) ([]*rule.Rule, []uint32) {
	r, at := e.rule, slices.Index(groups, e.group)
	switch {
	case at >= 0 && (r == won[at] || !r.Beats(won[at])):
		return won, groups
	case r.Condition != nil && !r.Condition.Holds(q):
		return won, groups
	case at >= 0:
		won[at] = r
		return won, groups
	default:
		return append(won, r), append(groups, e.group)
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
