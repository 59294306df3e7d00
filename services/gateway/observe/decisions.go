// Package observe counts what the gate decides and answers, and how long that
// takes. Labels are closed sets of words: no tenant, user, key, path, method or
// id is ever one (docs/adr/0019, 0022).
package observe

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/internal/rule"
)

// A Decider decides, and corrects what it decided: a decide.Service, and what
// decorates one.
type Decider interface {
	Decide(ctx context.Context, q decide.Query) (decide.Decision, error)
	DecideAll(ctx context.Context, b *decide.Batch)
	Refund(ctx context.Context, r decide.Receipt, id string, units int64) (decide.Correction, error)
	Settle(ctx context.Context, r decide.Receipt, cost int64) (decide.Correction, error)
}

// A failure is why a request got no decision: the closed set of label values.
type failure string

const (
	costOutOfBounds failure = "cost"
	requestIDReused failure = "request_id_reused"
	callerGone      failure = "caller_gone"
	otherFailure    failure = "other"
)

// A mode is what decides without the counter store: the closed set of label
// values.
type mode string

const (
	openMode   mode = "open"
	closedMode mode = "closed"
	localMode  mode = "local"
	limitMode  mode = "limit"
)

var modes = []mode{openMode, closedMode, localMode, limitMode}

var (
	outcomes = []decide.Outcome{decide.Allow, decide.Deny, decide.Blocked}
	codes    = []decide.Code{
		decide.RateLimited, decide.QuotaExceeded, decide.WalletEmpty, decide.BlockedByRule, decide.StoreUnavailable, decide.CostExceedsLimit,
	}
	failures = []failure{costOutOfBounds, requestIDReused, callerGone, otherFailure}
)

// Decisions counts the decisions and corrections of another Decider. It is safe
// for concurrent use.
type Decisions struct {
	next      Decider
	decisions map[decide.Outcome]prometheus.Counter
	refusals  map[decide.Code]prometheus.Counter
	failures  map[failure]prometheus.Counter
	fallback  prometheus.Counter
	shadow    prometheus.Counter
	replays   prometheus.Counter
	seconds   prometheus.Histogram
	degraded  map[mode]prometheus.Counter
	refunds   map[result]prometheus.Counter
	settled   map[result]prometheus.Counter
}

// NewDecisions decorates next. Metrics go to the given registerer.
func NewDecisions(next Decider, r prometheus.Registerer) (*Decisions, error) {
	reg := &registry{Registerer: r}
	d := &Decisions{
		next: next,
		decisions: counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_decisions_total",
			Help: "Decisions, peeks and repeats included, by outcome.",
		}, []string{"outcome"}), outcomes),
		refusals: counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_refusals_total",
			Help: "Decisions not to let a request pass, by the code that its answer has.",
		}, []string{"code"}), codes),
		failures: counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_undecided_total",
			Help: "Requests that were asked about and got no decision, by reason.",
		}, []string{"reason"}), failures),
		fallback: counter(reg, prometheus.CounterOpts{
			Name: "ratelimit_redis_fallback_total",
			Help: "Decisions made by the rules' failure modes because the counter store did not decide.",
		}),
		shadow: counter(reg, prometheus.CounterOpts{
			Name: "penstock_gateway_shadow_refusals_total",
			Help: "Requests that passed and that a rule in shadow mode would have refused.",
		}),
		replays: counter(reg, prometheus.CounterOpts{
			Name: "penstock_gateway_replays_total",
			Help: "Decisions answered again under a request id that was known, charging nothing.",
		}),
		seconds: histogram(reg, prometheus.HistogramOpts{
			Name:    "ratelimit_decision_latency_seconds",
			Help:    "Time to decide: finding the rules, the counter store, and what its answer means.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .0075, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
	}
	d.degraded = counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_gateway_degraded_total",
		Help: "Decisions without the counter store, by what decided in its stead: open let it pass, closed refused, local counted here, limit needed no store.",
	}, []string{"mode"}), modes)
	d.refunds = counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_gateway_refunds_total",
		Help: "Refunds that were asked for, of proxied requests included, by what became of each.",
	}, []string{"result"}), results)
	d.settled = counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_gateway_settlements_total",
		Help: "Settlements that were asked for, by what became of each.",
	}, []string{"result"}), results)
	return d, reg.err
}

// Decide is the decorated Decider's.
func (d *Decisions) Decide(ctx context.Context, q decide.Query) (decide.Decision, error) {
	began := time.Now()
	answer, err := d.next.Decide(ctx, q)
	d.account(ctx, &answer, err, time.Since(began))
	return answer, err
}

// DecideAll is the decorated Decider's. Each decision took as long as all.
func (d *Decisions) DecideAll(ctx context.Context, b *decide.Batch) {
	began := time.Now()
	d.next.DecideAll(ctx, b)
	took := time.Since(began)
	for i := range b.Decisions {
		d.account(ctx, &b.Decisions[i], b.Errs[i], took)
	}
}

// account counts one decision.
func (d *Decisions) account(ctx context.Context, answer *decide.Decision, err error, took time.Duration) {
	if err != nil {
		count(d.failures, failureOf(ctx, err))
		return
	}
	d.seconds.Observe(took.Seconds())
	count(d.decisions, answer.Outcome)
	count(d.refusals, answer.Code)
	if answer.Degraded {
		d.fallback.Inc()
		count(d.degraded, modeOf(answer))
	}
	if answer.Replayed {
		d.replays.Inc()
	} else if answer.Outcome == decide.Allow && (answer.ShadowBlocked || shadowed(answer.Limits)) {
		d.shadow.Inc()
	}
}

func modeOf(d *decide.Decision) mode {
	switch {
	case d.Local:
		return localMode
	case d.Code == decide.StoreUnavailable:
		return closedMode
	case d.Outcome == decide.Allow:
		return openMode
	default:
		return limitMode
	}
}

func failureOf(ctx context.Context, err error) failure {
	switch {
	case errors.Is(err, decide.ErrCost):
		return costOutOfBounds
	case errors.Is(err, decide.ErrRequestIDReused):
		return requestIDReused
	case ctx.Err() != nil:
		return callerGone
	default:
		return otherFailure
	}
}

// shadowed reports whether a shadow rule would have refused.
func shadowed(limits []decide.Limit) bool {
	for i := range limits {
		if l := &limits[i]; l.Mode == rule.Shadow && !l.Passed && !l.Soft {
			return true
		}
	}
	return false
}
