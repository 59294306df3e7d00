package archtest

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPackageComments guarantees that every package says once what it is for:
// no package without a comment, and none with two that can disagree.
func TestPackageComments(t *testing.T) {
	t.Parallel()

	for _, p := range packages(t) {
		var commented []string
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Errorf("%s: %v", p.rel(), err)
				continue
			}
			if f.Doc != nil {
				commented = append(commented, name)
			}
		}
		if len(p.GoFiles) > 0 && len(commented) != 1 {
			t.Errorf("%s has %d package comments %v, want 1", p.rel(), len(commented), commented)
		}
	}
}

// refusedNames are package names that say nothing about what is inside, so
// that everything ends up there.
var refusedNames = []string{
	"base", "common", "core", "helper", "helpers", "impl", "lib", "manager", "misc", "pkg", "shared", "src", "types", "util", "utils",
}

func refusedName(importPath string) bool {
	return slices.ContainsFunc(strings.Split(importPath, "/"), func(part string) bool {
		return slices.Contains(refusedNames, part) || strings.HasSuffix(part, "utils") || strings.HasSuffix(part, "util")
	})
}

// TestPackageNames guarantees that every package is named for what it knows.
func TestPackageNames(t *testing.T) {
	t.Parallel()

	if !refusedName("services/internal/util") || !refusedName("services/gateway/httputil") || refusedName("services/gateway/decide") {
		t.Error("the list no longer refuses what it is there to refuse")
	}
	for _, p := range packages(t) {
		if refusedName(p.rel()) {
			t.Errorf("%s: a package is named for what it knows, never %s", p.rel(), path.Base(p.rel()))
		}
	}
}

// sections are the headings of a service's README, in order.
var sections = []string{"## Promise", "## Reads, writes, keeps", "## Knobs", "## Alerts", "## Non-obvious"}

// TestServices guarantees that every service has its papers: a README with the
// five sections in order, a test that holds its table of knobs to the code,
// and no library in its main.
func TestServices(t *testing.T) {
	t.Parallel()

	edges := imports(packages(t))
	names := services(t)
	if len(names) == 0 {
		t.Fatal("there are no services")
	}
	for _, name := range names {
		readme := filepath.Join(repo(t), "services", name, "README.md")
		text, err := os.ReadFile(readme)
		if err != nil {
			t.Errorf("services/%s has no README.md: %v", name, err)
			continue
		}
		if got := headings(strings.Split(string(text), "\n")); !slices.Equal(got, sections) {
			t.Errorf("services/%s/README.md has the sections %q, want %q", name, got, sections)
		}
		if !strings.HasPrefix(string(text), "# "+name+"\n") {
			t.Errorf("services/%s/README.md does not begin with %q", name, "# "+name)
		}
		if !slices.Contains(edges, edge{"services/" + name, "services/internal/conf/conftest", true}) {
			t.Errorf("services/%s has no test that holds README's knobs to the code: call conftest.README", name)
		}
	}
}

// refusedDeps says what a binary must not be linked with, directly or through
// others, and why.
var refusedDeps = []struct {
	why    string
	binary string // a package or what lies below it
	refuse func(dep string) bool
	proof  string
}{
	{
		"test code in a binary is weight, flags and surprises",
		"services", func(dep string) bool { return dep == "testing" || kit(inside(dep)) },
		"testing",
	},
	{
		"a service starts no servers",
		"services", func(dep string) bool { return within(inside(dep), "deploy", "loadtest") },
		root + "/deploy/local/server",
	},
	{
		"the decision path must not wait on PostgreSQL or Elasticsearch",
		"services/gateway", func(dep string) bool {
			return within(dep, "github.com/jackc", "github.com/lib/pq", "github.com/elastic") ||
				within(inside(dep), "services/internal/postgres")
		},
		"github.com/jackc/pgx/v5/pgxpool",
	},
	{
		"the indexer writes a view and owns no other store",
		"services/usage-indexer", func(dep string) bool {
			return within(dep, "github.com/jackc", "github.com/redis") || within(inside(dep), "services/internal/counters", "services/internal/postgres")
		},
		"github.com/redis/go-redis/v9",
	},
	{
		"a charge is made by the gateway alone; the relay moves bytes",
		"services/outbox-relay", func(dep string) bool {
			return within(inside(dep), "services/internal/counters") || within(dep, "github.com/redis")
		},
		root + "/services/internal/counters",
	},
}

// TestLinkedPackages guarantees what is in each binary, through however many
// packages it would have come.
func TestLinkedPackages(t *testing.T) {
	t.Parallel()

	for _, r := range refusedDeps {
		if !r.refuse(r.proof) {
			t.Errorf("rule %q no longer refuses %s", r.why, r.proof)
		}
	}
	for _, b := range binaries(t) {
		for _, r := range refusedDeps {
			if !within(b.rel(), r.binary) {
				continue
			}
			for _, dep := range b.Deps {
				if r.refuse(dep) {
					t.Errorf("%s is linked with %s: %s", b.rel(), dep, r.why)
				}
			}
		}
	}
}

// binaries lists the main packages below services with all that they link.
func binaries(t *testing.T) []pkg {
	t.Helper()
	args := []string{"list", "-json"}
	for _, p := range packages(t) {
		if p.Name == "main" && within(p.rel(), "services") {
			args = append(args, p.ImportPath)
		}
	}
	if len(args) == 2 {
		return nil
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = repo(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", errors.Join(err, stderr(err)))
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, p)
	}
}
