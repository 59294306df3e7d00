package archtest

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dependencies is the decision that justifies every library.
const dependencies = adrDir + "0034-dependencies.md"

var (
	modModule  = regexp.MustCompile(`(?m)^module (\S+)$`)
	modGo      = regexp.MustCompile(`(?m)^go (\S+)$`)
	modReplace = regexp.MustCompile(`(?m)^\s*(?:replace )?(\S+) => (\S+)`)
	modRequire = regexp.MustCompile(`(?m)^(?:require\s+|\t)(\S+\.\S+/\S+) v\S+$`)
	modTool    = regexp.MustCompile(`(?m)^(?:tool\s+|\t)(\S+\.\S+/\S+)$`)
	workUse    = regexp.MustCompile(`(?m)^\t\./(\S+)$`)
)

// TestModules guarantees the shape of the workspace (docs/adr/0002): go.work
// lists every module, a module's path is its folder, all ask for one Go, and
// nothing but a sibling is replaced.
func TestModules(t *testing.T) {
	t.Parallel()

	var folders []string
	for _, m := range workUse.FindAllStringSubmatch(read(t, "go.work"), -1) {
		folders = append(folders, m[1])
	}
	want := modGo.FindStringSubmatch(read(t, "go.work"))
	for _, name := range goMods(t) {
		folder, text := path.Dir(name), read(t, name)
		if !slices.Contains(folders, folder) {
			t.Errorf("%s is not in go.work", name)
		}
		if m := modModule.FindStringSubmatch(text); m == nil || m[1] != root+"/"+folder {
			t.Errorf("%s declares %v, want module %s/%s", name, m, root, folder)
		}
		if m := modGo.FindStringSubmatch(text); m == nil || minor(m[1]) != minor(want[1]) {
			t.Errorf("%s asks for another Go than go.work, which says %s", name, want[1])
		}
		for _, m := range modReplace.FindAllStringSubmatch(text, -1) {
			if root+"/"+path.Join(folder, m[2]) != m[1] {
				t.Errorf("%s replaces %s by %s: only siblings are replaced, each by its own folder", name, m[1], m[2])
			}
		}
	}
}

// minor is the language version of a go line: 1.26 of 1.26.0.
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func goMods(t *testing.T) []string {
	t.Helper()
	var out []string
	files(t, func(name string) {
		if path.Base(name) == "go.mod" {
			out = append(out, name)
		}
	})
	if len(out) == 0 {
		t.Fatal("there are no modules")
	}
	return out
}

// TestDependencies guarantees that every library that a module asks for by
// itself has its sentence in the decision about dependencies, and that no
// sentence has outlived its library.
func TestDependencies(t *testing.T) {
	t.Parallel()

	text := read(t, dependencies)
	used := map[string]bool{}
	for _, name := range goMods(t) {
		for _, lib := range required(read(t, name)) {
			used[lib] = true
			if !strings.Contains(text, "`"+lib+"`") {
				t.Errorf("%s requires %s, and %s does not say why", name, lib, dependencies)
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(text, -1) {
		if !used[m[1]] {
			t.Errorf("%s explains %s, which no module requires", dependencies, m[1])
		}
	}
}

// required lists the libraries that a go.mod names as direct requirements or
// tools; siblings are none.
func required(mod string) []string {
	var out []string
	for _, m := range slices.Concat(modRequire.FindAllStringSubmatch(mod, -1), modTool.FindAllStringSubmatch(mod, -1)) {
		if !strings.HasPrefix(m[1], root+"/") {
			out = append(out, m[1])
		}
	}
	return out
}

// TestRequiredReadsGoMod guarantees that direct requirements and tools are
// found in either spelling, and indirect ones are not.
func TestRequiredReadsGoMod(t *testing.T) {
	t.Parallel()

	mod := "module m\n\ngo 1.26\n\nrequire github.com/a/one v1.0.0\n\nrequire (\n\tgithub.com/b/two/v2 v2.1.0\n" +
		"\tgithub.com/c/three v0.0.0 // indirect\n\tpenstock.dev/schemas v0.0.0\n)\n\ntool example.com/d/four\n"
	want := []string{"github.com/a/one", "github.com/b/two/v2", "example.com/d/four"}
	if got := required(mod); !slices.Equal(got, want) {
		t.Errorf("required = %q, want %q", got, want)
	}
}
