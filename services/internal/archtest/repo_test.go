package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// root is the prefix of every module path; inside the repository, packages are
// written relative to it.
const root = "penstock.dev"

// tags are the build tags that hide test files from a plain build. Every tag in
// the tree is here, or its files would be checked by nothing (TestBuildTags).
var tags = []string{"acceptance", "cluster", "integration"}

// A pkg is what go list says about one package of the workspace.
type pkg struct {
	ImportPath   string
	Dir          string
	Name         string
	GoFiles      []string
	CgoFiles     []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	Error        *struct{ Err string }
}

// rel is the package's path inside the repository.
func (p pkg) rel() string { return inside(p.ImportPath) }

func inside(importPath string) string { return strings.TrimPrefix(importPath, root+"/") }

// top is the root of the repository, two folders above this module's.
var top = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		return "", err
	}
	_, err = os.Stat(filepath.Join(dir, "go.work"))
	return dir, err
})

func repo(t *testing.T) string {
	t.Helper()
	dir, err := top()
	if err != nil {
		t.Fatalf("the root of the repository: %v", err)
	}
	return dir
}

// workspace lists every package of every module, with the files of all tags.
var workspace = sync.OnceValues(func() ([]pkg, error) {
	dir, err := top()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-e", "-json", "-tags", strings.Join(tags, ","), root+"/...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=")
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, stderr(err))
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs, nil
		case err != nil:
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
})

func stderr(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return errors.New(string(exit.Stderr))
	}
	return nil
}

func packages(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := workspace()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, p := range pkgs {
		if p.Error != nil {
			t.Errorf("%s does not load: %s", p.rel(), p.Error.Err)
		}
	}
	return pkgs
}

// services are the deployables: the folders of services/ but internal.
func services(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(repo(t), "services"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "internal" {
			names = append(names, e.Name())
		}
	}
	return names
}

// service is the deployable that a package belongs to, or "".
func service(rel string) string {
	name, ok := strings.CutPrefix(rel, "services/")
	if !ok {
		return ""
	}
	name, _, _ = strings.Cut(name, "/")
	if name == "internal" {
		return ""
	}
	return name
}

// within reports whether a package is one of roots or below one.
func within(rel string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(r string) bool {
		return rel == r || strings.HasPrefix(rel, r+"/")
	})
}

// files calls f with every file of the tree that a person wrote or a generator
// committed, by slash-separated path from the root.
func files(t *testing.T, f func(name string)) {
	t.Helper()
	dir := repo(t)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case d.IsDir() && slices.Contains([]string{".git", "bin", ".run"}, rel):
			return fs.SkipDir
		case d.IsDir() && d.Name() == "testdata" && strings.Contains(rel, "/fuzz/"):
			return fs.SkipDir
		case d.Type().IsRegular():
			f(rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// isText reports whether a file of the tree is one that people read.
func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".md", ".lua", ".sql", ".yaml", ".yml", ".json", ".avsc", ".sh", ".mod", ".txt", ".properties", ".xml":
		return true
	}
	return slices.Contains([]string{"Makefile", ".ci/run"}, name)
}
