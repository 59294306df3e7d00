package usage

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A reason is why an event is lost: the closed set of label values.
type reason string

// The reasons, as indices of reasons.
const (
	lostNoSpool  = iota // memory is full, and nothing is kept on disk, or not fast enough
	lostFull            // memory is full, and so is the spool
	lostDisk            // memory is full, and the disk does not take any
	lostRefused         // Kafka refuses this event for good
	lostDamaged         // it was on disk and cannot be read; a file of which nobody knows counts as one
	lostStopping        // the process ended and there was nowhere to put it
)

var reasons = [...]reason{"memory_full", "spool_full", "disk_failed", "refused", "damaged", "stopped"}

// An operation is what failed on disk: the closed set of label values.
type operation string

const (
	opening operation = "open"
	writing operation = "write"
	syncing operation = "sync"
)

type metrics struct {
	acknowledged prometheus.Counter
	repeats      prometheus.Counter
	failures     *prometheus.CounterVec
	delivery     prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, u *Usage) (*metrics, error) {
	m := &metrics{
		acknowledged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_gateway_usage_acknowledged_total",
			Help: "Usage events that Kafka has, also of former runs; one that was sent twice may count twice.",
		}),
		repeats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_gateway_usage_repeats_total",
			Help: "Usage events sent once more because Kafka's client gave them up.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_usage_spool_failures_total",
			Help: "Operations of the spool that the disk refused.",
		}, []string{"operation"}),
		delivery: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "penstock_gateway_usage_delivery_seconds",
			Help:    "From a decision until Kafka had its event: of the oldest event of each batch.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600, 3600},
		}),
	}
	for _, o := range []operation{opening, writing, syncing} {
		m.failures.WithLabelValues(string(o))
	}
	errs := []error{r.Register(m.acknowledged), r.Register(m.repeats), r.Register(m.failures), r.Register(m.delivery)}
	for _, c := range u.collectors() {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// collectors are read off the state when they are asked for: recording an
// event counts nothing twice.
func (u *Usage) collectors() []prometheus.Collector {
	list := []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "penstock_gateway_usage_recorded_total",
			Help: "Usage events that were made and kept for sending.",
		}, func() float64 { return float64(u.recorded()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "penstock_gateway_usage_cut_total",
			Help: "Usage events told with something cut or left out, to stay within the bounds of usage.v1.",
		}, func() float64 { return float64(u.cut.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_usage_buffer_bytes",
			Help: "Usage events in memory.",
		}, func() float64 { return float64(u.buffered()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_usage_buffer_limit_bytes",
			Help: "Memory for usage events.",
		}, func() float64 { return float64(u.free.bytes()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_usage_spool_bytes",
			Help: "Usage events on disk.",
		}, func() float64 { return float64(u.spooled()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_usage_spool_limit_bytes",
			Help: "Disk for usage events; 0: none.",
		}, func() float64 { return float64(u.cfg.Spool) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_usage_spooling_partitions",
			Help: "Partitions of usage.v1 whose events go to disk before they are sent.",
		}, func() float64 { return float64(u.spooling.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_gateway_usage_oldest_seconds",
			Help: "How long the oldest usage event has waited that Kafka does not have yet; 0: there is none.",
		}, func() float64 { return u.age(time.Now()).Seconds() }),
	}
	for i, why := range reasons {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "penstock_gateway_usage_lost_total",
			Help:        "Usage events that are lost, by reason; their numbers are missing in the stream.",
			ConstLabels: prometheus.Labels{"reason": string(why)},
		}, func() float64 {
			u.encode(time.Now())
			return float64(u.lost[i].Load())
		}))
	}
	return list
}
