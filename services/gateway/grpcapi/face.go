package grpcapi

import (
	"context"
	"log/slog"
	"net/netip"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
)

// A Desk answers questions: an ask.Desk.
type Desk interface {
	Trusts(authorization []string) bool
	Answer(ctx context.Context, q *ask.Question) (decide.Decision, error)
	AnswerAll(ctx context.Context, b *ask.Batch) error
	AnswerEach(ctx context.Context, b *ask.Batch) error
	Refund(ctx context.Context, r ask.Refund) (decide.Correction, error)
	Settle(ctx context.Context, s ask.Settlement) (decide.Correction, error)
	Receipt(d *decide.Decision) string
}

// A Face answers calls, whatever engine carries them. It is safe for concurrent
// use. FailureOf says what its errors are to a caller.
type Face struct {
	desk    Desk
	trusted canon.Proxies
	log     *slog.Logger
}

// New returns a Face. Peers within trusted may ask the rate limit service
// without a token.
func New(desk Desk, trusted canon.Proxies, log *slog.Logger) *Face {
	return &Face{desk: desk, trusted: trusted, log: log}
}

// Admit says whether a caller may ask: DecisionService a holder of a token,
// RateLimitService a trusted peer too. authorization is the metadatum of that
// name.
func (f *Face) Admit(service string, peer netip.Addr, authorization []string) error {
	switch {
	case service == RateLimit && f.trusted.Trust(peer):
		return nil
	case f.desk.Trusts(authorization):
		return nil
	case service == RateLimit:
		return errStranger
	default:
		return ask.ErrUnauthorized
	}
}

// Decide answers one question.
func (f *Face) Decide(ctx context.Context, in *decisionv1.DecideRequest) (*decisionv1.Decision, error) {
	var list ask.Faults
	q := question(in, &list)
	if err := list.Err(); err != nil {
		return nil, err
	}
	d, err := f.desk.Answer(ctx, &q)
	if err != nil {
		return nil, err
	}
	return f.decision(&d), nil
}

// DecideBatch answers many questions, each as if it had come alone.
func (f *Face) DecideBatch(ctx context.Context, in *decisionv1.DecideBatchRequest) (*decisionv1.DecideBatchResponse, error) {
	asked := in.GetDecisions()
	var list ask.Faults
	switch {
	case len(asked) == 0:
		list.Add("decisions", ask.NoQuestions())
	case len(asked) > ask.MaxQuestions:
		list.Add("decisions", ask.TooManyQuestions())
		asked = nil
	}
	qs := make([]ask.Question, len(asked))
	for i, one := range asked {
		var own ask.Faults
		qs[i] = question(one, &own)
		for _, fault := range own {
			list.Add(ask.Item(i, fault.Field), fault.Message)
		}
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	b := ask.Batch{Questions: qs}
	if err := f.desk.AnswerAll(ctx, &b); err != nil {
		return nil, err
	}
	out := &decisionv1.DecideBatchResponse{Decisions: make([]*decisionv1.Decision, len(b.Outcomes))}
	for i := range b.Outcomes {
		out.Decisions[i] = f.outcome(&b.Outcomes[i])
	}
	return out, nil
}

// Refund gives back what a decision charged, or part of it.
func (f *Face) Refund(ctx context.Context, in *decisionv1.RefundRequest) (*decisionv1.RefundResponse, error) {
	list := receiptFaults(in.GetDecisionId(), in.GetReceipt())
	r := ask.Refund{DecisionID: in.GetDecisionId(), Receipt: in.GetReceipt(), ID: ask.Text("refund_id", in.GetRefundId(), ask.MaxRefundID, &list)}
	if in != nil && in.Units != nil {
		r.Units = ask.Units("units", *in.Units, 1, &list)
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	c, err := f.desk.Refund(ctx, r)
	if err != nil {
		return nil, err
	}
	return &decisionv1.RefundResponse{RefundId: c.Refund, Units: c.Units, RefundedTotal: c.RefundedTotal, Replayed: c.Replayed}, nil
}

// Settle tells the true cost of a decision.
func (f *Face) Settle(ctx context.Context, in *decisionv1.SettleRequest) (*decisionv1.SettleResponse, error) {
	list := receiptFaults(in.GetDecisionId(), in.GetReceipt())
	if in == nil || in.Cost == nil {
		list.Add("cost", ask.NeedCost)
	} else {
		ask.Units("cost", *in.Cost, 0, &list)
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	c, err := f.desk.Settle(ctx, ask.Settlement{DecisionID: in.GetDecisionId(), Receipt: in.GetReceipt(), Cost: in.GetCost()})
	if err != nil {
		return nil, err
	}
	return &decisionv1.SettleResponse{
		DecisionId: ask.ID(c.DecisionID), Cost: c.Cost, Units: c.Units, RefundedTotal: c.RefundedTotal, Replayed: c.Replayed,
	}, nil
}

// receiptFaults is what is wrong with what names the decision of a correction.
func receiptFaults(id, receipt string) (list ask.Faults) {
	if _, err := ask.DecisionID(id); err != nil {
		list = append(list, ask.FaultsOf(err)...)
	}
	if receipt == "" {
		list.Add("receipt", ask.NeedReceipt)
	}
	return list
}
