package counters_test

import (
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// rate is a tenant's rate of any algorithm; a bucket's burst is its limit.
func rate(a rule.Algorithm, who string, max int64, window time.Duration, cost int64) limit.Charge {
	c := gcra(who, max, window, 0, cost)
	c.Algorithm, c.Counter.Algorithm = a, a
	if a.Bucket() {
		c.Burst = max
	}
	return c
}

// prepaid is a tenant's prepaid wallet, granted so many units.
func prepaid(who string, granted, cost int64) limit.Charge {
	return limit.Charge{
		Counter:   limit.Identity{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: who, Meter: "credits", Algorithm: rule.OverdraftWallet},
		Algorithm: rule.OverdraftWallet, Cost: cost, Limit: granted,
	}
}

// renewable is a tenant's renewable wallet.
func renewable(who string, span period.Span, max, cost int64) limit.Charge {
	c := prepaid(who, max, cost)
	c.Counter.Unit, c.Counter.Count, c.Counter.Start, c.Span = period.Month, 1, span.Start, span
	return c
}

// A kind is one way to count, with the same numbers in each: max units in a
// window or period of the epoch's grid that now is in.
type kind struct {
	name   string
	charge func(who string, now time.Time, max int64, window time.Duration, cost int64) limit.Charge
	wallet bool // passes while anything is left
	totals bool // has Consumed and Refunded
}

// kinds are all of them.
var kinds = func() []kind {
	var all []kind
	for _, a := range []rule.Algorithm{
		rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.TokenBucket, rule.LeakyBucket, rule.GCRA,
	} {
		all = append(all, kind{name: string(a), charge: func(who string, _ time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			return rate(a, who, max, window, cost)
		}})
	}
	return append(all,
		kind{name: "quota", totals: true, charge: func(who string, now time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			return quota(who, grid(now, window), max, cost)
		}},
		kind{name: "renewable wallet", wallet: true, totals: true, charge: func(who string, now time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			return renewable(who, grid(now, window), max, cost)
		}},
		kind{name: "prepaid wallet", wallet: true, totals: true, charge: func(who string, _ time.Time, max int64, _ time.Duration, cost int64) limit.Charge {
			return prepaid(who, max, cost)
		}},
	)
}()

// grid is the period of that length, of the epoch's grid, that now is in.
func grid(now time.Time, length time.Duration) period.Span {
	at := now.UnixMicro()
	start := time.UnixMicro(at - at%length.Microseconds()).UTC()
	return period.Span{Start: start, End: start.Add(length)}
}
