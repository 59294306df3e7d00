package bench

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/verdict"
)

// Targets are what is to be reached, of the scenarios that were measured.
func Targets(outcomes map[string]Outcome) []verdict.Check {
	var checks []verdict.Check
	if o, ok := outcomes["grpc_1rule_64"]; ok {
		grpc := Outcome{Sample: o.Peers[oursGRPC], Peers: o.Peers}
		checks = append(checks,
			atLeast("1 rule, × envoyproxy/ratelimit", o.RatioEnvoy, 6),
			atLeast("1 rule on grpc-go, × envoyproxy/ratelimit", grpc.ratio(envoy), 2),
			atMost("1 rule, server CPU µs", o.Server, 10),
			atMost("1 rule, Redis CPU µs", o.Redis, 10))
	}
	if o, ok := outcomes["grpc_6rules_64"]; ok {
		checks = append(checks,
			atLeast("6 rules, × envoyproxy/ratelimit", o.RatioEnvoy, 4),
			atMost("6 rules, server CPU µs", o.Server, 10),
			atMost("6 rules, Redis CPU µs", o.Redis, 25))
	}
	if o, ok := outcomes["grpc_denied_64"]; ok {
		checks = append(checks, atLeast("denials a second", o.PerSecond, 250_000))
	}
	if o, ok := outcomes["http_1rule_64"]; ok {
		many := Outcome{Sample: o.Peers[oursBatch], Peers: o.Peers}
		checks = append(checks,
			atLeast("HTTP, × the naive design", o.RatioNaive, 1.2),
			atLeast("HTTP in batches, decisions, × the naive design", many.ratio(naive), 5))
	}
	if o, ok := outcomes["open_1000"]; ok {
		checks = append(checks, verdict.AtMost("1,000 a second, p99", o.P99, 3*time.Millisecond))
	}
	if o, ok := outcomes["frozen"]; ok {
		checks = append(checks,
			verdict.AtMost("Redis frozen, p99.9", o.P999, 60*time.Millisecond),
			verdict.AtMost("Redis frozen, the longest", o.Max, 150*time.Millisecond),
			atLeast("Redis frozen, decisions a second, × with Redis", o.ratio(oursCalm), 1))
	}
	return checks
}

// Bounds of what a verdict can come of.
const (
	mostDegraded = 0.001                          // of the answers: what Redis did not decide is cheaper
	mostLate     = stats.Millis(time.Millisecond) // p99, of the generator
	mostOthers   = 0.1                            // of the CPU of this machine
)

// Doubt says why there is no verdict, where there is none.
func Doubt(outcomes map[string]Outcome) string {
	for _, name := range slices.Sorted(maps.Keys(outcomes)) {
		switch o := outcomes[name]; {
		case o.Degraded > mostDegraded:
			return fmt.Sprintf("%s: Redis did not decide %.1f %% in time", name, 100*o.Degraded)
		case o.LateP99 > mostLate:
			return fmt.Sprintf("%s: the generator was late by %v at p99", name, o.LateP99)
		case o.Others > mostOthers:
			return fmt.Sprintf("%s: other processes took %.0f %% of the CPU", name, 100*o.Others)
		}
	}
	return ""
}

// atLeast and atMost say by how much a figure reaches what it is to reach, or
// misses it.
func atLeast(what string, got, want float64) verdict.Check {
	return verdict.Check{What: what, Promised: "at least " + number(want), Measured: fmt.Sprintf("%s (%+.0f %%)", number(got), 100*(got/want-1)), Held: got >= want}
}

func atMost(what string, got, want float64) verdict.Check {
	return verdict.Check{What: what, Promised: "at most " + number(want), Measured: fmt.Sprintf("%s (%+.0f %%)", number(got), 100*(got/want-1)), Held: got <= want}
}

func number(x float64) string {
	if x >= 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2g", x)
}
