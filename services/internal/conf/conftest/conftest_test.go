package conftest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/conf/conftest"
)

var knobs = []conf.Knob{
	{Flag: "listen", Env: "PENSTOCK_LISTEN", Default: "127.0.0.1:8080", Usage: "data port, host:port"},
	{Flag: "token", Env: "PENSTOCK_TOKEN", Usage: "one of a|b"},
}

const readme = "# Gate\n\n## Knobs\n\n" +
	"| Flag | Environment | Default | Sets |\n|---|---|---|---|\n" +
	"| `-listen` | `PENSTOCK_LISTEN` | `127.0.0.1:8080` | data port, host:port |\n" +
	"| `-token` | `PENSTOCK_TOKEN` |  | one of a\\|b |\n" +
	"\n## Alerts\n"

// TestREADME guarantees that a README passes when its table is the service's
// own, and fails when a knob is missing, changed, added, or the table is not
// there at all.
func TestREADME(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		text   string
		faults int
	}{
		{"the true table passes", readme, 0},
		{"another default fails", strings.Replace(readme, "8080", "8081", 1), 1},
		{"a missing knob fails", strings.Replace(readme, "| `-token` | `PENSTOCK_TOKEN` |  | one of a\\|b |\n", "", 1), 1},
		{"a knob nobody has fails", strings.Replace(readme, "\n## Alerts", "| `-x` | `PENSTOCK_X` |  | x |\n\n## Alerts", 1), 1},
		{"no table fails", "# Gate\n", 1},
		{"two tables fail", readme + readme, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			path := filepath.Join(t.TempDir(), "README.md")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			rec := &recorder{TB: t}
			conftest.README(rec, path, knobs)
			if len(rec.faults) != tt.faults {
				t.Errorf("faults %q, want %d", rec.faults, tt.faults)
			}
		})
	}
}

// recorder is a test that only notes what failed.
type recorder struct {
	testing.TB
	faults []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}
