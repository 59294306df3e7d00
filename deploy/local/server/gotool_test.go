package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

// TestInstall guarantees that a program is not built again, that Go says why it
// cannot be built, and that nothing is left of that.
func TestInstall(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("GOPROXY", "off")
	const pkg = "penstock.example/cmd/tool"
	tools := filepath.Join(cache, "penstock", "tools")
	_, err := server.Install(t.Context(), "tool", pkg, "v1.0.0", server.Run{})
	if err == nil || !strings.Contains(err.Error(), pkg+"@v1.0.0") {
		t.Errorf("err = %v, want Go's words about %s", err, pkg)
	}
	if left, err := filepath.Glob(filepath.Join(tools, "building.*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	want := filepath.Join(tools, "tool-v1.0.0")
	if err := os.WriteFile(want, nil, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if got, err := server.Install(t.Context(), "tool", pkg, "v1.0.0", server.Run{}); err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
