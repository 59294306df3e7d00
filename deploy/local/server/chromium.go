package server

import (
	"context"
	"fmt"
	"os/exec"
)

// FindChromium returns the path of a Chromium that draws without a screen, and
// installs Debian's when there is none.
func FindChromium(ctx context.Context, run Run) (string, error) {
	if err := Need(ctx, run, Chromium); err != nil {
		return "", fmt.Errorf("chromium: %w", err)
	}
	return chromiumPath()
}

// chromiumPath prefers the one that has no screen at all: it is smaller and
// starts faster.
func chromiumPath() (path string, err error) {
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}
