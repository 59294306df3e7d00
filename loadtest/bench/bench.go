// Package bench measures decisions of a gateway side by side with those of
// others, in one run and on one Redis: envoyproxy/ratelimit, the naive design,
// an empty server of grpc-go. Rounds are interleaved, and medians are told.
//
// Answers are looked at while they are measured, and what was charged is counted
// in Redis after each run: a wrong answer, an error or a wrong count is a fault.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// A Result is what was measured: samples by scenario and contender, one of each
// round.
type Result struct {
	Root    string // the clone
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
	r.Root = b.root
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
				o.Say("%d/%d %-15s %-19s %s", round+1, o.Rounds, s.Name, name, sample)
			}
		}
	}
	r.Machine.LoadAfter = system.Load()
	return r, nil
}

// measure runs one contender's turn, and looks whether it was right.
func (b *bench) measure(ctx context.Context, c *contender, t turn, o Options) (s Sample, faults []string, err error) {
	if c.run != nil {
		s, err = c.run(ctx, t, o)
		return s, nil, err
	}
	var m meter
	l := wire.Load{
		Conns: cmp.Or(c.conns, t.Conns), InFlight: t.InFlight, Rate: t.Rate, Warm: o.Warm, For: o.For,
		Begin: func() { m.begin(b, c) }, End: func() { m.end(b, c) },
	}
	if err := c.load(t, &l); err != nil {
		return s, nil, err
	}
	freezes := t.Frozen && !c.calm
	var hung [2]error
	if freezes {
		l.Begin = func() { m.begin(b, c); hung[0] = b.redis.Freeze() }
		l.End = func() { hung[1] = b.redis.Thaw(); m.end(b, c) }
	}
	before, err := c.told(ctx)
	if err != nil {
		return s, nil, err
	}
	r, err := wire.Run(ctx, l)
	if err = errors.Join(err, hung[0], hung[1]); err != nil {
		return s, nil, err
	}
	if r.Measured == 0 {
		return s, nil, fmt.Errorf("nothing was answered: %s", r.Why)
	}
	s = sampleOf(r, &m, int64(c.weight))
	if before != nil {
		after, err := c.told(ctx)
		if err != nil {
			return s, nil, err
		}
		s.Runtime = after.runtime.since(before.runtime)
		if fault, err := c.awaitEvents(ctx, before, r.Answered()*int64(c.weight)); fault != "" || err != nil {
			return s, []string{fault}, err
		}
		if fault, err := c.awaitLeases(ctx); fault != "" || err != nil {
			return s, []string{fault}, err
		}
	}
	if freezes {
		if err := await(ctx, c.decider(b)); err != nil {
			return s, nil, err
		}
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
	if t.Frozen {
		return faults, nil
	}
	if t.Denied != (r.Refused > 0) || r.Passed == 0 {
		fault("%d passed, %d were refused", r.Passed, r.Refused)
	}
	if c.charged == nil {
		return faults, nil
	}
	charged, err := c.charged(ctx, t)
	if err != nil {
		return faults, err
	}
	least := r.Passed * int64(c.weight)
	most := least + r.Degraded*int64(c.weight) // Redis may have counted what it did not answer in time
	if slices.ContainsFunc(charged, func(n int64) bool { return n < least || n > most }) {
		fault("%d to %d units passed, and Redis holds %d", least, most, charged)
	}
	return faults, nil
}
