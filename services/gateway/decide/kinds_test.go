package decide_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// A way is one way to sell units: a rule of each algorithm, and both wallets.
type way struct {
	name string
	make func(id string, n int64) *rule.Rule
	most int64       // greatest limit that these tests may use
	code decide.Code // when it is used up
}

// ways are all of them, over so long a time that nothing comes back during a
// test.
var ways = []way{
	{"fixed_window", window(rule.FixedWindow), rule.MaxCapacity, decide.RateLimited},
	{"sliding_window_log", window(rule.SlidingWindowLog), rule.MaxLog, decide.RateLimited},
	{"sliding_window_counter", window(rule.SlidingWindowCounter), rule.MaxCapacity, decide.RateLimited},
	{"token_bucket", window(rule.TokenBucket), rule.MaxCapacity, decide.RateLimited},
	{"leaky_bucket", window(rule.LeakyBucket), rule.MaxCapacity, decide.RateLimited},
	{"gcra", window(rule.GCRA), rule.MaxCapacity, decide.RateLimited},
	{"quota", quota, rule.Unlimited, decide.QuotaExceeded},
	{"renewable", func(id string, n int64) *rule.Rule {
		r := quota(id, n)
		r.Kind, r.Algorithm, r.Wallet = rule.Wallet, rule.OverdraftWallet, rule.Renewable
		return r
	}, rule.Unlimited, decide.WalletEmpty},
	{"prepaid", func(id string, _ int64) *rule.Rule {
		r := quota(id, 0)
		r.Kind, r.Algorithm, r.Wallet, r.Period = rule.Wallet, rule.OverdraftWallet, rule.Prepaid, nil
		return r
	}, rule.Unlimited, decide.WalletEmpty},
}

// window makes rates of an algorithm over the longest window.
func window(a rule.Algorithm) func(id string, n int64) *rule.Rule {
	return func(id string, n int64) *rule.Rule {
		r := rate(id, rule.Tenant, n)
		if r.Algorithm, r.Window = a, rule.MaxWindow; !a.Bucket() {
			r.Burst = 0
		}
		return r
	}
}

// sells reports whether the way counts what was sold.
func (w *way) sells() bool { return w.code != decide.RateLimited }

// sell puts a rule in force that sells n units to the tenant acme.
func (r *rig) sell(w *way, v *rule.Rule, n int64) {
	r.rule(v)
	if w.name == "prepaid" {
		r.grant("acme", n)
	}
}

// grant says how many api calls a tenant was granted so far.
func (r *rig) grant(tenant string, n int64) {
	r.put(decide.WalletKind, tenant+":api-calls", &decide.Wallet{Tenant: tenant, Meter: "api-calls", Granted: n})
}

// eachWay runs a case for every way, over the model.
func eachWay(t *testing.T, run func(t *testing.T, r *rig, w *way)) {
	t.Helper()
	t.Parallel()
	for i := range ways {
		t.Run(ways[i].name, func(t *testing.T) {
			t.Parallel()
			run(t, newGate(t).rig, &ways[i])
		})
	}
}

// TestFC15EveryWay guarantees of every algorithm that lowering a limit leaves
// what was used, and raising it shows what is left of it.
func TestFC15EveryWay(t *testing.T) { eachWay(t, caseFC15Way) }

// TestC1EveryWay guarantees of every algorithm that an upgrade keeps what was
// used.
func TestC1EveryWay(t *testing.T) { eachWay(t, caseC1Way) }

// TestC3EveryWay guarantees of every algorithm that a rule that is made anew
// keeps what was used.
func TestC3EveryWay(t *testing.T) { eachWay(t, caseC3Way) }

