package archtest

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// platforms are the tags that the toolchain sets by itself.
var platforms = []string{"amd64", "arm64", "darwin", "ignore", "linux", "race", "unix", "windows"}

// TestBuildTags guarantees that no file hides behind a tag that these tests do
// not set when they ask for the import graph.
func TestBuildTags(t *testing.T) {
	t.Parallel()

	line := regexp.MustCompile(`(?m)^//go:build .*$`)
	files(t, func(name string) {
		if path.Ext(name) != ".go" {
			return
		}
		for _, l := range line.FindAllString(read(t, name), -1) {
			expr, err := constraint.Parse(l)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			expr.Eval(func(tag string) bool {
				if !slices.Contains(tags, tag) && !slices.Contains(platforms, tag) {
					t.Errorf("%s is behind the tag %s, which no target of the Makefile sets", name, tag)
				}
				return true
			})
		}
	})
}

// TestEveryTestHasATarget guarantees that each test behind a tag is run by the
// Makefile's target of that tag: make integration runs what has Integration in
// its name, make acceptance all of the acceptance module.
func TestEveryTestHasATarget(t *testing.T) {
	t.Parallel()

	for _, src := range []string{"//go:build integration\n\npackage a\nfunc TestStore(t *testing.T) {}", "package a\nfunc TestStoreIntegration(t *testing.T) {}"} {
		if len(homeless(t, "services/a/a_test.go", src)) != 1 {
			t.Errorf("the check no longer refuses %q", src)
		}
	}
	files(t, func(name string) {
		if strings.HasSuffix(name, "_test.go") {
			for _, f := range homeless(t, name, read(t, name)) {
				t.Errorf("%s", f)
			}
		}
	})
}

// homeless lists the tests of a file that no target runs, or the wrong one.
func homeless(t *testing.T, name, src string) []string {
	t.Helper()
	integration := strings.Contains(src, "//go:build integration\n")
	if acceptance := strings.Contains(src, "//go:build acceptance\n"); acceptance && !within(name, "deploy/acceptance") {
		return []string{name + " is behind the tag acceptance, outside deploy/acceptance"}
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	var out []string
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
			continue
		}
		if named := strings.Contains(fn.Name.Name, "Integration"); named != integration {
			out = append(out, fmt.Sprintf("%s: %s: tests behind the tag integration, and no others, have Integration in their names", name, fn.Name.Name))
		}
	}
	return out
}

// TestTestsNeitherSleepNorSkip guarantees that a test waits for what it wants
// to see and not for a time, and that a missing server fails it
// (docs/adr/0024). Virtual time may be slept through; a fuzz target may skip
// what is outside its domain.
func TestTestsNeitherSleepNorSkip(t *testing.T) {
	t.Parallel()

	seen := 0
	files(t, func(name string) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		seen++
		for _, f := range lazyCalls(t, name, read(t, name)) {
			t.Errorf("%s", f)
		}
	})
	if seen == 0 {
		t.Error("no test file was read")
	}
}

// TestLazyCallsAreFound guarantees that the check above can fail.
func TestLazyCallsAreFound(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, body string
		faults     int
	}{
		{"a sleep fails", `func TestA(t *testing.T) { time.Sleep(1) }`, 1},
		{"a sleep in virtual time passes", `func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }`, 0},
		{"a skip fails", `func TestA(t *testing.T) { t.Skip("no redis") }`, 1},
		{"a skip in a fuzz target passes", `func FuzzA(f *testing.F) { f.Fuzz(func(t *testing.T, n int) { t.Skip() }) }`, 0},
		{"asking for a short run fails", `func TestA(t *testing.T) { if testing.Short() { return } }`, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if got := lazyCalls(t, "a_test.go", "package a\n"+tt.body); len(got) != tt.faults {
				t.Errorf("faults %q, want %d", got, tt.faults)
			}
		})
	}
}

// lazyCalls lists the sleeps outside virtual time and the skips outside fuzz
// targets in one file.
func lazyCalls(t *testing.T, name, src string) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	var out []string
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		fuzz := ok && strings.HasPrefix(fn.Name.Name, "Fuzz")
		ast.Inspect(decl, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch called := selector(call.Fun); {
			case called == "synctest.Test":
				return false
			case called == "time.Sleep", called == "testing.Short",
				!fuzz && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, called[strings.LastIndex(called, ".")+1:]):
				out = append(out, fmt.Sprintf("%s calls %s", fset.Position(call.Pos()), called))
			}
			return true
		})
	}
	return out
}

// selector is a call's function as written, x.F, or "" when it is not of that
// form.
func selector(fun ast.Expr) string {
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return "." + sel.Sel.Name
	}
	return x.Name + "." + sel.Sel.Name
}
