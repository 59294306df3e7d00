package decide

import (
	"encoding/binary"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// noteFormat is the first byte of a note. Another one is not read.
const noteFormat = 1

// A note is what a replay needs beside the store's results, because the rules
// may be others by then: the terms of each limit, in the order of the charges.
type note struct {
	cost, revision int64
	limits         []Limit
}

// note returns the note of a decision, nil when it is too long to be kept.
func (in *inquiry) note() []byte {
	b := append(make([]byte, 0, 512), noteFormat)
	b = binary.AppendVarint(b, in.cost)
	b = binary.AppendVarint(b, in.rules.revision)
	b = binary.AppendVarint(b, int64(len(in.winners)))
	for i, r := range in.winners {
		l := terms(r, in.spans[i])
		for _, s := range [...]string{l.RuleID, string(l.Kind), string(l.Algorithm), l.Meter, string(l.Mode)} {
			b = appendText(b, s)
		}
		soft := int64(0)
		if l.Soft {
			soft = 1
		}
		start, end := int64(0), int64(0)
		if r.Period != nil {
			start, end = l.PeriodStart.UnixMicro(), l.PeriodEnd.UnixMicro()
		}
		for _, n := range [...]int64{soft, l.Limit, int64(l.Window), start, end} {
			b = binary.AppendVarint(b, n)
		}
	}
	if len(b) > limit.MaxNote {
		return nil
	}
	return b
}

// readNote is the opposite of inquiry.note.
func readNote(b []byte) (n note, ok bool) {
	if len(b) == 0 || b[0] != noteFormat {
		return note{}, false
	}
	r := reader{rest: b[1:]}
	n.cost, n.revision = r.int(), r.int()
	for range r.int() {
		l := Limit{
			RuleID: r.text(), Kind: rule.Kind(r.text()), Algorithm: rule.Algorithm(r.text()),
			Meter: r.text(), Mode: rule.Mode(r.text()),
		}
		l.Soft = r.int() == 1
		l.Limit, l.Window = r.int(), time.Duration(r.int())
		if start, end := r.int(), r.int(); end != 0 {
			l.PeriodStart, l.PeriodEnd = time.UnixMicro(start).UTC(), time.UnixMicro(end).UTC()
		}
		if r.bad {
			return note{}, false
		}
		n.limits = append(n.limits, l)
	}
	return n, !r.bad && len(r.rest) == 0
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

func (r *reader) int() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) text() string {
	size, n := binary.Uvarint(r.rest)
	if n <= 0 || size > uint64(len(r.rest)-n) {
		r.bad, r.rest = true, nil
		return ""
	}
	s := string(r.rest[n : n+int(size)])
	r.rest = r.rest[n+int(size):]
	return s
}
