// Package proof holds the proofs of `make demo`: each does something to a
// running estate as a customer or an operator would, says what must come of it,
// and measures what came. What a proof has found is shown on the terminal by its
// caller and on one page (page.go).
//
// Proofs run one after the other on one estate. Each keeps to objects of its own,
// or leaves those of the sample catalogue usable, and allows for a slow machine
// by measuring what has really elapsed.
package proof

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/deploy/local/estate"
)

// A Proof shows one promise on real traffic.
type Proof struct {
	Title string
	run   func(ctx context.Context, s *stage) (Finding, error)
	needs func(ctx context.Context, s *stage) string // what of it is missing; nil or "": nothing
}

// A Finding is what a proof has to show. Expected and Measured are compared by
// Held, because not every promise is an equality.
type Finding struct {
	Done, Expected, Measured string
	Badges                   []Badge // the figures to see at a glance
	Bars                     []Bar   // those that are held against a limit
	Held                     bool
}

// A Badge is one measured figure with the word that names it.
type Badge struct {
	Name, Value string
	Tone        Tone
}

// A Tone is what a badge's figure means for a customer, never whether the proof
// held: a naive limiter that oversells is Bad.
type Tone string

// The tones, by the classes of ui.css.
const (
	Plain  Tone = ""
	Good   Tone = "ok"
	Warned Tone = "near"
	Bad    Tone = "cut"
	Shadow Tone = "soft"
)

// A Bar is what passed, against a limit. Earned is what may pass beyond the limit
// because time went by.
type Bar struct {
	Name                 string
	Value, Limit, Earned int
}

// All are the proofs in the order in which they are told.
func All() []Proof {
	return []Proof{
		{Title: "Too much traffic is cut at the gate", run: cutAtTheGate},
		{Title: "A fixed window sells twice at its edge, the others do not", run: boundaryTrap},
		{Title: "Two requests at the same instant cannot both take the last unit", run: race},
		{Title: "A heavy export weighs as much as twenty light reads", run: heavyAgainstLight},
		{Title: "A monthly quota is used up", run: quotaUsedUp},
		{Title: "A renewable quota comes back at its edge, not before", run: renewedAtTheEdge},
		{Title: "A wallet goes below zero once, and on after a top-up", run: walletOverdrawn},
		{Title: "The same top-up, sent fifty times at once, is granted once", run: topUpOnce},
		{Title: "A request that the upstream failed is given back", run: failedUpstream},
		{Title: "A shadow rule reports and never cuts", run: shadowRule},
		{Title: "80 % and 100 % are told to whoever listens, once each", run: thresholdsOnce, needs: watcher},
		{Title: "A limit is raised while traffic flows", run: limitRaised},
		{Title: "Nobody sees another's numbers: a forged parameter, a forged token", run: forgedPortal, needs: biller},
		{Title: "The month's invoice is what the counters say", run: invoiceIsTheCounters, needs: biller},
		{Title: "Every refusal can be searched for", run: refusalsFound, needs: searchStore},
		{Title: "Without Redis each rule fails as it says, and then counts on", run: redisStopped, needs: ownRedis},
		{Title: "An emptied Redis gives nothing away", run: redisWiped, needs: wipeable},
	}
}

// ownRedis says whether Redis is one that the proof may stop.
func ownRedis(_ context.Context, s *stage) string {
	if s.Process(estate.Redis) == nil {
		return "a Redis of the estate's own, which may be stopped"
	}
	return ""
}

func searchStore(_ context.Context, s *stage) string {
	if s.Env["ELASTICSEARCH_URL"] == "" {
		return "a search store"
	}
	return ""
}

// A Result is a proof that was run.
type Result struct {
	Number int
	Title  string
	Finding
	Err  error // what kept it from being finished; it has not held then
	Took time.Duration
}

// praiseNothing takes the good tone from a finding that has not held: which of its
// figures are to blame it does not know.
func (f *Finding) praiseNothing() {
	for i := range f.Badges {
		if f.Badges[i].Tone == Good {
			f.Badges[i].Tone = Plain
		}
	}
}

// ErrInterrupted reports proofs that were left because the context ended.
var ErrInterrupted = errors.New("the proofs were interrupted")

// A Guide is told of each proof before and after it.
type Guide struct {
	Begins func(number int, title string)
	Ended  func(Result)
	Left   func(title, needs string) // not run, for the estate does not have that
}

// Run runs every proof that this estate, which began then, can show. A proof that
// cannot be finished has failed, and the next one is run. The error is of what
// kept all further ones from running.
func Run(ctx context.Context, e *estate.Estate, began time.Time, g Guide) error {
	s := newStage(e, began)
	defer s.close()
	number := 0
	for _, p := range All() {
		if p.needs != nil {
			if missing := p.needs(ctx, s); missing != "" {
				g.Left(p.Title, missing)
				continue
			}
		}
		number++
		g.Begins(number, p.Title)
		begun := time.Now()
		f, err := p.run(ctx, s)
		if ctx.Err() != nil {
			return fmt.Errorf("%w in proof %d: %w", ErrInterrupted, number, context.Cause(ctx))
		}
		if f.Held = f.Held && err == nil; !f.Held {
			f.praiseNothing()
		}
		g.Ended(Result{Number: number, Title: p.Title, Finding: f, Err: err, Took: time.Since(begun)})
	}
	return nil
}
