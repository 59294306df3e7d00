package proof

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"penstock.dev/deploy/local/estate"
)

// walletMeter is what the wallets of the proofs hold.
const walletMeter = "credits"

// prepaid is a tenant with a prepaid wallet of its own.
func (s *stage) prepaid(id, name string) []object {
	return []object{s.tenant(id, name), {"rules", s.named(id), estate.Object{
		"kind": "wallet", "algorithm": "overdraft_wallet", "wallet": "prepaid", "meter": walletMeter, "subject": []string{"tenant"},
		"match": estate.Object{"tenant": s.named(id)}, "on_failure": "closed",
	}}}
}

// topUp grants units and waits until every gateway shows that balance. One that
// does not come is no error: the proof will find it missing.
func (s *stage) topUp(ctx context.Context, tenant, key string, units, balance int64) error {
	_, err := s.admin.TopUp(ctx, tenant, walletMeter, key, units)
	if err == nil {
		_ = s.awaitBalance(ctx, tenant, balance)
	}
	return err
}

// awaitBalance waits until every gateway shows that balance of the wallet whose
// rule is named as its tenant.
func (s *stage) awaitBalance(ctx context.Context, tenant string, want int64) error {
	return s.await(ctx, enforceWithin, func(ctx context.Context) error {
		for _, d := range s.Deciders() {
			got, err := d.Decide(ctx, estate.Object{"tenant": tenant, "cost": 0})
			if err != nil {
				return err
			}
			if balance, ok := got.Balance(tenant); !ok || balance != want {
				return fmt.Errorf("the balance of %s is %d, not %d", tenant, balance, want)
			}
		}
		return nil
	})
}

// walletOverdrawn spends 200 of 100, is refused, tops up and goes on; and gives a
// charge back twice.
func walletOverdrawn(ctx context.Context, s *stage) (Finding, error) {
	tenant, d := s.named("overdrawn"), s.Deciders()[0]
	if err := s.enforce(ctx, s.prepaid("overdrawn", "Overdrawn")...); err != nil {
		return Finding{}, err
	}
	if err := s.topUp(ctx, tenant, "first", 100, 100); err != nil {
		return Finding{}, err
	}
	var steps []string
	spend := func(cost int) (estate.Decision, error) {
		got, err := d.Decide(ctx, estate.Object{"tenant": tenant, "cost": cost})
		balance, _ := got.Balance(tenant)
		step := strings.TrimSpace(fmt.Sprintf("%d %s", got.Status, got.Code))
		if got.RetryAfter > 0 {
			step += fmt.Sprintf(", Retry-After %d", got.RetryAfter)
		}
		steps = append(steps, fmt.Sprintf("%s (%s)", step, signed(balance)))
		return got, err
	}
	if _, err := spend(200); err != nil {
		return Finding{}, err
	}
	overdrawn, err := spend(1)
	if err != nil {
		return Finding{}, err
	}
	if err := s.topUp(ctx, tenant, "second", 150, 50); err != nil {
		return Finding{}, err
	}
	charged, err := spend(20)
	if err != nil {
		return Finding{}, err
	}
	for range 2 {
		if err := d.Refund(ctx, charged); err != nil {
			return Finding{}, err
		}
	}
	after, err := d.Decide(ctx, estate.Object{"tenant": tenant, "cost": 0})
	if err != nil {
		return Finding{}, err
	}
	debt, _ := overdrawn.Balance(tenant)
	balance, _ := after.Balance(tenant)
	f := Finding{
		Done: "100 units bought; 200 spent at once; 1 more; 150 bought; 20 spent, and given back twice with one receipt. Balances in brackets",
		Expected: "200 (−100), 429 wallet-empty (−100) without a Retry-After, for no wait helps; after the top-up 200 (30); " +
			"50 once it is given back",
		Measured: fmt.Sprintf("%s, %s; after the top-up %s; %d once it is given back", steps[0], steps[1], steps[2], balance),
		Badges: []Badge{
			{"overdrawn", signed(debt), Bad},
			{"then", fmt.Sprint(overdrawn.Status), Plain},
			{"after the top-up", fmt.Sprint(charged.Status), Good},
			{"balance", signed(balance), Good},
		},
	}
	f.Held = steps[0] == "200 (−100)" && steps[1] == "429 wallet-empty (−100)" && steps[2] == "200 (30)" && balance == 50
	return f, nil
}

