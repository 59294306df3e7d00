package topics_test

import (
	"context"

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
