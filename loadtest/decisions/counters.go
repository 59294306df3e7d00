package decisions

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/stats"
)

// charged is what the monthly quotas of all tenants have consumed.
func (c *catalogue) charged(ctx context.Context) (int64, error) {
	var sum int64
	for i := range tenants {
		a, err := c.peek(ctx, c.deciders[0], tenant(i))
		if err != nil {
			return 0, err
		}
		sum += a.consumed(tenant(i) + "-month")
	}
	return sum, nil
}

// awaitGateways waits until every gateway decides by all rules of every tenant.
func (c *catalogue) awaitGateways(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, d := range c.deciders {
		for i := range tenants {
			for {
				a, err := c.peek(ctx, d, tenant(i))
				if err == nil && len(a.Limits) == len(rules("")) {
					break
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("%s does not know the rules of %s: %d of them, %w", d.URL, tenant(i), len(a.Limits), err)
				case <-tick.C:
				}
			}
		}
	}
	return nil
}

// An answer is the part of a decision that is counted with.
type answer struct {
	Limits []struct {
		RuleID   string `json:"rule_id"`
		Consumed int64  `json:"consumed"`
	} `json:"limits"`
}

func (a answer) consumed(rule string) int64 {
	for _, l := range a.Limits {
		if l.RuleID == rule {
			return l.Consumed
		}
	}
	return 0
}

// peek asks for a decision of cost 0.
func (c *catalogue) peek(ctx context.Context, d *estate.Decider, tenant string) (answer, error) {
	var a answer
	body, err := json.Marshal(object{
		"tenant": tenant, "user": "u00", "service": service, "method": http.MethodGet, "path": path, "client_ip": "192.0.2.7", "cost": 0,
	})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/v1/decisions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+d.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("peek: %s: %s", resp.Status, text)
	}
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(text, &a)
}

// A Histogram is the gateway's own view of a time: quantiles estimated within
// the buckets of ratelimit_decision_latency_seconds, as Prometheus does.
type Histogram struct {
	Count int64        `json:"count"`
	P50   stats.Millis `json:"p50_ms"`
	P99   stats.Millis `json:"p99_ms"`

	bounds []float64 // upper, seconds
	counts []int64   // cumulative
}

const latency = "ratelimit_decision_latency_seconds_bucket"

// scrape reads the histogram of a gateway.
func scrape(ctx context.Context, admin string) (*Histogram, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	h := &Histogram{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), latency+`{le="`)
		if !ok {
			continue
		}
		le, count, _ := strings.Cut(rest, `"} `)
		bound, err1 := strconv.ParseFloat(le, 64)
		n, err2 := strconv.ParseFloat(count, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("metrics: %q", lines.Text())
		}
		h.bounds, h.counts = append(h.bounds, bound), append(h.counts, int64(n))
	}
	if len(h.bounds) == 0 {
		return nil, fmt.Errorf("%s/metrics has no %s", admin, latency)
	}
	return h, nil
}

// since is what was observed after an earlier scrape.
func (h *Histogram) since(before *Histogram) *Histogram {
	if h == nil || before == nil || len(h.counts) != len(before.counts) {
		return nil
	}
	out := &Histogram{bounds: h.bounds}
	for i := range h.counts {
		out.counts = append(out.counts, h.counts[i]-before.counts[i])
	}
	out.Count = out.counts[len(out.counts)-1]
	if out.Count == 0 {
		return nil
	}
	out.P50, out.P99 = out.quantile(0.5), out.quantile(0.99)
	return out
}

// quantile interpolates within the bucket that holds it.
func (h *Histogram) quantile(q float64) stats.Millis {
	rank := q * float64(h.Count)
	low, below := 0.0, int64(0)
	for i, bound := range h.bounds {
		if float64(h.counts[i]) >= rank {
			if math.IsInf(bound, 1) {
				bound = low // all that is known
			}
			share := 1.0
			if in := h.counts[i] - below; in > 0 {
				share = (rank - float64(below)) / float64(in)
			}
			return stats.Millis((low + (bound-low)*share) * float64(time.Second))
		}
		low, below = bound, h.counts[i]
	}
	return stats.Millis(low * float64(time.Second))
}
