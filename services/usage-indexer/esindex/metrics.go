package esindex

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/usage-indexer/usagedoc"
)

// A cause is why documents were sent again. The values are a closed set.
type cause string

const (
	causeRejected    cause = "rejected"    // the store is full: 429
	causeUnavailable cause = "unavailable" // it answered 5xx
	causeTransport   cause = "transport"   // it did not answer, or not in time
	causeUnreadable  cause = "unreadable"  // its answer made no sense
	causeTooLarge    cause = "too_large"   // the request was: 413
	causeMalformed   cause = "malformed"   // something in the request spoiled all of it
	causePaused      cause = "paused"      // an operator must help
)

var causes = []cause{causeRejected, causeUnavailable, causeTransport, causeUnreadable, causeTooLarge, causeMalformed, causePaused}

// A task is what the housekeeping does. The values are a closed set.
type task string

const (
	taskTemplate  task = "template"
	taskIndices   task = "indices"
	taskRetention task = "retention"
)

var tasks = []task{taskTemplate, taskIndices, taskRetention}

var results = map[usagedoc.Verdict]string{
	usagedoc.Created: "created", usagedoc.Duplicate: "duplicate", usagedoc.Rejected: "rejected",
}

type metrics struct {
	documents   map[usagedoc.Verdict]prometheus.Counter
	retries     map[cause]prometheus.Counter
	failures    map[task]prometheus.Counter
	bulkSeconds prometheus.Histogram
	deleted     prometheus.Counter
}

// newMetrics makes every series at once, so that what never happened shows as 0.
func newMetrics(r prometheus.Registerer, h *health) (*metrics, error) {
	documents := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_usage_indexer_documents_total",
		Help: "Documents that ended, by result: created, duplicate (it was there already) or rejected (the store will never take it).",
	}, []string{"result"})
	retries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_usage_indexer_retries_total",
		Help: "Requests after which documents were sent again, by cause.",
	}, []string{"cause"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_usage_indexer_maintenance_failures_total",
		Help: "Times that the template, coming indices or old indices could not be seen to, by task.",
	}, []string{"task"})
	m := &metrics{
		documents: map[usagedoc.Verdict]prometheus.Counter{}, retries: map[cause]prometheus.Counter{}, failures: map[task]prometheus.Counter{},
		bulkSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_usage_indexer_bulk_seconds", Help: "Time that one bulk request took.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_usage_indexer_deleted_indices_total", Help: "Daily indices deleted because they were beyond the retention.",
		}),
	}
	for v, name := range results {
		m.documents[v] = documents.WithLabelValues(name)
	}
	for _, c := range causes {
		m.retries[c] = retries.WithLabelValues(string(c))
	}
	for _, t := range tasks {
		m.failures[t] = failures.WithLabelValues(string(t))
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{documents, retries, failures, m.bulkSeconds, m.deleted, stateGauge{h}} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// stateGauge shows the state of the store when asked.
type stateGauge struct{ health *health }

var stateDesc = prometheus.NewDesc("penstock_usage_indexer_store_state",
	"1 for the state the store is in, 0 for the others: ok, retrying (it asks for patience or does not answer), paused (an operator must help).",
	[]string{"state"}, nil)

// Describe sends the description.
func (stateGauge) Describe(ch chan<- *prometheus.Desc) { ch <- stateDesc }

// Collect sends one sample for each state.
func (g stateGauge) Collect(ch chan<- prometheus.Metric) {
	at, _ := g.health.worst()
	for _, s := range states {
		v := 0.0
		if s == at {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, v, string(s))
	}
}
