package topics

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/threshold-watcher/threshold"
)

type metrics struct {
	announced map[threshold.Type]prometheus.Counter
	setAside  map[Reason]prometheus.Counter
	late      prometheus.Counter
	refused   prometheus.Counter
	unread    prometheus.Counter
	delay     prometheus.Histogram
	rebuild   prometheus.Histogram
}

// newMetrics makes every series at once, so that what never happened shows as 0.
func newMetrics(r prometheus.Registerer, w *Watcher) (*metrics, error) {
	announced := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_threshold_watcher_announced_total",
		Help: "Events written to quota-events.v1, by type.",
	}, []string{"type"})
	setAside := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_threshold_watcher_set_aside_total",
		Help: "Records of usage.v1 written to the dead-letter topic, by reason.",
	}, []string{"reason"})
	m := &metrics{
		announced: map[threshold.Type]prometheus.Counter{}, setAside: map[Reason]prometheus.Counter{},
		late: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_threshold_watcher_late_total",
			Help: "Counters in events whose period had ended longer ago than periods are kept; nothing is announced of them.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_threshold_watcher_unpublishable_total",
			Help: "Announcements that break the bounds of quota-events.v1 and were not written.",
		}),
		unread: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_threshold_watcher_unreadable_events_total",
			Help: "Records of quota-events.v1 that could not be read back; what they announced may be announced again under the same id.",
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_threshold_watcher_delay_seconds", Help: "Age of a decision when what it announced was committed.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400},
		}),
		rebuild: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_threshold_watcher_rebuild_seconds", Help: "Time to read back what was announced in one partition.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
	}
	for _, t := range threshold.Types {
		m.announced[t] = announced.WithLabelValues(strings.ToLower(t.String()))
	}
	for _, reason := range reasons {
		m.setAside[reason] = setAside.WithLabelValues(string(reason))
	}
	if r == nil {
		return m, nil
	}
	counters := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_threshold_watcher_counters",
		Help: "Counters remembered, each in one period: those of which something was announced.",
	}, func() float64 { return float64(w.held()) })
	partitions := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_threshold_watcher_partitions", Help: "Partitions of usage.v1 that are this instance's.",
	}, func() float64 { return float64(w.assigned()) })
	lag := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_threshold_watcher_lag_seconds",
		Help: "Age of the oldest record that is read and not done with; 0: there is none.",
	}, func() float64 { return w.hand.age().Seconds() })
	var errs []error
	for _, c := range []prometheus.Collector{announced, setAside, m.late, m.refused, m.unread, m.delay, m.rebuild, counters, partitions, lag} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}
