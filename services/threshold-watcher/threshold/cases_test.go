package threshold_test

import (
	"testing"
	"time"

	"penstock.dev/services/threshold-watcher/threshold"
)

// TestFC23AbsoluteAndZero guarantees that "N left" is announced like per cent, that one
// event which crosses all levels announces each once and ascending, and that a
// limit of 0 announces nothing.
func TestFC23AbsoluteAndZero(t *testing.T) {
	t.Parallel()
	levels := func(limit int64) *bench {
		b := newBench(t, limit)
		b.c.Left = []int64{10}
		return b
	}
	b := levels(100)
	for n := int64(1); n <= 100; n++ {
		want := map[int64]string{80: "80% 1@80/100", 90: "10 left 1@90/100", 100: "100% 1@100/100"}[n]
		b.wants("by ones", b.charge(1), want)
	}
	b.wants("refused", b.charge(0), "")

	b = levels(100)
	b.wants("at 70", b.charge(70), "")
	b.wants("from 70 to 105", b.charge(35), "80% 1@105/100, 10 left 1@105/100, 100% 1@105/100")
	b.wants("further", b.charge(1), "")

	b = levels(0)
	b.wants("a limit of 0, refused", b.charge(0), "")
	b.wants("a limit of 0, soft", b.charge(1), "")
}

// TestT1Integers guarantees that per cent are reached exactly when used·100 >=
// limit·per cent.
func TestT1Integers(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1000)
	b.wants("799", b.charge(799), "")
	b.wants("800", b.charge(1), "80% 1@800/1000")
	b = newBench(t, 7)
	b.wants("5 of 7", b.charge(5), "")
	b.wants("6 of 7", b.charge(1), "80% 1@6/7")
	b.wants("7 of 7", b.charge(1), "100% 1@7/7")
	b = newBench(t, threshold.Unlimited-1)
	b.wants("below the greatest limit", b.charge(threshold.Unlimited-2), "80% 1@9007199254740989/9007199254740990")
	b.wants("the greatest limit", b.charge(1), "100% 1@9007199254740990/9007199254740990")
}

// TestT2SoftInOneStep guarantees that a soft quota which is overrun in one decision
// announces both levels, ascending and with that decision as their cause.
func TestT2SoftInOneStep(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.wants("75", b.charge(75), "")
	b.wants("105", b.charge(30), "80% 1@105/100, 100% 1@105/100")
	if len(b.log) != 2 || b.log[0].Cause != b.log[1].Cause || b.log[0].Cause[15] != 2 {
		t.Errorf("causes %v, want the second decision twice", b.log)
	}
	if b.log[0].Type != threshold.Reached || b.log[1].Type != threshold.Exhausted {
		t.Errorf("types %v and %v, want THRESHOLD_REACHED and EXHAUSTED", b.log[0].Type, b.log[1].Type)
	}
}

// TestT3Replays guarantees that events which come again, from the start and three
// times, announce nothing, whatever happened to limits meanwhile.
func TestT3Replays(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1000)
	var events []*threshold.Usage
	feed := func(units int64) {
		b.c.Consumed += units
		events = append(events, b.usage())
		b.see(events[len(events)-1])
	}
	for _, limit := range []int64{1000, 2000, 1100, 5000, 900, 900} {
		b.limit(limit)
		for range 5 {
			feed(170)
		}
		b.c.Refunded += 100
		feed(0)
	}
	want := show(b.log)
	for range 3 {
		b.restart()
		for _, u := range events {
			b.wants("a replay", b.see(u), "")
		}
	}
	ids := map[[16]byte]bool{}
	for i := range b.log {
		ids[b.log[i].ID()] = true
	}
	if len(ids) != len(b.log) || len(ids) < 8 {
		t.Errorf("%d ids of %d announcements: %s", len(ids), len(b.log), want)
	}
}

