// Package conftest holds a service's README to the knobs that the service
// really has. It is for tests.
package conftest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"penstock.dev/services/internal/conf"
)

const header = "| Flag | Environment | Default | Sets |\n|---|---|---|---|\n"

// README fails t unless the Markdown file at path has exactly one table of
// knobs, and it is the table of the given ones: every knob, in order, with
// its default and its usage text. The failure prints the table to paste.
func README(t testing.TB, path string, knobs []conf.Knob) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Table(knobs)
	switch got, n := table(string(text)); {
	case n != 1:
		t.Errorf("%s has %d tables of knobs, want 1:\n%s", path, n, want)
	case got != want:
		t.Errorf("the table of knobs in %s is not the service's own. It says\n%s\nand should say\n%s", path, got, want)
	}
}

// Table returns the Markdown table of knobs, each line ended.
func Table(knobs []conf.Knob) string {
	var b strings.Builder
	b.WriteString(header)
	for _, k := range knobs {
		def := ""
		if k.Default != "" {
			def = "`" + k.Default + "`"
		}
		fmt.Fprintf(&b, "| `-%s` | `%s` | %s | %s |\n", k.Flag, k.Env, cell(def), cell(k.Usage))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// table returns the first table that begins with the header, and how many do.
func table(text string) (string, int) {
	n := strings.Count(text, header)
	if n == 0 {
		return "", 0
	}
	rest := text[strings.Index(text, header):]
	end := 0
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		end += len(line)
	}
	return rest[:end], n
}