// caseFC15Way: 35 used; lowered to 10 nothing passes and nothing is left; at
// 100 one passes and 64 are left.
func caseFC15Way(t *testing.T, r *rig, w *way) {
	r.sell(w, w.make("a", min(5_000_000, w.most)), min(5_000_000, w.most))
	r.ask(decide.Query{Tenant: "acme", Cost: units(35)})
	for _, tt := range []struct {
		limit         int64
		outcome       decide.Outcome
		left, balance int64
	}{{10, decide.Deny, 0, -25}, {100, decide.Allow, 64, 64}, {36, decide.Deny, 0, 0}} {
		r.sell(w, w.make("a", tt.limit), tt.limit)
		d := r.ask(decide.Query{Tenant: "acme"})
		l := d.Limits[0]
		if d.Outcome != tt.outcome || l.Limit != tt.limit || l.Remaining != tt.left {
			t.Errorf("limit %d: %s %+v, want %s and %d left", tt.limit, d.Outcome, l, tt.outcome, tt.left)
		}
		if l.Kind == rule.Wallet && l.Balance != tt.balance {
			t.Errorf("limit %d: balance %d, want %d", tt.limit, l.Balance, tt.balance)
		}
		if d.Outcome == decide.Deny && (d.Code != w.code || d.CanRetry == (w.name == "prepaid")) {
			t.Errorf("limit %d: %q, can retry: %v", tt.limit, d.Code, d.CanRetry)
		}
	}
}

// caseC1Way: 900 of Basic's 1000 used; on Pro with 5000, 4100 remain.
func caseC1Way(t *testing.T, r *rig, w *way) {
	basic, pro := w.make("basic", 1000), w.make("pro", 5000)
	basic.Match.Plan, pro.Match.Plan = "basic", "pro"
	r.tenant(&decide.Tenant{ID: "acme", Plan: "basic"})
	r.sell(w, basic, 1000)
	r.ask(decide.Query{Tenant: "acme", Cost: units(900)})
	r.tenant(&decide.Tenant{ID: "acme", Plan: "pro"})
	r.sell(w, pro, 5000)
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(0)}); len(d.Limits) != 1 || d.Limits[0].RuleID != "pro" || d.Limits[0].Remaining != 4100 {
		t.Errorf("after the upgrade %+v, want 4100 remaining", d.Limits)
	}
}

// caseC3Way: 60 of 100 used; deleted and made anew, the rule lets 40 pass and
// refuses the 41st.
func caseC3Way(t *testing.T, r *rig, w *way) {
	r.sell(w, w.make("a", 100), 100)
	r.ask(decide.Query{Tenant: "acme", Cost: units(60)})
	r.put(decide.RuleKind, "a", nil)
	r.sell(w, w.make("another", 100), 100)
	for i := range 41 {
		if d := r.ask(decide.Query{Tenant: "acme"}); (d.Outcome == decide.Allow) != (i < 40) {
			t.Fatalf("request %d: %s, %+v", i+1, d.Outcome, d.Limits)
		}
	}
}

// TestSoftEveryWay guarantees of every algorithm that a soft rule lets pass,
// says that it would not have, and charges all the same.
func TestSoftEveryWay(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, w *way) {
		v := w.make("soft", 1)
		v.Soft = true
		r.sell(w, v, 1)
		for i := range int64(3) {
			d := r.ask(decide.Query{Tenant: "acme"})
			l := d.Limits[0]
			u, _ := d.Usage()
			if d.Outcome != decide.Allow || l.Passed != (i == 0) || l.Remaining != 0 || !l.Soft || u.Verdict != decide.VerdictAllow || w.sells() && l.Consumed != i+1 {
				t.Errorf("request %d: %s as %s, %+v", i+1, d.Outcome, u.Verdict, l)
			}
			if _, ok := d.Receipt(); !ok {
				t.Errorf("request %d has no receipt", i+1)
			}
		}
	})
}

// TestShadowEveryWay guarantees of every algorithm that a rule in shadow is told
// of, cuts nothing, and counts on a counter of its own what it lets pass.
func TestShadowEveryWay(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, w *way) {
		trial := w.make("trial", 1)
		trial.Mode = rule.Shadow
		enforced := w.make("enforced", 10)
		if w.name == "prepaid" { // both sell what was granted
			trial.Meter = "trial"
			r.put(decide.WalletKind, "acme:trial", &decide.Wallet{Tenant: "acme", Meter: "trial", Granted: 1})
		}
		r.rule(trial)
		r.sell(w, enforced, 10)
		for i, want := range []decide.Verdict{decide.VerdictAllow, decide.VerdictShadowDeny, decide.VerdictShadowDeny} {
			d := r.ask(decide.Query{Tenant: "acme"})
			u, _ := d.Usage()
			if d.Outcome != decide.Allow || u.Verdict != want || left(d, "enforced") != int64(9-i) || left(d, "trial") != 0 {
				t.Errorf("request %d: %s as %s, %+v; want %s", i+1, d.Outcome, u.Verdict, d.Limits, want)
			}
			if w.sells() && d.Limits[1].Consumed != 1 {
				t.Errorf("request %d: %d on trial, want 1", i+1, d.Limits[1].Consumed)
			}
		}
	})
}

