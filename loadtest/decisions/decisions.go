// Package decisions measures how long a gateway takes: for decisions that are
// asked for, and for requests that it forwards to an upstream that answers at
// once. What the upstream costs is measured beside it, by asking it directly.
//
// Load is an open loop over keep-alive connections; latency counts from when a
// request was due.
package decisions

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock.dev/loadtest/metrics"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
)

// Options say how much of what is sent.
type Options struct {
	Schedule pace.Schedule // of decisions, and of proxied requests when these are measured alone
	Beside   Beside
	Say      func(format string, args ...any) // progress
}

// Beside is what else runs in the second setting, per second.
type Beside struct {
	Changes float64 // of rules
	Proxied float64 // requests through the gateway
}

// A Stream is one kind of load and how it was answered.
type Stream struct {
	Offered   float64            `json:"offered_per_second"`
	Sent      int                `json:"sent"`
	Failed    int                `json:"failed"`        // no answer, or one that is no decision
	Failure   string             `json:"why,omitempty"` // one of them
	Refused   int                `json:"refused"`       // decided, and not let through
	Degraded  int                `json:"degraded"`      // decided without the counter store
	Late      stats.Summary      `json:"generator_late"`
	Latency   stats.Summary      `json:"latency"`                // from due to answered
	Histogram *metrics.Histogram `json:"gateway_says,omitempty"` // ratelimit_decision_latency_seconds of the same time
}

// A Result is the streams of the two settings, and whether the counters agree.
type Result struct {
	Quiet         Stream        `json:"quiet_decisions"`
	QuietProxied  Stream        `json:"quiet_proxied"`
	QuietDirect   Stream        `json:"quiet_direct"` // the upstream, without a gateway
	Beside        Stream        `json:"beside_decisions"`
	BesideProxied Stream        `json:"beside_proxied"`
	Changes       stats.Summary `json:"beside_changes"` // from due to rule-admin's answer
	ChangesFailed int           `json:"beside_changes_failed"`
	Allowed       int64         `json:"allowed"` // units that were let through, by the answers
	Charged       int64         `json:"charged"` // units that were charged, by the counters
}

// Rows are the result as a table.
func (r Result) Rows() []stats.Row {
	row := func(name string, s stats.Summary) stats.Row { return stats.Row{Name: name, Summary: s} }
	return []stats.Row{
		row("quiet: decisions", r.Quiet.Latency),
		row("quiet: proxied requests", r.QuietProxied.Latency),
		row("quiet: the upstream directly", r.QuietDirect.Latency),
		row("beside: decisions", r.Beside.Latency),
		row("beside: proxied requests", r.BesideProxied.Latency),
		row("beside: changes of rules", r.Changes),
		row("generator late, quiet", r.Quiet.Late),
		row("generator late, beside", r.Beside.Late),
	}
}

// warmUp comes before each measurement.
const warmUp = 2 * time.Second

// Run sends load in both settings and measures. It removes what it made.
func Run(ctx context.Context, s *system.System, o Options) (r Result, err error) {
	up, err := startUpstream(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, up.stop()) }()
	c, err := makeCatalogue(ctx, s, up.url)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.remove(context.WithoutCancel(ctx))) }()
	l, err := newLoad(s, c)
	if err != nil {
		return r, err
	}
	defer l.close()
	before, err := c.charged(ctx)
	if err != nil {
		return r, err
	}

	o.Say("quiet: %.0f decisions a second for %v", o.Schedule.Rate, o.Schedule.For)
	if r.Quiet, err = l.measure(ctx, o.Schedule, l.decide); err != nil {
		return r, err
	}
	o.Say("quiet: %.0f proxied requests a second for %v", o.Schedule.Rate, o.Schedule.For)
	if r.QuietProxied, err = l.measure(ctx, o.Schedule, l.proxy); err != nil {
		return r, err
	}
	o.Say("quiet: as many to the upstream directly")
	if r.QuietDirect, err = l.measure(ctx, o.Schedule, l.upstream); err != nil {
		return r, err
	}
	o.Say("beside: as many decisions, %.0f proxied requests and %.0f changes of rules a second", o.Beside.Proxied, o.Beside.Changes)
	if err := r.beside(ctx, l, o); err != nil {
		return r, err
	}
	after, err := c.charged(ctx)
	r.Charged, r.Allowed = after-before, l.allowed.Load()
	return r, err
}

// beside runs everything at once.
func (r *Result) beside(ctx context.Context, l *load, o Options) error {
	var all sync.WaitGroup
	var errs [2]error
	all.Go(func() { r.Beside, errs[0] = l.measure(ctx, o.Schedule, l.decide) })
	all.Go(func() {
		r.BesideProxied, errs[1] = l.measure(ctx, pace.Schedule{Rate: o.Beside.Proxied, For: o.Schedule.For}, l.proxy)
	})
	all.Go(func() {
		r.Changes, r.ChangesFailed = l.changes(ctx, pace.Schedule{Rate: o.Beside.Changes, For: o.Schedule.For})
	})
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("beside everything else: %w", err)
	}
	return nil
}
