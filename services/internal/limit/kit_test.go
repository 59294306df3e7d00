package limit_test

import (
	"testing"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// t0 is an arbitrary instant inside month.
var (
	t0    = time.Date(2026, 11, 14, 9, 30, 0, 123_000, time.UTC)
	month = period.Span{Start: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
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

func quota(who string, max, cost int64) limit.Charge {
	return limit.Charge{
		Counter: limit.Identity{
			Kind: rule.Quota, Subject: rule.Tenant, Tenant: who, Meter: "api-calls",
			Unit: period.Month, Count: 1, Start: month.Start,
		},
		Algorithm: rule.CalendarQuota, Cost: cost, Limit: max, Span: month,
	}
}

func soft(c limit.Charge) limit.Charge {
	c.Soft = true
	return c
}

func shadow(c limit.Charge) limit.Charge {
	c.Counter.Shadow = true
	return c
}

// A store asks one state and fails the test where a decision is refused for
// its numbers.
type store struct {
	t     testing.TB
	state limit.State
}

func newStore(t testing.TB) store {
	t.Helper()
	return store{t, limit.NewState()}
}

func (s store) ask(now time.Time, charges ...limit.Charge) limit.Answer {
	s.t.Helper()
	return s.decide(now, limit.Decision{Charges: charges})
}

func (s store) decide(now time.Time, d limit.Decision) limit.Answer {
	s.t.Helper()
	a, err := limit.Decide(s.state, now, d)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

// used is what the quota's counter holds, net of refunds.
func (s store) used(c limit.Charge) int64 {
	v := s.state.Counters[c.Counter.Canonical()]
	return v.Consumed - v.Refunded
}
