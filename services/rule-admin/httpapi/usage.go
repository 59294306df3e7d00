package httpapi

import (
	"context"
	"net/http"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
)

// usageRequest is a page of what tenants have used.
type usageRequest struct {
	after string
	limit int
}

func decodeUsage(_ context.Context, r *http.Request) (any, error) {
	q, err := query(r, "limit", "cursor")
	if err != nil {
		return nil, err
	}
	var req usageRequest
	if req.limit, err = pageLimit(q, maxUsagePage); err != nil {
		return nil, err
	}
	req.after, err = openIDCursor(usageScope, q.Get("cursor"))
	return req, err
}

type usagePage struct {
	Items      []catalog.Usage `json:"items"`
	NextCursor string          `json:"next_cursor"`
}

func (h *handler) usage(ctx context.Context, request any) (any, error) {
	req := request.(usageRequest) // decodeUsage made it
	all, err := h.cfg.Catalogue.Usage(ctx, req.after, req.limit+1, h.cfg.Now(), h.cfg.Totals)
	if err != nil {
		return nil, err
	}
	p := usagePage{Items: all}
	if len(all) > req.limit {
		p.Items = all[:req.limit]
		p.NextCursor = sealCursor(usageScope, p.Items[req.limit-1].Tenant)
	}
	return p, nil
}

func decodeTenantUsage(ctx context.Context, r *http.Request) (any, error) {
	_, err := query(r)
	return callOf(ctx).target.id, err
}

func (h *handler) tenantUsage(ctx context.Context, request any) (any, error) {
	return h.cfg.Catalogue.TenantUsage(ctx, request.(string), h.cfg.Now(), h.cfg.Totals) // decodeTenantUsage made it
}

func decodeExplain(_ context.Context, r *http.Request) (any, error) {
	q, err := query(r, "rule_id")
	if err != nil {
		return nil, err
	}
	text, err := body(r)
	if err != nil {
		return nil, err
	}
	question, err := catalog.ReadQuestion(text)
	if err != nil || !q.Has("rule_id") {
		return question, err
	}
	question.RuleID = q.Get("rule_id")
	var f rule.Faults
	if f.ID("rule_id", question.RuleID); len(f) > 0 {
		return nil, &catalog.FaultError{Err: catalog.ErrInvalid, Faults: f}
	}
	return question, nil
}

func (h *handler) explain(ctx context.Context, request any) (any, error) {
	return h.cfg.Catalogue.Explain(ctx, request.(catalog.Question), h.cfg.Now()) // decodeExplain made it
}
