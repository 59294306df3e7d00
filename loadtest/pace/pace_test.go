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
		late := pace.Run(t.Context(), pace.Schedule{Rate: 100, For: 2 * time.Second}, func(i int, due time.Time) {
			mu.Lock()
			begun[i] = time.Since(start)
			mu.Unlock()
			if due.Sub(start) != time.Duration(i)*10*time.Millisecond {
				t.Errorf("send %d was due after %v", i, due.Sub(start))
			}
			time.Sleep(time.Hour)
		})
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
		if late := pace.Run(ctx, pace.Schedule{Rate: 100, For: time.Minute}, func(int, time.Time) {}); len(late) != 100 {
			t.Errorf("%d sends in 995 ms at 100 a second, want 100", len(late))
		}
	})
}
