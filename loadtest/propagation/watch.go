package propagation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"sync"
	"time"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/stats"
	"penstock.dev/loadtest/system"
)

// A watch asks every gateway what it decides by: from when a change is on
// rules.v1, before which no gateway can know it, without a pause until it
// counts. A question costs no units.
type watch struct {
	gateways []*gateway
	cancel   context.CancelFunc
	done     sync.WaitGroup
}

// A gateway is what one gateway has answered so far.
type gateway struct {
	*estate.Decider
	more chan struct{}

	mu      sync.Mutex
	ask     string // the rule to ask about: the one that was changed last
	newest  int64  // version known to be on rules.v1
	looks   []look
	failure error
}

// A look is one answer.
type look struct {
	at      time.Time // when it was there
	took    time.Duration
	version int64 // rules_version
	rule    string
	limit   int64 // of the rule
}

func watchGateways(ctx context.Context, s *system.System) *watch {
	w := &watch{}
	ctx, w.cancel = context.WithCancel(ctx)
	for _, d := range s.Deciders() {
		g := &gateway{Decider: d, more: make(chan struct{}, 1)}
		w.gateways = append(w.gateways, g)
		w.done.Go(func() { g.run(ctx) })
	}
	return w
}

func (w *watch) stop() {
	w.cancel()
	w.done.Wait()
}

func (g *gateway) run(ctx context.Context) {
	for ctx.Err() == nil {
		rule, wanted := g.wanted()
		if !wanted {
			select {
			case <-g.more:
			case <-ctx.Done():
			}
			continue
		}
		began := time.Now()
		got, err := g.Decide(ctx, object{"tenant": rule, "method": http.MethodGet, "path": "/", "cost": 0})
		now := time.Now()
		limit, _ := got.Limit(rule)
		g.mu.Lock()
		if err == nil {
			g.looks = append(g.looks, look{now, now.Sub(began), got.RulesVersion, rule, limit})
		} else if ctx.Err() == nil {
			g.failure = err
		}
		g.mu.Unlock()
	}
}

// wanted reports whether something is on its way, and which rule to ask about.
func (g *gateway) wanted() (rule string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ask, g.behind()
}

// behind reports whether a stored version has not been seen. The caller
// holds the lock.
func (g *gateway) behind() bool {
	return g.newest > 0 && (len(g.looks) == 0 || g.looks[len(g.looks)-1].version < g.newest)
}

// stored notes that a version of a rule is on rules.v1.
func (w *watch) stored(rule string, version int64) {
	for _, g := range w.gateways {
		g.mu.Lock()
		if version > g.newest {
			g.ask, g.newest = rule, version
		}
		g.mu.Unlock()
		select {
		case g.more <- struct{}{}:
		default:
		}
	}
}

// await waits until every gateway has been seen to have every change.
func (w *watch) await(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, g := range w.gateways {
		for {
			g.mu.Lock()
			behind, newest, failure := g.behind(), g.newest, g.failure
			g.mu.Unlock()
			if !behind {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not enforce version %d within %v (%w)", g.URL, newest, within, failure)
			case <-tick.C:
			}
		}
	}
	return nil
}

// forget drops the looks so far.
func (w *watch) forget() {
	for _, g := range w.gateways {
		g.mu.Lock()
		g.looks = nil
		g.mu.Unlock()
	}
}

// enforced is when the gateway was first seen to decide by a version or a newer
// one.
func (g *gateway) enforced(version int64) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := sort.Search(len(g.looks), func(i int) bool { return g.looks[i].version >= version }) // they only rise
	if i == len(g.looks) {
		return time.Time{}, false
	}
	return g.looks[i].at, true
}

// afterAnswers is how long after rule-admin's answers the gateway enforced the
// changes, 0 where it did so before.
func (g *gateway) afterAnswers(changes []*change) stats.Summary {
	var took []time.Duration
	for _, c := range changes {
		if at, ok := g.enforced(c.version); c.err == nil && ok {
			took = append(took, max(0, at.Sub(c.answered)))
		}
	}
	return stats.Of(took)
}

// contradictions counts the answers whose limit is not that of the rule at the
// version by which the gateway says it decides. A rule with a change that
// failed is left out: the change may have been made.
func (g *gateway) contradictions(changes []*change) int {
	history, doubtful := map[string][]*change{}, map[string]bool{}
	for _, c := range changes {
		history[c.rule] = append(history[c.rule], c)
		doubtful[c.rule] = doubtful[c.rule] || c.err != nil
	}
	for rule, h := range history {
		if doubtful[rule] {
			delete(history, rule)
		}
		slices.SortFunc(h, func(a, b *change) int { return int(a.version - b.version) })
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, l := range g.looks {
		h := history[l.rule]
		i := sort.Search(len(h), func(i int) bool { return h[i].version > l.version }) - 1
		if i >= 0 && h[i].limit != l.limit {
			n++
		}
	}
	return n
}

// took is how long each look took.
func (g *gateway) took() []time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	took := make([]time.Duration, len(g.looks))
	for i, l := range g.looks {
		took[i] = l.took
	}
	return took
}
