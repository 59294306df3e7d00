// Package observe holds the metrics of billing's invoices, books and face.
package observe

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what the service does. It is safe for concurrent use.
type Metrics struct {
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	invoices prometheus.Counter
	faults   prometheus.Counter
	lost     prometheus.Gauge
	missing  prometheus.Gauge
	flagged  prometheus.Gauge
	overdue  prometheus.Gauge
	accounts prometheus.Gauge
}

// A Survey is what the books say.
type Survey struct{ Missing, Lost, Flagged, Overdue, Accounts int64 }

// New registers the metrics. The operations are all that requests are counted by.
func New(reg prometheus.Registerer, operations []string) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_billing_requests_total", Help: "Requests answered, by operation and class of status.",
		}, []string{"operation", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_billing_request_seconds", Help: "From a request's header to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		invoices: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_invoices_total", Help: "Invoices made final by this process."}),
		faults: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_billing_finalize_faults_total", Help: "Rounds in which an invoice that was due could not be made.",
		}),
		lost: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_billing_lost_events", Help: "Events that gateways numbered and that have not come for 10 minutes: used and not billed.",
		}),
		missing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_billing_missing_events", Help: "Events that gateways numbered and that have not come, however short a time ago.",
		}),
		flagged: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_billing_flagged_entries", Help: "Entries of the wallets' ledger that a person should look at.",
		}),
		overdue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_billing_overdue_periods", Help: "Billing periods that should be final and are not, at the last look.",
		}),
		accounts: prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_billing_accounts", Help: "Tenants that are counted for."}),
	}
	for _, op := range operations {
		m.latency.WithLabelValues(op)
	}
	reg.MustRegister(m.requests, m.latency, m.invoices, m.faults, m.lost, m.missing, m.flagged, m.overdue, m.accounts)
	return m
}

// Request notes one answered request. The operation comes from a closed set.
func (m *Metrics) Request(operation string, status int, took time.Duration) {
	class := "none"
	if status >= 100 && status <= 599 {
		class = strconv.Itoa(status/100) + "xx"
	}
	m.requests.WithLabelValues(operation, class).Inc()
	m.latency.WithLabelValues(operation).Observe(took.Seconds())
}

// Tended notes one round of making invoices, and what the books said after it.
func (m *Metrics) Tended(made int, s Survey, err error) {
	m.invoices.Add(float64(made))
	if err != nil {
		m.faults.Inc()
		return
	}
	m.lost.Set(float64(s.Lost))
	m.missing.Set(float64(s.Missing))
	m.flagged.Set(float64(s.Flagged))
	m.overdue.Set(float64(s.Overdue))
	m.accounts.Set(float64(s.Accounts))
}
