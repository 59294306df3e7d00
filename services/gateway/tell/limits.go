package tell

import (
	"strconv"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// Names are those under which limits are told, as Go spells them. Names of
// headers have no case on the wire.
var Names = [...]string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit-Policy", "Ratelimit"}

// Degraded marks an answer that the counter store did not give.
const Degraded = "X-RateLimit-Degraded"

// maxField is the greatest integer that a structured field can hold (RFC 9651).
const maxField = 999_999_999_999_999

// Limits are the values of Names for what a decision says about limits:
// X-RateLimit-* of the tightest, and RateLimit-Policy and RateLimit of all
// (draft-ietf-httpapi-ratelimit-headers-10). One that is empty is not told.
// Rules in shadow are not told, and what the counter store did not answer has
// no numbers: then all are empty. They share one string.
func Limits(d *decide.Decision) (values [len(Names)]string) {
	if d.Degraded {
		return values
	}
	tightest := d.Tightest()
	if tightest == nil {
		return values
	}
	b := strconv.AppendInt(make([]byte, 0, 512), tightest.Limit, 10)
	var ends [len(Names)]int
	ends[0] = len(b)
	b = strconv.AppendInt(b, tightest.Remaining, 10)
	ends[1] = len(b)
	if !Endless(tightest) {
		b = strconv.AppendInt(b, Seconds(tightest.Reset), 10)
	}
	ends[2] = len(b)
	b = appendList(b, d.Limits, "q", "w", func(l *decide.Limit) (int64, time.Duration) { return l.Limit, l.Window })
	ends[3] = len(b)
	b = appendList(b, d.Limits, "r", "t", func(l *decide.Limit) (int64, time.Duration) { return l.Remaining, l.Reset })
	ends[4] = len(b)
	text, begin := string(b), 0
	for i, end := range ends {
		values[i], begin = text[begin:end], end
	}
	return values
}

// appendList appends one of the lists of all enforced rules: of each so many
// units, and a time unless no time brings units back.
func appendList(b []byte, limits []decide.Limit, units, wait string, of func(*decide.Limit) (int64, time.Duration)) []byte {
	begin := len(b)
	for i := range limits {
		l := &limits[i]
		if l.Mode != rule.Enforce {
			continue
		}
		if len(b) > begin {
			b = append(b, ", "...)
		}
		n, d := of(l)
		b = appendParam(appendName(b, l.RuleID), units, n)
		if !Endless(l) {
			b = appendParam(b, wait, Seconds(d))
		}
	}
	return b
}

// appendName appends a structured field string. Ids of rules need no escapes;
// what could not stand in one is left out.
func appendName(dst []byte, id string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(id); i++ {
		switch c := id[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= ' ' && c < 0x7f:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

func appendParam(dst []byte, key string, n int64) []byte {
	dst = append(append(append(dst, ';'), key...), '=')
	return strconv.AppendInt(dst, min(n, maxField), 10)
}