// TestT4ARaisedLimit guarantees that a raised limit arms again exactly the levels that
// it takes usage below, with the counter's next decision, a refused one included.
func TestT4ARaisedLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1000)
	b.wants("1000", b.charge(1000), "80% 1@1000/1000, 100% 1@1000/1000")
	b.limit(2000)
	b.wants("refused, 2000", b.charge(0), "+80% 2@1000/2000, +100% 2@1000/2000")
	b.restart()
	b.wants("1599", b.charge(599), "")
	b.wants("1600", b.charge(1), "80% 2@1600/2000")
	b.restart()
	b.wants("2000", b.charge(400), "100% 2@2000/2000")

	b = newBench(t, 1000)
	b.charge(1000)
	b.limit(1100)
	b.wants("1001 of 1100", b.charge(1), "+100% 2@1001/1100")
	b.wants("1099", b.charge(98), "")
	b.wants("1100", b.charge(1), "100% 2@1100/1100")
}

// TestT6NoArmFromRefunds guarantees that refunds arm nothing, and that limits of 0 and
// without bound announce nothing.
func TestT6NoArmFromRefunds(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1000)
	b.wants("800", b.charge(800), "80% 1@800/1000")
	b.c.Refunded += 50
	b.wants("750", b.charge(0), "")
	b.restart()
	b.wants("800 again", b.charge(50), "")
	for _, limit := range []int64{0, threshold.Unlimited, threshold.Unlimited + 1, -1} {
		b := newBench(t, limit)
		b.c.Wallet, b.c.Left = true, []int64{0, 10}
		b.wants("no limit", b.charge(1<<53-1), "")
	}
}

// TestR1ARefundedCall guarantees that a level which one call reached and a refund left
// is not announced when it is reached again, and that the refunds do not help a
// raised limit to arm it: only usage that would be below it without them does.
func TestR1ARefundedCall(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.wants("95", b.charge(95), "80% 1@95/100")
	b.wants("100", b.charge(5), "100% 1@100/100")
	b.c.Refunded += 5
	b.wants("95 again", b.charge(0), "")
	b.wants("100 again", b.charge(5), "")

	tests := []struct {
		name             string
		refunded, raised int64
		want             string
	}{
		{"the raised limit is above all that was used", 40, 300, "+80% 2@60/300, +100% 2@60/300"},
		{"only refunds are why usage is below 80", 40, 110, "+100% 2@60/110"},
		{"usage was at the level, and the limit took it below, whatever was refunded before", 10, 120, "+80% 2@90/120, +100% 2@90/120"},
		{"the limit was not raised", 60, 100, ""},
		{"the limit was lowered", 90, 50, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 100)
			b.charge(100)
			b.c.Refunded += tt.refunded
			b.limit(tt.raised)
			b.wants("raised", b.charge(0), tt.want)
		})
	}
}

// TestWallets guarantees what is announced of wallets: per cent of all that was
// granted, an overdraft once, and top-ups that mend it.
func TestWallets(t *testing.T) {
	t.Parallel()
	b := newBench(t, 5)
	b.c.Wallet, b.c.Start, b.c.End = true, 0, 0
	grant := func(n int64) { b.c.Limit += n } // a wallet's version is not its rule's
	b.wants("5 - 8", b.charge(8), "80% 1@8/5, 100% 1@8/5, overdraft 1@8/5")
	b.wants("refused", b.charge(0), "")
	old := *b.usage()
	grant(3)
	b.wants("balance 0, refused", b.see(at(b.usage(), 2)), "")
	grant(10)
	b.wants("balance 10", b.see(at(b.usage(), 3)), "+80% 2@8/18, +100% 2@8/18, +overdraft 2@8/18")
	b.wants("an event from before the top-up", b.see(&old), "")
	b.restart()
	b.wants("the same after a restart", b.see(&old), "")
	b.c.Consumed += 10
	b.wants("balance 0", b.see(at(b.usage(), 3)), "80% 2@18/18, 100% 2@18/18")
	b.c.Consumed++
	b.wants("balance -1", b.see(at(b.usage(), 3)), "overdraft 2@19/18")

	b = newBench(t, 5)
	b.wants("a quota has no overdraft", b.charge(8), "80% 1@8/5, 100% 1@8/5")
}

// at is u under another revision of all rules.
func at(u *threshold.Usage, revision int64) *threshold.Usage {
	u.RulesVersion = revision
	return u
}

