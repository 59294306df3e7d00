package decide

import (
	"net/netip"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// Winners exposes the rules that apply to a request, block rules included.
func (s *Snapshot) Winners(q *rule.Request, now time.Time) []*rule.Rule {
	return s.winners(nil, q, now)
}

// Classes is how many buckets a request may have to look into.
func (s *Snapshot) Classes() int { return len(s.classes) }

// Objects is how many objects and tombstones the book remembers.
func (b *Book) Objects() int { return len(b.w.objects) }

// MaxGraves bounds the tombstones among them.
const MaxGraves = maxGraves

// AppendWinners is Winners without the allocation.
func (s *Snapshot) AppendWinners(won []*rule.Rule, q *rule.Request, now time.Time) []*rule.Rule {
	return s.winners(won, q, now)
}

// A Chain is the buckets of rules whose hashes are all equal.
type Chain struct{ first *bucket }

// Add puts a rule in its bucket.
func (c *Chain) Add(r *rule.Rule) {
	v := valuesOf(&r.Match)
	classify(r, func(k class, n netip.Prefix) { b := c.first.with(entry{rule: r}, k, &v, n); c.first = &b })
}

// Remove takes a rule out of its bucket.
func (c *Chain) Remove(r *rule.Rule) { c.first = c.first.without(r) }

// Find returns the rules of the bucket of another rule's selectors.
func (c *Chain) Find(like *rule.Rule) (found []*rule.Rule) {
	v := valuesOf(&like.Match)
	classify(like, func(k class, n netip.Prefix) {
		for b := c.first; b != nil; b = b.next() {
			if b.holds(k, &v, n) {
				for i := 0; b.at(i) != nil; i++ {
					found = append(found, b.at(i).rule)
				}
			}
		}
	})
	return found
}

// MaxLocal bounds what each of two generations of counters in the process
// weighs.
const MaxLocal = maxLocal

// LocalWeight is what they weigh.
func (s *Service) LocalWeight() (weight int) {
	s.local.mu.Lock()
	defer s.local.mu.Unlock()
	for _, generation := range []map[limit.Identity]limit.Value{s.local.newer, s.local.older} {
		for _, v := range generation {
			weight += weigh(&v)
		}
	}
	return weight
}
