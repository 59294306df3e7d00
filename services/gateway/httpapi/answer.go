package httpapi

import (
	"strconv"
	"time"

	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/tell"
	"penstock.dev/services/internal/rule"
)

// appendDecision appends the answer's JSON, but for the brace at its end.
func (a *API) appendDecision(dst []byte, d *decide.Decision) []byte {
	dst = appendUUID(append(dst, `{"decision_id":`...), d.ID)
	dst = ask.AppendString(append(dst, `,"outcome":`...), string(d.Outcome))
	dst = strconv.AppendInt(append(dst, `,"status":`...), int64(d.Status), 10)
	if d.Code != "" {
		dst = ask.AppendString(append(dst, `,"code":`...), string(d.Code))
	}
	if d.RuleID != "" {
		dst = ask.AppendString(append(dst, `,"rule_id":`...), d.RuleID)
	}
	if d.CanRetry {
		dst = strconv.AppendInt(append(dst, `,"retry_after_seconds":`...), tell.Retry(d), 10)
	}
	if tell.Queued(d) {
		dst = strconv.AppendInt(append(dst, `,"delay_ms":`...), tell.Milliseconds(d.Delay), 10)
	}
	dst = strconv.AppendBool(append(dst, `,"degraded":`...), d.Degraded)
	dst = strconv.AppendInt(append(dst, `,"cost":`...), d.Cost, 10)
	dst = strconv.AppendInt(append(dst, `,"rules_version":`...), d.RulesVersion, 10)
	if receipt := a.desk.Receipt(d); receipt != "" {
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

func appendLimit(dst []byte, l *decide.Limit) []byte {
	dst = ask.AppendString(append(dst, `{"rule_id":`...), l.RuleID)
	dst = ask.AppendString(append(dst, `,"kind":`...), string(l.Kind))
	dst = ask.AppendString(append(dst, `,"algorithm":`...), string(l.Algorithm))
	dst = ask.AppendString(append(dst, `,"meter":`...), l.Meter)
	dst = ask.AppendString(append(dst, `,"mode":`...), string(l.Mode))
	dst = strconv.AppendInt(append(dst, `,"limit":`...), l.Limit, 10)
	if l.Kind == rule.Quota || l.Kind == rule.Wallet {
		dst = strconv.AppendInt(append(dst, `,"consumed":`...), l.Consumed, 10)
		dst = strconv.AppendInt(append(dst, `,"refunded":`...), l.Refunded, 10)
	}
	if l.Kind == rule.Wallet {
		dst = strconv.AppendInt(append(dst, `,"balance":`...), l.Balance, 10)
	}
	dst = strconv.AppendInt(append(dst, `,"remaining":`...), l.Remaining, 10)
	if !tell.Endless(l) { // a prepaid wallet has no end to wait for
		dst = strconv.AppendInt(append(dst, `,"reset_seconds":`...), tell.Seconds(l.Reset), 10)
	}
	dst = strconv.AppendBool(append(dst, `,"passed":`...), l.Passed)
	if !l.PeriodEnd.IsZero() {
		dst = appendTime(append(dst, `,"period_start":`...), l.PeriodStart)
		dst = appendTime(append(dst, `,"period_end":`...), l.PeriodEnd)
	}
	return append(dst, '}')
}

func appendUUID(dst []byte, id [16]byte) []byte {
	return append(ask.AppendID(append(dst, '"'), id), '"')
}

func appendTime(dst []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(dst, '"'), time.RFC3339Nano), '"')
}
