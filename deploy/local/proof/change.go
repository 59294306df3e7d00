package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"penstock.dev/deploy/local/estate"
)

// A target is a change of a rule and the question whose answer shows it.
type target struct {
	rule     string
	fields   estate.Object // among them limit, as an int
	question estate.Object // of cost 0, decided by the rule among others
}

// enforceWithin bounds the wait for a change.
const enforceWithin = 10 * time.Second

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
