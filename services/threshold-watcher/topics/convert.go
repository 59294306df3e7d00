package topics

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/usagev1"

	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/threshold-watcher/threshold"
)

// Headers of an announcement: what a watcher that reads it back needs beyond the
// event. Subscribers need none of them. Values are decimal.
const (
	HeaderRefunded     = "refunded"      // units refunded at the crossing
	HeaderRuleVersion  = "rule-version"  // of the event's rule
	HeaderRulesVersion = "rules-version" // revision of all rules
)

// usageOf is what a Book is told of an event. A refund announces nothing, and nor
// does a settlement that gives back.
func usageOf(e *usagev1.Event) threshold.Usage {
	u := threshold.Usage{
		Tenant: e.Tenant, Decision: e.DecisionID, At: millis(e.TS), RulesVersion: e.RulesVersion,
		Correction: e.Decision == usagev1.DecisionSettle,
	}
	if e.Decision == usagev1.DecisionRefund {
		return u
	}
	for i := range e.Counters {
		c := &e.Counters[i]
		known := c.Kind == usagev1.CounterKindQuota || c.Kind == usagev1.CounterKindWallet
		if !known || !c.Observed || c.Mode != usagev1.ModeEnforce || u.Correction && c.Units <= 0 {
			continue
		}
		u.Counters = append(u.Counters, threshold.Counter{
			Key: c.Key, Start: millis(c.PeriodStart), End: millis(c.PeriodEnd), Meter: c.Meter,
			RuleID: c.RuleID, RuleVersion: c.RuleVersion, Wallet: c.Kind == usagev1.CounterKindWallet,
			Limit: c.Limit, Consumed: c.Consumed, Refunded: c.Refunded, Percent: c.ThresholdsPercent, Left: c.ThresholdsLeft,
		})
	}
	return u
}

// millis are microseconds in milliseconds, rounded down.
func millis(us int64) int64 {
	ms := us / 1000
	if us%1000 < 0 {
		ms--
	}
	return ms
}

// types are the types of announcements in the schema's words.
var types = map[threshold.Type]quotaeventsv1.EventType{
	threshold.Reached:     quotaeventsv1.EventTypeThresholdReached,
	threshold.Exhausted:   quotaeventsv1.EventTypeExhausted,
	threshold.Overdrawn:   quotaeventsv1.EventTypeOverdrawn,
	threshold.Replenished: quotaeventsv1.EventTypeReplenished,
}

// eventOf is an announcement as it is published.
func eventOf(a *threshold.Announcement) quotaeventsv1.Event {
	id := a.ID()
	e := quotaeventsv1.Event{
		EventID: hex.EncodeToString(id[:]), Type: types[a.Type], TenantID: a.Tenant, RuleID: a.RuleID, Meter: a.Meter,
		CounterKey: a.Key, Limit: a.Limit, Consumed: a.Used, Arm: a.Arm, CauseDecisionID: usagev1.UUID(a.Cause).String(), TS: a.At,
	}
	if a.End != 0 {
		e.PeriodStart, e.PeriodEnd = &a.Start, &a.End
	}
	if n, ok := a.Level.Percent(); ok {
		e.ThresholdPercent = &n
	}
	if n, ok := a.Level.Left(); ok {
		e.ThresholdLeft = &n
	}
	return e
}

// headersOf are the headers of an announcement.
func headersOf(a *threshold.Announcement) []kafka.Header {
	header := func(key string, n int64) kafka.Header {
		return kafka.Header{Key: key, Value: strconv.AppendInt(nil, n, 10)}
	}
	return []kafka.Header{
		header(HeaderRefunded, a.Refunded), header(HeaderRuleVersion, a.RuleVersion), header(HeaderRulesVersion, a.RulesVersion),
	}
}

// announcementOf is what was published. Who published it without headers is taken to
// have known the oldest rules and no refunds. The cause is left out: nothing
// depends on it.
func announcementOf(e *quotaeventsv1.Event, headers []kafka.Header) (threshold.Announcement, error) {
	a := threshold.Announcement{
		Level: threshold.Overdraft(), Arm: e.Arm, Key: e.CounterKey, Tenant: e.TenantID, Meter: e.Meter, RuleID: e.RuleID,
		Limit: e.Limit, Used: e.Consumed, At: e.TS,
	}
	for t, name := range types {
		if name == e.Type {
			a.Type = t
		}
	}
	if e.PeriodStart != nil {
		a.Start, a.End = *e.PeriodStart, *e.PeriodEnd
	}
	if e.ThresholdPercent != nil {
		a.Level = threshold.Percent(*e.ThresholdPercent)
	} else if e.ThresholdLeft != nil {
		a.Level = threshold.Left(*e.ThresholdLeft)
	}
	for _, h := range headers {
		var to *int64
		switch h.Key {
		case HeaderRefunded:
			to = &a.Refunded
		case HeaderRuleVersion:
			to = &a.RuleVersion
		case HeaderRulesVersion:
			to = &a.RulesVersion
		default:
			continue
		}
		n, err := strconv.ParseInt(string(h.Value), 10, 64)
		if err != nil || n < 0 {
			return a, fmt.Errorf("header %s is not a number from 0", h.Key)
		}
		*to = n
	}
	return a, nil
}
