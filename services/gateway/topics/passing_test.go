package topics_test

import (
	"context"
	"errors"

	"penstock.dev/services/internal/limit"
)

// passing is a store in which everything passes.
type passing struct{}

func (passing) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	a := limit.Answer{Allowed: true, Now: t0, Results: make([]limit.Result, len(d.Charges))}
	for i := range a.Results {
		a.Results[i].Passed = true
	}
	return a, nil
}

// An asking is passing, and shows what it was asked for last.
type asking struct {
	passing
	asked *limit.Decision
}

func (a asking) Decide(ctx context.Context, d limit.Decision) (limit.Answer, error) {
	*a.asked = d
	return a.passing.Decide(ctx, d)
}

// DecideAll is the store, one after another.
func (p passing) DecideAll(ctx context.Context, all []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(all)), make([]error, len(all))
	for i := range all {
		answers[i], errs[i] = p.Decide(ctx, all[i])
	}
	return answers, errs
}

// Correct is the store, which is not asked.
func (passing) Correct(context.Context, limit.Correction) (limit.CorrectionAnswer, error) {
	return limit.CorrectionAnswer{}, errors.New("nothing was charged here")
}
