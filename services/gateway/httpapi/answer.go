package httpapi

import (
	"encoding/hex"
	"strconv"
	"time"
	"unicode/utf8"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// appendDecision appends the answer's JSON.
func appendDecision(dst []byte, d *decide.Decision) []byte {
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
	dst = strconv.AppendBool(append(dst, `,"degraded":`...), d.Degraded)
	dst = strconv.AppendInt(append(dst, `,"cost":`...), d.Cost, 10)
	dst = strconv.AppendInt(append(dst, `,"rules_version":`...), d.RulesVersion, 10)
	dst = append(dst, `,"limits":[`...)
	for i := range d.Limits {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLimit(dst, &d.Limits[i])
	}
	return append(dst, "]}\n"...)
}

func appendLimit(dst []byte, l *decide.Limit) []byte {
	dst = appendString(append(dst, `{"rule_id":`...), l.RuleID)
	dst = appendString(append(dst, `,"kind":`...), string(l.Kind))
	dst = appendString(append(dst, `,"algorithm":`...), string(l.Algorithm))
	dst = appendString(append(dst, `,"meter":`...), l.Meter)
	dst = appendString(append(dst, `,"mode":`...), string(l.Mode))
	dst = strconv.AppendInt(append(dst, `,"limit":`...), l.Limit, 10)
	if l.Kind == rule.Quota {
		dst = strconv.AppendInt(append(dst, `,"consumed":`...), l.Consumed, 10)
		dst = strconv.AppendInt(append(dst, `,"refunded":`...), l.Refunded, 10)
	}
	dst = strconv.AppendInt(append(dst, `,"remaining":`...), l.Remaining, 10)
	dst = strconv.AppendInt(append(dst, `,"reset_seconds":`...), seconds(l.Reset), 10)
	dst = strconv.AppendBool(append(dst, `,"passed":`...), l.Passed)
	if l.Kind == rule.Quota {
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
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
