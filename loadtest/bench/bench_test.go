package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"penstock.dev/loadtest/metrics"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/wire"
	"penstock.dev/proto/ratelimitv3"
)

// TestSubjects guarantees that every rule of a scenario has as many counters as
// there are subjects, in our words and in the others', and other ones in
// another turn.
func TestSubjects(t *testing.T) {
	t.Parallel()
	for _, s := range Scenarios() {
		one, two := turn{s, 1}, turn{s, 2}
		values := make([]map[string]bool, 0, s.Rules)
		for k := range s.Rules {
			values = append(values, map[string]bool{})
			for i := range s.Keys {
				values[k][one.value(k, i)] = true
			}
		}
		users, applications, addresses := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for i := range s.Keys {
			users[one.user(i)], applications[one.application(i)], addresses[one.address(i)] = true, true, true
			if one.user(i) == two.user(i) || one.application(i) == two.application(i) || one.address(i) == two.address(i) || one.value(0, i) == two.value(0, i) {
				t.Fatalf("%s: subject %d is the same in two turns", s.Name, i)
			}
		}
		for _, set := range append(values, users, applications, addresses) {
			if len(set) != s.Keys {
				t.Errorf("%s: %d counters of a rule, want %d", s.Name, len(set), s.Keys)
			}
		}
	}
}

// TestJudgeRateLimit guarantees that an answer passes only if it says so and
// every status was decided by a rule, and that one that the counter store did
// not give is told apart.
func TestJudgeRateLimit(t *testing.T) {
	t.Parallel()
	status := func(limited bool) *ratelimitv3.RateLimitResponse_DescriptorStatus {
		s := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK, LimitRemaining: 3}
		if limited {
			s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: 1, Unit: ratelimitv3.RateLimitResponse_RateLimit_HOUR}
		}
		return s
	}
	answer := func(code ratelimitv3.RateLimitResponse_Code, header string, statuses ...*ratelimitv3.RateLimitResponse_DescriptorStatus) []byte {
		out := &ratelimitv3.RateLimitResponse{OverallCode: code, Statuses: statuses}
		if header != "" {
			out.ResponseHeadersToAdd = []*ratelimitv3.HeaderValue{{Key: header, Value: "true"}}
		}
		b, err := proto.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const ok, over = ratelimitv3.RateLimitResponse_OK, ratelimitv3.RateLimitResponse_OVER_LIMIT
	const alone = "x-ratelimit-degraded"
	for name, tt := range map[string]struct {
		body   []byte
		code   int
		normal wire.Answer // of two descriptors
		frozen [3]wire.Answer
	}{
		"passed":           {answer(ok, "x", status(true), status(true)), 0, wire.Passed, [3]wire.Answer{}},
		"refused":          {answer(over, "", status(true), status(true)), 0, wire.Refused, [3]wire.Answer{}},
		"no rule":          {answer(ok, "", status(true), status(false)), 0, wire.Wrong, [3]wire.Answer{wire.Passed, wire.Passed, wire.Passed}},
		"degraded":         {answer(ok, alone, status(false)), 0, wire.Degraded, [3]wire.Answer{wire.Passed, wire.Passed, wire.Wrong}},
		"degraded, closed": {answer(over, alone, status(false)), 0, wire.Degraded, [3]wire.Answer{wire.Wrong, wire.Wrong, wire.Refused}},
		"a status too few": {answer(ok, "", status(true)), 0, wire.Wrong, [3]wire.Answer{wire.Passed, wire.Passed, wire.Passed}},
		"unknown":          {answer(ratelimitv3.RateLimitResponse_UNKNOWN, "", status(true), status(true)), 0, wire.Wrong, [3]wire.Answer{}},
		"a failed call":    {nil, 14, wire.Wrong, [3]wire.Answer{}},
		"no message":       {[]byte("\xff\xff"), 0, wire.Wrong, [3]wire.Answer{}},
	} {
		if got := judgeRateLimit(2)(0, tt.code, tt.body); got != tt.normal {
			t.Errorf("%s: %v, want %v", name, got, tt.normal)
		}
		for i, want := range tt.frozen {
			if got := judgeFrozen(i, tt.code, tt.body); got != want {
				t.Errorf("%s, %s: %v, want %v", name, frozenServices[i], got, want)
			}
		}
	}
}

