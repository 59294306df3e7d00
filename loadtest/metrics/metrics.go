// Package metrics reads what a process tells on its admin port, as Prometheus
// does.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// A Page is what an admin port tells, a line for each series.
type Page []string

// Read asks an admin port, http://host:port.
func Read(ctx context.Context, admin string) (Page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return strings.Split(string(text), "\n"), err
}

// ErrNone reports a series or a histogram that is not told.
var ErrNone = errors.New("not among the metrics")

// Value is that of a series, named with its labels.
func (p Page) Value(series string) (float64, error) {
	for _, line := range p {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s: %w", series, ErrNone)
}

// Histogram is one that has no labels.
func (p Page) Histogram(name string) (*Histogram, error) {
	h := &Histogram{}
	for _, line := range p {
		bucket, ok := strings.CutPrefix(line, name+`_bucket{le="`)
		if !ok {
			continue
		}
		le, count, _ := strings.Cut(bucket, `"} `)
		bound, err1 := strconv.ParseFloat(le, 64)
		n, err2 := strconv.ParseFloat(count, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		h.bounds, h.counts = append(h.bounds, bound), append(h.counts, int64(n))
	}
	if len(h.bounds) == 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrNone)
	}
	return h, nil
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
