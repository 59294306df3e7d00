package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"

	"penstock.dev/services/billing/access"
)

// An Issuer issues and ends portal tokens. *access.Gate is one.
type Issuer interface {
	Issue(ctx context.Context, tenant, user string, ttl time.Duration, now time.Time) (access.Ticket, error)
	Revoke(ctx context.Context, jti string, now time.Time) error
}

// maxBody bounds a request's body, in bytes.
const maxBody = 16 << 10

// operators dresses an operation that only an operator may ask for.
func (h *handler) operators(e endpoint.Endpoint, dec kithttp.DecodeRequestFunc, enc kithttp.EncodeResponseFunc) http.Handler {
	server := kithttp.NewServer(e, dec, enc, kithttp.ServerErrorEncoder(h.refuse))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), h.cfg.Timeout)
		defer cancel()
		if !h.operator(r) {
			h.refuse(ctx, errNoOperator, w)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		server.ServeHTTP(w, r.WithContext(ctx))
	})
}

// operator reports whether the request carries an operator's token. Every token is
// compared by its digest, and each in constant time.
func (h *handler) operator(r *http.Request) bool {
	secret, ok := bearer(r)
	digest, found := sha256.Sum256([]byte(secret)), 0
	for _, known := range h.known {
		found |= subtle.ConstantTimeCompare(digest[:], known[:])
	}
	return ok && found == 1
}

type tokenRequest struct {
	Tenant, User string
	TTL          *int64 // seconds
}

func decodeToken(_ context.Context, r *http.Request) (any, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	var req tokenRequest
	if err := readObject(text, map[string]any{"tenant": &req.Tenant, "user": &req.User, "ttl_seconds": &req.TTL}); err != nil {
		return nil, err
	}
	most := int64(access.MaxTTL / time.Second)
	switch {
	case req.Tenant == "" || len(req.Tenant) > access.MaxName:
		return nil, &fieldFault{"tenant", fmt.Sprintf("must have 1 to %d bytes", access.MaxName)}
	case len(req.User) > access.MaxName:
		return nil, &fieldFault{"user", fmt.Sprintf("must have at most %d bytes", access.MaxName)}
	case strings.Contains(req.Tenant, "\x00"):
		return nil, &fieldFault{"tenant", "has a zero character"}
	case strings.Contains(req.User, "\x00"):
		return nil, &fieldFault{"user", "has a zero character"}
	case req.TTL != nil && (*req.TTL < 1 || *req.TTL > most):
		return nil, &fieldFault{"ttl_seconds", fmt.Sprintf("must be from 1 to %d", most)}
	}
	return req, nil
}

// readObject reads an object's fields into what they are for. An error that is one field's
// names it.
func readObject(text []byte, into map[string]any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	known := slices.Sorted(maps.Keys(into))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if into[name] == nil {
			return fmt.Errorf("%w: %w", errUnreadable, &fieldFault{fmt.Sprintf("%.128s", name), "is no field here: there are " + strings.Join(known, ", ")})
		}
		if err := json.Unmarshal(fields[name], into[name]); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, &fieldFault{name, "has the wrong type: " + strings.TrimPrefix(err.Error(), "json: ")})
		}
	}
	return nil
}

type tokenDocument struct {
	Token     string `json:"token"`
	JTI       string `json:"jti"`
	ExpiresAt string `json:"expires_at"`
	EnterURL  string `json:"enter_url"`
}

func (h *handler) issue(ctx context.Context, request any) (any, error) {
	req := request.(tokenRequest) // decodeToken made it
	ttl := access.DefaultTTL
	if req.TTL != nil {
		ttl = time.Duration(*req.TTL) * time.Second
	}
	t, err := h.cfg.Issuer.Issue(ctx, req.Tenant, req.User, ttl, h.cfg.Now())
	if err != nil {
		return nil, err
	}
	return tokenDocument{
		Token: t.Token, JTI: t.JTI, ExpiresAt: instant(t.ExpiresAt),
		EnterURL: strings.TrimSuffix(h.cfg.PortalURL, "/") + "/portal/enter?code=" + url.QueryEscape(t.Code),
	}, nil
}

func encodeToken(_ context.Context, w http.ResponseWriter, response any) error {
	w.Header().Set("Content-Type", string(asJSON))
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(response)
}

func decodeJTI(_ context.Context, r *http.Request) (any, error) { return r.PathValue("jti"), nil }

func (h *handler) revoke(ctx context.Context, request any) (any, error) {
	return nil, h.cfg.Issuer.Revoke(ctx, request.(string), h.cfg.Now()) // decodeJTI made it
}

func encodeNothing(_ context.Context, w http.ResponseWriter, _ any) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}
