package limit_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// clients is how many there are.
const clients = 5000

// A hit is one request of a client.
type hit struct {
	at     time.Duration
	client int
}

// skewed is two hours of requests of 5,000 clients, of which client n sends as
// many as Zipf's law gives it (exponent 1.1; the first has a sixth), in visits at
// random times: bursts of 1 to 40 requests, a fifth of a second apart on average.
func skewed(requests int) []hit {
	rng := rand.New(rand.NewPCG(49, 0))
	const hours = 2 * time.Hour
	total := 0.0
	for n := range clients {
		total += math.Pow(float64(n+1), -1.1)
	}
	var hits []hit
	for n := range clients {
		for left := int(float64(requests) * math.Pow(float64(n+1), -1.1) / total); left > 0; {
			visit := min(left, 1+rng.IntN(40))
			at := time.Duration(rng.Int64N(int64(hours)))
			for range visit {
				at += time.Duration(rng.ExpFloat64() * float64(200*ms))
				hits = append(hits, hit{at.Truncate(us), n})
			}
			left -= visit
		}
	}
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Compare(a.at, b.at) })
	return hits
}

// A comparison is how the sliding counter decided requests, held against a log
// of all that it let through, which is exact.
type comparison struct {
	requests, passed int
	near             int   // requests that found nine tenths of the limit used, or more
	late             int   // let through though the limit was used
	early            int   // refused though it was not
	far              int   // of those, not near the limit
	most             int64 // that passed in any window
	exact            int   // requests that pass where the exact log decides by itself
}

func (c comparison) percent(n int) float64 { return 100 * float64(n) / float64(c.requests) }

func (c comparison) wrong() int { return c.late + c.early }

func (c comparison) String() string {
	return fmt.Sprintf("%d requests: %.3f %% near the limit, %.4f %% wrong (%.4f %% let through, %.4f %% refused, %.4f %% not near it), at most %d in a window; %.2f %% pass, %.2f %% by the log",
		c.requests, c.percent(c.near), c.percent(c.wrong()), c.percent(c.late), c.percent(c.early), c.percent(c.far), c.most, c.percent(c.passed), c.percent(c.exact))
}

func compare(t *testing.T, hits []hit, perMinute int64) (c comparison) {
	t.Helper()
	names := make([]string, clients)
	for n := range names {
		names[n] = fmt.Sprint("client ", n)
	}
	counter, told, log := newStore(t), newStore(t), newStore(t)
	ask := func(s store, a rule.Algorithm, perMinute int64, h hit, cost int64) limit.Result {
		charge := rate(a, perMinute, time.Minute, cost)
		charge.Counter.Tenant = names[h.client]
		return s.ask(noon.Add(h.at), charge).Results[0]
	}
	for _, h := range hits {
		passed, cost := ask(counter, rule.SlidingWindowCounter, perMinute, h, 1).Passed, int64(0)
		if passed {
			c.passed++
			cost = 1
		}
		after := 2*perMinute - ask(told, rule.SlidingWindowLog, 2*perMinute, h, cost).Remaining // twice, for it is told of more than pass
		used := after - cost
		c.requests, c.most = c.requests+1, max(c.most, after)
		near := used*10 >= perMinute*9
		if near {
			c.near++
		}
		switch {
		case passed && used >= perMinute:
			c.late++
		case !passed && used < perMinute:
			c.early++
			if !near {
				c.far++
			}
		}
		if ask(log, rule.SlidingWindowLog, perMinute, h, 1).Passed {
			c.exact++
		}
	}
	return c
}

// TestSlidingCounterAgainstLog guarantees how far the sliding counter's estimate
// is from the exact log on skewed traffic, which docs/adr/0049 publishes: of how
// many requests it decides otherwise, by how many are near the limit; that it
// serves as much in all; and that it never lets twice the limit pass in a window.
func TestSlidingCounterAgainstLog(t *testing.T) {
	t.Parallel()
	hits := skewed(150_000)
	for _, tt := range []struct {
		perMinute             int64
		leastNear, mostNear   float64 // % of requests
		leastWrong, mostWrong float64
	}{
		{60, 20, 27, 10, 16},
		{200, 6, 9, 2, 4.5},
		{400, 0.2, 0.4, 0.01, 0.06},
	} {
		c := compare(t, hits, tt.perMinute)
		t.Logf("%d a minute, of %v", tt.perMinute, c)
		if near := c.percent(c.near); near < tt.leastNear || near > tt.mostNear {
			t.Errorf("%d a minute: %.3f %% near the limit, want %v to %v", tt.perMinute, near, tt.leastNear, tt.mostNear)
		}
		if wrong := c.percent(c.wrong()); wrong < tt.leastWrong || wrong > tt.mostWrong {
			t.Errorf("%d a minute: %.4f %% wrong, want %v to %v", tt.perMinute, wrong, tt.leastWrong, tt.mostWrong)
		}
		if far := c.percent(c.far); far > tt.mostWrong/3 {
			t.Errorf("%d a minute: %.4f %% refused that are not near the limit, want at most %v", tt.perMinute, far, tt.mostWrong/3)
		}
		if served := c.percent(c.passed - c.exact); served < -1 || served > 1 {
			t.Errorf("%d a minute: serves %.2f %% more than the log", tt.perMinute, served)
		}
		if c.most >= 2*tt.perMinute {
			t.Errorf("%d a minute: %d passed in a window", tt.perMinute, c.most)
		}
	}
}
