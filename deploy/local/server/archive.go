package server

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unpacked returns the directory of what a bundle of one archive holds, from the
// user's cache: the only folder at the archive's top. Every start compares all
// files with the archive, whose own digest has been verified; what was damaged is
// unpacked again.
func unpacked(ctx context.Context, b Bundle, run Run) (string, error) {
	dir, err := jars(ctx, b, run)
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, dir+".lock", run.say)
	if err != nil {
		return "", err
	}
	defer unlock()
	return unpackArchive(filepath.Join(dir, b.Name+"-"+b.Version+".zip"), dir+".unpacked", b.Without, run.say)
}

// unpackArchive makes home hold what the archive does, and returns it.
func unpackArchive(path, home string, without []string, say func(string, ...any)) (string, error) {
	archive, err := zip.OpenReader(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = archive.Close() }()
	files := slices.DeleteFunc(archive.File, func(f *zip.File) bool {
		rel := below(f)
		return slices.ContainsFunc(without, func(folder string) bool { return strings.HasPrefix(rel, folder) })
	})
	if intact(files, home) == nil {
		return home, nil
	}
	say("%s: unpacking (a few seconds, once)", filepath.Base(path))
	partial := home + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", err
	}
	for _, f := range files {
		if err := unpack(f, partial); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := intact(files, partial); err != nil {
		return "", err
	}
	return home, errors.Join(os.RemoveAll(home), os.Rename(partial, home))
}

// below is a file's name without the archive's top folder.
func below(f *zip.File) string {
	_, rel, _ := strings.Cut(f.Name, "/")
	return rel
}

// place is where a file of an archive belongs.
func place(f *zip.File, home string) (string, error) {
	rel := below(f)
	if rel == "" { // the top folder itself
		return home, nil
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("the archive holds %q, which lies outside of it", f.Name)
	}
	return filepath.Join(home, rel), nil
}

func unpack(f *zip.File, home string) (err error) {
	path, err := place(f, home)
	if err != nil {
		return err
	}
	if f.FileInfo().IsDir() {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	src, err := f.Open()
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, f.Mode().Perm()|0o444)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	_, err = io.Copy(dst, src) //nolint:gosec // the archive's digest is the committed one
	return err
}

// intact returns what is wrong with the first unpacked file that is not as in
// the archive.
func intact(files []*zip.File, home string) error {
	for _, f := range files {
		path, err := place(f, home)
		if err != nil {
			return err
		}
		if f.FileInfo().IsDir() {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if crc32.ChecksumIEEE(b) != f.CRC32 {
			return fmt.Errorf("%w: %s is not as in the archive", ErrDigest, path)
		}
	}
	return nil
}
