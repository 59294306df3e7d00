package usagedoc

import (
	"encoding/hex"
	"strconv"
	"unicode/utf8"
)

// Append appends the document of e, one JSON object on one line, to dst. What is
// absent is left out; what is no UTF-8 becomes U+FFFD.
//
// It is written by hand because every decision of an estate passes here:
// FuzzAppend holds it to encoding/json.
func Append(dst []byte, e *Event) []byte {
	dst = append(dst, `{"ts":"`...)
	dst = AppendTime(dst, e.TS)
	dst = append(dst, `","eventId":"`...)
	dst = AppendUUID(dst, e.EventID)
	dst = append(dst, `","decisionId":"`...)
	dst = AppendUUID(dst, e.DecisionID)
	dst = append(dst, '"')
	dst = text(dst, `,"decision":`, e.Decision)
	if e.Status != 0 {
		dst = number(dst, `,"statusCode":`, int64(e.Status))
	}
	dst = dimensions(dst, e)
	dst = text(dst, `,"ruleId":`, e.RuleID)
	dst = text(dst, `,"algo":`, e.Algorithm)
	dst = number(dst, `,"cost":`, e.Cost)
	dst = millis(dst, `,"latencyMs":`, e.LatencyUS)
	if u := e.Upstream; u != nil {
		if u.Status != 0 {
			dst = number(dst, `,"upstreamStatus":`, int64(u.Status))
		}
		dst = millis(dst, `,"upstreamMs":`, u.DurationUS)
	}
	dst = text(dst, `,"gatewayId":`, e.GatewayID)
	dst = number(dst, `,"rulesVersion":`, e.RulesVersion)
	dst = append(dst, `,"streamId":"`...)
	dst = AppendUUID(dst, e.StreamID)
	dst = append(dst, '"')
	dst = number(dst, `,"sequence":`, e.Sequence)
	dst = text(dst, `,"refundId":`, e.RefundID)
	dst = counters(dst, e.Counters)
	dst = labels(dst, e.Labels)
	return append(dst, '}')
}

func dimensions(dst []byte, e *Event) []byte {
	dst = text(dst, `,"tenantId":`, e.Tenant)
	dst = text(dst, `,"applicationId":`, e.Application)
	dst = text(dst, `,"userId":`, e.User)
	dst = text(dst, `,"apiKeyId":`, e.APIKey)
	if len(e.APIKeyHash) > 0 {
		dst = append(dst, `,"apiKeyHash":"`...)
		dst = hex.AppendEncode(dst, e.APIKeyHash)
		dst = append(dst, '"')
	}
	dst = text(dst, `,"clientAddress":`, e.ClientAddress)
	dst = text(dst, `,"service":`, e.Service)
	dst = text(dst, `,"endpoint":`, e.Endpoint)
	dst = text(dst, `,"method":`, e.Method)
	return text(dst, `,"pathTemplate":`, e.PathTemplate)
}

func counters(dst []byte, all []Counter) []byte {
	if len(all) == 0 {
		return dst
	}
	dst = append(dst, `,"counters":[`...)
	for i := range all {
		c := &all[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"observed":`...)
		dst = strconv.AppendBool(dst, c.Observed)
		dst = text(dst, `,"key":`, c.Key)
		dst = text(dst, `,"meter":`, c.Meter)
		dst = text(dst, `,"kind":`, c.Kind)
		dst = text(dst, `,"ruleId":`, c.RuleID)
		dst = text(dst, `,"mode":`, c.Mode)
		dst = append(dst, `,"soft":`...)
		dst = strconv.AppendBool(dst, c.Soft)
		dst = number(dst, `,"limit":`, c.Limit)
		dst = number(dst, `,"units":`, c.Units)
		if c.Observed {
			dst = number(dst, `,"consumed":`, c.Consumed)
			dst = number(dst, `,"refunded":`, c.Refunded)
		}
		dst = instant(dst, `,"periodStart":"`, c.PeriodStart)
		dst = instant(dst, `,"periodEnd":"`, c.PeriodEnd)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// text appends a name and a string, or nothing when the string is empty.
func text(dst []byte, name, s string) []byte {
	if s == "" {
		return dst
	}
	dst = append(dst, name...)
	return quote(dst, s)
}

func number(dst []byte, name string, n int64) []byte {
	dst = append(dst, name...)
	return strconv.AppendInt(dst, n, 10)
}

// instant appends a name that ends in a quote and an instant, or nothing for 0.
func instant(dst []byte, name string, us int64) []byte {
	if us == 0 {
		return dst
	}
	dst = append(dst, name...)
	dst = AppendTime(dst, us)
	return append(dst, '"')
}

// millis appends microseconds as milliseconds, without zeros at the end: 412 is
// 0.412.
func millis(dst []byte, name string, us int64) []byte {
	dst = append(dst, name...)
	if us < 0 {
		dst = append(dst, '-')
	}
	whole, part := abs(us/1000), abs(us%1000)
	dst = strconv.AppendInt(dst, whole, 10)
	if part == 0 {
		return dst
	}
	dst = append(dst, '.', byte('0'+part/100), byte('0'+part/10%10), byte('0'+part%10))
	for dst[len(dst)-1] == '0' {
		dst = dst[:len(dst)-1]
	}
	return dst
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// AppendUUID appends the 36 characters of an id.
func AppendUUID(dst []byte, u [16]byte) []byte {
	dst = hex.AppendEncode(dst, u[:4])
	for _, part := range [4][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		dst = append(dst, '-')
		dst = hex.AppendEncode(dst, u[part[0]:part[1]])
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// plain reports whether a byte stands for itself in a JSON string, wherever it
// stands.
var plain = func() (t [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// quote appends s as a JSON string.
func quote(dst []byte, s string) []byte {
	dst = append(dst, '"')
	return append(inside(dst, s), '"')
}

// inside appends what stands between the quotes of s as a JSON string.
func inside(dst []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		dst = append(dst, s[from:i]...)
		dst = escape(dst, c)
		i++
		from = i
	}
	return append(dst, s[from:]...)
}

// escape appends a byte that does not stand for itself; one of no rune becomes
// U+FFFD.
func escape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if c >= utf8.RuneSelf {
		return append(dst, `\ufffd`...)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
