package decide_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

var errAway = errors.New("connection refused")

// away is a store that does not answer.
var away storeFunc = func(limit.Decision) (limit.Answer, error) { return limit.Answer{}, errAway }

// localRate is a rate that is counted in the process when the store is away.
func localRate(id string, subject rule.Subject, n int64) *rule.Rule {
	r := rate(id, subject, n)
	r.OnFailure = rule.Local
	return r
}

// newLocal is a service whose store is away, one of so many gateways.
func newLocal(t *testing.T, gateways int, rules ...*rule.Rule) (*rig, *time.Time) {
	t.Helper()
	now := t0
	r := &rig{t: t, book: decide.NewBook()}
	r.Service = decide.NewService(r.book, away, func() time.Time { return now }, decide.NewID, decide.Options{Gateways: func() int { return gateways }})
	for _, v := range rules {
		r.rule(v)
	}
	return r, &now
}

// TestLocalShare guarantees what a rule that is counted in the process lets pass
// while the store is away: its share of the limit and no more, at least one unit
// where the limit has any, and again what is earned back. Every answer is marked
// as degraded and says nothing of what is left.
func TestLocalShare(t *testing.T) {
	t.Parallel()

	tests := []struct {
		limit    int64
		gateways int
		passes   int
		retry    time.Duration // of the next request
	}{
		{10, 1, 10, 6 * time.Second},
		{10, 0, 10, 6 * time.Second}, // nobody has counted yet
		{10, 3, 3, 20 * time.Second},
		{10, 10, 1, time.Minute},
		{10, 1000, 1, time.Minute},
		{0, 3, 0, 0},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d over %d", tt.limit, tt.gateways), func(t *testing.T) {
			t.Parallel()

			r, now := newLocal(t, tt.gateways, localRate("burst", rule.Tenant, tt.limit))
			for i := range tt.passes {
				if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Allow || !d.Degraded || !d.Local || d.Limits != nil {
					t.Fatalf("request %d: %+v, want a degraded pass", i+1, d)
				}
			}
			d := r.ask(decide.Query{Tenant: "acme"})
			code := decide.RateLimited
			if tt.limit == 0 {
				code = decide.CostExceedsLimit
			}
			if d.Outcome != decide.Deny || d.Status != 429 || d.Code != code || d.RuleID != "burst" || !d.Degraded || d.Limits != nil ||
				d.CanRetry != (tt.retry > 0) || d.RetryAfter != tt.retry {
				t.Fatalf("then %+v, want %s and %v to wait", d, code, tt.retry)
			}
			if u, ok := d.Usage(); !ok || u.Verdict != decide.VerdictDegradedDeny || u.RuleID != "burst" || u.Status != 429 {
				t.Errorf("told as %+v", u)
			}
			if other := r.ask(decide.Query{Tenant: "globex"}); (other.Outcome == decide.Allow) != (tt.passes > 0) {
				t.Errorf("another tenant: %+v", other)
			}
			*now = now.Add(tt.retry)
			if d := r.ask(decide.Query{Tenant: "acme"}); (d.Outcome == decide.Allow) != (tt.passes > 0) {
				t.Errorf("after %v: %+v", tt.retry, d)
			}
		})
	}
}

// TestLocalIsAllOrNothing guarantees that of the rules that are counted in the
// process one that refuses costs the others nothing, and that the longest wait
// answers.
func TestLocalIsAllOrNothing(t *testing.T) {
	t.Parallel()

	r, _ := newLocal(t, 1, localRate("organisation", rule.Tenant, 10), localRate("integrator", rule.Tenant|rule.Application, 5))
	send := func(app string, n int) (allowed int, last decide.Decision) {
		for range n {
			if last = r.ask(decide.Query{Tenant: "acme", Application: app}); last.Outcome == decide.Allow {
				allowed++
			}
		}
		return allowed, last
	}
	if n, last := send("a", 8); n != 5 || last.RuleID != "integrator" {
		t.Errorf("A got %d, then refused by %q; want 5, then integrator", n, last.RuleID)
	}
	if n, _ := send("b", 5); n != 5 {
		t.Errorf("B got %d, want 5", n)
	}
	if n, last := send("b", 1); n != 0 || last.RuleID != "integrator" || last.RetryAfter != 12*time.Second {
		t.Errorf("B's sixth: %d, %+v, want the longer wait of the two", n, last)
	}
}

