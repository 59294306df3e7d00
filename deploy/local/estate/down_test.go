package estate

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock.dev/deploy/local/server"
)

// TestDownSaysWhoHadDied guarantees that whoever stops an estate hears of a process that
// had ended by itself, and of no other.
func TestDownSaysWhoHadDied(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	for _, name := range []string{Gateway, Billing} {
		p, err := server.Start(t.Context(), server.Spec{
			Name: name, Path: "/bin/sleep", Args: []string{"600"}, Dir: filepath.Join(dir, dataDir, name),
			Ready: func(context.Context) error { return nil }, Run: server.Run{Detach: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		if name == Gateway {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-p.Exited()
		}
	}
	var said []string
	stopped, err := Down(t.Context(), dir, func(line string) { said = append(said, line) })
	if err != nil || len(stopped) != 1 || stopped[0] != Billing {
		t.Errorf("stopped %v, %v; want billing alone", stopped, err)
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "gateway (pid ") || !strings.Contains(said[0], "had died before") || !strings.HasSuffix(said[0], "gateway.log has its last words") {
		t.Errorf("said %q, want that the gateway had died", said)
	}
	if _, err := Down(t.Context(), dir, func(line string) { t.Errorf("the second time it is said: %s", line) }); err != nil {
		t.Error(err)
	}
}
