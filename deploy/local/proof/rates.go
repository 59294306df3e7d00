package proof

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"penstock.dev/deploy/local/estate"
)

// cutAtTheGate sends the same 40 requests past the gateway and through it.
func cutAtTheGate(ctx context.Context, s *stage) (Finding, error) {
	const sent, burst, earn = 40, 10, 2 * time.Second // 30 a minute is one in 2 s
	if err := s.enforce(ctx, s.tenant("gate", "At the gate"), s.burst("gate", 30, burst)); err != nil {
		return Finding{}, err
	}
	key, err := s.key(ctx, "gate")
	if err != nil {
		return Finding{}, err
	}
	unprotected, err := s.sendAll(ctx, sent, http.MethodPost, s.Env["UNPROTECTED_URL"]+"/payments/v1/pay", "")
	if err != nil {
		return Finding{}, err
	}
	begun := time.Now()
	guarded, err := s.sendAll(ctx, sent, http.MethodPost, s.Env["GATEWAY_URL"]+"/payments/v1/pay", key)
	if err != nil {
		return Finding{}, err
	}
	took := time.Since(begun)
	f := Finding{
		Done: fmt.Sprintf("%d payments one after the other, to the unprotected port and to the gateway under a rule of 30 a minute, %d at once (GCRA)", sent, burst),
		Expected: fmt.Sprintf("unprotected %d × 200; gateway %d × 200, %d × 429, the first wait at most 2 s",
			sent, burst, sent-burst),
	}
	// A machine so slow that units are earned back meanwhile sees that many more pass.
	passed := burst + int(took/earn)
	if passed > burst {
		f.Expected += fmt.Sprintf(" (and up to %d more, earned back during the %s that this took)", passed-burst, span(took))
	}
	wait := "none"
	if i := slices.IndexFunc(guarded, func(a answered) bool { return a.status == http.StatusTooManyRequests }); i >= 0 {
		wait = guarded[i].retryAfter + " s"
	}
	f.Measured = fmt.Sprintf("unprotected %s; gateway %s, the first Retry-After %s, in %s",
		tally(unprotected), tally(guarded), wait, span(took))
	through := with(guarded, http.StatusOK)
	f.Bars = []Bar{
		{"Unprotected", with(unprotected, http.StatusOK), burst, passed - burst},
		{"Through the gateway", through, burst, passed - burst},
	}
	f.Badges = []Badge{
		{"unprotected", fmt.Sprintf("%d of %d passed", with(unprotected, http.StatusOK), sent), Bad},
		{"through the gateway", fmt.Sprintf("%d of %d passed", through, sent), Good},
		{"Retry-After", wait, Plain},
	}
	f.Held = with(unprotected, http.StatusOK) == sent &&
		burst <= through && through <= passed && through+with(guarded, http.StatusTooManyRequests) == sent &&
		(wait == "1 s" || wait == "2 s")
	return f, nil
}

// burst is a rule for payments of a tenant, so many a minute and so many at once.
func (s *stage) burst(tenant string, limit, burst int) object {
	return object{"rules", s.named(tenant), estate.Object{
		"kind": "rate", "algorithm": "gcra", "subject": []string{"tenant"},
		"match": estate.Object{"tenant": s.named(tenant), "service": "payments", "endpoint": "pay"},
		"limit": limit, "window": "60s", "burst": burst,
	}}
}

// The trap: a limit in windows of so long.
const (
	trapLimit  = 30
	trapWindow = 3 * time.Second
)

// trapped are the algorithms side by side.
func trapped() []string { return []string{"fixed_window", "sliding_window_counter", "gcra"} }

// boundaryTrap spends a full limit just before the edge of a window and another
// just behind it, under three algorithms.
func boundaryTrap(ctx context.Context, s *stage) (Finding, error) {
	var objects []object
	for _, algorithm := range trapped() {
		objects = append(objects, s.tenant(trapTenant(algorithm), "Boundary trap, "+algorithm))
	}
	for _, algorithm := range trapped() {
		id := trapTenant(algorithm)
		objects = append(objects, object{"rules", s.named(id), estate.Object{
			"kind": "rate", "algorithm": algorithm, "subject": []string{"tenant"}, "match": estate.Object{"tenant": s.named(id)},
			"limit": trapLimit, "window": trapWindow.String(),
		}})
	}
	if err := s.enforce(ctx, objects...); err != nil {
		return Finding{}, err
	}
	redisClock, err := clockOf(ctx, s.Env["REDIS_URL"])
	if err != nil {
		return Finding{}, err
	}
	// The first half must end before the edge. A machine that is too slow for that
	// gets more time at a later edge, when the counters are untouched again.
	for lead := 300 * time.Millisecond; lead < trapWindow*3/4; lead *= 2 {
		if f, inTime, err := springTrap(ctx, s, redisClock, lead); err != nil || inTime {
			return f, err
		}
		if err := redisClock.until(ctx, redisClock.now().Add(2*trapWindow)); err != nil {
			return Finding{}, err
		}
	}
	return Finding{}, fmt.Errorf("this machine takes longer than %v for %d decisions", trapWindow/2, len(trapped())*trapLimit)
}

