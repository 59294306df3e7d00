package decisions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"penstock.dev/loadtest/client"
	"penstock.dev/loadtest/metrics"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
)

// load sends requests to one gateway.
type load struct {
	s       *system.System
	c       *catalogue
	gateway *client.Client
	direct  *client.Client // of the upstream
	allowed atomic.Int64   // units, of decisions that passed

	decisions, proxied [][]byte // prepared requests, sent in turn
	plain              []byte   // of the upstream
}

func newLoad(s *system.System, c *catalogue) (*load, error) {
	l := &load{s: s, c: c}
	var err1, err2 error
	l.gateway, err1 = client.New(s.Env["GATEWAY_URL"])
	l.direct, err2 = client.New(c.upstream)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	for _, q := range c.questions {
		l.decisions = append(l.decisions, l.gateway.Prepare(http.MethodPost, "/v1/decisions", q, "Authorization: Bearer "+s.Env["DECISION_TOKEN"]))
	}
	for _, key := range c.keys {
		l.proxied = append(l.proxied, l.gateway.Prepare(http.MethodGet, "/"+service+path, nil, "X-API-Key: "+key))
	}
	l.plain = l.direct.Prepare(http.MethodGet, path, nil)
	return l, nil
}

func (l *load) close() {
	l.gateway.CloseIdle()
	l.direct.CloseIdle()
}

// A reply is what a request came to.
type reply struct {
	allowed, refused, degraded bool // decided and let through, or not, or without the counter store
}

// A send sends request i and reads the answer to its end.
type send func(ctx context.Context, i int) (reply, error)

// latency is the gateway's own view of how long it takes.
func (l *load) latency(ctx context.Context) (*metrics.Histogram, error) {
	page, err := metrics.Read(ctx, l.s.Env["GATEWAY_METRICS_URL"])
	if err != nil {
		return nil, err
	}
	return page.Histogram("ratelimit_decision_latency_seconds")
}

// measure warms up, then sends by the schedule.
func (l *load) measure(ctx context.Context, s pace.Schedule, do send) (Stream, error) {
	l.close() // a server may have closed what was idle
	l.run(ctx, pace.Schedule{Rate: s.Rate, For: warmUp}, do)
	before, err := l.latency(ctx)
	if err != nil {
		return Stream{}, err
	}
	stream := l.run(ctx, s, do)
	after, err := l.latency(ctx)
	stream.Histogram = after.Since(before)
	return stream, err
}

func (l *load) run(ctx context.Context, s pace.Schedule, do send) Stream {
	type result struct {
		reply
		took time.Duration
		err  error
	}
	results := make([]result, s.Count())
	late := pace.Run(ctx, s, func(i int, due time.Time) {
		r := &results[i]
		r.reply, r.err = do(ctx, i)
		r.took = time.Since(due)
		if r.err == nil && r.allowed {
			l.allowed.Add(1)
		}
	})
	out := Stream{Offered: s.Rate, Sent: len(late), Late: stats.Of(late)}
	var took []time.Duration
	for _, r := range results[:len(late)] {
		if r.err != nil {
			out.Failed++
			out.Failure = r.err.Error()
			continue
		}
		if r.refused {
			out.Refused++
		}
		if r.degraded {
			out.Degraded++
		}
		took = append(took, r.took)
	}
	out.Latency = stats.Of(took)
	return out
}

// decide asks for a decision that charges one unit.
func (l *load) decide(ctx context.Context, i int) (r reply, err error) {
	err = l.gateway.Do(ctx, l.decisions[i%len(l.decisions)], func(status int, body []byte) error {
		if status != http.StatusOK {
			return fmt.Errorf("POST /v1/decisions: %d: %s", status, body)
		}
		r.allowed = bytes.Contains(body, []byte(`"outcome":"ALLOW"`))
		r.refused = !r.allowed
		r.degraded = !bytes.Contains(body, []byte(`"degraded":false`))
		return nil
	})
	return r, err
}

// proxy sends a request through the gateway to our own upstream.
func (l *load) proxy(ctx context.Context, i int) (reply, error) {
	err := l.gateway.Do(ctx, l.proxied[i%len(l.proxied)], wantOK)
	return reply{allowed: err == nil}, err
}

// upstream sends a request to our own upstream without a gateway.
func (l *load) upstream(ctx context.Context, _ int) (reply, error) {
	return reply{}, l.direct.Do(ctx, l.plain, wantOK)
}

func wantOK(status int, body []byte) error {
	if status != http.StatusOK {
		return fmt.Errorf("answered %d: %s", status, body)
	}
	return nil
}

// changes changes rules by the schedule.
func (l *load) changes(ctx context.Context, s pace.Schedule) (took stats.Summary, failed int) {
	var mu sync.Mutex
	var all []time.Duration
	pace.Run(ctx, s, func(i int, due time.Time) {
		err := l.c.change(ctx, i)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed++
			return
		}
		all = append(all, time.Since(due))
	})
	return stats.Of(all), failed
}
