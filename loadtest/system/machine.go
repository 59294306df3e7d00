package system

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// A Machine is where figures were measured.
type Machine struct {
	At         time.Time `json:"at"`
	Commit     string    `json:"commit"` // of the clone; with "+" when it was changed since
	CPUs       int       `json:"cpus"`
	CPU        string    `json:"cpu"`
	Go         string    `json:"go"`
	LoadBefore string    `json:"load_before"` // of the last 1, 5 and 15 minutes
	LoadAfter  string    `json:"load_after"`
}

// Describe returns what a report says of the machine, before the load.
func (s *System) Describe(ctx context.Context) Machine {
	return Machine{
		At: time.Now().UTC(), Commit: s.commit(ctx), CPUs: runtime.NumCPU(), CPU: cpu(), Go: runtime.Version(),
		LoadBefore: Load(),
	}
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
