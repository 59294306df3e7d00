package grpcapi

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"penstock.dev/proto/decisionv1"
	"penstock.dev/services/gateway/ask"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/tell"
	"penstock.dev/services/internal/rule"
)

// question reads one, and adds what is wrong with it to list.
func question(in *decisionv1.DecideRequest, list *ask.Faults) (q ask.Question) {
	text := func(field, v string) string { return ask.Text(field, v, ask.MaxValue, list) }
	q.RequestID = text("request_id", in.GetRequestId())
	q.Tenant = text("tenant", in.GetTenant())
	q.Application = text("application", in.GetApplication())
	q.User = text("user", in.GetUser())
	q.Secret = text("api_key", in.GetApiKey())
	q.Address = ask.Address(text("client_ip", in.GetClientIp()), list)
	q.Service = text("service", in.GetService())
	q.Method = ask.Method(ask.Text("method", in.GetMethod(), ask.MaxMethod, list), list)
	q.Path = ask.Path(ask.Text("path", in.GetPath(), ask.MaxPath, list), list)
	if in != nil && in.Cost != nil {
		q.Cost = ask.Units("cost", *in.Cost, 0, list)
	}
	q.SetLabels(in.GetLabels(), list)
	return q
}

var outcomes = map[decide.Outcome]decisionv1.Decision_Outcome{
	decide.Allow: decisionv1.Decision_ALLOW, decide.Deny: decisionv1.Decision_DENY, decide.Blocked: decisionv1.Decision_BLOCKED,
}

// decision is the answer's message.
func (f *Face) decision(d *decide.Decision) *decisionv1.Decision {
	out := &decisionv1.Decision{
		DecisionId: ask.ID(d.ID), Outcome: outcomes[d.Outcome], Status: int32(d.Status), Code: string(d.Code), RuleId: d.RuleID,
		Degraded: d.Degraded, Cost: d.Cost, RulesVersion: d.RulesVersion, Receipt: f.desk.Receipt(d), Replayed: d.Replayed,
		Limits: make([]*decisionv1.Limit, len(d.Limits)),
	}
	if d.CanRetry {
		out.RetryAfterSeconds = new(tell.Retry(d))
	}
	if tell.Queued(d) {
		out.DelayMs = new(tell.Milliseconds(d.Delay))
	}
	for i := range d.Limits {
		out.Limits[i] = limitOf(&d.Limits[i])
	}
	return out
}

func limitOf(l *decide.Limit) *decisionv1.Limit {
	out := &decisionv1.Limit{
		RuleId: l.RuleID, Kind: string(l.Kind), Algorithm: string(l.Algorithm), Meter: l.Meter, Mode: string(l.Mode),
		Limit: l.Limit, Remaining: l.Remaining, Passed: l.Passed,
	}
	if l.Kind == rule.Quota || l.Kind == rule.Wallet {
		out.Consumed, out.Refunded = new(l.Consumed), new(l.Refunded)
	}
	if l.Kind == rule.Wallet {
		out.Balance = new(l.Balance)
	}
	if !tell.Endless(l) {
		out.ResetSeconds = new(tell.Seconds(l.Reset))
	}
	if !l.PeriodEnd.IsZero() {
		out.PeriodStart, out.PeriodEnd = timestamppb.New(l.PeriodStart), timestamppb.New(l.PeriodEnd)
	}
	return out
}

// outcome is the message of one answer of a batch.
func (f *Face) outcome(o *ask.Outcome) *decisionv1.Decision {
	if o.Err == nil {
		return f.decision(o.Decision)
	}
	p := ask.ProblemOf(o.Err)
	if p.Internal() {
		f.log.Error("question not decided", "error", o.Err.Error())
	}
	return &decisionv1.Decision{Outcome: decisionv1.Decision_DENY, Status: int32(p.Status), Code: p.Code}
}
