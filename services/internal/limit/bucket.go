package limit

import (
	"errors"
	"fmt"
	"time"

	"penstock.dev/services/internal/rule"
)

// ErrBounds reports numbers that cannot be counted exactly. The text says
// which.
var ErrBounds = errors.New("out of bounds")

// maxExact is 2^53, up to which Go and Redis's Lua count whole numbers alike.
const maxExact int64 = 1 << 53

// maxWait is the longest wait that is ever stated, in µs: 142 years. What
// takes longer is Never.
const maxWait int64 = 1 << 52

// perMicrosecond is the fastest rate, in units.
const perMicrosecond = rule.MaxPerSecond / 1_000_000

// A Bucket is a rate in whole numbers, in the continuous-state leaky-bucket
// form of the generic cell rate algorithm (ITU-T I.371 gives it as equal to
// the virtual scheduling form).
//
// A subject owes credits. One unit costs Unit credits, and every tick of Tick
// µs pays back Refill credits, so Refill : Unit×Tick is limit : window. That
// is exact wherever Unit × 2 × Capacity stays within 2^53, and else the best
// fraction that does, wrong by at most one part in a million. Ticks are
// absolute multiples of Tick since the epoch and the debt is whole, so nothing
// drifts and steady hits lose no fractions. All sums stay within 2^53.
//
// Two numbers a counter, however long the window; 1,000,000 units a second,
// windows of 366 days and capacities of 10^9 in any combination.
type Bucket struct {
	Capacity int64 // units that can pass at once; 0: none ever does
	Unit     int64 // credits that one unit costs, at least 1
	Refill   int64 // credits paid back per tick; 0 only with Capacity 0
	Tick     int64 // µs, at least 1
}

// NewBucket returns the bucket that sells limit units per window, of which at
// most burst at once. A limit of 0 is valid and sells nothing. The error wraps
// ErrBounds.
func NewBucket(limit int64, window time.Duration, burst int64) (Bucket, error) {
	w := window.Microseconds()
	switch {
	case window < time.Microsecond || window%time.Microsecond != 0 || window > rule.MaxWindow:
		return Bucket{}, fmt.Errorf("window of %v, want whole microseconds up to %v: %w", window, rule.MaxWindow, ErrBounds)
	case limit < 0 || limit > w*perMicrosecond:
		return Bucket{}, fmt.Errorf("limit of %d in %v, want 0 to %d a second: %w", limit, window, rule.MaxPerSecond, ErrBounds)
	case burst < 0 || burst > rule.MaxCapacity:
		return Bucket{}, fmt.Errorf("burst of %d, want 0 to %d: %w", burst, rule.MaxCapacity, ErrBounds)
	case limit == 0 || burst == 0:
		return Bucket{Unit: 1, Tick: 1}, nil
	}
	most := maxExact / (2 * burst) // greatest Unit
	if m := w / gcd(limit, w); m <= most {
		return Bucket{Capacity: burst, Unit: m, Refill: limit / (w / m), Tick: 1}, nil
	}
	tick := round(ceilDiv(ceilDiv(w, most), limit)) // at least w/(limit×most)
	n, m := fraction(tick*limit, w, most)
	return Bucket{Capacity: burst, Unit: m, Refill: n, Tick: tick}, nil
}

// round returns the smallest of 1, 2, 5, 10, 20, 50, … that is at least n:
// such ticks divide windows that people write, which keeps them exact.
func round(n int64) int64 {
	for p := int64(1); ; p *= 10 {
		for _, f := range []int64{p, 2 * p, 5 * p} {
			if f >= n {
				return f
			}
		}
	}
}