func trapTenant(algorithm string) string {
	return map[string]string{"fixed_window": "trap-fixed", "sliding_window_counter": "trap-sliding", "gcra": "trap-gcra"}[algorithm]
}

// springTrap runs both halves of the trap around the next edge that is at least
// so far away; inTime is false when a half missed its window.
func springTrap(ctx context.Context, s *stage, c clock, lead time.Duration) (f Finding, inTime bool, err error) {
	edge := c.now().Add(lead + trapWindow/10).Truncate(trapWindow).Add(trapWindow)
	if err := c.until(ctx, edge.Add(-lead)); err != nil {
		return f, false, err
	}
	begun := c.now()
	before, err := spendTrap(ctx, s)
	if err != nil {
		return f, false, err
	}
	if !c.now().Add(c.slack).Before(edge) {
		return f, false, nil
	}
	if err := c.until(ctx, edge.Add(c.slack)); err != nil {
		return f, false, err
	}
	after, err := spendTrap(ctx, s)
	if err != nil {
		return f, false, err
	}
	ended := c.now()
	if !ended.Before(edge.Add(trapWindow)) {
		return f, false, nil
	}
	return judgeTrap(before, after, ended.Sub(begun), ended.Add(c.slack).Sub(edge)), true, nil
}

// spendTrap sends a full limit to each tenant, side by side, and returns how
// many of it passed.
func spendTrap(ctx context.Context, s *stage) ([]int, error) {
	passed := make([]int, len(trapped()))
	var calls []func() error
	for i, algorithm := range trapped() {
		calls = append(calls, func() error {
			for range trapLimit {
				got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": s.named(trapTenant(algorithm))})
				if err != nil {
					return err
				}
				if got.Status == http.StatusOK {
					passed[i]++
				}
			}
			return nil
		})
	}
	return passed, together(calls...)
}

// judgeTrap holds what passed in that stretch, of which so much lies behind the
// edge, against what each algorithm promises.
func judgeTrap(before, after []int, stretch, behind time.Duration) Finding {
	// What a sliding window frees and a bucket earns by time passing, rounded up.
	freed := int(trapLimit*behind/trapWindow) + 1
	earned := int(trapLimit*stretch/trapWindow) + 1
	total := []int{before[0] + after[0], before[1] + after[1], before[2] + after[2]}
	f := Finding{
		Done: fmt.Sprintf("the same traffic under three rules of %d in %s, each for a tenant of its own: %d decisions just before an edge of the clock's windows, %d just behind it",
			trapLimit, span(trapWindow), trapLimit, trapLimit),
		Expected: fmt.Sprintf("within the %s from first to last, the fixed window lets %d through, twice its limit; the sliding counter at most %d (%d freed behind the edge), GCRA at most %d (%d earned)",
			span(stretch), 2*trapLimit, trapLimit+freed, freed, trapLimit+earned, earned),
		Measured: fmt.Sprintf("fixed window %d + %d = %d, sliding counter %d + %d = %d, GCRA %d + %d = %d",
			before[0], after[0], total[0], before[1], after[1], total[1], before[2], after[2], total[2]),
		Held: stretch < trapWindow && total[0] == 2*trapLimit &&
			before[1] == trapLimit && total[1] <= trapLimit+freed &&
			before[2] >= trapLimit && total[2] <= trapLimit+earned,
	}
	for i, name := range []string{"fixed window", "sliding counter", "GCRA"} {
		tone := Good
		if total[i] >= 2*trapLimit {
			tone = Bad
		}
		f.Badges = append(f.Badges, Badge{name, fmt.Sprintf("%d of %d", total[i], trapLimit), tone})
		f.Bars = append(f.Bars, Bar{strings.ToUpper(name[:1]) + name[1:], total[i], trapLimit, []int{0, freed, earned}[i]})
	}
	return f
}

