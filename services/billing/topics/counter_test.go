package topics_test

import (
	"errors"
	"testing"
	"time"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/schemas/usagev1"
	"penstock.dev/schemas/wire"

	"penstock.dev/services/billing/catalog"
	"penstock.dev/services/billing/metering"
	"penstock.dev/services/billing/topics"
	"penstock.dev/services/internal/kafkatest"
)

// TestNothingIsCountedBeforeTheCatalogue guarantees that events wait until rules.v1 was
// read to its end, for a tenant's calendar is in it; that then all are counted, each
// partition in order; and that a database that is away is waited for.
func TestNothingIsCountedBeforeTheCatalogue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.book.away = 2
	r.send(0, event(1), event(2))
	r.send(1, event(3))
	r.run()
	if err := r.Ready(t.Context()); err == nil {
		t.Error("ready without a catalogue")
	}
	r.broker.CreateTopic(rulesv1.Topic, 1)
	r.put(tenantRecord("acme", 1))
	kafkatest.Eventually(t, func() bool { return r.book.counted() == 3 }, "the events to be counted")
	if known := r.book.known(); len(known) != 1 || known[0].Tenant == nil || known[0].Tenant.Zone != "Europe/Istanbul" {
		t.Errorf("the catalogue has %+v", known)
	}
	r.book.mu.Lock()
	p := r.book.read[0]
	r.book.mu.Unlock()
	if p.First != 0 || p.Next != 2 || p.At.IsZero() {
		t.Errorf("partition 0 is read to %+v, want to 2", p)
	}
	kafkatest.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, "readiness")
	if got := r.metric("penstock_billing_events_total"); got != 3 {
		t.Errorf("%v events are counted in the metric, want 3", got)
	}
	kafkatest.Eventually(t, func() bool {
		lag, err := r.client.Lag(t.Context(), topics.Group, usagev1.Topic)
		return err == nil && lag[0]+lag[1] == 0
	}, "everything to be committed")
}

// TestRecordsAreSetAside guarantees that what cannot be read, or the books refuse for
// good, goes to a topic of its own with its reason, alone: all else of the batch is
// counted, once, and reading goes on behind it.
func TestRecordsAreSetAside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.CreateTopic(rulesv1.Topic, 1)
	r.book.refuse = func(e metering.Event) error {
		if e.Sequence == 5 {
			return errors.New("no room for this one")
		}
		return nil
	}
	bad := event(4)
	bad.Cost = -1
	records := []*kafkatest.Record{
		{Key: "acme", Value: []byte("not Avro"), Headers: map[string]string{"trace": "t-1"}},
		{Key: "acme", Value: wire.Frame(nil, 4711, []byte("x"))},
		{Key: "acme", Value: r.value(bad)},
		{Key: "acme", Value: r.value(event(1))},
		{Key: "acme", Value: r.value(event(2))},
		{Key: "acme", Value: r.value(event(5))},
		{Key: "acme", Value: r.value(event(6))},
		{Key: "acme", Value: r.value(event(7))},
	}
	for _, rec := range records {
		rec.Topic = usagev1.Topic
	}
	r.broker.Produce(records...)
	r.run()
	kafkatest.Eventually(t, func() bool { return r.metric("penstock_billing_set_aside_total{reason=refused}") == 1 }, "the refused one")
	if got := r.book.counted(); got != 4 {
		t.Errorf("%d events are counted, want 4", got)
	}
	held := map[string]int{}
	for _, h := range r.broker.Consume(topics.Aside) {
		held[h.Headers[topics.HeaderReason]+"@"+h.Headers[topics.HeaderOffset]]++
	}
	for _, want := range []string{"undecodable@0", "unknown_schema@1", "undecodable@2", "refused@5"} {
		if held[want] != 1 || len(held) != 4 {
			t.Fatalf("set aside are %v, want %s among 4", held, want)
		}
	}
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	if p := r.book.read[0]; p.Next != 8 {
		t.Errorf("read to %+v, want to 8", p)
	}
}

