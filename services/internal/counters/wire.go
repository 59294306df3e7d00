package counters

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// Codes of the plan; lua/frame.lua says what each byte means.
const (
	flagSoft   = 1
	flagShadow = 2

	flagSeveral = 1 // of a decision
	flagWeigh   = 2
)

// Places in algorithms.
const (
	algorithmBucket = iota + 1
	algorithmQuota
	algorithmFixedWindow
	algorithmSlidingLog
	algorithmSlidingCounter
	algorithmWallet
)

// Bytes of the plan.
const (
	planHead   = 1 + 1 + 2 + 2       // of a decision
	planCharge = 2 + 1 + 1 + 8 + 5*8 // of a charge
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
	key       string
	flags     byte
	algorithm byte
	cost      int64
	numbers   [5]int64 // what the algorithm's file says it asks
}

// newPart encodes a decision. The error wraps limit.ErrBounds.
func newPart(d *limit.Decision) (part, error) {
	p, err := encodePart(d, make([]chargePart, len(d.Charges)))
	if err == nil {
		name([]part{p})
	}
	return p, err
}

// newParts encodes decisions in memory that they share. Those that cannot be
// encoded have their error in errs, and no part; places are the others'.
func newParts(decisions []limit.Decision, errs []error) (parts []part, places []int) {
	parts, places = make([]part, 0, len(decisions)), make([]int, 0, len(decisions))
	charges := 0
	for i := range decisions {
		charges += len(decisions[i].Charges)
	}
	room := make([]chargePart, charges)
	for i := range decisions {
		d := &decisions[i]
		p, err := encodePart(d, room[:len(d.Charges):len(d.Charges)])
		room = room[len(d.Charges):]
		if errs[i] = err; err == nil {
			parts, places = append(parts, p), append(places, i)
		}
	}
	name(parts)
	return parts, places
}

// encodePart encodes a decision, all but the keys of its charges, into charges,
// one for each. The error wraps limit.ErrBounds.
func encodePart(d *limit.Decision, charges []chargePart) (part, error) {
	switch {
	case len(d.Charges) > math.MaxUint8:
		return part{}, fmt.Errorf("%d charges, want at most %d: %w", len(d.Charges), math.MaxUint8, limit.ErrBounds)
	case len(d.Request.Note) > limit.MaxNote:
		return part{}, fmt.Errorf("note of %d bytes, want at most %d: %w", len(d.Request.Note), limit.MaxNote, limit.ErrBounds)
	}
	p := part{charges: charges, decision: d}
	for i := range d.Charges {
		if err := p.charges[i].encode(&d.Charges[i]); err != nil {
			return part{}, fmt.Errorf("charge %d: %w", i, err)
		}
	}
	if q := &d.Request; q.ID != "" {
		p.key = requestKey(*q)
		p.request = [2]string{string(q.Fingerprint[:]), string(q.DecisionID[:]) + string(q.Note)}
	}
	return p, nil
}

// A namer is memory in which keys are put together. It is kept to be used again.
type namer struct {
	keys []byte
	ends []int
}

var namers = sync.Pool{New: func() any { return new(namer) }}

// name gives every charge its key. They share one string: it is allocated once.
func name(parts []part) {
	n := namers.Get().(*namer) //nolint:forcetypeassert // New's
	defer namers.Put(n)
	n.keys, n.ends = n.keys[:0], n.ends[:0]
	for i := range parts {
		for k := range parts[i].charges {
			n.keys = AppendKey(n.keys, parts[i].decision.Charges[k].Counter)
			n.ends = append(n.ends, len(n.keys))
		}
	}
	all, from, next := string(n.keys), 0, 0
	for i := range parts {
		for k := range parts[i].charges {
			parts[i].charges[k].key = all[from:n.ends[next]]
			from, next = n.ends[next], next+1
		}
	}
}

// encode fills in all but the key.
func (p *chargePart) encode(c *limit.Charge) error {
	if err := c.Validate(); err != nil {
		return err
	}
	var err error
	if p.algorithm, p.numbers, err = numbersOf(c); err != nil {
		return err
	}
	p.cost = c.Cost
	if c.Soft {
		p.flags |= flagSoft
	}
	if c.Counter.Shadow {
		p.flags |= flagShadow
	}
	return nil
}

