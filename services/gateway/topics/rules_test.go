package topics_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.dev/schemas"
	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/internal/admin"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// TestFollow guarantees that what the log says is in force: nothing before it
// has been read to its end, then all of it, and every later change at once.
func TestFollow(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newClosedLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), a.rule("b", 7), a.rule("a", 6), a.gone("rule/b"))
	r := start(t, setup{log: l, registry: reg})
	if err := r.Ready(t.Context()); err == nil || r.isServing() {
		t.Errorf("before the log was read: ready %v, serving %v", err, r.isServing())
	}
	l.open()
	r.ready()
	if !r.isServing() {
		t.Error("caught up and not serving")
	}
	want(t, r, map[string]int64{"a": 6})
	l.append(a.rule("c", 9))
	r.until("rule c", func() bool { return r.limits()["c"] == 9 })
	l.append(a.gone("rule/a"))
	r.until("no rule a", func() bool { return r.limits()["a"] == 0 })
	if got := r.book.Current().Revision(); got != a.version {
		t.Errorf("revision %d, want %d", got, a.version)
	}
}

func want(t *testing.T, r *rig, limits map[string]int64) {
	t.Helper()
	if diff := cmp.Diff(limits, r.limits()); diff != "" {
		t.Errorf("in force (-want +got):\n%s", diff)
	}
}

// TestC4LateRecords guarantees that records that come late, in a later batch or
// the same one, change nothing.
func TestC4LateRecords(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	v1, v2, v3 := a.rule("a", 1), a.rule("a", 2), a.rule("a", 3)
	gone := a.gone("rule/a")
	late := a.rule("marker", 1)
	l.append(v3, v2)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	want(t, r, map[string]int64{"a": 3})
	l.append(v1, v2, gone, v3, late)
	r.until("the marker", func() bool { return r.limits()["marker"] == 1 })
	want(t, r, map[string]int64{"marker": 1})
}

// TestSetAside guarantees that a record that cannot be read or served costs its
// own key and nothing else: the last good one stays, what follows applies, and
// it is counted by its reason.
func TestSetAside(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		reason string
		record func(a *author) kafka.Record
	}{
		{"bytes that are no record", "undecodable", func(*author) kafka.Record { return garbage("rule/a") }},
		{"no bytes", "undecodable", func(*author) kafka.Record { return kafka.Record{Key: []byte("rule/a"), Value: []byte{}} }},
		{"another object's record", "undecodable", func(a *author) kafka.Record {
			r := a.rule("b", 1)
			r.Key = []byte("rule/a")
			return r
		}},
		{"a schema that nobody knows", "undecodable", func(a *author) kafka.Record {
			r := a.rule("a", 1)
			r.Value[4] = 99
			return r
		}},
		{"a feature that this version does not know", "too_new", func(a *author) kafka.Record {
			n := int64(1)
			return a.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: "a", Requires: []string{"match.moon-phase"}, Rule: &rulesv1.Rule{
				Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindRate, Algorithm: rulesv1.AlgorithmGCRA,
				Meter: "m", Limit: &n, Burst: &n, WindowUS: 1e6, OnFailure: rulesv1.OnFailureOpen, Wallet: rulesv1.WalletModeNone,
			}})
		}},
		{"a condition that is none", "invalid", func(a *author) kafka.Record {
			return a.rule("a", 1, func(r *rulesv1.Rule) { r.Condition = "cost > " })
		}},
		{"a condition about what nobody knows", "invalid", func(a *author) kafka.Record {
			return a.rule("a", 1, func(r *rulesv1.Rule) { r.Condition = "moon == 'full'" })
		}},
		{"a lease of more than passes at once", "invalid", func(a *author) kafka.Record {
			return a.rule("a", 1, func(r *rulesv1.Rule) { r.Lease = &rulesv1.Lease{Units: 2, TTLUS: 1} })
		}},
		{"a zone that nobody has heard of", "unsupported", func(a *author) kafka.Record {
			return a.rule("a", 1, func(r *rulesv1.Rule) {
				r.Kind, r.Algorithm, r.Burst, r.WindowUS = rulesv1.RuleKindQuota, rulesv1.AlgorithmQuota, nil, 0
				r.Subject = []rulesv1.Dimension{rulesv1.DimensionTenant}
				r.Period = &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar, Zone: "Mars/Olympus"}
			})
		}},
		{"a deletion whose version cannot be read", "undecodable", func(a *author) kafka.Record {
			rec := a.gone("rule/a")
			rec.Headers = []kafka.Header{{Key: rulesv1.HeaderVersion, Value: []byte("abc")}}
			return rec
		}},
		{"a quota that belongs to nobody", "invalid", func(a *author) kafka.Record {
			return a.rule("a", 1, func(r *rulesv1.Rule) {
				r.Kind, r.Algorithm, r.Burst, r.WindowUS = rulesv1.RuleKindQuota, rulesv1.AlgorithmQuota, nil, 0
				r.Period = &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar}
			})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			reg, l := &registry{}, newLog()
			a := newAuthor(t, reg)
			l.append(a.rule("a", 5))
			r := start(t, setup{log: l, registry: reg})
			r.ready()
			l.append(tt.record(a), a.rule("b", 7))
			r.until("rule b", func() bool { return r.limits()["b"] == 7 })
			want(t, r, map[string]int64{"a": 5, "b": 7})
			if got := r.metric("penstock_gateway_rules_poison_total", tt.reason); got != 1 {
				t.Errorf("poison{%s} reads %v, want 1\n%s", tt.reason, got, r.lines)
			}
			if got := r.metric("penstock_gateway_rules_set_aside"); got != 1 {
				t.Errorf("%v keys set aside, want 1", got)
			}
			if err := r.Ready(t.Context()); err != nil {
				t.Errorf("Ready = %v: a bad record costs its own key", err)
			}
			if n := strings.Count(r.lines.String(), "record set aside"); n != 1 || !strings.Contains(r.lines.String(), `"key":"rule/a"`) {
				t.Errorf("said %d times:\n%s", n, r.lines)
			}
			l.append(a.rule("a", 6))
			r.until("rule a again", func() bool { return r.limits()["a"] == 6 })
			if got := r.metric("penstock_gateway_rules_set_aside"); got != 0 {
				t.Errorf("%v keys set aside, want 0", got)
			}
		})
	}
}

