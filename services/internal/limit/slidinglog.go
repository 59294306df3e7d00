package limit

import (
	"sort"
	"time"
)

// An Entry is one charge in a sliding log.
type Entry struct {
	At    int64 // µs since the epoch, never before the entry in front of it
	Total int64 // units of all entries so far, those no longer kept included
}

// A slidingLog remembers every charge and is exact: an entry counts while
// now − at < window, and at most limit units count at any instant, so at most
// limit pass in any stretch of the length.
//
// A counter holds one entry a charge, at most limit of them (rule.MaxLog), with
// running totals, so that what is used and how long to wait is found by halving.
// A soft charge fills the log up to its limit and no further. A clock that went
// back writes entries at the time of the last one: they leave later, never
// sooner.
type slidingLog struct {
	limit  int64
	window int64 // µs
}

// live returns the entries that count at now, and the total in front of them.
func (l slidingLog) live(v Value, now int64) (entries []Entry, before int64) {
	gone := sort.Search(len(v.Log), func(i int) bool { return now-v.Log[i].At < l.window })
	if gone == 0 {
		return v.Log, v.Before
	}
	return v.Log[gone:], v.Log[gone-1].Total
}

// until returns the first instant at which most units or fewer are used, most
// being at least 0 and less than now.
func (l slidingLog) until(entries []Entry, most int64) int64 {
	last := entries[len(entries)-1].Total
	leaving := sort.Search(len(entries), func(i int) bool { return last-entries[i].Total <= most })
	return entries[leaving].At + l.window
}

func used(entries []Entry, before int64) int64 {
	if len(entries) == 0 {
		return 0
	}
	return entries[len(entries)-1].Total - before
}

func (l slidingLog) ask(v Value, units, now int64) verdict {
	entries, before := l.live(v, now)
	switch {
	case units == 0, used(entries, before)+units <= l.limit:
		return passes
	case units > l.limit:
		return refusedFor(-1)
	default:
		return refusedFor(l.until(entries, l.limit-units) - now)
	}
}

func (l slidingLog) take(v Value, units, now int64) (Value, int64) {
	entries, before := l.live(v, now)
	sum := used(entries, before)
	if units = min(units, l.limit-sum); units <= 0 {
		return v, 0
	}
	if len(entries) > 0 {
		now = max(now, entries[len(entries)-1].At)
	}
	return Value{Before: before, Log: append(entries[:len(entries):len(entries)], Entry{At: now, Total: before + sum + units})}, units
}

// add puts units to the entries of that time, while they count, as far as the
// log has room.
func (l slidingLog) add(v Value, units, at, now int64) (Value, int64) {
	entries, before := l.live(v, now)
	if units = min(units, l.limit-used(entries, before)); units <= 0 || now-at >= l.window {
		return v, 0
	}
	place := sort.Search(len(entries), func(i int) bool { return entries[i].At > at })
	total := before
	if place > 0 {
		total = entries[place-1].Total
	}
	log := append(entries[:place:place], Entry{At: at, Total: total + units})
	for _, e := range entries[place:] {
		log = append(log, Entry{At: e.At, Total: e.Total + units})
	}
	return Value{Before: before, Log: log}, units
}

func (l slidingLog) show(v Value, now int64, r *Result) {
	entries, before := l.live(v, now)
	sum := used(entries, before)
	r.Remaining = max(0, l.limit-sum)
	if most := min(sum, l.limit) - 1; most >= 0 {
		r.Reset = time.Duration(l.until(entries, most)-now) * time.Microsecond
	}
}

// give takes units out of the entries that were made at that time, while they
// count.
func (l slidingLog) give(v Value, units, at, now int64) (Value, int64) {
	entries, before := l.live(v, now)
	left := Value{Before: before}
	given, total, from := int64(0), before, before
	for _, e := range entries {
		own := e.Total - from
		from = e.Total
		if e.At == at {
			cut := min(own, units-given)
			given, own = given+cut, own-cut
		}
		if own > 0 {
			total += own
			left.Log = append(left.Log, Entry{At: e.At, Total: total})
		}
	}
	if given == 0 {
		return v, 0
	}
	return left, given
}
