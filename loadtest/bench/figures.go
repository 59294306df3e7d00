package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"penstock.dev/loadtest/metrics"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/wire"
)

// A Sample is what one run came to, and Figures the medians of several. CPU is
// µs per decision, of the whole process.
type Sample struct {
	PerSecond float64      `json:"per_second"` // decisions
	P50       stats.Millis `json:"p50_ms"`
	P99       stats.Millis `json:"p99_ms"`
	P999      stats.Millis `json:"p99_9_ms"`
	Max       stats.Millis `json:"max_ms"` // of all rounds
	Server    float64      `json:"server_cpu_us"`
	Redis     float64      `json:"redis_cpu_us"`
	Broker    float64      `json:"broker_cpu_us"`
	Generator float64      `json:"generator_cpu_us"`
	LateP99   stats.Millis `json:"generator_late_p99_ms"` // of an open loop
	Others    float64      `json:"others_cpu_share"`      // of the machine: what processes took that have no part in it
	Degraded  float64      `json:"degraded_share"`        // of all answers: those given without the counter store
	Runtime   *Runtime     `json:"runtime,omitempty"`
}

// A Runtime is what the gateway's own runtime did meanwhile, by its metrics.
type Runtime struct {
	Pauses *metrics.Histogram `json:"gc_pauses"`         // of the world
	Sched  *metrics.Histogram `json:"scheduler_latency"` // from when a goroutine could run until it did
}

// Metrics of Go's runtime.
const (
	pausesMetric = "go_sched_pauses_total_gc_seconds"
	schedMetric  = "go_sched_latencies_seconds"
)

// runtimeOf reads the metrics of a gateway's runtime.
func runtimeOf(p metrics.Page) (*Runtime, error) {
	pauses, err1 := p.Histogram(pausesMetric)
	sched, err2 := p.Histogram(schedMetric)
	return &Runtime{pauses, sched}, errors.Join(err1, err2)
}

func (r *Runtime) since(before *Runtime) *Runtime {
	return &Runtime{r.Pauses.Since(before.Pauses), r.Sched.Since(before.Sched)}
}

