package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"penstock.dev/deploy/local/estate"
)

// A target is a change of a rule and the question whose answer shows it.
type target struct {
	rule     string
	fields   estate.Object // among them limit, as an int
	question estate.Object // of cost 0, decided by the rule among others
}

// A delay is how long a change took to be enforced by every gateway.
type delay struct {
	fromSent   time.Duration // since the PUT was sent
	fromCommit time.Duration // since rule-admin stamped the change, just before its commit
}

// change replaces fields of a rule and waits until every gateway decides by the
// new limit. It asks all the while, so a delay is not rounded up to a polling
// interval.
func change(ctx context.Context, e *estate.Estate, to target) (delay, error) {
	ctx, cancel := context.WithTimeout(ctx, enforceWithin)
	defer cancel()
	limit, ok := to.fields["limit"].(int)
	if !ok {
		return delay{}, errors.New("a change needs a limit to be seen by")
	}
	admin := e.Admin()
	rule, tag, err := admin.Get(ctx, "rules", to.rule)
	if err != nil {
		return delay{}, err
	}
	for _, shown := range []string{"version", "changed_at", "changed_by"} {
		delete(rule, shown)
	}
	maps.Copy(rule, to.fields)

	type answer struct {
		committed time.Time
		err       error
	}
	sent, answered := time.Now(), make(chan answer, 1)
	go func() {
		changed, _, err := admin.Put(ctx, "rules", to.rule, tag, rule)
		stamp, _ := changed["changed_at"].(string)
		at, err2 := time.Parse(time.RFC3339, stamp)
		answered <- answer{at, cmp.Or(err, err2)}
	}()
	for _, d := range e.Deciders() {
		if err := awaitLimit(ctx, d, to, int64(limit)); err != nil {
			return delay{}, err
		}
	}
	seen := time.Now()
	a := <-answered
	return delay{seen.Sub(sent), seen.Sub(a.committed)}, a.err
}

func awaitLimit(ctx context.Context, d *estate.Decider, to target, limit int64) error {
	for {
		got, err := d.Decide(ctx, to.question)
		if err != nil {
			return fmt.Errorf("waiting for rule %s: %w", to.rule, err)
		}
		if seen, ok := got.Limit(to.rule); ok && seen == limit {
			return nil
		}
	}
}

// limitRaised raises a limit many times, measures how long every gateway took to
// enforce each, and shows that traffic that was cut now passes.
func limitRaised(ctx context.Context, s *stage) (Finding, error) {
	const changes, payments, burst, bound = 50, 40, 10, 5 * time.Second // what is promised; a few ms are usual
	rule := s.named("raised")
	if err := s.enforce(ctx, s.tenant("raised", "Raised"), s.burst("raised", 1, burst)); err != nil {
		return Finding{}, err
	}
	key, err := s.key(ctx, "raised")
	if err != nil {
		return Finding{}, err
	}
	pay := func() ([]answered, error) {
		return s.sendAll(ctx, payments, http.MethodPost, s.Env["GATEWAY_URL"]+"/payments/v1/pay", key)
	}
	begun := time.Now()
	before, err := pay()
	if err != nil {
		return Finding{}, err
	}
	earned := int(time.Since(begun) / time.Minute) // on a very slow machine
	var sent, committed []time.Duration
	for i := range changes {
		took, err := change(ctx, s.Estate, target{
			rule: rule, fields: estate.Object{"limit": 6000 + i, "burst": 1000},
			question: estate.Object{"tenant": rule, "service": "payments", "method": http.MethodPost, "path": "/v1/pay", "cost": 0},
		})
		if err != nil {
			return Finding{}, err
		}
		sent, committed = append(sent, took.fromSent), append(committed, took.fromCommit)
	}
	slices.Sort(sent)
	slices.Sort(committed)
	after, err := pay()
	if err != nil {
		return Finding{}, err
	}
	worst, passed := sent[changes-1], with(before, http.StatusOK)
	return Finding{
		Done: fmt.Sprintf("%d payments under a rule of 1 a minute, %d at once; the rule raised %d times by PUT to rule-admin while decisions are asked for; the %d payments again",
			payments, burst, changes, payments),
		Expected: fmt.Sprintf("%d × 200, %d × 429; each change enforced within the promised %.0f s; then %d × 200", burst, payments-burst, bound.Seconds(), payments),
		Measured: fmt.Sprintf("%s; from the commit to the first decision under the new limit: median %s, slowest %s (from sending the PUT %s and %s); then %s",
			tally(before), ms(committed[changes/2]), ms(committed[changes-1]), ms(sent[changes/2]), ms(sent[changes-1]), tally(after)),
		Badges: []Badge{
			{"before", fmt.Sprintf("%d of %d passed", passed, payments), Plain},
			{"in force, median", ms(committed[changes/2]), Good},
			{"slowest", ms(committed[changes-1]), Good},
			{"after", fmt.Sprintf("%d of %d passed", with(after, http.StatusOK), payments), Good},
		},
		Held: worst <= bound && burst <= passed && passed <= burst+earned && with(after, http.StatusOK) == payments,
	}, nil
}
