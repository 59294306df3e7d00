package bench

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"penstock.dev/deploy/local/estate"
)

// cpuOf is what a process has taken so far, by the kernel's account, to the
// nanosecond: its CPU clock, whose number is made of the process's
// (clock_getcpuclockid(3)). 0 for a process that is not there.
func cpuOf(pid int) time.Duration {
	const schedClock = 2
	var ts unix.Timespec
	if pid <= 0 || unix.ClockGettime(int32(^pid)<<3|schedClock, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// busy is what all processes of this machine have taken so far, to a
// hundredth of a second (proc(5), /proc/stat).
func busy() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int64
	for i, field := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // its name, idle, waiting for disks, guests
			continue
		}
		n, _ := strconv.ParseInt(field, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// ownCPU is what this process has taken so far.
func ownCPU() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// A meter is the kernel's accounts while something was measured.
type meter struct{ before, after spent }

type spent struct {
	at                              time.Time
	server, redis, broker, own, all time.Duration
}

func (m *meter) begin(b *bench, c *contender) { m.before = b.spent(c) }
func (m *meter) end(b *bench, c *contender)   { m.after = b.spent(c) }

func (b *bench) spent(c *contender) spent {
	return spent{
		at: time.Now(), server: cpuOf(c.process.PID()), redis: cpuOf(b.redis.PID()), broker: cpuOf(b.system.Process(estate.Kafka).PID()),
		own: ownCPU(), all: busy(),
	}
}

// others is the share of this machine's CPU that those took which are not
// measured.
func (m *meter) others() float64 {
	known := func(s spent) time.Duration { return s.server + s.redis + s.broker + s.own }
	others := m.after.all - m.before.all - (known(m.after) - known(m.before))
	there := m.after.at.Sub(m.before.at) * time.Duration(runtime.NumCPU())
	return max(0, others.Seconds()/max(there.Seconds(), 1e-9))
}
