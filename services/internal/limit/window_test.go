package limit_test

import (
	"errors"
	"testing"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// TestFixedWindow guarantees that windows are those of the epoch, that their
// first instant belongs to them and their last one does not, and that all else
// an answer says follows from the window's units.
func TestFixedWindow(t *testing.T) {
	t.Parallel()
	ten := rate(rule.FixedWindow, 10, time.Minute, 0)
	half, zero, unlimited := ten, ten, ten
	half.Limit, zero.Limit, unlimited.Limit = 5, 0, rule.Unlimited
	answers{
		{"a fresh window has the whole limit", ten, nil, 0, 0, limit.Result{Passed: true, Remaining: 10, Reset: time.Minute}},
		{"all of it may be spent at once", ten, nil, 0, 10, limit.Result{Passed: true, Reset: time.Minute}},
		{"and never more", ten, nil, 0, 11, limit.Result{Remaining: 10, RetryAfter: limit.Never, Reset: time.Minute}},
		{"a cost of zero passes a spent window", ten, []spend{{0, 10}}, 20 * time.Second, 0, limit.Result{Passed: true, Reset: 40 * time.Second}},
		{"what does not fit waits for the end", ten, []spend{{0, 7}}, 20 * time.Second, 4, limit.Result{Remaining: 3, RetryAfter: 40 * time.Second, Reset: 40 * time.Second}},
		{"FC-05: 1.4 s before the end", ten, []spend{{0, 10}}, 58600 * ms, 1, limit.Result{RetryAfter: 1400 * ms, Reset: 1400 * ms}},
		{"one microsecond before the end", ten, []spend{{0, 10}}, time.Minute - us, 1, limit.Result{RetryAfter: us, Reset: us}},
		{"at the end the next one begins", ten, []spend{{0, 10}}, time.Minute, 1, limit.Result{Passed: true, Remaining: 9, Reset: time.Minute}},
		{"twice the limit passes around a boundary", ten, []spend{{time.Minute - us, 10}}, time.Minute, 10, limit.Result{Passed: true, Reset: time.Minute}},
		{"windows begin by the epoch, not by the first request", ten, []spend{{30 * time.Second, 10}}, time.Minute, 1, limit.Result{Passed: true, Remaining: 9, Reset: time.Minute}},
		{"a limit of 0 denies", zero, nil, 0, 1, limit.Result{RetryAfter: limit.Never, Reset: time.Minute}},
		{"an unlimited one counts and does not refuse", unlimited, []spend{{0, 7}}, 0, 3, limit.Result{Passed: true, Remaining: rule.Unlimited - 10, Reset: time.Minute}},
		{"up to a billion", unlimited, []spend{{0, 999_999_999}}, 0, rule.Unlimited, limit.Result{Passed: true, Remaining: rule.Unlimited - 1e9, Reset: time.Minute, Clipped: true}},
		{"a soft one is overdrawn", soft(ten), []spend{{0, 9}}, 0, 5, limit.Result{RetryAfter: time.Minute, Reset: time.Minute}},
		{"and not for longer than its window", soft(half), []spend{{0, 100}}, time.Minute, 5, limit.Result{Passed: true, Reset: time.Minute}},
		{"a clock that went back stays in the later window", ten, []spend{{time.Minute, 10}}, time.Minute - us, 1, limit.Result{RetryAfter: time.Minute + us, Reset: time.Minute + us}},
	}.run(t)
	t.Run("a lowered limit leaves nothing, and a raised one the difference", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.ask(noon, rate(rule.FixedWindow, 10, time.Minute, 8))
		if r := s.ask(noon, rate(rule.FixedWindow, 5, time.Minute, 1)).Results[0]; r.Passed || r.Remaining != 0 || r.RetryAfter != time.Minute {
			t.Errorf("5: %+v", r)
		}
		if r := s.ask(noon, rate(rule.FixedWindow, 20, time.Minute, 2)).Results[0]; !r.Passed || r.Remaining != 10 {
			t.Errorf("20: %+v", r)
		}
	})
}

