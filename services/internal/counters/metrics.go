package counters

import (
	"errors"
	"fmt"

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
)

// outcomes lists every outcome, so that each is exported from the start.
var outcomes = []outcome{outcomeAnswered, outcomeTimeout, outcomeLate, outcomeConnection, outcomeRefused}

// A spare is the closed set of label values for decisions that were not sent.
type spare string

const (
	sparedBreaker spare = "breaker" // open after repeated misses
	sparedQueue   spare = "queue"   // no turn within the budget
)

// metrics are what a Store counts.
type metrics struct {
	calls     *prometheus.CounterVec
	seconds   prometheus.Histogram
	decisions prometheus.Counter
	spared    *prometheus.CounterVec
	loads     prometheus.Counter
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
	}
	for _, o := range outcomes {
		m.calls.WithLabelValues(string(o))
	}
	for _, r := range []spare{sparedBreaker, sparedQueue} {
		m.spared.WithLabelValues(string(r))
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_counters_breaker_open",
		Help: "1 while the breaker spares callers the wait for the counter store.",
	}, s.breaker.open)
	offset := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_counters_clock_offset_seconds",
		Help: "Estimate of the counter store's clock less this process's.",
	}, func() float64 { return s.clock.offset().Seconds() })
	var errs []error
	for _, c := range []prometheus.Collector{m.calls, m.seconds, m.decisions, m.spared, m.loads, open, offset} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}
