package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// An answer is what a request was answered: the closed set of label values. The
// statuses that the gate itself gives have their own, others their class.
type answer string

var answers = []answer{
	"2xx", "3xx", "4xx", "5xx", "400", "401", "403", "404", "429", "499", "502", "503", "504", "other",
}

// statuses are the answers that are one status.
var statuses = map[int]answer{
	400: "400", 401: "401", 403: "403", 404: "404", 429: "429", 499: "499", 502: "502", 503: "503", 504: "504",
}

// A refund is whether a charge could be given back: the closed set of label
// values.
type refund string

const (
	given refund = "given"
	kept  refund = "kept"
)

// buckets are in seconds.
var buckets = []float64{.0005, .001, .0025, .005, .0075, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}

// Requests counts the requests that came to the data port for an upstream. It
// is safe for concurrent use.
type Requests struct {
	total    map[answer]prometheus.Counter
	cut      prometheus.Counter
	seconds  prometheus.Histogram
	upstream prometheus.Histogram
	own      prometheus.Histogram
	queued   prometheus.Histogram
	refunds  map[refund]prometheus.Counter
}

// NewRequests returns counters. Metrics go to the given registerer; gateways is
// how many there are.
func NewRequests(r prometheus.Registerer, gateways func() int) (*Requests, error) {
	reg := &registry{Registerer: r}
	reg.add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_gateway_gateways",
		Help: "Gateways on this counter store, this one included, as it said last. Rules with on_failure local are shared among them.",
	}, func() float64 { return float64(gateways()) }))
	q := &Requests{
		total: counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_requests_total",
			Help: "Requests on the data port for an upstream, by the status they were answered or its class; 499: the client went away.",
		}, []string{"status"}), answers),
		cut: counter(reg, prometheus.CounterOpts{
			Name: "penstock_gateway_answers_cut_total",
			Help: "Answers that ended early, by the upstream's fault or because the gateway was closing.",
		}),
		seconds: histogram(reg, prometheus.HistogramOpts{
			Name: "penstock_gateway_request_seconds", Buckets: buckets,
			Help: "From a request's headers to the end of its answer.",
		}),
		upstream: histogram(reg, prometheus.HistogramOpts{
			Name: "penstock_gateway_upstream_seconds", Buckets: buckets,
			Help: "Waiting for an upstream's headers, or its failure; requests that were forwarded only.",
		}),
		queued: histogram(reg, prometheus.HistogramOpts{
			Name: "penstock_gateway_queue_seconds", Buckets: buckets,
			Help: "Waiting in the queue of a leaky bucket; requests that had to wait only.",
		}),
		refunds: counters(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_gateway_upstream_refunds_total",
			Help: "Charges of proxied requests to give back by their endpoint's refund_on, by whether they were: given, or kept because the counter store did not answer.",
		}, []string{"result"}), []refund{given, kept}),
		own: histogram(reg, prometheus.HistogramOpts{
			Name: "penstock_gateway_own_seconds", Buckets: buckets,
			Help: "The whole time of requests that were answered without an upstream, refusals above all.",
		}),
	}
	return q, reg.err
}

// An Answer is how one request was answered.
type Answer struct {
	Status   int
	Took     time.Duration
	Queued   time.Duration // part of it in a queue; 0: none
	Upstream time.Duration // part of it waiting for the upstream; 0: there was none
	Cut      bool          // it ended early
}

// Answered counts one request.
func (q *Requests) Answered(a Answer) {
	count(q.total, answerOf(a.Status))
	if a.Cut {
		q.cut.Inc()
	}
	q.seconds.Observe(a.Took.Seconds())
	if a.Queued > 0 {
		q.queued.Observe(a.Queued.Seconds())
	}
	if a.Upstream > 0 {
		q.upstream.Observe(a.Upstream.Seconds())
	} else {
		q.own.Observe(a.Took.Seconds())
	}
}

// Refunded counts one charge that was to be given back.
func (q *Requests) Refunded(ok bool) {
	if ok {
		count(q.refunds, given)
	} else {
		count(q.refunds, kept)
	}
}

func answerOf(status int) answer {
	if a, ok := statuses[status]; ok {
		return a
	}
	switch status / 100 {
	case 2:
		return "2xx"
	case 3:
		return "3xx"
	case 4:
		return "4xx"
	case 5:
		return "5xx"
	default:
		return "other"
	}
}