// TestSlidingCounter guarantees the estimate that the type's comment gives: the
// previous window counts by the share of it that the sliding one covers.
func TestSlidingCounter(t *testing.T) {
	t.Parallel()
	// 8 in 4 s: half a second forgets one of 8.
	eight := rate(rule.SlidingWindowCounter, 8, 4*time.Second, 0)
	zero, unlimited := eight, eight
	zero.Limit, unlimited.Limit = 0, rule.Unlimited
	full := []spend{{0, 8}}
	mixed := []spend{{0, 8}, {6 * time.Second, 2}} // at 6 s: half of 8, and 2
	answers{
		{"a fresh one has the whole limit", eight, nil, time.Second, 0, limit.Result{Passed: true, Remaining: 8, Reset: 3 * time.Second}},
		{"all of it may be spent at once", eight, nil, 0, 8, limit.Result{Passed: true, Reset: 4 * time.Second}},
		{"and never more", eight, nil, 0, 9, limit.Result{Remaining: 8, RetryAfter: limit.Never, Reset: 4 * time.Second}},
		{"the previous window counts whole at first", eight, full, 4 * time.Second, 1, limit.Result{RetryAfter: 500 * ms, Reset: 4 * time.Second}},
		{"and is forgotten evenly", eight, full, 5 * time.Second, 2, limit.Result{Passed: true, Reset: 3 * time.Second}},
		{"parts of a unit count as one", eight, full, 4500*ms - us, 0, limit.Result{Passed: true, Reset: 3500*ms + us}},
		{"until they are gone", eight, full, 4500 * ms, 0, limit.Result{Passed: true, Remaining: 1, Reset: 3500 * ms}},
		{"to the last microsecond", eight, full, 8*time.Second - us, 8, limit.Result{Remaining: 7, RetryAfter: us, Reset: us}},
		{"all is back after two windows", eight, full, 8 * time.Second, 8, limit.Result{Passed: true, Reset: 4 * time.Second}},
		{"a wait may end in the next window", eight, full, time.Second, 1, limit.Result{RetryAfter: 3500 * ms, Reset: 3 * time.Second}},
		{"or at the end of it", eight, full, time.Second, 8, limit.Result{RetryAfter: 7 * time.Second, Reset: 3 * time.Second}},
		{"both windows count", eight, mixed, 6 * time.Second, 2, limit.Result{Passed: true, Reset: 2 * time.Second}},
		{"a wait may end in this window", eight, mixed, 6 * time.Second, 5, limit.Result{Remaining: 2, RetryAfter: 1500 * ms, Reset: 2 * time.Second}},
		{"or exactly with it", eight, mixed, 6 * time.Second, 6, limit.Result{Remaining: 2, RetryAfter: 2 * time.Second, Reset: 2 * time.Second}},
		{"or need some of this one forgotten", eight, mixed, 6 * time.Second, 7, limit.Result{Remaining: 2, RetryAfter: 4 * time.Second, Reset: 2 * time.Second}},
		{"a limit of 0 denies", zero, nil, 0, 1, limit.Result{RetryAfter: limit.Never, Reset: 4 * time.Second}},
		{"an unlimited one counts and does not refuse", unlimited, full, 0, 2, limit.Result{Passed: true, Remaining: rule.Unlimited - 10, Reset: 4 * time.Second}},
		{"a soft one is overdrawn", soft(eight), []spend{{0, 16}}, 4 * time.Second, 1, limit.Result{RetryAfter: 2250 * ms, Reset: 4 * time.Second}},
		{"a clock that went back stays in the later window", eight, []spend{{4 * time.Second, 8}}, 3 * time.Second, 1, limit.Result{RetryAfter: 5500 * ms, Reset: 5 * time.Second}},
		{"and finds all of the previous one in it", eight, []spend{{0, 4}, {4 * time.Second, 2}}, 3 * time.Second, 0, limit.Result{Passed: true, Remaining: 2, Reset: 5 * time.Second}},
	}.run(t)
}

