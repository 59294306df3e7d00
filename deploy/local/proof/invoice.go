package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"penstock.dev/deploy/local/estate"
)

// A bill is a draft invoice, as far as it is looked at.
type bill struct {
	ID, State, Total string
	Lines            []struct {
		Kind, Meter, Amount string
		Units               int64
	}
	Counted []struct {
		Meter                   string
		Consumed, Returned, Net int64
		Lost, Unattributed      int64
	}
}

// units are those of a meter on lines of that kind.
func (b bill) units(kind, meter string) int64 {
	var n int64
	for _, l := range b.Lines {
		if l.Kind == kind && l.Meter == meter {
			n += l.Units
		}
	}
	return n
}

// invoiceIsTheCounters sells reads and exports, gives one of them back, and
// compares the running month's invoice with the counter in Redis.
func invoiceIsTheCounters(ctx context.Context, s *stage) (Finding, error) {
	const reads, exports, heavy, included, meter = 45, 3, 20, 30, "api-calls"
	if err := awayFromMonthsEnd(ctx, "UTC"); err != nil {
		return Finding{}, err
	}
	id := s.named("billed")
	err := s.enforce(ctx,
		object{"plans", id, estate.Object{
			"name": "Proof", "fee": estate.Object{"amount": 1000, "currency": "USD", "period": "month"},
			"included": estate.Object{meter: included}, "overage": []estate.Object{{"meter": meter, "unit_price": "0.01"}},
		}},
		object{"tenants", id, estate.Object{"name": "Billed", "plan": id, "zone": "UTC", "currency": "USD"}},
		object{"rules", id, estate.Object{
			"kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "match": estate.Object{"tenant": id}, "meter": meter,
			"limit": 1000, "period": estate.Object{"unit": "month", "count": 1, "alignment": "calendar", "zone": "UTC"},
		}})
	if err != nil {
		return Finding{}, err
	}
	key, err := s.key(ctx, "billed")
	if err != nil {
		return Finding{}, err
	}
	light, err := s.sendAll(ctx, reads, http.MethodGet, s.Env["GATEWAY_URL"]+"/search/v1/search?q=tea", key)
	if err != nil {
		return Finding{}, err
	}
	big, err := s.sendAll(ctx, exports, http.MethodPost, s.Env["GATEWAY_URL"]+"/export/v1/export", key)
	if err != nil {
		return Finding{}, err
	}
	charged, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": id, "cost": heavy})
	if err != nil {
		return Finding{}, err
	}
	if err := s.Deciders()[0].Refund(ctx, charged); err != nil {
		return Finding{}, err
	}
	got, err := s.Deciders()[0].Decide(ctx, estate.Object{"tenant": id, "cost": 0})
	if err != nil {
		return Finding{}, err
	}
	var counter estate.Limit
	for _, l := range got.Limits {
		if l.RuleID == id {
			counter = l
		}
	}
	invoice, err := s.awaitBill(ctx, id, meter, counter)
	if err != nil {
		return Finding{}, err
	}
	f := judgeBill(invoice, counter, meter, included)
	f.Done = fmt.Sprintf("%d searches of 1 unit and %s of %d through the gateway, %d units more given back; the running month's invoice asked of billing, the counter of a gateway",
		len(light), count(len(big), "export"), heavy, heavy)
	f.Held = f.Held && with(light, http.StatusOK) == reads && with(big, http.StatusOK) == exports && counter.Consumed == reads+(exports+1)*heavy
	return f, nil
}

// awaitBill returns the draft once it has counted as much as the counter, or as it
// is when time is up.
func (s *stage) awaitBill(ctx context.Context, tenant, meter string, want estate.Limit) (bill, error) {
	p, err := s.portalToken(ctx, tenant, "proof")
	if err != nil {
		return bill{}, err
	}
	var last bill
	_ = s.await(ctx, booksWithin, func(ctx context.Context) error {
		id, err := s.invoiceIn(ctx, p.Token, "draft")
		if err != nil {
			return err
		}
		got, err := s.bill(ctx, http.MethodGet, "/v1/invoices/"+url.PathEscape(id), p.Token, nil)
		if err != nil {
			return err
		}
		last = bill{}
		if err := json.Unmarshal(got.body, &last); err != nil {
			return err
		}
		for _, c := range last.Counted {
			if c.Meter == meter && c.Consumed == want.Consumed && c.Returned == want.Refunded {
				return nil
			}
		}
		return fmt.Errorf("invoice %s has not counted all yet", id)
	})
	if last.ID == "" {
		return last, fmt.Errorf("billing shows no draft for %s", tenant)
	}
	return last, ctx.Err()
}

// judgeBill compares an invoice with the counter that it is of.
func judgeBill(b bill, counter estate.Limit, meter string, included int64) Finding {
	net := counter.Consumed - counter.Refunded
	var consumed, returned, lost int64
	for _, c := range b.Counted {
		if c.Meter == meter {
			consumed, returned, lost = c.Consumed, c.Returned, c.Lost+c.Unattributed
		}
	}
	billed := b.units("included", meter) + b.units("usage", meter)
	cents := 1000 + max(0, net-included)
	total := fmt.Sprintf("%d.%02d", cents/100, cents%100)
	want := fmt.Sprintf("consumed %d, given back %d, lost 0; %d units on the lines, USD %s", counter.Consumed, counter.Refunded, net, total)
	got := fmt.Sprintf("consumed %d, given back %d, lost %d; %d units on the lines, USD %s", consumed, returned, lost, billed, b.Total)
	return Finding{
		Expected: "what the counter says: " + want + fmt.Sprintf(" (a fee of 10.00, %d units included, 0.01 each beyond)", included),
		Measured: "the draft says: " + got,
		Badges: []Badge{
			{"counter", fmt.Sprintf("%d − %d", counter.Consumed, counter.Refunded), Plain},
			{"invoice", fmt.Sprintf("%d − %d", consumed, returned), Good},
			{"total", "USD " + b.Total, Good},
			{"lost", fmt.Sprint(lost), Good},
		},
		Held: got == want && net > included && counter.Refunded > 0,
	}
}
