// Package schemastest has records to test with: at least one of every sort, each
// field of which is set in some record.
package schemastest

import (
	"encoding/hex"
	"strings"

	"penstock.dev/schemas/quotaeventsv1"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"
)

// Instants of the records, in microseconds since 1970.
const (
	November = int64(1793480400_000000) // 2026-11-01T00:00 in Europe/Istanbul
	December = int64(1796072400_000000) // 2026-12-01T00:00 in Europe/Istanbul
	Now      = int64(1796061765_123456)
)

// MonthKey is the key of the counter that most records speak of.
const MonthKey = "{t:acme}:e:q:t:api-calls:g:1month:1793480400"

// IDs returns ids that know the given schema texts, as 1, 2, 3 and so on, and
// have no registry.
func IDs(subject string, texts ...string) *wire.IDs {
	ids := wire.NewIDs(nil, subject)
	known := map[uint32]string{}
	for i, text := range texts {
		known[uint32(i+1)] = text
	}
	ids.Seed(known)
	return ids
}

// Ptr returns a pointer to v.
func Ptr[T any](v T) *T { return &v }

// UUID returns the id that s spells, which must be one.
func UUID(s string) (u usagev1.UUID) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(u) {
		return usagev1.UUID{} // a test that uses it fails
	}
	return usagev1.UUID(b)
}

// Rules returns a record of every kind, and of every kind of rule, by name. Each
// call returns new ones.
func Rules() map[string]rulesv1.Record {
	return map[string]rulesv1.Record{
		"tenant": record(rulesv1.KindTenant, "acme", func(r *rulesv1.Record) {
			r.Tenant = &rulesv1.Tenant{
				Name: "Acme", Plan: "gold", Zone: "Europe/Istanbul", Anchor: Ptr(November), Currency: "USD",
				PreviousPeriods: []rulesv1.FormerPeriod{{Zone: "UTC", Until: November}, {Zone: "Etc/GMT+5", Anchor: Ptr(November), Until: December}},
			}
		}),
		"application": record(rulesv1.KindApplication, "web", func(r *rulesv1.Record) {
			r.Application = &rulesv1.Application{Tenant: "acme", Name: "Web"}
		}),
		"user": record(rulesv1.KindUser, "u1", func(r *rulesv1.Record) {
			r.User = &rulesv1.User{Tenant: "acme", Name: "Uma"}
		}),
		"api_key": record(rulesv1.KindAPIKey, "acme-1", func(r *rulesv1.Record) {
			r.APIKey = &rulesv1.APIKey{Tenant: "acme", Application: "web", User: "u1", Digest: []byte("0123456789abcdef0123456789ABCDEF")}
		}),
		"service": record(rulesv1.KindService, "payments", func(r *rulesv1.Record) {
			r.Service = &rulesv1.Service{
				Name: "Payments", Upstream: "http://127.0.0.1:9001", Hosts: []string{"pay.example.org", "[::1]"},
				PathPrefix: "/payments", StripPrefix: true, Cors: &rulesv1.Cors{AllowedOrigins: []string{"https://example.org"}},
				ConnectTimeoutUS: 1_000_000, ResponseTimeoutUS: 30_000_000, IdleTimeoutUS: 300_000_000,
			}
		}),
		"endpoint": record(rulesv1.KindEndpoint, "pay", func(r *rulesv1.Record) {
			r.Endpoint = &rulesv1.Endpoint{Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 1, RefundOn: []string{"5xx", "timeout"}}
		}),
		"plan": record(rulesv1.KindPlan, "gold", func(r *rulesv1.Record) {
			r.Plan = &rulesv1.Plan{
				Name: "Gold", Fee: &rulesv1.Fee{Amount: 9900, Currency: "USD", Period: rulesv1.PeriodUnitMonth},
				Included: []rulesv1.Included{{Meter: "api-calls", Units: 100000}},
				Overage: []rulesv1.Overage{
					{Meter: "api-calls", UpTo: Ptr(int64(900000)), UnitPrice: "0.00001"},
					{Meter: "api-calls", UnitPrice: "0.000005"},
				},
			}
		}),
		"rule-quota":  Quota(),
		"rule-rate":   Rate(),
		"rule-wallet": Renewable(),
		"rule-block": record(rulesv1.KindRule, "no-crawlers", func(r *rulesv1.Record) {
			r.Rule = &rulesv1.Rule{
				Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindBlock, Algorithm: rulesv1.AlgorithmNone,
				Subject: []rulesv1.Dimension{}, Match: &rulesv1.Match{Networks: []string{"203.0.113.0/24", "2001:db8::/32"}},
				Wallet: rulesv1.WalletModeNone, Meter: "api-calls", OnFailure: rulesv1.OnFailureOpen,
				ThresholdsPercent: []int32{}, ThresholdsLeft: []int64{},
			}
		}),
		"wallet": record(rulesv1.KindWallet, "acme:credits", func(r *rulesv1.Record) {
			r.Wallet = &rulesv1.Wallet{Tenant: "acme", Meter: "credits", GrantedTotal: 200}
		}),
		"grant": record(rulesv1.KindGrant, "01998d3a-0000-7c11-9a52-3f0d6be0c1a7", func(r *rulesv1.Record) {
			r.Grant = &rulesv1.Grant{
				Tenant: "acme", Meter: "credits", Units: 200, Priority: -1, GrantedAt: Now,
				ExpiresAt: Ptr(December), ExpiredUnits: 20, Reason: "order 17",
			}
		}),
	}
}

