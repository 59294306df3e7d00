package threshold_test

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.dev/services/threshold-watcher/threshold"
)

// history draws what happens to one counter: decisions that charge, are refused or
// corrected, refunds, limits that change by a new version, by a grant or by another
// rule, gateways that decide by older rules, and events that come late. It ends with
// a decision by the newest rules. An orderly one has neither of the last two.
func history(t *rapid.T, orderly bool) []*threshold.Usage {
	b := newBench(nil, rapid.Int64Range(0, 40).Draw(t, "limit"))
	b.c.Percent, b.c.Left = []int32{50, 80, 100}, []int64{10, 3}
	b.c.Wallet = rapid.Bool().Draw(t, "wallet")
	revision := int64(1)
	behind, behindAt := b.c, at(b.usage(), revision) // as a gateway that is behind has it, and when it last was right
	most := 9
	if orderly {
		most = 6
	}
	others := map[string]threshold.Counter{}
	var events, late []*threshold.Usage
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, most).Draw(t, "step") {
		case 0, 1, 2, 3:
			b.c.Consumed += rapid.Int64Range(0, 12).Draw(t, "units")
		case 4:
			b.c.Refunded += rapid.Int64Range(0, b.c.Consumed-b.c.Refunded).Draw(t, "refund")
			continue
		case 5:
			behind, behindAt = b.c, at(b.usage(), revision)
			revision++
			b.c.Limit = rapid.Int64Range(0, 80).Draw(t, "new limit")
			if !b.c.Wallet {
				b.c.RuleVersion++
			}
		case 6:
			behind, behindAt = b.c, at(b.usage(), revision)
			others[b.c.RuleID] = b.c // a rule whose time has come, or that is new
			next, known := others[rapid.SampledFrom([]string{"a", "b", "acme-month"}).Draw(t, "rule")]
			if !known || rapid.Bool().Draw(t, "new") {
				revision++
				next.RuleID, next.RuleVersion, next.Limit = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "new rule"), revision, rapid.Int64Range(0, 80).Draw(t, "its limit")
			}
			b.c.RuleID, b.c.RuleVersion, b.c.Limit = next.RuleID, next.RuleVersion, next.Limit
		case 7:
			u := at(b.usage(), behindAt.RulesVersion)
			u.At = behindAt.At
			u.Counters[0] = behind
			u.Counters[0].Consumed, u.Counters[0].Refunded = b.c.Consumed, b.c.Refunded
			u.Correction = rapid.Bool().Draw(t, "correction")
			events = append(events, u)
			continue
		case 8:
			late = append(late, at(b.usage(), revision))
			continue
		case 9:
			if len(late) > 0 {
				events, late = append(events, late[0]), late[1:]
			}
			continue
		}
		events = append(events, at(b.usage(), revision))
	}
	return append(append(events, late...), at(b.usage(), revision))
}

// TestRestarts guarantees that a watcher which is killed anywhere, before or after it
// published, announces exactly what one does that was never interrupted.
func TestRestarts(t *testing.T) {
	t.Parallel()
	announced := 0
	rapid.Check(t, func(t *rapid.T) {
		events := history(t, false)
		want := uninterrupted(events)
		announced += len(want)
		got := interrupted(t, events, "committed", "committed", "killed before", "rolled back", "killed after")
		if show(got) != show(want) {
			t.Fatalf("announced %s\nwant      %s\nof %s", show(got), show(want), tell(events))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("announcement %d is %+v, want %+v", i, got[i], want[i])
			}
		}
	})
	if announced < 100 {
		t.Errorf("only %d announcements in all: the generator no longer tests anything", announced)
	}
}

// TestReplays guarantees that a watcher which reads again from anywhere before, as
// often as it likes, announces nothing more, and of any history no id twice. Where
// events were out of order or by an older limit, a replay may see an order of limits
// that was not seen before, and arm a level by it.
func TestReplays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		orderly := rapid.Bool().Draw(t, "orderly")
		events := history(t, orderly)
		got := interrupted(t, events, "committed", "killed after", "replayed")
		if want := uninterrupted(events); orderly && show(got) != show(want) {
			t.Fatalf("announced %s\nwant      %s\nof %s", show(got), show(want), tell(events))
		}
		if all := ids(got); len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Fatalf("twice: %s\nof %s", show(got), tell(events))
		}
	})
}

// uninterrupted is what one Book announces of events.
func uninterrupted(events []*threshold.Usage) []threshold.Announcement {
	book := threshold.NewBook(keep)
	var out []threshold.Announcement
	for _, u := range events {
		out, _ = book.Observe(out, u, noon)
	}
	return out
}

// interrupted is what is published of events that are read in batches with these
// fates.
func interrupted(t *rapid.T, events []*threshold.Usage, fates ...string) []threshold.Announcement {
	var published []threshold.Announcement
	book := threshold.NewBook(keep)
	again := func() {
		book = threshold.NewBook(keep)
		for i := range published {
			book.Restore(&published[i])
		}
		book.Commit()
	}
	for next := 0; next < len(events); {
		batch := events[next:min(next+rapid.IntRange(1, 8).Draw(t, "batch"), len(events))]
		var out []threshold.Announcement
		for _, u := range batch {
			out, _ = book.Observe(out, u, noon)
		}
		fate := rapid.SampledFrom(fates).Draw(t, "fate")
		switch fate {
		case "killed before":
			again()
			continue
		case "rolled back":
			book.Rollback()
			continue
		}
		book.Commit()
		published = append(published, out...)
		next += len(batch)
		if fate != "committed" {
			again()
		}
		if fate == "replayed" {
			next = rapid.IntRange(0, next).Draw(t, "from")
		}
	}
	return published
}

