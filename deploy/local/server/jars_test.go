package server_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// bundle is a small one: two files whose content is their name.
func bundle() server.Bundle {
	var list strings.Builder
	for _, name := range []string{"a-1.jar", "b-2.jar"} {
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256([]byte(name)), name)
	}
	return server.Bundle{Name: "small", Version: "1.0", Digests: list.String()}
}

func write(into string, files map[string]string) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(into, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func good(_ context.Context, _ server.Bundle, into string, _ func(string, ...any)) error {
	return write(into, map[string]string{"a-1.jar": "a-1.jar", "b-2.jar": "b-2.jar"})
}

func say(t *testing.T) func(string, ...any) {
	return func(format string, args ...any) { t.Logf(format, args...) }
}

// TestFetchRefusesOtherFiles guarantees that nothing is used that differs from
// the committed digests, and that the error names the file.
func TestFetchRefusesOtherFiles(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"an altered file", map[string]string{"a-1.jar": "a-1.jar", "b-2.jar": "evil"}, "b-2.jar has SHA-256"},
		{"a file too many", map[string]string{"a-1.jar": "a-1.jar", "b-2.jar": "b-2.jar", "c.jar": "c.jar"}, "c.jar is not in the list"},
		{"a file too few", map[string]string{"a-1.jar": "a-1.jar"}, "b-2.jar is missing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cache := t.TempDir()
			get := func(_ context.Context, _ server.Bundle, into string, _ func(string, ...any)) error {
				return write(into, tt.files)
			}
			_, err := server.Fetch(t.Context(), cache, bundle(), get, say(t))
			if !errors.Is(err, server.ErrDigest) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want ErrDigest and %q", err, tt.want)
			}
			if _, err := os.Stat(filepath.Join(cache, "small-1.0")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the refused download is in place: %v", err)
			}
		})
	}
}

// TestFetchSurvivesAnInterruptedDownload guarantees that what an interrupted
// download left is thrown away and never used.
func TestFetchSurvivesAnInterruptedDownload(t *testing.T) {
	t.Parallel()

	cache := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := func(ctx context.Context, _ server.Bundle, into string, _ func(string, ...any)) error {
		if err := write(into, map[string]string{"a-1.jar": "a-1", "junk": "junk"}); err != nil {
			return err
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	if _, err := server.Fetch(ctx, cache, bundle(), interrupted, say(t)); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v, want context.Canceled", err)
	}
	dir, err := server.Fetch(t.Context(), cache, bundle(), good, say(t))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%s holds %v (%v), want the two files of the list", dir, entries, err)
	}
}

// TestFetchHealsADamagedCache guarantees that a file that changed in the cache
// is noticed at the next start and fetched again.
func TestFetchHealsADamagedCache(t *testing.T) {
	t.Parallel()

	cache := t.TempDir()
	dir, err := server.Fetch(t.Context(), cache, bundle(), good, say(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := write(dir, map[string]string{"a-1.jar": "rotten"}); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Fetch(t.Context(), cache, bundle(), good, say(t)); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "a-1.jar"))
	if err != nil || string(b) != "a-1.jar" {
		t.Errorf("a-1.jar = %q, %v; want it whole again", b, err)
	}
}

// TestFetchDownloadsOnce guarantees that many who ask at the same moment cause
// one download.
func TestFetchDownloadsOnce(t *testing.T) {
	t.Parallel()

	cache := t.TempDir()
	var downloads atomic.Int32
	get := func(ctx context.Context, b server.Bundle, into string, say func(string, ...any)) error {
		downloads.Add(1)
		return good(ctx, b, into, say)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := server.Fetch(t.Context(), cache, bundle(), get, say(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := downloads.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
}

// TestMavenIsUnderstood guarantees that downloads are counted, and that what
// Maven complains of is shown rather than what it says besides.
func TestMavenIsUnderstood(t *testing.T) {
	t.Parallel()

	var files atomic.Int64
	const out = `[INFO] Scanning for projects...
[INFO] Downloading from central: https://example.org/a.pom
[INFO] Downloaded from central: https://example.org/a.pom (1 kB at 2 kB/s)
[INFO] Downloading from central: https://example.org/a.jar
[INFO] Downloaded from central: https://example.org/a.jar (1 kB at 2 kB/s)
[ERROR] Failed to execute goal: no such artifact
[INFO] BUILD FAILURE
`
	lines := server.MavenLines(strings.NewReader(out), &files)
	if want := []string{"[ERROR] Failed to execute goal: no such artifact"}; files.Load() != 2 || !slices.Equal(lines, want) {
		t.Errorf("%d files, %q; want 2 and %q", files.Load(), lines, want)
	}
}

// TestLockOfADeadHolder guarantees that a lock whose holder was killed, and a
// lock file that was left behind, stop nobody.
func TestLockOfADeadHolder(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "a.lock")
	holder, line := play(t, "locker", path)
	if line != "locked" {
		t.Fatalf("the holder says %q", line)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := server.Lock(ctx, path, logged(t))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), strconv.Itoa(holder.Process.Pid)) {
		t.Fatalf("lock while held = %v, want a timeout that names the holder", err)
	}

	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	unlock, err := server.Lock(t.Context(), path, logged(t))
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	unlock, err = server.Lock(t.Context(), path, logged(t))
	if err != nil {
		t.Fatalf("lock with a file left behind: %v", err)
	}
	unlock()
}