func record(kind rulesv1.Kind, id string, fill func(*rulesv1.Record)) rulesv1.Record {
	r := rulesv1.Record{Kind: kind, ID: id, Version: 803, Revision: 812, ChangedAt: Now, ChangedBy: "ops@example.org", Requires: []string{}}
	fill(&r)
	return r
}

// Quota returns a quota whose period changes at the end of the month.
func Quota() rulesv1.Record {
	return record(rulesv1.KindRule, "acme-month", func(r *rulesv1.Record) {
		r.Rule = &rulesv1.Rule{
			Name: "1,000 a month", Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindQuota, Algorithm: rulesv1.AlgorithmQuota,
			Subject:           []rulesv1.Dimension{rulesv1.DimensionTenant, rulesv1.DimensionUser},
			Match:             &rulesv1.Match{Tenant: "acme", Plan: "gold", Networks: []string{}},
			Limit:             Ptr(int64(1000)),
			Period:            &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar, Zone: "Europe/Istanbul"},
			PreviousPeriod:    &rulesv1.Period{Unit: rulesv1.PeriodUnitDay, Count: 30, Alignment: rulesv1.AlignmentAnniversary, Anchor: Ptr(November)},
			PeriodEffectiveAt: Ptr(December),
			Wallet:            rulesv1.WalletModeNone, Meter: "api-calls", Cost: Ptr(int64(3)), OnFailure: rulesv1.OnFailureClosed,
			ThresholdsPercent: []int32{80, 100}, ThresholdsLeft: []int64{100, 10},
			ValidFrom: Ptr(November), ValidTo: Ptr(December),
		}
	})
}

// Rate returns a rate with every field that only rates have.
func Rate() rulesv1.Record {
	return record(rulesv1.KindRule, "acme-burst", func(r *rulesv1.Record) {
		r.Rule = &rulesv1.Rule{
			Enabled: true, Mode: rulesv1.ModeShadow, Kind: rulesv1.RuleKindRate, Algorithm: rulesv1.AlgorithmLeakyBucket,
			Subject: []rulesv1.Dimension{rulesv1.DimensionTenant, rulesv1.DimensionIP},
			Match: &rulesv1.Match{
				Tenant: "acme", Application: "web", User: "u1", APIKey: "acme-1",
				Service: "payments", Endpoint: "pay", Networks: []string{},
			},
			Condition: `labels["region"] == "eu"`,
			Limit:     Ptr(int64(30)), WindowUS: 60_000_000, Burst: Ptr(int64(10)),
			Wallet: rulesv1.WalletModeNone, Meter: "api-calls", OnFailure: rulesv1.OnFailureLocal,
			ThresholdsPercent: []int32{}, ThresholdsLeft: []int64{},
			Priority: 7, Soft: true, MaxDelayUS: 500_000, Lease: &rulesv1.Lease{Units: 5, TTLUS: 1_000_000},
		}
	})
}

// Renewable returns the rule of a wallet that starts each month untouched.
func Renewable() rulesv1.Record {
	return record(rulesv1.KindRule, "acme-wallet", func(r *rulesv1.Record) {
		r.Rule = &rulesv1.Rule{
			Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindWallet, Algorithm: rulesv1.AlgorithmOverdraftWallet,
			Subject: []rulesv1.Dimension{rulesv1.DimensionTenant}, Limit: Ptr(int64(50)),
			Period: &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar},
			Wallet: rulesv1.WalletModeRenewable, Meter: "credits", OnFailure: rulesv1.OnFailureClosed,
			ThresholdsPercent: []int32{}, ThresholdsLeft: []int64{},
		}
	})
}