// TestJudgeDecisions guarantees the same of the JSON faces.
func TestJudgeDecisions(t *testing.T) {
	t.Parallel()
	decision := func(outcome, degraded, limits string) string {
		return `{"outcome":"` + outcome + `","degraded":` + degraded + `,"limits":[` + limits + `]}`
	}
	pass, deny, alone := decision("ALLOW", "false", "{}"), decision("DENY", "false", "{}"), decision("ALLOW", "true", "")
	for name, tt := range map[string]struct {
		body   string
		status int
		want   wire.Answer
	}{
		"passed": {pass + pass, 200, wire.Passed}, "refused": {deny + deny, 200, wire.Refused}, "one of each": {pass + deny, 200, wire.Wrong},
		"one too few": {pass, 200, wire.Wrong}, "one too many": {pass + pass + pass, 200, wire.Wrong}, "no rule": {pass + decision("ALLOW", "false", ""), 200, wire.Wrong},
		"one degraded": {pass + alone, 200, wire.Degraded}, "a failure": {pass + pass, 503, wire.Wrong}, "nothing": {"", 200, wire.Wrong},
	} {
		if got := judgeDecisions(2)(0, tt.status, []byte(tt.body)); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	for body, want := range map[string]wire.Answer{
		`{"overallCode":"OK", "statuses":[{"currentLimit":{}}]}`:   wire.Passed,
		`{"overallCode": "OK", "statuses":[{"currentLimit": {}}]}`: wire.Passed,
		`{"overallCode":"OK", "statuses":[{}]}`:                    wire.Wrong,
		`{"statuses":[{"currentLimit":{}}]}`:                       wire.Wrong,
	} {
		if got := judgeEnvoyJSON(0, 200, []byte(body)); got != want {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}

// TestCharges guarantees that units are counted by rule, that an answer without
// Redis counts nothing, and that one by other rules is an error.
func TestCharges(t *testing.T) {
	t.Parallel()
	six := turn{Scenario: Scenario{Service: "bench-6", Rules: 2}}
	decision := func(degraded bool, limits ...string) string {
		return fmt.Sprintf(`{"degraded":%t,"limits":[%s]}`, degraded, strings.Join(limits, ","))
	}
	limit := func(k, remaining int) string {
		return fmt.Sprintf(`{"rule_id":"bench-6-%d","remaining":%d}`, k, remaining)
	}
	full, used := decision(false, limit(0, 10), limit(1, 20)), decision(false, limit(1, 13), limit(0, 6))
	for name, tt := range map[string]struct {
		decisions []string
		status    int
		want      []int64 // nil: nothing or an error
		fails     bool
	}{
		"used":         {[]string{full, used, used}, 200, []int64{8, 14}, false},
		"degraded":     {[]string{used, decision(true)}, 200, nil, false},
		"a rule short": {[]string{used, decision(false, limit(0, 1))}, 200, nil, true},
		"another rule": {[]string{decision(false, limit(0, 1), limit(7, 1))}, 200, nil, true},
		"a failure":    {[]string{used}, 503, nil, true},
		"no JSON":      {[]string{"x"}, 200, nil, true},
	} {
		got, err := six.charges([]int64{10, 20}, tt.status, []byte(`{"decisions":[`+strings.Join(tt.decisions, ",")+`]}`))
		if !slices.Equal(got, tt.want) || (err != nil) != tt.fails {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tt.want)
		}
	}
}

// telling is a contender that tells values of series, by how often it was asked.
func telling(t *testing.T, value func(series string, asked int64) int64) (c *contender, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := asked.Add(1)
		series := []string{recordedMetric, acknowledgedMetric, leasesMetric}
		for _, what := range []string{"taken", "spent", "returned", "lost"} {
			series = append(series, fmt.Sprintf(unitsMetric, what))
		}
		for _, name := range series {
			_, _ = fmt.Fprintf(w, "%s %d\n", name, value(name, n))
		}
		for _, name := range []string{pausesMetric, schedMetric} {
			_, _ = fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n", name, n)
		}
	}))
	t.Cleanup(srv.Close)
	return &contender{admin: srv.URL}, asked
}

