package usage_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.dev/schemas/usagev1"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// TestEvent guarantees every field of an event, as any reader decodes it: what
// was decided, by which rule, for whom, and where each quota stands with the
// rule as it is now.
func TestEvent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay/{id}", Cost: 2})
	d.rate("burst", 10)
	d.quota("month", 1000, nil)
	d.quota("try", 1, func(r *rule.Rule) { r.Mode, r.Meter, r.Thresholds = rule.Shadow, "trial", rule.Thresholds{} })
	u := d.told(decide.Query{
		Tenant: "acme", Application: "web", User: "u1", APIKey: "k1", Address: address,
		Service: "payments", Method: "POST", Path: "/v1/pay/17",
	})
	u.Status, u.Latency, u.KeyDigest, u.Labels = 502, 1500*time.Microsecond, sha256.Sum256([]byte("secret")), `{"region":"eu"}`
	u.Upstream = decide.Upstream{Reached: true, Status: 500, Took: 20 * time.Millisecond}

	r := start(t, newCluster(), &registry{}, nil)
	r.Record(u)
	r.until("an event", func() bool { return r.cluster.count() == 1 })
	got := r.cluster.events(t, r.registry)[0]
	start, end := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	digest := sha256.Sum256([]byte("secret"))
	want := usagev1.Event{
		EventID: u.ID, DecisionID: u.ID, TS: t0.UnixMicro(), StreamID: got.StreamID, Sequence: 1,
		Decision: usagev1.DecisionShadowDeny, Status: 502, Tenant: "acme", Application: "web", User: "u1", APIKey: "k1",
		APIKeyHash: digest[:16], ClientAddress: "203.0.113.9", Service: "payments", Endpoint: "pay", Method: "POST", PathTemplate: "/v1/pay/{id}",
		RuleID: "try", Algorithm: "quota", Cost: 2, LatencyUS: 1500, GatewayID: "gw-1", RulesVersion: 4,
		Upstream: &usagev1.Upstream{Status: 500, DurationUS: 20_000},
		Counters: []usagev1.Counter{
			{
				Key: "{t:acme}:e:quota:t:api-calls:g:month*1:1793491200000000", Observed: true, PeriodStart: start, PeriodEnd: end,
				Limit: 1000, Units: 2, Consumed: 2, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce, Meter: "api-calls",
				RuleID: "month", RuleVersion: 3, ThresholdsPercent: []int32{80, 100}, ThresholdsLeft: []int64{10},
			},
			{
				Key: "{t:acme}:s:quota:t:trial:g:month*1:1793491200000000", Observed: true, PeriodStart: start, PeriodEnd: end,
				Limit: 1, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeShadow, Meter: "trial", RuleID: "try", RuleVersion: 3,
			},
		},
		LabelsJSON: `{"region":"eu"}`,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if key := r.cluster.all()[0].Key; string(key) != "acme" {
		t.Errorf("key %q, want the tenant", key)
	}
}

// TestVerdicts guarantees that each verdict of the domain is the same word on
// the topic, and what an event says where the store did not decide.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	r := start(t, newCluster(), &registry{}, nil)
	verdicts := []decide.Verdict{
		decide.VerdictAllow, decide.VerdictDeny, decide.VerdictShadowDeny, decide.VerdictDegradedAllow, decide.VerdictDegradedDeny, decide.VerdictBlocked,
	}
	for _, v := range verdicts {
		u := event(1)
		u.Verdict = v
		r.Record(u)
	}
	d := newDesk(t)
	d.quota("month", 1000, nil)
	d.down = true
	owed := int64(7)
	r.Record(d.told(decide.Query{Tenant: "tenant-1", Cost: &owed}))
	r.until("all events", func() bool { return r.cluster.count() == len(verdicts)+1 })
	events := r.cluster.events(t, r.registry)
	for i, v := range verdicts {
		if got := events[i].Decision.String(); got != string(v) {
			t.Errorf("%s is told as %s", v, got)
		}
	}
	last := events[len(verdicts)]
	if c := last.Counters[0]; last.Decision != usagev1.DecisionDegradedAllow || c.Observed || c.Units != 7 || c.Consumed != 0 || c.PeriodStart == 0 {
		t.Errorf("a degraded pass: %v %+v", last.Decision, c)
	}
}

