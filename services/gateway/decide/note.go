package decide

import (
	"encoding/binary"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// noteFormat is the first byte of a note. Another one is not read.
const noteFormat = 3

// A note is what a replay needs beside the store's results, because the rules
// may be others by then: the terms of each limit, in the order of the charges,
// those of rates that never refuse, and what else its receipt says.
type note struct {
	cost, revision int64
	ticket
	unlimited []Limit
}

// note returns the note of a decision, nil when it is too long to be kept.
func (in *inquiry) note() []byte {
	b := append(make([]byte, 0, 512), noteFormat)
	b = binary.AppendVarint(b, in.cost)
	b = binary.AppendVarint(b, in.rules.revision)
	t := in.ticket()
	b = t.append(b)
	b = binary.AppendUvarint(b, uint64(len(in.unlimited)))
	for _, r := range in.unlimited {
		c := Charged{RuleID: r.ID, Item: limit.Item{Charge: limit.Charge{
			Algorithm: r.Algorithm, Soft: r.Soft, Limit: r.Limit, Window: r.Window,
			Counter: limit.Identity{Shadow: r.Mode == rule.Shadow, Kind: r.Kind, Meter: r.Meter},
		}}}
		b = c.append(b)
	}
	if len(b) > limit.MaxNote {
		return nil
	}
	return b
}

// readNote is the opposite of inquiry.note. The dimensions are the request's
// own: another one with the same request id is refused.
func (in *inquiry) readNote(b []byte) (n note, ok bool) {
	if len(b) == 0 || b[0] != noteFormat {
		return note{}, false
	}
	q := &in.request
	r := reader{rest: b[1:]}
	n.cost, n.revision = r.int(), r.int()
	n.ticket = r.ticket(&identity{tenant: q.Tenant, application: q.Application, user: q.User, key: q.APIKey})
	for left := r.count(); left > 0 && !r.bad; left-- {
		c := r.charged(&identity{}, &ticket{})
		l := c.terms()
		n.unlimited = append(n.unlimited, *l.unlimited())
	}
	return n, !r.bad && len(r.rest) == 0
}

// terms is the part of a Limit that the rule and its period gave.
func (c *Charged) terms() Limit {
	l := Limit{
		RuleID: c.RuleID, Kind: c.Counter.Kind, Algorithm: c.Algorithm, Meter: c.Counter.Meter, Mode: rule.Enforce,
		Soft: c.Soft, Limit: c.Limit, Window: c.Window,
	}
	if c.Counter.Shadow {
		l.Mode = rule.Shadow
	}
	if c.Counter.Unit != "" {
		l.PeriodStart, l.PeriodEnd = c.Span.Start, c.Span.End
		l.Window = c.Span.End.Sub(c.Span.Start)
	}
	return l
}

// appendText appends a string behind its length, so that two texts in a row
// cannot run together.
func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// A reader reads what was appended. After the first fault it is bad and reads
// zeros.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) fail() {
	r.bad, r.rest = true, nil
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.fail()
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// micros is a duration of whole microseconds.
func (r *reader) micros() time.Duration {
	n := r.int()
	if n < 0 || n > rule.MaxWindow.Microseconds() {
		r.fail()
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// count is how many items follow, each of at least a byte.
func (r *reader) count() int {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > uint64(len(r.rest)-n) {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return int(v)
}

func (r *reader) text() string {
	size := r.count()
	s := string(r.rest[:size])
	r.rest = r.rest[size:]
	return s
}