// TestFixedCostEveryWay guarantees of every algorithm that a rule of fixed cost
// charges its own, whatever the request costs.
func TestFixedCostEveryWay(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, w *way) {
		v := w.make("a", 10)
		v.Cost = units(2)
		r.sell(w, v, 10)
		for i, cost := range []int64{1, 5, 10_000} {
			if d := r.ask(decide.Query{Tenant: "acme", Cost: &cost}); d.Outcome != decide.Allow || d.Cost != cost || left(d, "a") != int64(8-2*i) {
				t.Errorf("cost %d: %s %+v", cost, d.Outcome, d.Limits)
			}
		}
	})
}

// TestPeekEveryWay guarantees of every algorithm that a look changes nothing:
// not what is left, not when, and it is neither told nor remembered, untouched,
// in use, and used up.
func TestPeekEveryWay(t *testing.T) {
	eachWay(t, func(t *testing.T, r *rig, w *way) {
		r.sell(w, w.make("a", 5), 5)
		for _, used := range []int64{0, 2, 3} {
			if used > 0 {
				r.ask(decide.Query{Tenant: "acme", Cost: &used})
			}
			first := r.ask(decide.Query{Tenant: "acme", Cost: units(0), RequestID: "r-1"})
			for range 3 {
				again := r.ask(decide.Query{Tenant: "acme", Cost: units(0), RequestID: "r-1"})
				if diff := cmp.Diff(first.Limits, again.Limits); diff != "" || again.Replayed || !again.Peek || again.Outcome != decide.Allow {
					t.Errorf("after %d, a look changed (-first +again)\n%s", used, diff)
				}
			}
			if _, ok := first.Usage(); ok {
				t.Error("a look is told of")
			}
		}
		if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Deny || d.Code != w.code {
			t.Errorf("then %s %q", d.Outcome, d.Code)
		}
	})
}

// TestLimitZeroEveryWay guarantees of every algorithm that a limit of 0 denies
// all of a hundred requests and that no wait is promised, with the store and
// without it.
func TestLimitZeroEveryWay(t *testing.T) {
	t.Parallel()
	for i := range ways {
		w := &ways[i]
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			g.sell(w, w.make("none", 0), 0)
			code := decide.CostExceedsLimit
			if w.code == decide.WalletEmpty {
				code = decide.WalletEmpty
			}
			for i := range 100 {
				if i == 50 {
					g.store.fail = errAway
				}
				d := g.ask(decide.Query{Tenant: "acme"})
				if d.Outcome != decide.Deny || d.Status != 429 || d.Code != code || d.CanRetry || d.RuleID != "none" || d.Degraded != (i >= 50) {
					t.Fatalf("request %d: %+v, want %s", i+1, d, code)
				}
			}
		})
	}
}

// TestTemporaryEveryWay guarantees of every algorithm that a rule counts from
// its first instant to its last, that the one it displaces is in force before
// and after, and that what was used is the same throughout.
func TestTemporaryEveryWay(t *testing.T) {
	t.Parallel()
	for i := range ways {
		w := &ways[i]
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			sale := w.make("sale", 1000)
			sale.Match.Tenant, sale.ValidFrom, sale.ValidTo = "acme", t0.Add(time.Hour), t0.Add(2*time.Hour)
			g.sell(w, w.make("usual", 100), 100)
			g.rule(sale)
			for _, tt := range []struct {
				at   time.Duration
				rule string
			}{{0, "usual"}, {time.Hour - time.Microsecond, "usual"}, {time.Hour, "sale"}, {2*time.Hour - time.Microsecond, "sale"}, {2 * time.Hour, "usual"}} {
				g.at(t0.Add(tt.at))
				d := g.ask(decide.Query{Tenant: "acme", Cost: units(10)})
				if len(d.Limits) != 1 || d.Limits[0].RuleID != tt.rule || d.Outcome != decide.Allow {
					t.Errorf("at %v: %+v, want %s", tt.at, d.Limits, tt.rule)
				}
			}
			if d := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}); left(d, "usual") != 50 {
				t.Errorf("left at the end: %+v, want 50", d.Limits)
			}
		})
	}
}

