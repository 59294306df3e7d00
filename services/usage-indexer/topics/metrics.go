package topics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/usage-indexer/usagedoc"
)

var reasons = []usagedoc.Reason{
	usagedoc.Undecodable, usagedoc.UnknownSchema, usagedoc.TooOld, usagedoc.TooNew, usagedoc.Refused,
}

type metrics struct {
	setAside     map[usagedoc.Reason]prometheus.Counter
	batchSeconds prometheus.Histogram
	delay        prometheus.Histogram
	gaps         prometheus.Counter
	repeats      prometheus.Counter
}

// newMetrics makes every series at once, so that what never happened shows as 0.
func newMetrics(r prometheus.Registerer, x *Indexer) (*metrics, error) {
	setAside := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_usage_indexer_set_aside_total",
		Help: "Records written to the dead-letter topic instead of the index, by reason.",
	}, []string{"reason"})
	m := &metrics{
		setAside: map[usagedoc.Reason]prometheus.Counter{},
		batchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_usage_indexer_batch_seconds", Help: "Time from polling a batch to its being durable.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_usage_indexer_delay_seconds", Help: "Age of an event when the store had acknowledged its document.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400},
		}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_usage_indexer_sequence_gaps_total",
			Help: "Events that gateways numbered and that did not come: lost on the way to the topic, or not readable.",
		}),
		repeats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_usage_indexer_sequence_repeats_total",
			Help: "Events that came more than once, by their numbers.",
		}),
	}
	for _, reason := range reasons {
		m.setAside[reason] = setAside.WithLabelValues(string(reason))
	}
	if r == nil {
		return m, nil
	}
	missing := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_usage_indexer_sequence_missing",
		Help: "Events passed over by their numbers and not given up yet.",
	}, func() float64 { return float64(x.streams.missingNow()) })
	lag := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_usage_indexer_lag_seconds",
		Help: "Age of the oldest record that is read and not durable; grows while the store takes nothing; 0: there is none.",
	}, func() float64 { return x.hand.age().Seconds() })
	var errs []error
	for _, c := range []prometheus.Collector{setAside, m.batchSeconds, m.delay, m.gaps, m.repeats, missing, lag} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}