// TestAnonymous guarantees that an event without a tenant lies under its
// client's address, as the event tells it: in text, or hashed under a secret.
func TestAnonymous(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("203.0.113.9"))
	for _, tt := range []struct {
		secret  string
		address netip.Addr
		want    string
	}{
		{"", address, "203.0.113.9"},
		{"", netip.MustParseAddr("2001:db8:1:2::"), "2001:db8:1:2::"},
		{"", netip.Addr{}, ""},
		{secret, address, "h:" + hex.EncodeToString(mac.Sum(nil))},
		{secret, netip.Addr{}, ""},
	} {
		r := start(t, newCluster(), &registry{}, func(c *usage.Config) { c.Secret = tt.secret })
		for range 3 { // also where a hash is used again
			u := event(1)
			u.Tenant, u.Address = "", tt.address
			r.Record(u)
		}
		r.until("three events", func() bool { return r.cluster.count() == 3 })
		for i, e := range r.cluster.events(t, r.registry) {
			if key := r.cluster.all()[i].Key; e.ClientAddress != tt.want || string(key) != tt.want {
				t.Errorf("%v: address %q, key %q; want %q", tt.address, e.ClientAddress, key, tt.want)
			}
		}
		_ = r.stop()
	}
}

// TestBounds guarantees that no event is lost because of what came in: what is
// beyond the bounds of usage.v1 is cut, said to be cut, and all readers take it.
func TestBounds(t *testing.T) {
	t.Parallel()
	r := start(t, newCluster(), &registry{}, nil)
	told := func(change func(*decide.Usage)) usagev1.Event {
		t.Helper()
		before := r.cluster.count()
		u := event(1)
		if change != nil {
			change(&u)
		}
		r.Record(u)
		r.until("the event", func() bool { return r.cluster.count() == before+1 })
		for _, e := range r.cluster.events(t, r.registry) {
			if e.EventID == usagev1.UUID(u.ID) {
				return e
			}
		}
		t.Fatal("another event came")
		return usagev1.Event{}
	}
	cuts := func() float64 { return r.metric("cut_total") }

	if e := told(nil); cuts() != 0 || e.Upstream != nil || len(e.APIKeyHash) != 0 {
		t.Errorf("an ordinary event is cut, or has what it should not: %+v", e)
	}
	if e := told(func(u *decide.Usage) { u.Method = strings.Repeat("M", 33) }); e.Method != strings.Repeat("M", 32) || cuts() != 1 {
		t.Errorf("method %q, %v cut", e.Method, cuts())
	}
	if e := told(func(u *decide.Usage) { u.Template = "/" + strings.Repeat("ü", 512) }); e.PathTemplate != "/"+strings.Repeat("ü", 511) || cuts() != 2 {
		t.Errorf("template of %d bytes, %v cut", len(e.PathTemplate), cuts())
	}
	e := told(func(u *decide.Usage) {
		u.Status, u.Latency, u.Upstream = 999, -time.Second, decide.Upstream{Reached: true, Status: 42, Took: -1}
	})
	if e.Status != 599 || e.LatencyUS != 0 || e.Upstream.Status != 599 || e.Upstream.DurationUS != 0 {
		t.Errorf("numbers of nowhere: %+v %+v", e, e.Upstream)
	}

	// names that are nothing but escapes make keys of three times their length
	d := newDesk(t)
	d.quota("month", 1000, func(r *rule.Rule) { r.Subject = rule.Tenant | rule.Application | rule.User | rule.APIKey })
	name := strings.Repeat("%", 256)
	e = told(func(u *decide.Usage) {
		*u = d.told(decide.Query{Tenant: name, Application: name, User: name, APIKey: "k"})
	})
	if key := e.Counters[0].Key; len(key) > 2048 || !strings.HasPrefix(key, "{t:%25%25") || cuts() != 3 {
		t.Errorf("a key of %d bytes %.20s, %v cut", len(key), key, cuts())
	}
	other := told(func(u *decide.Usage) {
		*u = d.told(decide.Query{Tenant: name, Application: name, User: name[1:] + "a", APIKey: "k"})
	})
	if other.Counters[0].Key == e.Counters[0].Key {
		t.Error("two counters have one key")
	}

	// a hundred meters, every other one in shadow
	d = newDesk(t)
	for i := range 100 {
		d.quota(fmt.Sprintf("month-%02d", i), 1000, func(r *rule.Rule) {
			r.Meter = fmt.Sprintf("meter-%d", i)
			if i%2 == 0 {
				r.Mode = rule.Shadow
			}
		})
	}
	e = told(func(u *decide.Usage) { *u = d.told(decide.Query{Tenant: "acme"}) })
	enforced := 0
	for _, c := range e.Counters {
		if c.Mode == usagev1.ModeEnforce {
			enforced++
		}
	}
	if len(e.Counters) != 64 || enforced != 50 || cuts() != 5 {
		t.Errorf("%d counters, %d enforced, %v cut", len(e.Counters), enforced, cuts())
	}

	// all of it at once
	d = newDesk(t)
	for i := range 64 {
		d.quota(fmt.Sprintf("month-%02d", i), 1000, func(r *rule.Rule) {
			r.Meter, r.Subject = fmt.Sprintf("meter-%d", i), rule.Tenant|rule.Application|rule.User
		})
	}
	q := decide.Query{Tenant: name, Application: name, User: name}
	e = told(func(u *decide.Usage) { *u = d.told(q); u.Labels = `{"a":"` + strings.Repeat("b", 8000) + `"}` })
	if len(e.Counters) < 20 || e.LabelsJSON != "" || cuts() != 6 {
		t.Errorf("%d counters, labels %.10q, %v cut", len(e.Counters), e.LabelsJSON, cuts())
	}
}

