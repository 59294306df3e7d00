package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"penstock.dev/deploy/local/estate"
)

// The wallet of the proof, for as long as that runs.
const (
	walletRule   = "acme-credits"
	walletTenant = "acme"
	walletMeter  = "credits"
)

// walletSpent tops a wallet up, spends it by exports of 20 units, and gives a
// charge back.
func walletSpent(ctx context.Context, e *estate.Estate, keys map[string]string) (f finding, err error) {
	admin, key := e.Admin(), strconv.FormatInt(time.Now().UnixNano(), 36)
	_, _, err = admin.Put(ctx, "rules", walletRule, "*", estate.Object{
		"kind": "wallet", "algorithm": "overdraft_wallet", "wallet": "prepaid", "meter": walletMeter, "subject": []string{"tenant"},
		"match": estate.Object{"tenant": walletTenant, "service": "export"}, "on_failure": "closed",
	})
	if err != nil {
		return finding{}, err
	}
	defer func() { err = errors.Join(err, admin.Delete(ctx, "rules", walletRule)) }()

	var spent, balances []string
	topUp := func(key string, units, balance int64) error {
		if _, err := admin.TopUp(ctx, walletTenant, walletMeter, key, units); err != nil {
			return err
		}
		return awaitBalance(ctx, e, balance)
	}
	export := func() error {
		all, err := post(ctx, 1, e.Env["GATEWAY_URL"]+"/export/v1/export", keys["ACME_KEY"])
		if err != nil {
			return err
		}
		d, err := e.Deciders()[0].Decide(ctx, walletQuestion())
		if err != nil {
			return err
		}
		balance, _ := d.Balance(walletRule)
		spent, balances = append(spent, tally(all)), append(balances, strconv.FormatInt(balance, 10))
		return nil
	}
	for _, step := range []func() error{
		func() error { return topUp(key+"-1", 5, 5) },
		func() error { return topUp(key+"-1", 5, 5) }, // again: the same one
		export, export,
		func() error { return topUp(key+"-2", 30, 15) },
		export,
		func() error { return topUp(key+"-3", 100, 95) },
	} {
		if err := step(); err != nil {
			return finding{}, err
		}
	}
	returned, err := giveBackTwice(ctx, e)
	if err != nil {
		return finding{}, err
	}
	f = finding{
		done: "5 units bought for acme, twice with one key; exports of 20 units each; 30 bought; one export more; " +
			"100 bought; a decision of 20 units asked for and given back, twice with one receipt; balances in brackets",
		expected: "1 × 200 (-15), 1 × 429 (-15), then 1 × 200 (-5); 75, and 95 once it is given back",
	}
	pairs := make([]string, len(spent))
	for i := range spent {
		pairs[i] = fmt.Sprintf("%s (%s)", spent[i], balances[i])
	}
	f.measured = fmt.Sprintf("%s, %s, then %s; %s", pairs[0], pairs[1], pairs[2], returned)
	f.held = f.measured == f.expected
	return f, nil
}

// giveBackTwice decides on 20 units and gives them back, and says what the
// wallet held after each.
func giveBackTwice(ctx context.Context, e *estate.Estate) (string, error) {
	d := e.Deciders()[0]
	q := walletQuestion()
	q["cost"] = 20
	charged, err := d.Decide(ctx, q)
	if err != nil {
		return "", err
	}
	for range 2 {
		if err := d.Refund(ctx, charged); err != nil {
			return "", err
		}
	}
	after, err := d.Decide(ctx, walletQuestion())
	if err != nil {
		return "", err
	}
	before, _ := charged.Balance(walletRule)
	balance, _ := after.Balance(walletRule)
	return fmt.Sprintf("%d, and %d once it is given back", before, balance), nil
}

// walletQuestion looks at the wallet and charges nothing.
func walletQuestion() estate.Object {
	return estate.Object{"tenant": walletTenant, "service": "export", "method": http.MethodPost, "path": "/v1/export", "cost": 0}
}

// awaitBalance waits until every gateway shows that balance.
func awaitBalance(ctx context.Context, e *estate.Estate, want int64) error {
	ctx, cancel := context.WithTimeout(ctx, enforceWithin)
	defer cancel()
	for _, d := range e.Deciders() {
		for {
			got, err := d.Decide(ctx, walletQuestion())
			if err != nil {
				return fmt.Errorf("waiting for a balance of %d: %w", want, err)
			}
			if balance, ok := got.Balance(walletRule); ok && balance == want {
				break
			}
		}
	}
	return nil
}