// fraction returns the last convergent p/q of a/b with q ≤ most. Its relative
// error is below 1/(p×most), and it is exact when b/gcd(a,b) ≤ most. The
// caller sees to it that b/a ≤ most, so p is at least 1.
func fraction(a, b, most int64) (p, q int64) {
	p0, q0 := int64(0), int64(1)
	p, q = 1, 0
	for b != 0 {
		f := a / b
		if q > 0 && f > (most-q0)/q {
			break
		}
		p, q, p0, q0 = f*p+p0, f*q+q0, p, q
		a, b = b, a%b
	}
	return p, q
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// settle returns what is owed at now (µs), in this bucket's credits, and the
// tick from which it is owed.
//
// A clock that went back pays nothing back until it has caught up: elapsed
// time is never negative. After a change of limit or burst the debt is carried
// over in units, rounded up, and never above the capacity.
func (b Bucket) settle(v Value, now int64) (debt, tick int64) {
	tick = now / b.Tick
	if v.Debt == 0 {
		return 0, tick
	}
	debt = b.carry(v.Debt, v.Unit)
	at := ceilDiv(v.At, b.Tick)
	switch elapsed := tick - at; {
	case elapsed <= 0:
		tick = at
	case elapsed >= ceilDiv(debt, b.Refill):
		debt = 0
	default:
		debt -= elapsed * b.Refill
	}
	return min(debt, b.Capacity*b.Unit), tick
}

// carry converts a debt in credits of another unit. Whole units are exact; a
// part of one is rounded up as doubles do it, in Go as in Lua.
func (b Bucket) carry(debt, unit int64) int64 {
	if unit == b.Unit {
		return debt
	}
	whole, part := debt/unit, debt%unit
	if whole >= b.Capacity {
		return b.Capacity * b.Unit
	}
	share := float64(part) / float64(unit)
	return whole*b.Unit + min(b.Unit, int64(ceil(share*float64(b.Unit))))
}

func ceil(f float64) float64 {
	if w := float64(int64(f)); w < f {
		return w + 1
	}
	return f
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func (b Bucket) ask(v Value, units, now int64) verdict {
	switch {
	case units == 0:
		return passes
	case units > b.Capacity:
		return refusedFor(-1)
	}
	debt, tick := b.settle(v, now)
	over := debt + units*b.Unit - b.Capacity*b.Unit
	if over <= 0 {
		return passes
	}
	wait := ceilDiv(over, b.Refill)
	if wait > maxWait/b.Tick {
		return refusedFor(-1)
	}
	return refusedFor((tick+wait)*b.Tick - now)
}

// take adds units to the debt. What does not fit, of a soft charge, leaves the
// bucket full; units that fit in part are not counted.
func (b Bucket) take(v Value, units, now int64) (Value, int64) {
	if b.Capacity == 0 {
		return v, 0
	}
	debt, tick := b.settle(v, now)
	full := b.Capacity * b.Unit
	counted := min(units, (full-debt)/b.Unit)
	if units < b.Capacity {
		full = min(full, debt+units*b.Unit)
	}
	return Value{Debt: full, Unit: b.Unit, At: tick * b.Tick}, counted
}

// add raises the debt as it was when it was last touched, or at the decision's
// time where nothing is owed, as far as there was room. Nothing is paid back: the
// rate by now may be another than the one that was charged by.
func (b Bucket) add(v Value, units, at, _ int64) (Value, int64) {
	if b.Capacity == 0 {
		return v, 0
	}
	more := v
	if v.Debt == 0 {
		more = Value{Unit: b.Unit, At: at / b.Tick * b.Tick}
	}
	counted := min(units, b.Capacity-ceilDiv(more.Debt, more.Unit))
	if counted <= 0 || float64(counted)*float64(more.Unit)+float64(more.Debt) >= float64(maxExact) {
		return v, 0
	}
	more.Debt += counted * more.Unit
	return more, counted
}

func (b Bucket) show(v Value, now int64, r *Result) {
	if b.Capacity == 0 {
		return
	}
	debt, tick := b.settle(v, now)
	r.Remaining = b.Capacity - ceilDiv(debt, b.Unit)
	if debt > 0 {
		next := debt - (b.Capacity-r.Remaining-1)*b.Unit // credits until one unit more remains
		r.Reset = time.Duration((tick+ceilDiv(next, b.Refill))*b.Tick-now) * time.Microsecond
	}
}

// Passed is what a charge that passed shows of a bucket that then holds v, at now
// (µs). What v owes must be in credits of b.
func (b Bucket) Passed(v Value, now int64) Result {
	r := Result{Passed: true}
	b.show(v, now, &r)
	return r
}

// give moves the debt back, never below nothing. What has been paid back since
// is not counted out: a subject gains no more than its capacity.
func (b Bucket) give(v Value, units, _, _ int64) (Value, int64) {
	if v.Debt == 0 {
		return v, 0
	}
	given := min(units, ceilDiv(v.Debt, v.Unit))
	v.Debt = max(0, v.Debt-given*v.Unit)
	return v, given
}

// A queue is a leaky bucket in which requests wait: they leave it at the rate.
// A request passes if it fits, and if what is ahead of it has left within
// delay; that is how long it waits. All charges of a decision on one queue are
// of one request, and wait for what was there before it.
type queue struct {
	Bucket
	delay int64 // µs, the longest wait
}

// ahead is how long what is in the queue takes to leave, in µs, or -1 where that
// is longer than any clock runs.
func (q queue) ahead(v Value, now int64) int64 {
	debt, tick := q.settle(v, now)
	if debt == 0 {
		return 0
	}
	ticks := ceilDiv(debt, q.Refill)
	if ticks > maxWait/q.Tick {
		return -1
	}
	return (tick+ticks)*q.Tick - now
}

func (q queue) ask(v Value, units, now int64) verdict {
	a := q.Bucket.ask(v, units, now)
	if units == 0 || a.wait < 0 {
		return a
	}
	switch ahead := q.ahead(v, now); {
	case ahead < 0:
		return refusedFor(-1)
	case ahead > q.delay:
		return refusedFor(max(a.wait, ahead-q.delay))
	case a.wait == 0:
		a.delay = ahead
	}
	return a
}

// show shows nothing remaining while what is ahead takes longer than delay.
func (q queue) show(v Value, now int64, r *Result) {
	q.Bucket.show(v, now, r)
	if q.Capacity == 0 {
		return
	}
	switch ahead := q.ahead(v, now); {
	case ahead < 0:
		r.Remaining, r.Reset = 0, 0
	case ahead > q.delay && r.Remaining > 0:
		r.Remaining, r.Reset = 0, time.Duration(ahead-q.delay)*time.Microsecond
	case ahead > q.delay:
		r.Reset = max(r.Reset, time.Duration(ahead-q.delay)*time.Microsecond)
	}
}
