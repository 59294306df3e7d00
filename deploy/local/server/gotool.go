package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// Install builds a program from its Go module, once for all clones, and returns
// the binary: <cache>/penstock/tools/<name>-<version>.
func Install(ctx context.Context, name, pkg, version string, run Run) (binary string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	binary = filepath.Join(cache, "tools", name+"-"+version)
	unlock, err := lock(ctx, binary+".lock", run.say)
	if err != nil {
		return "", err
	}
	defer unlock()
	if fileExists(binary) {
		return binary, nil
	}
	run.say("%-13s building %s (two minutes, once)", name, version)
	building, err := os.MkdirTemp(filepath.Dir(binary), "building.")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(building)) }()
	cmd := exec.CommandContext(ctx, "go", "install", pkg+"@"+version)
	cmd.Env = append(os.Environ(), "GOBIN="+building, "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w:\n    %s", cmd, err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "\n    "))
	}
	return binary, os.Rename(filepath.Join(building, path.Base(pkg)), binary)
}
