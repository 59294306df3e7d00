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
}

// NewRequests returns counters. Metrics go to the given registerer.
func NewRequests(r prometheus.Registerer) (*Requests, error) {
	reg := &registry{Registerer: r}
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
		own: histogram(reg, prometheus.HistogramOpts{
			Name: "penstock_gateway_own_seconds", Buckets: buckets,
			Help: "The whole time of requests that were answered without an upstream, refusals above all.",
		}),
	}
	return q, reg.err
}

// Answered counts one request: its status; the upstream's share of the time, 0
// when there was none; and whether the answer was cut.
func (q *Requests) Answered(status int, took, waited time.Duration, cut bool) {
	count(q.total, answerOf(status))
	if cut {
		q.cut.Inc()
	}
	q.seconds.Observe(took.Seconds())
	if waited > 0 {
		q.upstream.Observe(waited.Seconds())
	} else {
		q.own.Observe(took.Seconds())
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