// sampleOf reads a load of which each answer is so many decisions.
func sampleOf(r *wire.Result, m *meter, decisions int64) Sample {
	each := func(d time.Duration) float64 { return micros(d) / float64(r.Measured*decisions) }
	quantile := func(q float64) stats.Millis { return stats.Millis(r.Latency.ValueAtQuantile(q)) }
	return Sample{
		PerSecond: r.PerSecond() * float64(decisions),
		P50:       quantile(50), P99: quantile(99), P999: quantile(99.9), Max: stats.Millis(r.Latency.Max()),
		Server: each(m.after.server - m.before.server), Redis: each(m.after.redis - m.before.redis), Broker: each(m.after.broker - m.before.broker),
		Generator: each(r.CPU), LateP99: stats.Millis(r.Late.ValueAtQuantile(99)), Others: m.others(),
		Degraded: float64(r.Degraded) / float64(r.Answered()),
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// String is a line for whoever waits.
func (s Sample) String() string {
	return fmt.Sprintf("%8.0f/s  p50 %8v  p99 %8v  CPU µs: server %5.1f  Redis %4.1f  broker %4.1f  generator %4.1f  others %2.0f %%",
		s.PerSecond, s.P50, s.P99, s.Server, s.Redis, s.Broker, s.Generator, 100*s.Others)
}

// An Outcome is a scenario: our figures, what they are to others', and theirs.
type Outcome struct {
	Sample
	RatioEnvoy float64           `json:"ratio_envoy"` // of decisions a second; 0: that one was not measured
	RatioNaive float64           `json:"ratio_naive"`
	Peers      map[string]Sample `json:"peers"`
}

// Outcomes are the medians by scenario.
func (r *Result) Outcomes() map[string]Outcome {
	all := map[string]Outcome{}
	for name, by := range r.Samples {
		o := Outcome{Sample: medians(by[ours]), Peers: map[string]Sample{}}
		for peer, samples := range by {
			if peer != ours {
				o.Peers[peer] = medians(samples)
			}
		}
		o.RatioEnvoy, o.RatioNaive = o.ratio(envoy), o.ratio(naive)
		all[name] = o
	}
	return all
}

// ratio is our decisions a second by a peer's; 0 without it.
func (o *Outcome) ratio(peer string) float64 {
	if p, ok := o.Peers[peer]; ok && p.PerSecond > 0 {
		return o.PerSecond / p.PerSecond
	}
	return 0
}

// medians of each figure by itself. The longest answer and the runtime are
// those of the worst round.
func medians(samples []Sample) Sample {
	if len(samples) == 0 {
		return Sample{}
	}
	m := Sample{
		PerSecond: median(samples, func(s Sample) float64 { return s.PerSecond }),
		P50:       median(samples, func(s Sample) stats.Millis { return s.P50 }),
		P99:       median(samples, func(s Sample) stats.Millis { return s.P99 }),
		P999:      median(samples, func(s Sample) stats.Millis { return s.P999 }),
		Server:    median(samples, func(s Sample) float64 { return s.Server }),
		Redis:     median(samples, func(s Sample) float64 { return s.Redis }),
		Broker:    median(samples, func(s Sample) float64 { return s.Broker }),
		Generator: median(samples, func(s Sample) float64 { return s.Generator }),
		LateP99:   median(samples, func(s Sample) stats.Millis { return s.LateP99 }),
		Others:    median(samples, func(s Sample) float64 { return s.Others }),
		Degraded:  median(samples, func(s Sample) float64 { return s.Degraded }),
	}
	for _, s := range samples {
		m.Max = max(m.Max, s.Max)
		if s.Runtime == nil {
			continue
		}
		if m.Runtime == nil {
			m.Runtime = &Runtime{}
		}
		m.Runtime.Pauses, m.Runtime.Sched = worse(m.Runtime.Pauses, s.Runtime.Pauses), worse(m.Runtime.Sched, s.Runtime.Sched)
	}
	return m
}

func median[T cmp.Ordered](samples []Sample, of func(Sample) T) T {
	values := make([]T, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// worse is the one with the longer tail.
func worse(a, b *metrics.Histogram) *metrics.Histogram {
	if a == nil || b != nil && (b.Max > a.Max || b.Max == a.Max && b.P99 > a.P99) {
		return b
	}
	return a
}

// Table writes the outcomes of scenarios in their order.
func Table(w io.Writer, scenarios []Scenario, outcomes map[string]Outcome) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "scenario\t\tdecisions/s\tp50 ms\tp99 ms\tserver µs\tRedis µs\tbroker µs\tgenerator µs\tours is\t")
	for _, s := range scenarios {
		o := outcomes[s.Name]
		row := func(scenario, name string, f Sample, ratio string) {
			_, _ = fmt.Fprintf(t, "%s\t%s\t%.0f\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t\n", scenario, name, f.PerSecond,
				f.P50.Float(), f.P99.Float(), f.Server, f.Redis, f.Broker, f.Generator, ratio)
		}
		row(s.Name, ours, o.Sample, "")
		for _, peer := range s.Against {
			row("", peer, o.Peers[peer], fmt.Sprintf("× %.2f", o.ratio(peer)))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return runtimeTable(w, scenarios, outcomes)
}

// runtimeTable writes what the gateway's runtime did.
func runtimeTable(w io.Writer, scenarios []Scenario, outcomes map[string]Outcome) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "\nour runtime, the worst round, ms\tGC pauses\tp99\tmax\tscheduler p99\tmax\t")
	for _, s := range scenarios {
		r := outcomes[s.Name].Runtime
		if r == nil {
			continue
		}
		pauses, sched := r.Pauses, r.Sched
		if pauses == nil {
			pauses = &metrics.Histogram{}
		}
		if sched == nil {
			sched = &metrics.Histogram{}
		}
		_, _ = fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t\n", s.Name, pauses.Count, pauses.P99.Float(), pauses.Max.Float(), sched.P99.Float(), sched.Max.Float())
	}
	return t.Flush()
}
