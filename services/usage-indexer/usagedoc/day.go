package usagedoc

import (
	"strings"
	"time"
)

const (
	second = int64(1_000_000) // µs
	day    = 24 * 60 * 60 * second
)

// A Day is a calendar day in UTC, in days since 1970-01-01. Documents are kept by
// the day of their event.
type Day int32

// DayOf returns the day of an instant, in µs since 1970 UTC.
func DayOf(us int64) Day { return Day(floor(us, day)) }

// dayLayout is how a day stands in the name of an index.
const dayLayout = "2006.01.02"

// String returns the day as 2026.11.30.
func (d Day) String() string { return time.Unix(int64(d)*24*60*60, 0).UTC().Format(dayLayout) }

// start is the first instant of the day, in µs since 1970 UTC.
func (d Day) start() int64 { return int64(d) * day }

// IndexName returns the name of a day's index.
func IndexName(prefix string, d Day) string { return prefix + "-" + d.String() }

// ParseIndexName returns the day whose index has the name, and whether it is one
// that IndexName returns for prefix, to the letter.
func ParseIndexName(prefix, name string) (Day, bool) {
	rest, ok := strings.CutPrefix(name, prefix+"-")
	if !ok {
		return 0, false
	}
	t, err := time.Parse(dayLayout, rest)
	if err != nil {
		return 0, false
	}
	d := DayOf(t.UnixMicro())
	return d, IndexName(prefix, d) == name
}

// A Reason is why an event is not in the index. The values are a closed set.
type Reason string

// The reasons.
const (
	Undecodable   Reason = "undecodable"    // its bytes are no event
	UnknownSchema Reason = "unknown_schema" // the registry does not have the schema it names
	TooOld        Reason = "too_old"        // its day is beyond the retention, or before there were events
	TooNew        Reason = "too_new"        // it is more than a day ahead of the clock
	Refused       Reason = "refused"        // the store will not have this document
)

// Ahead is how far an event may be ahead of the clock, in whole hours.
const Ahead = 24 * time.Hour

// earliest is an instant that no event is before: a time that somebody counted in
// seconds or milliseconds and took for microseconds is in 1970.
var earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// A Window is the span of event times that are kept.
type Window struct {
	from, to int64 // µs since 1970 UTC; to is beyond the window
}

// WindowAt returns the window at now: the day of now less the retention, and all
// later ones. Retention is in days; 0 keeps for ever.
func WindowAt(now time.Time, retention int) Window {
	w := Window{from: earliest, to: now.Add(Ahead).UnixMicro()}
	if retention > 0 {
		w.from = max(earliest, DayOf(now.UnixMicro()-int64(retention)*day).start())
	}
	return w
}

// Check returns TooOld or TooNew for an event that is not to be kept, else "".
func (w Window) Check(us int64) Reason {
	switch {
	case us < w.from:
		return TooOld
	case us >= w.to:
		return TooNew
	}
	return ""
}

// Expired reports whether nothing of a day is to be kept any more.
func (w Window) Expired(d Day) bool { return d.start() < w.from }

// AppendTime appends an instant, in µs since 1970 UTC and of the years 0 to 9999,
// as 2026-11-30T09:00:00.000000Z: always in full, because a store may refuse or
// misread what is shorter.
func AppendTime(dst []byte, us int64) []byte {
	days := floor(us, day)
	y, m, d := civil(days)
	dst = digits(dst, y, 4)
	dst = append(dst, '-')
	dst = digits(dst, m, 2)
	dst = append(dst, '-')
	dst = digits(dst, d, 2)
	dst = append(dst, 'T')
	left := us - days*day
	dst = digits(dst, left/(3600*second), 2)
	dst = append(dst, ':')
	dst = digits(dst, left/(60*second)%60, 2)
	dst = append(dst, ':')
	dst = digits(dst, left/second%60, 2)
	dst = append(dst, '.')
	dst = digits(dst, left%second, 6)
	return append(dst, 'Z')
}

// digits appends the last n digits of v.
func digits(dst []byte, v int64, n int) []byte {
	var b [8]byte
	for i := n - 1; i >= 0; i-- {
		b[i] = byte('0' + v%10)
		v /= 10
	}
	return append(dst, b[:n]...)
}

// civil is the date of a day since 1970-01-01 in the proleptic Gregorian calendar
// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
func civil(days int64) (year, month, dayOfMonth int64) {
	z := days + 719468
	era := floor(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	year, month, dayOfMonth = yoe+era*400, mp+3, doy-(153*mp+2)/5+1
	if month > 12 {
		month -= 12
		year++
	}
	return year, month, dayOfMonth
}

// floor is a/b rounded down; b is positive.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
