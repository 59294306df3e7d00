package proxyapi

import (
	"net/http"
	"strconv"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// limitHeaders are the names under which limits are told, as Go spells them.
// Names of headers have no case on the wire.
var limitHeaders = [...]string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit-Policy", "Ratelimit"}

// exposedHeaders lets scripts of another origin read them.
const exposedHeaders = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, RateLimit-Policy, RateLimit, " + degradedHeader + ", Retry-After"

// degradedHeader marks an answer that the counter store did not give.
const degradedHeader = "X-RateLimit-Degraded"

// maxField is the greatest integer that a structured field can hold (RFC 9651).
const maxField = 999_999_999_999_999

// setLimits writes what a decision says about limits: X-RateLimit-* of the
// tightest, and RateLimit-Policy and RateLimit of all (draft-ietf-httpapi-
// ratelimit-headers-10). Rules in shadow are not told. What the counter store
// did not answer has no numbers.
func setLimits(h http.Header, d *decide.Decision) {
	if d.Degraded {
		h[http.CanonicalHeaderKey(degradedHeader)] = []string{"true"}
		return
	}
	tightest, ok := d.Tightest()
	policy, state := make([]byte, 0, 256), make([]byte, 0, 256)
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Mode == rule.Enforce {
			policy, state = appendLimit(policy, state, l)
		}
	}
	if !ok {
		return
	}
	values := []string{
		strconv.FormatInt(tightest.Limit, 10), strconv.FormatInt(tightest.Remaining, 10),
		strconv.FormatInt(seconds(tightest.Reset), 10), string(policy), string(state),
	}
	if endless(&tightest) {
		values[2] = ""
	}
	for i, name := range limitHeaders {
		if values[i] != "" {
			h[name] = values[i : i+1 : i+1]
		}
	}
}

// endless reports whether no time brings units back: a prepaid wallet waits for
// a top-up.
func endless(l *decide.Limit) bool { return l.Kind == rule.Wallet && l.PeriodEnd.IsZero() }

// appendLimit appends one rule to both lists.
func appendLimit(policy, state []byte, l *decide.Limit) (newPolicy, newState []byte) {
	if len(policy) > 0 {
		policy, state = append(policy, ", "...), append(state, ", "...)
	}
	policy = appendParam(appendName(policy, l.RuleID), "q", l.Limit)
	state = appendParam(appendName(state, l.RuleID), "r", l.Remaining)
	if !endless(l) {
		policy = appendParam(policy, "w", seconds(l.Window))
		state = appendParam(state, "t", seconds(l.Reset))
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

// seconds is a wait in whole seconds, rounded up.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
