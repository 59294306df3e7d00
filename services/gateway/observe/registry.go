package observe

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/gateway/decide"
)

// A registry registers and collects the errors.
type registry struct {
	prometheus.Registerer
	err error
}

func (r *registry) add(c prometheus.Collector) {
	r.err = errors.Join(r.err, r.Register(c))
}

func counter(r *registry, opts prometheus.CounterOpts) prometheus.Counter {
	c := prometheus.NewCounter(opts)
	r.add(c)
	return c
}

// counters makes a counter for every value that a label can have, so that each
// reads 0 before it has counted and none is ever added.
func counters[T ~string](r *registry, vec *prometheus.CounterVec, values []T) map[T]prometheus.Counter {
	r.add(vec)
	all := make(map[T]prometheus.Counter, len(values))
	for _, v := range values {
		all[v] = vec.WithLabelValues(string(v))
	}
	return all
}

// count adds one under a value that is one of the set; other values, a pass's
// empty code among them, are not counted.
func count[T ~string](set map[T]prometheus.Counter, value T) {
	if c, ok := set[value]; ok {
		c.Inc()
	}
}

// Repeated introduces to the metrics how many denials were said again without the
// counter store.
func Repeated(r prometheus.Registerer, hits func() uint64) error {
	reg := &registry{Registerer: r}
	reg.add(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "penstock_gateway_denials_repeated_total",
		Help: "Decisions refused without asking the counter store, which had refused the same question a moment ago.",
	}, func() float64 { return float64(hits()) }))
	return reg.err
}

// Leased introduces leases to the metrics.
func Leased(r prometheus.Registerer, l *decide.Leases) error {
	reg := &registry{Registerer: r}
	reg.add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_gateway_leases",
		Help: "Counters of which this gateway holds units, or is not to take any for a moment.",
	}, func() float64 { return float64(l.Len()) }))
	for what, units := range map[string]func(decide.LeaseUnits) int64{
		"taken":    func(u decide.LeaseUnits) int64 { return u.Taken },
		"spent":    func(u decide.LeaseUnits) int64 { return u.Spent },
		"returned": func(u decide.LeaseUnits) int64 { return u.Returned },
		"lost":     func(u decide.LeaseUnits) int64 { return u.Lost },
	} {
		reg.add(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "penstock_gateway_lease_units_total",
			Help:        "Units taken of counters beforehand, and what became of them when their lease ended: spent, returned to the counter, or lost: not counted there any more, paid back by time, or nobody knows.",
			ConstLabels: prometheus.Labels{"what": what},
		}, func() float64 { return float64(units(l.Units())) }))
	}
	return reg.err
}

func histogram(r *registry, opts prometheus.HistogramOpts) prometheus.Histogram {
	h := prometheus.NewHistogram(opts)
	r.add(h)
	return h
}
