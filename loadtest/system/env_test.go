package system_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"penstock.dev/loadtest/system"
)

// TestReadEnv guarantees that what make up writes is read as a shell reads it.
func TestReadEnv(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "estate.env")
	text := "# Where everything is.\n\nPLAIN=http://127.0.0.1:1/x?a=b\nQUOTED='it'\\''s $HOME'\nexport EMPTY=\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := system.ReadEnv(path)
	want := map[string]string{"PLAIN": "http://127.0.0.1:1/x?a=b", "QUOTED": "it's $HOME", "EMPTY": ""}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("ReadEnv = %q (%v), want %q", got, err, want)
	}
	if err := os.WriteFile(path, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := system.ReadEnv(path); err == nil {
		t.Error("a line without = was accepted")
	}
}

// TestLoadStaysOnThisMachine guarantees that no load goes to another machine by
// mistake, whichever address of a file names it.
func TestLoadStaysOnThisMachine(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"http://127.0.0.1:18000":                  true,
		"http://[::1]:18000":                      true,
		"localhost:9092,127.0.0.1:9093":           true,
		"postgres://u:p@127.0.0.2:5432/db?x=y":    true,
		"127.0.0.1:9092,kafka.example.org:9092":   false,
		"http://198.51.100.1:18000":               false,
		"http://127.0.0.1.example.org:80":         false,
		"postgres://127.0.0.1@db.example.org:1/x": false,
		"no address at all, and no port":          false,
	} {
		if got := system.Local(addr); got != want {
			t.Errorf("Local(%q) = %v, want %v", addr, got, want)
		}
	}
}
