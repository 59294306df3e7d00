package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lock takes the exclusive lock on path, waiting for whoever holds it, and
// returns what releases it. It is the kernel's lock on an open file: a holder
// that dies releases it, and a file left behind locks nothing. Say is told once
// whom it waits for.
func lock(ctx context.Context, path string, say func(string, ...any)) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			say("waiting for %s, which holds %s", holder(path), path)
			told = true
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s, held by %s: %w", path, holder(path), ctx.Err())
		case <-tick.C:
		}
	}
	// The name of the holder is a courtesy to those who wait; the lock is not in it.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return func() { _ = f.Close() }, nil
}

// Lock takes the exclusive lock on a file, waiting for whoever holds it, and
// returns what releases it. A holder that dies releases it too.
func Lock(ctx context.Context, path string, run Run) (unlock func(), err error) {
	return lock(ctx, path, run.say)
}

// holder names the process that wrote itself into a lock file.
func holder(path string) string {
	b, err := os.ReadFile(path)
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || err2 != nil {
		return "another process"
	}
	return fmt.Sprintf("pid %d (%s)", pid, command(pid))
}

// command is what a process was started as, shortened for a message.
func command(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(b) == 0 {
		if b, err = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err != nil {
			return "ended"
		}
	}
	s := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	if r := []rune(s); len(r) > 120 {
		s = string(r[:120]) + "…"
	}
	return s
}
