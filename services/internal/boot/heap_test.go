package boot

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestPercentLeavesTheSpare(t *testing.T) {
	for live, want := range map[uint64]int{
		0:        6400,
		1 << 20:  6400,
		4 << 20:  1600,
		32 << 20: 200,
		64 << 20: 100,
		1 << 40:  100,
	} {
		if got := percent(live); got != want {
			t.Errorf("%d bytes in use: %d %%, want %d", live, got, want)
		}
	}
}

func TestCollectionsFollowTheHeapInUse(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	spaceCollections(func(string) string { return "50" })
	if got := debug.SetGCPercent(100); got != 100 {
		t.Fatalf("GOGC was set and changed to %d", got)
	}

	spaceCollections(func(string) string { return "" })
	held := make([]byte, 128<<20)
	for range 100 { // the finalizer runs on a goroutine of its own
		runtime.GC()
		if got := debug.SetGCPercent(100); got == 100 {
			runtime.KeepAlive(held)
			return
		} else {
			debug.SetGCPercent(got)
		}
	}
	t.Error("128 MiB in use did not bring the percentage down to Go's default")
}
