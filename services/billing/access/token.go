package access

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// What every token of ours says.
const (
	Audience  = "penstock.portal"
	Issuer    = "penstock.billing"
	algorithm = "EdDSA"
	kind      = "JWT"
)

// maxToken bounds what is decoded at all; ours have under 600 bytes.
const maxToken = 4096

// ErrRefused means that a token opens nothing. Callers answer the same whatever
// the reason was.
var ErrRefused = errors.New("token refused")

// A Grant is what a token grants: to look at one tenant's numbers for a while.
type Grant struct {
	JTI       string // its id, 32 hexadecimal characters
	Tenant    string
	User      string // who looks, for the audit
	IssuedAt  time.Time
	ExpiresAt time.Time // first instant at which it opens nothing; whole seconds
}

type header struct {
	Algorithm string `json:"alg"`
	Kind      string `json:"typ"`
	KeyID     string `json:"kid"`
}

type claims struct {
	Issuer   string `json:"iss"`
	Audience string `json:"aud"`
	Subject  string `json:"sub"`
	Tenant   string `json:"tenant"`
	JTI      string `json:"jti"`
	IssuedAt int64  `json:"iat"`
	Expires  int64  `json:"exp"`
}

// Sign writes the token of a grant.
func (k Key) Sign(g Grant) (string, error) {
	h, err1 := json.Marshal(header{algorithm, kind, k.ID})
	c, err2 := json.Marshal(claims{
		Issuer: Issuer, Audience: Audience, Subject: g.User, Tenant: g.Tenant, JTI: g.JTI,
		IssuedAt: g.IssuedAt.Unix(), Expires: g.ExpiresAt.Unix(),
	})
	if err := errors.Join(err1, err2); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	signed := encode(h) + "." + encode(c)
	return signed + "." + encode(k.sign(signed)), nil
}

// Read returns what a token grants at now, if one of keys signed it. It does
// not know whether the token was revoked. Errors wrap ErrRefused and are for
// the log, never for the caller.
func Read(token string, keys []Key, now time.Time) (Grant, error) {
	refused := func(why string) (Grant, error) { return Grant{}, fmt.Errorf("%w: %s", ErrRefused, why) }

	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(token) > maxToken {
		return refused("not three parts")
	}
	var h header
	if err := decode(parts[0], &h); err != nil {
		return refused("header")
	}
	if h.Algorithm != algorithm || h.Kind != kind {
		return refused("not our algorithm")
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return refused("signature is not base64")
	}
	signed := parts[0] + "." + parts[1]
	if !anyVerifies(keys, h.KeyID, signed, signature) {
		return refused("signature")
	}
	var c claims
	if err := decode(parts[1], &c); err != nil {
		return refused("claims")
	}
	if c.Audience != Audience || c.Issuer != Issuer {
		return refused("audience")
	}
	if c.JTI == "" || c.Tenant == "" {
		return refused("no tenant or id")
	}
	g := Grant{
		JTI: c.JTI, Tenant: c.Tenant, User: c.Subject,
		IssuedAt: time.Unix(c.IssuedAt, 0).UTC(), ExpiresAt: time.Unix(c.Expires, 0).UTC(),
	}
	if !now.Before(g.ExpiresAt) {
		return refused("expired")
	}
	return g, nil
}

// anyVerifies asks the key with the id.
func anyVerifies(keys []Key, id, signed string, signature []byte) bool {
	for _, k := range keys {
		if k.ID == id && k.verify(signed, signature) {
			return true
		}
	}
	return false
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// decode is strict: one object, no fields that we do not write, nothing after
// it.
func decode(part string, into any) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(part)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// LooksLikeToken reports whether a piece of a URL could be a token: three parts
// of which the first is a JSON object in base64.
func LooksLikeToken(s string) bool {
	return strings.Count(s, ".") == 2 && strings.HasPrefix(s, "ey")
}
