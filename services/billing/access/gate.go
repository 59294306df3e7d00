package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Bounds of a token's life, and a code's.
const (
	MaxTTL     = 30 * 24 * time.Hour
	DefaultTTL = time.Hour
	CodeTTL    = time.Minute
)

// MaxName bounds a tenant's id and a user's name, in bytes.
const MaxName = 256

// Errors of a Gate beside ErrRefused.
var (
	// ErrInvalid reports a request for a token that cannot be granted. Its text
	// is for the caller.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound reports a token id that was never issued.
	ErrNotFound = errors.New("not found")
)

// A Code is the digest of a one-time code: what is kept of it.
type Code [sha256.Size]byte

// A Book keeps what was issued.
type Book interface {
	// Issue keeps a grant and the digest of a code for it.
	Issue(ctx context.Context, g Grant, code Code, codeExpires time.Time) error
	// Good reports whether a grant was issued and not revoked.
	Good(ctx context.Context, jti string) (bool, error)
	// Revoke ends a grant and the sessions that grew from it, now and for ever.
	// It returns ErrNotFound for one that was never issued.
	Revoke(ctx context.Context, jti string, now time.Time) error
	// Redeem takes a code that is unused, not expired and of a good grant, keeps
	// a session's grant with the id for the same tenant, user and end, and
	// returns it. It returns ErrRefused for any other code.
	Redeem(ctx context.Context, code Code, session string, now time.Time) (Grant, error)
}

// A Gate issues and verifies tokens. It is safe for concurrent use.
type Gate struct {
	keys []Key
	book Book
}

// New returns a gate on the keys, of which the first signs, and the book.
func New(keys []Key, book Book) (*Gate, error) {
	if len(keys) == 0 {
		return nil, errors.New("access: no key")
	}
	return &Gate{keys: keys, book: book}, nil
}

// A Ticket is what an operator gets for a customer.
type Ticket struct {
	Grant
	Token string
	Code  string // one-time, good for CodeTTL
}

// Issue grants a user to look at a tenant for ttl; 0 means DefaultTTL.
func (g *Gate) Issue(ctx context.Context, tenant, user string, ttl time.Duration, now time.Time) (Ticket, error) {
	switch {
	case tenant == "" || len(tenant) > MaxName:
		return Ticket{}, fmt.Errorf("%w: tenant must have 1 to %d bytes", ErrInvalid, MaxName)
	case len(user) > MaxName:
		return Ticket{}, fmt.Errorf("%w: user must have at most %d bytes", ErrInvalid, MaxName)
	case ttl < 0 || ttl > MaxTTL || ttl%time.Second != 0:
		return Ticket{}, fmt.Errorf("%w: ttl_seconds must be from 1 to %d", ErrInvalid, int64(MaxTTL/time.Second))
	case ttl == 0:
		ttl = DefaultTTL
	}
	now = now.UTC().Truncate(time.Second)
	grant := Grant{JTI: random(), Tenant: tenant, User: user, IssuedAt: now, ExpiresAt: now.Add(ttl)}
	token, err := g.keys[0].Sign(grant)
	if err != nil {
		return Ticket{}, err
	}
	code := random()
	if err := g.book.Issue(ctx, grant, digest(code), now.Add(CodeTTL)); err != nil {
		return Ticket{}, err
	}
	return Ticket{Grant: grant, Token: token, Code: code}, nil
}

// Verify returns what a token grants now. An error that does not wrap
// ErrRefused means that the book could not be read.
func (g *Gate) Verify(ctx context.Context, token string, now time.Time) (Grant, error) {
	grant, err := Read(token, g.keys, now)
	if err != nil {
		return Grant{}, err
	}
	good, err := g.book.Good(ctx, grant.JTI)
	if err != nil {
		return Grant{}, fmt.Errorf("token %s: %w", grant.JTI, err)
	}
	if !good {
		return Grant{}, fmt.Errorf("%w: revoked", ErrRefused)
	}
	return grant, nil
}

// Redeem changes a one-time code for a session's token, which ends with the
// token that the code came with, or before.
func (g *Gate) Redeem(ctx context.Context, code string, now time.Time) (Grant, string, error) {
	grant, err := g.book.Redeem(ctx, digest(code), random(), now)
	if err != nil {
		return Grant{}, "", err
	}
	token, err := g.keys[0].Sign(grant)
	return grant, token, err
}

// Revoke ends a token and the sessions that grew from it.
func (g *Gate) Revoke(ctx context.Context, jti string, now time.Time) error {
	return g.book.Revoke(ctx, jti, now)
}

// random returns 128 bits as 32 hexadecimal characters.
func random() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails: see its documentation
	return hex.EncodeToString(b)
}

// digest is how a code is known: a lookup by it tells nothing about the code,
// however long it takes.
func digest(code string) Code { return sha256.Sum256([]byte(code)) }

// A Denial is an access to something that is not the tenant's, or not there.
type Denial struct {
	At     time.Time
	Tenant string // who asked
	User   string
	JTI    string
	Kind   string // invoice or api_key
	Ref    string // what was asked for
	Path   string // where
}

// Kinds of what can be denied.
const (
	KindInvoice = "invoice"
	KindAPIKey  = "api_key"
)
