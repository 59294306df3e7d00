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
		if !w.through().IsZero() {
			t.Errorf("%s: before a look something is known to be counted", tt.name)
		}
		if got := tt.looks(w); got != tt.want {
			t.Errorf("%s: waits for %v, want %v", tt.name, got, tt.want)
		}
		if err := w.ready(); (err == nil) != tt.ready || err != nil && !strings.Contains(err.Error(), "usage.v1") {
			t.Errorf("%s: ready says %v", tt.name, err)
		}
	}
}

// TestThrough guarantees up to when all is known to be counted: now where nothing waits,
// else the newest record counted of the partition that is farthest behind, by whichever
// member, and nothing where nobody knows.
func TestThrough(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 30, 0, 0, 0, 0, time.UTC)
	w := newWatch(time.Hour)
	for _, tt := range []struct {
		name string
		do   func()
		lag  map[int32]int64
		want time.Time
	}{
		{"nothing waits", func() {}, map[int32]int64{0: 0, 1: 0}, now},
		{"one that nobody counted anything of", func() {}, map[int32]int64{0: 0, 1: 3}, time.Time{}},
		{"counted here", func() { w.counted([]kafka.Record{{Partition: 1, Timestamp: now.Add(-time.Minute)}}) }, map[int32]int64{0: 0, 1: 2}, now.Add(-time.Minute)},
		{"counted by another", func() { w.knows(map[int32]time.Time{0: now.Add(-time.Hour)}) }, map[int32]int64{0: 1, 1: 2}, now.Add(-time.Hour)},
		{"and farther", func() { w.knows(map[int32]time.Time{0: now.Add(-time.Second), 1: now.Add(-time.Hour)}) }, map[int32]int64{0: 1, 1: 2}, now.Add(-time.Minute)},
	} {
		tt.do()
		w.look(tt.lag, now)
		if got := w.through(); !got.Equal(tt.want) {
			t.Errorf("%s: counted through %v, want %v", tt.name, got, tt.want)
		}
	}
}
