package httpapi

import (
	"context"
	"strconv"

	"penstock.dev/services/rule-admin/catalog"
)

// The endpoints take what the decoders made, and return what the encoders
// write. go-kit leaves their types to us.

type page struct {
	Items      []*catalog.Object `json:"items"`
	NextCursor string            `json:"next_cursor"`
}

func (h *handler) list(ctx context.Context, request any) (any, error) {
	req := request.(listRequest) // decodeList made it
	objects, err := h.cfg.Catalogue.List(ctx, req.kind, req.after, req.limit+1)
	if err != nil {
		return nil, err
	}
	p := page{Items: objects}
	if len(objects) > req.limit {
		p.Items = objects[:req.limit]
		p.NextCursor = sealCursor(listScope(req.kind), p.Items[req.limit-1].ID)
	}
	if p.Items == nil {
		p.Items = []*catalog.Object{}
	}
	return p, nil
}

// found is an object, and whether the client has it already.
type found struct {
	object    *catalog.Object
	unchanged bool
}

func (h *handler) get(ctx context.Context, request any) (any, error) {
	req := request.(getRequest) // decodeGet made it
	o, err := h.cfg.Catalogue.Object(ctx, req.target.kind, req.target.id)
	if err != nil {
		return nil, err
	}
	return found{object: o, unchanged: noneMatch(req.ifNoneMatch, o.Version)}, nil
}

func (h *handler) put(ctx context.Context, request any) (any, error) {
	return h.cfg.Catalogue.Put(ctx, request.(catalog.Put)) // decodePut made it
}

func (h *handler) delete(ctx context.Context, request any) (any, error) {
	return nil, h.cfg.Catalogue.Delete(ctx, request.(catalog.Removal)) // decodeDelete made it
}

// auditPage is a page of the audit.
type auditPage struct {
	Items      []catalog.Entry `json:"items"`
	NextCursor string          `json:"next_cursor"`
	csv        bool
}

func (h *handler) audit(ctx context.Context, request any) (any, error) {
	req := request.(auditRequest) // decodeAudit made it
	search := req.search
	limit := search.Most
	search.Most++
	entries, err := h.cfg.Audit(ctx, search)
	if err != nil {
		return nil, err
	}
	p := auditPage{Items: entries, csv: req.csv}
	if len(entries) > limit {
		p.Items = entries[:limit]
		p.NextCursor = sealCursor(auditScope(search), strconv.FormatInt(p.Items[limit-1].Revision, 10))
	}
	if p.Items == nil {
		p.Items = []catalog.Entry{}
	}
	return p, nil
}
