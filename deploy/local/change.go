package main

import (
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

// change replaces fields of a rule and returns how long after the PUT was sent
// every gateway decided by the new limit. It asks all the while, so the answer
// is not rounded up to a polling interval.
func change(ctx context.Context, e *estate.Estate, to target) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, enforceWithin)
	defer cancel()
	admin := e.Admin()
	rule, tag, err := admin.Get(ctx, "rules", to.rule)
	if err != nil {
		return 0, err
	}
	for _, shown := range []string{"version", "revision", "changed_at", "changed_by"} {
		delete(rule, shown)
	}
	maps.Copy(rule, to.fields)

	begun := time.Now()
	put := make(chan error, 1)
	go func() {
		_, _, err := admin.Put(ctx, "rules", to.rule, tag, rule)
		put <- err
	}()
	limit, ok := to.fields["limit"].(int)
	if !ok {
		return 0, errors.New("a change needs a limit to be seen by")
	}
	for _, d := range e.Deciders() {
		for {
			got, err := d.Decide(ctx, to.question)
			if err != nil {
				return 0, fmt.Errorf("waiting for %s: %w", to.rule, err)
			}
			if seen, ok := got.Limit(to.rule); ok && seen == int64(limit) {
				break
			}
		}
	}
	took := time.Since(begun)
	return took, <-put
}
