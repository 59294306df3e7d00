package observe

import (
	"context"
	"errors"

	"penstock.dev/services/gateway/decide"
)

// A result is what became of a correction: the closed set of label values.
type result string

const (
	made        result = "made"
	repeated    result = "repeated"    // made before
	refused     result = "refused"     // more than is left, settled otherwise, nothing charged, too many
	unavailable result = "unavailable" // the counter store did not answer
	gone        result = "caller_gone"
	failed      result = "failed"
)

var results = []result{made, repeated, refused, unavailable, gone, failed}

// Refund is the decorated Decider's.
func (d *Decisions) Refund(ctx context.Context, r decide.Receipt, id string, units int64) (decide.Correction, error) {
	c, err := d.next.Refund(ctx, r, id, units)
	count(d.refunds, resultOf(ctx, &c, err))
	return c, err
}

// Settle is the decorated Decider's.
func (d *Decisions) Settle(ctx context.Context, r decide.Receipt, cost int64) (decide.Correction, error) {
	c, err := d.next.Settle(ctx, r, cost)
	count(d.settled, resultOf(ctx, &c, err))
	return c, err
}

func resultOf(ctx context.Context, c *decide.Correction, err error) result {
	switch {
	case err == nil && c.Replayed:
		return repeated
	case err == nil:
		return made
	case ctx.Err() != nil:
		return gone
	case errors.Is(err, decide.ErrStoreUnavailable):
		return unavailable
	case errors.Is(err, decide.ErrRefundExceeds), errors.Is(err, decide.ErrAlreadySettled),
		errors.Is(err, decide.ErrNothingCharged), errors.Is(err, decide.ErrTooManyRefunds), errors.Is(err, decide.ErrCost):
		return refused
	default:
		return failed
	}
}