// TestVersionOfAPoisonRecordIsSeen guarantees that a record that is older than
// one that was set aside does not come into force behind it.
func TestVersionOfAPoisonRecordIsSeen(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	first, late := a.rule("a", 5), a.rule("a", 6)
	bad := a.rule("a", 7)
	bad.Value = []byte("nonsense") // its header still says its version
	l.append(first)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	l.append(bad, late, a.rule("b", 1))
	r.until("rule b", func() bool { return r.limits()["b"] == 1 })
	want(t, r, map[string]int64{"a": 5, "b": 1})
}

// TestVersionOfANewerRecordIsSeen guarantees the same of a record that this
// version is too old for, which says its version itself.
func TestVersionOfANewerRecordIsSeen(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	first, late := a.rule("a", 5), a.rule("a", 6)
	n := int64(7)
	newer := a.put(rulesv1.Record{Kind: rulesv1.KindRule, ID: "a", Requires: []string{"match.moon-phase"}, Rule: &rulesv1.Rule{
		Enabled: true, Mode: rulesv1.ModeEnforce, Kind: rulesv1.RuleKindRate, Algorithm: rulesv1.AlgorithmGCRA,
		Meter: "m", Limit: &n, Burst: &n, WindowUS: 1e6, OnFailure: rulesv1.OnFailureOpen, Wallet: rulesv1.WalletModeNone,
	}})
	newer.Headers = nil
	l.append(first)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	l.append(newer, late, a.rule("b", 1))
	r.until("rule b", func() bool { return r.limits()["b"] == 1 })
	want(t, r, map[string]int64{"a": 5, "b": 1})
}

// TestDeletedIsNotAside guarantees that a key whose object was deleted after a
// record of it was set aside is done with.
func TestDeletedIsNotAside(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	l.append(garbage("rule/a"))
	r.until("a set aside", func() bool { return r.metric("penstock_gateway_rules_set_aside") == 1 })
	l.append(a.gone("rule/a"))
	r.until("a done with", func() bool { return r.metric("penstock_gateway_rules_set_aside") == 0 })
	want(t, r, map[string]int64{})
}

