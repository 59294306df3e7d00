package verdict_test

import (
	"strings"
	"testing"
	"time"

	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/verdict"
)

// TestVerdict guarantees the exit codes: 0 only when every promise was held, 3
// when the generator was in its own way, whatever was measured, which is then called neither
// held nor missed.
func TestVerdict(t *testing.T) {
	t.Parallel()
	held := verdict.AtMost("p99", stats.Millis(20*time.Millisecond), 20*time.Millisecond)
	missed := verdict.AtMost("p99", stats.Millis(20*time.Millisecond+1), 20*time.Millisecond)
	for _, tt := range []struct {
		name string
		v    verdict.Verdict
		code int
		says string
	}{
		{"held", verdict.Verdict{Checks: []verdict.Check{held, verdict.Exactly("missing", 0, 0)}}, 0, "held      p99: 20.000 ms, promised at most 20.000 ms"},
		{"missed by a nanosecond", verdict.Verdict{Checks: []verdict.Check{held, missed}}, 1, "NOT HELD"},
		{"lost one", verdict.Verdict{Checks: []verdict.Check{verdict.Exactly("missing", 1, 0)}}, 1, "NOT HELD  missing: 1, promised 0"},
		{"none", verdict.Verdict{Checks: []verdict.Check{missed}, None: "late"}, 3, "measured  p99: 20.000 ms, promised at most 20.000 ms\nno verdict: late"},
		{"none, and all is well", verdict.Verdict{Checks: []verdict.Check{held}, None: "late"}, 3, "measured  p99: 20.000 ms, promised at most 20.000 ms\nno verdict: late"},
	} {
		var out strings.Builder
		if err := tt.v.Print(&out); err != nil {
			t.Fatal(err)
		}
		if got := tt.v.Code(); got != tt.code || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%s: code %d, want %d; says %q, want %q in it", tt.name, got, tt.code, out.String(), tt.says)
		}
	}
}
