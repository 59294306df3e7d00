package kafka

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"
)

// A reason is the closed set of label values for failures to produce.
type reason string

const (
	reasonBufferFull reason = "buffer_full"
	reasonTimeout    reason = "timeout"
	reasonNoTopic    reason = "no_topic"
	reasonTooLarge   reason = "too_large"
	reasonForbidden  reason = "forbidden"
	reasonClosed     reason = "closed"
	reasonCancelled  reason = "cancelled"
	reasonOther      reason = "other"
)

func reasonOf(err error) reason {
	for _, r := range []struct {
		err error
		as  reason
	}{
		{ErrBufferFull, reasonBufferFull},
		{ErrTimeout, reasonTimeout},
		{ErrNoTopic, reasonNoTopic},
		{ErrTooLarge, reasonTooLarge},
		{ErrForbidden, reasonForbidden},
		{ErrClosed, reasonClosed},
		{context.Canceled, reasonCancelled},
		{context.DeadlineExceeded, reasonCancelled},
	} {
		if errors.Is(err, r.err) {
			return r.as
		}
	}
	return reasonOther
}

// metrics are what a Client counts. The topic label holds topics that code
// passes to ReadLog and Consume, never one found in data.
type metrics struct {
	registerer      prometheus.Registerer
	produceFailures *prometheus.CounterVec
	logCaughtUp     *prometheus.GaugeVec
	logErrors       *prometheus.CounterVec
	logRecreations  *prometheus.CounterVec

	groupLag            *prometheus.GaugeVec
	groupBatches        prometheus.Counter
	groupRebalances     prometheus.Counter
	groupCommitFailures prometheus.Counter
	groupErrors         prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		registerer: r,
		produceFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_kafka_produce_failures_total",
			Help: "Records whose producer was told that they are not known to be stored, by reason.",
		}, []string{"reason"}),
		logCaughtUp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "penstock_kafka_log_caught_up",
			Help: "1 once a replayed topic has been read up to the end it had when reading began, else 0.",
		}, []string{"topic"}),
		logErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_kafka_log_errors_total",
			Help: "Errors met while replaying a topic; reading went on after each.",
		}, []string{"topic"}),
		logRecreations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_kafka_log_recreations_total",
			Help: "Times a replayed topic was found deleted and created anew.",
		}, []string{"topic"}),
		groupLag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "penstock_kafka_group_lag",
			Help: "Records that this member's partitions hold beyond what the group committed.",
		}, []string{"topic"}),
		groupBatches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_kafka_group_batches_total",
			Help: "Batches handled.",
		}),
		groupRebalances: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_kafka_group_rebalances_total",
			Help: "Rebalances of the group that this member took part in.",
		}),
		groupCommitFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_kafka_group_commit_failures_total",
			Help: "Attempts to commit offsets that failed.",
		}),
		groupErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_kafka_group_errors_total",
			Help: "Errors met while reading as a member of a group; reading went on after each.",
		}),
	}
	if r == nil {
		return m, nil
	}
	var err error
	m.produceFailures = registered(r, m.produceFailures, &err)
	m.logCaughtUp = registered(r, m.logCaughtUp, &err)
	m.logErrors = registered(r, m.logErrors, &err)
	m.logRecreations = registered(r, m.logRecreations, &err)
	m.groupLag = registered(r, m.groupLag, &err)
	m.groupBatches = registered(r, m.groupBatches, &err)
	m.groupRebalances = registered(r, m.groupRebalances, &err)
	m.groupCommitFailures = registered(r, m.groupCommitFailures, &err)
	m.groupErrors = registered(r, m.groupErrors, &err)
	return m, err
}

// registered registers c, or returns its twin when a second client of the same
// process did so before.
func registered[C prometheus.Collector](r prometheus.Registerer, c C, err *error) C {
	e := r.Register(c)
	var twin prometheus.AlreadyRegisteredError
	if errors.As(e, &twin) {
		if t, ok := twin.ExistingCollector.(C); ok {
			return t
		}
	}
	*err = errors.Join(*err, e)
	return c
}

// A clientHook counts what one connection pool does, under its role. Labels are
// the role alone: neither brokers nor topics.
type clientHook struct {
	*kprom.Metrics
	registerer prometheus.Registerer
	registered bool
}

func (m *metrics) client(role string) *clientHook {
	return &clientHook{registerer: m.registerer, Metrics: kprom.NewMetrics("penstock_kafka",
		kprom.Registry(nil), // collected through register, which can be refused
		kprom.WithStaticLabel(prometheus.Labels{"role": role}),
		kprom.BrokerLabels(),
		kprom.FetchAndProduceDetail(kprom.Batches, kprom.Records, kprom.CompressedBytes, kprom.UncompressedBytes, kprom.ConsistentNaming),
		kprom.Histograms(kprom.RequestDurationE2E),
		kprom.NativeBucketFactor(1),
	)}
}

func (h *clientHook) opt() kgo.Opt { return kgo.WithHooks(h) }

// register exposes the pool's numbers. A second pool with the same role goes
// without: one of each is what a service has.
func (h *clientHook) register() {
	h.registered = h.registerer != nil && h.registerer.Register(h.Metrics) == nil
}

// OnClientClosed takes the numbers of a closed pool away.
func (h *clientHook) OnClientClosed(*kgo.Client) {
	if h.registered {
		h.registerer.Unregister(h.Metrics)
	}
}