// numbersOf returns the place of a charge's algorithm and what it asks.
func numbersOf(c *limit.Charge) (algorithm byte, numbers [5]int64, err error) {
	window := c.Window.Microseconds()
	switch c.Algorithm {
	case rule.CalendarQuota, rule.OverdraftWallet:
		numbers = [5]int64{c.Limit, 0, 0, c.Floor.Consumed, c.Floor.Refunded}
		if c.Span != (period.Span{}) {
			numbers[1], numbers[2] = c.Span.Start.UnixMicro(), c.Span.End.UnixMicro()
		}
		if c.Algorithm == rule.CalendarQuota {
			return algorithmQuota, numbers, nil
		}
		return algorithmWallet, numbers, nil
	case rule.FixedWindow:
		return algorithmFixedWindow, [5]int64{c.Limit, window}, nil
	case rule.SlidingWindowLog:
		return algorithmSlidingLog, [5]int64{c.Limit, window}, nil
	case rule.SlidingWindowCounter:
		tick, ticks := limit.SlidingTicks(window)
		return algorithmSlidingCounter, [5]int64{c.Limit, window, tick, ticks}, nil
	case rule.TokenBucket, rule.LeakyBucket, rule.GCRA, rule.NoAlgorithm:
	}
	b, err := limit.NewBucket(c.Limit, c.Window, c.Burst)
	return algorithmBucket, [5]int64{b.Capacity, b.Unit, b.Refill, b.Tick, c.MaxDelay.Microseconds()}, err
}

// A call is a batch of parts as the script wants it: a counter that is in
// several is sent once.
type call struct {
	keys     []string
	plan     []byte
	requests []string // fingerprints, and decision ids with notes
	words    []any    // of the command; they point into the above

	many    bool           // keys, so that numbers are looked up; else they are searched
	numbers map[string]int // of the keys
}

// few is up to how many keys looking through them all beats a map.
const few = 16

// calls are kept to be used again.
var calls = sync.Pool{New: func() any { return new(call) }}

func newCall(epoch string, parts []part) *call {
	charges := 0
	for i := range parts {
		charges += len(parts[i].charges)
	}
	c := calls.Get().(*call) //nolint:forcetypeassert // New's
	c.many = charges > few
	if c.many && c.numbers == nil {
		c.numbers = make(map[string]int, charges)
	}
	c.plan = slices.Grow(c.plan, planHead*len(parts)+planCharge*charges)
	c.key(epoch) // the first
	for i := range parts {
		c.add(&parts[i])
	}
	return c
}

// free gives c back. Nobody may be using its words any more.
func (c *call) free() {
	clear(c.keys)
	clear(c.requests)
	clear(c.words)
	clear(c.numbers)
	c.keys, c.plan, c.requests, c.words = c.keys[:0], c.plan[:0], c.requests[:0], c.words[:0]
	calls.Put(c)
}

func (c *call) add(p *part) {
	head := len(c.plan)
	manner := byte(0)
	if p.decision.Weigh {
		manner = flagWeigh
	}
	c.plan = append(c.plan, byte(len(p.charges)), manner)
	if p.key == "" {
		c.plan = append(c.plan, 0, 0, 0, 0)
	} else {
		c.number(c.key(p.key))
		c.number(firstRequest + len(c.requests))
		c.requests = append(c.requests, p.request[0], p.request[1])
	}
	for i := range p.charges {
		charge := &p.charges[i]
		known := len(c.keys)
		n := c.key(charge.key)
		if n <= known && p.hasCounter(charge.key, i) {
			c.plan[head+1] |= flagSeveral
		}
		c.number(n)
		c.plan = append(c.plan, charge.flags, charge.algorithm)
		c.plan = appendDouble(c.plan, charge.cost)
		for _, v := range charge.numbers {
			c.plan = appendDouble(c.plan, v)
		}
	}
}

// hasCounter reports whether one of the first n charges is on key.
func (p *part) hasCounter(key string, n int) bool {
	return slices.ContainsFunc(p.charges[:n], func(c chargePart) bool { return c.key == key })
}

// firstRequest is the number of the first argument after the plan.
const firstRequest = 4

// number appends a key's or an argument's number. A call of maxCharges charges
// has fewer than 2^16 of either.
func (c *call) number(n int) { c.plan = binary.BigEndian.AppendUint16(c.plan, uint16(n)) }

func appendDouble(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, math.Float64bits(float64(v)))
}

// key returns the key's number, from 1.
func (c *call) key(k string) int {
	if !c.many {
		if i := slices.Index(c.keys, k); i >= 0 {
			return i + 1
		}
	} else if n, ok := c.numbers[k]; ok {
		return n
	}
	c.keys = append(c.keys, k)
	if c.many {
		c.numbers[k] = len(c.keys)
	}
	return len(c.keys)
}

// command returns the words of an EVALSHA or EVAL, valid until the next one or
// free. now is "" for the server's clock, run the id of its run. Pointers to
// strings are as good as strings, and need not be allocated.
func (c *call) command(verb string, script *string, now string, run *string) []any {
	c.words = append(c.words[:0], verb, script, len(c.keys))
	for i := range c.keys {
		c.words = append(c.words, &c.keys[i])
	}
	c.words = append(c.words, now, run, c.plan)
	for i := range c.requests {
		c.words = append(c.words, &c.requests[i])
	}
	return c.words
}

