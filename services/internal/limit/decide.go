package limit

import (
	"fmt"
	"time"

	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// Remember is how long a request id is known.
const Remember = 24 * time.Hour

// A Value is what one counter holds. The zero Value is an untouched counter.
type Value struct {
	// Of a bucket: Debt credits are owed as of At (µs since the epoch), Unit
	// of them for one unit.
	Debt, Unit, At int64

	// Of a fixed window and a sliding counter: From is the first instant (µs)
	// of the window whose units are Current; Previous are those of the one
	// before it.
	From, Current, Previous int64

	// Of a sliding log: its entries, and the total in front of them.
	Log    []Entry
	Before int64

	// Of a quota or a wallet, in units. Both only rise.
	Consumed, Refunded int64
}

// A verdict is what asking came to, in µs.
type verdict struct {
	wait  int64 // 0: passes; -1: never will
	delay int64 // of what passes, in a queue
}

var passes = verdict{}

func refusedFor(wait int64) verdict { return verdict{wait: wait} }

// tell fills in what r says of the verdict.
func (a verdict) tell(r *Result) {
	r.Passed, r.RetryAfter = a.wait == 0, time.Duration(a.wait)*time.Microsecond
	if a.wait < 0 {
		r.RetryAfter = Never
	}
	r.Delay = time.Duration(a.delay) * time.Microsecond
}

// An algorithm weighs units against a counter's value at now, in µs since the
// epoch. Adding one is: implement it here, name it in model, and write its Lua
// (package counters).
type algorithm interface {
	// ask says whether units would pass. Units of 0 pass.
	ask(v Value, units, now int64) verdict
	// take is the value after units, at least 1, have been charged, and how many
	// of them it counts. They need not have passed: soft charges do not.
	take(v Value, units, now int64) (Value, int64)
	// show fills in everything that r says of v but the verdict.
	show(v Value, now int64, r *Result)
	// give is the value after units that were charged at an earlier time have
	// been given back, as far as that can be, and how many were.
	give(v Value, units, at, now int64) (Value, int64)
	// add is the value after units that a decision at an earlier time turned out
	// to cost have been charged, past any limit, and how many of them it counts.
	add(v Value, units, at, now int64) (Value, int64)
}

// Validate returns an error that wraps ErrBounds where a charge cannot be
// counted, apart from what NewBucket says.
func (c *Charge) Validate() error {
	switch {
	case c.Cost < 0 || c.Cost > rule.Unlimited:
		return fmt.Errorf("cost of %d, want 0 to %d: %w", c.Cost, rule.Unlimited, ErrBounds)
	case c.Limit < 0 || c.Limit > rule.Unlimited:
		return fmt.Errorf("limit of %d, want 0 to %d: %w", c.Limit, rule.Unlimited, ErrBounds)
	}
	switch c.Algorithm {
	case rule.FixedWindow, rule.SlidingWindowLog, rule.SlidingWindowCounter:
		return c.validateWindow()
	case rule.TokenBucket, rule.LeakyBucket, rule.GCRA:
		if c.MaxDelay < 0 || c.MaxDelay > rule.MaxDelay || c.MaxDelay%time.Microsecond != 0 || c.MaxDelay > 0 && c.Algorithm != rule.LeakyBucket {
			return fmt.Errorf("delay of %v by %s, want whole microseconds up to %v by %s: %w", c.MaxDelay, c.Algorithm, rule.MaxDelay, rule.LeakyBucket, ErrBounds)
		}
		return nil
	case rule.CalendarQuota, rule.OverdraftWallet:
		return c.validateTotals()
	case rule.NoAlgorithm:
	}
	return fmt.Errorf("algorithm %q counts nothing: %w", c.Algorithm, ErrBounds)
}

// validateTotals checks the numbers of a quota or a wallet.
func (c *Charge) validateTotals() error {
	for _, t := range []int64{c.Floor.Consumed, c.Floor.Refunded} {
		if t < 0 || t > rule.Unlimited {
			return fmt.Errorf("floor of %d, want 0 to %d: %w", t, rule.Unlimited, ErrBounds)
		}
	}
	if c.Algorithm == rule.OverdraftWallet && c.Span == (period.Span{}) {
		return nil
	}
	if start, end := c.Span.Start.UnixMicro(), c.Span.End.UnixMicro(); start < -maxExact || end > maxExact || end-start > maxWait || end <= start {
		return fmt.Errorf("period from %v to %v: %w", c.Span.Start, c.Span.End, ErrBounds)
	}
	return nil
}

// totalled reports whether the charge's counter has Totals.
func (c *Charge) totalled() bool {
	return c.Algorithm == rule.CalendarQuota || c.Algorithm == rule.OverdraftWallet
}

// stale reports whether the charge is of a period that does not contain now.
func (c *Charge) stale(now time.Time) bool {
	return c.totalled() && c.Span != (period.Span{}) && !c.Span.Contains(now)
}

// model returns the algorithm that a charge asks for. The error wraps
// ErrBounds.
func model(c *Charge) (algorithm, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch c.Algorithm {
	case rule.FixedWindow:
		return fixedWindow{c.Limit, c.Window.Microseconds()}, nil
	case rule.SlidingWindowLog:
		return slidingLog{c.Limit, c.Window.Microseconds()}, nil
	case rule.SlidingWindowCounter:
		return newSlidingCounter(c.Limit, c.Window.Microseconds()), nil
	case rule.CalendarQuota:
		return quota{c.Limit, c.Span, c.Floor}, nil
	case rule.OverdraftWallet:
		return wallet{c.Limit, c.Span, c.Floor}, nil
	case rule.TokenBucket, rule.LeakyBucket, rule.GCRA, rule.NoAlgorithm:
	}
	b, err := NewBucket(c.Limit, c.Window, c.Burst)
	if c.MaxDelay > 0 && err == nil {
		return queue{b, c.MaxDelay.Microseconds()}, nil
	}
	return b, err
}

// A State is what a store holds. Use NewState; a State is not safe for
// concurrent use.
type State struct {
	Counters map[Identity]Value // by canonical identity

	// Lost: the store does not vouch for what it holds, so no quota or wallet
	// is decided but in shadow, and nothing is corrected.
	Lost bool

	// Emptied is when what the store holds began; zero: it never was emptied.
	Emptied time.Time

	requests map[requestKey]remembered
	marks    map[markKey]mark
}

type requestKey struct{ tenant, address, id string }

type remembered struct {
	at, until   time.Time
	fingerprint [16]byte
	decision    [16]byte
	note        []byte
	results     []Result
}

// NewState returns an empty store.
func NewState() State {
	return State{Counters: map[Identity]Value{}, requests: map[requestKey]remembered{}, marks: map[markKey]mark{}}
}

// Decide is the model of a whole decision at the store's time now. It is the
// reference for the script of package counters, and it serves wherever a
// decision is made without the store.
//
// A known request id is answered again. Else the first charge in order that is
// not to be decided makes the answer Lost (an enforced quota or wallet of a
// store that lost something) or Stale (now lies outside its span), and nothing
// else. Else every charge is weighed:
// the decision is allowed when all pass that are neither soft nor shadow.
// When it is allowed, those are charged, the soft ones whether they passed or
// not, and each shadow charge that passed (or is soft). A refused decision
// charges nothing. A cost of 0 passes everywhere and changes nothing.
//
// A decision that only weighs ends there, and shows what there is.
//
// Charges on one counter add up in order: each asks for its own units and
// those before it; a shadow charge that is not charged does not count.
//
// The error wraps ErrBounds; nothing is charged then.
func Decide(s State, now time.Time, d Decision) (Answer, error) {
	now = time.UnixMicro(now.UnixMicro()).UTC()
	models := make([]algorithm, len(d.Charges))
	for i := range d.Charges {
		m, err := model(&d.Charges[i])
		if err != nil {
			return Answer{}, fmt.Errorf("charge %d: %w", i, err)
		}
		models[i] = m
	}
	if a, known := s.recall(now, &d.Request); known {
		return a, nil
	}
	for _, c := range d.Charges {
		switch {
		case s.Lost && c.totalled() && !c.Counter.Shadow:
			return Answer{Now: now, Lost: true}, nil
		case c.stale(now):
			return Answer{Now: now, Stale: true}, nil
		}
	}
	a := s.weigh(now, d.Charges, models)
	if a.Allowed && !d.Weigh {
		a.Charged = s.charge(now, d.Charges, models, a.Results)
	}
	for i, m := range models {
		m.show(s.Counters[d.Charges[i].Counter.Canonical()], now.UnixMicro(), &a.Results[i])
	}
	s.remember(now, &d.Request, &a)
	return a, nil
}

// weigh fills in Allowed and the verdict of each result.
func (s State) weigh(now time.Time, charges []Charge, models []algorithm) Answer {
	a := Answer{Now: now, Allowed: true, Results: make([]Result, len(charges))}
	asked := map[Identity]int64{}
	for i, m := range models {
		c, r := &charges[i], &a.Results[i]
		id := c.Counter.Canonical()
		units := c.Cost
		if units > 0 {
			units = min(maxExact, units+asked[id])
		}
		m.ask(s.Counters[id], units, now.UnixMicro()).tell(r)
		if !c.Counter.Shadow || c.charged(r) {
			asked[id] = min(maxExact, asked[id]+c.Cost)
		}
		if !r.Passed && !c.Soft && !c.Counter.Shadow {
			a.Allowed = false
		}
	}
	return a
}

// charged reports whether an allowed decision charges c.
func (c *Charge) charged(r *Result) bool { return r.Passed || c.Soft }

// charge charges what an allowed decision charges and reports whether that
// was anything.
func (s State) charge(now time.Time, charges []Charge, models []algorithm, results []Result) bool {
	charged := false
	for i, m := range models {
		c := &charges[i]
		if c.Cost == 0 || !c.charged(&results[i]) {
			continue
		}
		id := c.Counter.Canonical()
		v, counted := m.take(s.Counters[id], c.Cost, now.UnixMicro())
		s.Counters[id], results[i].Clipped = v, counted < c.Cost
		charged = true
	}
	return charged
}

func (q *Request) key() requestKey {
	if q.Tenant != "" {
		return requestKey{tenant: q.Tenant, id: q.ID}
	}
	return requestKey{address: q.Address, id: q.ID}
}

func (s State) recall(now time.Time, q *Request) (Answer, bool) {
	r, known := s.requests[q.key()]
	switch {
	case q.ID == "" || !known || !now.Before(r.until):
		return Answer{}, false
	case r.fingerprint != q.Fingerprint:
		return Answer{Now: now, Conflict: true, DecisionID: r.decision}, true
	default:
		return Answer{
			Now: now, Allowed: true, Replayed: true,
			DecisionID: r.decision, Decided: r.at, Note: r.note, Results: r.results,
		}, true
	}
}

func (s State) remember(now time.Time, q *Request, a *Answer) {
	if q.ID == "" || !a.Charged {
		return
	}
	a.DecisionID = q.DecisionID
	s.requests[q.key()] = remembered{
		at: now, until: now.Add(Remember), fingerprint: q.Fingerprint, decision: q.DecisionID,
		note: append([]byte(nil), q.Note...), results: append([]Result(nil), a.Results...),
	}
}