// TestDelay guarantees how long an allowed request is told to wait: the longest
// of its queues, of rules that can cut; and nothing where it is refused.
func TestDelay(t *testing.T) {
	t.Parallel()

	queue := func(id string, perMinute int64, longest time.Duration) *rule.Rule {
		r := rate(id, rule.Tenant, perMinute)
		r.Algorithm, r.MaxDelay, r.Meter = rule.LeakyBucket, longest, id
		return r
	}
	slow, fast, soft, shadow := queue("slow", 60, 3*time.Second), queue("fast", 600, 3*time.Second), queue("soft", 6, time.Minute), queue("shadow", 6, time.Minute)
	soft.Soft, shadow.Mode = true, rule.Shadow
	g := newGate(t, slow, fast, soft, shadow)
	for i := range 4 {
		d := g.ask(decide.Query{Tenant: "acme", RequestID: string(rune('a' + i))})
		if want := time.Duration(i) * time.Second; d.Outcome != decide.Allow || d.Delay != want {
			t.Errorf("request %d: %s after %v, want ALLOW after %v", i+1, d.Outcome, d.Delay, want)
		}
	}
	if d := g.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Deny || d.Delay != 0 || d.RuleID != "slow" || d.RetryAfter != time.Second {
		t.Errorf("the fifth: %+v, want a second to wait", d)
	}
	if d := g.ask(decide.Query{Tenant: "acme", RequestID: "d"}); !d.Replayed || d.Delay != 3*time.Second {
		t.Errorf("asked again: %+v, want the delay of before", d)
	}
	g.store.fail = errAway
	slow.OnFailure = rule.Local
	g.rule(slow)
	for i := range 2 {
		if d := g.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Allow || !d.Local || d.Delay != time.Duration(i)*time.Second {
			t.Errorf("without the store, request %d: %+v", i+1, d)
		}
	}
}

// TestP5ThroughTheService guarantees that a daily quota has the days of its
// zone, also those that begin or end at a midnight, or at the hour of its
// anchor, that does not exist or comes twice.
func TestP5ThroughTheService(t *testing.T) {
	t.Parallel()

	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, tt := range []struct{ zone, anchor, start, end string }{
		{"America/Santiago", "", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"},
		{"America/Havana", "", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},
		{"Africa/Cairo", "", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"},
		{"America/New_York", "2026-01-05T02:30:00-05:00", "2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"},
		{"America/New_York", "2026-01-05T01:30:00-05:00", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"},
	} {
		t.Run(tt.zone+tt.anchor, func(t *testing.T) {
			t.Parallel()

			start, end := at(tt.start), at(tt.end)
			for i := range ways {
				w := &ways[i]
				if w.name != "quota" && w.name != "renewable" {
					continue
				}
				daily := w.make("day", 2)
				daily.Period = &period.Spec{Unit: period.Day, Count: 1, Alignment: period.Calendar}
				if tt.anchor != "" {
					daily.Period.Alignment, daily.Period.Anchor = period.Anniversary, at(tt.anchor)
				}
				g := newGate(t, daily)
				g.tenant(&decide.Tenant{ID: "acme", Zone: zone(t, tt.zone)})
				for _, step := range []struct {
					at   time.Time
					left int64
				}{
					{start.Add(-time.Microsecond), 1}, {start, 1}, {end.Add(-time.Microsecond), 0}, {end, 1},
				} {
					g.at(step.at)
					d := g.ask(decide.Query{Tenant: "acme"})
					if d.Outcome != decide.Allow || left(d, "day") != step.left {
						t.Errorf("%s at %v: %s, %+v, want %d left", w.name, step.at, d.Outcome, d.Limits, step.left)
					}
				}
				g.at(start)
				l := g.ask(decide.Query{Tenant: "acme", Cost: units(0)}).Limits[0]
				if !l.PeriodStart.Equal(start) || !l.PeriodEnd.Equal(end) || l.Window != end.Sub(start) || l.Reset != end.Sub(start) {
					t.Errorf("%s: %v to %v, want %v to %v", w.name, l.PeriodStart, l.PeriodEnd, start, end)
				}
			}
		})
	}
}
