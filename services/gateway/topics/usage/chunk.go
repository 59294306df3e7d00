package usage

import (
	"sync"
	"time"
)

// chunkSize is how many bytes of records travel together at most. It holds the
// longest record.
const chunkSize = 128 << 10

// A chunk is records of one partition, one behind the other.
type chunk struct {
	buf   []byte
	count int
	born  time.Time // of its first record
}

// A pool holds the chunks that are not in use. Memory is touched when it is
// used for the first time, and the chunk that was returned last is used next.
type pool struct {
	mu    sync.Mutex
	free  []*chunk
	total int
}

// grow makes the pool one of n chunks, unless it has more.
func (p *pool) grow(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n <= p.total {
		return
	}
	more := n - p.total
	slab, chunks := make([]byte, more*chunkSize), make([]chunk, more)
	for i := range chunks {
		chunks[i].buf = slab[i*chunkSize : i*chunkSize : (i+1)*chunkSize]
		p.free = append(p.free, &chunks[i])
	}
	p.total = n
}

// take returns an empty chunk, nil when all are in use.
func (p *pool) take() *chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return nil
	}
	c := p.free[last]
	p.free = p.free[:last]
	return c
}

func (p *pool) put(c *chunk) {
	c.buf, c.count = c.buf[:0], 0
	p.mu.Lock()
	p.free = append(p.free, c)
	p.mu.Unlock()
}

// short reports whether more than half of the memory is in use.
func (p *pool) short() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free) < p.total/2
}

// bytes is what the pool has in all.
func (p *pool) bytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total * chunkSize
}
