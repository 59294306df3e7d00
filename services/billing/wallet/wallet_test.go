package wallet_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/billing/wallet"
)

func day(m time.Month, d int) time.Time { return time.Date(2026, m, d, 0, 0, 0, 0, time.UTC) }

// TestW5 guarantees the order in which grants are burnt: the lower priority number
// first, then the earlier end.
func TestW5(t *testing.T) {
	t.Parallel()

	grants := []wallet.Grant{
		{ID: "A", Units: 100, Priority: 50, ExpiresAt: day(4, 1)},
		{ID: "B", Units: 40, Priority: 50, ExpiresAt: day(3, 15)},
		{ID: "C", Units: 30, Priority: 10},
	}
	if left := wallet.Spread(grants, 60); left != 0 || grants[0].Left() != 100 || grants[1].Left() != 10 || grants[2].Left() != 0 {
		t.Errorf("60 burnt leave %+v and %d, want C 0, B 10, A 100", grants, left)
	}
	if left := wallet.Spread(grants, -5); left != 0 || grants[1].Left() != 15 {
		t.Errorf("5 given back leave %+v and %d, want B 15", grants, left)
	}
	if left := wallet.Spread(grants, 120); left != 5 {
		t.Errorf("5 more than there is are owed, got %d", left)
	}
	grants[1].Spent, grants[1].Expired, grants[1].Ended = 30, 10, true
	if left := wallet.Spread(grants, -200); left != -70 || grants[1].Left() != 0 || grants[1].Spent != 30 {
		t.Errorf("what has ended takes nothing back: %+v and %d", grants, left)
	}
}

// TestSpread guarantees for any grants and movements that nothing is made or lost: what
// is spent of the grants and what found no room add up to what was asked, and no grant
// is spent beyond its units.
func TestSpread(t *testing.T) {
	t.Parallel()

	owed := 0
	rapid.Check(t, func(t *rapid.T) {
		grants := make([]wallet.Grant, rapid.IntRange(0, 5).Draw(t, "grants"))
		for i := range grants {
			grants[i] = wallet.Grant{ID: string(rune('a' + i)), Units: rapid.Int64Range(1, 50).Draw(t, "units"), Priority: rapid.IntRange(0, 2).Draw(t, "priority")}
			if d := rapid.IntRange(0, 3).Draw(t, "ends"); d > 0 {
				grants[i].ExpiresAt = day(3, d)
			}
		}
		spent := func() (n int64) {
			for _, g := range grants {
				if g.Spent < 0 || g.Left() < 0 {
					t.Fatalf("grant %+v", g)
				}
				n += g.Spent
			}
			return n
		}
		for range rapid.IntRange(1, 10).Draw(t, "moves") {
			before := spent()
			units := rapid.Int64Range(-60, 80).Draw(t, "move")
			left := wallet.Spread(grants, units)
			if spent()-before+left != units || left*units < 0 {
				t.Fatalf("%d units spent %d and left %d", units, spent()-before, left)
			}
			if left > 0 {
				owed++
			}
		}
	})
	if owed == 0 {
		t.Error("nothing was ever owed: the property was not tried")
	}
}

// TestFC28Capped guarantees the ledger's half of FC-28: a call of 1 unit that settles at
// a cost of -1,618 gives back 1, and is flagged.
func TestFC28Capped(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name        string
		left, units int64
		known       bool
		moves       int64
		flag        string
	}{
		{"negative actual cost", 1, -1619, true, 1, wallet.FlagCapped},
		{"all of it", 1, -1, true, 1, ""},
		{"part of it", 7, -2, true, 2, ""},
		{"nothing left", 0, -1, true, 0, wallet.FlagCapped},
		{"dearer than estimated", 5, 3, true, -3, ""},
		{"decision not known", 0, -4, false, 4, wallet.FlagOrphan},
	} {
		if moves, flag := wallet.Correct(tt.left, tt.units, tt.known); moves != tt.moves || flag != tt.flag {
			t.Errorf("%s: moves %d %q, want %d %q", tt.name, moves, flag, tt.moves, tt.flag)
		}
	}
}
