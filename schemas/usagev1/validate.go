package usagev1

import (
	"encoding/json"

	"penstock.dev/schemas/internal/check"
)

const maxExact = check.MaxExact

// Validate returns a *wire.FieldError for the first field that breaks the
// bounds of its doc in usage.v1.avsc, or nil.
func (e *Event) Validate() error {
	var c check.Check
	e.checkIdentity(&c)
	e.checkDimensions(&c)
	c.That(e.Status == 0 || e.Status >= 100 && e.Status <= 599, "status", "is neither 0 nor 100 to 599")
	c.OptionalID("rule_id", e.RuleID)
	c.Characters("algorithm", e.Algorithm, 0, 32)
	c.Range("cost", e.Cost, 0, maxExact)
	c.Range("latency_us", e.LatencyUS, 0, maxExact)
	c.Bytes("gateway_id", e.GatewayID, 0, 128)
	c.Range("rules_version", e.RulesVersion, 0, maxExact)
	if u := e.Upstream; u != nil {
		c.Enter("upstream")
		c.That(u.Status == 0 || u.Status >= 100 && u.Status <= 599, "status", "is neither 0 nor 100 to 599")
		c.Range("duration_us", u.DurationUS, 0, maxExact)
		c.Leave()
	}
	c.Items("counters", len(e.Counters), 64)
	for i := range e.Counters {
		c.EnterItem("counters", i)
		e.Counters[i].check(&c)
		c.Leave()
	}
	c.Bytes("labels_json", e.LabelsJSON, 0, 8192)
	if e.LabelsJSON != "" {
		var labels map[string]string
		c.That(json.Unmarshal([]byte(e.LabelsJSON), &labels) == nil && labels != nil, "labels_json", "is no JSON object of strings")
	}
	return c.Err()
}

func (e *Event) checkIdentity(c *check.Check) {
	c.That(v7(e.EventID), "event_id", "is no UUIDv7")
	c.That(v7(e.DecisionID), "decision_id", "is no UUIDv7")
	c.That(e.StreamID != UUID{}, "stream_id", "is missing")
	c.Micros("ts", e.TS)
	c.Range("sequence", e.Sequence, 1, maxExact)
	c.Bytes("refund_id", e.RefundID, 0, 128)
	if e.Decision == DecisionUnknown {
		return // a newer kind of event, whose rules are its own
	}
	refund, correction := e.Decision == DecisionRefund, e.Decision == DecisionRefund || e.Decision == DecisionSettle
	c.That(refund == (e.RefundID != ""), "refund_id", "is set for a REFUND and for it alone")
	c.That(correction || e.EventID == e.DecisionID, "decision_id", "is not the event_id, and the event is no correction")
}

func (e *Event) checkDimensions(c *check.Check) {
	c.Bytes("tenant", e.Tenant, 0, 256)
	c.Bytes("application", e.Application, 0, 256)
	c.Bytes("user", e.User, 0, 256)
	c.Bytes("api_key", e.APIKey, 0, 256)
	c.That(len(e.APIKeyHash) == 0 || len(e.APIKeyHash) == 16, "api_key_hash", "is neither 0 nor 16 bytes")
	c.Characters("client_address", e.ClientAddress, 0, 66)
	c.Bytes("service", e.Service, 0, 256)
	c.Bytes("endpoint", e.Endpoint, 0, 256)
	c.Characters("method", e.Method, 0, 32)
	c.Bytes("path_template", e.PathTemplate, 0, 1024)
}

func (n *Counter) check(c *check.Check) {
	c.Bytes("key", n.Key, 1, 2048)
	c.Micros("period_start", n.PeriodStart)
	c.Micros("period_end", n.PeriodEnd)
	none := n.PeriodStart == 0 && n.PeriodEnd == 0
	c.That(none || n.PeriodStart < n.PeriodEnd, "period_end", "is not after period_start")
	c.Range("limit", n.Limit, 0, maxExact)
	c.Range("units", n.Units, -maxExact, maxExact)
	c.Range("consumed", n.Consumed, 0, maxExact)
	c.Range("refunded", n.Refunded, 0, n.Consumed)
	c.That(n.Observed || n.Consumed == 0, "consumed", "is not 0 and was not observed")
	c.Meter("meter", n.Meter)
	c.ID("rule_id", n.RuleID)
	c.Range("rule_version", n.RuleVersion, 1, maxExact)
	c.Items("thresholds_percent", len(n.ThresholdsPercent), 16)
	c.Ascending("thresholds_percent", n.ThresholdsPercent, 1, 100)
	c.Items("thresholds_left", len(n.ThresholdsLeft), 16)
	c.Descending("thresholds_left", n.ThresholdsLeft, 0, maxExact)
}

// v7 says whether u is a UUID of version 7 (RFC 9562).
func v7(u UUID) bool { return u[6]>>4 == 7 && u[8]>>6 == 2 }
