package counters_test

import (
	"runtime"
	"strconv"
	"sync"
	"testing"

	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/limit"
)

// TestFloors guarantees that what was seen is remembered as the most that was
// ever seen of each number, by whoever saw it.
func TestFloors(t *testing.T) {
	t.Parallel()
	f := counters.NewFloors()
	if got := f.Of("k"); got != (limit.Totals{}) {
		t.Errorf("of what was never seen: %+v", got)
	}
	var wg sync.WaitGroup
	for i := range int64(100) {
		wg.Go(func() { f.Learn("k", limit.Totals{Consumed: i, Refunded: 99 - i}) })
	}
	wg.Wait()
	f.Learn("k", limit.Totals{Consumed: 5})
	if got := f.Of("k"); got != (limit.Totals{Consumed: 99, Refunded: 99}) {
		t.Errorf("%+v, want 99 of each", got)
	}
	if got := f.Of("another"); got != (limit.Totals{}) {
		t.Errorf("another's: %+v", got)
	}
}

// TestFloorsAreBounded guarantees that floors neither grow without end nor
// forget what is still used, and publishes what a counter takes.
func TestFloorsAreBounded(t *testing.T) { //nolint:paralleltest // it measures the heap
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	f := counters.NewFloors()
	const counted = 4 * counters.MaxFloors
	for i := range int64(counted) {
		f.Learn("{t:tenant}:e:quota:t:api-calls:g:month*1:"+strconv.FormatInt(i, 10), limit.Totals{Consumed: i + 1})
		f.Learn("busy", limit.Totals{Consumed: i + 1})
	}
	after := heap()
	if got := f.Of("busy").Consumed; got != counted {
		t.Errorf("a busy counter is remembered as %d, want %d", got, counted)
	}
	remembered := 0
	for i := range int64(counted) {
		if f.Of("{t:tenant}:e:quota:t:api-calls:g:month*1:"+strconv.FormatInt(i, 10)).Consumed > 0 {
			remembered++
		}
	}
	if remembered < counters.MaxFloors || remembered > 2*counters.MaxFloors {
		t.Errorf("%d of %d remembered, want %d to twice as many", remembered, counted, counters.MaxFloors)
	}
	each := float64(after-before) / float64(remembered)
	t.Logf("%d counters in %d bytes, %.0f each", remembered, after-before, each)
	if each > 100 {
		t.Errorf("%.0f bytes a counter, want at most 100", each)
	}
	runtime.KeepAlive(f)
}