// TestSlidingLog guarantees that an entry counts while now − at < window, and
// that the wait is to when enough entries have left.
func TestSlidingLog(t *testing.T) {
	t.Parallel()
	ten := rate(rule.SlidingWindowLog, 10, time.Minute, 0)
	zero := ten
	zero.Limit = 0
	full := []spend{{0, 4}, {10 * time.Second, 6}}
	answers{
		{"a fresh log has nothing to wait for", ten, nil, 0, 0, limit.Result{Passed: true, Remaining: 10}},
		{"all may be spent at once", ten, nil, 0, 10, limit.Result{Passed: true, Reset: time.Minute}},
		{"and never more", ten, nil, 0, 11, limit.Result{Remaining: 10, RetryAfter: limit.Never}},
		{"the last unit is sold", ten, []spend{{0, 9}}, time.Second, 1, limit.Result{Passed: true, Reset: 59 * time.Second}},
		{"what fits when the first entry leaves waits for it", ten, full, 20 * time.Second, 4, limit.Result{RetryAfter: 40 * time.Second, Reset: 40 * time.Second}},
		{"what does not waits for the next", ten, full, 20 * time.Second, 5, limit.Result{RetryAfter: 50 * time.Second, Reset: 40 * time.Second}},
		{"one microsecond before an entry leaves", ten, full, time.Minute - us, 1, limit.Result{RetryAfter: us, Reset: us}},
		{"an entry has left after its window", ten, full, time.Minute, 4, limit.Result{Passed: true, Reset: 10 * time.Second}},
		{"and no other", ten, full, time.Minute, 0, limit.Result{Passed: true, Remaining: 4, Reset: 10 * time.Second}},
		{"no boundary lets twice the limit pass", ten, []spend{{time.Minute - us, 10}}, time.Minute, 1, limit.Result{RetryAfter: time.Minute - us, Reset: time.Minute - us}},
		{"a limit of 0 denies", zero, nil, 0, 1, limit.Result{RetryAfter: limit.Never}},
		{"a soft one gets full", soft(ten), []spend{{0, 8}}, time.Second, 5, limit.Result{RetryAfter: 59 * time.Second, Reset: 59 * time.Second, Clipped: true}},
		{"and is never more than full", soft(ten), []spend{{0, 8}, {time.Second, 5}}, time.Minute, 8, limit.Result{Passed: true, Reset: time.Second}},
		{"a clock that went back writes at its last entry's time", ten, []spend{{10 * time.Second, 6}, {5 * time.Second, 4}}, 69 * time.Second, 1, limit.Result{RetryAfter: time.Second, Reset: time.Second}},
	}.run(t)
	t.Run("a lowered limit passes nothing until enough has left", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.ask(noon, rate(rule.SlidingWindowLog, 10, time.Minute, 4))
		s.ask(noon.Add(10*time.Second), rate(rule.SlidingWindowLog, 10, time.Minute, 6))
		want := limit.Result{RetryAfter: 50 * time.Second, Reset: 50 * time.Second}
		if got := s.ask(noon.Add(20*time.Second), rate(rule.SlidingWindowLog, 5, time.Minute, 1)).Results[0]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestLogsAreBounded guarantees that a log holds no more entries than its limit,
// that what no longer counts is not kept, and that a limit above rule.MaxLog is
// refused.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	full := rate(rule.SlidingWindowLog, rule.MaxLog, time.Minute, 1)
	entries := func() int { return len(s.state.Counters[full.Counter.Canonical()].Log) }
	for i := range rule.MaxLog + 5 {
		if a := s.ask(noon.Add(time.Duration(i)*us), full); a.Allowed != (i < rule.MaxLog) {
			t.Fatalf("request %d: %+v", i, a)
		}
	}
	if entries() != rule.MaxLog {
		t.Errorf("%d entries, want %d", entries(), rule.MaxLog)
	}
	if s.ask(noon.Add(2*time.Minute), full); entries() != 1 {
		t.Errorf("%d entries two minutes later, want 1", entries())
	}
	full.Limit++
	if _, err := limit.Decide(s.state, noon, limit.Decision{Charges: []limit.Charge{full}}); !errors.Is(err, limit.ErrBounds) {
		t.Errorf("a limit of %d: %v, want ErrBounds", full.Limit, err)
	}
}

// TestBoundsOfWindows guarantees that windows that cannot be counted are
// refused.
func TestBoundsOfWindows(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*limit.Charge){
		"more than a billion":         func(c *limit.Charge) { c.Limit = rule.MaxCapacity + 1 },
		"one less than unlimited":     func(c *limit.Charge) { c.Limit = rule.Unlimited - 1 },
		"no window":                   func(c *limit.Charge) { c.Window = 0 },
		"half a microsecond":          func(c *limit.Charge) { c.Window = 1500 * time.Nanosecond },
		"more than 366 days":          func(c *limit.Charge) { c.Window = rule.MaxWindow + us },
		"an unlimited log":            func(c *limit.Charge) { c.Algorithm, c.Limit = rule.SlidingWindowLog, rule.Unlimited },
		"a delay without a queue":     func(c *limit.Charge) { c.Algorithm, c.Burst, c.MaxDelay = rule.GCRA, 1, time.Second },
		"a delay of over a minute":    func(c *limit.Charge) { *c = queue(1, time.Second, time.Minute+us, 1) },
		"a delay of half microsecond": func(c *limit.Charge) { *c = queue(1, time.Second, time.Nanosecond, 1) },
	} {
		c := rate(rule.FixedWindow, 10, time.Minute, 1)
		spoil(&c)
		if _, err := limit.Decide(limit.NewState(), noon, limit.Decision{Charges: []limit.Charge{c}}); !errors.Is(err, limit.ErrBounds) {
			t.Errorf("%s: %v, want ErrBounds", name, err)
		}
	}
}