// TestAwaitEvents guarantees that a run goes on once Kafka has as many events as
// there were decisions.
func TestAwaitEvents(t *testing.T) {
	t.Parallel()
	c, asked := telling(t, func(series string, n int64) int64 {
		return map[string]int64{recordedMetric: 100 + min(n, 5), acknowledgedMetric: 90 + min(n, 20)}[series]
	})
	fault, err := c.awaitEvents(t.Context(), &told{recorded: 100, acknowledged: 95}, 5)
	if fault != "" || err != nil || asked.Load() != 10 {
		t.Errorf("%q, %v after %d looks, want 10", fault, err, asked.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if fault, err := c.awaitEvents(ctx, &told{recorded: 100}, 6); fault == "" && err == nil {
		t.Error("a decision without an event is no fault")
	}
}

// TestAwaitLeases guarantees that units are counted only when a gateway holds none,
// and all that it held were spent, have gone back or are known to be lost.
func TestAwaitLeases(t *testing.T) {
	t.Parallel()
	c, asked := telling(t, func(series string, n int64) int64 {
		return map[string]int64{
			leasesMetric: max(0, 3-n), fmt.Sprintf(unitsMetric, "taken"): 100, fmt.Sprintf(unitsMetric, "spent"): 60,
			fmt.Sprintf(unitsMetric, "returned"): min(30, 5*n), fmt.Sprintf(unitsMetric, "lost"): 10,
		}[series]
	})
	if fault, err := c.awaitLeases(t.Context()); fault != "" || err != nil || asked.Load() != 6 {
		t.Errorf("%q, %v after %d looks, want 6", fault, err, asked.Load())
	}
	asked.Store(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if fault, err := c.awaitLeases(ctx); fault == "" && err == nil {
		t.Error("units that are held are no fault")
	}
}

// TestOutcomes guarantees medians of each figure by itself, the worst round
// where the worst is asked for, and ratios of medians.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	sample := func(perSecond float64, p99, longest time.Duration) Sample {
		return Sample{PerSecond: perSecond, P99: stats.Millis(p99), Max: stats.Millis(longest)}
	}
	pauses := func(d time.Duration) *Runtime { return &Runtime{Pauses: &metrics.Histogram{Max: stats.Millis(d)}} }
	mine := []Sample{sample(900, 3, 10), sample(500, 9, 90), sample(700, 1, 20)}
	mine[0].Runtime, mine[2].Runtime = pauses(time.Second), pauses(time.Minute)
	r := Result{Samples: map[string]map[string][]Sample{"grpc_1rule_64": {
		ours: mine, envoy: {sample(100, 1, 1), sample(50, 1, 1), sample(300, 1, 1)},
	}}}
	o := r.Outcomes()["grpc_1rule_64"]
	if o.PerSecond != 700 || o.P99 != 3 || o.Max != 90 || o.RatioEnvoy != 7 || o.RatioNaive != 0 || o.Peers[envoy].PerSecond != 100 || o.Runtime.Pauses.Max != stats.Millis(time.Minute) {
		t.Errorf("%+v", o)
	}
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"per_second", "p50_ms", "p99_ms", "server_cpu_us", "redis_cpu_us", "ratio_envoy", "ratio_naive", "peers"} {
		if !strings.Contains(string(b), `"`+name+`":`) {
			t.Errorf("%s has no %s", b, name)
		}
	}
}

