package estate

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEnvFileIsReadByAShell guarantees that a shell and readEnv both get back
// what was written, whatever is in it, and that nobody else may read it.
func TestEnvFileIsReadByAShell(t *testing.T) {
	t.Parallel()

	env := map[string]string{
		"PLAIN_URL": "postgres://postgres@127.0.0.1:18011/rule_admin?sslmode=disable",
		"LIST":      "127.0.0.1:1,127.0.0.1:2",
		"NASTY":     `a'b"c $HOME & ; #`,
		"EMPTY":     "",
	}
	path := filepath.Join(t.TempDir(), "estate.env")
	if err := writeEnv(path, "A heading", env); err != nil {
		t.Fatal(err)
	}
	back, err := readEnv(path)
	if err != nil || !maps.Equal(back, env) {
		t.Errorf("readEnv = %q (%v), want %q", back, err, env)
	}
	for name, want := range env {
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `. "$0"; eval "printf %s \"\$$1\""`, path, name).Output()
		if err != nil || string(out) != want {
			t.Errorf("a shell reads %s as %q (%v), want %q", name, out, err, want)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "\nPLAIN_URL=postgres://") {
		t.Errorf("a plain value is quoted:\n%s", b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v (%v), want 0600", info.Mode(), err)
	}
}

// TestSampleCatalogueRefersToItself guarantees that every object comes after
// what it refers to, and that every key's owner is in the catalogue.
func TestSampleCatalogueRefersToItself(t *testing.T) {
	t.Parallel()

	seen := map[string]bool{}
	refer := func(e entry, kind string, id any) {
		if s, ok := id.(string); ok && s != "" && !seen[kind+"/"+s] {
			t.Errorf("%s/%s refers to %s/%s, which does not come before it", e.kind, e.id, kind, s)
		}
	}
	check := func(e entry, o Object) {
		refer(e, "tenants", o["tenant"])
		refer(e, "plans", o["plan"])
		refer(e, "applications", o["application"])
		refer(e, "services", o["service"])
		refer(e, "endpoints", o["endpoint"])
	}
	for _, e := range catalogue("http://127.0.0.1:1") {
		check(e, e.body)
		if match, ok := e.body["match"].(Object); ok {
			check(e, match)
		}
		if seen[e.kind+"/"+e.id] {
			t.Errorf("%s/%s is there twice", e.kind, e.id)
		}
		seen[e.kind+"/"+e.id] = true
	}
	for _, key := range sampleKeys() {
		check(entry{kind: "api-keys", id: key.id}, Object{"tenant": key.tenant, "application": key.application})
	}
}
