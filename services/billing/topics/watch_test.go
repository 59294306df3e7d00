package topics

import (
	"strings"
	"testing"
	"time"

	"penstock.dev/services/internal/kafka"
)

// TestLagAlarm guarantees when events are said to wait too long: while counting is that
// far behind, moving or not, and not because a quiet topic has something new.
func TestLagAlarm(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 30, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	record := func(age time.Duration) []kafka.Record {
		return []kafka.Record{{Partition: 0, Timestamp: now.Add(-age)}}
	}
	for _, tt := range []struct {
		name  string
		looks func(w *watch) time.Duration
		want  time.Duration
		ready bool
	}{
		{"nothing to read", func(w *watch) time.Duration {
			w.counted(record(6 * day))
			return w.look(map[int32]int64{0: 0}, now)
		}, 0, true},
		{"the first record after a quiet week", func(w *watch) time.Duration {
			w.counted(record(6 * day))
			w.look(map[int32]int64{0: 0}, now)
			return w.look(map[int32]int64{0: 1}, now)
		}, 0, true},
		{"stands", func(w *watch) time.Duration {
			w.counted(record(6 * day))
			w.look(map[int32]int64{0: 5}, now)
			return w.look(map[int32]int64{0: 5}, now)
		}, 6 * day, false},
		{"moves, far behind", func(w *watch) time.Duration {
			w.counted(record(6 * day))
			return w.look(map[int32]int64{0: 5}, now)
		}, 6 * day, false},
		{"moves, near the end", func(w *watch) time.Duration {
			w.counted(record(time.Second))
			return w.look(map[int32]int64{0: 5}, now)
		}, time.Second, true},
		{"stands since before the process began", func(w *watch) time.Duration {
			w.knows(map[int32]time.Time{0: now.Add(-6 * day)})
			w.look(map[int32]int64{0: 5}, now)
			return w.look(map[int32]int64{0: 9}, now)
		}, 6 * day, false},
		{"read by another now", func(w *watch) time.Duration {
			w.counted(record(6 * day))
			w.forget([]int32{0})
			w.look(map[int32]int64{0: 5}, now)
			return w.look(map[int32]int64{0: 5}, now)
		}, 0, true},
	} {
		w := newWatch(5 * day)
		if got := tt.looks(w); got != tt.want {
			t.Errorf("%s: waits for %v, want %v", tt.name, got, tt.want)
		}
		if err := w.ready(); (err == nil) != tt.ready || err != nil && !strings.Contains(err.Error(), "usage.v1") {
			t.Errorf("%s: ready says %v", tt.name, err)
		}
	}
}
