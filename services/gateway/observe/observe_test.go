package observe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/observe"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// A scripted Decider gives one answer, after a while.
type scripted struct {
	decision   decide.Decision
	correction decide.Correction
	err        error
	takes      time.Duration
}

func (s *scripted) Decide(context.Context, decide.Query) (decide.Decision, error) {
	<-time.After(s.takes) // in virtual time
	return s.decision, s.err
}

func (s *scripted) DecideAll(ctx context.Context, b *decide.Batch) {
	for _, q := range b.Queries {
		d, err := s.Decide(ctx, *q)
		b.Decisions, b.Errs = append(b.Decisions, d), append(b.Errs, err)
	}
}

func (s *scripted) Refund(context.Context, decide.Receipt, string, int64) (decide.Correction, error) {
	return s.correction, s.err
}

func (s *scripted) Settle(context.Context, decide.Receipt, int64) (decide.Correction, error) {
	return s.correction, s.err
}

// page is what a scraper reads.
func page(r *prometheus.Registry) string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// reads is the value of a series on a page, as it is written there.
func reads(t *testing.T, page, series string) float64 {
	t.Helper()
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no series %s on\n%s", series, page)
	return 0
}

// TestDecisions guarantees what each kind of answer counts as, under the names
// that dashboards know.
func TestDecisions(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		give  scripted
		moves []string // series that go up by one; no other does
	}{
		{
			"a pass",
			scripted{decision: decide.Decision{Outcome: decide.Allow}},
			[]string{`ratelimit_decisions_total{outcome="ALLOW"}`},
		},
		{
			"a refusal",
			scripted{decision: decide.Decision{Outcome: decide.Deny, Code: decide.RateLimited}},
			[]string{`ratelimit_decisions_total{outcome="DENY"}`, `penstock_gateway_refusals_total{code="rate-limited"}`},
		},
		{
			"a block",
			scripted{decision: decide.Decision{Outcome: decide.Blocked, Code: decide.BlockedByRule}},
			[]string{`ratelimit_decisions_total{outcome="BLOCKED"}`, `penstock_gateway_refusals_total{code="blocked"}`},
		},
		{
			"a degraded pass",
			scripted{decision: decide.Decision{Outcome: decide.Allow, Degraded: true}},
			[]string{`ratelimit_decisions_total{outcome="ALLOW"}`, "ratelimit_redis_fallback_total", `penstock_gateway_degraded_total{mode="open"}`},
		},
		{
			"a pass that was counted here",
			scripted{decision: decide.Decision{Outcome: decide.Allow, Degraded: true, Local: true}},
			[]string{`ratelimit_decisions_total{outcome="ALLOW"}`, "ratelimit_redis_fallback_total", `penstock_gateway_degraded_total{mode="local"}`},
		},
		{
			"a cost that no store is needed to refuse",
			scripted{decision: decide.Decision{Outcome: decide.Deny, Code: decide.CostExceedsLimit, Degraded: true}},
			[]string{
				`ratelimit_decisions_total{outcome="DENY"}`, `penstock_gateway_refusals_total{code="cost-exceeds-limit"}`,
				"ratelimit_redis_fallback_total", `penstock_gateway_degraded_total{mode="limit"}`,
			},
		},
		{
			"an empty wallet",
			scripted{decision: decide.Decision{Outcome: decide.Deny, Code: decide.WalletEmpty}},
			[]string{`ratelimit_decisions_total{outcome="DENY"}`, `penstock_gateway_refusals_total{code="wallet-empty"}`},
		},
		{
			"a degraded refusal",
			scripted{decision: decide.Decision{Outcome: decide.Deny, Code: decide.StoreUnavailable, Degraded: true}},
			[]string{
				`ratelimit_decisions_total{outcome="DENY"}`, `penstock_gateway_refusals_total{code="store-unavailable"}`,
				"ratelimit_redis_fallback_total", `penstock_gateway_degraded_total{mode="closed"}`,
			},
		},
		{
			"a pass that a shadow rule would have refused",
			scripted{decision: decide.Decision{Outcome: decide.Allow, Limits: []decide.Limit{{Mode: rule.Shadow}}}},
			[]string{`ratelimit_decisions_total{outcome="ALLOW"}`, "penstock_gateway_shadow_refusals_total"},
		},
		{
			"a pass that a shadow rule would have blocked",
			scripted{decision: decide.Decision{Outcome: decide.Allow, ShadowBlocked: true}},
			[]string{`ratelimit_decisions_total{outcome="ALLOW"}`, "penstock_gateway_shadow_refusals_total"},
		},
		{
			"a repeat",
			scripted{decision: decide.Decision{Outcome: decide.Allow, Replayed: true, Limits: []decide.Limit{{Mode: rule.Shadow}}}},
			[]string{`ratelimit_decisions_total{outcome="ALLOW"}`, "penstock_gateway_replays_total"},
		},
		{
			"a cost out of bounds",
			scripted{err: fmt.Errorf("x: %w", decide.ErrCost)},
			[]string{`penstock_gateway_undecided_total{reason="cost"}`},
		},
		{
			"a reused request id",
			scripted{err: fmt.Errorf("x: %w", decide.ErrRequestIDReused)},
			[]string{`penstock_gateway_undecided_total{reason="request_id_reused"}`},
		},
		{
			"anything else",
			scripted{err: errors.New("x")},
			[]string{`penstock_gateway_undecided_total{reason="other"}`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			r := prometheus.NewRegistry()
			d, err := observe.NewDecisions(&tt.give, r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Decide(t.Context(), decide.Query{}); !errors.Is(err, tt.give.err) {
				t.Errorf("Decide = %v, want the decorated one's error", err)
			}
			moved(t, page(r), 1, tt.moves...)
			b := decide.Batch{Queries: []*decide.Query{{}, {}}}
			if d.DecideAll(t.Context(), &b); len(b.Errs) != 2 || !errors.Is(b.Errs[1], tt.give.err) {
				t.Errorf("DecideAll = %v, want the decorated one's errors", b.Errs)
			}
			moved(t, page(r), 3, tt.moves...)
		})
	}
}

