package limit

import (
	"time"

	"penstock.dev/services/internal/rule"
)

// maxTicks is into how many ticks a sliding window is cut at most: with
// rule.MaxCapacity units all products stay below 2^53.
const maxTicks = 1 << 22

// A slidingCounter estimates what passed in the window that ends now from two
// counts: the units of the current window of the grid, and of the one before it
// the share that the sliding window still covers,
//
//	used = current + ceil(previous × left/ticks)
//
// where left is how many of the window's ticks are to come, begun ones
// included. So previous counts whole at the first instant, and rounding errs
// upwards, by less than three ticks and a unit. It is Cloudflare's form
// ("How we built rate limiting capable of scaling to millions of domains",
// 2017). It is an estimate, for it takes the previous window's units to have
// come evenly. At most limit pass in any window of the grid.
//
// How often it decides otherwise than the exact log depends on how many requests
// are near the limit: 0.04 % where 0.3 % are, 14 % where a quarter is and comes in
// bursts. TestSlidingCounterAgainstLog measures it, docs/adr/0049 has it.
//
// A counter holds the current window's first instant (From), Current and
// Previous, each up to rule.MaxCapacity. A clock that went back stays in the
// later window, and finds all of the previous one in it.
type slidingCounter struct {
	limit  int64
	window int64 // µs
	tick   int64 // µs
	ticks  int64 // of a window
}

// SlidingTicks returns the tick of a sliding window of window µs, and how many
// of them it has: 1.6 to 4.2 million where the window is that long. What is left
// over, though not of windows that people write, goes with the first of them.
func SlidingTicks(window int64) (tick, ticks int64) {
	tick = round(ceilDiv(window, maxTicks))
	return tick, window / tick
}

func newSlidingCounter(limit, window int64) slidingCounter {
	tick, ticks := SlidingTicks(window)
	return slidingCounter{limit: limit, window: window, tick: tick, ticks: ticks}
}

// turn is the value in the window that is counted at now.
func (s slidingCounter) turn(v Value, now int64) Value {
	switch from := now - now%s.window; {
	case from <= v.From:
		return v
	case from == v.From+s.window:
		return Value{From: from, Previous: v.Current}
	default:
		return Value{From: from}
	}
}

// used is the estimate, of a value in its window.
func (s slidingCounter) used(v Value, now int64) int64 {
	left := min(s.ticks, ceilDiv(v.From+s.window-now, s.tick))
	return v.Current + ceilDiv(v.Previous*left, s.ticks)
}

// until returns the first instant at which most units or fewer are used, most
// being at least 0 and less than now: in this window, the next or the one after.
func (s slidingCounter) until(v Value, most int64) int64 {
	end := v.From + s.window
	if room := most - v.Current; room >= 0 {
		if left := room * s.ticks / v.Previous; left > 0 {
			return end - left*s.tick
		}
	}
	if v.Current <= most {
		return end
	}
	return end + s.window - most*s.ticks/v.Current*s.tick
}

func (s slidingCounter) ask(v Value, units, now int64) verdict {
	v = s.turn(v, now)
	switch {
	case units == 0, s.limit == rule.Unlimited, s.used(v, now)+units <= s.limit:
		return passes
	case units > s.limit:
		return refusedFor(-1)
	default:
		return refusedFor(s.until(v, s.limit-units) - now)
	}
}

func (s slidingCounter) take(v Value, units, now int64) (Value, int64) {
	v = s.turn(v, now)
	units = min(units, rule.MaxCapacity-v.Current)
	v.Current += units
	return v, units
}

// add charges while the window that was charged is the current or the previous
// one.
func (s slidingCounter) add(v Value, units, at, now int64) (Value, int64) {
	turned := s.turn(v, now)
	switch at - at%s.window {
	case turned.From:
		return s.take(v, units, now)
	case turned.From - s.window:
		units = min(units, rule.MaxCapacity-turned.Previous)
		turned.Previous += units
		return turned, units
	default:
		return v, 0
	}
}

func (s slidingCounter) show(v Value, now int64, r *Result) {
	v = s.turn(v, now)
	r.Remaining = max(0, s.limit-s.used(v, now))
	r.Reset = time.Duration(v.From+s.window-now) * time.Microsecond
}

// give gives back while the window that was charged is the current or the
// previous one.
func (s slidingCounter) give(v Value, units, at, now int64) (Value, int64) {
	turned := s.turn(v, now)
	from, given := at-at%s.window, int64(0)
	switch from {
	case turned.From:
		given = min(units, turned.Current)
		turned.Current -= given
	case turned.From - s.window:
		given = min(units, turned.Previous)
		turned.Previous -= given
	default:
		return v, 0
	}
	return turned, given
}
