package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"penstock.dev/services/rule-admin/catalog"
)

// Roles of tokens.
const (
	RoleAdmin    = "admin"    // reads and writes
	RoleReadonly = "readonly" // reads
)

// A Token lets a caller in.
type Token struct {
	Actor  string // who the audit says it was
	Role   string // RoleAdmin or RoleReadonly
	Secret string
}

// A guard knows a token by its digest, so that all take equally long to
// compare.
type guard struct {
	digest [sha256.Size]byte
	caller catalog.Caller
}

func guards(tokens []Token) []guard {
	out := make([]guard, len(tokens))
	for i, t := range tokens {
		out[i] = guard{sha256.Sum256([]byte(t.Secret)), catalog.Caller{Actor: t.Actor, Role: t.Role}}
	}
	return out
}

// authenticate returns whose token the request carries. Every token is
// compared, and each in constant time.
func (h *handler) authenticate(r *http.Request) (catalog.Caller, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return catalog.Caller{}, fmt.Errorf("%w: the Authorization header is missing", errUnauthorized)
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || strings.TrimSpace(secret) == "" {
		return catalog.Caller{}, fmt.Errorf("%w: the Authorization header is not one bearer token", errUnauthorized)
	}
	digest := sha256.Sum256([]byte(strings.TrimSpace(secret)))
	found := -1
	for i := range h.guards {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], h.guards[i].digest[:]), i, found)
	}
	if found < 0 {
		return catalog.Caller{}, fmt.Errorf("%w: the bearer token is not known", errUnauthorized)
	}
	return h.guards[found].caller, nil
}

// requestID returns the client's id of the request when it is a sane one, else
// a new one.
func requestID(r *http.Request) string {
	const most = 128
	id := r.Header.Get("X-Request-Id")
	if id != "" && len(id) <= most && !strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return id
	}
	v7, err := uuid.NewV7()
	if err != nil {
		return "unknown" // the machine has no randomness left
	}
	return v7.String()
}