var counts = regexp.MustCompile(`(?m)^((?:ratelimit|penstock)_\w+_total(?:\{[^}]*\})?) (\S+)$`)

// moved checks that of all counters these read n, and the others 0.
func moved(t *testing.T, page string, n int, series ...string) {
	t.Helper()
	want := map[string]bool{}
	for _, s := range series {
		want[s] = true
	}
	for _, m := range counts.FindAllStringSubmatch(page, -1) {
		if (m[2] == strconv.Itoa(n)) != want[m[1]] || m[2] != "0" && m[2] != strconv.Itoa(n) {
			t.Errorf("%s reads %s", m[1], m[2])
		}
		delete(want, m[1])
	}
	if len(want) > 0 {
		t.Errorf("no series %v", want)
	}
}

// TestCorrections guarantees what each end of a refund and of a settlement
// counts as.
func TestCorrections(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name   string
		give   scripted
		ctx    context.Context
		result string
	}{
		{"made", scripted{}, t.Context(), "made"},
		{"made before", scripted{correction: decide.Correction{Replayed: true}}, t.Context(), "repeated"},
		{"more than is left", scripted{err: fmt.Errorf("x: %w", decide.ErrRefundExceeds)}, t.Context(), "refused"},
		{"settled otherwise", scripted{err: fmt.Errorf("x: %w", decide.ErrAlreadySettled)}, t.Context(), "refused"},
		{"of nothing", scripted{err: fmt.Errorf("x: %w", decide.ErrNothingCharged)}, t.Context(), "refused"},
		{"one too many", scripted{err: fmt.Errorf("x: %w", decide.ErrTooManyRefunds)}, t.Context(), "refused"},
		{"no store", scripted{err: fmt.Errorf("x: %w", decide.ErrStoreUnavailable)}, t.Context(), "unavailable"},
		{"nobody waits", scripted{err: context.Canceled}, gone, "caller_gone"},
		{"anything else", scripted{err: errors.New("x")}, t.Context(), "failed"},
	} {
		r := prometheus.NewRegistry()
		d, err := observe.NewDecisions(&tt.give, r)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := d.Refund(tt.ctx, decide.Receipt{}, "r", 1); !errors.Is(err, tt.give.err) || c.Replayed != tt.give.correction.Replayed {
			t.Errorf("%s: Refund = %+v, %v", tt.name, c, err)
		}
		moved(t, page(r), 1, fmt.Sprintf("penstock_gateway_refunds_total{result=%q}", tt.result))
		if c, err := d.Settle(tt.ctx, decide.Receipt{}, 1); !errors.Is(err, tt.give.err) || c.Replayed != tt.give.correction.Replayed {
			t.Errorf("%s: Settle = %+v, %v", tt.name, c, err)
		}
		moved(t, page(r), 1, fmt.Sprintf("penstock_gateway_refunds_total{result=%q}", tt.result), fmt.Sprintf("penstock_gateway_settlements_total{result=%q}", tt.result))
	}
}

