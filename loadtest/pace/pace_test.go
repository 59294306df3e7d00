package pace_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock.dev/loadtest/pace"
)

// TestScheduleTakesNoNoticeOfAnswers guarantees the open loop: every send
// begins when it is due although none of them has been answered.
func TestScheduleTakesNoNoticeOfAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		begun := map[int]time.Duration{}
		late := pace.RunBy(t.Context(), pace.Schedule{Rate: 100, For: 2 * time.Second}, func(i int, due time.Time) {
			mu.Lock()
			begun[i] = time.Since(start)
			mu.Unlock()
			if due.Sub(start) != time.Duration(i)*10*time.Millisecond {
				t.Errorf("send %d was due after %v", i, due.Sub(start))
			}
			time.Sleep(time.Hour)
		}, timer)
		if len(late) != 200 || len(begun) != 200 {
			t.Fatalf("%d sends, %d begun, want 200", len(late), len(begun))
		}
		for i, at := range begun {
			if want := time.Duration(i) * 10 * time.Millisecond; at != want {
				t.Errorf("send %d began after %v, want %v", i, at, want)
			}
		}
		if took := time.Since(start); took < time.Hour || took > time.Hour+2*time.Second {
			t.Errorf("Run took %v: it must wait for the answers at the end, and only there", took)
		}
	})
}

// TestScheduleEndsWithItsContext guarantees that an interrupted run sends no
// more.
func TestScheduleEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 995*time.Millisecond)
		defer cancel()
		if late := pace.RunBy(ctx, pace.Schedule{Rate: 100, For: time.Minute}, func(int, time.Time) {}, timer); len(late) != 100 {
			t.Errorf("%d sends in 995 ms at 100 a second, want 100", len(late))
		}
	})
}

// timer sleeps by the clock of the test.
func timer(ctx context.Context, until time.Time) bool {
	select {
	case <-time.After(time.Until(until)):
		return true
	case <-ctx.Done():
		return false
	}
}

// TestKernelClock guarantees that a schedule by the real clock keeps its rate,
// never begins early, and ends with its context.
func TestKernelClock(t *testing.T) {
	t.Parallel()
	start := time.Now()
	late := pace.Run(t.Context(), pace.Schedule{Rate: 1000, For: 200 * time.Millisecond}, func(_ int, due time.Time) {
		if now := time.Now(); now.Before(due) {
			t.Errorf("begun %v early", due.Sub(now))
		}
	})
	if took := time.Since(start); len(late) != 200 || took < 199*time.Millisecond {
		t.Errorf("%d sends in %v, want 200 in 199 ms or more", len(late), took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if late := pace.Run(ctx, pace.Schedule{Rate: 1, For: time.Hour}, func(int, time.Time) {}); len(late) != 1 {
		t.Errorf("%d sends in 50 ms at 1 a second, want the first", len(late))
	}
}
