//go:build integration

package postgres_test

import (
	"strings"
	"testing"
	"time"

	"penstock.dev/services/billing/account"
	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/wallet"
)

func topUp(id string, units int64) catalog.Change {
	return catalog.Change{Kind: catalog.KindGrant, ID: id, Grant: &catalog.Grant{
		Tenant: "acme", Meter: "credits", Units: units, GrantedAt: time.Date(2026, 6, 2, 10, 0, 0, 0, time.UTC), Reason: "order " + id,
	}}
}

// pays makes an event the charge of a prepaid wallet.
func pays(e metering.Event, units, consumed, refunded int64) metering.Event {
	e.Counters = []metering.Counter{{
		Key: "{t:acme}:e:w:t:credits:g", Meter: "credits", Rule: "acme-wallet", Wallet: true, Enforced: true, Observed: true,
		Limit: 100, Units: units, Consumed: consumed, Refunded: refunded,
	}}
	return e
}

func (r *rig) wallet() account.Wallet {
	r.t.Helper()
	all, err := r.Wallets(r.t.Context(), "acme", time.Time{})
	if err != nil || len(all) != 1 {
		r.t.Fatalf("wallets %+v %v", all, err)
	}
	w := all[0]
	if sum := query[int64](r, `SELECT sum(units)::bigint FROM wallet_entries WHERE tenant = 'acme' AND meter = 'credits'`)[0]; sum != w.Balance() {
		r.t.Errorf("entries add up to %d, the balance is %d", sum, w.Balance())
	}
	return w
}

// TestIntegrationFC29 guarantees that a ledger of 50 attempted debits of 3 from 100 holds
// the 34 that succeeded, and that its sum is the balance, which two processes at once and
// repeats do not change.
func TestIntegrationFC29(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-02T10:00:00Z")
	r.learn(now, topUp("t1", 100))
	var events []metering.Event
	for i := range int64(50) {
		e := r.event("acme", now, 3)
		if i < 34 {
			e = pays(e, 3, 3*(i+1), 0)
		} else {
			e = pays(e, 0, 102, 0)
			e.Verdict, e.Status, e.Algorithm = metering.Deny, 429, "overdraft_wallet"
		}
		events = append(events, e)
	}
	other := r.open(0)
	r.count(now, events[:25]...)
	if got := r.countBy(other, now, events...); got.Counted != 25 || got.Repeats != 25 {
		t.Errorf("the second process counted %+v", got)
	}
	w := r.wallet()
	debits := 0
	for _, e := range w.Entries {
		if e.Kind == account.Debit && e.Units == -3 {
			debits++
		}
	}
	if w.Balance() != -2 || debits != 34 || w.Consumed != 102 || len(w.Entries) != 35 {
		t.Errorf("balance %d, %d debits of %d entries, want -2, 34 and the top-up", w.Balance(), debits, len(w.Entries))
	}
	if w.Grants[0].Spent != 100 {
		t.Errorf("spent of the top-up: %+v", w.Grants[0])
	}
	r.learn(now, topUp("t2", 50))
	if w = r.wallet(); w.Balance() != 48 || w.Grants[1].Spent != 2 {
		t.Errorf("what was owed is spent of the next top-up: %+v", w)
	}
}

// TestIntegrationFC28 guarantees that a price of -1 does not get past the database, and
// that a call of 1 unit that settles at an actual cost of -1,618 gives back 1: the wallet
// ends at 1,000, the settlement is flagged, and the ledger's sum is the balance.
func TestIntegrationFC28(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-02T10:00:00Z")
	r.learn(now, gold(t), topUp("t1", 1000))
	for _, sql := range []string{
		`UPDATE plan_steps SET unit_price = -1`,
		`INSERT INTO plan_steps (plan, version, position, meter, unit_price) VALUES ('gold', 1, 99, 'credits', -1)`,
		`UPDATE plans SET fee = -1`, `UPDATE plan_included SET units = -1`,
		`INSERT INTO wallet_entries (tenant, meter, at, kind, units, asked, topup) VALUES ('acme', 'credits', now(), 'topup', -1, -1, 'x')`,
	} {
		if _, err := r.conn.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "constraint") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	call := pays(r.event("acme", now, 1), 1, 1, 0)
	settled := pays(corrects(r.event("acme", now.Add(time.Second), 0), call, metering.Settle, -1618), -1619, 1, 1619)
	if got := r.count(now, call, settled); got.Flagged != 1 {
		t.Errorf("flagged %+v, want the settlement", got)
	}
	w := r.wallet()
	if w.Balance() != 1000 || w.Entries[0].Kind != account.Settled || w.Entries[0].Units != 1 || w.Entries[0].Flagged != wallet.FlagCapped {
		t.Errorf("the wallet is at %d with %+v, want 1,000 and a flag", w.Balance(), w.Entries[0])
	}
}

