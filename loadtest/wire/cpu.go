package wire

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU is what the calling thread has taken.
func threadCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