// ids are the ids of announcements, sorted.
func ids(out []threshold.Announcement) []string {
	ids := make([]string, len(out))
	for i := range out {
		ids[i] = fmt.Sprintf("%x", out[i].ID())
	}
	slices.Sort(ids)
	return ids
}

// tell writes events for a person.
func tell(events []*threshold.Usage) string {
	var b strings.Builder
	for _, u := range events {
		c := &u.Counters[0]
		fmt.Fprintf(&b, "\n%d-%d of %d by %s v%d r%d at %d correction %v", c.Consumed, c.Refunded, c.Limit, c.RuleID, c.RuleVersion, u.RulesVersion, u.At%1000000/1000, u.Correction)
	}
	return b.String()
}

// TestArms guarantees of every history that an id is announced once, that the arms of a
// level follow each other, reached and armed again in turn, that only a higher
// limit arms again, and that what is announced as reached is.
func TestArms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		book := threshold.NewBook(keep)
		var out []threshold.Announcement
		for _, u := range history(t, false) {
			out, _ = book.Observe(out, u, noon)
		}
		ids := map[[16]byte]bool{}
		last := map[threshold.Level]threshold.Announcement{}
		for _, a := range out {
			if ids[a.ID()] {
				t.Fatalf("twice: %s", show([]threshold.Announcement{a}))
			}
			ids[a.ID()] = true
			before, known := last[a.Level]
			last[a.Level] = a
			armsAgain := a.Type == threshold.Replenished
			switch {
			case !known:
				if a.Arm != 1 || armsAgain {
					t.Fatalf("first: %s", show(out))
				}
			case armsAgain == (before.Type == threshold.Replenished):
				t.Fatalf("twice the same of a level: %s", show(out))
			case armsAgain && (a.Arm != before.Arm+1 || a.Limit <= before.Limit), !armsAgain && a.Arm != before.Arm:
				t.Fatalf("arm: %s", show(out))
			}
			if a.Level.Reached(a.Used, a.Limit) == armsAgain {
				t.Fatalf("not so: %s", show([]threshold.Announcement{a}))
			}
		}
	})
}

// TestEveryLevelIsAnnounced guarantees that after the last decision of a counter under
// one rule everything that is reached was announced, in ascending order.
func TestEveryLevelIsAnnounced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, threshold.Unlimited-1).Draw(t, "limit")
		b := newBench(nil, limit)
		b.c.Percent = rapid.SliceOfN(rapid.Int32Range(1, 100), 0, 16).Draw(t, "percent")
		b.c.Left = rapid.SliceOfN(rapid.Int64Range(0, limit), 0, 16).Draw(t, "left")
		var got []threshold.Level
		for _, n := range rapid.SliceOfN(rapid.Int64Range(0, limit/4+1), 1, 10).Draw(t, "charges") {
			if b.c.Consumed += n; b.c.Consumed >= threshold.Unlimited {
				break
			}
			out, _ := b.book.Observe(nil, b.usage(), noon)
			for _, a := range out {
				got = append(got, a.Level)
			}
			want := map[threshold.Level]bool{}
			for _, p := range b.c.Percent {
				want[threshold.Percent(p)] = over(b.c.Consumed, 100, limit, int64(p))
			}
			for _, l := range b.c.Left {
				want[threshold.Left(l)] = limit-b.c.Consumed <= l
			}
			for l, reached := range want {
				if slices.Contains(got, l) != reached {
					t.Fatalf("%d of %d: %+v reached is %v", b.c.Consumed, limit, l, reached)
				}
			}
		}
	})
}

// over reports whether a·b >= c·d.
func over(a, b, c, d int64) bool {
	return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)).Cmp(new(big.Int).Mul(big.NewInt(c), big.NewInt(d))) >= 0
}

// FuzzReached guarantees that per cent are exact for all integers, and that a level
// which is reached stays so while usage rises.
func FuzzReached(f *testing.F) {
	f.Add(int64(800), int64(1000), int32(80))
	f.Add(int64(1<<63-1), int64(1<<63-1), int32(99))
	f.Fuzz(func(t *testing.T, used, limit int64, n int32) {
		used, limit, n = max(0, used, -(used+1)), max(0, limit, -(limit+1)), 1+(n%100+100)%100
		l := threshold.Percent(n)
		if got, want := l.Reached(used, limit), over(used, 100, limit, int64(n)); got != want {
			t.Errorf("%d of %d reaches %d%%: %v, want %v", used, limit, n, got, want)
		}
		if used > 0 && l.Reached(used-1, limit) && !l.Reached(used, limit) {
			t.Errorf("%d%% of %d is reached by %d and not by %d", n, limit, used-1, used)
		}
	})
}

// BenchmarkObserve is one event of a counter that announces nothing: what nearly all
// events are.
func BenchmarkObserve(b *testing.B) {
	x := newBench(nil, 1000)
	x.c.Consumed = 900
	u := x.usage()
	out, _ := x.book.Observe(nil, u, noon)
	x.book.Commit()
	b.ReportAllocs()
	for b.Loop() {
		out, _ = x.book.Observe(out[:0], u, noon)
	}
}

// BenchmarkMemory is what a counter costs that two levels were announced of.
func BenchmarkMemory(b *testing.B) {
	const counters = 100_000
	for b.Loop() {
		before := heap()
		book := threshold.NewBook(keep)
		for n := range counters {
			x := newBench(nil, 1000)
			x.c.Key = fmt.Sprintf("{t:tenant-%d}:e:q:t:api-calls:g:1month:1793480400", n)
			x.c.Consumed = 1000
			book.Observe(nil, x.usage(), noon)
			book.Commit()
		}
		b.ReportMetric(float64(heap()-before)/counters, "B/counter")
		book.Forget(time.Time{})
	}
}