// TestIntegrationW5 guarantees that grants are burnt by priority, then by their end, as
// events come, and that expiry takes back what is unspent, once.
func TestIntegrationW5(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-03-01T00:00:00Z")
	grant := func(id string, priority int, ends string, units int64) catalog.Change {
		c := topUp(id, units)
		c.Grant.Priority = priority
		if ends != "" {
			c.Grant.ExpiresAt = at(t, ends)
		}
		return c
	}
	a, b, c := grant("A", 50, "2026-04-01T00:00:00Z", 100), grant("B", 50, "2026-03-15T00:00:00Z", 40), grant("C", 10, "", 30)
	r.learn(now, a, b, c)
	call := pays(r.event("acme", now, 60), 60, 60, 0)
	r.count(now, call)
	left := func() map[string]int64 {
		out := map[string]int64{}
		for _, g := range r.wallet().Grants {
			out[g.ID] = g.Left()
		}
		return out
	}
	if got := left(); got["A"] != 100 || got["B"] != 10 || got["C"] != 0 {
		t.Errorf("60 burnt leave %v, want A 100, B 10, C 0", got)
	}
	if order := r.wallet().Grants; order[0].ID != "C" || order[1].ID != "B" || order[2].ID != "A" {
		t.Errorf("the order of burning is %+v", order)
	}
	ended := b
	ended.Grant = &catalog.Grant{}
	*ended.Grant = *b.Grant
	ended.Grant.Expired = 10
	for range 3 {
		r.learn(at(t, "2026-03-15T00:00:01Z"), ended)
	}
	w := r.wallet()
	if w.Balance() != 100 || w.Granted != 160 || left()["B"] != 0 {
		t.Errorf("after B ended: %+v, want 100 left of 160", w)
	}
	r.count(now, pays(corrects(r.event("acme", now, 0), call, metering.Refund, 5), -5, 60, 5))
	if w := r.wallet(); w.Balance() != 105 || w.Returned != 5 {
		t.Errorf("after 5 came back: %+v", w)
	}
	if got := query[int64](r, `SELECT count(*) FROM wallet_entries WHERE kind = 'expiry'`)[0]; got != 1 {
		t.Errorf("%d expiry entries, want 1", got)
	}
}

// TestIntegrationWalletIsNotPricedTwice guarantees that what a prepaid wallet paid is shown
// on the invoice and costs nothing, and that a pass while the counters could not be read is
// priced, because nothing paid it.
func TestIntegrationWalletIsNotPricedTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-02T10:00:00Z")
	p := gold(t)
	p.Plan.Steps["credits"] = p.Plan.Steps["api-calls"]
	r.learn(now, p, tenant("acme", "gold", "UTC"), topUp("t1", 100))
	owed := pays(r.event("acme", now, 4), 4, 0, 0)
	owed.Verdict, owed.Counters[0].Observed = metering.DegradedAllow, false
	r.count(now, pays(r.event("acme", now, 30), 30, 30, 0), owed)
	all, err := r.Invoice(t.Context(), "acme", "draft-20260601T000000Z", now)
	if err != nil {
		t.Fatal(err)
	}
	var prepaid, priced int64
	for _, l := range all.Lines {
		switch {
		case l.Kind == account.PrepaidLine:
			prepaid += l.Units
		case l.Kind == account.UsageLine && l.Meter == "credits":
			priced += l.Units
		}
	}
	if prepaid != 30 || priced != 4 || all.Total.Minor != 9900+40 {
		t.Errorf("prepaid %d, priced %d, total %v of %+v", prepaid, priced, all.Total, all.Lines)
	}
	if w := r.wallet(); w.Balance() != 70 {
		t.Errorf("the balance is %d, want 70: nothing was taken while nobody could read it", w.Balance())
	}
}

// TestIntegrationEndedGrant guarantees that of a top-up that ended with nothing left, as of
// one that ended with something, nothing is given back to or spent of any more.
func TestIntegrationEndedGrant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := at(t, "2026-06-02T10:00:00Z")
	first := topUp("a", 100)
	first.Grant.ExpiresAt = at(t, "2026-06-10T00:00:00Z")
	r.learn(now, first, topUp("b", 50))
	call := pays(r.event("acme", now, 120), 120, 120, 0)
	r.count(now, call)
	later := at(t, "2026-06-10T00:00:01Z")
	r.learn(later, first) // its end: nothing was left
	refund := corrects(r.event("acme", later, 90), call, metering.Refund, 90)
	r.count(later, pays(refund, -90, 120, 90), pays(r.event("acme", later, 30), 30, 150, 90))
	w := r.wallet()
	spent := map[string]int64{}
	for _, g := range w.Grants {
		spent[g.ID] = g.Spent
	}
	if spent["a"] != 100 || spent["b"] != 0 || w.Balance() != 90 {
		t.Errorf("spent %v, balance %d, want all of a, nothing of b, and 90", spent, w.Balance())
	}
}
