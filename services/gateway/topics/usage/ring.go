package usage

import (
	"sync/atomic"

	"penstock.dev/services/gateway/decide"
)

// ringSize is how many decisions the ring holds at most.
const ringSize = 1024

// A ring holds decisions that are to be told, in the order in which they came.
// Many may put at a time, and one may look and drop. Nobody waits for another.
// It is the bounded queue of Dmitry Vyukov
// (1024cores.net, "Bounded MPMC queue").
type ring struct {
	slots [ringSize]slot
	_     [64]byte      // what everybody writes is apart from what one writes
	put   atomic.Uint64 // so many have a place
	_     [64]byte
	taken atomic.Uint64 // so many were dropped
}

// A slot is the place of one decision in every lap around the ring.
type slot struct {
	turn atomic.Uint64 // twice the lap in which it may be filled, and one more once it is
	told decide.Usage
}

// add puts a copy of told at the end, unless the ring is full.
func (r *ring) add(told *decide.Usage) bool {
	for {
		place := r.put.Load()
		s, free := &r.slots[place%ringSize], place/ringSize*2
		switch turn := s.turn.Load(); {
		case turn < free:
			return false
		case turn == free && r.put.CompareAndSwap(place, place+1):
			s.told = *told
			s.turn.Store(free + 1)
			return true
		}
	}
}

// first is the oldest, nil where there is none, or whoever has its place is
// still filling it. It is good until it is dropped.
func (r *ring) first() *decide.Usage {
	place := r.taken.Load()
	s := &r.slots[place%ringSize]
	if s.turn.Load() != place/ringSize*2+1 {
		return nil
	}
	return &s.told
}

// drop drops the first.
func (r *ring) drop() {
	place := r.taken.Load()
	s := &r.slots[place%ringSize]
	s.told = decide.Usage{} // nothing is kept alive
	s.turn.Store((place/ringSize + 1) * 2)
	r.taken.Store(place + 1)
}

// len is how many there are, those included whose place is being filled.
func (r *ring) len() int {
	taken := r.taken.Load() // first, for it never passes the other
	return int(r.put.Load() - taken)
}
