package postgres

import (
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// A reason is why a session ended: a closed set, for it is a label.
type reason string

const (
	reasonDatabase reason = "database" // PostgreSQL refused or went away
	reasonPublish  reason = "publish"  // Kafka refused an event
	reasonOutbox   reason = "outbox"   // the outbox is not there or not readable
)

func reasonOf(err error) reason {
	switch {
	case errors.Is(err, errPublish):
		return reasonPublish
	case errors.Is(err, errNoPublication), errors.Is(err, errRow):
		return reasonOutbox
	default:
		return reasonDatabase
	}
}

type metrics struct {
	active    prometheus.Gauge
	events    prometheus.Counter
	failures  *prometheus.CounterVec
	rebuilt   *prometheus.CounterVec
	behind    prometheus.Histogram
	confirmed prometheus.Gauge
	retained  prometheus.Gauge
	safe      prometheus.Gauge
	lost      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_outbox_relay_active", Help: "1 while this relay holds the slot and reads; 0 while it stands by or reconnects.",
		}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_outbox_relay_events_total", Help: "Outbox events stored in Kafka, repeats included.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_outbox_relay_session_failures_total", Help: "Sessions that ended by a failure, by what failed.",
		}, []string{"reason"}),
		rebuilt: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_outbox_relay_slot_rebuilds_total", Help: "Slots made anew after publishing the kept outbox, by why: missing or lost.",
		}, []string{"cause"}),
		behind: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_outbox_relay_commit_to_read_seconds", Help: "From a commit, by the database's clock, to its end having been read.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .5, 1, 5, 30},
		}),
		confirmed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_outbox_relay_slot_unconfirmed_bytes", Help: "Log written since the position that the slot has confirmed.",
		}),
		retained: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_outbox_relay_slot_retained_bytes", Help: "Log that the database keeps because of the slot.",
		}),
		safe: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_outbox_relay_slot_safe_bytes", Help: "Log that may still be written before the slot is in danger of being lost; -1 when unlimited.",
		}),
		lost: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_outbox_relay_slot_lost", Help: "1 when the slot is missing or its log was removed.",
		}),
	}
	for _, r := range []reason{reasonDatabase, reasonPublish, reasonOutbox} {
		m.failures.WithLabelValues(string(r))
	}
	for _, c := range []string{"missing", "lost"} {
		m.rebuilt.WithLabelValues(c)
	}
	reg.MustRegister(m.active, m.events, m.failures, m.rebuilt, m.behind, m.confirmed, m.retained, m.safe, m.lost)
	return m
}

// New returns a source that publishes through publish. It does not connect.
func New(cfg Config, publish Publish, log *slog.Logger, reg prometheus.Registerer) *Source {
	cfg.MaxInFlight = max(cfg.MaxInFlight, 1)
	return &Source{cfg: cfg, publish: publish, log: log, m: newMetrics(reg)}
}
