package counters

import (
	"encoding/hex"
	"strconv"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// Key returns the key of a counter; doc.go shows the layout. Two identities
// have equal keys exactly when their canonical forms are equal.
func Key(id limit.Identity) string { return string(AppendKey(make([]byte, 0, 96), id)) }

// AppendKey appends the key of a counter to b.
func AppendKey(b []byte, id limit.Identity) []byte {
	id = id.Canonical()
	b = appendTag(b, id)
	if id.Shadow {
		b = append(b, ":s:"...)
	} else {
		b = append(b, ":e:"...)
	}
	b = append(b, id.Kind...)
	b = append(b, ':')
	b = appendSubject(b, id)
	b = appendPart(b, id.Meter)
	switch {
	case id.Endpoint != "":
		b = appendPart(append(b, ":e"...), id.Endpoint)
	case id.Service != "":
		b = appendPart(append(b, ":s"...), id.Service)
	default:
		b = append(b, ":g"...)
	}
	switch id.Kind {
	case rule.Rate:
		b = appendPart(b, string(id.Algorithm))
		b = appendNumber(b, id.Window.Microseconds())
	case rule.Quota, rule.Wallet:
		if id.Kind == rule.Wallet && id.Unit == "" {
			break // prepaid
		}
		b = append(appendPart(b, string(id.Unit)), '*')
		b = strconv.AppendInt(b, int64(id.Count), 10)
		b = appendNumber(b, id.Start.UnixMicro())
	case rule.Block:
	}
	return b
}

// requestKey returns the key of a request id, in its tenant's slot.
func requestKey(q limit.Request) string {
	return string(appendPart(append(appendOwner(make([]byte, 0, 64), q.Tenant, q.Address), ":req"...), q.ID))
}

// markKey returns the key of what is remembered of a decision's corrections, in
// its tenant's slot.
func markKey(c *limit.Correction) string {
	b := append(appendOwner(make([]byte, 0, 64), c.Tenant, c.Address), ":ref:"...)
	return string(hex.AppendEncode(b, c.DecisionID[:]))
}

// appendOwner appends the tag of a tenant, or of an address where there is none.
func appendOwner(b []byte, tenant, address string) []byte {
	if tenant != "" {
		b = appendEscaped(append(b, "{t:"...), tenant)
	} else {
		b = appendEscaped(append(b, "{a:"...), address)
	}
	return append(b, '}')
}

// appendTag appends the hash tag: what has a tenant lies in its tenant's slot,
// what has only an address in the address's, and the rest in one.
func appendTag(b []byte, id limit.Identity) []byte {
	switch {
	case id.Subject&(rule.Tenant|rule.Application|rule.User|rule.APIKey) != 0:
		return append(appendEscaped(append(b, "{t:"...), id.Tenant), '}')
	case id.Subject.Has(rule.IP):
		return append(appendEscaped(append(b, "{a:"...), id.Address), '}')
	default:
		return append(b, "{g}"...)
	}
}

// letters name the dimensions of a subject, in the order of rule.Dimensions.
const letters = "tauki"

func appendSubject(b []byte, id limit.Identity) []byte {
	for i, d := range rule.Dimensions {
		if id.Subject.Has(d.Bit) {
			b = append(b, letters[i])
		}
	}
	if id.Subject == 0 {
		b = append(b, '-')
	}
	for _, v := range []struct {
		bit   rule.Subject
		value string
	}{
		{rule.Application, id.Application},
		{rule.User, id.User},
		{rule.APIKey, id.APIKey},
		{rule.IP, id.Address},
	} {
		if id.Subject.Has(v.bit) {
			b = appendPart(b, v.value)
		}
	}
	return b
}

func appendNumber(b []byte, n int64) []byte { return strconv.AppendInt(append(b, ':'), n, 10) }

func appendPart(b []byte, s string) []byte { return appendEscaped(append(b, ':'), s) }

// appendEscaped appends s with what could end a part or a tag percent-escaped.
func appendEscaped(b []byte, s string) []byte {
	plain := 0 // bytes that need no escape; parts are short, so they are looked at one by one
	for plain < len(s) && s[plain] != '%' && s[plain] != ':' && s[plain] != '{' && s[plain] != '}' {
		plain++
	}
	b = append(b, s[:plain]...)
	for i := plain; i < len(s); i++ {
		switch c := s[i]; c {
		case '%', ':', '{', '}':
			b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}
