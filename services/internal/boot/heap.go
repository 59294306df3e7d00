package boot

import (
	"errors"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// spare is the least garbage in bytes that gathers before Go collects. With
// Go's default a small heap is collected dozens of times a second under load,
// and each time takes a core from the requests.
const spare = 64 << 20

// spaceCollections keeps spare bytes between two collections, however small
// the heap is; from spare bytes in use on Go's default holds. It costs at most
// that much memory. A GOGC in the environment is left alone, and GOMEMLIMIT
// bounds both.
func spaceCollections(getenv func(string) string) {
	if getenv("GOGC") != "" {
		return
	}
	adjust()
}

// adjust sets the percentage for the heap in use, and does so again after the
// next collection: a fresh object's finalizer runs then.
func adjust() {
	debug.SetGCPercent(percent(inUse()))
	again := new([16]byte)
	runtime.SetFinalizer(again, func(*[16]byte) { adjust() })
}

// percent is Go's GOGC for live bytes in use: 100, or more while that leaves
// less than spare.
func percent(live uint64) int {
	const least = 1 << 20 // of a process that has just begun
	return int(max(100, spare*100/max(live, least)))
}

// inUse is what the last collection found in use, in bytes.
func inUse() uint64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return live[0].Value.Uint64()
}

// share is how much of its container's memory the Go heap and what belongs to
// it may take; the rest is for the kernel's side of the process.
const share = 0.9

// boundMemory makes Go collect sooner rather than outgrow what limit allows the
// process, and be killed for it. A GOMEMLIMIT in the environment is left alone.
func boundMemory(log *slog.Logger, limit memlimit.Provider) {
	bytes, err := memlimit.Set(memlimit.WithRatio(share), memlimit.WithProvider(limit))
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		log.Warn("memory is not bounded", "error", err.Error())
	case bytes < math.MaxInt64:
		log.Info("memory is bounded", "bytes", bytes)
	}
}
