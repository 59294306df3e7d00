package boot

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
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

func TestMemoryIsBoundedByTheContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for _, c := range []struct {
		name, env string
		limit     memlimit.Provider
		want      int64
		says      string
	}{
		{"a limit", "", memlimit.Limit(1 << 30), 966367641, `"bytes":966367641`},
		{"GOMEMLIMIT", "1GiB", memlimit.Limit(1 << 20), math.MaxInt64, ""},
		{"no limit", "", func() (uint64, error) { return 0, memlimit.ErrNoLimit }, math.MaxInt64, ""},
		{"no container", "", func() (uint64, error) { return 0, memlimit.ErrNoCgroup }, math.MaxInt64, ""},
		{"unreadable", "", func() (uint64, error) { return 0, errors.New("torn") }, math.MaxInt64, "torn"},
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		t.Setenv("GOMEMLIMIT", c.env)
		var log bytes.Buffer
		boundMemory(slog.New(slog.NewJSONHandler(&log, nil)), c.limit)
		if got := debug.SetMemoryLimit(-1); got != c.want {
			t.Errorf("%s: bounded at %d bytes, want %d", c.name, got, c.want)
		}
		if got := log.String(); c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s: says %q, want %q", c.name, got, c.says)
		}
	}
}
