package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock.dev/services/checkpointer/checkpoint"
	"penstock.dev/services/internal/counters"
)

// A custody introduces the counter store to the keeper.
type custody struct{ *counters.Custody }

// Claim is what the keeper calls.
func (c custody) Claim(ctx context.Context, lost []int) (checkpoint.Claim, error) {
	k, err := c.Custody.Claim(ctx, lost)
	if err != nil || k == nil {
		return nil, err
	}
	return claim{k}, nil
}

type claim struct{ *counters.Claim }

// Since is what the keeper calls.
func (c claim) Since() time.Time { return c.Claim.Since }

// Vouch is what the keeper calls.
func (c custody) Vouch(ctx context.Context, k checkpoint.Claim, since time.Time) error {
	its, ok := k.(claim)
	if !ok {
		return fmt.Errorf("claim of another store: %T", k)
	}
	err := c.Custody.Vouch(ctx, its.Claim, since)
	if errors.Is(err, counters.ErrReplaced) {
		return fmt.Errorf("%w: %w", checkpoint.ErrReplaced, err)
	}
	return err
}

// Restore is what the keeper calls.
func (c custody) Restore(ctx context.Context, saved []checkpoint.Saved) (n checkpoint.Restored, err error) {
	its := make([]counters.Saved, len(saved))
	for i := range saved {
		its[i] = counters.Saved(saved[i])
	}
	all, err := c.Custody.Restore(ctx, its)
	for _, r := range all {
		switch r.Outcome {
		case counters.Added:
			n.Added++
		case counters.Raised:
			n.Raised++
		case counters.Unreadable:
			n.Unreadable++
		case counters.Kept, counters.Over:
		}
	}
	return n, err
}

// Remember is what the keeper calls.
func (c custody) Remember(ctx context.Context, marks []checkpoint.Mark, now time.Time) (int, error) {
	its := make([]counters.Mark, len(marks))
	for i := range marks {
		m := &marks[i]
		its[i] = counters.Mark{Tenant: m.Tenant, Decision: m.Decision, Settled: m.Settled, Before: m.Before, Until: m.Until}
		for _, r := range m.Refunds {
			its[i].Refunds = append(its[i].Refunds, counters.Refund{ID: r.Refund, Units: r.Units})
		}
	}
	return c.Custody.Remember(ctx, its, now)
}

// Each is what the keeper calls.
func (c custody) Each(ctx context.Context, take func([]checkpoint.Saved) error) error {
	return c.Custody.Each(ctx, func(saved []counters.Saved) error {
		its := make([]checkpoint.Saved, len(saved))
		for i := range saved {
			its[i] = checkpoint.Saved(saved[i])
		}
		return take(its)
	})
}
