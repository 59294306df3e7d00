// Package observe says what the keeper does: in metrics and in the log.
package observe

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock.dev/services/checkpointer/checkpoint"
)

// How a store was restored.
const (
	tailWhole   = "whole"
	tailPartial = "partial" // the topic no longer had all of it
	tailMissing = "missing" // usage.v1 could not be read in time
)

// Metrics are a checkpoint.Report.
type Metrics struct {
	log      *slog.Logger
	wallets  atomic.Bool
	missed   prometheus.Counter
	saved    prometheus.Counter
	saving   prometheus.Histogram
	restores *prometheus.CounterVec
	took     prometheus.Gauge
	restored prometheus.Counter
	lowered  prometheus.Counter
	counters prometheus.Gauge
	drift    prometheus.Gauge

	mu      sync.Mutex
	failing map[string]*failure // by what is done
}

// A failure is what goes on failing.
type failure struct {
	began, said time.Time
	unsaid      int // times since
}

// sayEvery is how often the log says of a failure that it goes on.
const sayEvery = time.Minute

// New returns metrics. Unsafe says whether the store may lose what it counts.
func New(r prometheus.Registerer, log *slog.Logger, unsafe func() bool) (*Metrics, error) {
	m := &Metrics{
		log: log, failing: map[string]*failure{},
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_checkpointer_failures_total",
			Help: "Looks, sweeps and reads that failed and are tried again.",
		}),
		saved: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_checkpointer_saved_total",
			Help: "Counters saved by checkpoints.",
		}),
		saving: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_checkpointer_save_seconds", Help: "Time one checkpoint took.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30},
		}),
		restores: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_checkpointer_restores_total",
			Help: "Counter stores restored, by what there was of usage.v1 beyond the checkpoint.",
		}, []string{"tail"}),
		took: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_checkpointer_restore_seconds",
			Help: "Time the last restore took.",
		}),
		restored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_checkpointer_restored_total",
			Help: "Counters that restores made anew or raised.",
		}),
		lowered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_checkpointer_lowered_total",
			Help: "Counters that said less than was known while somebody vouched for them, and were raised, or that cannot be read: deleted or set behind everybody's back.",
		}),
		counters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_checkpointer_counters",
			Help: "Quotas and wallets kept, when they were last swept.",
		}),
		drift: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_checkpointer_unattributed_units",
			Help: "Units by which what was used differs from what events told, when they were last swept.",
		}),
	}
	for _, tail := range []string{tailWhole, tailPartial, tailMissing} {
		m.restores.WithLabelValues(tail)
	}
	return m, errors.Join(
		r.Register(m.missed), r.Register(m.saved), r.Register(m.saving), r.Register(m.restores), r.Register(m.took),
		r.Register(m.restored), r.Register(m.lowered), r.Register(m.counters), r.Register(m.drift),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "penstock_checkpointer_store_unsafe",
			Help: "1 while the counter store may lose what it counts: an evicting memory policy, or wallets and no append-only file.",
		}, func() float64 {
			if unsafe() {
				return 1
			}
			return 0
		})),
	)
}

// Wallets reports whether any wallet is kept.
func (m *Metrics) Wallets() bool { return m.wallets.Load() }

// Missed is what the keeper calls. It is logged when it begins, and once a minute while it
// goes on.
func (m *Metrics) Missed(ctx context.Context, doing string, err error) {
	m.missed.Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	f := m.failing[doing]
	if f == nil {
		f = &failure{began: now}
		m.failing[doing] = f
	}
	f.unsaid++
	if now.Sub(f.said) < sayEvery {
		return
	}
	m.log.WarnContext(ctx, "tried again", "doing", doing, "error", err.Error(), "times", f.unsaid)
	f.said, f.unsaid = now, 0
}

// Done is what the keeper calls. It is logged where it failed before.
func (m *Metrics) Done(ctx context.Context, doing string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.failing[doing]; f != nil {
		m.log.InfoContext(ctx, "goes well again", "doing", doing, "after", time.Since(f.began).Round(time.Millisecond).String())
		delete(m.failing, doing)
	}
}

// Saved is what the keeper calls.
func (m *Metrics) Saved(counters int, took time.Duration) {
	m.saved.Add(float64(counters))
	m.saving.Observe(took.Seconds())
}

// Began is what the keeper calls.
func (m *Metrics) Began(ctx context.Context) {
	m.log.InfoContext(ctx, "nothing is known of the counter store: it is kept from now on")
}

// Recovered is what the keeper calls.
func (m *Metrics) Recovered(ctx context.Context, r checkpoint.Recovery) {
	m.took.Set(r.Took.Seconds())
	m.restored.Add(float64(r.Added + r.Raised))
	log := m.log.With("added", r.Added, "raised", r.Raised, "unreadable", r.Unreadable, "marks", r.Marks, "took", r.Took.String())
	switch {
	case !r.Tail:
		m.restores.WithLabelValues(tailMissing).Inc()
		log.ErrorContext(ctx, "counter store restored to the checkpoint alone, for usage.v1 cannot be read: what was used since may be used again, and corrections of earlier decisions are refused",
			"error", r.Reason.Error())
	case !r.Whole:
		m.restores.WithLabelValues(tailPartial).Inc()
		log.ErrorContext(ctx, "counter store restored, but usage.v1 no longer had all that is beyond the checkpoint: what was used then may be used again, and corrections of earlier decisions are refused")
	default:
		m.restores.WithLabelValues(tailWhole).Inc()
		log.WarnContext(ctx, "counter store restored: it was emptied, replaced or restarted")
	}
}

// Lowered is what the keeper calls.
func (m *Metrics) Lowered(ctx context.Context, r checkpoint.Restored) {
	m.lowered.Add(float64(r.Added + r.Raised + r.Unreadable))
	m.restored.Add(float64(r.Added + r.Raised))
	m.log.ErrorContext(ctx, "counters said less than was known and were raised, or cannot be read: something deletes or sets them behind the service's back",
		"missing", r.Added, "lower", r.Raised, "unreadable", r.Unreadable)
}

// Stock is what the keeper calls.
func (m *Metrics) Stock(s checkpoint.Stock) {
	m.counters.Set(float64(s.Counters))
	m.drift.Set(float64(s.Unattributed))
	m.wallets.Store(s.Wallets > 0)
}