// ordinary is what there is to tell of a decision under a rate and a quota.
func ordinary(t testing.TB) decide.Usage {
	d := newDesk(t)
	d.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Path: "/v1/pay/{id}", Cost: 1})
	d.rate("acme-burst", 1000)
	d.quota("acme-month", 1_000_000, nil)
	u := d.told(decide.Query{
		Tenant: "acme", Application: "web", User: "u1", APIKey: "acme-1", Address: address, Service: "payments", Method: "POST", Path: "/v1/pay/17",
	})
	u.Latency, u.KeyDigest = time.Millisecond, sha256.Sum256([]byte("secret"))
	return u
}

// TestNoAllocation guarantees that telling of a decision costs no memory, with
// hashed addresses and without.
func TestNoAllocation(t *testing.T) {
	for _, secret := range []string{"", "0123456789abcdef"} {
		r := newRig(t, newCluster(), &registry{}, func(c *usage.Config) { c.Secret = secret })
		u := ordinary(t)
		u.Labels = `{"region":"eu"}`
		r.Record(u)
		if n := testing.AllocsPerRun(20_000, func() { r.Record(u) }); n > tolerated {
			t.Errorf("secret %q: %v allocations an event, want none", secret, n)
		}
		if lost := r.metric("lost_total", "memory_full"); lost != 0 {
			t.Errorf("%v events were lost: nothing was measured", lost)
		}
	}
}

// BenchmarkRecord measures what an event costs until it lies in memory as it is
// sent, the ring included.
func BenchmarkRecord(b *testing.B) {
	for _, bm := range []struct{ name, secret string }{{"plain", ""}, {"hashed", "0123456789abcdef"}} {
		b.Run(bm.name, func(b *testing.B) {
			r := newRig(b, newCluster(), &registry{}, func(c *usage.Config) { c.Secret = bm.secret })
			u := ordinary(b)
			b.ReportAllocs()
			for i := range b.N {
				if i%10_000 == 0 {
					r.Forget()
				}
				r.Record(u)
			}
			if lost := r.metric("lost_total", "memory_full"); lost > 0 {
				b.Fatalf("%v events were lost", lost)
			}
		})
	}
}

// BenchmarkSend measures what an event costs from the request path until a
// Kafka that is nothing but a function has it.
func BenchmarkSend(b *testing.B) {
	r := start(b, newCluster(), &registry{}, nil)
	r.cluster.set(func() { r.cluster.forgetful = true })
	u := ordinary(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		for i%1000 == 0 && r.metric("buffer_bytes") > 8<<20 {
			runtime.Gosched()
		}
		r.Record(u)
	}
	r.until("all events", func() bool { return r.metric("acknowledged_total") == float64(b.N) })
}

// TestMemoryIsNotShared guarantees that an event stays what it was when the
// memory it was made in is used for the next ones.
func TestMemoryIsNotShared(t *testing.T) {
	t.Parallel()
	r := start(t, newCluster(), &registry{}, nil)
	r.cluster.pause()
	var want bytes.Buffer
	for i := range 500 {
		u := event(i)
		u.Tenant, u.Address = "", netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		fmt.Fprintln(&want, u.Address)
		r.Record(u)
	}
	r.cluster.resume()
	r.until("all events", func() bool { return r.cluster.count() == 500 })
	seen := map[string]bool{}
	for _, e := range r.cluster.events(t, r.registry) {
		seen[e.ClientAddress] = true
	}
	for line := range strings.Lines(want.String()) {
		if !seen[strings.TrimSpace(line)] {
			t.Fatalf("%s is not told", line)
		}
	}
}