// Statuses of a decision in the script's reply.
const (
	statusCharged    = 'A'
	statusTerse      = 'T'
	statusAllowed    = 'a'
	statusDenied     = 'D'
	statusStale      = 'S'
	statusLost       = 'L'
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
	replyHead   = 1 + 8      // status, now
	resultBytes = 1 + 5*8    // flags, remaining, wait or delay, reset, consumed, refunded
	bucketBytes = 1 + 4*8    // version, debt, unit, at, expiry
	replayHead  = 16 + 8 + 2 // decision id, when it was made, the note's length

	resultPassed  = 1
	resultClipped = 2
)

// parseAnswer reads one decision's part of the reply. Results are put into room
// where they fit.
func parseAnswer(reply string, p *part, room []limit.Result) (limit.Answer, error) {
	if len(reply) < replyHead {
		return limit.Answer{}, errReply
	}
	a := limit.Answer{Now: time.UnixMicro(int64(double(reply[1:]))).UTC()}
	body := reply[replyHead:]
	switch reply[0] {
	case statusCharged:
		a.Allowed, a.Charged = true, true
		if q := &p.decision.Request; q.ID != "" {
			a.DecisionID = q.DecisionID
		}
	case statusTerse:
		a.Allowed, a.Charged = true, true
		return a, parseTerse(&a, body, p.charges, room)
	case statusAllowed:
		a.Allowed = true
	case statusDenied:
	case statusStale:
		a.Stale = true
		return a, nil
	case statusReplayed:
		return a, parseReplay(&a, body, room)
	case statusLost:
		a.Lost = true
		return a, nil
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
	return a, parseResults(&a, body, len(p.charges), room)
}

// parseReplay reads what the first decision under a request id came to.
func parseReplay(a *limit.Answer, body string, room []limit.Result) error {
	if len(body) < replayHead {
		return errReply
	}
	a.Allowed, a.Replayed = true, true
	copy(a.DecisionID[:], body)
	a.Decided = time.UnixMicro(int64(double(body[16:]))).UTC()
	note := int(body[24])<<8 | int(body[25])
	if len(body) < replayHead+note {
		return errReply
	}
	a.Note = []byte(body[replayHead : replayHead+note])
	return parseResults(a, body[replayHead+note:], -1, room)
}

// parseResults reads the results; want is their number, or -1 for any.
func parseResults(a *limit.Answer, body string, want int, room []limit.Result) error {
	n := len(body) / resultBytes
	if len(body)%resultBytes != 0 || want >= 0 && n != want {
		return errReply
	}
	if len(room) < n {
		room = make([]limit.Result, n)
	}
	a.Results = room[:n:n]
	for i := range a.Results {
		parseResult(&a.Results[i], body[i*resultBytes:])
	}
	return nil
}

func parseResult(r *limit.Result, s string) {
	r.Passed, r.Clipped = s[0]&resultPassed != 0, s[0]&resultClipped != 0
	r.Remaining = int64(double(s[1:]))
	switch wait := int64(double(s[9:])); {
	case r.Passed:
		r.Delay = time.Duration(wait) * time.Microsecond
	case wait >= 0:
		r.RetryAfter = time.Duration(wait) * time.Microsecond
	default:
		r.RetryAfter = limit.Never
	}
	r.Reset = time.Duration(double(s[17:])) * time.Microsecond
	r.Consumed = int64(double(s[25:]))
	r.Refunded = int64(double(s[33:]))
}

// parseTerse reads results of which those on buckets are the buckets' values: what
// there is to show follows from them, and the server's time is dearer than ours.
func parseTerse(a *limit.Answer, body string, charges []chargePart, room []limit.Result) error {
	a.Results = room[:len(charges):len(charges)]
	for i := range charges {
		c, r := &charges[i], &a.Results[i]
		switch bucket, ok := c.bucket(); {
		case ok && len(body) >= bucketBytes:
			v := limit.Value{Debt: int64(double(body[1:])), Unit: int64(double(body[9:])), At: int64(double(body[17:]))}
			if v.Unit != bucket.Unit || v.Debt < 0 || v.Debt > bucket.Capacity*bucket.Unit {
				return errReply
			}
			*r, body = bucket.Passed(v, a.Now.UnixMicro()), body[bucketBytes:]
		case !ok && len(body) >= resultBytes:
			parseResult(r, body)
			body = body[resultBytes:]
		default:
			return errReply
		}
	}
	if body != "" {
		return errReply
	}
	return nil
}

// bucket is what a charge is on, if that is a bucket without a queue.
func (p *chargePart) bucket() (limit.Bucket, bool) {
	n := &p.numbers
	return limit.Bucket{Capacity: n[0], Unit: n[1], Refill: n[2], Tick: n[3]}, p.algorithm == algorithmBucket && n[4] == 0
}

// double reads a little-endian double from the front of s.
func double(s string) float64 {
	_ = s[7]
	return math.Float64frombits(uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56)
}

// raise makes the floor of a quota's or wallet's charge at least t.
func (p *chargePart) raise(t limit.Totals) {
	p.numbers[3] = max(p.numbers[3], t.Consumed)
	p.numbers[4] = max(p.numbers[4], t.Refunded)
}
