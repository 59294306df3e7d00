// Package bench measures decisions of a gateway side by side with those of
// others, in one run and on one Redis: envoyproxy/ratelimit, the naive design,
// an empty server of grpc-go. Rounds are interleaved, and medians are told.
//
// Answers are looked at while they are measured, and what was charged is counted
// in Redis after each run: a wrong answer, an error or a wrong count is a fault.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/wire"
)

// Options say what is measured, and for how long.
type Options struct {
	Scenarios []Scenario
	Rounds    int
	Warm      time.Duration // before each measurement
	For       time.Duration // of each measurement
	System    system.Options
	Say       func(format string, args ...any)
}

// A Sample is what one run came to. CPU is per decision.
type Sample struct {
	PerSecond float64       `json:"per_second"` // decisions
	P50       time.Duration `json:"p50"`
	P99       time.Duration `json:"p99"`
	P999      time.Duration `json:"p99_9"`
	Max       time.Duration `json:"max"`
	LateP99   time.Duration `json:"generator_late_p99"`
	Server    time.Duration `json:"server_cpu"`
	Redis     time.Duration `json:"redis_cpu"`
	Broker    time.Duration `json:"broker_cpu"`
	Generator time.Duration `json:"generator_cpu"`
	Others    float64       `json:"others_share"` // of this machine's CPU, by processes that have no part in it
}

// A Result is what was measured: samples by scenario and contender, one of each
// round.
type Result struct {
	Machine system.Machine
	Samples map[string]map[string][]Sample
	Faults  []string // wrong answers, errors, wrong counts
}

// Run starts everything, measures, and ends everything.
func Run(ctx context.Context, o Options) (r Result, err error) {
	b := &bench{say: o.Say}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.open(ctx, o.System); err != nil {
		return r, err
	}
	if r.Machine, err = b.system.Describe(ctx); err != nil {
		return r, err
	}
	r.Samples = map[string]map[string][]Sample{}
	number := 0
	for round := range o.Rounds {
		for _, s := range o.Scenarios {
			if r.Samples[s.Name] == nil {
				r.Samples[s.Name] = map[string][]Sample{}
			}
			for _, name := range append([]string{ours}, s.Against...) {
				number++
				sample, faults, err := b.measure(ctx, b.contenders[name], turn{s, number}, o)
				if err != nil {
					return r, fmt.Errorf("%s, %s: %w", s.Name, name, err)
				}
				for _, f := range faults {
					r.Faults = append(r.Faults, fmt.Sprintf("%s, %s, round %d: %s", s.Name, name, round+1, f))
				}
				r.Samples[s.Name][name] = append(r.Samples[s.Name][name], sample)
				o.Say("%d/%d %-15s %-17s %8.0f/s  p50 %6.2f ms  p99 %6.2f ms  CPU µs: server %5.1f  redis %4.1f  broker %4.1f  generator %4.1f",
					round+1, o.Rounds, s.Name, name, sample.PerSecond, millis(sample.P50), millis(sample.P99),
					micros(sample.Server), micros(sample.Redis), micros(sample.Broker), micros(sample.Generator))
			}
		}
	}
	r.Machine.LoadAfter = system.Load()
	return r, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// A meter is the kernel's accounts at one time.
type meter struct{ server, redis, broker, own, all time.Duration }

func (b *bench) read(c *contender) meter {
	return meter{
		server: cpuOf(c.process.PID()), redis: cpuOf(b.redis.PID()), broker: cpuOf(b.system.Process(estate.Kafka).PID()),
		own: ownCPU(), all: busy(),
	}
}

// measure runs one contender's turn, and looks whether it was right.
func (b *bench) measure(ctx context.Context, c *contender, t turn, o Options) (s Sample, faults []string, err error) {
	var before, after meter
	l := wire.Load{
		Conns: t.Conns, InFlight: t.InFlight, Rate: t.Rate, Warm: o.Warm, For: o.For,
		Begin: func() { before = b.read(c) }, End: func() { after = b.read(c) },
	}
	if err := c.load(t, &l); err != nil {
		return s, nil, err
	}
	r, err := wire.Run(ctx, l)
	if err != nil {
		return s, nil, err
	}
	decisions := r.Measured * int64(c.weight)
	if decisions == 0 {
		return s, nil, fmt.Errorf("nothing was answered: %s", r.Why)
	}
	share := func(a, b time.Duration) time.Duration { return (b - a) / time.Duration(decisions) }
	quantile := func(q float64) time.Duration { return time.Duration(r.Latency.ValueAtQuantile(q)) }
	spent := func(m meter) time.Duration { return m.server + m.redis + m.broker + m.own }
	s = Sample{
		PerSecond: r.PerSecond() * float64(c.weight), P50: quantile(50), P99: quantile(99), P999: quantile(99.9), Max: time.Duration(r.Latency.Max()),
		LateP99: time.Duration(r.Late.ValueAtQuantile(99)), Server: share(before.server, after.server), Redis: share(before.redis, after.redis),
		Broker: share(before.broker, after.broker), Generator: r.CPU / time.Duration(decisions),
		Others: max(0, 1-float64(spent(after)-spent(before))/float64(max(1, after.all-before.all))),
	}
	faults, err = b.check(ctx, c, t, r)
	return s, faults, err
}

// check looks for what was wrong in a run.
func (b *bench) check(ctx context.Context, c *contender, t turn, r *wire.Result) (faults []string, err error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if r.Failed > 0 || r.Wrong > 0 {
		fault("%d of %d requests failed, %d were answered wrongly: %s", r.Failed, r.Sent, r.Wrong, r.Why)
	}
	if t.Denied != (r.Refused > r.Passed) {
		fault("%d passed, %d were refused", r.Passed, r.Refused)
	}
	if c.charged == nil {
		return faults, nil
	}
	charged, err := c.charged(ctx, t)
	if err != nil {
		return faults, err
	}
	if want := r.Passed * int64(c.weight); slices.ContainsFunc(charged, func(n int64) bool { return n != want }) {
		fault("%d units passed, and Redis holds %d", want, charged)
	}
	return faults, nil
}