// topUpOnce sends one top-up many times at once.
func topUpOnce(ctx context.Context, s *stage) (Finding, error) {
	const senders, units = 50, 40
	tenant := s.named("top-up-once")
	if err := s.enforce(ctx, s.prepaid("top-up-once", "Top-up, once")...); err != nil {
		return Finding{}, err
	}
	var mu sync.Mutex
	ids, totals := map[string]int{}, map[string]int{}
	var calls []func() error
	for range senders {
		calls = append(calls, func() error {
			made, err := s.admin.TopUp(ctx, tenant, walletMeter, "order-17", units)
			mu.Lock()
			defer mu.Unlock()
			ids[fmt.Sprint(made["topup_id"])]++
			totals[fmt.Sprint(made["granted_total"])]++
			return err
		})
	}
	if err := together(calls...); err != nil {
		return Finding{}, err
	}
	// Another top-up is the wallet's last word: what came before it is in force too.
	if err := s.topUp(ctx, tenant, "order-18", 1, units+1); err != nil {
		return Finding{}, err
	}
	got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": tenant, "cost": 0})
	if err != nil {
		return Finding{}, err
	}
	balance, _ := got.Balance(tenant)
	return Finding{
		Done:     fmt.Sprintf("a top-up of %d units sent %d times at the same instant under one Idempotency-Key, then another one of 1 unit", units, senders),
		Expected: fmt.Sprintf("%d answers, of 1 top-up and 1 total, which is %d; %d in the wallet in the end", senders, units, units+1),
		Measured: fmt.Sprintf("%d answers, of %s and %s; %d in the wallet in the end", senders, count(len(ids), "top-up"), count(len(totals), "total"), balance),
		Badges: []Badge{
			{"sent", fmt.Sprint(senders), Plain},
			{"granted", fmt.Sprint(len(ids)), Good},
			{"units", fmt.Sprintf("%d + 1", balance-1), Good},
		},
		Held: len(ids) == 1 && totals[strconv.Itoa(units)] == senders && balance == units+1,
	}, nil
}

// failedUpstream has an upstream fail some requests and answer others, all of which
// were charged before they were forwarded.
func failedUpstream(ctx context.Context, s *stage) (Finding, error) {
	const cost, granted, good, bad = 5, 100, 4, 6
	id := s.named("flaky")
	objects := append(s.prepaid("flaky", "Behind a flaky upstream"),
		object{"services", id, estate.Object{
			"upstream": s.Env["UNPROTECTED_URL"], "path_prefix": "/" + id, "strip_prefix": true, "hosts": []string{},
		}},
		object{"endpoints", id, estate.Object{
			"service": id, "method": http.MethodGet, "path": "/v1/status/{code}", "cost": cost, "refund_on": []string{"5xx"},
		}})
	if err := s.enforce(ctx, objects...); err != nil {
		return Finding{}, err
	}
	if err := s.topUp(ctx, id, "once", granted, granted); err != nil {
		return Finding{}, err
	}
	key, err := s.key(ctx, "flaky")
	if err != nil {
		return Finding{}, err
	}
	var all []answered
	for _, part := range []struct{ n, status int }{{good, http.StatusOK}, {bad, http.StatusServiceUnavailable}} {
		some, err := s.sendAll(ctx, part.n, http.MethodGet, fmt.Sprintf("%s/%s/v1/status/%d", s.Env["GATEWAY_URL"], id, part.status), key)
		if err != nil {
			return Finding{}, err
		}
		all = append(all, some...)
	}
	// What is given back is so off the request's path.
	const want = granted - good*cost
	_ = s.awaitBalance(ctx, id, want) // as above
	got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": id, "cost": 0})
	if err != nil {
		return Finding{}, err
	}
	var consumed, refunded, balance int64
	for _, l := range got.Limits {
		if l.RuleID == id {
			consumed, refunded, balance = l.Consumed, l.Refunded, l.Balance
		}
	}
	answers := fmt.Sprintf("%d × 200, %d × 503", good, bad)
	return Finding{
		Done: fmt.Sprintf("%d requests of %d units to an endpoint with refund_on 5xx, from a wallet of %d; the upstream answers %d and fails %d",
			good+bad, cost, granted, good, bad),
		Expected: fmt.Sprintf("%s; %d units charged, %d given back, %d left", answers, (good+bad)*cost, bad*cost, want),
		Measured: fmt.Sprintf("%s; %d units charged, %d given back, %d left", tally(all), consumed, refunded, balance),
		Badges: []Badge{
			{"charged", fmt.Sprint(consumed), Plain},
			{"given back", fmt.Sprint(refunded), Good},
			{"left", fmt.Sprint(balance), Good},
		},
		Held: tally(all) == answers && consumed == (good+bad)*cost && refunded == bad*cost && balance == want,
	}, nil
}
