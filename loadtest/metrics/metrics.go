// Package metrics reads histograms off a page of metrics, as Prometheus does.
package metrics

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock.dev/loadtest/stats"
)

// A Histogram is what a process says of a time: quantiles estimated within the
// buckets of a metric in seconds.
type Histogram struct {
	Count int64        `json:"count"`
	P50   stats.Millis `json:"p50_ms"`
	P99   stats.Millis `json:"p99_ms"`
	Max   stats.Millis `json:"max_ms"` // the bound of the last bucket that is not empty

	bounds []float64 // upper, seconds
	counts []int64   // cumulative
}

// Histograms reads those of the names off the metrics of an admin port. One that
// is missing is an error.
func Histograms(ctx context.Context, admin string, names ...string) (map[string]*Histogram, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	found := map[string]*Histogram{}
	for _, name := range names {
		found[name] = &Histogram{}
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), `_bucket{le="`)
		if h := found[name]; h != nil {
			if err := h.read(rest); err != nil {
				return nil, fmt.Errorf("metrics: %q: %w", lines.Text(), err)
			}
		}
	}
	for name, h := range found {
		if len(h.bounds) == 0 {
			return nil, fmt.Errorf("%s/metrics has no %s", admin, name)
		}
	}
	return found, lines.Err()
}

// read takes in a bucket, as it stands behind le=".
func (h *Histogram) read(bucket string) error {
	le, count, _ := strings.Cut(bucket, `"} `)
	bound, err := strconv.ParseFloat(le, 64)
	if err != nil {
		return err
	}
	n, err := strconv.ParseFloat(count, 64)
	h.bounds, h.counts = append(h.bounds, bound), append(h.counts, int64(n))
	return err
}

// Since is what was observed after an earlier look; nil when that was nothing.
func (h *Histogram) Since(before *Histogram) *Histogram {
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
	out.P50, out.P99, out.Max = out.quantile(0.5), out.quantile(0.99), out.quantile(1)
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