// TestKeysOfOthers guarantees that records under keys that name nothing here
// are passed over: those of kinds to come without alarm, nonsense with it.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(
		kafka.Record{Key: []byte("hologram/h1"), Value: []byte("of a later version")},
		kafka.Record{Key: []byte("no key at all"), Value: []byte("x")},
		kafka.Record{Value: []byte("x")},
		a.put(rulesv1.Record{Kind: rulesv1.KindPlan, ID: "gold", Plan: &rulesv1.Plan{Name: "Gold"}}),
		a.put(rulesv1.Record{Kind: rulesv1.KindUser, ID: "u1", User: &rulesv1.User{Tenant: "acme"}}),
		a.rule("a", 5),
	)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	want(t, r, map[string]int64{"a": 5})
	if got := r.metric("penstock_gateway_rules_poison_total", "key"); got != 2 {
		t.Errorf("poison{key} reads %v, want 2", got)
	}
	for kind, n := range map[string]float64{"UNKNOWN": 3, "plan": 1, "user": 1, "rule": 1, "tenant": 0} {
		if got := r.metric("penstock_gateway_rules_records_total", kind); got != n {
			t.Errorf("records{%s} reads %v, want %v", kind, got, n)
		}
	}
}

// TestCatalogue guarantees that every kind of object that decides something
// arrives whole.
func TestCatalogue(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	digest := [32]byte{1, 2, 3}
	anchor := t0.UnixMicro()
	l.append(
		a.put(rulesv1.Record{Kind: rulesv1.KindTenant, ID: "acme", Tenant: &rulesv1.Tenant{
			Name: "Acme", Plan: "gold", Zone: "Europe/Istanbul", Anchor: &anchor,
			PreviousPeriods: []rulesv1.FormerPeriod{{Zone: "UTC", Until: anchor}},
		}}),
		a.put(rulesv1.Record{Kind: rulesv1.KindAPIKey, ID: "k1", APIKey: &rulesv1.APIKey{
			Tenant: "acme", Application: "web", User: "u1", Digest: digest[:],
		}}),
		a.put(rulesv1.Record{Kind: rulesv1.KindService, ID: "payments", Service: &rulesv1.Service{
			Name: "Payments", Upstream: "http://127.0.0.1:9001", Hosts: []string{"pay.example.com"}, PathPrefix: "/payments", StripPrefix: true,
			Cors: &rulesv1.Cors{AllowedOrigins: []string{"*"}}, ConnectTimeoutUS: 1e6, ResponseTimeoutUS: 2e6, IdleTimeoutUS: 3e6,
		}}),
		a.put(rulesv1.Record{Kind: rulesv1.KindEndpoint, ID: "pay", Endpoint: &rulesv1.Endpoint{
			Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 3, RefundOn: []string{"5xx", "timeout"},
		}}),
	)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	s := r.book.Current()
	if got := s.Tenant("acme"); got == nil || got.Plan != "gold" || got.Zone.String() != "Europe/Istanbul" || !got.Anchor.Equal(t0) ||
		len(got.Previous) != 1 || !got.Previous[0].Until.Equal(t0) {
		t.Errorf("tenant %+v", got)
	}
	if got, _ := s.Key(digest); got != (decide.Key{ID: "k1", Tenant: "acme", Application: "web", User: "u1", Digest: digest}) {
		t.Errorf("key %+v", got)
	}
	svc, rest, ok := s.Route("pay.example.com", "/payments/v1/pay/7")
	wantService := &decide.ServiceDef{
		ID: "payments", Name: "Payments", Upstream: "http://127.0.0.1:9001", Hosts: []string{"pay.example.com"},
		PathPrefix: "/payments", StripPrefix: true, CORS: &decide.CORS{AllowedOrigins: []string{"*"}},
		ConnectTimeout: time.Second, ResponseTimeout: 2 * time.Second, IdleTimeout: 3 * time.Second,
	}
	if diff := cmp.Diff(wantService, svc); !ok || diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	wantEndpoint := &decide.EndpointDef{
		ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay/{id}", Cost: 3, RefundOn: []string{"5xx", "timeout"},
	}
	if diff := cmp.Diff(wantEndpoint, s.Endpoint("payments", "POST", rest)); diff != "" {
		t.Errorf("endpoint (-want +got):\n%s", diff)
	}
	for kind, n := range map[string]float64{"tenant": 1, "api_key": 1, "service": 1, "endpoint": 1, "rule": 0, "wallet": 0} {
		if got := r.metric("penstock_gateway_rules_objects", kind); got != n {
			t.Errorf("objects{%s} reads %v, want %v", kind, got, n)
		}
	}
}

