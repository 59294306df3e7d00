package topics

import (
	"sync"
	"time"
)

const (
	// maxHoles bounds what is remembered of one stream: more holes at once are
	// taken for lost, the oldest first.
	maxHoles = 8
	// maxStreams bounds the streams remembered of one partition. A stream is a
	// gateway's run.
	maxStreams = 10_000
	// settle is how long a hole may stay open before its numbers count as lost. A
	// gateway sends in order, so a hole that closes at all closes soon.
	settle = time.Minute
	// idle is how long a stream is remembered after its last event.
	idle = 24 * time.Hour
)

// streams finds repeats and gaps in the numbers that gateways give their events,
// in memory that does not grow with the events. A stream lies in one partition.
// It is safe for concurrent use.
//
// Of a stream that is met for the first time nothing is known to be missing: a
// partition is taken over wherever the group has got to.
type streams struct {
	mu         sync.Mutex
	partitions map[int32]map[[16]byte]*stream
	open       map[*stream]bool // those with holes
	missing    int64            // numbers in all holes
}

// A stream is what has been seen of one.
type stream struct {
	next  int64 // the number after the highest seen
	seen  time.Time
	holes []hole // ascending, at most maxHoles
}

// A hole is numbers that were passed over.
type hole struct {
	from, to int64 // half-open
	since    time.Time
}

func newStreams() *streams {
	return &streams{partitions: map[int32]map[[16]byte]*stream{}, open: map[*stream]bool{}}
}

// see takes a number. It reports whether it was seen before, and how many others
// are given up for want of room.
func (s *streams) see(partition int32, id [16]byte, number int64, now time.Time) (repeat bool, lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.partitions[partition]
	if of == nil {
		of = map[[16]byte]*stream{}
		s.partitions[partition] = of
	}
	st := of[id]
	if st == nil {
		lost = s.makeRoom(of)
		of[id] = &stream{next: number + 1, seen: now}
		return false, lost
	}
	st.seen = now
	switch {
	case number == st.next:
		st.next++
	case number > st.next:
		lost = s.add(st, len(st.holes), hole{st.next, number, now})
		st.next = number + 1
	default:
		return s.fill(st, number)
	}
	return false, lost
}

// add puts a hole at index i, and gives up the oldest when there are too many.
func (s *streams) add(st *stream, i int, h hole) (lost int64) {
	st.holes = append(st.holes, hole{})
	copy(st.holes[i+1:], st.holes[i:])
	st.holes[i] = h
	s.missing += h.to - h.from
	s.open[st] = true
	if len(st.holes) > maxHoles {
		lost = s.drop(st, 0)
	}
	return lost
}

// drop forgets a hole and returns its size.
func (s *streams) drop(st *stream, i int) int64 {
	size := st.holes[i].to - st.holes[i].from
	st.holes = append(st.holes[:i], st.holes[i+1:]...)
	s.missing -= size
	if len(st.holes) == 0 {
		delete(s.open, st)
	}
	return size
}

// fill takes a number below the highest: it closes part of a hole, or repeats.
func (s *streams) fill(st *stream, number int64) (repeat bool, lost int64) {
	for i := range st.holes {
		h := &st.holes[i]
		if number < h.from || number >= h.to {
			continue
		}
		s.missing--
		before, after := hole{h.from, number, h.since}, hole{number + 1, h.to, h.since}
		switch {
		case before.from < before.to && after.from < after.to:
			*h = before
			s.missing -= after.to - after.from // add counts it again
			return false, s.add(st, i+1, after)
		case before.from < before.to:
			*h = before
		case after.from < after.to:
			*h = after
		default:
			h.to = h.from
			s.drop(st, i)
		}
		return false, 0
	}
	return true, 0
}

// settle gives up the holes that have been open for too long, and forgets streams
// of which nothing has come for a day. It returns how many numbers are lost.
func (s *streams) settle(now time.Time) (lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.open {
		for i := len(st.holes) - 1; i >= 0; i-- {
			if now.Sub(st.holes[i].since) >= settle {
				lost += s.drop(st, i)
			}
		}
	}
	for _, of := range s.partitions {
		for id, st := range of {
			if now.Sub(st.seen) >= idle {
				lost += s.forget(of, id, st)
			}
		}
	}
	return lost
}

// makeRoom forgets the stream that was silent longest when there are too many.
func (s *streams) makeRoom(of map[[16]byte]*stream) (lost int64) {
	if len(of) < maxStreams {
		return 0
	}
	var oldest [16]byte
	var found *stream
	for id, st := range of {
		if found == nil || st.seen.Before(found.seen) {
			oldest, found = id, st
		}
	}
	return s.forget(of, oldest, found)
}

// forget drops a stream and returns how many numbers were missing of it.
func (s *streams) forget(of map[[16]byte]*stream, id [16]byte, st *stream) (lost int64) {
	for len(st.holes) > 0 {
		lost += s.drop(st, len(st.holes)-1)
	}
	delete(of, id)
	return lost
}

// revoke forgets a partition, which somebody else reads now, and returns how many
// numbers were missing in it: nobody will know when they come.
func (s *streams) revoke(partition int32) (lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.partitions[partition]
	for id, st := range of {
		lost += s.forget(of, id, st)
	}
	delete(s.partitions, partition)
	return lost
}

// missingNow is how many numbers are passed over and not given up.
func (s *streams) missingNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing
}