// TestLocalCountsOnlyWhatCuts guarantees that a peek, a shadow or a soft rule
// and a rule that charges nothing take nothing from what is counted in the
// process.
func TestLocalCountsOnlyWhatCuts(t *testing.T) {
	t.Parallel()

	shadow, soft, free := localRate("shadow", rule.Tenant, 1), localRate("soft", rule.Tenant, 1), localRate("free", rule.Tenant, 1)
	shadow.Mode, soft.Soft, free.Cost = rule.Shadow, true, units(0)
	soft.Meter, free.Meter = "soft", "free"
	r, _ := newLocal(t, 1, localRate("burst", rule.Tenant, 2), shadow, soft, free)
	for range 5 {
		if d := r.ask(decide.Query{Tenant: "acme", Cost: units(0)}); d.Outcome != decide.Allow || !d.Peek {
			t.Fatalf("a peek: %+v", d)
		}
	}
	for i, want := range []decide.Outcome{decide.Allow, decide.Allow, decide.Deny} {
		if d := r.ask(decide.Query{Tenant: "acme"}); d.Outcome != want || want == decide.Deny && d.RuleID != "burst" {
			t.Errorf("request %d: %+v, want %s", i+1, d, want)
		}
	}
}

// TestLocalCostAboveTheShare guarantees that a request that fits the limit, and
// not this gateway's share of it, is told to come back: the store may be there
// by then. One that does not fit the limit never is.
func TestLocalCostAboveTheShare(t *testing.T) {
	t.Parallel()

	r, _ := newLocal(t, 5, localRate("burst", rule.Tenant, 10))
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(3)}); d.Code != decide.RateLimited || !d.CanRetry || d.RetryAfter != time.Second {
		t.Errorf("above the share: %+v, want a second to wait", d)
	}
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(11)}); d.Code != decide.CostExceedsLimit || d.CanRetry {
		t.Errorf("above the limit: %+v", d)
	}
	if d := r.ask(decide.Query{Tenant: "acme", Cost: units(2)}); d.Outcome != decide.Allow {
		t.Errorf("the share itself: %+v", d)
	}
}

