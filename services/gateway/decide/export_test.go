package decide

import (
	"time"

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