// TestCallerGone guarantees that a client that went away is no failure of the
// gate's.
func TestCallerGone(t *testing.T) {
	t.Parallel()

	r := prometheus.NewRegistry()
	d, err := observe.NewDecisions(&scripted{err: context.Canceled}, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = d.Decide(ctx, decide.Query{})
	if got := reads(t, page(r), `penstock_gateway_undecided_total{reason="caller_gone"}`); got != 1 {
		t.Errorf("caller_gone reads %v, want 1", got)
	}
}

// TestLatencyIsInSeconds guarantees that the latency of a decision is exposed in
// the unit its name says: 20 ms read 0.02.
func TestLatencyIsInSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewRegistry()
		d, err := observe.NewDecisions(&scripted{decision: decide.Decision{Outcome: decide.Allow}, takes: 20 * time.Millisecond}, r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = d.Decide(t.Context(), decide.Query{})
		p := page(r)
		for series, want := range map[string]float64{
			"ratelimit_decision_latency_seconds_sum":                 0.02,
			"ratelimit_decision_latency_seconds_count":               1,
			`ratelimit_decision_latency_seconds_bucket{le="0.01"}`:   0,
			`ratelimit_decision_latency_seconds_bucket{le="0.025"}`:  1,
			`ratelimit_decision_latency_seconds_bucket{le="0.0075"}`: 0,
		} {
			if got := reads(t, p, series); got != want {
				t.Errorf("%s reads %v, want %v", series, got, want)
			}
		}
	})
}

// TestRequestsAreInSeconds guarantees the same of requests, and under what each
// status is counted.
func TestRequestsAreInSeconds(t *testing.T) {
	t.Parallel()

	r := prometheus.NewRegistry()
	q, err := observe.NewRequests(r, func() int { return 3 })
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []observe.Answer{
		{Status: 200, Took: 300 * time.Millisecond, Upstream: 250 * time.Millisecond, Queued: 40 * time.Millisecond},
		{Status: 429, Took: 2 * time.Millisecond},
		{Status: 502, Took: time.Second, Upstream: time.Second, Cut: true},
		{Status: 418, Took: time.Millisecond, Upstream: time.Millisecond},
		{Status: 101, Took: time.Millisecond, Upstream: time.Millisecond},
	} {
		q.Answered(a)
	}
	q.Refunded(true)
	q.Refunded(true)
	q.Refunded(false)
	p := page(r)
	for series, want := range map[string]float64{
		`penstock_gateway_requests_total{status="2xx"}`:           1,
		`penstock_gateway_requests_total{status="429"}`:           1,
		`penstock_gateway_requests_total{status="502"}`:           1,
		`penstock_gateway_requests_total{status="4xx"}`:           1,
		`penstock_gateway_requests_total{status="other"}`:         1,
		"penstock_gateway_answers_cut_total":                      1,
		"penstock_gateway_request_seconds_sum":                    1.304,
		"penstock_gateway_upstream_seconds_sum":                   1.252,
		"penstock_gateway_own_seconds_sum":                        0.002,
		"penstock_gateway_queue_seconds_sum":                      0.04,
		"penstock_gateway_queue_seconds_count":                    1,
		"penstock_gateway_gateways":                               3,
		`penstock_gateway_upstream_refunds_total{result="given"}`: 2,
		`penstock_gateway_upstream_refunds_total{result="kept"}`:  1,
	} {
		if got := reads(t, p, series); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s reads %v, want %v", series, got, want)
		}
	}
}

// A blank store has counted nothing and remembers no request.
type blank struct{}

func (blank) Decide(context.Context, limit.Decision) (limit.Answer, error) {
	return limit.Answer{Allowed: true}, nil
}

func (blank) DecideAll(_ context.Context, ds []limit.Decision) ([]limit.Answer, []error) {
	return slices.Repeat([]limit.Answer{{Allowed: true}}, len(ds)), make([]error, len(ds))
}

