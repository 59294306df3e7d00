package limit_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// A history is what happens to one counter of random numbers.
type history struct {
	*rapid.T
	kind
	max    int64
	window time.Duration
	burst  int64         // of a bucket
	delay  time.Duration // of a queue

	state limit.State
	now   time.Time
	sold  []sale
}

// A sale is units that passed.
type sale struct {
	cost     int64
	asked    time.Time
	at       time.Time // the latest time at which any had passed: later than asked, by a clock that went back
	released time.Time // from a queue
}

func newHistory(t *rapid.T, k kind) *history {
	h := &history{T: t, kind: k, state: limit.NewState()}
	h.max = magnitude(t, "limit", 1000)
	if k.name == "sliding_window_log" {
		h.max = min(h.max, 30)
	}
	h.window = time.Duration(max(h.max, magnitude(t, "window", 24*time.Hour.Microseconds()))) * us
	h.burst = magnitude(t, "burst", 1000)
	h.delay = time.Duration(magnitude(t, "delay", rule.MaxDelay.Microseconds())) * us
	if rapid.IntRange(0, 20).Draw(t, "nothing") == 0 {
		h.max = 0
	}
	h.now = noon.Add(time.Duration(rapid.Int64Range(0, h.window.Microseconds()).Draw(t, "start")) * us)
	return h
}

func (h *history) charge(now time.Time, cost int64) limit.Charge {
	c := h.kind.charge(now, h.max, h.window, cost)
	if c.Algorithm.Bucket() {
		c.Burst = h.burst
	}
	if c.MaxDelay > 0 {
		c.MaxDelay = h.delay
	}
	return c
}

// capacity is what can pass at once.
func (h *history) capacity() int64 {
	if h.charge(h.now, 0).Algorithm.Bucket() && h.max > 0 {
		return h.burst
	}
	return h.max
}

// ask asks a state at a time, which need not be the history's.
func (h *history) ask(s limit.State, now time.Time, cost int64) limit.Result {
	a, err := limit.Decide(s, now, limit.Decision{Charges: []limit.Charge{h.charge(now, cost)}})
	if err != nil {
		h.Fatal(err)
	}
	if a.Stale || a.Allowed != a.Results[0].Passed || a.Charged != (a.Allowed && cost > 0) {
		h.Fatalf("cost %d: %+v", cost, a)
	}
	return a.Results[0]
}

// try asks a copy.
func (h *history) try(now time.Time, cost int64) limit.Result { return h.ask(h.copy(), now, cost) }

func (h *history) copy() limit.State {
	s := limit.NewState()
	s.Counters = snapshot(h.state)
	return s
}

// pass moves the clock: not at all, a little, a part of what there is to wait
// for, or to an edge. Now and then it goes back, but not into another period: its
// counter is another.
func (h *history) pass(back bool) {
	switch rapid.IntRange(0, 9).Draw(h.T, "pause") {
	case 0, 1, 2:
	case 3:
		h.now = h.now.Add(us)
	case 4:
		h.now = begin(h.now, h.window).Add(h.window)
	case 5:
		if !back {
			return
		}
		edge := begin(h.now, h.window)
		h.now = h.now.Add(-time.Duration(rapid.Int64Range(0, h.window.Microseconds()).Draw(h.T, "back")) * us)
		if h.charge(h.now, 0).Counter.Kind != rule.Rate && h.now.Before(edge) {
			h.now = edge
		}
	case 6:
		h.now = h.now.Add(time.Duration(rapid.Int64Range(0, 3*h.window.Microseconds()).Draw(h.T, "long")) * us)
	default:
		h.now = h.now.Add(time.Duration(rapid.Int64Range(0, h.window.Microseconds()/max(1, h.max)+1).Draw(h.T, "short")) * us)
	}
}

// spend asks for cost and notes what was sold.
func (h *history) spend(cost int64) limit.Result {
	r := h.ask(h.state, h.now, cost)
	if r.Passed && cost > 0 {
		s := sale{cost: cost, asked: h.now, at: h.now, released: h.now.Add(r.Delay)}
		if n := len(h.sold); n > 0 && h.sold[n-1].at.After(s.at) {
			s.at = h.sold[n-1].at
		}
		h.sold = append(h.sold, s)
	}
	return r
}

// TestEveryPromiseHolds guarantees for every algorithm, with clocks that go
// back: it never sells more than it promises; a refusal and a peek change
// nothing; the wait is exact, and never exactly where no wait helps; and what
// remains passes and one more does not.
func TestEveryPromiseHolds(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		rapid.Check(t, func(t *rapid.T) { newHistory(t, k).promises() })
	})
}

// FuzzPromises looks on for a history in which TestEveryPromiseHolds fails.
func FuzzPromises(f *testing.F) {
	for i := range kinds {
		f.Add(bytes.Repeat([]byte{byte(i), 1, 0, 0, 0, 0, 0, 0}, 200))
	}
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		newHistory(t, rapid.SampledFrom(kinds).Draw(t, "kind")).promises()
	}))
}

