package proof

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"penstock.dev/deploy/local/estate"
)

// quotaUsedUp spends a small monthly quota by heavy exports.
func quotaUsedUp(ctx context.Context, s *stage) (Finding, error) {
	const units, exports, cost, zone = 60, 5, 20, "America/Chicago"
	if err := awayFromMonthsEnd(ctx, zone); err != nil {
		return Finding{}, err
	}
	tenant := s.tenant("month", "A month's quota")
	tenant.body["zone"] = zone
	err := s.enforce(ctx, tenant, object{"rules", tenant.id, estate.Object{
		"kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "match": estate.Object{"tenant": tenant.id},
		"limit": units, "period": estate.Object{"unit": "month", "count": 1, "alignment": "calendar"},
	}})
	if err != nil {
		return Finding{}, err
	}
	key, err := s.key(ctx, "month")
	if err != nil {
		return Finding{}, err
	}
	all, err := s.sendAll(ctx, exports, http.MethodPost, s.Env["GATEWAY_URL"]+"/export/v1/export", key)
	if err != nil {
		return Finding{}, err
	}
	until, err := untilNextMonth(zone)
	if err != nil {
		return Finding{}, err
	}
	want := fmt.Sprintf("%d × 200, %d × 429", units/cost, exports-units/cost)
	retry := all[len(all)-1].retryAfter
	seconds, _ := strconv.Atoi(retry) // one that is absent is no number of seconds to wait either
	return Finding{
		Done: fmt.Sprintf("%d exports of %d units each under a quota of %d a calendar month, of a tenant in %s",
			exports, cost, units, zone),
		Expected: fmt.Sprintf("%s, Retry-After %.0f, give or take 2: the seconds until that month ends", want, until.Seconds()),
		Measured: fmt.Sprintf("%s, Retry-After %s", tally(all), retry),
		Badges: []Badge{
			{"units sold", fmt.Sprintf("%d of %d", cost*with(all, http.StatusOK), units), Good},
			{"Retry-After", retry + " s", Plain},
		},
		Held: tally(all) == want && (time.Duration(seconds)*time.Second-until).Abs() <= 2*time.Second,
	}, nil
}

// awayFromMonthsEnd waits for the next month where this one is about to end: a
// month's quota would come back halfway.
func awayFromMonthsEnd(ctx context.Context, zone string) error {
	until, err := untilNextMonth(zone)
	if err != nil || until > 20*time.Second {
		return err
	}
	return (clock{}).until(ctx, time.Now().Add(until+2*time.Second))
}

func untilNextMonth(zone string) (time.Duration, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return 0, err
	}
	now := time.Now().In(loc)
	return time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, loc).Sub(now).Round(time.Second), nil
}

// renewedAtTheEdge uses a quota up whose hour is about to end, and asks until it
// has ended.
func renewedAtTheEdge(ctx context.Context, s *stage) (Finding, error) {
	redisClock, err := clockOf(ctx, s.Env["REDIS_URL"])
	if err != nil {
		return Finding{}, err
	}
	// A machine that is too slow to use the quota up before the edge gets more time.
	for i, lead := range []time.Duration{3 * time.Second, 6 * time.Second, 10 * time.Second} {
		e := edge{tenant: s.named("renewed-" + strconv.Itoa(i+1)), clock: redisClock}
		e.at = redisClock.now().Add(lead).Truncate(time.Second)
		if inTime, err := e.useUp(ctx, s); err != nil || !inTime {
			if err != nil {
				return Finding{}, err
			}
			continue
		}
		if err := e.askOn(ctx, s); err != nil {
			return Finding{}, err
		}
		return e.judge(), nil
	}
	return Finding{}, fmt.Errorf("this machine takes longer than 10 s for %d decisions", edgeLimit+1)
}

// edgeLimit is the quota of an hour that ends at the edge.
const edgeLimit = 5

// An edge is the end of a period, and what was asked around it. Instants are of
// Redis's clock, which decides.
type edge struct {
	tenant string
	at     time.Time
	clock  clock

	before  int // passed before the quota was used up
	refused estate.Decision
	wait    [2]time.Duration // to the edge when the refusal was asked for, and when it was answered
	asked   []asked
}

