package threshold_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/threshold-watcher/threshold"
)

var (
	start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	end   = start.AddDate(0, 1, 0)
	noon  = start.Add(12 * time.Hour)
)

const keep = 8 * 24 * time.Hour

// A bench is a Book and one counter that is changed step by step, as a counter
// store and a gateway would.
type bench struct {
	t    *testing.T
	book *threshold.Book
	c    threshold.Counter
	n    uint64 // decisions
	log  []threshold.Announcement
}

// newBench has a month's quota with the thresholds 80 and 100.
func newBench(t *testing.T, limit int64) *bench {
	return &bench{t: t, book: threshold.NewBook(keep), c: threshold.Counter{
		Key: "{t:acme}:e:q:t:api-calls:g:1month:1793480400", Start: start.UnixMilli(), End: end.UnixMilli(), Meter: "api-calls",
		RuleID: "acme-month", RuleVersion: 1, Limit: limit, Percent: []int32{80, 100},
	}}
}

// usage is the event of the next decision.
func (b *bench) usage() *threshold.Usage {
	b.n++
	u := &threshold.Usage{
		Tenant: "acme", At: noon.Add(time.Duration(b.n) * time.Second).UnixMilli(), RulesVersion: b.c.RuleVersion,
		Counters: []threshold.Counter{b.c},
	}
	binary.BigEndian.PutUint64(u.Decision[8:], b.n)
	return u
}

// charge is a decision that charges, or with 0 one that is refused, and returns
// what it has announced.
func (b *bench) charge(units int64) string {
	b.c.Consumed += units
	return b.see(b.usage())
}

func (b *bench) see(u *threshold.Usage) string {
	out, _ := b.book.Observe(nil, u, noon)
	b.book.Commit()
	b.log = append(b.log, out...)
	return show(out)
}

// limit is a new version of the rule with another limit.
func (b *bench) limit(n int64) {
	b.c.Limit = n
	b.c.RuleVersion++
}

// restart makes the Book anew from what it announced.
func (b *bench) restart() {
	b.book = threshold.NewBook(keep)
	for i := range b.log {
		b.book.Restore(&b.log[i])
	}
	b.book.Commit()
}

// wants fails the test unless got is want.
func (b *bench) wants(when, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: announced %q, want %q", when, got, want)
	}
}

// show writes announcements as "type level arm@used/limit", e.g. "80% 1@800/1000".
func show(out []threshold.Announcement) string {
	words := make([]string, len(out))
	for i, a := range out {
		level := "overdraft"
		if n, ok := a.Level.Percent(); ok {
			level = fmt.Sprintf("%d%%", n)
		} else if n, ok := a.Level.Left(); ok {
			level = fmt.Sprintf("%d left", n)
		}
		if a.Type == threshold.Replenished {
			level = "+" + level
		}
		words[i] = fmt.Sprintf("%s %d@%d/%d", level, a.Arm, a.Used, a.Limit)
	}
	return strings.Join(words, ", ")
}

// heap is the memory in use after a collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
