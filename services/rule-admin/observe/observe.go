// Package observe holds rule-admin's metrics.
package observe

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/rule-admin/catalog"
)

// Metrics counts what the service does. It is safe for concurrent use.
type Metrics struct {
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	change   *prometheus.HistogramVec
	rows     prometheus.Gauge
	pending  prometheus.Gauge
	pruned   prometheus.Counter
	revision prometheus.Gauge
}

// New registers the metrics.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_rule_admin_requests_total",
			Help: "Requests answered, by operation, kind of object and class of status.",
		}, []string{"operation", "kind", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_rule_admin_request_seconds", Help: "From a request's header to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		change: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_rule_admin_change_seconds", Help: "One change, from the wait for its turn to the end of its commit, by how it ended.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"result"}),
		rows: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_rule_admin_outbox_rows", Help: "Rows that the outbox keeps.",
		}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_rule_admin_outbox_prunable_rows", Help: "Rows of the outbox that nobody needs any more and that are still there.",
		}),
		pruned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_rule_admin_outbox_pruned_total", Help: "Rows of the outbox deleted because newer ones had replaced them for long.",
		}),
		revision: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_rule_admin_revision", Help: "Revision of the last change, of all instances.",
		}),
	}
	for _, r := range results {
		m.change.WithLabelValues(string(r))
	}
	reg.MustRegister(m.requests, m.latency, m.change, m.rows, m.pending, m.pruned, m.revision)
	return m
}

// Request notes one answered request. Operation and kind come from closed sets
// and are empty where a request had none.
func (m *Metrics) Request(operation, kind string, status int, took time.Duration) {
	class := "none"
	if status >= 100 && status <= 599 {
		class = strconv.Itoa(status/100) + "xx"
	}
	m.requests.WithLabelValues(operation, kind, class).Inc()
	m.latency.WithLabelValues(operation).Observe(took.Seconds())
}

// Outbox notes what the outbox holds, how many rows were pruned since the last
// call, and the revision.
func (m *Metrics) Outbox(rows, pending, pruned, revision int64) {
	m.rows.Set(float64(rows))
	m.pending.Set(float64(pending))
	m.pruned.Add(float64(pruned))
	m.revision.Set(float64(revision))
}

// A result is how a change ended: a closed set, for it is a label.
type result string

const (
	committed   result = "committed"
	refused     result = "refused"     // by the catalogue
	unavailable result = "unavailable" // the database or the registry
	failed      result = "failed"
)

var results = []result{committed, refused, unavailable, failed}

func resultOf(err error) result {
	switch {
	case err == nil:
		return committed
	case errors.Is(err, catalog.ErrUnavailable), errors.Is(err, catalog.ErrNoSchema):
		return unavailable
	}
	for _, r := range []error{
		catalog.ErrInvalid, catalog.ErrNotFound, catalog.ErrInUse, catalog.ErrConflict, catalog.ErrStale, catalog.ErrConditionRequired,
	} {
		if errors.Is(err, r) {
			return refused
		}
	}
	return failed
}

// Store returns next with its changes timed.
func (m *Metrics) Store(next catalog.Store) catalog.Store { return store{next, m} }

type store struct {
	catalog.Store
	m *Metrics
}

// Change times the change.
func (s store) Change(ctx context.Context, kind catalog.Kind, id string, near []catalog.Ref, decide catalog.Decide) error {
	start := time.Now()
	err := s.Store.Change(ctx, kind, id, near, decide)
	s.m.change.WithLabelValues(string(resultOf(err))).Observe(time.Since(start).Seconds())
	return err
}
