package portal

import (
	"math/big"
	"strconv"
	"strings"
	"time"

	"penstock.dev/services/internal/money"
)

// A lang is a language that the portal speaks.
type lang int

// The languages.
const (
	english lang = iota
	turkish
	langs // how many
)

// Code is the language's BCP 47 tag.
func (l lang) Code() string { return [langs]string{"en", "tr"}[l] }

// parseLang returns the language of a tag, e.g. tr or tr-TR.
func parseLang(tag string) (lang, bool) {
	base, _, _ := strings.Cut(tag, "-")
	for l := range langs {
		if strings.EqualFold(base, l.Code()) {
			return l, true
		}
	}
	return english, false
}

const minus = "\u2212"

// num writes a whole number with its thousands apart.
func (l lang) num(n int64) string {
	s := strconv.FormatInt(n, 10)
	s, negative := strings.CutPrefix(s, "-")
	out := l.group(s)
	if negative {
		return minus + out
	}
	return out
}

func (l lang) group(digits string) string {
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte([langs]byte{',', '.'}[l])
		}
		b.WriteRune(d)
	}
	return b.String()
}

// decimal writes a decimal such as -1234.50 with all its digits.
func (l lang) decimal(s string) string {
	s, negative := strings.CutPrefix(s, "-")
	whole, part, has := strings.Cut(s, ".")
	out := l.group(whole)
	if has {
		out += [langs]string{".", ","}[l] + part
	}
	if negative {
		return minus + out
	}
	return out
}

// amount writes money without its currency.
func (l lang) amount(a money.Amount) string { return l.decimal(a.Decimal()) }

// money writes money with its currency: before it in English, after it in
// Turkish.
func (l lang) money(a money.Amount) string {
	switch {
	case a.Currency == "":
		return l.amount(a)
	case l == turkish:
		return l.amount(a) + " " + string(a.Currency)
	default:
		return string(a.Currency) + " " + l.amount(a)
	}
}

// percent writes part of whole with one decimal, rounded down, so that it says
// 100% only when it is. Of nothing it is empty.
func (l lang) percent(part, whole int64) string {
	if whole <= 0 {
		return ""
	}
	tenths := new(big.Int).Mul(big.NewInt(part), big.NewInt(1000))
	tenths.Quo(tenths, big.NewInt(whole)) // towards zero, as people round down
	s := tenths.String()
	s, negative := strings.CutPrefix(s, "-")
	for len(s) < 2 {
		s = "0" + s
	}
	s = l.group(s[:len(s)-1]) + [langs]string{".", ","}[l] + s[len(s)-1:]
	switch part {
	case whole:
		s = "100"
	case 0:
		s = "0"
	}
	if negative {
		s = minus + s
	}
	if l == turkish {
		return "%" + s
	}
	return s + "%"
}

