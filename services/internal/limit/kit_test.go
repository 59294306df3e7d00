package limit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// rate is a rate of any algorithm; a bucket's burst is its limit.
func rate(a rule.Algorithm, max int64, window time.Duration, cost int64) limit.Charge {
	c := gcra("acme", max, window, 0, cost)
	c.Algorithm, c.Counter.Algorithm = a, a
	if a.Bucket() {
		c.Burst = max
	}
	return c
}

// queue is a leaky bucket in which requests wait.
func queue(max int64, window, delay time.Duration, cost int64) limit.Charge {
	c := rate(rule.LeakyBucket, max, window, cost)
	c.MaxDelay = delay
	return c
}

func prepaid(granted, cost int64) limit.Charge {
	return limit.Charge{
		Counter:   limit.Identity{Kind: rule.Wallet, Subject: rule.Tenant, Tenant: "acme", Meter: "credits", Algorithm: rule.OverdraftWallet},
		Algorithm: rule.OverdraftWallet, Cost: cost, Limit: granted,
	}
}

func renewable(max int64, span period.Span, cost int64) limit.Charge {
	c := prepaid(max, cost)
	c.Counter.Unit, c.Counter.Count, c.Counter.Start, c.Span = period.Month, 1, span.Start, span
	return c
}

// noon begins a window of every length that these tests use.
var noon = time.Date(2026, 11, 14, 12, 0, 0, 0, time.UTC)

// A kind is one way to count, with the same numbers in each: max units in a
// window or period that begins at noon, and again after it.
type kind struct {
	name   string
	charge func(now time.Time, max int64, window time.Duration, cost int64) limit.Charge
	renews bool // after a window all of it is back
	wallet bool
}

// kinds are all of them.
var kinds = func() []kind {
	var all []kind
	for _, a := range []rule.Algorithm{
		rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter, rule.TokenBucket, rule.LeakyBucket, rule.GCRA,
	} {
		all = append(all, kind{name: string(a), renews: true, charge: func(_ time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			return rate(a, max, window, cost)
		}})
	}
	return append(all,
		kind{name: "leaky_bucket as a queue", renews: true, charge: func(_ time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			return queue(max, window, rule.MaxDelay, cost)
		}},
		kind{name: "quota", renews: true, charge: func(now time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			c := quota("acme", max, cost)
			c.Span = span(now, window)
			c.Counter.Start = c.Span.Start
			return c
		}},
		kind{name: "renewable wallet", renews: true, wallet: true, charge: func(now time.Time, max int64, window time.Duration, cost int64) limit.Charge {
			return renewable(max, span(now, window), cost)
		}},
		kind{name: "prepaid wallet", wallet: true, charge: func(_ time.Time, max int64, _ time.Duration, cost int64) limit.Charge {
			return prepaid(max, cost)
		}},
	)
}()

// begin is when the window of the epoch's grid began that now is in.
func begin(now time.Time, window time.Duration) time.Time {
	at := now.UnixMicro()
	return time.UnixMicro(at - at%window.Microseconds()).UTC()
}

// span is the period of that length, of the epoch's grid, that now is in.
func span(now time.Time, length time.Duration) period.Span {
	start := begin(now, length)
	return period.Span{Start: start, End: start.Add(length)}
}

// A spend is units that are spent at a time after noon.
type spend struct {
	at   time.Duration
	cost int64
}

// answers is a table of what one algorithm answers; the spends in front must be
// allowed.
type answers []struct {
	name   string
	charge limit.Charge // its cost is ignored
	spends []spend
	at     time.Duration
	cost   int64
	want   limit.Result
}

func (table answers) run(t *testing.T) {
	t.Helper()
	for _, tt := range table {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			ask := func(at time.Duration, cost int64) limit.Answer {
				c := tt.charge
				c.Cost = cost
				return s.ask(noon.Add(at), c)
			}
			for _, spend := range tt.spends {
				if a := ask(spend.at, spend.cost); !a.Charged {
					t.Fatalf("at %v cannot spend %d: %+v", spend.at, spend.cost, a)
				}
			}
			a := ask(tt.at, tt.cost)
			if diff := cmp.Diff([]limit.Result{tt.want}, a.Results); diff != "" {
				t.Error(diff)
			}
			if a.Charged != (tt.cost > 0 && (tt.want.Passed || tt.charge.Soft)) {
				t.Errorf("charged = %v", a.Charged)
			}
		})
	}
}
