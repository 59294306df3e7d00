package account_test

import (
	"testing"

	"penstock.dev/services/billing/account"
)

// TestSafeCell guarantees that no text reaches a spreadsheet as a formula, whatever
// character would begin it or is skipped before it, and that other texts stay as they are.
func TestSafeCell(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\r\n=1", "＝1", "＋1", "－1", "＠A1"} {
		if got := account.SafeCell(s); got != "'"+s {
			t.Errorf("%q stands in a cell as %q", s, got)
		}
	}
	for _, s := range []string{"", "acme", "a=1", "INV-7", "Ölçüm", "\xff", "'=1"} {
		if got := account.SafeCell(s); got != s {
			t.Errorf("%q stands in a cell as %q", s, got)
		}
	}
}
