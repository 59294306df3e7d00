package server_test

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/deploy/local/server"
)

// archive writes a zip of files whose content is their name.
func archive(t *testing.T, names ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.zip")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	for _, name := range names {
		entry, err := w.Create(name)
		if err == nil {
			_, err = entry.Write([]byte(name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestArchiveIsUnpackedOnce guarantees that an archive lies there without its top
// folder and without what is left out, that it is not unpacked again, and that a
// file that was damaged is noticed and put right.
func TestArchiveIsUnpackedOnce(t *testing.T) {
	t.Parallel()

	path, home := archive(t, "top-1.0/bin/run", "top-1.0/modules/extra/x", "top-1.0/notice"), filepath.Join(t.TempDir(), "home")
	unpackings := 0
	count := func(string, ...any) { unpackings++ }
	use := func(wantUnpackings int) {
		t.Helper()
		if _, err := server.UnpackArchive(path, home, []string{"modules/extra/"}, count); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(home, "bin", "run"))
		if err != nil || string(b) != "top-1.0/bin/run" {
			t.Errorf("bin/run holds %q (%v)", b, err)
		}
		if unpackings != wantUnpackings {
			t.Errorf("unpacked %d times, want %d", unpackings, wantUnpackings)
		}
	}
	use(1)
	use(1)
	if _, err := os.Stat(filepath.Join(home, "modules")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was to be left out is there (%v)", err)
	}
	if err := os.WriteFile(filepath.Join(home, "bin", "run"), []byte("rotten"), 0o600); err != nil {
		t.Fatal(err)
	}
	use(2)
}

// TestArchiveCannotLeaveItsFolder guarantees that no name in an archive reaches
// a file outside of its folder.
func TestArchiveCannotLeaveItsFolder(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	_, err := server.UnpackArchive(archive(t, "top/../../evil"), filepath.Join(dir, "home"), nil, say(t))
	if err == nil || !strings.Contains(err.Error(), "outside") {
		t.Errorf("err = %v, want a refusal", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "evil")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file outside of the folder was written (%v)", err)
	}
}