// TestCatalogue guarantees what billing is told of each kind, that a tombstone tells of a
// deletion with its version, and that a record that cannot be taken leaves the others: a
// plan with a price that is none among them.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.CreateTopic(rulesv1.Topic, 1)
	r.book.reject = func(c catalog.Change) error {
		if c.ID == "refused" {
			return errors.New("constraint")
		}
		return nil
	}
	upTo, ends := int64(400), time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	limit := int64(1000)
	of := func(kind rulesv1.Kind, id string, version int64) rulesv1.Record {
		return rulesv1.Record{Kind: kind, ID: id, Version: version, Revision: version, ChangedAt: 1}
	}
	plan := of(rulesv1.KindPlan, "gold", 2)
	plan.Plan = &rulesv1.Plan{
		Name: "Gold", Fee: &rulesv1.Fee{Amount: 9900, Currency: "USD", Period: rulesv1.PeriodUnitMonth},
		Included: []rulesv1.Included{{Meter: "api-calls", Units: 100}},
		Overage:  []rulesv1.Overage{{Meter: "api-calls", UpTo: &upTo, UnitPrice: "0.0004"}, {Meter: "api-calls", UnitPrice: "0.00025"}},
	}
	grant := of(rulesv1.KindGrant, "t1", 3)
	grant.Grant = &rulesv1.Grant{Tenant: "acme", Meter: "credits", Units: 100, Priority: 50, GrantedAt: 1, ExpiresAt: &ends, ExpiredUnits: 7, Reason: "order 17"}
	wallet := of(rulesv1.KindWallet, "acme:credits", 4)
	wallet.Wallet = &rulesv1.Wallet{Tenant: "acme", Meter: "credits", GrantedTotal: 93}
	endpoint := of(rulesv1.KindEndpoint, "pay", 5)
	endpoint.Endpoint = &rulesv1.Endpoint{Service: "payments", Method: "POST", Path: "/v1/pay", Cost: 20}
	key := of(rulesv1.KindAPIKey, "acme-1", 6)
	key.APIKey = &rulesv1.APIKey{Tenant: "acme", Digest: make([]byte, 32)}
	quota := of(rulesv1.KindRule, "acme-month", 7)
	quota.Rule = &rulesv1.Rule{
		Name: "API calls a month", Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindQuota, Algorithm: rulesv1.AlgorithmQuota,
		Subject: []rulesv1.Dimension{rulesv1.DimensionTenant}, Limit: &limit, Meter: "api-calls", OnFailure: rulesv1.OnFailureClosed,
		Period: &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar, Zone: "UTC"}, ThresholdsPercent: []int32{80, 100}, Wallet: rulesv1.WalletModeNone,
	}
	r.put(tenantRecord("acme", 1), plan, grant, wallet, endpoint, key, quota, tenantRecord("refused", 8), tenantRecord("last", 9))
	r.broker.Produce(
		&kafkatest.Record{Topic: rulesv1.Topic, Key: "tenant/acme", Headers: map[string]string{rulesv1.HeaderVersion: "10"}},
		&kafkatest.Record{Topic: rulesv1.Topic, Key: "tenant/none", Headers: map[string]string{}},
		&kafkatest.Record{Topic: rulesv1.Topic, Key: "plan/bad", Value: []byte("not Avro")},
	)
	r.run()
	kafkatest.Eventually(t, func() bool { return r.metric("penstock_billing_rules_set_aside_total") == 3 }, "what cannot be taken")
	known := map[string]catalog.Change{}
	for _, c := range r.book.known() {
		known[string(c.Kind)+"/"+c.ID] = c
		if c.Deleted {
			known["deleted/"+c.ID] = c
		}
	}
	if len(known) != 9 || known["deleted/acme"].Version != 10 || known["tenant/last"].Tenant == nil {
		t.Fatalf("known are %+v", known)
	}
	p := known["plan/gold"].Plan
	if p == nil || p.Fee.Minor != 9900 || p.Period != "month" || p.Included["api-calls"] != 100 || len(p.Steps["api-calls"]) != 2 ||
		p.Steps["api-calls"][0].UpTo != 400 || p.Steps["api-calls"][1].Price.String() != "0.00025" {
		t.Errorf("the plan is %+v", p)
	}
	if g := known["grant/t1"].Grant; g == nil || g.Units != 100 || g.Priority != 50 || g.Expired != 7 || g.ExpiresAt.UnixMicro() != ends || g.Reason != "order 17" {
		t.Errorf("the grant is %+v", g)
	}
	if w := known["wallet/acme:credits"].Wallet; w == nil || w.GrantedTotal != 93 {
		t.Errorf("the wallet is %+v", w)
	}
	if e := known["endpoint/pay"].Endpoint; e == nil || e.Cost != 20 || e.Path != "/v1/pay" {
		t.Errorf("the endpoint is %+v", e)
	}
	if k := known["api_key/acme-1"].APIKey; k == nil || k.Tenant != "acme" {
		t.Errorf("the key is %+v", k)
	}
	if q := known["rule/acme-month"].Rule; q == nil || q.Kind != "quota" || q.Limit != 1000 || q.Unit != "month" || len(q.Thresholds) != 2 || q.Subject[0] != "tenant" {
		t.Errorf("the rule is %+v", q)
	}
}
