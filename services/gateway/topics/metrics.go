package topics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/schemas/rulesv1"
	"penstock.dev/services/gateway/decide"
)

// A reason is why a record is set aside: the closed set of label values.
type reason string

const (
	badKey      reason = "key"         // the key names no object
	undecodable reason = "undecodable" // the bytes are no record, or break its bounds
	tooNew      reason = "too_new"     // a symbol or a feature that this version does not know
	unsupported reason = "unsupported" // known, and not served by this version
	invalid     reason = "invalid"     // decoded, and not to be kept
)

var reasons = []reason{badKey, undecodable, tooNew, unsupported, invalid}

// kinds are the label values of records by kind.
var kinds = []rulesv1.Kind{
	rulesv1.KindTenant, rulesv1.KindApplication, rulesv1.KindUser, rulesv1.KindAPIKey, rulesv1.KindService,
	rulesv1.KindEndpoint, rulesv1.KindPlan, rulesv1.KindRule, rulesv1.KindWallet, rulesv1.KindGrant, rulesv1.KindUnknown,
}

// metrics are what the log and the snapshot come to.
type metrics struct {
	records     *prometheus.CounterVec
	poison      *prometheus.CounterVec
	lastRecord  prometheus.Gauge
	propagation prometheus.Histogram
	saves       prometheus.Counter
	saveSeconds prometheus.Histogram
	failures    *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, r *Rules) (*metrics, error) {
	m := &metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_rules_records_total",
			Help: "Records of rules.v1 read, tombstones and repeats included, by kind of object.",
		}, []string{"kind"}),
		poison: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_rules_poison_total",
			Help: "Records of rules.v1 set aside, by reason; the last good record of the key stays in force.",
		}, []string{"reason"}),
		lastRecord: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_gateway_rules_last_record_timestamp_seconds",
			Help: "When a record of rules.v1 was last read, as a Unix time; 0: never.",
		}),
		propagation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "penstock_gateway_rules_propagation_seconds",
			Help:    "From the commit of a change, by the clock of who wrote it, until it was in force here; once caught up.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}),
		saves: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_gateway_snapshot_writes_total",
			Help: "Snapshots of the rules written to disk.",
		}),
		saveSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "penstock_gateway_snapshot_write_seconds",
			Help:    "Time to write a snapshot of the rules, until the disk has it.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30},
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_snapshot_failures_total",
			Help: "Snapshots of the rules that could not be written, or were refused when they were read.",
		}, []string{"operation"}),
	}
	for _, k := range kinds {
		m.records.WithLabelValues(string(k))
	}
	for _, v := range reasons {
		m.poison.WithLabelValues(string(v))
	}
	for _, operation := range []string{"read", "write"} {
		m.failures.WithLabelValues(operation)
	}
	collectors := append(r.gauges(), m.records, m.poison, m.lastRecord, m.propagation, m.saves, m.saveSeconds, m.failures)
	var errs []error
	for _, c := range collectors {
		errs = append(errs, registerer.Register(c))
	}
	return m, errors.Join(errs...)
}

// gauges are read off the state when they are asked for.
func (r *Rules) gauges() []prometheus.Collector {
	list := []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_rules_revision",
			Help: "Highest revision of rules.v1 that is in force.",
		}, func() float64 { return float64(r.book.Current().Revision()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_rules_set_aside",
			Help: "Keys whose newest record is set aside.",
		}, r.locked(func() float64 { return float64(len(r.stage.aside)) })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_rules_missing",
			Help: "Keys whose newest record is set aside and of which no good one is known; not ready while above 0.",
		}, r.locked(func() float64 { return float64(len(r.missing())) })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_rules_stalled",
			Help: "1 while a record waits for the schema registry, else 0.",
		}, r.locked(func() float64 { return truth(r.stalled != nil) })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_rules_caught_up",
			Help: "1 once rules.v1 was read to the end it had at the start, else 0.",
		}, r.locked(func() float64 { return truth(r.caughtUp) })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_snapshot_serving",
			Help: "1 while decisions are made from what was in force before and not from rules.v1, else 0.",
		}, r.locked(func() float64 { return truth(r.cold) })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_snapshot_timestamp_seconds",
			Help: "When the snapshot on disk was taken, as a Unix time; 0: there is none.",
		}, r.locked(func() float64 { return seconds(r.saved) })),
	}
	for _, k := range []decide.Kind{decide.TenantKind, decide.KeyKind, decide.ServiceKind, decide.EndpointKind, decide.RuleKind, decide.WalletKind} {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "penstock_gateway_rules_objects",
			Help:        "Objects in force, by kind; disabled rules are not.",
			ConstLabels: prometheus.Labels{"kind": string(k)},
		}, func() float64 { return float64(r.book.Current().Count(k)) }))
	}
	return list
}

func (r *Rules) locked(value func() float64) func() float64 {
	return func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return value()
	}
}

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}
