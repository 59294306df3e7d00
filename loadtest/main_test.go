package main

import (
	"strings"
	"testing"
	"time"

	"penstock.dev/loadtest/decisions"
	"penstock.dev/loadtest/frozen"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/propagation"
	"penstock.dev/loadtest/stats"
)

// TestUsage guarantees that wrong arguments exit with 2, say what is wrong, and
// start nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"":                              "usage: loadtest",
		"nothing":                       "usage: loadtest",
		"propagation -rate 0":           "-rate",
		"propagation -debezium -poll x": "-poll=x",
		"propagation -kafka none":       "-kafka=none",
		"propagation left over":         `"left" "over"`,
		"decisions -rate -1":            "-rate",
		"decisions -unknown":            "-unknown",
		"frozen -rate 60":               "-rate",
		"frozen -around 1s":             "-around",
		"frozen -env x":                 "-env",
		"restore -env x":                "-env",
		"restore -counters 0":           "-counters",
		"bench -only nothing":           "-only",
		"bench -for 1m":                 "-for",
		"bench -env x":                  "-env",
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != codeUsage || !strings.Contains(errs.String(), says) {
			t.Errorf("loadtest %s: code %d, says %q; want code 2 and %q", args, code, errs.String(), says)
		}
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"decisions", "-h"}, &out, &errs); code != 0 || !strings.Contains(errs.String(), "-proxied") {
		t.Errorf("-h: code %d, says %q", code, errs.String())
	}
}

// TestPropagationVerdict guarantees that a slow gateway, a lost change and a
// contradicting answer each fail the run, and that a generator which could not
// keep its rate gets no verdict.
func TestPropagationVerdict(t *testing.T) {
	t.Parallel()
	good := func() propagation.Result {
		return propagation.Result{Rate: 100, Enforced: []stats.Row{{Summary: stats.Summary{
			P50: stats.Millis(5 * time.Millisecond), P99: stats.Millis(20 * time.Millisecond),
		}}}}
	}
	for name, tt := range map[string]struct {
		change func(*propagation.Result)
		code   int
	}{
		"held":         {func(*propagation.Result) {}, 0},
		"slow median":  {func(r *propagation.Result) { r.Enforced[0].Summary.P50++ }, 1},
		"slow tail":    {func(r *propagation.Result) { r.Enforced[0].Summary.P99++ }, 1},
		"one lost":     {func(r *propagation.Result) { r.Missing = 1 }, 1},
		"one refused":  {func(r *propagation.Result) { r.Failed = 1 }, 1},
		"contradicted": {func(r *propagation.Result) { r.Contradicted = 1 }, 1},
		"late":         {func(r *propagation.Result) { r.Rate = 94 }, 3},
	} {
		r := good()
		tt.change(&r)
		if got := judgePropagation(pace.Schedule{Rate: 100}, r).Code(); got != tt.code {
			t.Errorf("%s: code %d, want %d", name, got, tt.code)
		}
	}
}

// TestDecisionsVerdict guarantees the same of decisions, and that a unit
// charged twice or not at all fails the run.
func TestDecisionsVerdict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*decisions.Result)
		code   int
	}{
		"held":            {func(*decisions.Result) {}, 0},
		"slow":            {func(r *decisions.Result) { r.Beside.Latency.P99 = stats.Millis(promisedDecision + 1) }, 1},
		"slow proxy":      {func(r *decisions.Result) { r.BesideProxied.Latency.P99 = stats.Millis(promisedDecision + 1) }, 1},
		"slow when alone": {func(r *decisions.Result) { r.Quiet.Latency.P99 = stats.Millis(time.Second) }, 0}, // a figure, not a promise
		"failed":          {func(r *decisions.Result) { r.QuietProxied.Failed = 1 }, 1},
		"degraded":        {func(r *decisions.Result) { r.Beside.Degraded = 1 }, 1},
		"charged twice":   {func(r *decisions.Result) { r.Charged++ }, 1},
		"not charged":     {func(r *decisions.Result) { r.Allowed++ }, 1},
		"late":            {func(r *decisions.Result) { r.Beside.Late.P99 = stats.Millis(promisedDecision) }, 3},
	} {
		var r decisions.Result
		tt.change(&r)
		if got := judgeDecisions(r).Code(); got != tt.code {
			t.Errorf("%s: code %d, want %d", name, got, tt.code)
		}
	}
}

// TestFrozenVerdict guarantees that a slow answer, one against its rule's
// failure mode, a share that is not kept and a recovery that takes long each
// fail the run.
func TestFrozenVerdict(t *testing.T) {
	t.Parallel()
	good := func() frozen.Result {
		return frozen.Result{
			Frozen: stats.Summary{P999: stats.Millis(promisedFrozen), Max: stats.Millis(promisedLongest)},
			Open:   frozen.Answers{Sent: 1000, Passed: 1000}, Closed: frozen.Answers{Sent: 1000, Closed: 1000},
			Local: frozen.Answers{Sent: 1000, Passed: 220, Limited: 780}, Hung: stats.Millis(10 * time.Second),
		}
	}
	for name, tt := range map[string]struct {
		change func(*frozen.Result)
		code   int
	}{
		"held":             {func(*frozen.Result) {}, 0},
		"slow tail":        {func(r *frozen.Result) { r.Frozen.P999++ }, 1},
		"slow closed":      {func(r *frozen.Result) { r.Closed.Took.P999 = r.Frozen.P999 + 1 }, 1},
		"one too long":     {func(r *frozen.Result) { r.Frozen.Max++ }, 1},
		"open refused":     {func(r *frozen.Result) { r.Open.Passed--; r.Open.Wrong++ }, 1},
		"closed let one":   {func(r *frozen.Result) { r.Closed.Closed--; r.Closed.Wrong++ }, 1},
		"local failed":     {func(r *frozen.Result) { r.Local.Limited--; r.Local.Wrong++ }, 1},
		"share exceeded":   {func(r *frozen.Result) { r.Local.Passed, r.Local.Limited = 222, 778 }, 1},
		"share not given":  {func(r *frozen.Result) { r.Local.Passed, r.Local.Limited = 150, 850 }, 1},
		"no answer":        {func(r *frozen.Result) { r.Failed = 1 }, 1},
		"degraded before":  {func(r *frozen.Result) { r.Early = 1 }, 1},
		"slow recovery":    {func(r *frozen.Result) { r.Recovered = stats.Millis(promisedRecovery + 1) }, 1},
		"slow when it ran": {func(r *frozen.Result) { r.Before.P99 = stats.Millis(time.Second) }, 0},
		"late":             {func(r *frozen.Result) { r.Late.P999 = stats.Millis(6 * time.Millisecond) }, 3},
	} {
		r := good()
		tt.change(&r)
		if got := judgeFrozen(r).Code(); got != tt.code {
			t.Errorf("%s: code %d, want %d", name, got, tt.code)
		}
	}
}
