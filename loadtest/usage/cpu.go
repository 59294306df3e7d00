package usage

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ticks a second of the kernel's accounts of processes.
const ticks = 100

// A cpuMeter adds up what processes have taken, over all their lives: it looks
// often, since one that was killed cannot be asked any more.
type cpuMeter struct {
	pids map[string]func() int
	end  context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	took map[string]map[int]float64 // seconds by name and pid
	from map[string]map[int]float64 // what it had taken when first seen
}

func meter(ctx context.Context, pids map[string]func() int) *cpuMeter {
	ctx, cancel := context.WithCancel(ctx)
	m := &cpuMeter{pids: pids, end: cancel, took: map[string]map[int]float64{}, from: map[string]map[int]float64{}}
	m.look(true)
	m.done.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				m.look(false)
			}
		}
	})
	return m
}

func (m *cpuMeter) stop() {
	m.end()
	m.done.Wait()
}

func (m *cpuMeter) look(first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, of := range m.pids {
		pid := of()
		used, ok := cpuSeconds(pid)
		if !ok {
			continue
		}
		if m.took[name] == nil {
			m.took[name], m.from[name] = map[int]float64{}, map[int]float64{}
		}
		if first {
			m.from[name][pid] = used
		}
		m.took[name][pid] = used - m.from[name][pid]
	}
}

// of is what all lives of a process took together, in seconds.
func (m *cpuMeter) of(name string) (sum float64) {
	m.look(false)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, used := range m.took[name] {
		sum += used
	}
	return sum
}

// cpuSeconds is the user and system time of a process (proc(5), fields 14, 15).
func cpuSeconds(pid int) (float64, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil || pid == 0 {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, false
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	sys, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + sys) / ticks, err1 == nil && err2 == nil
}
