package tell

import (
	"strconv"

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
// no numbers: then it is nil.
func Limits(d *decide.Decision) []string {
	if d.Degraded {
		return nil
	}
	tightest, ok := d.Tightest()
	if !ok {
		return nil
	}
	policy, state := make([]byte, 0, 256), make([]byte, 0, 256)
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Mode == rule.Enforce {
			policy, state = appendLimit(policy, state, l)
		}
	}
	values := []string{
		strconv.FormatInt(tightest.Limit, 10), strconv.FormatInt(tightest.Remaining, 10),
		strconv.FormatInt(Seconds(tightest.Reset), 10), string(policy), string(state),
	}
	if Endless(&tightest) {
		values[2] = ""
	}
	return values
}

// appendLimit appends one rule to both lists.
func appendLimit(policy, state []byte, l *decide.Limit) (newPolicy, newState []byte) {
	if len(policy) > 0 {
		policy, state = append(policy, ", "...), append(state, ", "...)
	}
	policy = appendParam(appendName(policy, l.RuleID), "q", l.Limit)
	state = appendParam(appendName(state, l.RuleID), "r", l.Remaining)
	if !Endless(l) {
		policy = appendParam(policy, "w", Seconds(l.Window))
		state = appendParam(state, "t", Seconds(l.Reset))
	}
	return policy, state
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
