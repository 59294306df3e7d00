package topics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct{ poison, holes prometheus.Counter }

func newMetrics(r prometheus.Registerer, x *Reader) (*metrics, error) {
	m := &metrics{
		poison: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_checkpointer_poison_total",
			Help: "Records of usage.v1 that are no event.",
		}),
		holes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_checkpointer_holes_total",
			Help: "Times that a partition of usage.v1 did not go on where it was left.",
		}),
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_checkpointer_checkpoint_age_seconds",
		Help: "Time since the last checkpoint.",
	}, x.age)
	return m, errors.Join(r.Register(m.poison), r.Register(m.holes), r.Register(age))
}
