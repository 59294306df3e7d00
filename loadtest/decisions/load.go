package decisions

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
)

// load sends requests to one gateway.
type load struct {
	s       *system.System
	c       *catalogue
	client  *http.Client
	allowed atomic.Int64 // units, of decisions that passed
}

func newLoad(s *system.System, c *catalogue) *load {
	const connections = 1024 // kept open at most; an open loop opens as many as it needs
	return &load{s: s, c: c, client: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxIdleConns: connections, MaxIdleConnsPerHost: connections, DisableCompression: true},
	}}
}

// A reply is what a request came to.
type reply struct {
	allowed, refused, degraded bool // decided and let through, or not, or without the counter store
}

// A send sends request i and reads the answer to its end.
type send func(ctx context.Context, i int) (reply, error)

// measure warms up, then sends by the schedule.
func (l *load) measure(ctx context.Context, s pace.Schedule, do send) (Stream, error) {
	l.run(ctx, pace.Schedule{Rate: s.Rate, For: warmUp}, do)
	before, err := scrape(ctx, l.s.Env["GATEWAY_METRICS_URL"])
	if err != nil {
		return Stream{}, err
	}
	stream := l.run(ctx, s, do)
	after, err := scrape(ctx, l.s.Env["GATEWAY_METRICS_URL"])
	stream.Histogram = after.since(before)
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
func (l *load) decide(ctx context.Context, i int) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.s.Env["GATEWAY_URL"]+"/v1/decisions", bytes.NewReader(l.c.question(i)))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Authorization", "Bearer "+l.s.Env["DECISION_TOKEN"])
	req.Header.Set("Content-Type", "application/json")
	var answer struct {
		Outcome  string `json:"outcome"`
		Degraded bool   `json:"degraded"`
	}
	body, err := l.do(req, http.StatusOK)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	passed := answer.Outcome == "ALLOW"
	return reply{allowed: passed, refused: !passed, degraded: answer.Degraded}, err
}

// proxied sends a request through the gateway to our own upstream.
func (l *load) proxied(ctx context.Context, i int) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.s.Env["GATEWAY_URL"]+"/"+service+path, http.NoBody)
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("X-API-Key", l.c.key(i))
	_, err = l.do(req, http.StatusOK)
	return reply{allowed: err == nil}, err
}

// direct sends a request to our own upstream without a gateway.
func (l *load) direct(ctx context.Context, _ int) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.c.upstream+path, http.NoBody)
	if err != nil {
		return reply{}, err
	}
	_, err = l.do(req, http.StatusOK)
	return reply{}, err
}

func (l *load) do(req *http.Request, want int) ([]byte, error) {
	resp, err := l.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, resp.Status, body)
	}
	return body, err
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
