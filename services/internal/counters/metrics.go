package counters

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// An outcome is the closed set of label values for calls.
type outcome string

const (
	outcomeAnswered   outcome = "answered"
	outcomeTimeout    outcome = "timeout"    // no reply within the budget
	outcomeLate       outcome = "late"       // we woke up long after the budget: says nothing of the store
	outcomeConnection outcome = "connection" // refused, reset, or closed under way
	outcomeRefused    outcome = "refused"    // the store answered with an error
	outcomeRedirected outcome = "redirected" // a cluster's node pointed elsewhere; the call was sent there
)

// outcomes lists every outcome, so that each is exported from the start.
var outcomes = []outcome{outcomeAnswered, outcomeTimeout, outcomeLate, outcomeConnection, outcomeRefused, outcomeRedirected}

// A spare is the closed set of label values for decisions that were not sent.
type spare string

const (
	sparedBreaker spare = "breaker" // open after repeated misses
	sparedQueue   spare = "queue"   // no turn within the budget
	sparedCrowd   spare = "crowd"   // too many wait already
)

// A giving is the closed set of label values for groups of a decision across
// the slots of a cluster that were charged and had to be given back.
type giving string

const (
	givenBack giving = "given"
	givenNot  giving = "failed" // they stay charged until their windows end
)

// metrics are what a Store counts.
type metrics struct {
	calls     *prometheus.CounterVec
	seconds   prometheus.Histogram
	decisions prometheus.Counter
	spared    *prometheus.CounterVec
	loads     prometheus.Counter
	adopted   prometheus.Counter
	returned  *prometheus.CounterVec
}

// spare counts decisions that were not sent.
func (m *metrics) spare(why spare, decisions int) {
	m.spared.WithLabelValues(string(why)).Add(float64(decisions))
}

func newMetrics(r prometheus.Registerer, s *Store) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_counters_calls_total",
			Help: "Script calls to the counter store, by how they ended.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "penstock_counters_call_duration_seconds",
			Help:    "Round trip of an answered script call.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25},
		}),
		decisions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_counters_decisions_total",
			Help: "Decisions sent to the counter store; several may share a call.",
		}),
		spared: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_counters_spared_total",
			Help: "Decisions that were not sent and charged nothing, by what spared the counter store.",
		}, []string{"reason"}),
		loads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_counters_script_loads_total",
			Help: "Calls that carried the script's text because the store did not know it.",
		}),
		adopted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_counters_adopted_total",
			Help: "Times that an emptied, replaced or restarted counter store (of a cluster, a slot) was adopted as it is.",
		}),
		returned: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_counters_given_back_total",
			Help: "Groups of a decision across slots of a cluster that were charged and then refused elsewhere, by whether they were given back.",
		}, []string{"result"}),
	}
	for _, o := range outcomes {
		m.calls.WithLabelValues(string(o))
	}
	for _, r := range []spare{sparedBreaker, sparedQueue, sparedCrowd} {
		m.spared.WithLabelValues(string(r))
	}
	for _, g := range []giving{givenBack, givenNot} {
		m.returned.WithLabelValues(string(g))
	}
	var errs []error
	for _, c := range append(s.gauges(), m.calls, m.seconds, m.decisions, m.spared, m.loads, m.adopted, m.returned) {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}

// gauges read s when they are asked.
func (s *Store) gauges() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_counters_breaker_open",
			Help: "1 while the breaker of a node spares callers the wait for it.",
		}, s.anyNode(func(n *node) bool { return n.breaker.open() })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_counters_vouched",
			Help: "0 while a counter store was emptied, replaced or restarted and nobody vouches for its quotas.",
		}, func() float64 { return 1 - s.anyNode((*node).isLost)() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_counters_evicting",
			Help: "1 while a counter store deletes counters when its memory is full (maxmemory-policy is not noeviction).",
		}, s.anyNode(func(n *node) bool { return evicting(n.policy.Load()) })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_counters_volatile",
			Help: "1 while a counter store keeps no append-only file, so that a restart forgets what it holds (appendonly is not yes).",
		}, s.anyNode(func(n *node) bool { return n.volatile.Load() })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_counters_waiting",
			Help: "Callers that wait for their turn.",
		}, func() float64 { return float64(s.crowd.waiting.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_counters_clock_offset_seconds",
			Help: "Estimate of the counter store's clock less this process's.",
		}, func() float64 { return s.clock.offset().Seconds() }),
	}
}

// anyNode is 1 while is says so of a node.
func (s *Store) anyNode(is func(*node) bool) func() float64 {
	return func() float64 {
		if slices.ContainsFunc(s.nodes(), is) {
			return 1
		}
		return 0
	}
}
