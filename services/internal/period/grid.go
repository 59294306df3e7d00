package period

// Local times are counted in microseconds since 1970-01-01 00:00 by the local
// clock.
const (
	second int64 = 1_000_000
	hour         = 3600 * second
	day          = 24 * hour
)

// A grid is the local boundaries of a definition, numbered.
type grid struct {
	step   int64 // µs from one to the next; 0: months decides
	origin int64 // local time of boundary 0

	months int64 // from one to the next
	month  int64 // of boundary 0, since January of the year 0
	day    int   // of the month, of boundary 0
	clock  int64 // of boundary 0, since midnight
}

func (s Spec) grid(z *offsets) grid {
	g := grid{}
	n := int64(s.Count)
	switch s.Unit {
	case Hour:
		g.step = n * hour
	case Day:
		g.step = n * day
	case Week:
		g.step = n * 7 * day
		g.origin = 4 * day // 1970-01-05, a Monday
	case Month:
		g.months = n
	case Year:
		g.months = 12 * n
	}
	if s.Alignment == Anniversary {
		at := s.Anchor.UnixMicro()
		off, _, _ := z.at(at)
		g.origin = at + off
	}
	if g.step == 0 {
		days := floorDiv(g.origin, day)
		g.clock = g.origin - days*day
		g.month, g.day = civil(days)
	}
	return g
}

// local is the local time of boundary k.
func (g grid) local(k int64) int64 {
	if g.step > 0 {
		return g.origin + k*g.step
	}
	m := g.month + k*g.months
	return dayNumber(m, min(g.day, lastDay(m)))*day + g.clock
}

// index is the number of the last boundary whose local time is at most local.
func (g grid) index(local int64) int64 {
	if g.step > 0 {
		return floorDiv(local-g.origin, g.step)
	}
	m, _ := civil(floorDiv(local, day))
	k := floorDiv(m-g.month, g.months)
	if g.local(k) > local {
		k--
	}
	return k
}

// reach is how far, in µs, a clock change can move an instant against the
// local clock: zones differ by less than 26 hours, and one may cross the date
// line.
const reach = 26 * hour

// around returns the boundaries about the instant t: the last at or before it,
// and the first after it. Boundaries are a set of instants; across a clock
// change they need not come in the order of their local times.
func (g grid) around(t int64, z *offsets) (start, end int64) {
	off, from, till := z.at(t)
	k := g.index(t + off)
	start, end = g.local(k)-off, g.local(k+1)-off
	if start-reach >= from && end+reach < till {
		return start, end // no clock change is near
	}
	first, last := k-1, k+2
	if g.step > 0 && g.step <= reach {
		far := spread(t-3*reach, t+3*reach, z) / g.step
		first, last = first-far, last+far
	}
	start, end = minInt, maxInt
	for k := first; k <= last; k++ {
		switch b := instant(g.local(k), z); {
		case b <= t:
			start = max(start, b)
		default:
			end = min(end, b)
		}
	}
	return start, end
}

// spread is how far the zone's offsets between two instants lie apart.
func spread(from, till int64, z *offsets) int64 {
	least, most := maxInt, minInt
	for at := from; at < till; {
		off, _, next := z.at(at)
		least, most, at = min(least, off), max(most, off), next
	}
	return most - least
}

const (
	minInt int64 = -1 << 63
	maxInt int64 = 1<<63 - 1
)

// instant is when the zone's clock first reads local; where it never does,
// local by the offset before the gap.
func instant(local int64, z *offsets) int64 {
	at := local - reach // some instant before, whatever the offset
	for {
		off, _, till := z.at(at)
		if local-off < till {
			return local - off
		}
		if next, _, _ := z.at(till); local-next < till {
			return local - off // left out
		}
		at = till
	}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// civil is the date of a day number, and dayNumber its inverse: days since
// 1970-01-01 in the proleptic Gregorian calendar, months since January of the
// year 0. Years are counted from March, so that the leap day is a year's last.
func civil(days int64) (month int64, dayOfMonth int) {
	z := days + 719468 // since 0000-03-01
	era := floorDiv(z, 146097)
	n := z - era*146097 // day of the era, 0 to 146096
	y := (n - n/1460 + n/36524 - n/146096) / 365
	n -= 365*y + y/4 - y/100 // day of the year
	m := (5*n + 2) / 153
	return (era*400+y)*12 + m + 2, int(n-(153*m+2)/5) + 1
}

func dayNumber(month int64, dayOfMonth int) int64 {
	month -= 2 // since March
	year := floorDiv(month, 12)
	m := month - 12*year
	era := floorDiv(year, 400)
	y := year - era*400
	return era*146097 + y*365 + y/4 - y/100 + (153*m+2)/5 + int64(dayOfMonth) - 1 - 719468
}

func lastDay(month int64) int { return int(dayNumber(month+1, 1) - dayNumber(month, 1)) }