func (blank) Correct(context.Context, limit.Correction) (limit.CorrectionAnswer, error) {
	return limit.CorrectionAnswer{}, errors.New("nothing was charged")
}

// TestFC33 guarantees that no request can add a series: after ten thousand
// decisions and requests that differ in everything a client can choose, the
// page is as long as before, and no value of theirs is on it.
func TestFC33(t *testing.T) {
	t.Parallel()

	r := prometheus.NewRegistry()
	q, err := observe.NewRequests(r, func() int { return 1 })
	if err != nil {
		t.Fatal(err)
	}
	d, err := observe.NewDecisions(decide.NewService(decide.NewBook(), blank{}, time.Now, decide.NewID, decide.Options{}), r)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Count(page(r), "\n")
	for i := range 10_000 {
		id := fmt.Sprintf("chosen-%d", i)
		if _, err := d.Decide(t.Context(), decide.Query{
			RequestID: id, Tenant: id, Application: id, User: id, APIKey: id, Service: id, Method: id, Path: "/" + id,
			Labels: map[string]string{id: id},
		}); err != nil {
			t.Fatal(err)
		}
		q.Answered(observe.Answer{Status: 100 + i, Took: time.Millisecond})
	}
	after := page(r)
	if lines := strings.Count(after, "\n"); lines != before || strings.Contains(after, "chosen") {
		t.Errorf("%d lines, then %d", before, lines)
	}
	if got := reads(t, after, `ratelimit_decisions_total{outcome="ALLOW"}`); got != 10_000 {
		t.Errorf("%v decisions counted, want 10000", got)
	}
}

// TestRepeated guarantees that answers without the counter store are counted.
func TestRepeated(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	hits := uint64(0)
	if err := observe.Repeated(registry, func() uint64 { return hits }); err != nil {
		t.Fatal(err)
	}
	for _, hits = range []uint64{0, 7} {
		if got := reads(t, page(registry), "penstock_gateway_denials_repeated_total"); got != float64(hits) {
			t.Errorf("%v were repeated, want %d", got, hits)
		}
	}
}

// A lending is a store that grants what is asked, but not when it is down, and
// who has its counters.
type lending struct {
	decide.Store
	down bool
}

func (l *lending) Decide(_ context.Context, asked limit.Decision) (limit.Answer, error) {
	if l.down {
		return limit.Answer{}, errors.New("down")
	}
	return limit.Decide(limit.NewState(), time.Now(), asked)
}

func (l *lending) Lasts() bool { return true }

func (l *lending) GiveBack(_ context.Context, c limit.Charge, _ time.Time) (int64, error) {
	return c.Cost - 1, nil // one has come back by itself
}

// TestLeased guarantees what of leases is counted, and under which names.
func TestLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &lending{}
		leases := decide.NewLeases(decide.NewDenials(store, 0, time.Now), func(limit.Identity) decide.Holder { return store }, 10, time.Now)
		registry := prometheus.NewRegistry()
		if err := observe.Leased(registry, leases); err != nil {
			t.Fatal(err)
		}
		told := func(want ...float64) {
			t.Helper()
			synctest.Wait()
			now := page(registry)
			got := []float64{reads(t, now, "penstock_gateway_leases")}
			for _, what := range []string{"taken", "spent", "returned", "lost"} {
				got = append(got, reads(t, now, fmt.Sprintf("penstock_gateway_lease_units_total{what=%q}", what)))
			}
			if !slices.Equal(got, want) {
				t.Errorf("leases and units taken, spent, returned and lost: %v, want %v", got, want)
			}
		}
		ask := func(units int64) {
			t.Helper()
			_, err := leases.Decide(t.Context(), limit.Decision{
				Charges: []limit.Charge{{
					Algorithm: rule.FixedWindow, Counter: limit.Identity{Tenant: "acme"}, Limit: 1000, Window: time.Hour, Cost: units,
				}},
				Leases: []rule.Lease{{Units: 100, TTL: time.Second}},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		told(0, 0, 0, 0, 0)
		ask(75)
		ask(25) // as many as a lease: three quarters of them are taken
		told(1, 75, 0, 0, 0)
		ask(40)
		told(1, 75, 0, 0, 0)
		store.down = true
		ask(20) // and another three quarters are asked for in vain
		told(1, 150, 0, 0, 75)
		time.Sleep(3 * time.Second)
		told(0, 150, 60, 14, 76)
	})
}
