package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// cacheDir is where downloads and templates are kept, outside any clone.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place to keep downloads: %w", err)
	}
	dir = filepath.Join(dir, "penstock")
	return dir, os.MkdirAll(dir, 0o755)
}

// Root is the top of the clone that the working directory lies in, or else this
// program's own file: the directory with go.work and deploy/local.
func Root() (string, error) {
	from, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if root, ok := cloneAround(from); ok {
		return root, nil
	}
	if program, err := os.Executable(); err == nil {
		if root, ok := cloneAround(filepath.Dir(program)); ok {
			return root, nil
		}
	}
	return "", fmt.Errorf("%s lies in no clone of penstock (no go.work above it)", from)
}

func cloneAround(dir string) (root string, ok bool) {
	for {
		if fileExists(filepath.Join(dir, "go.work")) && fileExists(filepath.Join(dir, "deploy", "local", "go.mod")) {
			return dir, true
		}
		if dir == filepath.Dir(dir) {
			return "", false
		}
		dir = filepath.Dir(dir)
	}
}

// copyTree copies directories and regular files with their modes and, when
// this process is root, their owners.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			err = os.Mkdir(target, info.Mode().Perm())
		case info.Mode().IsRegular():
			err = copyFile(path, target, info.Mode().Perm())
		default:
			err = fmt.Errorf("%s is neither a file nor a directory", path)
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			return os.Chown(target, int(st.Uid), int(st.Gid))
		}
		return nil
	})
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	_, err = io.Copy(dst, src)
	return err
}
