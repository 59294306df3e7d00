package system

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"penstock.dev/loadtest/stats"
)

// A Machine is where figures were measured.
type Machine struct {
	At     time.Time `json:"at"`
	Commit string    `json:"commit"` // of the clone; with "+" when it was changed since
	CPUs   int       `json:"cpus"`
	CPU    string    `json:"cpu"`
	Go     string    `json:"go"`
	// Flush is how long the disk takes to keep 8 KB for good, as each commit of
	// the database asks it to.
	Flush      stats.Summary `json:"disk_flush"`
	LoadBefore string        `json:"load_before"` // of the last 1, 5 and 15 minutes
	LoadAfter  string        `json:"load_after"`
}

// Describe returns what a report says of the machine, before the load.
func (s *System) Describe(ctx context.Context) (Machine, error) {
	flush, err := s.flush()
	return Machine{
		At: time.Now().UTC(), Commit: s.commit(ctx), CPUs: runtime.NumCPU(), CPU: cpu(), Go: runtime.Version(),
		Flush: flush, LoadBefore: Load(),
	}, err
}

// flush times the disk below the run's directory.
func (s *System) flush() (stats.Summary, error) {
	const times, size = 100, 8 << 10
	f, err := os.Create(filepath.Join(s.Dir, "flush"))
	if err != nil {
		return stats.Summary{}, err
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, size)
	var took []time.Duration
	for i := range times {
		began := time.Now()
		_, err := f.WriteAt(block, int64(i%8)*size)
		if err = errors.Join(err, syscall.Fdatasync(int(f.Fd()))); err != nil {
			return stats.Summary{}, err
		}
		took = append(took, time.Since(began))
	}
	return stats.Of(took), nil
}

// Load is the machine's load over the last 1, 5 and 15 minutes.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	words := strings.Fields(string(b))
	if err != nil || len(words) < 3 {
		return "unknown"
	}
	return strings.Join(words[:3], " ")
}

func cpu() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func (s *System) commit(ctx context.Context) string {
	rev, err := exec.CommandContext(ctx, "git", "-C", s.Root, "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	changed, err := exec.CommandContext(ctx, "git", "-C", s.Root, "status", "--porcelain", "--untracked-files=no").Output()
	commit := string(bytes.TrimSpace(rev))
	if err != nil || len(bytes.TrimSpace(changed)) > 0 {
		commit += "+"
	}
	return commit
}
