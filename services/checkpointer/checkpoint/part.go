package checkpoint

import (
	"maps"
	"slices"
)

// A Part is what is known of one partition of usage.v1: how far it was read, and
// what that has come to since it was saved last. It is not safe for concurrent use.
type Part struct {
	Partition int32
	Stored    int64 // offset up to which the books contain it
	Next      int64 // and up to which this does
	Hole      bool  // the topic did not go on at Stored: something that it told is not known
	Changes   map[string]*Counter
	Made      []Correction
	Streams   map[[16]byte]*Stream
}

// NewPart returns a part that is contained up to stored, with the streams that
// were met in it by then.
func NewPart(partition int32, stored int64, streams map[[16]byte]*Stream) *Part {
	if streams == nil {
		streams = map[[16]byte]*Stream{}
	}
	return &Part{Partition: partition, Stored: stored, Next: stored, Changes: map[string]*Counter{}, Streams: streams}
}

// Take takes in an event, unless the part contains it. A repeat under another
// offset changes nothing but what the totals say, which is right.
func (p *Part) Take(e *Event) {
	if e.Offset < p.Next {
		return
	}
	p.Next = e.Offset + 1
	s := p.Streams[e.Stream]
	if s == nil {
		s = &Stream{ID: e.Stream, Next: e.Sequence}
		p.Streams[e.Stream] = s
	}
	repeat := s.see(e.Sequence)
	for i := range e.Charges {
		c := &e.Charges[i]
		known := p.Changes[c.Key]
		if known == nil {
			known = &Counter{Key: c.Key}
			p.Changes[c.Key] = known
		}
		known.add(&c.Counter)
		if !repeat {
			known.tell(c.Units)
		}
	}
	if e.Correction != nil && !repeat {
		p.Made = append(p.Made, *e.Correction)
	}
}

// Skip says that the part's events up to an offset are none.
func (p *Part) Skip(next int64) { p.Next = max(p.Next, next) }

// Seen returns the streams that have changed since the part was saved.
func (p *Part) Seen() []*Stream {
	return slices.DeleteFunc(slices.Collect(maps.Values(p.Streams)), func(s *Stream) bool { return !s.changed })
}

// Dirty reports whether there is anything to save.
func (p *Part) Dirty() bool { return p.Next != p.Stored }

// Saved says that all of it is in the books.
func (p *Part) Saved() {
	p.Stored, p.Made, p.Hole = p.Next, nil, false
	clear(p.Changes)
	for id, s := range p.Streams {
		s.changed = false
		if s.idle++; s.idle > streamIdle {
			delete(p.Streams, id)
		}
	}
}

// streamIdle is after how many saves without an event a stream is forgotten. The
// books know it for longer.
const streamIdle = 1000

// Merge returns the changes of parts together, in the order of their keys. What
// told those that are not counted is left out: somebody else has counted it.
func Merge(parts []*Part, counted func(*Part) bool) []*Counter {
	all := map[string]*Counter{}
	for _, p := range parts {
		for key, c := range p.Changes {
			one := *c
			if !counted(p) {
				one.Told = 0
			}
			if known := all[key]; known != nil {
				known.add(&one)
			} else {
				all[key] = &one
			}
		}
	}
	return Sorted(all)
}

// Sorted are counters in the order of their keys: whoever writes rows in one
// order waits for nobody in a circle.
func Sorted(all map[string]*Counter) []*Counter {
	list := make([]*Counter, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[key])
	}
	return list
}