// TestCorrections guarantees what an event tells of a refund and of a
// settlement: an id of its own and the decision it corrects, no status, what
// became of every counter that sells units, as absolute totals with the rule as
// it was when it was decided, and the dimensions of the decision. A wallet that
// never resets has no period.
func TestCorrections(t *testing.T) {
	t.Parallel()
	d := &moving{desk: newDesk(t)}
	d.rate("burst", 10)
	d.quota("month", 1000, nil)
	d.put(decide.WalletKind, "acme:credits", &decide.Wallet{Tenant: "acme", Meter: "credits", Granted: 500})
	d.put(decide.RuleKind, "purse", &rule.Rule{
		ID: "purse", Version: 4, Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Subject: rule.Tenant,
		Meter: "credits", Wallet: rule.Prepaid, OnFailure: rule.Closed,
	})
	s := decide.NewService(d.book, d, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	five := int64(5)
	decision, err := s.Decide(t.Context(), decide.Query{
		Tenant: "acme", User: "u1", Address: address, Service: "payments", Method: "POST", Cost: &five,
	})
	receipt, ok := decision.Receipt()
	if err != nil || !ok {
		t.Fatalf("%+v %v %v", decision, ok, err)
	}
	d.quota("month", 1, nil) // what the rule is by now does not matter
	refund, err := s.Refund(t.Context(), receipt, "f-1", 2)
	if err != nil {
		t.Fatal(err)
	}
	settlement, err := s.Settle(t.Context(), receipt, 9)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, newCluster(), &registry{}, nil)
	for _, c := range []*decide.Correction{&refund, &settlement} {
		u, ok := c.Usage()
		if !ok {
			t.Fatal("nothing to tell")
		}
		r.Record(u)
	}
	r.until("both events", func() bool { return r.cluster.count() == 2 })
	events := r.cluster.events(t, r.registry)
	start, end := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	counters := func(units, consumed, refunded int64) []usagev1.Counter {
		return []usagev1.Counter{
			{
				Key: "{t:acme}:e:quota:t:api-calls:g:month*1:1793491200000000", Observed: true, PeriodStart: start, PeriodEnd: end,
				Limit: 1000, Units: units, Consumed: consumed, Refunded: refunded, Kind: usagev1.CounterKindQuota, Mode: usagev1.ModeEnforce,
				Meter: "api-calls", RuleID: "month", RuleVersion: 3, ThresholdsPercent: []int32{80, 100}, ThresholdsLeft: []int64{10},
			},
			{
				Key: "{t:acme}:e:wallet:t:credits:g", Observed: true, Limit: 500, Units: units, Consumed: consumed, Refunded: refunded,
				Kind: usagev1.CounterKindWallet, Mode: usagev1.ModeEnforce, Meter: "credits", RuleID: "purse", RuleVersion: 4,
			},
		}
	}
	for i, want := range []usagev1.Event{
		{Decision: usagev1.DecisionRefund, EventID: refund.EventID, Cost: 2, RefundID: "f-1", Counters: counters(-2, 5, 2)},
		{Decision: usagev1.DecisionSettle, EventID: settlement.EventID, Cost: 9, Counters: counters(4, 9, 2)},
	} {
		want.DecisionID, want.TS, want.StreamID, want.Sequence = decision.ID, t0.UnixMicro(), events[i].StreamID, int64(i+1)
		want.Tenant, want.User, want.ClientAddress, want.Service, want.Method = "acme", "u1", "203.0.113.9", "payments", "POST"
		want.GatewayID, want.RulesVersion = "gw-1", 5
		if diff := cmp.Diff(want, events[i], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if err := events[i].Validate(); err != nil {
			t.Error(err)
		}
	}
}

// A moving store lets everything pass, and gives back or charges what it is
// asked to.
type moving struct{ *desk }

// Decide is the store.
func (m *moving) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	a := limit.Answer{Allowed: true, Charged: true, Now: t0, Results: make([]limit.Result, len(d.Charges))}
	for i := range a.Results {
		a.Results[i].Passed = true
	}
	return a, nil
}

// Correct is the store.
func (m *moving) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	a := limit.CorrectionAnswer{Effect: limit.Corrected, Now: t0, Units: c.Settle - c.Cost, RefundedTotal: 2}
	moved := limit.Moved{Units: a.Units, Totals: limit.Totals{Consumed: c.Settle, Refunded: 2}}
	if c.Refund != "" {
		a.Units, moved = c.Units, limit.Moved{Units: -c.Units, Totals: limit.Totals{Consumed: c.Cost, Refunded: c.Units}}
	}
	for range c.Items {
		a.Items = append(a.Items, moved)
	}
	return a, nil
}
