package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// counting is where money is worked out, and the units that it is made of. Charts, metrics and
// rates, which Redis counts in doubles, are elsewhere.
var counting = []string{
	"services/billing/account", "services/billing/catalog", "services/billing/invoice", "services/billing/metering", "services/billing/postgres",
	"services/billing/rating", "services/billing/reconcile", "services/billing/wallet", "services/internal/money",
	"services/rule-admin/catalog", "services/rule-admin/ledger",
}

// TestMoneyHasNoFloats guarantees FC-27's last sentence: no floating-point number is where
// money and units are worked out, nor in a column of a database.
func TestMoneyHasNoFloats(t *testing.T) {
	t.Parallel()

	for name, src := range map[string]string{
		"a.go": "package a\nvar price float64 = 0.1", "b.go": "package a\nvar x = 1.5", "c.go": "package a\nimport \"math/big\"\nvar x big.Float",
		"d.sql": "CREATE TABLE a (price double  precision)", "e.sql": "ALTER TABLE a ADD fee REAL;",
	} {
		if len(floats(t, name, src)) == 0 {
			t.Errorf("the check no longer refuses %q", src)
		}
	}
	if found := floats(t, "a.sql", "-- really\nCREATE TABLE a (price numeric, realm text)"); len(found) > 0 {
		t.Errorf("the check refuses %v", found)
	}
	seen := map[string]bool{}
	files(t, func(name string) {
		place := slices.IndexFunc(counting, func(dir string) bool { return within(name, dir) })
		sql := strings.HasSuffix(name, ".sql")
		if place < 0 && !sql || strings.HasSuffix(name, "_test.go") || !sql && !strings.HasSuffix(name, ".go") {
			return
		}
		if place >= 0 {
			seen[counting[place]] = true
		}
		for _, what := range floats(t, name, read(t, name)) {
			t.Errorf("%s has %s", name, what)
		}
	})
	for _, dir := range counting {
		if !seen[dir] {
			t.Errorf("%s has no files: is it where money is worked out?", dir)
		}
	}
}

// inexact are the types of columns that hold no exact numbers.
var inexact = regexp.MustCompile(`(?i)\b(real|float\d*|double\s+precision)\b`)

// floats lists the floating-point types and numbers of a file.
func floats(t *testing.T, name, src string) []string {
	t.Helper()
	if strings.HasSuffix(name, ".sql") {
		src = regexp.MustCompile(`--[^\n]*`).ReplaceAllString(src, "")
		return inexact.FindAllString(src, -1)
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if n.Name == "float32" || n.Name == "float64" || n.Name == "Float" {
				out = append(out, n.Name)
			}
		case *ast.BasicLit:
			if n.Kind == token.FLOAT {
				out = append(out, n.Value)
			}
		}
		return true
	})
	return out
}