// Usage returns events of usage.v1 by name. Each call returns new ones.
func Usage() map[string]usagev1.Event {
	six := Decision()
	six.Counters = append(six.Counters,
		monthCounter("{t:acme}:e:q:tu:u1:api-calls:s:payments:1month:1793480400", "acme-user-month", 200, 17),
		usagev1.Counter{
			Key: "{t:acme}:e:w:t:credits:g", Observed: true, Limit: 5000, Units: 1, Consumed: 4321, Refunded: 12,
			Kind: usagev1.CounterKindWallet, Mode: usagev1.ModeEnforce, Soft: true, Meter: "credits",
			RuleID: "acme-wallet", RuleVersion: 2, ThresholdsPercent: []int32{}, ThresholdsLeft: []int64{500, 10},
		})

	refund := Decision()
	refund.EventID = UUID("01998d3a-7777-7c11-9a52-3f0d6be0c1a7")
	refund.Decision, refund.Status, refund.Upstream, refund.Sequence = usagev1.DecisionRefund, 0, nil, 184468
	refund.RefundID, refund.LabelsJSON = "f-1", `{"region":"eu"}`
	refund.Counters[0].Units, refund.Counters[0].Refunded = -1, 1

	degraded := Decision()
	degraded.Decision, degraded.Tenant, degraded.Upstream = usagev1.DecisionDegradedAllow, "", nil
	degraded.Counters[0].Observed, degraded.Counters[0].Consumed = false, 0

	return map[string]usagev1.Event{"decision": Decision(), "six-rules": six, "refund": refund, "degraded": degraded}
}

// Decision returns the typical event: one rate and one quota, proxied.
func Decision() usagev1.Event {
	return usagev1.Event{
		EventID: UUID("01998d3a-5e43-7c11-9a52-3f0d6be0c1a7"), DecisionID: UUID("01998d3a-5e43-7c11-9a52-3f0d6be0c1a7"),
		TS: Now, StreamID: UUID("01998d00-1111-7abc-8def-0123456789ab"), Sequence: 184467,
		Decision: usagev1.DecisionAllow, Status: 200,
		Tenant: "acme", Application: "web", User: "u1", APIKey: "acme-1", APIKeyHash: []byte("0123456789abcdef"), ClientAddress: "203.0.113.9",
		Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay", RuleID: "acme-burst", Algorithm: "gcra",
		Cost: 1, LatencyUS: 412, GatewayID: "gw-1", RulesVersion: 812,
		Upstream: &usagev1.Upstream{Status: 200, DurationUS: 18250},
		Counters: []usagev1.Counter{monthCounter(MonthKey, "acme-month", 1000, 900)},
	}
}

func monthCounter(key, rule string, limit, consumed int64) usagev1.Counter {
	return usagev1.Counter{
		Key: key, Observed: true, PeriodStart: November, PeriodEnd: December, Limit: limit, Units: 1, Consumed: consumed,
		Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "api-calls",
		RuleID: rule, RuleVersion: 3, ThresholdsPercent: []int32{80, 100}, ThresholdsLeft: []int64{},
	}
}

// QuotaEvents returns events of quota-events.v1 by name. Each call returns new
// ones.
func QuotaEvents() map[string]quotaeventsv1.Event {
	threshold := quotaeventsv1.Event{
		EventID: "9f86d081884c7d659a2feaa0c55ad015", Type: quotaeventsv1.EventTypeThresholdReached,
		TenantID: "acme", RuleID: "acme-month", Meter: "api-calls", CounterKey: MonthKey,
		PeriodStart: Ptr(November / 1000), PeriodEnd: Ptr(December / 1000), ThresholdPercent: Ptr(int32(80)),
		Limit: 1000, Consumed: 800, Arm: 1, CauseDecisionID: "01998d3a-5e43-7c11-9a52-3f0d6be0c1a7", TS: Now / 1000,
	}
	exhausted := threshold
	exhausted.Type, exhausted.ThresholdPercent, exhausted.Consumed = quotaeventsv1.EventTypeExhausted, Ptr(int32(100)), 1000
	left := threshold
	left.PeriodStart, left.PeriodEnd, left.ThresholdPercent, left.ThresholdLeft = nil, nil, nil, Ptr(int64(200))
	overdrawn := left
	overdrawn.Type, overdrawn.ThresholdLeft = quotaeventsv1.EventTypeOverdrawn, nil
	replenished := threshold
	replenished.Type, replenished.Arm = quotaeventsv1.EventTypeReplenished, 2
	return map[string]quotaeventsv1.Event{
		"threshold": threshold, "left": left, "exhausted": exhausted, "overdrawn": overdrawn, "replenished": replenished,
	}
}
