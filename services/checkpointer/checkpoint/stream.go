package checkpoint

// maxHoles bounds what is remembered of one stream: of more holes at once the
// oldest is taken for lost.
const maxHoles = 8

// A Stream is how far the events of one gateway's run in one partition were
// counted. What it remembers does not grow with them.
type Stream struct {
	ID    [16]byte
	Next  int64 // the number after the highest
	Holes []Hole
	Lost  int64 // numbers that were given up

	changed bool
	idle    int
}

// A Hole is numbers that were passed over, half-open.
type Hole struct{ From, To int64 }

// see takes in a number and reports whether it was counted before.
func (s *Stream) see(number int64) (repeat bool) {
	s.idle = 0
	if number >= s.Next {
		if number > s.Next {
			s.open(Hole{s.Next, number})
		}
		s.Next, s.changed = number+1, true
		return false
	}
	for i := range s.Holes {
		h := s.Holes[i]
		if number < h.From || number >= h.To {
			continue
		}
		s.changed = true
		s.Holes = append(s.Holes[:i], s.Holes[i+1:]...)
		if h.From < number {
			s.open(Hole{h.From, number})
		}
		if number+1 < h.To {
			s.open(Hole{number + 1, h.To})
		}
		return false
	}
	return true
}

func (s *Stream) open(h Hole) {
	s.Holes = append(s.Holes, h)
	if len(s.Holes) > maxHoles {
		s.Lost += s.Holes[0].To - s.Holes[0].From
		s.Holes = append(s.Holes[:0], s.Holes[1:]...)
	}
}

// Missing is how many numbers have not come.
func (s *Stream) Missing() int64 {
	n := s.Lost
	for _, h := range s.Holes {
		n += h.To - h.From
	}
	return n
}