// TestLocalManyAtOnce guarantees that requests at the same time pass no more
// than the share.
func TestLocalManyAtOnce(t *testing.T) {
	t.Parallel()

	r, _ := newLocal(t, 4, localRate("burst", rule.Tenant, 100))
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if d, err := r.Decide(t.Context(), decide.Query{Tenant: "acme"}); err != nil {
				t.Error(err)
			} else if d.Outcome == decide.Allow {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n != 25 {
		t.Errorf("%d passed, want 25", n)
	}
}

// TestLocalMemoryIsBounded guarantees that subjects without end take no memory
// without end, and that one that is in use is not forgotten meanwhile.
func TestLocalMemoryIsBounded(t *testing.T) {
	t.Parallel()

	r, _ := newLocal(t, 1, localRate("user", rule.Tenant|rule.User, 10))
	refused := 0
	for i := range 5 * decide.MaxLocal / 2 {
		r.ask(decide.Query{Tenant: "acme", User: fmt.Sprint(i)})
		if i%(decide.MaxLocal/8) == 0 && r.ask(decide.Query{Tenant: "acme", User: "steady"}).Outcome == decide.Deny {
			refused++
		}
	}
	if n := r.LocalWeight(); n > 2*decide.MaxLocal {
		t.Errorf("counters weigh %d, want at most %d", n, 2*decide.MaxLocal)
	}
	if refused != 10 {
		t.Errorf("the steady user was refused %d times of 20, want 10", refused)
	}
}

// TestLocalLogsWeighWhatTheyTake guarantees that memory is bounded for logs too,
// each of which takes as much as many other counters.
func TestLocalLogsWeighWhatTheyTake(t *testing.T) {
	t.Parallel()

	log := window(rule.SlidingWindowLog)("log", 160)
	log.Subject, log.OnFailure = rule.Tenant|rule.User, rule.Local
	r, now := newLocal(t, 1, log)
	const users = 20
	for i := range users * 160 {
		*now = now.Add(time.Microsecond)
		if d := r.ask(decide.Query{Tenant: "acme", User: fmt.Sprint(i % users)}); d.Outcome != decide.Allow {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
	if got := r.LocalWeight(); got != users*(1+160/16) {
		t.Errorf("%d logs of 160 entries weigh %d, want %d", users, got, users*(1+160/16))
	}
}

// TestFailureModesMix guarantees the answer of every mix of failure modes
// (docs/adr/0040): one closed rule closes and nothing is counted then, else the
// local rules decide, else the request passes; and that a store that does not
// vouch for what it holds is as good as none, for those who have a quota.
func TestFailureModesMix(t *testing.T) {
	t.Parallel()

	open, closed := rate("open", rule.Tenant, 10), quota("closed", 10)
	closedRate := rate("closed-rate", rule.Tenant, 10)
	closedRate.OnFailure, closedRate.Window = rule.Closed, time.Hour
	openQuota := quota("open-quota", 10)
	openQuota.OnFailure = rule.Open
	local := localRate("local", rule.Tenant|rule.User, 2)
	tests := []struct {
		name  string
		rules []*rule.Rule
		want  []int // status of each request
		rule  string
	}{
		{"open alone", []*rule.Rule{open}, []int{200, 200, 200, 200}, ""},
		{"local alone", []*rule.Rule{local}, []int{200, 200, 429, 429}, "local"},
		{"open and local", []*rule.Rule{open, local, openQuota}, []int{200, 200, 429, 429}, "local"},
		{"closed and local", []*rule.Rule{open, local, closed}, []int{503, 503, 503, 503}, "closed"},
		{"a closed rate", []*rule.Rule{local, closedRate}, []int{503, 503, 503, 503}, "closed-rate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			g := newGate(t, tt.rules...)
			g.store.fail = errAway
			var got []int
			var last decide.Decision
			for range tt.want {
				last = g.ask(decide.Query{Tenant: "acme", User: "u1"})
				got = append(got, last.Status)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || last.RuleID != tt.rule {
				t.Errorf("%q refuses, statuses (-want +got)\n%s", last.RuleID, diff)
			}
			if last.Status == 503 {
				for _, r := range tt.rules {
					if r.OnFailure == rule.Closed {
						g.put(decide.RuleKind, r.ID, nil)
					}
				}
				if d := g.ask(decide.Query{Tenant: "acme", User: "u1"}); d.Outcome != decide.Allow {
					t.Errorf("what was answered with 503 was counted: %+v", d)
				}
			}
		})
	}

	g := newGate(t, closed, open)
	g.store.state.Lost = true
	d := g.ask(decide.Query{Tenant: "acme"})
	if d.Status != 503 || !d.Degraded || d.RuleID != "closed" {
		t.Errorf("the store is lost: %+v, want 503", d)
	}
	all, errs := g.DecideAll(t.Context(), []decide.Query{{Tenant: "acme"}})
	if errs[0] != nil || all[0].Status != 503 {
		t.Errorf("the store is lost to many: %+v %v, want 503", all[0], errs[0])
	}
	g.put(decide.RuleKind, "closed", nil)
	g.rule(openQuota)
	if d := g.ask(decide.Query{Tenant: "acme"}); d.Outcome != decide.Allow || !d.Degraded || d.Limits != nil {
		t.Errorf("the store is lost: %+v, want a degraded pass", d)
	}
}

// TestStoreIsBack guarantees that nothing of what was counted in the process
// counts once the store decides again.
func TestStoreIsBack(t *testing.T) {
	t.Parallel()

	g := newGate(t, localRate("burst", rule.Tenant, 3))
	g.store.fail = errAway
	for range 5 {
		g.ask(decide.Query{Tenant: "acme"})
	}
	g.store.fail = nil
	if d := g.ask(decide.Query{Tenant: "acme"}); d.Degraded || d.Local || left(d, "burst") != 2 {
		t.Errorf("decision %+v, want 2 left", d)
	}
}

// TestFC14Policies guarantees that requests which meet a store that hangs are
// all answered when its budget is over, by their rules: under one that fails
// open they pass and are marked, under one that fails closed they get 503, and
// neither is told what is left. When the store is back, decisions resume.
func TestFC14Policies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const budget = 50 * time.Millisecond
		model := &modelStore{state: limit.NewState(), now: t0}
		hangs := true
		store := storeFunc(func(d limit.Decision) (limit.Answer, error) {
			if hangs {
				ctx, cancel := context.WithTimeout(context.Background(), budget)
				defer cancel()
				<-ctx.Done()
				return limit.Answer{}, errAway
			}
			return model.Decide(t.Context(), d)
		})
		r := newRig(t, store, func() time.Time { return t0 })
		open, closed := rate("open", rule.Tenant, 1000), quota("closed", 1000)
		open.Match.Tenant, closed.Match.Tenant = "acme", "globex"
		r.rule(open)
		r.rule(closed)
		statuses := map[string]*[600]atomic.Int64{"acme": {}, "globex": {}}
		began := time.Now()
		var all sync.WaitGroup
		for tenant, n := range statuses {
			for range 200 {
				all.Go(func() {
					d, err := r.Decide(t.Context(), decide.Query{Tenant: tenant})
					if err != nil || !d.Degraded || d.Limits != nil {
						t.Errorf("%s: %+v %v, want a degraded answer", tenant, d, err)
						return
					}
					n[d.Status].Add(1)
				})
			}
		}
		all.Wait()
		if a, b := statuses["acme"][200].Load(), statuses["globex"][503].Load(); a != 200 || b != 200 || time.Since(began) > budget {
			t.Errorf("%d passed and %d got 503 within %v, want 200 and 200 within %v", a, b, time.Since(began), budget)
		}
		hangs = false
		for _, tenant := range []string{"acme", "globex"} {
			if d := r.ask(decide.Query{Tenant: tenant}); d.Degraded || d.Limits[0].Remaining != 999 {
				t.Errorf("the store is back, %s: %+v", tenant, d)
			}
		}
	})
}
