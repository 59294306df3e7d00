package decide_test

import (
	"context"
	"errors"

	"penstock.dev/services/internal/limit"
)

// A storeFunc is a store that says the same of one decision and of many, and
// has charged nothing.
type storeFunc func(limit.Decision) (limit.Answer, error)

func (f storeFunc) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) { return f(d) }

func (f storeFunc) DecideAll(_ context.Context, all []limit.Decision) ([]limit.Answer, []error) {
	answers, errs := make([]limit.Answer, len(all)), make([]error, len(all))
	for i := range all {
		answers[i], errs[i] = f(all[i])
	}
	return answers, errs
}

func (f storeFunc) Correct(context.Context, limit.Correction) (limit.CorrectionAnswer, error) {
	return limit.CorrectionAnswer{}, errors.New("nothing was charged here")
}
