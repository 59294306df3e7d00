// Package httpapi is billing's face for programs: a tenant's invoices, usage and wallet
// as JSON and CSV, and the portal tokens that operators issue, as openapi.yaml says it.
//
// The tenant is the verified portal token's and nothing in a request changes it. What is
// not there and what is another tenant's is the same answer, to the byte.
package httpapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/account"
	"penstock.dev/services/internal/period"
)

// A Reader reads one tenant's account.
type Reader interface {
	account.Reader
	KeyUsage(ctx context.Context, tenant, key string, of period.Span) (account.Usage, error)
}

// A Gate tells whose a token is. *access.Gate is one.
type Gate interface {
	Verify(ctx context.Context, token string, now time.Time) (access.Grant, error)
}

// An Audit keeps who asked for what was not theirs.
type Audit interface {
	Denied(ctx context.Context, d access.Denial) error
	HasKey(ctx context.Context, tenant, key string) (bool, error)
}

// An Operation is what a request asks for: a closed set, for metrics.
type Operation string

// The operations.
const (
	OpInvoices Operation = "invoices"
	OpInvoice  Operation = "invoice"
	OpUsage    Operation = "usage"
	OpWallet   Operation = "wallet"
	OpIssue    Operation = "issue_token"
	OpRevoke   Operation = "revoke_token"
	OpOpenAPI  Operation = "openapi"
	OpNone     Operation = "none" // no such path, or not by that method
)

// Operations are all of them.
var Operations = []Operation{OpInvoices, OpInvoice, OpUsage, OpWallet, OpIssue, OpRevoke, OpOpenAPI, OpNone}

// A Call is one request that was answered.
type Call struct {
	Operation Operation
	Status    int
	Took      time.Duration
}

// Config is what Handler needs.
type Config struct {
	Reader    Reader
	Gate      Gate
	Audit     Audit
	Issuer    Issuer
	Operators []string // tokens of who may issue and revoke portal tokens
	PortalURL string   // how customers reach this service, http(s)://host
	Now       func() time.Time
	Timeout   time.Duration // for one request's work; past it 503
	Log       *slog.Logger
	Observe   func(Call)
}

type handler struct {
	cfg   Config
	known [][sha256.Size]byte // digests of the operators' tokens
	mux   *http.ServeMux
}

// Handler returns the face.
func Handler(cfg Config) http.Handler {
	h := &handler{cfg: cfg, mux: http.NewServeMux()}
	for _, token := range cfg.Operators {
		h.known = append(h.known, sha256.Sum256([]byte(token)))
	}
	h.route(OpInvoices, http.MethodGet, "/v1/invoices", h.tenants(h.invoices, decodeInvoices))
	h.route(OpInvoice, http.MethodGet, "/v1/invoices/{id}", h.tenants(h.invoice, decodeInvoice))
	h.route(OpUsage, http.MethodGet, "/v1/usage", h.tenants(h.usage, decodeUsage))
	h.route(OpWallet, http.MethodGet, "/v1/wallet", h.tenants(h.wallet, decodeWallet))
	h.route(OpIssue, http.MethodPost, "/v1/portal-tokens", h.operators(h.issue, decodeToken, encodeToken))
	h.route(OpRevoke, http.MethodDelete, "/v1/portal-tokens/{jti}", h.operators(h.revoke, decodeJTI, encodeNothing))
	h.route(OpOpenAPI, http.MethodGet, openAPIJSONPath, http.HandlerFunc(serveOpenAPI))
	h.route(OpOpenAPI, http.MethodGet, openAPIYAMLPath, http.HandlerFunc(serveOpenAPI))
	h.mux.Handle("/", h.observed(OpNone, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.refuse(r.Context(), errNoPath, w)
	})))
	return h
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "private, no-store")
	h.mux.ServeHTTP(w, r)
}

// route serves a path by a method, GET also by HEAD, and refuses every other there.
func (h *handler) route(op Operation, method, path string, next http.Handler) {
	allow := method
	if method == http.MethodGet {
		allow = "GET, HEAD"
	}
	h.mux.Handle(method+" "+path, h.observed(op, next))
	h.mux.Handle(path, h.observed(op, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		h.refuse(r.Context(), fmt.Errorf("%w: the path has %s", errMethod, allow), w)
	})))
}

func (h *handler) observed(op Operation, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(rec, r)
		h.cfg.Observe(Call{Operation: op, Status: rec.status, Took: time.Since(start)})
	})
}

// A recorder remembers the status.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader writes the status.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

type grantKey struct{}

// tenants dresses an operation that a tenant may ask for: its token is verified first, and
// its work is bounded.
func (h *handler) tenants(e endpoint.Endpoint, dec kithttp.DecodeRequestFunc) http.Handler {
	server := kithttp.NewServer(e, dec, encode, kithttp.ServerErrorEncoder(h.refuse))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), h.cfg.Timeout)
		defer cancel()
		grant, err := h.admit(ctx, r)
		if err != nil {
			h.refuse(ctx, err, w)
			return
		}
		server.ServeHTTP(w, r.WithContext(context.WithValue(ctx, grantKey{}, grant)))
	})
}

func grantOf(ctx context.Context) access.Grant {
	g, _ := ctx.Value(grantKey{}).(access.Grant)
	return g
}
