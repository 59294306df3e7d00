// Package pace sends load in an open loop: by a schedule that takes no notice
// of answers (docs/adr/0025).
package pace

import (
	"context"
	"sync"
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
	n := s.Count()
	late := make([]time.Duration, 0, n)
	start := time.Now()
	var wg sync.WaitGroup
	for i := 0; i < n; i++ {
		due := start.Add(s.Due(i))
		if !wait(ctx, time.Until(due)) {
			break
		}
		late = append(late, time.Since(due))
		wg.Go(func() { send(i, due) })
	}
	wg.Wait()
	return late
}

// wait reports whether it waited to the end.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
