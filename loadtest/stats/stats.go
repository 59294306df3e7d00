// Package stats says what a set of durations looks like, exactly: it sorts all
// of them. Means are not offered (docs/adr/0025).
package stats

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// A Millis is a duration that is written in milliseconds, with three digits
// behind the point, in JSON and in tables.
type Millis time.Duration

// MarshalJSON writes milliseconds as a number.
func (m Millis) MarshalJSON() ([]byte, error) { return []byte(m.number()), nil }

// String shows milliseconds for people.
func (m Millis) String() string { return m.number() + " ms" }

func (m Millis) number() string { return fmt.Sprintf("%.3f", m.Float()) }

// Float is how many milliseconds it is.
func (m Millis) Float() float64 { return float64(m) / float64(time.Millisecond) }

// A Summary is the quantiles of a set of durations.
type Summary struct {
	Count int    `json:"count"`
	P50   Millis `json:"p50_ms"`
	P90   Millis `json:"p90_ms"`
	P99   Millis `json:"p99_ms"`
	P999  Millis `json:"p99_9_ms"`
	Max   Millis `json:"max_ms"`
}

// Of summarises durations, which it leaves as they are. None make a Summary of
// zeros with Count 0.
func Of(durations []time.Duration) Summary {
	sorted := slices.Sorted(slices.Values(durations))
	return Summary{
		Count: len(sorted), P50: Millis(Quantile(sorted, 0.5)), P90: Millis(Quantile(sorted, 0.9)),
		P99: Millis(Quantile(sorted, 0.99)), P999: Millis(Quantile(sorted, 0.999)), Max: Millis(Quantile(sorted, 1)),
	}
}

// Quantile returns the smallest of the sorted durations that at least q of them
// do not exceed (nearest rank), 0 of none. q is 0 to 1.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// A Row is a named Summary.
type Row struct {
	Name    string  `json:"name"`
	Summary Summary `json:"summary"`
}

// Table writes rows in milliseconds.
func Table(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "ms\tn\tp50\tp90\tp99\tp99.9\tmax\t")
	for _, r := range rows {
		s := r.Summary
		_, _ = fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.Name, s.Count,
			s.P50.Float(), s.P90.Float(), s.P99.Float(), s.P999.Float(), s.Max.Float())
	}
	return t.Flush()
}
