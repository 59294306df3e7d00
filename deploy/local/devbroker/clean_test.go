package devbroker_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"penstock.dev/deploy/local/devbroker"
)

// TestInterruptedCompactionIsUndone guarantees what the second names are for:
// whatever a compaction had removed or half written when the process died, the
// next start has every record that was acknowledged.
func TestInterruptedCompactionIsUndone(t *testing.T) {
	t.Parallel()
	want := []string{"a=1", "a=2", "b=3", "c=4", "d=5"}
	compacted := []string{"a=2", "b=3", "c=4", "d=5"}
	tests := []struct {
		name   string
		damage func(t *testing.T, partition string)
		want   []string
	}{
		{"before it began", func(*testing.T, string) {}, want},
		{"after the old files were removed", func(t *testing.T, dir string) {
			for _, f := range segments(t, dir) {
				remove(t, f)
			}
		}, want},
		{"after some were", func(t *testing.T, dir string) { remove(t, segments(t, dir)[0]) }, want},
		{"with the new file half written", func(t *testing.T, dir string) {
			truncate(t, dir, 100)
		}, want},
		{"in the middle of a batch", func(t *testing.T, dir string) {
			truncate(t, dir, 30)
		}, want},
		{"with the partition's directory gone", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, want},
		{"after it was complete", nil, compacted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := devbroker.Config{Kafka: "127.0.0.1:0", Registry: "127.0.0.1:0", DataDir: t.TempDir()}
			b := start(t, cfg)
			create(t, b, "rules", "cleanup.policy", "compact")
			produce(t, b, "rules", "a", "1", "a", "2", "b", "3", "c", "4", "d", "5")
			if tt.damage == nil { // all that is left to do is to forget the second names
				if err := b.CompactAndDie(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := b.Secure(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			b.Close()
			if tt.damage != nil {
				tt.damage(t, filepath.Join(cfg.DataDir, "kafka", "partitions", "rules-0"))
			}
			b = start(t, cfg)
			if _, got := consume(t, b, len(tt.want), kgo.ConsumeTopics("rules")); !slices.Equal(got, tt.want) {
				t.Errorf("after the restart %v, want %v", got, tt.want)
			}
			if _, err := os.Stat(filepath.Join(cfg.DataDir, "compacting")); !os.IsNotExist(err) {
				t.Errorf("second names are left: %v", err)
			}
			if got := get(t, b.RegistryURL()+"/subjects"); got != "[]" {
				t.Errorf("subjects = %s, want none", got)
			}
		})
	}
}

// segments returns the segment files of a partition.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.dat"))
	if err != nil || len(files) == 0 {
		t.Fatalf("segments of %s: %v, %v", dir, files, err)
	}
	return files
}

// truncate rewrites a partition as compaction does, into new files, and stops
// after some bytes.
func truncate(t *testing.T, dir string, size int) {
	t.Helper()
	for _, f := range segments(t, dir) {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		remove(t, f)
		remove(t, strings.TrimSuffix(f, ".dat")+".idx")
		if err := os.WriteFile(f, raw[:min(size, len(raw))], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func remove(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

// TestRestoreMayBeInterrupted guarantees that a start which dies while it puts
// files back does not take the half for the whole.
func TestRestoreMayBeInterrupted(t *testing.T) {
	t.Parallel()
	live, safe := t.TempDir(), t.TempDir()
	partition := filepath.Join(safe, "rules-0")
	for dir, files := range map[string]map[string]int64{
		partition: {"0": 0, "10": 10, "20": 20},
		filepath.Join(live, "partitions", "rules-0"): {"0": 0, "10": 10}, // put back so far
	} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		for name, offset := range files {
			for _, ext := range []string{".dat", ".idx"} {
				if err := os.WriteFile(filepath.Join(dir, name+ext), devbroker.Batch(offset), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	n, err := devbroker.Restore(live, safe)
	if err != nil || n != 1 {
		t.Fatalf("Restore = %d, %v, want 1 partition", n, err)
	}
	files, err := os.ReadDir(filepath.Join(live, "partitions", "rules-0"))
	if err != nil || len(files) != 6 {
		t.Errorf("files = %v, %v, want all six", files, err)
	}
	order, err := devbroker.LogFiles(filepath.Join(live, "partitions", "rules-0"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"0.idx", "0.dat", "10.idx", "10.dat", "20.idx", "20.dat"} {
		if got := filepath.Base(order[i]); got != want {
			t.Errorf("file %d is put back as %s, want %s: the newest segment comes last", i, got, want)
		}
	}
	if n, err := devbroker.Restore(live, safe); err != nil || n != 0 {
		t.Errorf("Restore again = %d, %v, want nothing to do", n, err)
	}
}
