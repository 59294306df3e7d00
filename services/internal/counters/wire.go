package counters

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// Codes of the plan; lua/frame.lua says what each byte means.
const (
	flagSoft   = 1
	flagShadow = 2
)

// A part is one decision as the script wants it, before it is given its place
// in a call.
type part struct {
	charges  []chargePart
	key      string // of the request id; "" is none
	request  [2]string
	decision *limit.Decision
}

type chargePart struct {
	key   string
	term  term
	flags byte
}

// A term is what the script is told of a charge, apart from its counter.
type term struct {
	algorithm string
	numbers   [5]int64
}

// termLength is how many numbers each algorithm's term has.
var termLength = map[string]int{"g": 5, "q": 4}

// newPart encodes a decision. The error wraps limit.ErrBounds.
func newPart(d *limit.Decision) (part, error) {
	switch {
	case len(d.Charges) > math.MaxUint8:
		return part{}, fmt.Errorf("%d charges, want at most %d: %w", len(d.Charges), math.MaxUint8, limit.ErrBounds)
	case len(d.Request.Note) > limit.MaxNote:
		return part{}, fmt.Errorf("note of %d bytes, want at most %d: %w", len(d.Request.Note), limit.MaxNote, limit.ErrBounds)
	}
	p := part{charges: make([]chargePart, len(d.Charges)), decision: d}
	for i := range d.Charges {
		c := &d.Charges[i]
		t, err := termOf(c)
		if err != nil {
			return part{}, fmt.Errorf("charge %d: %w", i, err)
		}
		p.charges[i] = chargePart{key: Key(c.Counter), term: t}
		if c.Soft {
			p.charges[i].flags |= flagSoft
		}
		if c.Counter.Shadow {
			p.charges[i].flags |= flagShadow
		}
	}
	if q := &d.Request; q.ID != "" {
		p.key = requestKey(*q)
		p.request = [2]string{string(q.Fingerprint[:]), string(q.DecisionID[:]) + string(q.Note)}
	}
	return p, nil
}

func termOf(c *limit.Charge) (term, error) {
	if err := c.Validate(); err != nil {
		return term{}, err
	}
	if c.Algorithm == rule.CalendarQuota {
		return term{"q", [5]int64{c.Cost, c.Limit, c.Span.Start.UnixMicro(), c.Span.End.UnixMicro()}}, nil
	}
	b, err := limit.NewBucket(c.Limit, c.Window, c.Burst)
	if err != nil {
		return term{}, err
	}
	return term{"g", [5]int64{c.Cost, b.Capacity, b.Unit, b.Refill, b.Tick}}, nil
}

// A call is a batch of parts as the script wants it: what is the same in
// several is sent once.
type call struct {
	keys  []string
	terms []term
	plan  []byte
	args  []any // what follows the plan: terms and requests

	keyNumbers  map[string]int // of a call that has many; nil: they are searched
	termNumbers []int          // where each of terms begins in args, by number
}

// few is up to how many keys looking through them all beats a map.
const few = 16

func newCall(parts []part) *call {
	charges := 0
	for i := range parts {
		charges += len(parts[i].charges)
	}
	c := &call{
		keys: make([]string, 0, charges+1),
		plan: make([]byte, 0, 5*(charges+len(parts))),
		args: make([]any, 0, 6*min(charges, few)+2),
	}
	if charges > few {
		c.keyNumbers = make(map[string]int, charges)
	}
	for i := range parts {
		c.add(&parts[i])
	}
	return c
}

func (c *call) add(p *part) {
	c.plan = append(c.plan, byte(len(p.charges)))
	if p.key == "" {
		c.plan = append(c.plan, 0, 0, 0, 0)
	} else {
		c.number(c.key(p.key))
		c.number(c.arg(p.request[0], p.request[1]))
	}
	for i := range p.charges {
		c.number(c.key(p.charges[i].key))
		c.number(c.term(p.charges[i].term))
		c.plan = append(c.plan, p.charges[i].flags)
	}
}

// number appends a key's or an argument's number. A call of maxCharges charges
// has fewer than 2^16 of either.
func (c *call) number(n int) { c.plan = binary.BigEndian.AppendUint16(c.plan, uint16(n)) }

// key returns the key's number, from 1.
func (c *call) key(k string) int {
	if c.keyNumbers == nil {
		if i := slices.Index(c.keys, k); i >= 0 {
			return i + 1
		}
	} else if n, ok := c.keyNumbers[k]; ok {
		return n
	}
	c.keys = append(c.keys, k)
	if c.keyNumbers != nil {
		c.keyNumbers[k] = len(c.keys)
	}
	return len(c.keys)
}

