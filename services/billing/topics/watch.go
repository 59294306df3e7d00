package topics

import (
	"context"
	"fmt"
	"sync"
	"time"

	"penstock.dev/schemas/usagev1"

	"penstock.dev/services/internal/kafka"
)

const (
	watchEvery = 5 * time.Second
	tellEvery  = time.Hour
)

// A watch knows how long events wait. The next record of a partition is about as old as
// the last that was counted, as long as counting moves; where it does not move between
// two looks and there is something to read, that is what waits.
type watch struct {
	mu    sync.Mutex
	at    map[int32]time.Time // of the newest record counted
	stood map[int32]bool      // there was something to read at the last look
	moved map[int32]bool      // something was counted since
	age   time.Duration
	all   time.Time     // what came before is counted; zero: not known
	risk  time.Duration // above this it is told
	told  time.Time
}

func newWatch(risk time.Duration) *watch {
	return &watch{at: map[int32]time.Time{}, stood: map[int32]bool{}, moved: map[int32]bool{}, risk: risk}
}

func (w *watch) counted(records []kafka.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range records {
		w.at[records[i].Partition], w.moved[records[i].Partition] = records[i].Timestamp, true
	}
}

func (w *watch) forget(partitions []int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range partitions {
		delete(w.at, p)
		delete(w.stood, p)
		delete(w.moved, p)
	}
}

// knows takes what the books know: of partitions that others read, too.
func (w *watch) knows(at map[int32]time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, t := range at {
		if t.After(w.at[p]) {
			w.at[p] = t
		}
	}
}

// look takes the records that wait by partition, and returns how old the oldest is.
func (w *watch) look(lag map[int32]int64, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.age, w.all = 0, now
	for p, n := range lag {
		at, known := w.at[p]
		if n > 0 && at.Before(w.all) {
			w.all = at
		}
		if n > 0 && known && (w.stood[p] || w.moved[p]) {
			w.age = max(w.age, now.Sub(at))
		}
		w.stood[p] = n > 0
		delete(w.moved, p)
	}
	return w.age
}

func (w *watch) through() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

func (w *watch) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.risk > 0 && w.age > w.risk {
		return fmt.Errorf("events of usage.v1 wait for %s: the topic deletes them after 7 days, and what is deleted is not billed", w.age.Round(time.Minute))
	}
	return nil
}

func (c *Counter) watchLag(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if at, err := c.book.CountedTo(ctx); err == nil {
			c.watch.knows(at)
		}
		lag, err := c.broker.Lag(ctx, Group, usagev1.Topic)
		if err != nil {
			continue // the client tells of brokers that are away
		}
		c.tell(c.watch.look(lag, c.now()))
	}
}

// tell shows how long events wait, loudly when that is too long.
func (c *Counter) tell(age time.Duration) {
	c.metrics.lag.Set(age.Seconds())
	if age <= c.cfg.AtRisk {
		c.metrics.atRisk.Set(0)
		c.watch.told = time.Time{}
		return
	}
	c.metrics.atRisk.Set(1)
	if now := c.now(); now.Sub(c.watch.told) >= tellEvery {
		c.watch.told = now
		c.log.Error("events wait so long that the topic will delete them uncounted: usage will be lost to billing",
			"waited", age.Round(time.Minute).String(), "at_risk_after", c.cfg.AtRisk.String())
	}
}
