package limit_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// TestQueue guarantees that a request waits for what is ahead of it, that none
// is let in to wait longer than the longest wait, and that the bucket's own
// room bounds it too.
func TestQueue(t *testing.T) {
	t.Parallel()
	// 10 a second, room for 5, waits of up to 300 ms: a unit takes 100 ms.
	q := queue(10, time.Second, 300*ms, 0)
	q.Burst = 5
	zero, patient := q, q
	zero.Limit, patient.MaxDelay = 0, time.Minute
	four := []spend{{0, 1}, {0, 1}, {0, 1}, {0, 1}}
	answers{
		{"nobody ahead", q, nil, 0, 1, limit.Result{Passed: true, Remaining: 4, Reset: 100 * ms}},
		{"one ahead", q, four[:1], 0, 1, limit.Result{Passed: true, Remaining: 3, Reset: 100 * ms, Delay: 100 * ms}},
		{"the longest wait there is", q, four[:3], 0, 1, limit.Result{Passed: true, Reset: 100 * ms, Delay: 300 * ms}},
		{"too many ahead", q, four, 0, 1, limit.Result{RetryAfter: 100 * ms, Reset: 100 * ms}},
		{"one microsecond too long", q, four, 100*ms - us, 1, limit.Result{RetryAfter: us, Reset: us}},
		{"until one has left", q, four, 100 * ms, 1, limit.Result{Passed: true, Reset: 100 * ms, Delay: 300 * ms}},
		{"units ahead count, not requests", q, []spend{{0, 3}}, 0, 2, limit.Result{Passed: true, Reset: 200 * ms, Delay: 300 * ms}},
		{"a request does not wait for itself", q, nil, 0, 5, limit.Result{Passed: true, Reset: 200 * ms}},
		{"what leaves shortens the wait", q, []spend{{0, 3}}, 250 * ms, 1, limit.Result{Passed: true, Remaining: 3, Reset: 50 * ms, Delay: 50 * ms}},
		{"no room, and no wait too long", patient, []spend{{0, 4}}, 0, 2, limit.Result{Remaining: 1, RetryAfter: 100 * ms, Reset: 100 * ms}},
		{"no room, and that takes longer than the queue", q, []spend{{0, 4}}, 0, 5, limit.Result{RetryAfter: 400 * ms, Reset: 100 * ms}},
		{"more than the room never fits", q, nil, 0, 6, limit.Result{Remaining: 5, RetryAfter: limit.Never}},
		{"a peek does not wait", q, four[:2], 0, 0, limit.Result{Passed: true, Remaining: 3, Reset: 100 * ms}},
		{"a limit of 0 denies", zero, nil, 0, 1, limit.Result{RetryAfter: limit.Never}},
		{"a soft one is charged and does not wait", soft(q), four, 0, 3, limit.Result{RetryAfter: 200 * ms, Reset: 200 * ms, Clipped: true}},
		{"an empty queue again", q, four, time.Second, 5, limit.Result{Passed: true, Reset: 200 * ms}},
		{"a clock that went back lets nothing leave", q, []spend{{time.Second, 3}}, 0, 1, limit.Result{RetryAfter: time.Second, Reset: time.Second}},
	}.run(t)
	t.Run("a wait beyond any clock is never, and nothing remains", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		yearly := queue(1, rule.MaxWindow, time.Minute, 1000)
		yearly.Burst = 1e9
		s.ask(noon, yearly)
		yearly.Cost = 1
		if got, want := s.ask(noon, yearly).Results[0], (limit.Result{RetryAfter: limit.Never}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
	t.Run("charges of one decision wait for what was there before it", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		two := queue(10, time.Second, time.Second, 2)
		s.ask(noon, two)
		for i, r := range s.ask(noon, two, two).Results {
			if !r.Passed || r.Delay != 200*ms || r.Remaining != 4 {
				t.Errorf("charge %d: %+v, want a wait of 200ms and 4 remaining", i, r)
			}
		}
	})
	t.Run("a queue and a meter of one rate are one counter", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.ask(noon, queue(10, time.Second, time.Second, 6))
		if r := s.ask(noon, rate(rule.LeakyBucket, 10, time.Second, 4)).Results[0]; !r.Passed || r.Remaining != 0 || r.Delay != 0 {
			t.Errorf("%+v, want the meter to find 6 used", r)
		}
	})
}