// promises makes requests and holds what is answered.
func (h *history) promises() {
	for range rapid.IntRange(1, 30).Draw(h.T, "requests") {
		h.pass(true)
		before := snapshot(h.state)
		peek := h.spend(0)
		if !cmp.Equal(before, h.state.Counters) {
			h.Fatalf("a peek changed %+v to %+v", before, h.state.Counters)
		}
		h.checkRemaining(peek)
		cost := rapid.Int64Range(1, h.capacity()/2+2).Draw(h.T, "cost")
		r := h.spend(cost)
		if r.Passed {
			h.checkSold()
			continue
		}
		if !cmp.Equal(before, h.state.Counters) {
			h.Fatalf("a refusal changed %+v to %+v", before, h.state.Counters)
		}
		if peek.Remaining != r.Remaining || peek.Reset != r.Reset {
			h.Fatalf("a refusal shows %+v, a peek %+v", r, peek)
		}
		h.checkWait(cost, r)
	}
}

// checkRemaining holds what a peek says against what then passes.
func (h *history) checkRemaining(peek limit.Result) {
	h.Helper()
	n := peek.Remaining
	switch {
	case n < 0 || n > h.capacity():
		h.Fatalf("%d of %d remain", n, h.capacity())
	case h.wallet && (n > 0) != h.try(h.now, 1).Passed:
		h.Fatalf("%d remain, and a cost of 1 is answered %+v", n, h.try(h.now, 1))
	case !h.wallet && !h.try(h.now, n).Passed:
		h.Fatalf("%d remain and do not pass", n)
	case !h.wallet && h.try(h.now, n+1).Passed:
		h.Fatalf("%d remain and one more passes", n)
	}
	c := h.charge(h.now, 0)
	switch c.Algorithm { //nolint:exhaustive // all others reset at an end
	case rule.FixedWindow, rule.SlidingWindowCounter:
	case rule.CalendarQuota, rule.OverdraftWallet:
		return
	default: // until it rises
		if full := n == h.capacity(); full != (peek.Reset == 0) {
			h.Fatalf("%+v of %d", peek, h.capacity())
		} else if !full && (h.try(h.now.Add(peek.Reset), 0).Remaining <= n || h.try(h.now.Add(peek.Reset-us), 0).Remaining > n) {
			h.Fatalf("%+v does not rise then", peek)
		}
		return
	}
	if end := h.now.Add(peek.Reset); !end.Equal(begin(end, h.window)) || !end.After(h.now) {
		h.Fatalf("%+v at %v: a window of %v does not end then", peek, h.now, h.window)
	}
}

// checkWait holds a refusal's wait against what passes then.
func (h *history) checkWait(cost int64, r limit.Result) {
	h.Helper()
	never := cost > h.capacity() && !h.wallet || h.max == 0 || !h.renews
	if never != (r.RetryAfter == limit.Never) || r.RetryAfter <= 0 {
		h.Fatalf("cost %d of %d: %+v, never %v", cost, h.capacity(), r, never)
	}
	if never {
		for _, later := range []time.Duration{us, h.window, 10 * h.window, rule.MaxWindow} {
			if h.try(h.now.Add(later), cost).Passed {
				h.Fatalf("never, and after %v cost %d passed", later, cost)
			}
		}
		return
	}
	if h.try(h.now.Add(r.RetryAfter-us), cost).Passed {
		h.Fatalf("cost %d passed before its wait of %v", cost, r.RetryAfter)
	}
	if !h.try(h.now.Add(r.RetryAfter), cost).Passed {
		h.Fatalf("cost %d was refused after its wait of %v", cost, r.RetryAfter)
	}
	if rapid.Bool().Draw(h.T, "wait") {
		h.now = h.now.Add(r.RetryAfter)
	}
}

// soldWhere adds up the sales that count.
func (h *history) soldWhere(count func(sale) bool) (units int64) {
	for _, s := range h.sold {
		if count(s) {
			units += s.cost
		}
	}
	return units
}

// checkSold holds the last sale against what the algorithm promises.
func (h *history) checkSold() {
	h.Helper()
	last := h.sold[len(h.sold)-1]
	from := begin(last.at, h.window)
	inWindow := h.soldWhere(func(s sale) bool { return begin(s.at, h.window).Equal(from) })
	inPeriod := h.soldWhere(func(s sale) bool { return begin(s.asked, h.window).Equal(begin(h.now, h.window)) })
	switch c := h.charge(h.now, 0); c.Algorithm {
	case rule.FixedWindow:
		h.atMost(inWindow, "a window")
	case rule.CalendarQuota:
		h.atMost(inPeriod, "a period")
	case rule.SlidingWindowCounter:
		h.atMost(inWindow, "a window")
		h.checkEstimate(from, inWindow)
	case rule.SlidingWindowLog:
		h.atMost(h.soldWhere(func(s sale) bool { return last.at.Sub(s.at) < h.window }), "any window")
	case rule.OverdraftWallet:
		if !h.renews {
			inPeriod = h.soldWhere(func(sale) bool { return true })
		}
		h.atMost(inPeriod-last.cost+1, "front of the last sale, with a unit left,")
	case rule.TokenBucket, rule.LeakyBucket, rule.GCRA:
		h.checkBucket(c)
	case rule.NoAlgorithm:
		h.Fatal("counts nothing")
	}
}

