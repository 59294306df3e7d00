package usage

import (
	"sync"
	"time"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/topics/usage/spool"
)

// A partition is one stream of numbered events. Recorders append, and the
// sender takes away.
type partition struct {
	index int32

	mu       sync.Mutex
	stream   usagev1.UUID
	sequence int64
	open     *chunk   // being appended to; nil: none
	full     []*chunk // waiting, oldest first
	recorded int64    // events that were kept
	stopped  bool     // nothing is kept any more

	// What follows is the sender's.
	batch    *batch // on its way, or to be sent again; nil: none
	refused  int    // events that were given up, in a row
	spooling bool   // what is recorded goes to disk
	queue    *spool.Queue
	written  time.Time // when it was last written to disk
	buf      []byte    // what is read from disk
}

func newPartition(index int32, now time.Time) *partition {
	return &partition{index: index, stream: decide.NewID(now), full: make([]*chunk, 0, 64)}
}

// A kept is what became of an event.
type kept int

const (
	keptIt      kept = iota
	lostMemory       // all memory is in use
	lostStopped      // the stream has ended
)

// record numbers the event in s and keeps it. One that is lost has used up its
// number. It is not older than since.
func (p *partition) record(s *scratch, key []byte, free *pool, since time.Time) kept {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return lostStopped
	}
	p.sequence++
	s.event.StreamID, s.event.Sequence = p.stream, p.sequence
	if size := spool.Overhead(key) + s.size(); p.open == nil || len(p.open.buf)+size > cap(p.open.buf) {
		if p.open != nil {
			p.full = append(p.full, p.open)
		}
		if p.open = free.take(); p.open == nil {
			return lostMemory
		}
		p.open.born = since
	}
	c := p.open
	start := len(c.buf)
	c.buf = usagev1.AppendEvent(spool.Begin(c.buf, key), &s.event)
	spool.End(c.buf, start)
	c.count++
	p.recorded++
	return keptIt
}

// oldest is the chunk that has waited longest, nil when nothing waits.
func (p *partition) oldest() *chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.full) > 0 {
		return p.full[0]
	}
	return p.open
}

// backlog is how many chunks wait that are full.
func (p *partition) backlog() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.full)
}

// close ends the chunk that is being appended to, so that oldest can be taken.
func (p *partition) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open != nil {
		p.full, p.open = append(p.full, p.open), nil
	}
}

// pop takes the oldest of the full chunks away.
func (p *partition) pop() *chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.full) == 0 {
		return nil
	}
	c := p.full[0]
	p.full = append(p.full[:0], p.full[1:]...)
	return c
}

// stop keeps nothing from here on.
func (p *partition) stop() {
	p.close()
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
}

// bytes is what waits in memory and is not on its way.
func (p *partition) bytes() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.full {
		n += len(c.buf)
	}
	if p.open != nil {
		n += len(p.open.buf)
	}
	return n
}
