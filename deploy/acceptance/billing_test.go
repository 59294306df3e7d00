//go:build acceptance

package acceptance_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.dev/deploy/local/estate"
)

// A bill is what is looked at of an invoice.
type bill struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Total   string `json:"total"`
	Counted []struct {
		Meter        string `json:"meter"`
		Calls        int64  `json:"calls"`
		Consumed     int64  `json:"consumed"`
		Returned     int64  `json:"returned"`
		Lost         int64  `json:"lost"`
		Unattributed int64  `json:"unattributed"`
	} `json:"counted"`
}

// portalToken has billing issue a token for the tenant.
func (s system) portalToken(tenant string) string {
	s.Helper()
	body := fmt.Sprintf(`{"tenant": %q, "user": "u1", "ttl_seconds": 600}`, tenant)
	r := s.send(http.MethodPost, s.Env["BILLING_URL"]+"/v1/portal-tokens", body, "Authorization", "Bearer "+s.Env["BILLING_TOKEN"], "Content-Type", "application/json")
	if r.status != http.StatusCreated {
		s.Fatalf("portal token: %d %s", r.status, r.body)
	}
	var made struct{ Token string }
	if err := json.Unmarshal([]byte(r.body), &made); err != nil {
		s.Fatal(err)
	}
	return made.Token
}

// billed asks billing as the token's tenant.
func (s system) billed(token, path string, into any) error {
	r, err := s.try(http.MethodGet, s.Env["BILLING_URL"]+path, "Authorization", "Bearer "+token)
	if err != nil {
		return err
	}
	if r.status != http.StatusOK {
		return fmt.Errorf("%s: %d %s", path, r.status, r.body)
	}
	return json.Unmarshal([]byte(r.body), into)
}

// draft is the running draft of the token's tenant.
func (s system) draft(token string) (bill, error) {
	var page struct{ Items []bill }
	if err := s.billed(token, "/v1/invoices", &page); err != nil {
		return bill{}, err
	}
	for _, b := range page.Items {
		if b.State == "draft" {
			return b, nil
		}
	}
	return bill{}, fmt.Errorf("no draft among %d invoices", len(page.Items))
}

// TestBillingKilledBillsEachCallOnce guarantees the chain from a call to the draft: with
// billing killed again and again while traffic and refunds go through two gateways, the
// draft has the units of the distinct calls, which are those of the counters, none lost,
// none twice; and billing's own proof agrees.
func TestBillingKilledBillsEachCallOnce(t *testing.T) {
	t.Parallel()
	s := own(t, estate.Options{Gateways: 2, Samples: false, Search: estate.WithoutSearch})
	s.put("plans", "metered", estate.Object{
		"name": "Metered", "fee": estate.Object{"amount": 1000, "currency": "USD", "period": "month"},
		"included": estate.Object{"api-calls": 100}, "overage": []estate.Object{{"meter": "api-calls", "unit_price": "0.01"}},
	})
	tenant := s.tenant(estate.Object{"plan": "metered", "zone": "Europe/Istanbul", "currency": "USD"})
	rule := tenant + "-month"
	s.put("rules", rule, monthly(tenant, 1_000_000))
	s.enforced(estate.Object{"tenant": tenant}, rule, 1_000_000)

	var charged, returned atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for g := range s.gateways() {
		callers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				d := s.decided(g, estate.Object{"tenant": tenant, "cost": 1 + i%3, "request_id": fmt.Sprintf("g%d-%d", g, i)})
				charged.Add(d.Cost)
				if i%10 == 0 {
					returned.Add(s.refundAll(g, d))
				}
			}
		})
	}
	for range 3 {
		before := charged.Load()
		s.within(time.Minute, "traffic", func() error {
			if charged.Load() < before+200 {
				return fmt.Errorf("%d units", charged.Load()-before)
			}
			return nil
		})
		if err := s.killAndRestart(estate.Billing); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	callers.Wait()

	_, _, consumed, _ := s.decide(0, estate.Object{"tenant": tenant, "cost": 0}).limit(rule)
	if consumed != charged.Load() || returned.Load() == 0 {
		t.Fatalf("the counter consumed %d, the callers were charged %d and given back %d", consumed, charged.Load(), returned.Load())
	}
	token := s.portalToken(tenant)
	s.within(2*time.Minute, "the draft to have every unit", func() error {
		b, err := s.draft(token)
		if err != nil {
			return err
		}
		if len(b.Counted) != 1 || b.Counted[0].Consumed != charged.Load() || b.Counted[0].Returned != returned.Load() || b.Counted[0].Lost+b.Counted[0].Unattributed != 0 {
			return fmt.Errorf("%+v, want %d consumed and %d returned", b, charged.Load(), returned.Load())
		}
		cents := 1000 + max(0, charged.Load()-returned.Load()-100)
		if want := fmt.Sprintf("%d.%02d", cents/100, cents%100); b.Total != want {
			return fmt.Errorf("the total is %s, want %s", b.Total, want)
		}
		return nil
	})
	s.reconcile()
}

