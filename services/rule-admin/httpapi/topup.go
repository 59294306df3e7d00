package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"penstock.dev/services/internal/rule"
	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
)

const (
	idempotencyKey     = "Idempotency-Key"
	idempotentReplayed = "Idempotent-Replayed"
)

func decodeTopUp(ctx context.Context, r *http.Request) (any, error) {
	c := callOf(ctx)
	if _, err := query(r); err != nil {
		return nil, err
	}
	key, err := keyOf(r)
	if err != nil {
		return nil, err
	}
	text, err := body(r)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("topup id: %w", err)
	}
	req := ledger.Request{Tenant: c.target.id, Key: key, ID: id.String(), Caller: c.caller, RequestID: c.requestID}
	return req, req.Read(text)
}

// keyOf returns the request's idempotency key.
func keyOf(r *http.Request) (string, error) {
	values := r.Header.Values(idempotencyKey)
	switch {
	case len(values) == 0 || values[0] == "":
		return "", fault(catalog.ErrMalformed, idempotencyKey, "is missing: a top-up is made once for each key, however often it is sent")
	case len(values) > 1:
		return "", fault(catalog.ErrMalformed, idempotencyKey, "is there twice")
	}
	var f rule.Faults
	if f.Text(idempotencyKey, values[0], 1, ledger.MaxKey); len(f) > 0 {
		return "", &catalog.FaultError{Err: catalog.ErrInvalid, Faults: f}
	}
	return values[0], nil
}

// granted is a top-up that was made, now or when its key came first.
type granted struct {
	topUp    ledger.TopUp
	replayed bool
}

func (h *handler) topUp(ctx context.Context, request any) (any, error) {
	made, replayed, err := h.cfg.Ledger.TopUp(ctx, request.(ledger.Request)) // decodeTopUp made it
	return granted{made, replayed}, err
}

func encodeTopUp(_ context.Context, w http.ResponseWriter, response any) error {
	g := response.(granted) // topUp made it
	if g.replayed {
		w.Header().Set(idempotentReplayed, "true")
	}
	return writeJSON(w, http.StatusCreated, g.topUp.First())
}

// topUpsRequest is a page of a tenant's top-ups.
type topUpsRequest struct {
	tenant string
	below  int64
	limit  int
}

func decodeTopUps(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r, "limit", "cursor")
	if err != nil {
		return nil, err
	}
	req := topUpsRequest{tenant: callOf(ctx).target.id}
	if req.limit, err = pageLimit(q, maxPage); err != nil {
		return nil, err
	}
	req.below, err = openRevisionCursor(topUpsScope(req.tenant), q.Get("cursor"))
	return req, err
}

type topUpsPage struct {
	Items      []ledger.TopUp `json:"items"`
	NextCursor string         `json:"next_cursor"`
}

func (h *handler) topUps(ctx context.Context, request any) (any, error) {
	req := request.(topUpsRequest) // decodeTopUps made it
	list, err := h.cfg.Ledger.List(ctx, req.tenant, req.below, req.limit+1)
	if err != nil {
		return nil, err
	}
	p := topUpsPage{Items: list}
	if len(list) > req.limit {
		p.Items = list[:req.limit]
		p.NextCursor = sealCursor(topUpsScope(req.tenant), strconv.FormatInt(p.Items[req.limit-1].Revision, 10))
	}
	if p.Items == nil {
		p.Items = []ledger.TopUp{}
	}
	return p, nil
}
