package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
)

// A proof shows one promise on real traffic.
type proof struct {
	title string
	run   func(ctx context.Context, e *estate.Estate, keys map[string]string) (finding, error)
}

// A finding is what a proof has to show. Expected and measured are compared by
// held, because not every promise is an equality.
type finding struct {
	done, expected, measured string
	held                     bool
}

// proofs are those that this estate, which began then, can show.
func proofs(e *estate.Estate, began time.Time) []proof {
	all := []proof{
		{"Too much traffic is cut at the gate", cutAtTheGate},
		{"A monthly quota is used up", quotaUsedUp},
		{"A limit is raised while traffic flows", limitRaised},
		{"What was bought is spent, and a charge comes back once", walletSpent},
	}
	if e.Env["ELASTICSEARCH_URL"] != "" {
		all = append(all, proof{"Every refusal can be searched for", refusalsFound(began)})
	}
	return all
}

// prove runs every proof and returns how many did not hold. The error is of
// what kept a proof from running.
func prove(ctx context.Context, s *screen, e *estate.Estate) (failed int, err error) {
	keys, err := e.Keys()
	if err != nil {
		return 0, err
	}
	for i, p := range proofs(e, s.begun) {
		s.heading(fmt.Sprintf("Proof %d: %s", i+1, p.title))
		f, err := p.run(ctx, e, keys)
		if err != nil {
			return failed, fmt.Errorf("proof %d: %w", i+1, err)
		}
		s.labelled("done", f.done)
		s.labelled("expected", f.expected)
		s.labelled("measured", f.measured)
		if f.held {
			s.print("  %s", s.paint(green, "held"))
		} else {
			s.print("  %s", s.paint(red, "FAILED"))
			failed++
		}
	}
	return failed, nil
}

// An answered request.
type answered struct {
	status     int
	retryAfter string
}

// post sends n requests one after the other.
func post(ctx context.Context, n int, url, key string) ([]answered, error) {
	client := http.Client{Timeout: 10 * time.Second}
	all := make([]answered, 0, n)
	for range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("X-API-Key", key)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, err
		}
		all = append(all, answered{resp.StatusCode, resp.Header.Get("Retry-After")})
	}
	return all, nil
}

// tally counts answers by status, e.g. "10 × 200, 30 × 429".
func tally(all []answered) string {
	count := map[int]int{}
	for _, a := range all {
		count[a.status]++
	}
	var words []string
	for _, status := range slices.Sorted(maps.Keys(count)) {
		words = append(words, fmt.Sprintf("%d × %d", count[status], status))
	}
	return strings.Join(words, ", ")
}

// cutAtTheGate sends the same 40 requests past the gateway and through it.
func cutAtTheGate(ctx context.Context, e *estate.Estate, keys map[string]string) (finding, error) {
	const sent, burst, earn = 40, 10, 2 * time.Second // 30 a minute is one in 2 s
	unprotected, err := post(ctx, sent, e.Env["UNPROTECTED_URL"]+"/payments/v1/pay", "")
	if err != nil {
		return finding{}, err
	}
	begun := time.Now()
	guarded, err := post(ctx, sent, e.Env["GATEWAY_URL"]+"/payments/v1/pay", keys["ACME_KEY"])
	if err != nil {
		return finding{}, err
	}
	took := time.Since(begun)
	f := finding{
		done: fmt.Sprintf("%d payments one after the other, to the unprotected port and to the gateway as acme, under the rule acme-burst (GCRA, 30 a minute, burst %d)", sent, burst),
		expected: fmt.Sprintf("unprotected %d × 200; gateway %d × 200, %d × 429, the first wait at most 2 s",
			sent, burst, sent-burst),
	}
	// A machine so slow that units are earned back meanwhile sees that many more pass.
	passed := burst + int(took/earn)
	if passed > burst {
		f.expected += fmt.Sprintf(" (and %d more, earned back during the %v that this took)", passed-burst, took.Round(time.Millisecond))
	}
	wait := "none"
	if i := slices.IndexFunc(guarded, func(a answered) bool { return a.status == http.StatusTooManyRequests }); i >= 0 {
		wait = guarded[i].retryAfter + " s"
	}
	f.measured = fmt.Sprintf("unprotected %s; gateway %s, the first Retry-After %s, in %v",
		tally(unprotected), tally(guarded), wait, took.Round(time.Millisecond))
	f.held = tally(unprotected) == fmt.Sprintf("%d × 200", sent) &&
		tally(guarded) == fmt.Sprintf("%d × 200, %d × 429", passed, sent-passed) &&
		(wait == "1 s" || wait == "2 s")
	return f, nil
}