// TestFC29LedgerIsTheCounter guarantees that 50 debits of 3 at once from two gateways and a
// wallet of 100 are 34 in the counter, in the answers and in billing's ledger, whose sum is
// the balance that gateways show, also when a call is given back.
func TestFC29LedgerIsTheCounter(t *testing.T) {
	t.Parallel()
	s := common(t)
	tenant := s.tenant(nil)
	rule := tenant + "-wallet"
	s.put("rules", rule, estate.Object{
		"kind": "wallet", "algorithm": "overdraft_wallet", "wallet": "prepaid", "subject": []string{"tenant"},
		"match": estate.Object{"tenant": tenant}, "meter": "credits", "on_failure": "closed",
	})
	q := estate.Object{"tenant": tenant}
	if r, _ := s.topUp(tenant, "order-17", 100); r.status != http.StatusCreated {
		t.Fatalf("top-up: %d %s", r.status, r.body)
	}
	s.balance(q, rule, 100)
	decisions := make([]decision, 50)
	var wg sync.WaitGroup
	for i := range decisions {
		wg.Go(func() {
			decisions[i] = s.decided(i%2, estate.Object{"tenant": tenant, "cost": 3, "request_id": fmt.Sprintf("debit-%d", i)})
		})
	}
	wg.Wait()
	var passed []decision
	for _, d := range decisions {
		if d.allowed() {
			passed = append(passed, d)
		}
	}
	if len(passed) != 34 {
		t.Fatalf("%d debits succeeded, want 34", len(passed))
	}
	s.balance(q, rule, -2)
	token := s.portalToken(tenant)
	s.ledger(token, 35, -2)
	if got := s.refundAll(0, passed[0]); got != 3 {
		t.Fatalf("%d units given back, want 3", got)
	}
	s.balance(q, rule, 1)
	s.ledger(token, 36, 1)
}

// TestInvoiceBecomesFinal guarantees that an hour that ends while the system runs becomes
// one final invoice with a number, of the hour's calls and no other, and that what comes
// after it is on the next draft.
func TestInvoiceBecomesFinal(t *testing.T) {
	t.Parallel()
	s := common(t)
	s.put("plans", "hourly", estate.Object{
		"name": "Hourly", "fee": estate.Object{"amount": 500, "currency": "USD", "period": "hour"},
		"overage": []estate.Object{{"meter": "api-calls", "unit_price": "0.335"}},
	})
	ends := time.Now().Add(15 * time.Second).UTC().Truncate(time.Second)
	tenant := s.tenant(estate.Object{"plan": "hourly", "zone": "UTC", "currency": "USD", "anchor": ends.Add(-time.Hour).Format(time.RFC3339)})
	calls := 0
	call := func() {
		s.decided(0, estate.Object{"tenant": tenant, "request_id": fmt.Sprintf("call-%d", calls)})
		calls++
	}
	for range 3 {
		call()
	}
	token := s.portalToken(tenant)
	s.within(time.Minute, "the hour to be over", func() error {
		if !time.Now().After(ends) {
			return fmt.Errorf("it ends at %v", ends)
		}
		return nil
	})
	call()
	var page struct{ Items []bill }
	s.within(time.Minute, "the invoice", func() error {
		if err := s.billed(token, "/v1/invoices", &page); err != nil {
			return err
		}
		if len(page.Items) != 2 || page.Items[1].State != "final" || len(page.Items[0].Counted) != 1 {
			return fmt.Errorf("%+v", page)
		}
		return nil
	})
	draft, final := page.Items[0], page.Items[1]
	if final.Total != "6.01" || !strings.HasPrefix(final.ID, "INV-") || final.Counted[0].Calls != 3 { // 5.00 + 3 × 0.335
		t.Errorf("the invoice is %+v, want 3 calls for 6.01", final)
	}
	if draft.State != "draft" || draft.Counted[0].Calls != 1 {
		t.Errorf("the draft is %+v, want the call after the hour", draft)
	}
}

// ledger waits until billing's ledger of credits has so many entries, which add up to
// the balance.
func (s system) ledger(token string, entries int, balance int64) {
	s.Helper()
	s.within(time.Minute, "the ledger", func() error {
		var page struct {
			Items []struct {
				Balance int64 `json:"balance"`
				Entries []struct {
					Units int64 `json:"units"`
				} `json:"entries"`
			} `json:"items"`
		}
		if err := s.billed(token, "/v1/wallet", &page); err != nil {
			return err
		}
		var sum int64
		for _, w := range page.Items {
			for _, e := range w.Entries {
				sum += e.Units
			}
		}
		if len(page.Items) != 1 || len(page.Items[0].Entries) != entries || page.Items[0].Balance != balance || sum != balance {
			return fmt.Errorf("%+v, want %d entries that add up to %d", page, entries, balance)
		}
		return nil
	})
}

// refundAll gives a decision back, and returns its units.
func (s system) refundAll(g int, d decision) int64 {
	s.Helper()
	body, err := json.Marshal(estate.Object{"receipt": d.Receipt})
	if err != nil {
		s.Error(err)
		return 0
	}
	var units int64
	s.within(20*time.Second, "the refund", func() error {
		r, err := s.request(http.MethodPost, s.gateways()[g]+"/v1/decisions/"+d.DecisionID+"/refund", string(body),
			[]string{"Authorization", "Bearer " + s.Env["DECISION_TOKEN"], "Content-Type", "application/json"})
		if err != nil || r.status != http.StatusOK {
			return fmt.Errorf("%d %s %w", r.status, r.body, err)
		}
		var made struct{ Units int64 }
		err = json.Unmarshal([]byte(r.body), &made)
		units = made.Units
		return err
	})
	return units
}

// reconcile has billing prove its books.
func (s system) reconcile() {
	s.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), filepath.Join(root, "bin", "billing"), "reconcile",
		"-kafka-brokers", s.Env["KAFKA_BROKERS"], "-schema-registry", s.Env["SCHEMA_REGISTRY_URL"])
	cmd.Env = append(os.Environ(), "PENSTOCK_DATABASE_URL="+s.Env["DATABASE_URL"])
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Errorf("reconcile: %v\n%s", err, out)
	} else if !strings.Contains(string(out), "everything adds up") {
		s.Errorf("reconcile says\n%s", out)
	}
}