// TestRuleOfEveryKind guarantees that a rule of every algorithm arrives whole:
// the store is asked for exactly what its record says, and a prepaid wallet for
// what its tenant was granted. A wallet record that comes again changes
// nothing, an older one neither.
func TestRuleOfEveryKind(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	tenant := []rulesv1.Dimension{rulesv1.DimensionTenant}
	window := func(v rulesv1.Algorithm) func(*rulesv1.Rule) {
		return func(r *rulesv1.Rule) { r.Algorithm, r.Burst, r.Subject = v, nil, tenant }
	}
	queue := func(r *rulesv1.Rule) {
		r.Algorithm, r.Subject, r.MaxDelayUS, r.OnFailure = rulesv1.AlgorithmLeakyBucket, tenant, 2e6, rulesv1.OnFailureLocal
	}
	prepaid := func(r *rulesv1.Rule) {
		r.Kind, r.Algorithm, r.Wallet = rulesv1.RuleKindWallet, rulesv1.AlgorithmOverdraftWallet, rulesv1.WalletModePrepaid
		r.Subject, r.Limit, r.Burst, r.WindowUS, r.Meter = tenant, nil, nil, 0, "credits"
	}
	renewable := func(r *rulesv1.Rule) {
		r.Kind, r.Algorithm, r.Wallet = rulesv1.RuleKindWallet, rulesv1.AlgorithmOverdraftWallet, rulesv1.WalletModeRenewable
		r.Subject, r.Burst, r.WindowUS = tenant, nil, 0
		r.Period = &rulesv1.Period{Unit: rulesv1.PeriodUnitMonth, Count: 1, Alignment: rulesv1.AlignmentCalendar}
	}
	grant := func(n int64) kafka.Record {
		return a.put(rulesv1.Record{Kind: rulesv1.KindWallet, ID: "acme:credits", Wallet: &rulesv1.Wallet{Tenant: "acme", Meter: "credits", GrantedTotal: n}})
	}
	first, second := grant(100), grant(300)
	l.append(
		second, first, second, first,
		a.rule("bucket", 10, func(r *rulesv1.Rule) { r.Algorithm = rulesv1.AlgorithmTokenBucket }),
		a.rule("counter", 10, window(rulesv1.AlgorithmSlidingWindowCounter)),
		a.rule("fixed", 10, window(rulesv1.AlgorithmFixedWindow)),
		a.rule("log", 10, window(rulesv1.AlgorithmSlidingWindowLog)),
		a.rule("prepaid", 10, prepaid),
		a.rule("queue", 10, queue),
		a.rule("renewable", 10, renewable),
		a.rule("some", 10, func(r *rulesv1.Rule) { r.Condition = `labels["region"] == "eu"` }),
		a.rule("some-more", 10, func(r *rulesv1.Rule) { r.Condition = `labels["region"] == "eu"` }),
	)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	var asked limit.Decision
	s := decide.NewService(r.book, asking{asked: &asked}, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	got := map[string]limit.Charge{}
	d, err := s.Decide(t.Context(), decide.Query{Tenant: "acme", Labels: map[string]string{"region": "eu"}})
	if err != nil || len(d.Limits) != len(asked.Charges) {
		t.Fatalf("%d limits of %d charges: %v", len(d.Limits), len(asked.Charges), err)
	}
	for i, c := range asked.Charges {
		got[d.Limits[i].RuleID] = limit.Charge{Algorithm: c.Algorithm, Limit: c.Limit, Window: c.Window, Burst: c.Burst, MaxDelay: c.MaxDelay}
	}
	wanted := map[string]limit.Charge{
		"bucket":    {Algorithm: rule.TokenBucket, Limit: 10, Window: time.Minute, Burst: 10},
		"counter":   {Algorithm: rule.SlidingWindowCounter, Limit: 10, Window: time.Minute},
		"fixed":     {Algorithm: rule.FixedWindow, Limit: 10, Window: time.Minute},
		"log":       {Algorithm: rule.SlidingWindowLog, Limit: 10, Window: time.Minute},
		"prepaid":   {Algorithm: rule.OverdraftWallet, Limit: 300},
		"queue":     {Algorithm: rule.LeakyBucket, Limit: 10, Window: time.Minute, Burst: 10, MaxDelay: 2 * time.Second},
		"renewable": {Algorithm: rule.OverdraftWallet, Limit: 10},
		"some":      {Algorithm: rule.GCRA, Limit: 10, Window: time.Minute, Burst: 10},
		"some-more": {Algorithm: rule.GCRA, Limit: 10, Window: time.Minute, Burst: 10},
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if d, err = s.Decide(t.Context(), decide.Query{Tenant: "acme"}); err != nil || len(d.Limits) != len(wanted)-2 {
		t.Errorf("without the label %d limits, want %d: %v", len(d.Limits), len(wanted)-2, err)
	}
	if n := r.metric("penstock_gateway_rules_objects", "wallet"); n != 1 {
		t.Errorf("%v wallets in force, want 1", n)
	}
}

// TestLeaseArrives guarantees that a rule's lease is what its record says.
func TestLeaseArrives(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 10, func(r *rulesv1.Rule) { r.Lease = &rulesv1.Lease{Units: 5, TTLUS: 1_500_000} }))
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	var asked limit.Decision
	s := decide.NewService(r.book, asking{asked: &asked}, func() time.Time { return t0 }, decide.NewID, decide.Options{})
	if _, err := s.Decide(t.Context(), decide.Query{Tenant: "acme"}); err != nil {
		t.Fatal(err)
	}
	if want := []rule.Lease{{Units: 5, TTL: 1500 * time.Millisecond}}; !slices.Equal(asked.Leases, want) {
		t.Errorf("%v may be held, want %v", asked.Leases, want)
	}
}