// quotaUsedUp spends a small monthly quota by heavy exports.
func quotaUsedUp(ctx context.Context, e *estate.Estate, keys map[string]string) (finding, error) {
	// The plan's rate alone, 100 units at once, would let all of them pass.
	const units, exports, cost, zone = 60, 5, 20, "America/Chicago"
	_, err := change(ctx, e, target{
		rule: "free-month", fields: estate.Object{"limit": units},
		question: estate.Object{"tenant": "initech", "service": "export", "method": http.MethodPost, "path": "/v1/export", "cost": 0},
	})
	if err != nil {
		return finding{}, err
	}
	all, err := post(ctx, exports, e.Env["GATEWAY_URL"]+"/export/v1/export", keys["INITECH_KEY"])
	if err != nil {
		return finding{}, err
	}
	until, err := untilNextMonth(zone)
	if err != nil {
		return finding{}, err
	}
	want := fmt.Sprintf("%d × 200, %d × 429", units/cost, exports-units/cost)
	retry := all[len(all)-1].retryAfter
	seconds, _ := strconv.Atoi(retry) // one that is absent is no number of seconds to wait either
	return finding{
		done: fmt.Sprintf("%d exports of %d units each as initech, under the rule free-month (quota, put to %d units a calendar month of %s)",
			exports, cost, units, zone),
		expected: fmt.Sprintf("%s, Retry-After %.0f, give or take 2: the seconds until that month ends", want, until.Seconds()),
		measured: fmt.Sprintf("%s, Retry-After %s", tally(all), retry),
		held:     tally(all) == want && (time.Duration(seconds)*time.Second-until).Abs() <= 2*time.Second,
	}, nil
}

func untilNextMonth(zone string) (time.Duration, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return 0, err
	}
	now := time.Now().In(loc)
	return time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, loc).Sub(now).Round(time.Second), nil
}

// limitRaised raises a limit many times, measures how long every gateway took to
// enforce each, and shows that traffic that was cut now passes.
func limitRaised(ctx context.Context, e *estate.Estate, keys map[string]string) (finding, error) {
	const changes, payments, bound = 50, 40, 5 * time.Second // what is promised; a few ms are usual
	var sent, committed []time.Duration
	for i := range changes {
		took, err := change(ctx, e, target{
			rule: "acme-burst", fields: estate.Object{"limit": 6000 + i, "burst": 1000},
			question: estate.Object{"tenant": "acme", "service": "payments", "method": http.MethodPost, "path": "/v1/pay", "cost": 0},
		})
		if err != nil {
			return finding{}, err
		}
		sent, committed = append(sent, took.fromSent), append(committed, took.fromCommit)
	}
	slices.Sort(sent)
	slices.Sort(committed)
	all, err := post(ctx, payments, e.Env["GATEWAY_URL"]+"/payments/v1/pay", keys["ACME_KEY"])
	if err != nil {
		return finding{}, err
	}
	ms := func(sorted []time.Duration, i int) string {
		return fmt.Sprintf("%.1f ms", float64(sorted[i].Microseconds())/1000)
	}
	worst, want := sent[changes-1], fmt.Sprintf("%d × 200", payments)
	return finding{
		done: fmt.Sprintf("the rule acme-burst raised %d times by PUT to rule-admin while decisions are asked for, then the %d payments again",
			changes, payments),
		expected: fmt.Sprintf("each enforced within the promised %.0f s; then %s", bound.Seconds(), want),
		measured: fmt.Sprintf("from the commit to the first decision under the new limit: median %s, slowest %s (from sending the PUT %s and %s); then %s",
			ms(committed, changes/2), ms(committed, changes-1), ms(sent, changes/2), ms(sent, changes-1), tally(all)),
		held: worst <= bound && tally(all) == want,
	}, nil
}
