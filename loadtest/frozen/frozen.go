// Package frozen measures what a gateway does while its counter store hangs:
// Redis is stopped as by a debugger, so that its connections stay open and
// nothing on them is answered. Three tenants ask in turn all the while, one
// under a rule of each failure mode.
package frozen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/client"
	"penstock.dev/loadtest/pace"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
)

// The rule of the tenant that is counted locally: this many a second, of which
// the burst may come at once.
const (
	LocalRate  = 20
	LocalBurst = 20
)

// Options say how much is sent, and for how long the store hangs.
type Options struct {
	Rate   float64       // decisions a second, a third of them for each mode; more than three times LocalRate
	Freeze time.Duration // how long the store hangs
	Around time.Duration // how long is sent before and after
	Say    func(format string, args ...any)
}

// Answers are how one mode's decisions were answered while the store hung.
type Answers struct {
	Sent    int    `json:"sent"`
	Passed  int    `json:"passed"`
	Limited int    `json:"limited"` // 429
	Closed  int    `json:"closed"`  // 503
	Wrong   int    `json:"wrong"`   // not marked as degraded, with a number, or no decision at all
	Example string `json:"an_example_of_these,omitempty"`

	Took stats.Summary `json:"took"` // by all of its decisions that were due while the store hung
}

// A Result is what was measured.
type Result struct {
	Before    stats.Summary `json:"before"`
	Frozen    stats.Summary `json:"frozen"` // of every decision that was due while the store hung
	After     stats.Summary `json:"after"`
	Late      stats.Summary `json:"generator_late"`
	Open      Answers       `json:"open"`
	Closed    Answers       `json:"closed"`
	Local     Answers       `json:"local"`
	Failed    int           `json:"failed"` // of all
	Early     int           `json:"degraded_before"`
	Hung      stats.Millis  `json:"hung"`
	Recovered stats.Millis  `json:"recovered"` // from when the store went on to the last answer that it did not give
}

// Rows are the result as a table.
func (r Result) Rows() []stats.Row {
	return []stats.Row{
		{Name: "before", Summary: r.Before},
		{Name: "while the store hangs", Summary: r.Frozen},
		{Name: "of them open", Summary: r.Open.Took},
		{Name: "closed", Summary: r.Closed.Took},
		{Name: "local", Summary: r.Local.Took},
		{Name: "after", Summary: r.After},
		{Name: "generator late", Summary: r.Late},
	}
}

// ErrNotOurs reports a system whose Redis is not this run's to stop.
var ErrNotOurs = errors.New("the counter store of a system that runs already is not stopped: leave -env out")

// Run hangs the store under load and measures. It removes what it made.
func Run(ctx context.Context, s *system.System, o Options) (r Result, err error) {
	redis := s.Process(estate.Redis)
	if redis == nil {
		return r, ErrNotOurs
	}
	c, err := makeCatalogue(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.remove(context.WithoutCancel(ctx))) }()
	gateway, err := client.New(s.Env["GATEWAY_URL"])
	if err != nil {
		return r, err
	}
	defer gateway.CloseIdle()
	var requests [][]byte
	for _, mode := range modes {
		requests = append(requests, gateway.Prepare("POST", "/v1/decisions", question(mode), "Authorization: Bearer "+s.Env["DECISION_TOKEN"]))
	}
	o.Say("%.0f decisions a second for %v, of which the counter store hangs for %v", o.Rate, o.Freeze+2*o.Around, o.Freeze)
	schedule := pace.Schedule{Rate: o.Rate, For: o.Freeze + 2*o.Around}
	results := make([]result, schedule.Count())
	hung := make(chan window, 1)
	go func() { hung <- hang(ctx, redis.Freeze, redis.Thaw, o) }()
	late := pace.Run(ctx, schedule, func(i int, due time.Time) {
		res := &results[i]
		res.due = due
		res.err = gateway.Do(ctx, requests[i%len(requests)], func(status int, body []byte) error {
			res.took = time.Since(due)
			if status != 200 {
				return fmt.Errorf("POST /v1/decisions: %d: %s", status, body)
			}
			return json.Unmarshal(body, &res.answer)
		})
	})
	w := <-hung
	if w.err != nil || ctx.Err() != nil {
		return r, errors.Join(w.err, ctx.Err())
	}
	r.Late = stats.Of(late)
	r.judge(results[:len(late)], w)
	return r, nil
}

// A window is when the store hung.
type window struct {
	from, to time.Time
	err      error
}

// hang stops the store for a while, and has it go on whatever happens.
func hang(ctx context.Context, freeze, thaw func() error, o Options) window {
	sleep := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	sleep(o.Around)
	err := freeze()
	w := window{from: time.Now(), err: err}
	sleep(o.Freeze)
	w.to = time.Now()
	w.err = errors.Join(w.err, thaw())
	return w
}

// An answer is the part of a decision that is looked at.
type answer struct {
	Outcome  string            `json:"outcome"`
	Status   int               `json:"status"`
	Code     string            `json:"code"`
	Degraded bool              `json:"degraded"`
	Limits   []json.RawMessage `json:"limits"`
}

type result struct {
	answer
	due  time.Time
	took time.Duration
	err  error
}

// settling is how long before its end the store may answer what it was asked
// while it hung: a question waits for up to the budget.
const settling = 100 * time.Millisecond

// judge sorts the results by when they were due.
func (r *Result) judge(results []result, w window) {
	var before, during, after []time.Duration
	var each [len(modes)][]time.Duration
	last := w.to
	for i := range results {
		res := &results[i]
		if res.err != nil {
			r.Failed++
		}
		switch {
		case res.due.Before(w.from.Add(-settling)):
			before = append(before, res.took)
			if res.Degraded {
				r.Early++
			}
		case res.due.Before(w.from):
		case res.due.Before(w.to):
			during = append(during, res.took)
			each[i%len(modes)] = append(each[i%len(modes)], res.took)
			if res.due.Before(w.to.Add(-settling)) {
				r.answers(i).add(modes[i%len(modes)], res)
			}
		default:
			after = append(after, res.took)
			if res.Degraded && res.due.After(last) {
				last = res.due
			}
		}
	}
	r.Before, r.Frozen, r.After = stats.Of(before), stats.Of(during), stats.Of(after)
	for i := range modes {
		r.answers(i).Took = stats.Of(each[i])
	}
	r.Hung, r.Recovered = stats.Millis(w.to.Sub(w.from)), stats.Millis(last.Sub(w.to))
}

func (r *Result) answers(i int) *Answers {
	return [...]*Answers{&r.Open, &r.Closed, &r.Local}[i%len(modes)]
}

// add counts one answer of a mode.
func (a *Answers) add(mode string, r *result) {
	a.Sent++
	good := r.err == nil && r.Degraded && len(r.Limits) == 0
	switch {
	case good && r.Outcome == "ALLOW" && r.Status == 200 && mode != "closed":
		a.Passed++
	case good && r.Status == 429 && r.Code == "rate-limited" && mode == "local":
		a.Limited++
	case good && r.Status == 503 && r.Code == "store-unavailable" && mode == "closed":
		a.Closed++
	default:
		a.Wrong++
		a.Example = fmt.Sprintf("%+v %v", r.answer, r.err)
	}
}
