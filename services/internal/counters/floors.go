package counters

import (
	"hash/maphash"
	"sync"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// Bounds of floors: 16 × 2 × 16,384 counters, some 56 bytes each, 29 MB.
const (
	floorShards = 16
	floorKeys   = 1 << 14 // of a generation of a shard
)

// floors remember what quotas and wallets were last seen to hold. A store that
// holds less has lost something, and takes over what it is told with the next
// charge. What was not seen for two generations is forgotten. Safe for
// concurrent use; nil remembers nothing.
type floors struct {
	seeds  [2]maphash.Seed
	shards [floorShards]floorShard
}

// A floorShard is a part of floors. New and seen counters are in young; when
// that is full it grows old, and what was old is forgotten.
type floorShard struct {
	mu         sync.Mutex
	young, old map[floorKey]limit.Totals
}

// A floorKey stands for a counter's key: two seeded hashes, for another's floor
// would be charged for good, and keys are long.
type floorKey [2]uint64

func newFloors() *floors {
	return &floors{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
}

// totalled reports whether a charge's counter has totals.
func totalled(c *limit.Charge) bool {
	return c.Counter.Kind == rule.Quota || c.Counter.Kind == rule.Wallet
}

func (f *floors) find(key string) (*floorShard, floorKey) {
	k := floorKey{maphash.String(f.seeds[0], key), maphash.String(f.seeds[1], key)}
	return &f.shards[k[0]%floorShards], k
}

// of is the least that a counter is known to have held.
func (f *floors) of(key string) limit.Totals {
	s, k := f.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, there := s.young[k]; there {
		return t
	}
	return s.old[k]
}

// learn takes in what a counter was seen to hold.
func (f *floors) learn(key string, seen limit.Totals) {
	if seen == (limit.Totals{}) {
		return
	}
	s, k := f.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	known, there := s.young[k]
	if !there {
		known = s.old[k]
		if len(s.young) >= floorKeys {
			s.young, s.old = nil, s.young
		}
		if s.young == nil {
			s.young = make(map[floorKey]limit.Totals)
		}
	}
	s.young[k] = limit.Totals{Consumed: max(known.Consumed, seen.Consumed), Refunded: max(known.Refunded, seen.Refunded)}
}

// fill tells the floors to a decision's charges.
func (f *floors) fill(p *part) {
	if f == nil {
		return
	}
	for i := range p.charges {
		if c := &p.decision.Charges[i]; totalled(c) {
			p.charges[i].raise(f.of(p.charges[i].key))
		}
	}
}

// see takes in an answer.
func (f *floors) see(p *part, a *limit.Answer) {
	if f == nil || a.Replayed || len(a.Results) != len(p.charges) {
		return
	}
	for i := range p.charges {
		if totalled(&p.decision.Charges[i]) {
			f.learn(p.charges[i].key, limit.Totals{Consumed: a.Results[i].Consumed, Refunded: a.Results[i].Refunded})
		}
	}
}