// TestTargets guarantees that each target is missed by less than it asks for,
// and that only what was measured is judged.
func TestTargets(t *testing.T) {
	t.Parallel()
	good := func() map[string]Outcome {
		peers := map[string]Sample{envoy: {PerSecond: 10}, naive: {PerSecond: 10}, oursGRPC: {PerSecond: 20}, oursBatch: {PerSecond: 50}, oursCalm: {PerSecond: 60}}
		one := Outcome{Sample: Sample{PerSecond: 60, Server: 10, Redis: 10, P99: stats.Millis(3 * time.Millisecond)}, RatioEnvoy: 6, RatioNaive: 6, Peers: peers}
		six, denied, frozen := one, one, one
		six.Redis, denied.PerSecond = 25, 250_000
		frozen.P999, frozen.Max = stats.Millis(60*time.Millisecond), stats.Millis(150*time.Millisecond)
		return map[string]Outcome{"grpc_1rule_64": one, "grpc_6rules_64": six, "grpc_denied_64": denied, "http_1rule_64": one, "open_1000": one, "frozen": frozen}
	}
	missed := func(outcomes map[string]Outcome) (n int) {
		for _, c := range Targets(outcomes) {
			if !c.Held {
				n++
			}
		}
		return n
	}
	if n := missed(good()); n != 0 || len(Targets(good())) != 14 {
		t.Errorf("%d of %d missed, want 0 of 14: %+v", n, len(Targets(good())), Targets(good()))
	}
	bad := good()
	for name, o := range bad {
		o.PerSecond, o.Server, o.Redis = o.PerSecond*0.99, o.Server*1.01, o.Redis*1.01
		o.P99, o.P999, o.Max, o.RatioEnvoy, o.RatioNaive = o.P99+1, o.P999+1, o.Max+1, 3.9, 1.1
		o.Peers = map[string]Sample{envoy: {PerSecond: 10}, naive: {PerSecond: 10}, oursGRPC: {PerSecond: 19}, oursBatch: {PerSecond: 49}, oursCalm: {PerSecond: 60}}
		bad[name] = o
	}
	if n := missed(bad); n != 14 {
		t.Errorf("%d missed, want all 14: %+v", n, Targets(bad))
	}
	if n := len(Targets(map[string]Outcome{"open_5000": {}})); n != 0 {
		t.Errorf("%d targets of what has none", n)
	}
}

// TestDoubt guarantees that a run in which something was in the way has no
// verdict.
func TestDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o     Outcome
		doubt bool
	}{
		"nothing":          {Outcome{Sample: Sample{Degraded: mostDegraded, LateP99: mostLate, Others: mostOthers}}, false},
		"degraded":         {Outcome{Sample: Sample{Degraded: 2 * mostDegraded}}, true},
		"a late generator": {Outcome{Sample: Sample{LateP99: mostLate + 1}}, true},
		"a busy machine":   {Outcome{Sample: Sample{Others: 2 * mostOthers}}, true},
	} {
		if got := Doubt(map[string]Outcome{"x": tt.o}); (got != "") != tt.doubt {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestOthers guarantees that what others take is told as a share of the
// machine, and that a process's clock in the kernel goes with what it does.
func TestOthers(t *testing.T) {
	t.Parallel()
	at, second := time.Now(), time.Second*time.Duration(runtime.NumCPU())
	m := meter{before: spent{at: at, all: second}, after: spent{at: at.Add(time.Second), server: second / 4, redis: second / 8, broker: second / 16, own: second / 16, all: 7 * second / 4}}
	if got := m.others(); got != 0.25 {
		t.Errorf("others took %v of the machine, want a quarter", got)
	}
	before := cpuOf(os.Getpid())
	for cpuOf(os.Getpid()) < before+time.Millisecond {
	}
	if own := ownCPU(); own < before || busy() <= 0 || cpuOf(0) != 0 {
		t.Errorf("this process took %v, by its own account %v; all %v", before, own, busy())
	}
}

// TestOnly guarantees that scenarios are chosen by name, and that a wrong one is
// told.
func TestOnly(t *testing.T) {
	t.Parallel()
	if all, err := Only(nil); err != nil || len(all) != len(Scenarios()) {
		t.Errorf("%d scenarios, %v", len(all), err)
	}
	if two, err := Only([]string{"open_1000", "frozen"}); err != nil || len(two) != 2 || two[1].Name != "frozen" {
		t.Errorf("%+v, %v", two, err)
	}
	if _, err := Only([]string{"grpc_1rule"}); err == nil {
		t.Error("a scenario that is not there was accepted")
	}
}