// race has two requests at the same instant ask for one unit, many times: of a
// naive limiter that reads and then writes, and of the gateway.
func race(ctx context.Context, s *stage) (Finding, error) {
	const pairs = 200
	tenant := s.named("race")
	err := s.enforce(ctx, s.tenant("race", "Race of two"), object{"rules", tenant, estate.Object{
		"kind": "rate", "algorithm": "sliding_window_log", "subject": []string{"tenant", "user"},
		"match": estate.Object{"tenant": tenant}, "limit": 1, "window": "1h",
	}})
	if err != nil {
		return Finding{}, err
	}
	naive, err := raceNaive(ctx, s, pairs)
	if err != nil {
		return Finding{}, err
	}
	ds, lost := s.Deciders(), 0
	sold, twice := atomic.Int64{}, 0
	for i := range pairs {
		before := sold.Load()
		ask := func(d *estate.Decider) func() error {
			return func() error {
				got, err := d.Decide(ctx, estate.Object{"tenant": tenant, "user": fmt.Sprintf("u%d", i)})
				if err == nil && got.Status == http.StatusOK {
					sold.Add(1)
				}
				return err
			}
		}
		if err := together(ask(ds[0]), ask(ds[len(ds)-1])); err != nil {
			return Finding{}, err
		}
		switch sold.Load() - before {
		case 0:
			lost++
		case 2:
			twice++
		}
	}
	return Finding{
		Done: fmt.Sprintf("%d pairs of requests at the same instant for a user's last unit: of a naive limiter (GET, compare, SET on the same Redis), and of the gateway",
			pairs),
		Expected: fmt.Sprintf("the naive one sells some units twice; the gateway sells %d, each once", pairs),
		Measured: fmt.Sprintf("naive %d sold, %d twice; gateway %d sold, %d twice, %d not at all", naive, naive-pairs, sold.Load(), twice, lost),
		Badges: []Badge{
			{"naive", fmt.Sprintf("%d sold of %d", naive, pairs), Bad},
			{"gateway", fmt.Sprintf("%d sold of %d", sold.Load(), pairs), Good},
		},
		Bars: []Bar{{"Naive", naive, pairs, 0}, {"Gateway", int(sold.Load()), pairs, 0}},
		Held: naive > pairs && sold.Load() == pairs && twice == 0 && lost == 0,
	}, nil
}

// raceNaive returns how many units a limiter has sold that reads, compares and
// writes, of one unit for each pair.
func raceNaive(ctx context.Context, s *stage, pairs int) (sold int, err error) {
	clients := make([]*redis, 2)
	for i := range clients {
		if clients[i], err = dialRedis(ctx, s.Env["REDIS_URL"]); err != nil {
			return 0, err
		}
		defer clients[i].close()
	}
	for i := range pairs {
		key := fmt.Sprintf("demo:naive:%d:%d", s.began.UnixNano(), i)
		passed := make([]bool, 2)
		ask := func(n int) func() error {
			return func() error {
				used, err := clients[n].do("GET", key)
				if err != nil || len(used) > 0 {
					return err
				}
				passed[n] = true
				_, err = clients[n].do("SET", key, "1", "EX", "60")
				return err
			}
		}
		if err := together(ask(0), ask(1)); err != nil {
			return 0, err
		}
		for _, p := range passed {
			if p {
				sold++
			}
		}
	}
	return sold, nil
}

// heavyAgainstLight gives two tenants the same limit, and has one read and the
// other export.
func heavyAgainstLight(ctx context.Context, s *stage) (Finding, error) {
	const limit, cost, reads, exports = 100, 20, 110, 8
	ids := []string{"reader", "exporter"}
	var objects []object
	for _, id := range ids {
		objects = append(objects, s.tenant(id, "Weights, "+id), object{"rules", s.named(id), estate.Object{
			"kind": "rate", "algorithm": "sliding_window_log", "subject": []string{"tenant"}, "match": estate.Object{"tenant": s.named(id)},
			"limit": limit, "window": "1h", "meter": "units",
		}})
	}
	if err := s.enforce(ctx, objects...); err != nil {
		return Finding{}, err
	}
	reader, err := s.key(ctx, ids[0])
	if err != nil {
		return Finding{}, err
	}
	exporter, err := s.key(ctx, ids[1])
	if err != nil {
		return Finding{}, err
	}
	light, err := s.sendAll(ctx, reads, http.MethodGet, s.Env["GATEWAY_URL"]+"/export/v1/exports/e-1?rows=1", reader)
	if err != nil {
		return Finding{}, err
	}
	heavy, err := s.sendAll(ctx, exports, http.MethodPost, s.Env["GATEWAY_URL"]+"/export/v1/export", exporter)
	if err != nil {
		return Finding{}, err
	}
	want := fmt.Sprintf("reads %d × 200, %d × 429; exports %d × 200, %d × 429", limit, reads-limit, limit/cost, exports-limit/cost)
	got := fmt.Sprintf("reads %s; exports %s", tally(light), tally(heavy))
	return Finding{
		Done: fmt.Sprintf("two tenants with %d units an hour each (sliding log): one sends %d reads of 1 unit, the other %d exports of %d",
			limit, reads, exports, cost),
		Expected: want, Measured: got,
		Badges: []Badge{
			{"light reads", fmt.Sprintf("%d passed", with(light, http.StatusOK)), Good},
			{"heavy exports", fmt.Sprintf("%d passed", with(heavy, http.StatusOK)), Good},
			{"units each", fmt.Sprint(limit), Plain},
		},
		Held: got == want,
	}, nil
}