// TestRegistryAway guarantees that a record whose schema cannot be asked for is
// neither lost nor poison: it waits, what came before it is in force, and the
// rest follows when the registry is back.
func TestRegistryAway(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.gone("rule/old"), a.rule("a", 5))
	reg.goAway(errAway)
	r := start(t, setup{log: l, registry: reg})
	r.until("the wait for the registry", func() bool { return r.metric("penstock_gateway_rules_stalled") == 1 })
	if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), errAway.Error()) {
		t.Errorf("Ready = %v, want what is away", err)
	}
	if got := r.metric("penstock_gateway_rules_poison_total", "undecodable"); got != 0 {
		t.Errorf("%v records taken for poison", got)
	}
	reg.goAway(nil)
	r.ready()
	want(t, r, map[string]int64{"a": 5})
}

// TestRegistryAwayLater guarantees that only what needs the registry waits for
// it: what comes before in the same batch is in force, and so is what was.
func TestRegistryAwayLater(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	if _, err := reg.Register(t.Context(), rulesv1.Subject, schemas.RulesV1+" "); err != nil {
		t.Fatal(err)
	}
	reg.goAway(errAway)
	known, unknown := a.rule("b", 7), a.rule("c", 9)
	unknown.Value[4] = 2
	l.append(known, unknown)
	r.until("the wait for the registry", func() bool { return r.metric("penstock_gateway_rules_stalled") == 1 })
	want(t, r, map[string]int64{"a": 5, "b": 7})
	var remark admin.Remark
	if err := r.Ready(t.Context()); !asRemark(err, &remark) || !strings.Contains(string(remark), errAway.Error()) {
		t.Errorf("Ready = %v, want a remark on what is away", err)
	}
	reg.goAway(nil)
	r.ready()
	want(t, r, map[string]int64{"a": 5, "b": 7, "c": 9})
}

// TestSnapshot guarantees that a gateway starts without Kafka and without the
// registry from what it last had, says so, and does not before the log had its
// time.
func TestSnapshot(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), a.rule("b", 7), a.gone("rule/b"))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	r.stop()

	reg.goAway(errAway)
	closed := newClosedLog()
	patient := start(t, setup{dir: dir, log: closed, registry: reg})
	if err := patient.Ready(t.Context()); err == nil || patient.isServing() {
		t.Errorf("before its time: ready %v, serving %v", err, patient.isServing())
	}
	patient.stop()

	r = start(t, setup{dir: dir, log: closed, registry: reg, wait: time.Microsecond})
	<-r.Serving()
	want(t, r, map[string]int64{"a": 5})
	var remark admin.Remark
	if err := r.Ready(t.Context()); !asRemark(err, &remark) || !strings.Contains(string(remark), "serving the snapshot of 20") {
		t.Errorf("Ready = %v, want a remark on the snapshot", err)
	}
	if got := r.metric("penstock_gateway_snapshot_serving"); got != 1 {
		t.Errorf("snapshot_serving reads %v, want 1", got)
	}
	if got := r.book.Current().Revision(); got != a.version {
		t.Errorf("revision %d, want %d: deletions count", got, a.version)
	}
}

