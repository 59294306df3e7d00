package topics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// A reason says why a record is set aside.
type reason string

const (
	undecodable   reason = "undecodable"
	unknownSchema reason = "unknown_schema"
	refused       reason = "refused" // by the books
)

var reasons = []reason{undecodable, unknownSchema, refused}

type metrics struct {
	events       prometheus.Counter
	repeats      prometheus.Counter
	missing      prometheus.Counter
	late         prometheus.Counter
	outOfTime    prometheus.Counter
	flagged      prometheus.Counter
	skipped      prometheus.Counter
	setAside     map[reason]prometheus.Counter
	rules        prometheus.Counter
	rulesAside   prometheus.Counter
	batchSeconds prometheus.Histogram
	lag          prometheus.Gauge
	atRisk       prometheus.Gauge
}

// newMetrics makes every series at once, so that what never happened shows as 0.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	setAside := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_billing_set_aside_total", Help: "Records written to the dead-letter topic instead of the books, by reason.",
	}, []string{"reason"})
	m := &metrics{
		events:    prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_events_total", Help: "Events that were counted."}),
		repeats:   prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_repeats_total", Help: "Events that came again and had no effect."}),
		missing:   prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_passed_over_total", Help: "Numbers of events that were passed over when a later one came; some come after all."}),
		late:      prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_late_lines_total", Help: "Additions to periods that were final: they go to the next invoice."}),
		outOfTime: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_out_of_time_total", Help: "Additions that came too late, or from too far ahead, to be billed."}),
		flagged:   prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_flagged_entries_total", Help: "Ledger entries that a person should look at."}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_billing_skipped_records_total", Help: "Records of usage.v1 that the topic deleted before they were counted.",
		}),
		setAside:   map[reason]prometheus.Counter{},
		rules:      prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_rules_total", Help: "Changes of the catalogue that were taken."}),
		rulesAside: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_billing_rules_set_aside_total", Help: "Records of rules.v1 that could not be taken: what was known before stays."}),
		batchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_billing_batch_seconds", Help: "Time from reading a batch of events to its being in the books.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_billing_lag_seconds", Help: "Age of the oldest event that is in the topic and not in the books; 0: there is none.",
		}),
		atRisk: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_billing_usage_at_risk", Help: "1 while events wait so long that the topic will soon delete them uncounted, else 0.",
		}),
	}
	for _, why := range reasons {
		m.setAside[why] = setAside.WithLabelValues(string(why))
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.events, m.repeats, m.missing, m.late, m.outOfTime, m.flagged, m.skipped, setAside, m.rules, m.rulesAside, m.batchSeconds, m.lag, m.atRisk,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}
