// Package observe holds rule-admin's metrics.
package observe

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
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
	topUps   *prometheus.CounterVec
	overdue  prometheus.Gauge
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
	m.topUps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_rule_admin_topups_total",
		Help: "Top-ups asked for, by how that ended; replayed: the answer that the key got first.",
	}, []string{"result"})
	m.overdue = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "penstock_rule_admin_topups_overdue", Help: "Top-ups that have expired and still count, at the last look.",
	})
	for _, r := range results {
		m.change.WithLabelValues(string(r))
		m.topUps.WithLabelValues(string(r))
	}
	m.topUps.WithLabelValues(string(replayed))
	reg.MustRegister(m.requests, m.latency, m.change, m.rows, m.pending, m.pruned, m.revision, m.topUps, m.overdue)
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
	replayed    result = "replayed" // of top-ups only
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

// Overdue notes how many top-ups have expired and still count.
func (m *Metrics) Overdue(n int) { m.overdue.Set(float64(n)) }

// Books returns next with its turns timed, as changes.
func (m *Metrics) Books(next ledger.Store) ledger.Store { return books{next, m} }

type books struct {
	ledger.Store
	m *Metrics
}

// Turn times the turn.
func (b books) Turn(ctx context.Context, tenant, meter, key string, decide func(ledger.Books, catalog.Moment) (*ledger.Entry, error)) error {
	start := time.Now()
	err := b.Store.Turn(ctx, tenant, meter, key, decide)
	b.m.change.WithLabelValues(string(resultOf(err))).Observe(time.Since(start).Seconds())
	return err
}

// A Ledger is one whose top-ups are counted.
type Ledger struct {
	*ledger.Ledger
	m *Metrics
}

// Ledger returns next with its top-ups counted.
func (m *Metrics) Ledger(next *ledger.Ledger) Ledger { return Ledger{next, m} }

// TopUp counts the top-up.
func (l Ledger) TopUp(ctx context.Context, r ledger.Request) (ledger.TopUp, bool, error) {
	made, again, err := l.Ledger.TopUp(ctx, r)
	how := resultOf(err)
	if err == nil && again {
		how = replayed
	}
	l.m.topUps.WithLabelValues(string(how)).Inc()
	return made, again, err
}