// TestStartWithoutRegistry guarantees that a gateway with a snapshot follows the
// log while the registry is away, records of before and of since alike.
func TestStartWithoutRegistry(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	r.stop()
	l.append(a.rule("b", 7))
	reg.goAway(errAway)
	r = start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	want(t, r, map[string]int64{"a": 5, "b": 7})
}

func asRemark(err error, to *admin.Remark) bool {
	remark, ok := err.(admin.Remark) //nolint:errorlint // the check is that it is bare
	*to = remark
	return ok
}

// TestSnapshotYields guarantees that the log takes over from the snapshot as
// soon as it has been read, and that an object that was deleted meanwhile is
// gone although its tombstone is no longer there.
func TestSnapshotYields(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), a.rule("deleted", 9))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	r.stop()

	l.append(a.gone("rule/deleted"), a.rule("a", 6), a.rule("new", 1))
	l.compact(1)
	closed := newClosedLog()
	closed.records = l.records
	r = start(t, setup{dir: dir, log: closed, registry: reg, wait: time.Microsecond})
	<-r.Serving()
	want(t, r, map[string]int64{"a": 5, "deleted": 9})
	closed.open()
	r.ready()
	want(t, r, map[string]int64{"a": 6, "new": 1})
	if got := r.metric("penstock_gateway_snapshot_serving"); got != 0 {
		t.Errorf("snapshot_serving reads %v, want 0", got)
	}
}

// TestSnapshotFollowsChanges guarantees that what is in force gets to the disk
// while the gateway runs, so that it survives a kill.
func TestSnapshotFollowsChanges(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	l.append(a.rule("b", 7))
	r.until("a snapshot with b", func() bool {
		keys, err := topics.SnapshotKeys(dir)
		return err == nil && cmp.Equal(keys, []string{"rule/a", "rule/b"})
	})
	r.until("the time of the snapshot", func() bool { return r.metric("penstock_gateway_snapshot_timestamp_seconds") > 0 })
	if got := r.metric("penstock_gateway_snapshot_failures_total", "write"); got != 0 {
		t.Errorf("%v snapshots failed", got)
	}
}

// TestSnapshotRefused guarantees that a snapshot that was torn, changed or
// written by another version is refused by name and ignored: the log decides.
func TestSnapshotRefused(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	r.stop()
	path := filepath.Join(dir, "rules.snapshot")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 1
	tests := []struct {
		name, says string
		content    []byte
	}{
		{"empty", "begins with", nil},
		{"cut off in its first line", "begins with", good[:10]},
		{"cut off after its first line", "is cut off", good[:30]},
		{"cut off in the middle", "checksum does not match", good[:len(good)-40]},
		{"without its last byte", "checksum does not match", good[:len(good)-1]},
		{"one bit changed", "checksum does not match", flipped},
		{"another version's", "begins with", append([]byte("penstock rules snapshot v2\n"), good[27:]...)},
		{"something else", "begins with", []byte("{}")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "rules.snapshot"), tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
			cold := start(t, setup{dir: dir, log: newClosedLog(), registry: reg, wait: time.Microsecond})
			cold.until("the refusal", func() bool { return cold.metric("penstock_gateway_snapshot_failures_total", "read") == 1 })
			if cold.isServing() || !strings.Contains(cold.lines.String(), "rules.snapshot") || !strings.Contains(cold.lines.String(), tt.says) {
				t.Errorf("serving %v, said:\n%s", cold.isServing(), cold.lines)
			}
			warm := start(t, setup{dir: dir, log: l, registry: reg})
			warm.ready()
			want(t, warm, map[string]int64{"a": 5})
		})
	}
}