// TestOlderRules guarantees that a limit from an older version of the rule moves
// nothing, also after a restart and when it was another rule that had that limit.
func TestOlderRules(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1000)
	b.charge(900)
	late := b.usage()
	b.limit(2000)
	b.wants("raised", b.charge(1), "+80% 2@901/2000")
	b.wants("late, lower", b.see(late), "")
	b.restart()
	late.Counters[0].Consumed = 1000 // a gateway that has not heard yet
	b.wants("a gateway behind, lower", b.see(late), "")

	b = newBench(t, 2000)
	late = b.usage()
	b.limit(1000)
	b.charge(900)
	late.Counters[0].Consumed = 901
	b.wants("a gateway behind, higher", b.see(late), "")
	b.c.RuleID, b.c.RuleVersion, b.c.Limit = "acme-other", 1, 3000
	b.wants("another rule of an older revision", b.see(at(b.usage(), 1)), "")
	b.wants("another rule of a newer revision", b.see(at(b.usage(), 9)), "+80% 2@900/3000")
	b.c.RuleID, b.c.Limit = "acme-month", 1000
	u := at(b.usage(), 9)
	u.At -= 3600_000
	b.wants("the first rule, an hour before the other took over", b.see(u), "")
	b.wants("the first rule, after the other", b.see(at(b.usage(), 9)), "80% 2@900/1000")
}

// TestRulesThatTakeTurns guarantees that of rules with different limits on one counter,
// as for most users and for one of them, each announces a level and once more at most,
// and not at every turn; also after restarts, and when the rules' revision rises meanwhile.
func TestRulesThatTakeTurns(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	most := b.c
	one := b.c
	one.RuleID, one.RuleVersion, one.Limit = "acme-vip", 2, 1000
	b.charge(90)
	turn := func(c threshold.Counter, revision int64) {
		c.Consumed = b.c.Consumed + 1
		b.c = c
		b.see(at(b.usage(), revision))
		b.restart()
	}
	for n := range int64(200) {
		turn(one, 2+n)
		turn(most, 2+n)
	}
	want := "80% 1@90/100, +80% 2@91/1000, 80% 2@92/100, +80% 3@93/1000, 100% 1@100/100, +100% 2@101/1000, 100% 2@102/100, +100% 3@103/1000"
	if got := show(b.log); got != want {
		t.Errorf("announced %s\nwant      %s", got, want)
	}
	b.c = one
	b.c.Consumed = 800
	b.wants("the other limit's own", b.see(at(b.usage(), 300)), "80% 3@800/1000")
	b.c = most
	b.c.RuleVersion, b.c.Limit, b.c.Consumed = 301, 2000, 810
	b.wants("raised", b.see(at(b.usage(), 301)), "+80% 4@810/2000")
	b.c.Consumed = 1600
	b.wants("reached", b.see(at(b.usage(), 301)), "80% 4@1600/2000")
}

// TestOrder guarantees that events out of order announce what they would in order.
func TestOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.c.Consumed = 70
	first := b.usage()
	b.wants("105 before 70", b.charge(35), "80% 1@105/100, 100% 1@105/100")
	b.wants("70", b.see(first), "")
	b.c.Consumed, b.c.Refunded = 120, 30
	after := b.usage()
	b = newBench(t, 100)
	b.c.Consumed = 100
	before := b.usage()
	b.wants("90 net", b.see(after), "80% 1@90/100")
	b.wants("100 from before the refund", b.see(before), "100% 1@100/100")
}

// TestCorrections guarantees that a settlement which charges more announces what it
// reaches, and arms nothing: its rule is the decision's, however old.
func TestCorrections(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.charge(85)
	b.limit(200)
	b.c.Consumed++
	u := b.usage()
	u.Correction = true
	b.wants("settled under a higher limit", b.see(u), "")
	b.wants("decided", b.charge(0), "+80% 2@86/200")
	b.c.Consumed = 160
	u = b.usage()
	u.Correction = true
	b.wants("settled to 160", b.see(u), "80% 2@160/200")
}

