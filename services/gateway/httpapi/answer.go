package httpapi

import (
	"encoding/hex"
	"strconv"
	"time"
	"unicode/utf8"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// appendDecision appends the answer's JSON, but for the brace at its end.
func (a *API) appendDecision(dst []byte, d *decide.Decision) []byte {
	dst = appendUUID(append(dst, `{"decision_id":`...), d.ID)
	dst = appendString(append(dst, `,"outcome":`...), string(d.Outcome))
	dst = strconv.AppendInt(append(dst, `,"status":`...), int64(d.Status), 10)
	if d.Code != "" {
		dst = appendString(append(dst, `,"code":`...), string(d.Code))
	}
	if d.RuleID != "" {
		dst = appendString(append(dst, `,"rule_id":`...), d.RuleID)
	}
	if d.CanRetry {
		dst = strconv.AppendInt(append(dst, `,"retry_after_seconds":`...), max(1, seconds(d.RetryAfter)), 10)
	}
	if queued(d) {
		dst = strconv.AppendInt(append(dst, `,"delay_ms":`...), milliseconds(d.Delay), 10)
	}
	dst = strconv.AppendBool(append(dst, `,"degraded":`...), d.Degraded)
	dst = strconv.AppendInt(append(dst, `,"cost":`...), d.Cost, 10)
	dst = strconv.AppendInt(append(dst, `,"rules_version":`...), d.RulesVersion, 10)
	if receipt := a.receipt(d); receipt != "" {
		dst = append(append(append(dst, `,"receipt":"`...), receipt...), '"')
	}
	dst = append(dst, `,"limits":[`...)
	for i := range d.Limits {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLimit(dst, &d.Limits[i])
	}
	return append(dst, ']')
}

// queued reports whether a decision says how long its request waits: one that
// passes and that a leaky bucket had a say in.
func queued(d *decide.Decision) bool {
	if d.Outcome != decide.Allow {
		return false
	}
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Algorithm == rule.LeakyBucket && l.Mode == rule.Enforce {
			return true
		}
	}
	return d.Delay > 0
}

func appendLimit(dst []byte, l *decide.Limit) []byte {
	dst = appendString(append(dst, `{"rule_id":`...), l.RuleID)
	dst = appendString(append(dst, `,"kind":`...), string(l.Kind))
	dst = appendString(append(dst, `,"algorithm":`...), string(l.Algorithm))
	dst = appendString(append(dst, `,"meter":`...), l.Meter)
	dst = appendString(append(dst, `,"mode":`...), string(l.Mode))
	dst = strconv.AppendInt(append(dst, `,"limit":`...), l.Limit, 10)
	if l.Kind == rule.Quota || l.Kind == rule.Wallet {
		dst = strconv.AppendInt(append(dst, `,"consumed":`...), l.Consumed, 10)
		dst = strconv.AppendInt(append(dst, `,"refunded":`...), l.Refunded, 10)
	}
	if l.Kind == rule.Wallet {
		dst = strconv.AppendInt(append(dst, `,"balance":`...), l.Balance, 10)
	}
	dst = strconv.AppendInt(append(dst, `,"remaining":`...), l.Remaining, 10)
	if l.Kind != rule.Wallet || !l.PeriodEnd.IsZero() { // a prepaid wallet has no end to wait for
		dst = strconv.AppendInt(append(dst, `,"reset_seconds":`...), seconds(l.Reset), 10)
	}
	dst = strconv.AppendBool(append(dst, `,"passed":`...), l.Passed)
	if !l.PeriodEnd.IsZero() {
		dst = appendTime(append(dst, `,"period_start":`...), l.PeriodStart)
		dst = appendTime(append(dst, `,"period_end":`...), l.PeriodEnd)
	}
	return append(dst, '}')
}

func appendUUID(dst []byte, id [16]byte) []byte {
	dst = append(dst, '"')
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		start := [...]int{0, 4, 6, 8, 10}[i]
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, id[start:end])
	}
	return append(dst, '"')
}

func appendTime(dst []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(dst, '"'), time.RFC3339Nano), '"')
}

// appendString appends a JSON string. Ids and words need no escapes; whatever
// else comes gets them.
func appendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// seconds is a wait in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return whole(d, time.Second) }

// milliseconds is a wait in whole ones, rounded up.
func milliseconds(d time.Duration) int64 { return whole(d, time.Millisecond) }

func whole(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}
