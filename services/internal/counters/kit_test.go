package counters_test

import (
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

func gcra(who string, max int64, window time.Duration, burst, cost int64) limit.Charge {
	return limit.Charge{
		Counter: limit.Identity{
			Kind: rule.Rate, Subject: rule.Tenant, Tenant: who, Meter: "api-calls",
			Algorithm: rule.GCRA, Window: window,
		},
		Algorithm: rule.GCRA, Cost: cost, Limit: max, Window: window, Burst: burst,
	}
}

func quota(who string, span period.Span, max, cost int64) limit.Charge {
	return limit.Charge{
		Counter: limit.Identity{
			Kind: rule.Quota, Subject: rule.Tenant, Tenant: who, Meter: "api-calls",
			Unit: period.Month, Count: 1, Start: span.Start,
		},
		Algorithm: rule.CalendarQuota, Cost: cost, Limit: max, Span: span,
	}
}

// month is the month of now, in UTC.
func month(now time.Time) period.Span {
	now = now.UTC()
	start := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	return period.Span{Start: start, End: start.AddDate(0, 1, 0)}
}
