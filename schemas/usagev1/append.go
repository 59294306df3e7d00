package usagev1

// AppendEvent appends the Avro body of e, without framing, to dst. It checks
// nothing: see Validate. A symbol that the schema does not have is written as
// UNKNOWN.
//
// It is written by hand because a gateway encodes every decision: it allocates
// nothing but dst, and takes a tenth of what a library does. The order below is
// that of usage.v1.avsc; TestAppendEventAgrees holds its bytes to hamba's and
// twmb's.
func AppendEvent(dst []byte, e *Event) []byte {
	dst = append(dst, e.EventID[:]...)
	dst = append(dst, e.DecisionID[:]...)
	dst = appendLong(dst, e.TS)
	dst = append(dst, e.StreamID[:]...)
	dst = appendLong(dst, e.Sequence)
	dst = appendSymbol(dst, uint8(e.Decision), len(decisionSymbols))
	dst = appendLong(dst, int64(e.Status))
	dst = appendString(dst, e.Tenant)
	dst = appendString(dst, e.Application)
	dst = appendString(dst, e.User)
	dst = appendString(dst, e.APIKey)
	dst = appendLong(dst, int64(len(e.APIKeyHash)))
	dst = append(dst, e.APIKeyHash...)
	dst = appendString(dst, e.ClientAddress)
	dst = appendString(dst, e.Service)
	dst = appendString(dst, e.Endpoint)
	dst = appendString(dst, e.Method)
	dst = appendString(dst, e.PathTemplate)
	dst = appendString(dst, e.RuleID)
	dst = appendString(dst, e.Algorithm)
	dst = appendLong(dst, e.Cost)
	dst = appendLong(dst, e.LatencyUS)
	dst = appendString(dst, e.GatewayID)
	dst = appendLong(dst, e.RulesVersion)
	dst = appendUpstream(dst, e.Upstream)
	dst = appendCounters(dst, e.Counters)
	dst = appendString(dst, e.RefundID)
	return appendString(dst, e.LabelsJSON)
}

func appendUpstream(dst []byte, u *Upstream) []byte {
	if u == nil {
		return append(dst, 0) // the union's first branch, null
	}
	dst = append(dst, 2) // its second
	dst = appendLong(dst, int64(u.Status))
	return appendLong(dst, u.DurationUS)
}

func appendCounters(dst []byte, counters []Counter) []byte {
	if len(counters) > 0 {
		dst = appendLong(dst, int64(len(counters)))
	}
	for i := range counters {
		c := &counters[i]
		dst = appendString(dst, c.Key)
		dst = appendBool(dst, c.Observed)
		dst = appendLong(dst, c.PeriodStart)
		dst = appendLong(dst, c.PeriodEnd)
		dst = appendLong(dst, c.Limit)
		dst = appendLong(dst, c.Units)
		dst = appendLong(dst, c.Consumed)
		dst = appendLong(dst, c.Refunded)
		if c.Encoded != nil {
			dst = append(dst, c.Encoded...)
		} else {
			dst = RuleTail(dst, c)
		}
	}
	return append(dst, 0) // the array's last block, of no items
}

// RuleTail appends the fields of c from Kind on, which change only when its rule
// does. A gateway makes them once per rule and snapshot, as Counter.Encoded.
func RuleTail(dst []byte, c *Counter) []byte {
	dst = appendSymbol(dst, uint8(c.Kind), len(counterKindSymbols))
	dst = appendSymbol(dst, uint8(c.Mode), len(modeSymbols))
	dst = appendBool(dst, c.Soft)
	dst = appendString(dst, c.Meter)
	dst = appendString(dst, c.RuleID)
	dst = appendLong(dst, c.RuleVersion)
	if len(c.ThresholdsPercent) > 0 {
		dst = appendLong(dst, int64(len(c.ThresholdsPercent)))
		for _, t := range c.ThresholdsPercent {
			dst = appendLong(dst, int64(t))
		}
	}
	dst = append(dst, 0)
	if len(c.ThresholdsLeft) > 0 {
		dst = appendLong(dst, int64(len(c.ThresholdsLeft)))
		for _, t := range c.ThresholdsLeft {
			dst = appendLong(dst, t)
		}
	}
	return append(dst, 0)
}

// appendLong appends a zigzag varint, which ints and longs share. Most are
// short, so those are not looped over.
func appendLong(dst []byte, v int64) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	switch {
	case u < 1<<7:
		return append(dst, byte(u))
	case u < 1<<14:
		return append(dst, byte(u)|0x80, byte(u>>7))
	case u < 1<<21:
		return append(dst, byte(u)|0x80, byte(u>>7)|0x80, byte(u>>14))
	}
	dst = append(dst, byte(u)|0x80, byte(u>>7)|0x80, byte(u>>14)|0x80)
	for u >>= 21; u >= 0x80; u >>= 7 {
		dst = append(dst, byte(u)|0x80)
	}
	return append(dst, byte(u))
}

func appendString(dst []byte, s string) []byte {
	if len(s) < 64 {
		dst = append(dst, byte(len(s))<<1)
	} else {
		dst = appendLong(dst, int64(len(s)))
	}
	return append(dst, s...)
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendSymbol appends the index of a symbol; an enum has fewer than 64.
func appendSymbol(dst []byte, index uint8, symbols int) []byte {
	if int(index) >= symbols {
		index = 0
	}
	return append(dst, index<<1)
}
