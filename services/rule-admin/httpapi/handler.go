// Package httpapi is the face of the catalogue: REST over JSON with bearer
// tokens, ETags, cursor pages and problem+json, as openapi.yaml says it.
package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"

	"penstock.dev/services/rule-admin/catalog"
	"penstock.dev/services/rule-admin/ledger"
)

// A Catalogue is what the face shows.
type Catalogue interface {
	Object(ctx context.Context, kind catalog.Kind, id string) (*catalog.Object, error)
	List(ctx context.Context, kind catalog.Kind, after string, most int) ([]*catalog.Object, error)
	Put(ctx context.Context, p catalog.Put) (catalog.Result, error)
	Delete(ctx context.Context, r catalog.Removal) error
	Usage(ctx context.Context, after string, most int, now time.Time, totals catalog.Totals) ([]catalog.Usage, error)
	TenantUsage(ctx context.Context, tenant string, now time.Time, totals catalog.Totals) (catalog.Usage, error)
	Explain(ctx context.Context, q catalog.Question, now time.Time) (*catalog.Explanation, error)
}

// A Ledger makes top-ups and shows them.
type Ledger interface {
	TopUp(ctx context.Context, r ledger.Request) (made ledger.TopUp, replayed bool, err error)
	List(ctx context.Context, tenant string, below int64, most int) ([]ledger.TopUp, error)
}

// Audit returns entries, the newest first.
type Audit func(ctx context.Context, q catalog.Search) ([]catalog.Entry, error)

// A Call is one request that was answered.
type Call struct {
	Operation Operation
	Kind      catalog.Kind // empty where there is none
	Status    int
	Took      time.Duration
}

// Config is what Handler needs.
type Config struct {
	Catalogue Catalogue
	Audit     Audit
	Ledger    Ledger
	Totals    catalog.Totals // nil: there is no counter store
	Now       func() time.Time
	Tokens    []Token
	Timeout   time.Duration // for one request's work; past it 503
	Log       *slog.Logger
	Observe   func(Call)
}

// handler holds the endpoints by operation.
type handler struct {
	cfg    Config
	guards []guard
	serve  map[Operation]http.Handler
}

// Handler returns the face.
func Handler(cfg Config) http.Handler {
	h := &handler{cfg: cfg, guards: guards(cfg.Tokens)}
	h.serve = map[Operation]http.Handler{
		OpList:        h.endpoint(h.list, decodeList, encodeJSON),
		OpGet:         h.endpoint(h.get, decodeGet, encodeObject),
		OpPut:         h.endpoint(h.put, decodePut, encodePut),
		OpDelete:      h.endpoint(h.delete, decodeDelete, encodeNothing),
		OpAudit:       h.endpoint(h.audit, decodeAudit, encodeAudit),
		OpTopUp:       h.endpoint(h.topUp, decodeTopUp, encodeTopUp),
		OpTopUps:      h.endpoint(h.topUps, decodeTopUps, encodeJSON),
		OpUsage:       h.endpoint(h.usage, decodeUsage, encodeJSON),
		OpTenantUsage: h.endpoint(h.tenantUsage, decodeTenantUsage, encodeJSON),
		OpExplain:     h.endpoint(h.explain, decodeExplain, encodeJSON),
		OpOpenAPI:     http.HandlerFunc(serveOpenAPI),
	}
	return h
}

// endpoint dresses one operation. Its work is bounded by the configured time.
func (h *handler) endpoint(e endpoint.Endpoint, dec kithttp.DecodeRequestFunc, enc kithttp.EncodeResponseFunc) http.Handler {
	return kithttp.NewServer(bounded(h.cfg.Timeout)(e), dec, enc, kithttp.ServerErrorEncoder(h.refuse))
}

func bounded(most time.Duration) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) {
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			return next(ctx, request)
		}
	}
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &recorder{ResponseWriter: w}
	call := call{requestID: requestID(r), path: r.URL.Path, operation: OpNone}
	rec.Header().Set("X-Request-Id", call.requestID)
	rec.Header().Set("X-Content-Type-Options", "nosniff")
	rec.Header().Set("Cache-Control", "no-store")

	target, methods := route(r.URL.EscapedPath())
	call.target = target
	ctx := context.WithValue(r.Context(), callKey{}, &call)
	if op, err := h.admit(r, methods, &call); err != nil {
		h.refuse(ctx, err, rec)
	} else {
		h.serve[op].ServeHTTP(rec, r.WithContext(ctx))
	}
	h.cfg.Observe(Call{Operation: call.operation, Kind: target.kind, Status: rec.status, Took: time.Since(start)})
}

// admit decides whether the request may go on, and as which operation: the path
// must exist, and so must the method; the token must be known, and its role
// must do.
func (h *handler) admit(r *http.Request, methods []method, c *call) (Operation, error) {
	if len(methods) == 0 {
		return "", fmt.Errorf("%w: %s", errNoPath, clip(r.URL.Path))
	}
	op, err := operation(methods, r.Method)
	if err != nil {
		return "", err
	}
	c.operation = op
	if op == OpOpenAPI {
		return op, nil
	}
	if c.caller, err = h.authenticate(r); err != nil {
		return "", err
	}
	if op.writes() && c.caller.Role != RoleAdmin {
		return "", fmt.Errorf("%w: role %s may not write", errForbidden, c.caller.Role)
	}
	return op, nil
}

// A call is what one request is about. It travels in the context.
type call struct {
	requestID string
	path      string
	target    target
	operation Operation
	caller    catalog.Caller
	oddTag    bool // If-Match has a tag that is weak or malformed
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil {
		c = &call{}
	}
	return c
}

// A recorder remembers the status.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the first status.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write is 200 unless a status was written.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// clip bounds what an answer repeats of a request.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
