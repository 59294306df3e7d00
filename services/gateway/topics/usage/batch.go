package usage

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"penstock.dev/schemas/wire"
	"penstock.dev/services/gateway/topics/usage/spool"
)

// frame is what stands in front of a body when it is sent.
const frame = wire.HeaderSize

// A batch is records of one partition that are being sent. Only one is, so
// nothing overtakes.
type batch struct {
	buf    []byte
	at     []int // where the records begin that Kafka does not have yet
	schema schemaID
	born   time.Time // of the first record

	chunk  *chunk     // that buf is of; nil: it was read from disk
	mark   spool.Mark // behind it on disk
	onDisk bool       // there is such a mark

	sent   []int   // the records that are on their way now
	errs   []error // what became of each of them
	left   atomic.Int32
	alone  bool      // one record at a time, because one of them is refused for good
	again  time.Time // when it is to be sent again; zero: it is on its way
	pauses int       // in a row
}

// How long a batch waits that Kafka's client gave up.
const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 2 * time.Second
)

func (b *batch) pause() time.Duration {
	d := min(pauseMax, pauseMin<<min(b.pauses, 10))
	b.pauses++
	return d
}

// flying reports whether Kafka's client has any of it.
func (b *batch) flying() bool { return b.again.IsZero() && b.left.Load() > 0 }

// own reports whether this run has recorded it.
func (b *batch) own() bool { return b.chunk != nil || !b.mark.Former() }

// begins lists where the records of a chunk begin.
func begins(buf []byte, at []int) []int {
	for pos := 0; pos < len(buf); {
		at = append(at, pos)
		_, _, size := spool.Parse(buf[pos:])
		pos += size
	}
	return at
}

// framed writes the frame into its room.
func framed(value []byte, id uint32) []byte {
	value[0] = 0
	binary.BigEndian.PutUint32(value[1:frame], id)
	return value
}

// varint reads a zigzag varint.
func varint(b []byte) (int64, int) { return binary.Varint(b) }

// errUnreadable is why a file is set aside whose schema nobody knows.
var errUnreadable = errors.New("cannot be sent")
