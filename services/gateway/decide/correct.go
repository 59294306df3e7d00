package decide

import (
	"context"
	"errors"
	"fmt"

	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/rule"
)

// What Refund and Settle refuse. Nothing has changed then.
var (
	// ErrRefundExceeds reports a refund of more than is left of what was charged.
	ErrRefundExceeds = errors.New("more than is left of what was charged")
	// ErrAlreadySettled reports a decision that was settled at another cost.
	ErrAlreadySettled = errors.New("settled at another cost")
	// ErrNothingCharged reports a receipt of nothing.
	ErrNothingCharged = errors.New("nothing was charged")
	// ErrTooManyRefunds reports a decision of which no more refunds are
	// remembered.
	ErrTooManyRefunds = errors.New("too many refunds of one decision")
	// ErrRefundID reports a refund id of more than MaxRefundID bytes.
	ErrRefundID = errors.New("refund id out of bounds")
	// ErrStoreUnavailable reports a store that did not answer, or that does not
	// vouch for what it holds. Whether anything has changed is then unknown; the
	// same call again is safe.
	ErrStoreUnavailable = errors.New("counter store unavailable")
)

// MaxRefundID is the longest id of a refund, in bytes.
const MaxRefundID = 128

var errForgotten = errors.New("it was emptied or replaced")

// A Correction is what became of a Refund or a Settle.
type Correction struct {
	EventID       [16]byte // UUIDv7
	DecisionID    [16]byte
	Refund        string // id; empty: it settled
	Cost          int64  // of a settlement, the true cost; of a refund, what the decision was charged
	Units         int64  // given back by a refund; charged by a settlement, negative when given back
	RefundedTotal int64  // given back by all refunds so far
	Replayed      bool   // made before, with this answer; nothing changed

	usage Usage
}

// Usage returns what there is to tell of the correction. It is false for one
// that was made before.
func (c *Correction) Usage() (Usage, bool) {
	if c.Replayed {
		return Usage{}, false
	}
	return c.usage, c.usage.ID != [16]byte{}
}

// Refund gives units of a decision's cost back, all that is left of it where
// units are 0, once for each id; an empty id is the decision's in text. It goes
// to the counters, and the periods, that were charged. A rule of fixed cost
// gives back when nothing is left.
//
// Errors wrap ErrCost, ErrRefundID, ErrRefundExceeds, ErrNothingCharged,
// ErrTooManyRefunds, ErrStoreUnavailable, or are ctx's own.
func (s *Service) Refund(ctx context.Context, r Receipt, id string, units int64) (Correction, error) {
	switch {
	case units < 0 || units > rule.Unlimited:
		return Correction{}, fmt.Errorf("%w: %d units, want 0 to %d", ErrCost, units, rule.Unlimited)
	case len(id) > MaxRefundID:
		return Correction{}, fmt.Errorf("%w: %d bytes, want at most %d", ErrRefundID, len(id), MaxRefundID)
	case id == "":
		id = text(r.DecisionID)
	}
	return s.correct(ctx, &r, limit.Correction{Refund: id, Units: units})
}

// Settle makes cost what the decision has cost: it charges the rest, also past
// a limit, or gives the difference back, as far as refunds have left it. A
// decision is settled once. At 0 it gives all back, of rules of fixed cost too.
//
// Errors wrap ErrCost, ErrAlreadySettled, ErrNothingCharged,
// ErrStoreUnavailable, or are ctx's own.
func (s *Service) Settle(ctx context.Context, r Receipt, cost int64) (Correction, error) {
	if cost < 0 || cost > rule.Unlimited {
		return Correction{}, fmt.Errorf("%w: %d units, want 0 to %d", ErrCost, cost, rule.Unlimited)
	}
	return s.correct(ctx, &r, limit.Correction{Settle: cost})
}

func (s *Service) correct(ctx context.Context, r *Receipt, c limit.Correction) (Correction, error) {
	if len(r.Charged) == 0 {
		return Correction{}, ErrNothingCharged
	}
	c.DecisionID, c.At, c.Cost = r.DecisionID, r.At, r.Cost
	if c.Tenant = r.Tenant; c.Tenant == "" {
		c.Address = network(r.Address)
	}
	c.Items = make([]limit.Item, len(r.Charged))
	for i := range r.Charged {
		c.Items[i] = r.Charged[i].Item
	}
	a, err := s.store.Correct(ctx, c)
	switch {
	case err != nil && ctx.Err() != nil:
		return Correction{}, ctx.Err()
	case err != nil:
		return Correction{}, fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	switch a.Effect {
	case limit.Corrected, limit.Repeated:
		return s.corrected(r, &c, &a), nil
	case limit.Exceeds:
		return Correction{}, fmt.Errorf("%w: %d units are", ErrRefundExceeds, a.Left)
	case limit.Settled:
		return Correction{}, ErrAlreadySettled
	case limit.TooMany:
		return Correction{}, fmt.Errorf("%w: %d are", ErrTooManyRefunds, limit.MaxRefunds)
	case limit.Forgotten:
		return Correction{}, fmt.Errorf("%w: %w", ErrStoreUnavailable, errForgotten)
	default:
		return Correction{}, fmt.Errorf("%w: it says %q", ErrStoreUnavailable, a.Effect)
	}
}

// corrected is what the store's answer means.
func (s *Service) corrected(r *Receipt, asked *limit.Correction, a *limit.CorrectionAnswer) Correction {
	c := Correction{
		EventID: s.ids(a.Now), DecisionID: r.DecisionID, Refund: asked.Refund, Cost: r.Cost,
		Units: a.Units, RefundedTotal: a.RefundedTotal, Replayed: a.Effect == limit.Repeated,
	}
	if asked.Refund == "" {
		c.Cost = asked.Settle
	}
	if c.Replayed || len(a.Items) != len(r.Charged) {
		return c
	}
	c.usage = Usage{
		ID: c.EventID, Decision: r.DecisionID, At: a.Now, Verdict: VerdictSettle, RefundID: asked.Refund,
		Tenant: r.Tenant, Application: r.Application, User: r.User, APIKey: r.APIKey, Address: r.Address,
		Service: r.Service, Endpoint: r.Endpoint, Template: r.Template, Method: r.Method,
		Cost: c.Cost, RulesVersion: s.book.Current().Revision(), counters: r.counters(a.Items),
	}
	if asked.Refund != "" {
		c.usage.Verdict, c.usage.Cost = VerdictRefund, a.Units
	}
	return c
}

// counters are what was charged for units that are sold, as it has become.
func (r *Receipt) counters(moved []limit.Moved) (list []Counter) {
	for i := range r.Charged {
		c := &r.Charged[i]
		if c.Counter.Kind != rule.Quota && c.Counter.Kind != rule.Wallet {
			continue
		}
		mode := rule.Enforce
		if c.Counter.Shadow {
			mode = rule.Shadow
		}
		list = append(list, Counter{
			Rule: &rule.Rule{
				ID: c.RuleID, Version: c.RuleVersion, Mode: mode, Kind: c.Counter.Kind, Algorithm: c.Algorithm,
				Subject: c.Counter.Subject, Meter: c.Counter.Meter, Soft: c.Soft, Thresholds: c.Thresholds,
			},
			Identity: &c.Counter, Span: c.Span, Limit: c.Limit, Observed: true,
			Units: moved[i].Units, Consumed: moved[i].Consumed, Refunded: moved[i].Refunded,
		})
	}
	return list
}

// text is an id as it is written.
func text(id [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
