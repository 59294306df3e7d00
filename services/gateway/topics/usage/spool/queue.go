package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// A Queue is the records of one partition, oldest first.
type Queue struct {
	spool     *Spool
	partition int32
	segments  []*segment // those with something to send, and the one that is written
	number    int        // of files that this run has made
}

// A Mark is a place in a queue: everything before it.
type Mark struct {
	segment *segment
	at      int64
}

// Former reports whether what lies before the mark was written by a former run.
func (m Mark) Former() bool { return m.segment.former }

// A Batch is records to be sent together. They are in the buffer that they were
// read into.
type Batch struct {
	Schema [32]byte // of the bodies
	Bytes  []byte
	At     []int // where in Bytes the records begin that are whole
	Mark   Mark  // behind them
}

// Empty reports whether nothing is left.
func (q *Queue) Empty() bool { return len(q.segments) == 0 }

// Append writes whole records, sealed, at the end: all of them or none. They
// are kept from the end of the process when it returns, and from that of the
// machine once they are synced.
func (q *Queue) Append(records []byte) error {
	size := int64(len(records))
	g := q.last()
	if g == nil || g.size > headerSize && g.size+size > q.spool.cfg.Roll {
		if q.spool.Bytes()+headerSize+size > q.spool.cfg.Bound {
			return ErrFull
		}
		made, err := q.make()
		if err != nil {
			return err
		}
		g = made
	} else if q.spool.Bytes()+size > q.spool.cfg.Bound {
		return ErrFull
	}
	if _, err := g.file.WriteAt(records, g.size); err != nil {
		if cut := g.file.Truncate(g.size); cut != nil {
			g.ended = true // nothing may be written behind what cannot be cut
		}
		return fmt.Errorf("spool: %w", err)
	}
	g.size += size
	q.spool.bytes.Add(size)
	q.spool.wrote(g.file)
	return nil
}

// last is the file that is written, nil when a new one must be made.
func (q *Queue) last() *segment {
	if len(q.segments) == 0 {
		return nil
	}
	if g := q.segments[len(q.segments)-1]; !g.former && !g.ended {
		return g
	}
	return nil
}

// make makes the next file.
func (q *Queue) make() (*segment, error) {
	q.number++
	path := filepath.Join(q.spool.cfg.Dir, name{q.spool.run, q.partition, q.number}.String())
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	g := &segment{path: path, file: f, schema: q.spool.cfg.Schema, size: headerSize, read: headerSize, sent: headerSize}
	if _, err := f.WriteAt(header(q.partition, g.schema), 0); err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return nil, fmt.Errorf("spool: %w", err)
	}
	q.segments = append(q.segments, g)
	q.spool.bytes.Add(headerSize)
	q.spool.wrote(f)
	q.spool.grown = true
	return g, nil
}

// Claim marks everything that was appended as read: its sender has it in
// memory. The queue is not empty.
func (q *Queue) Claim() Mark {
	for _, g := range q.segments {
		g.read = g.size
	}
	g := q.segments[len(q.segments)-1]
	return Mark{g, g.size}
}

// Read reads the next records into buf, which has room for MaxRecord bytes at
// least. All that was read before has been Sent. It returns false when nothing
// is left. What cannot be read is told to the spool's owner and left out.
func (q *Queue) Read(buf []byte) (Batch, bool) {
	for i := 0; i < len(q.segments); {
		g := q.segments[i]
		b, err := q.next(g, buf)
		switch {
		case err != nil:
			q.setAside(g, err)
		case len(b.At) > 0:
			return b, true
		case q.sentWhole(g):
		default:
			i++
		}
	}
	return Batch{}, false
}

// next reads the next records of a file, none at its end.
func (q *Queue) next(g *segment, buf []byte) (Batch, error) {
	if err := g.open(); err != nil {
		return Batch{}, err
	}
	for g.read < g.size {
		b, err := q.read(g, buf)
		if err != nil || len(b.At) > 0 {
			return b, err
		}
		g.keepSent(g.read) // what was stepped over
	}
	return Batch{}, nil
}

// read reads the next bytes of a file. They may hold no whole record, but
// damaged ones that are stepped over.
func (q *Queue) read(g *segment, buf []byte) (Batch, error) {
	n := min(int64(len(buf)), g.size-g.read)
	if m, err := g.file.ReadAt(buf[:n], g.read); int64(m) < n {
		return Batch{}, fmt.Errorf("spool: %w", err)
	}
	b := Batch{Schema: g.schema, Bytes: buf[:n]}
	at, bad := 0, 0
	for at < len(b.Bytes) {
		s, size := check(b.Bytes[at:])
		if s == torn {
			if last := g.read+n == g.size; last || at == 0 { // else the buffer's end may cut it off
				q.cut(g, g.read+int64(at))
			}
			break
		}
		if s == whole {
			b.At = append(b.At, at)
		} else {
			bad++
		}
		at += size
	}
	if bad > 0 {
		q.spool.damaged(g.path, "damaged records are left out", bad)
	}
	g.read += int64(at)
	b.Bytes, b.Mark = b.Bytes[:at], Mark{g, g.read}
	return b, nil
}

// cut ends a file at a place behind which nothing can be read.
func (q *Queue) cut(g *segment, at int64) {
	q.spool.damaged(g.path, fmt.Sprintf("torn at byte %d of %d", at, g.size), 1)
	q.spool.bytes.Add(at - g.size)
	g.size, g.ended = at, true
	_ = g.file.Truncate(at)
}

// Sent notes that everything before a mark was stored by Kafka, and deletes the
// file when that was its end. Its writer begins another one.
func (q *Queue) Sent(m Mark) {
	m.segment.keepSent(m.at)
	for len(q.segments) > 0 && q.sentWhole(q.segments[0]) {
	}
}

// sentWhole deletes a file of which nothing is left to be sent.
func (q *Queue) sentWhole(g *segment) bool {
	if g.file == nil || g.sent < g.size {
		return false
	}
	_ = g.close()
	_ = os.Remove(g.path)
	q.drop(g)
	return true
}

// SetAside takes the file of a batch out of the queue, because nobody can send
// what is in it. It is kept under another name.
func (q *Queue) SetAside(b Batch, cause error) { q.setAside(b.Mark.segment, cause) }

func (q *Queue) setAside(g *segment, cause error) {
	q.spool.damaged(g.path, "set aside: "+cause.Error(), 1)
	_ = g.close()
	_ = os.Rename(g.path, g.path+aside)
	q.drop(g)
}

func (q *Queue) drop(g *segment) {
	q.segments = slices.DeleteFunc(q.segments, func(o *segment) bool { return o == g })
	q.spool.bytes.Add(-g.size)
}