// Someone asked, and was answered.
type asked struct {
	sent, answered time.Time
	passed         bool
}

// useUp makes the quota and spends it; inTime is false when the edge was too near
// for that.
func (e *edge) useUp(ctx context.Context, s *stage) (inTime bool, err error) {
	err = s.enforce(ctx, object{"tenants", e.tenant, estate.Object{"name": "Renewed at an edge"}}, object{"rules", e.tenant, estate.Object{
		"kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "match": estate.Object{"tenant": e.tenant}, "limit": edgeLimit,
		"period": estate.Object{"unit": "hour", "count": 1, "alignment": "anniversary", "zone": "UTC", "anchor": e.at.Add(-time.Hour).Format(time.RFC3339)},
	}})
	if err != nil {
		return false, err
	}
	for range edgeLimit {
		got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": e.tenant})
		if err != nil {
			return false, err
		}
		if got.Status == http.StatusOK {
			e.before++
		}
	}
	sent := e.clock.now()
	if e.refused, err = s.Deciders()[0].Decide(ctx, estate.Object{"tenant": e.tenant}); err != nil {
		return false, err
	}
	e.wait = [2]time.Duration{e.at.Sub(sent), e.at.Sub(e.clock.now())}
	return e.wait[1] > e.clock.slack, nil
}

// askOn asks every few milliseconds until the edge lies behind.
func (e *edge) askOn(ctx context.Context, s *stage) error {
	// Questions right around the edge tell most; those long before it little.
	if err := e.clock.until(ctx, e.at.Add(-500*time.Millisecond)); err != nil {
		return err
	}
	for {
		a := asked{sent: e.clock.now()}
		got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": e.tenant})
		if err != nil {
			return err
		}
		a.answered, a.passed = e.clock.now(), got.Status == http.StatusOK
		e.asked = append(e.asked, a)
		if a.sent.After(e.at.Add(e.clock.slack)) {
			return nil
		}
	}
}

// judge holds every answer against the side of the edge that it was given on.
func (e *edge) judge() Finding {
	slack := e.clock.slack
	refused, early, late := 0, 0, 0
	var first time.Duration // from the edge to the first pass
	for _, a := range e.asked {
		switch {
		case a.passed && a.answered.Add(slack).Before(e.at):
			early++
		case !a.passed && a.sent.After(e.at.Add(slack)):
			late++
		}
		if !a.passed {
			refused++
		} else if first == 0 {
			first = a.answered.Sub(e.at)
		}
	}
	least, most := int64(e.wait[1]/time.Second), int64(e.wait[0]/time.Second)+2
	passed := len(e.asked) - refused
	return Finding{
		Done: fmt.Sprintf("a quota of %d an hour whose hour ends %.1f s ahead (anniversary, by Redis's clock) used up, then asked for again and again until just behind that edge",
			edgeLimit, e.wait[0].Seconds()),
		Expected: fmt.Sprintf("%d pass, then 429 quota-exceeded with the seconds to the edge as Retry-After (%d to %d); refused right up to the edge, allowed from it on",
			edgeLimit, least, most),
		Measured: fmt.Sprintf("%d passed, then %d %s, Retry-After %d; %d questions more were refused, %d allowed before the edge, %d refused behind it; the first pass was answered %s after the edge",
			e.before, e.refused.Status, e.refused.Code, e.refused.RetryAfter, refused, early, late, ms(first)),
		Badges: []Badge{
			{"Retry-After", fmt.Sprintf("%d s", e.refused.RetryAfter), Plain},
			{"too early", strconv.Itoa(early), Good},
			{"too late", strconv.Itoa(late), Good},
			{"first pass", ms(first) + " after the edge", Good},
		},
		Held: e.before == edgeLimit && e.refused.Status == http.StatusTooManyRequests && e.refused.Code == "quota-exceeded" &&
			least <= e.refused.RetryAfter && e.refused.RetryAfter <= most &&
			early == 0 && late == 0 && passed > 0,
	}
}
