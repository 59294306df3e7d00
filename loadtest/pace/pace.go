// Package pace sends load in an open loop: by a schedule that takes no notice
// of answers (docs/adr/0025).
package pace

import (
	"context"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A Schedule is a steady rate for a while.
type Schedule struct {
	Rate float64       // per second, above 0
	For  time.Duration // at least one interval
}

// Count is how many sends the schedule has.
func (s Schedule) Count() int { return int(s.Rate * s.For.Seconds()) }

// Due is when send i, from 0, is due after the start.
func (s Schedule) Due(i int) time.Duration {
	return time.Duration(float64(i) / s.Rate * float64(time.Second))
}

// Run calls send for every i when it is due, each on a goroutine of its own,
// and returns once all of them have returned. The result is how late each call
// was begun: when it is long, the generator could not keep its schedule. The
// end of ctx ends the schedule early.
func Run(ctx context.Context, s Schedule, send func(i int, due time.Time)) []time.Duration {
	return run(ctx, s, send, sleep)
}

func run(ctx context.Context, s Schedule, send func(i int, due time.Time), sleep func(context.Context, time.Time) bool) []time.Duration {
	// A thread of its own: what wakes it is the kernel's clock and nothing else.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := s.Count()
	late := make([]time.Duration, 0, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		due := start.Add(s.Due(i))
		if !sleep(ctx, due) {
			break
		}
		late = append(late, time.Since(due))
		wg.Go(func() { send(i, due) })
	}
	wg.Wait()
	return late
}

// asleep bounds one sleep, after which the end of a context is looked for.
const asleep = 10 * time.Millisecond

// sleep reports whether it slept until then. It asks the kernel: Go's timers
// fire in whole milliseconds when nothing else happens, half of one too late on
// average, which would count as latency.
func sleep(ctx context.Context, until time.Time) bool {
	for ctx.Err() == nil {
		d := time.Until(until)
		if d <= 0 {
			return true
		}
		ts := syscall.NsecToTimespec(int64(min(d, asleep)))
		_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, and the loop goes on
	}
	return false
}
