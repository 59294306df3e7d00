package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGenerated guarantees that what is committed is what the generator makes of
// the schemas, with the arguments that each package's go:generate line has.
func TestGenerated(t *testing.T) {
	t.Parallel()

	for _, pkg := range []string{"rulesv1", "usagev1", "quotaeventsv1"} {
		source, err := os.ReadFile(filepath.Join("../..", pkg, pkg+".go"))
		if err != nil {
			t.Fatal(err)
		}
		_, line, ok := strings.Cut(string(source), "//go:generate go run ../internal/gen ")
		if !ok {
			t.Fatalf("%s has no go:generate line", pkg)
		}
		line, _, _ = strings.Cut(line, "\n")
		line, extra, _ := strings.Cut(line, `-extra "`)
		args := strings.Fields(line)
		args[1] = filepath.Join("../..", filepath.Base(args[1]))
		if extra != "" {
			args = append(args, "-extra", strings.TrimSuffix(extra, `"`))
		}
		dir := filepath.Join(t.TempDir(), pkg)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := run(append(args, "-dir", dir)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "types_gen.go"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("../..", pkg, "types_gen.go"))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s/types_gen.go is stale: run go generate ./...", pkg)
		}
	}
}

// TestRefused guarantees that the generator stops at what the house does not
// use, and does not guess at a Go type for it.
func TestRefused(t *testing.T) {
	t.Parallel()

	for name, field := range map[string]string{
		"a map":                 `{"type": "map", "values": "string"}`,
		"a double":              `"double"`,
		"a union of two":        `["string", "long"]`,
		"null last":             `["long", "null"]`,
		"a union of three":      `["null", "string", "long"]`,
		"a type of no name":     `"Nobody"`,
		"a type twice":          `{"type": "fixed", "name": "Root", "size": 3}`,
		"an array of a map":     `{"type": "array", "items": {"type": "map", "values": "int"}}`,
		"a record with a float": `{"type": "record", "name": "R", "fields": [{"name": "f", "type": "float"}]}`,
	} {
		dir := t.TempDir()
		schema := filepath.Join(dir, "x.avsc")
		text := `{"type": "record", "name": "Root", "fields": [{"name": "f", "doc": "d", "type": ` + field + `}]}`
		if err := os.WriteFile(schema, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{"-schema", schema, "-dir", dir}); err == nil {
			t.Errorf("%s is generated", name)
		}
		if _, err := os.Stat(filepath.Join(dir, "types_gen.go")); err == nil {
			t.Errorf("%s leaves a file", name)
		}
	}
	if err := run([]string{"-schema", filepath.Join(t.TempDir(), "none.avsc")}); err == nil {
		t.Error("a schema that is not there is generated")
	}
}