func (h *history) atMost(units int64, where string) {
	h.Helper()
	if units > h.max {
		h.Fatalf("%d of %d sold in %s of %v: %v", units, h.max, where, h.window, h.sold)
	}
}

// checkEstimate holds the sliding counter to what its comment says, within three
// ticks and a unit.
func (h *history) checkEstimate(from time.Time, current int64) {
	h.Helper()
	window := h.window.Microseconds()
	tick, _ := limit.SlidingTicks(window)
	previous := h.soldWhere(func(s sale) bool { return begin(s.at, h.window).Equal(from.Add(-h.window)) })
	left := min(window, from.Add(h.window).Sub(h.now).Microseconds())
	used := h.max - h.try(h.now, 0).Remaining
	if least := current*window + previous*left; used*window < least && used < h.max || used*window >= least+previous*3*tick+window {
		h.Fatalf("%d used where %d and of %d the last %d of %d µs count", used, current, previous, left, window)
	}
}

// checkBucket holds every stretch that ends now to burst + rate × time, and
// what leaves a queue to the rate and the longest wait.
func (h *history) checkBucket(c limit.Charge) {
	h.Helper()
	b, err := limit.NewBucket(c.Limit, c.Window, c.Burst)
	if err != nil {
		h.Fatal(err)
	}
	window, units := h.window.Microseconds(), int64(0)
	last := h.sold[len(h.sold)-1]
	if wait := last.released.Sub(h.now); wait < 0 || wait > c.MaxDelay {
		h.Fatalf("waits %v in a queue, want up to %v", wait, c.MaxDelay)
	}
	for i := len(h.sold) - 1; i >= 0; i-- {
		s := h.sold[i]
		if i < len(h.sold)-1 && c.MaxDelay > 0 {
			// What leaves from s until last takes its time, but for a tick.
			if took := last.released.Sub(s.released).Microseconds() + b.Tick; took*h.max < (units-last.cost+s.cost)*window {
				h.Fatalf("%d left a queue within %d µs, at %d in %d: %v", units-last.cost+s.cost, took, h.max, window, h.sold)
			}
		}
		units += s.cost
		if earned := (last.at.Sub(s.at).Microseconds() + b.Tick) * h.max; units*window > h.burst*window+earned {
			h.Fatalf("%d sold since %v, at %d in %v and %d at once: %v", units, s.at, h.max, h.window, h.burst, h.sold)
		}
	}
}

// TestGivingBackRestores guarantees for every algorithm that units given back,
// all or some and at any later time, leave what there would be if they had
// never been charged; where the algorithm keeps sums, also if others were
// charged in between.
func TestGivingBackRestores(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, k kind) {
		rapid.Check(t, func(t *rapid.T) {
			h := newHistory(t, k)
			for range rapid.IntRange(0, 8).Draw(t, "before") {
				h.pass(false)
				h.spend(rapid.Int64Range(1, h.capacity()/3+1).Draw(t, "cost"))
			}
			cost := rapid.Int64Range(1, h.capacity()/2+1).Draw(t, "charged")
			back := rapid.Int64Range(1, cost).Draw(t, "given back")
			without, at := h.copy(), h.now
			if !h.ask(h.state, at, cost).Passed {
				return
			}
			call := h.charge(at, cost)
			h.ask(without, at, cost-back)
			for range rapid.IntRange(0, 4).Draw(t, "after") {
				h.pass(false)
				other := rapid.Int64Range(1, h.capacity()/3+1).Draw(t, "cost")
				if !call.Algorithm.Bucket() && h.ask(h.state, h.now, other).Passed && !h.ask(without, h.now, other).Passed {
					t.Fatalf("cost %d passes, and not without what is given back", other)
				}
			}
			if _, err := limit.Correct(h.state, h.now, refundOf(call, at, "r", back)); err != nil {
				t.Fatal(err)
			}
			times := []time.Time{h.now}
			if call.Counter.Kind != rule.Rate {
				times = append(times, at) // the period that was charged
			}
			for _, now := range times {
				got, want := h.ask(h.state, now, 0), h.ask(without, now, 0)
				if got.Remaining != want.Remaining || got.Reset != want.Reset || got.Consumed-got.Refunded != want.Consumed-want.Refunded {
					t.Fatalf("%d of %d given back after %v: %+v, want %+v", back, cost, h.now.Sub(at), got, want)
				}
			}
		})
	})
}
