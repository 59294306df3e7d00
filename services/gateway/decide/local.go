package decide

import (
	"sync"
	"time"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// degraded is the answer when the store did not decide (docs/adr/0040). What
// can never pass is refused even then; else one closed rule closes; else the
// local rules decide, all or nothing, and where there are none the request
// passes uncounted. A rule that never refuses has no say.
func (s *Service) degraded(in *inquiry) Decision {
	d := in.passed()
	d.Degraded, d.Limits, in.results, in.charged = true, nil, nil, false
	var closed *rule.Rule
	counting := false
	for i, r := range in.winners {
		most, units := in.asked.Charges[i].Limit, in.units(r)
		switch {
		case !cuts(r) || most == rule.Unlimited:
		case exceeds(r, units), r.Kind == rule.Wallet && most == 0:
			d.refuse(r, units, limit.Never)
			return d
		case closed == nil && r.OnFailure == rule.Closed:
			closed = r
		case r.OnFailure == rule.Local && units > 0:
			counting = true
		}
	}
	switch {
	case closed != nil:
		d.Outcome, d.Status, d.Code, d.RuleID = Deny, statusUnavailable, StoreUnavailable, closed.ID
		d.CanRetry, d.RetryAfter = true, degradedWait
	case counting:
		said := s.local.count(in)
		d.Delay, d.Local = said.delay, true
		if said.refusing != nil {
			d.refuse(said.refusing, in.units(said.refusing), said.wait)
		}
	}
	return d
}

// maxLocal is what the counters of each of two generations weigh together: one
// each, and a log one more for every perWeight entries, which take as much.
const (
	maxLocal  = 1 << 15
	perWeight = 16
)

// A local counts in the process, with the models of the algorithms and this
// gateway's share of each limit. It keeps two generations of counters: when the
// newer one is full, the older one is forgotten, so that what is in use stays
// and memory is bounded. It is safe for concurrent use.
type local struct {
	gateways func() int

	mu           sync.Mutex
	newer, older map[limit.Identity]limit.Value
	weight       int // of newer
}

func newLocal(gateways func() int) *local {
	return &local{gateways: gateways, newer: map[limit.Identity]limit.Value{}}
}

// share is a gateway's part of n units: at least 1, but of nothing nothing.
func share(n int64, gateways int) int64 {
	if n == 0 {
		return 0
	}
	return max(1, n/int64(max(1, gateways)))
}

// A verdict of the local rules.
type localVerdict struct {
	refusing *rule.Rule    // with the longest wait; nil: all pass
	wait     time.Duration // until refusing passes
	delay    time.Duration // that the request waits in a queue
}

// count charges every local rule of a request, or none.
func (l *local) count(in *inquiry) (said localVerdict) {
	gateways := l.gateways()
	var rules []*rule.Rule
	var d limit.Decision
	for i, r := range in.winners {
		c := in.asked.Charges[i]
		if !cuts(r) || r.OnFailure != rule.Local || c.Cost == 0 || c.Limit == rule.Unlimited {
			continue
		}
		c.Limit, c.Burst = share(c.Limit, gateways), share(c.Burst, gateways)
		rules, d.Charges = append(rules, r), append(d.Charges, c)
	}
	a, err := l.decide(in.at, d)
	if err != nil { // such numbers the store has refused to count too
		return localVerdict{}
	}
	for i := range a.Results {
		got := &a.Results[i]
		if got.RetryAfter == limit.Never { // of the share; the store will have more
			got.RetryAfter = degradedWait
		}
		switch {
		case a.Allowed:
			said.delay = max(said.delay, got.Delay)
		case !got.Passed && (said.refusing == nil || got.RetryAfter > said.wait):
			said.refusing, said.wait = rules[i], got.RetryAfter
		}
	}
	return said
}

// decide is limit.Decide with the counters that l keeps.
func (l *local) decide(now time.Time, d limit.Decision) (limit.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := limit.NewState()
	for i := range d.Charges {
		id := d.Charges[i].Counter
		v, ok := l.newer[id]
		if !ok {
			v, ok = l.older[id]
		}
		if ok {
			state.Counters[id] = v
		}
	}
	a, err := limit.Decide(state, now, d)
	if err != nil {
		return limit.Answer{}, err
	}
	for id, v := range state.Counters {
		if old, ok := l.newer[id]; ok {
			l.weight -= weigh(&old)
		}
		if l.weight += weigh(&v); l.weight > maxLocal {
			l.newer, l.older, l.weight = make(map[limit.Identity]limit.Value, len(l.newer)), l.newer, weigh(&v)
		}
		l.newer[id] = v
	}
	return a, nil
}

func weigh(v *limit.Value) int { return 1 + len(v.Log)/perWeight }
