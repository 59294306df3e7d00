package metering

import (
	"cmp"
	"slices"
	"time"
)

// A Stream is what is known of one gateway's run in one partition: which numbers came.
type Stream struct {
	ID        ID
	Partition int32
	Next      int64 // the number after the highest seen; 1: none
	LastAt    time.Time
	Holes     []Hole // ascending; numbers below Next that did not come
}

// A Hole is numbers that were passed over, [From, To), and the times of the events
// before and after them: what is missing was decided about then.
type Hole struct {
	From, To int64
	After    time.Time // zero: nothing came before
	Before   time.Time
	Noticed  time.Time // zero: came before counting began, and is not missing
}

// Missing is how many events are.
func (h Hole) Missing() int64 {
	if h.Noticed.IsZero() {
		return 0
	}
	return h.To - h.From
}

// NewStream is a stream of which nothing was seen. Where the topic was not read from its
// beginning, what came before its first event is not missing, and new if it is read after
// all: whole says that it was.
func NewStream(id ID, partition int32, first int64, whole bool) *Stream {
	s := &Stream{ID: id, Partition: partition, Next: 1}
	if !whole && first > 1 {
		s.Next, s.Holes = first, []Hole{{From: 1, To: first}}
	}
	return s
}

// See takes a number, and reports whether it is new: a repeat has no effect.
func (s *Stream) See(number int64, at, now time.Time) bool {
	if number >= s.Next {
		if number > s.Next {
			s.Holes = append(s.Holes, Hole{From: s.Next, To: number, After: s.LastAt, Before: at, Noticed: now})
		}
		s.Next = number + 1
		s.LastAt = at
		return true
	}
	i, in := slices.BinarySearchFunc(s.Holes, number, func(h Hole, n int64) int {
		switch {
		case h.To <= n:
			return -1
		case h.From > n:
			return 1
		}
		return 0
	})
	if !in {
		return false
	}
	h := s.Holes[i]
	var left []Hole
	if h.From < number {
		left = append(left, Hole{From: h.From, To: number, After: h.After, Before: at, Noticed: h.Noticed})
	}
	if number+1 < h.To {
		left = append(left, Hole{From: number + 1, To: h.To, After: at, Before: h.Before, Noticed: h.Noticed})
	}
	s.Holes = slices.Replace(s.Holes, i, i+1, left...)
	return true
}

// Missing is how many numbers are in holes that were noticed before the instant.
func (s *Stream) Missing(before time.Time) (n int64) {
	for _, h := range s.Holes {
		if h.Noticed.Before(before) {
			n += h.Missing()
		}
	}
	return n
}

// SortHoles orders holes as a Stream keeps them.
func SortHoles(holes []Hole) {
	slices.SortFunc(holes, func(a, b Hole) int { return cmp.Compare(a.From, b.From) })
}