// TestSnapshotEveryTear guarantees that there is no length at which a torn
// snapshot passes for a whole one.
func TestSnapshotEveryTear(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), garbage("rule/b"))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.until("the log's end", func() bool { return r.metric("penstock_gateway_rules_caught_up") == 1 })
	l.append(a.rule("b", 1))
	r.ready()
	r.stop()
	good, err := os.ReadFile(filepath.Join(dir, "rules.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	if err := topics.CheckSnapshot(good); err != nil {
		t.Fatalf("the whole one: %v", err)
	}
	for n := range len(good) {
		if topics.CheckSnapshot(good[:n]) == nil {
			t.Errorf("%d of %d bytes pass", n, len(good))
		}
	}
}

// TestFC16 guarantees that one unreadable record stops nothing: undecodable
// bytes under A's key, then rule B, then a tombstone for C.
func TestFC16(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), a.rule("c", 9))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	l.append(garbage("rule/a"), a.rule("b", 7), a.gone("rule/c"))
	r.until("rule b and no rule c", func() bool { return maps.Equal(r.limits(), map[string]int64{"a": 5, "b": 7}) })
	if got := r.metric("penstock_gateway_rules_poison_total", "undecodable"); got != 1 {
		t.Errorf("the poison counter reads %v, want 1", got)
	}
	r.stop()

	l.compact(0) // A's good record is gone, and so is C's tombstone

	t.Run("with its snapshot, a restarted gateway still has A", func(t *testing.T) {
		t.Parallel()
		r := start(t, setup{dir: dir, log: l, registry: reg})
		r.ready()
		want(t, r, map[string]int64{"a": 5, "b": 7})
		r.stop()
		again := start(t, setup{dir: dir, log: l, registry: reg})
		again.ready()
		want(t, again, map[string]int64{"a": 5, "b": 7})
	})
	t.Run("without, it is not ready, names A, and lets nothing pass until A is known", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		own := newLog()
		own.records = append(own.records, l.records...)
		r := start(t, setup{dir: dir, log: own, registry: reg})
		r.until("the log's end", func() bool { return r.metric("penstock_gateway_rules_caught_up") == 1 })
		if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "rule/a") {
			t.Errorf("Ready = %v, want rule/a named", err)
		}
		if got := r.metric("penstock_gateway_rules_missing"); got != 1 || r.isServing() {
			t.Errorf("%v keys missing, serving %v; want 1 and false", got, r.isServing())
		}
		r.stop()
		if _, err := os.Stat(filepath.Join(dir, "rules.snapshot")); err == nil {
			t.Error("what is not complete was saved, and a restart would trust it")
		}
		r = start(t, setup{dir: dir, log: own, registry: reg})
		own.append(a.rule("a", 6))
		r.ready()
		<-r.Serving()
		want(t, r, map[string]int64{"a": 6, "b": 7})
	})
	t.Run("a deleted A is nothing to wait for", func(t *testing.T) {
		t.Parallel()
		own := newLog()
		own.records = append(own.records, l.records...)
		own.append(a.gone("rule/a"))
		r := start(t, setup{log: own, registry: reg})
		r.ready()
		want(t, r, map[string]int64{"b": 7})
	})
}

// TestFC16NeverGood guarantees that a record that was never good, written while
// gateways ran, does not keep them from starting again: they know that there
// was nothing before it. A gateway that does not know is not ready.
func TestFC16NeverGood(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	l.append(garbage("rule/bad"), a.rule("b", 7))
	r.until("rule b", func() bool { return r.limits()["b"] == 7 })
	if err := r.Ready(t.Context()); err != nil {
		t.Errorf("Ready = %v", err)
	}
	r.stop()

	knowing := start(t, setup{dir: dir, log: l, registry: reg})
	knowing.ready()
	want(t, knowing, map[string]int64{"a": 5, "b": 7})
	knowing.stop()

	unknowing := start(t, setup{log: l, registry: reg})
	unknowing.until("the log's end", func() bool { return unknowing.metric("penstock_gateway_rules_caught_up") == 1 })
	if err := unknowing.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "rule/bad") {
		t.Errorf("Ready = %v, want rule/bad named", err)
	}

	l.append(garbage("rule/bad")) // another one: between the two there may have been a good record
	l.compact(1)
	stale := start(t, setup{dir: dir, log: l, registry: reg})
	stale.until("the log's end", func() bool { return stale.metric("penstock_gateway_rules_caught_up") == 1 })
	if err := stale.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "rule/bad") {
		t.Errorf("Ready = %v, want rule/bad named", err)
	}
}

