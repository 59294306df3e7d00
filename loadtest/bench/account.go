package bench

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