// arg appends arguments and returns the first one's number; two precede them.
func (c *call) arg(args ...any) int {
	c.args = append(c.args, args...)
	return len(c.args) - len(args) + 3
}

// term returns the number of the term's first argument. A batch has few
// distinct terms: those of its rules.
func (c *call) term(t term) int {
	if i := slices.Index(c.terms, t); i >= 0 {
		return c.termNumbers[i]
	}
	n := c.arg(t.algorithm)
	for _, v := range t.numbers[:termLength[t.algorithm]] {
		c.args = append(c.args, v)
	}
	c.terms, c.termNumbers = append(c.terms, t), append(c.termNumbers, n)
	return n
}

// command returns the words of an EVALSHA or EVAL. now is "" for the server's
// clock.
func (c *call) command(verb, script, now string) []any {
	words := make([]any, 0, 5+len(c.keys)+len(c.args))
	words = append(words, verb, script, len(c.keys))
	for _, k := range c.keys {
		words = append(words, k)
	}
	words = append(words, now, c.plan)
	return append(words, c.args...)
}

// Statuses of a decision in the script's reply.
const (
	statusCharged    = 'A'
	statusAllowed    = 'a'
	statusDenied     = 'D'
	statusStale      = 'S'
	statusReplayed   = 'R'
	statusConflict   = 'C'
	statusUnreadable = 'V'
	statusUnwritten  = 'E'
)

// ErrValue reports a value that this version cannot read. Nothing was charged.
var ErrValue = errors.New("counter value of another version")

// errUnwritten reports a server that refuses to write.
var errUnwritten = errors.New("nothing was written")

var errReply = errors.New("reply cannot be read")

const (
	replyHead   = 1 + 8   // status, now
	resultBytes = 1 + 5*8 // passed, remaining, wait, reset, consumed, refunded
	replayHead  = 16 + 2  // decision id, the note's length
)

// parseAnswer reads one decision's part of the reply.
func parseAnswer(reply string, d *limit.Decision) (limit.Answer, error) {
	if len(reply) < replyHead {
		return limit.Answer{}, errReply
	}
	a := limit.Answer{Now: time.UnixMicro(int64(double(reply[1:]))).UTC()}
	body := reply[replyHead:]
	switch reply[0] {
	case statusCharged:
		a.Allowed, a.Charged = true, true
		if d.Request.ID != "" {
			a.DecisionID = d.Request.DecisionID
		}
	case statusAllowed:
		a.Allowed = true
	case statusDenied:
	case statusStale:
		a.Stale = true
		return a, nil
	case statusReplayed:
		if len(body) < replayHead {
			return limit.Answer{}, errReply
		}
		a.Allowed, a.Replayed = true, true
		copy(a.DecisionID[:], body)
		note := int(body[16])<<8 | int(body[17])
		if len(body) < replayHead+note {
			return limit.Answer{}, errReply
		}
		a.Note = []byte(body[replayHead : replayHead+note])
		return a, parseResults(&a, body[replayHead+note:], -1)
	case statusConflict:
		a.Conflict = true
		copy(a.DecisionID[:], body)
		return a, nil
	case statusUnreadable:
		return limit.Answer{}, ErrValue
	case statusUnwritten:
		return limit.Answer{}, fmt.Errorf("%w: %s", errUnwritten, body)
	default:
		return limit.Answer{}, errReply
	}
	return a, parseResults(&a, body, len(d.Charges))
}

// parseResults reads the results; want is their number, or -1 for any.
func parseResults(a *limit.Answer, body string, want int) error {
	n := len(body) / resultBytes
	if len(body)%resultBytes != 0 || want >= 0 && n != want {
		return errReply
	}
	a.Results = make([]limit.Result, n)
	for i := range a.Results {
		s := body[i*resultBytes:]
		r := &a.Results[i]
		r.Passed = s[0] == 1
		r.Remaining = int64(double(s[1:]))
		r.RetryAfter = limit.Never
		if wait := int64(double(s[9:])); wait >= 0 {
			r.RetryAfter = time.Duration(wait) * time.Microsecond
		}
		r.Reset = time.Duration(double(s[17:])) * time.Microsecond
		r.Consumed = int64(double(s[25:]))
		r.Refunded = int64(double(s[33:]))
	}
	return nil
}

// double reads a little-endian double from the front of s.
func double(s string) float64 {
	_ = s[7]
	return math.Float64frombits(uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56)
}