// TestLogMadeAnew guarantees that a topic that was deleted and created again
// takes over when it has been read, and that what was in force stays until then.
func TestLogMadeAnew(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), a.rule("b", 7))
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	l.recreate(a.rule("b", 8), garbage("rule/a"))
	r.until("rule b of the new log", func() bool { return r.limits()["b"] == 8 })
	r.ready()
	want(t, r, map[string]int64{"a": 5, "b": 8}) // a was set aside: the last good one stays
}

// TestLogLost guarantees that a topic that comes back empty opens no gate: what
// was in force stays, with a remark, and whatever is written to the new topic
// goes over it, whatever its version.
func TestLogLost(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5), a.rule("b", 7))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	l.recreate()
	var remark admin.Remark
	r.until("the remark", func() bool {
		return asRemark(r.Ready(t.Context()), &remark) && strings.Contains(string(remark), "was empty")
	})
	want(t, r, map[string]int64{"a": 5, "b": 7})
	fresh := newAuthor(t, reg) // versions begin at 1 again
	l.append(fresh.rule("b", 8))
	r.until("rule b of the new log", func() bool { return r.limits()["b"] == 8 })
	want(t, r, map[string]int64{"a": 5, "b": 8})
	r.stop()

	again := start(t, setup{dir: dir, log: l, registry: reg})
	again.ready()
	want(t, again, map[string]int64{"b": 8}) // a log that says something says everything
}

// TestSnapshotOfANewerVersion guarantees that rules which this version cannot
// serve are not left out when a snapshot is served: it is refused whole.
func TestSnapshotOfANewerVersion(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	r.stop()
	newer := a.rule("a", 6, func(r *rulesv1.Rule) { r.Condition = "cost > 3" })
	if err := topics.PutInSnapshot(dir, "rule/new", newer.Value); err != nil {
		t.Fatal(err)
	}
	r = start(t, setup{dir: dir, log: newClosedLog(), registry: reg, wait: time.Microsecond})
	r.until("the refusal", func() bool {
		err := r.Ready(t.Context())
		return err != nil && strings.Contains(err.Error(), "rule/new")
	})
	if r.isServing() {
		t.Error("a part of the rules is served")
	}
}

// TestFC33Metrics guarantees that no metric of this package grows with the
// objects: the series are the same after a thousand rules of a thousand tenants.
func TestFC33Metrics(t *testing.T) {
	t.Parallel()

	reg, l := &registry{}, newLog()
	a := newAuthor(t, reg)
	r := start(t, setup{log: l, registry: reg})
	r.ready()
	before := r.series()
	for i := range 1000 {
		id := fmt.Sprintf("r%d", i)
		l.append(a.rule(id, 5, func(r *rulesv1.Rule) { r.Match = &rulesv1.Match{Tenant: id} }), garbage("rule/bad"+id), garbage(id))
	}
	r.until("all rules", func() bool { return r.book.Current().Count(decide.RuleKind) == 1000 })
	r.until("all garbage", func() bool { return r.metric("penstock_gateway_rules_poison_total", "key") == 1000 })
	if after := r.series(); after != before {
		t.Errorf("%d series, then %d", before, after)
	}
}

// TestMetricsUnits guarantees that metrics read what their names say, in the
// units that their names say.
func TestMetricsUnits(t *testing.T) {
	t.Parallel()

	dir, reg, l := t.TempDir(), &registry{}, newLog()
	a := newAuthor(t, reg)
	l.append(a.rule("a", 5))
	began := float64(time.Now().UnixMicro()) / 1e6
	r := start(t, setup{dir: dir, log: l, registry: reg})
	r.ready()
	l.append(a.rule("b", 5))
	r.until("a snapshot", func() bool { return r.metric("penstock_gateway_snapshot_writes_total") >= 1 })
	for _, name := range []string{
		"penstock_gateway_rules_last_record_timestamp_seconds", "penstock_gateway_snapshot_timestamp_seconds",
	} {
		if got := r.metric(name); got < began-1 || got > began+patience.Seconds() {
			t.Errorf("%s reads %v, want about %v", name, got, began)
		}
	}
	r.until("the propagation of b", func() bool { return r.metric("penstock_gateway_rules_propagation_seconds") == 1 })
	if got := r.metric("penstock_gateway_rules_revision"); got != 2 {
		t.Errorf("revision reads %v, want 2", got)
	}
}

func (r *rig) series() (n int) {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}
