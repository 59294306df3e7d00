package period

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// offsets are what a zone's clock was and will be ahead of UTC, as a table:
// the library reads the zone's rule again for every instant beyond the last
// recorded change, which is most of the time.
type offsets struct {
	changes []int64 // instants, µs since the epoch, ascending
	ahead   []int64 // µs, from changes[i-1] on; one more than changes
}

// at returns the offset at an instant, and the instants from and till which it
// holds.
func (o *offsets) at(t int64) (ahead, from, till int64) {
	i := sort.Search(len(o.changes), func(i int) bool { return o.changes[i] > t })
	from, till = minInt, maxInt
	if i > 0 {
		from = o.changes[i-1]
	}
	if i < len(o.changes) {
		till = o.changes[i]
	}
	return o.ahead[i], from, till
}

// maxTables bounds the tables kept: there are some 600 zones.
const maxTables = 2000

var (
	tables     sync.Map // *time.Location → *offsets
	tableCount atomic.Int64
)

func offsetsOf(zone *time.Location) *offsets {
	if o, ok := tables.Load(zone); ok {
		return o.(*offsets)
	}
	o := tabulate(zone)
	if tableCount.Load() < maxTables {
		if _, there := tables.LoadOrStore(zone, o); !there {
			tableCount.Add(1)
		}
	}
	return o
}

// tabulate walks through the years that At can meet: it answers up to maxYear,
// for periods of up to MaxYears.
func tabulate(zone *time.Location) *offsets {
	t := time.Date(minYear-MaxYears-1, 1, 1, 0, 0, 0, 0, time.UTC)
	end := time.Date(maxYear+MaxYears+1, 1, 1, 0, 0, 0, 0, time.UTC)
	o := &offsets{ahead: []int64{ahead(t, zone)}}
	for {
		t = next(t, zone)
		if t.IsZero() || t.After(end) {
			return o
		}
		if a := ahead(t, zone); a != o.ahead[len(o.changes)] {
			o.changes, o.ahead = append(o.changes, t.UnixMicro()), append(o.ahead, a)
		}
	}
}

func ahead(t time.Time, zone *time.Location) int64 {
	_, seconds := t.In(zone).Zone()
	return int64(seconds) * second
}

// next is an instant after t up to which the zone's offset holds; zero: for
// ever.
//
// Beyond the last recorded change ZoneBounds cuts years apart and takes each
// for 365 days: on 31 December of a leap year its end lies before the instant.
// The year's true end is that of the UTC day.
func next(t time.Time, zone *time.Location) time.Time {
	_, end := t.In(zone).ZoneBounds()
	if end.IsZero() || end.After(t) {
		return end.UTC()
	}
	return t.Truncate(24 * time.Hour).Add(24 * time.Hour)
}