// TestPeriods guarantees that a finished period is dropped after its time, that late
// events until then are known to be announced, and that later ones are counted
// and announce nothing.
func TestPeriods(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.charge(85)
	last := b.usage()
	almost, over := end.Add(keep-time.Millisecond), end.Add(keep)
	b.book.Forget(almost)
	if out, late := b.book.Observe(nil, last, almost); len(out) != 0 || late != 0 || b.book.Len() != 1 {
		t.Errorf("within its time: %s, %d late, %d held", show(out), late, b.book.Len())
	}
	b.book.Forget(over)
	if out, late := b.book.Observe(nil, last, over); len(out) != 0 || late != 1 || b.book.Len() != 0 {
		t.Errorf("after its time: %s, %d late, %d held", show(out), late, b.book.Len())
	}
	b.c.Start, b.c.End = end.UnixMilli(), end.AddDate(0, 1, 0).UnixMilli()
	if out, _ := b.book.Observe(nil, b.usage(), over); show(out) != "80% 1@85/100" {
		t.Errorf("the next period announced %q, want 80%% of its own", show(out))
	}
	b = newBench(t, 100)
	b.c.Start, b.c.End = 0, 0
	b.charge(85)
	b.book.Forget(over.AddDate(10, 0, 0))
	if b.book.Len() != 1 {
		t.Error("a wallet without a period was dropped")
	}
}

// TestChangedThresholds guarantees that a level which is new in the rule is announced
// when it is already reached, once, and one that was taken away and comes back is
// not announced again.
func TestChangedThresholds(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.charge(85)
	b.c.Percent = []int32{50, 100}
	b.limit(100)
	b.wants("50 is new", b.charge(1), "50% 1@86/100")
	b.c.Percent = []int32{50, 80, 80, 100}
	b.limit(100)
	b.wants("80 is back", b.charge(1), "")
	b.c.Percent, b.c.Left = nil, nil
	b.limit(100)
	b.wants("none", b.charge(50), "")
	if got := b.see(&threshold.Usage{Counters: []threshold.Counter{b.c}}); got != "" {
		t.Errorf("nobody is told %q", got)
	}
}

// TestRollback guarantees that what is taken back is announced again, to the byte.
func TestRollback(t *testing.T) {
	t.Parallel()
	b := newBench(t, 100)
	b.charge(50)
	b.charge(30)
	b.limit(200)
	u, v := b.usage(), b.usage()
	v.Counters[0].Consumed = 170
	var first []threshold.Announcement
	for range 3 {
		out, _ := b.book.Observe(nil, u, noon)
		out, _ = b.book.Observe(out, v, noon)
		if show(out) != "+80% 2@80/200, 80% 2@170/200" || first != nil && out[0].ID() != first[0].ID() {
			t.Fatalf("announced %s", show(out))
		}
		first = out
		b.book.Rollback()
	}
	other := newBench(t, 10)
	other.c.Key = "other"
	b.book.Observe(nil, func() *threshold.Usage { other.c.Consumed = 9; return other.usage() }(), noon)
	b.book.Rollback()
	if b.book.Len() != 1 {
		t.Errorf("%d counters are held, want 1", b.book.Len())
	}
}

// TestID guarantees that ids do not depend on when something was seen, and differ
// whenever anything differs that makes an announcement another.
func TestID(t *testing.T) {
	t.Parallel()
	base := threshold.Announcement{Type: threshold.Reached, Level: threshold.Percent(80), Arm: 1, Key: "ab", Start: 1}
	same := base
	same.At, same.Used, same.Limit, same.Cause, same.RuleVersion, same.Tenant = 9, 9, 9, [16]byte{1}, 9, "acme"
	if base.ID() != same.ID() {
		t.Error("the id depends on who saw it when")
	}
	ids := map[[16]byte]string{base.ID(): "base"}
	for name, change := range map[string]func(a *threshold.Announcement){
		"key":    func(a *threshold.Announcement) { a.Key = "abc" },
		"period": func(a *threshold.Announcement) { a.Start = 2 },
		"per cent": func(a *threshold.Announcement) {
			a.Level = threshold.Percent(81)
		},
		"left": func(a *threshold.Announcement) { a.Level = threshold.Left(80) },
		"arm":  func(a *threshold.Announcement) { a.Arm = 2 },
		"type": func(a *threshold.Announcement) { a.Type = threshold.Replenished },
		"joined otherwise": func(a *threshold.Announcement) {
			a.Key = "ab\x00\x00\x00\x00\x00\x00\x00\x01"
		},
	} {
		a := base
		change(&a)
		if other, taken := ids[a.ID()]; taken {
			t.Errorf("%s and %s have the same id", name, other)
		}
		ids[a.ID()] = name
	}
}