var (
	months = [langs][12]string{
		{"January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"},
		{"Ocak", "Şubat", "Mart", "Nisan", "Mayıs", "Haziran", "Temmuz", "Ağustos", "Eylül", "Ekim", "Kasım", "Aralık"},
	}
	shortMonths = [langs][12]string{
		{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"},
		{"Oca", "Şub", "Mar", "Nis", "May", "Haz", "Tem", "Ağu", "Eyl", "Eki", "Kas", "Ara"},
	}
	weekdays = [langs][7]string{
		{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"},
		{"Paz", "Pzt", "Sal", "Çar", "Per", "Cum", "Cmt"},
	}
)

// day writes 23 Jul.
func (l lang) day(t time.Time) string {
	return strconv.Itoa(t.Day()) + " " + shortMonths[l][t.Month()-1]
}

// date writes 23 July 2026.
func (l lang) date(t time.Time) string {
	return strconv.Itoa(t.Day()) + " " + l.month(t)
}

// month writes July 2026.
func (l lang) month(t time.Time) string { return l.monthName(t) + " " + strconv.Itoa(t.Year()) }

// monthName writes July.
func (l lang) monthName(t time.Time) string { return months[l][t.Month()-1] }

// clock writes 14:32:05.
func clock(t time.Time) string { return t.Format("15:04:05") }

// minute writes 14:32.
func minute(t time.Time) string { return t.Format("15:04") }

// moment writes 23 Jul, 14:32:05, with the year when it is not now's.
func (l lang) moment(t, now time.Time) string { return l.dayOf(t, now) + ", " + clock(t) }

// instant writes 1 Aug, 00:00.
func (l lang) instant(t, now time.Time) string { return l.dayOf(t, now) + ", " + minute(t) }

func (l lang) dayOf(t, now time.Time) string {
	if t.Year() != now.Year() {
		return l.day(t) + " " + strconv.Itoa(t.Year())
	}
	return l.day(t)
}

// soon writes an instant that lies ahead as people say it: tonight, 00:00;
// today, 17:00; Mon 27 Jul, 00:00 within a week; 1 Aug, 00:00.
func (l lang) soon(t, now time.Time) string {
	switch midnight := startOfDay(now, 1); {
	case t.Equal(midnight):
		return l.word("time.tonight") + ", 00:00"
	case t.Before(midnight) && !t.Before(startOfDay(now, 0)):
		return l.word("time.today") + ", " + minute(t)
	case t.After(now) && t.Sub(now) < 7*24*time.Hour:
		if l == turkish {
			return l.day(t) + " " + weekdays[l][t.Weekday()] + ", " + minute(t)
		}
		return weekdays[l][t.Weekday()] + " " + l.day(t) + ", " + minute(t)
	default:
		return l.instant(t, now)
	}
}

// startOfDay is the first instant of the day that is some days after t's, in
// t's zone.
func startOfDay(t time.Time, days int) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d+days, 0, 0, 0, 0, t.Location())
}

// span writes a length of time in its two largest units: 9 h 27 min.
func (l lang) span(d time.Duration) string {
	units := []struct {
		of   time.Duration
		name [langs]string
	}{
		{24 * time.Hour, [langs]string{"d", "gün"}},
		{time.Hour, [langs]string{"h", "sa"}},
		{time.Minute, [langs]string{"min", "dk"}},
		{time.Second, [langs]string{"s", "sn"}},
	}
	d = max(d, 0)
	if d < time.Second {
		if d < time.Millisecond {
			return strconv.FormatInt(d.Microseconds(), 10) + " µs"
		}
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	for i, u := range units {
		if d < u.of {
			continue
		}
		out := l.num(int64(d/u.of)) + " " + u.name[l]
		if i+1 < len(units) {
			if rest := d % u.of / units[i+1].of; rest > 0 {
				out += " " + strconv.FormatInt(int64(rest), 10) + " " + units[i+1].name[l]
			}
		}
		return out
	}
	return ""
}

// until writes how long it is until then: in 9 h 27 min, 9 sa 27 dk sonra.
func (l lang) until(t, now time.Time) string {
	d := t.Sub(now)
	if d >= time.Minute {
		d = d.Truncate(time.Minute) // whole minutes are enough to wait by
	}
	if l == turkish {
		return l.span(d) + " sonra"
	}
	return "in " + l.span(d)
}

// axis writes a number on an axis: 40k, 40 B.
func (l lang) axis(n int64) string {
	for _, u := range []struct {
		of   int64
		name [langs]string
	}{
		{1e12, [langs]string{"T", " Tn"}},
		{1e9, [langs]string{"G", " Mr"}},
		{1e6, [langs]string{"M", " Mn"}},
		{1e3, [langs]string{"k", " B"}},
	} {
		if n >= u.of {
			tenths := n / (u.of / 10)
			s := l.num(tenths / 10)
			if tenths%10 != 0 {
				s += [langs]string{".", ","}[l] + strconv.FormatInt(tenths%10, 10)
			}
			return s + u.name[l]
		}
	}
	return l.num(n)
}

// offset writes a zone's distance from UTC at t: UTC+3, UTC+5:30, UTC.
func offset(t time.Time) string {
	_, s := t.Zone()
	if s == 0 {
		return "UTC"
	}
	sign := "+"
	if s < 0 {
		sign, s = minus, -s
	}
	out := "UTC" + sign + strconv.Itoa(s/3600)
	if m := s % 3600 / 60; m > 0 {
		out += ":" + strconv.Itoa(100 + m)[1:]
	}
	return out
}
