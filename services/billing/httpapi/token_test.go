package httpapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/httpapi"
)

// A register knows which tokens were issued and which were revoked.
type register map[string]bool

func (r register) Issue(_ context.Context, g access.Grant, _ access.Code, _ time.Time) error {
	r[g.JTI] = true
	return nil
}

func (r register) Good(_ context.Context, jti string) (bool, error) { return r[jti], nil }

func (r register) Revoke(_ context.Context, jti string, _ time.Time) error {
	r[jti] = false
	return nil
}

func (r register) Redeem(context.Context, access.Code, string, time.Time) (access.Grant, error) {
	return access.Grant{}, access.ErrRefused
}

// TestFC31 guarantees at the face, with the gate that signs and verifies for real: a token
// of ours is 200, and whatever was done to it is 401, one body and the same headers for
// all.
func TestFC31(t *testing.T) {
	t.Parallel()
	f := newFace(t)
	seed := []byte(strings.Repeat("s", ed25519.SeedSize))
	key, err := access.NewKey("k1", seed)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := access.New([]access.Key{key}, register{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(httpapi.Handler(httpapi.Config{
		Reader: f.books, Gate: gate, Audit: f.books, Issuer: gate, PortalURL: "https://portal.example/",
		Now: func() time.Time { return now }, Timeout: time.Minute, Log: slog.New(slog.DiscardHandler), Observe: func(httpapi.Call) {},
	}))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	issue := func() access.Ticket {
		t.Helper()
		ticket, err := gate.Issue(t.Context(), "a", "u", time.Hour, now)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	good, revoked := issue(), issue()
	if err := gate.Revoke(t.Context(), revoked.JTI, now); err != nil {
		t.Fatal(err)
	}

	encode := base64.RawURLEncoding.EncodeToString
	part := strings.Split(good.Token, ".")
	head := func(alg string) string { return encode(fmt.Appendf(nil, `{"alg":%q,"typ":"JWT","kid":"k1"}`, alg)) }
	sign := func(claims string) string {
		text := part[0] + "." + encode([]byte(claims))
		return text + "." + encode(ed25519.Sign(ed25519.NewKeyFromSeed(seed), []byte(text)))
	}
	claims := func(audience string, expires time.Time) string {
		return fmt.Sprintf(`{"iss":%q,"aud":%q,"sub":"u","tenant":"a","jti":%q,"iat":%d,"exp":%d}`, access.Issuer, audience, good.JTI, now.Unix(), expires.Unix())
	}
	symmetric := hmac.New(sha256.New, key.Public())
	symmetric.Write([]byte(head("HS256") + "." + part[1]))
	payload, err := base64.RawURLEncoding.DecodeString(part[1])
	if err != nil {
		t.Fatal(err)
	}
	payload[len(payload)/2] ^= 1
	signature, err := base64.RawURLEncoding.DecodeString(part[2])
	if err != nil {
		t.Fatal(err)
	}

	for name, token := range map[string]string{"as issued": good.Token, "as issued, made here": sign(claims(access.Audience, now.Add(time.Hour)))} {
		if e := f.want(http.StatusOK, f.get(token, "/v1/usage", "")); !strings.Contains(e.body, "pay-a") {
			t.Errorf("%s: %s", name, e.body)
		}
	}
	var first *exchange
	for name, token := range map[string]string{
		"none":                   head("none") + "." + part[1] + ".",
		"NoNe":                   head("NoNe") + "." + part[1] + ".",
		"symmetric":              head("HS256") + "." + part[1] + "." + encode(symmetric.Sum(nil)),
		"expired 1 s ago":        sign(claims(access.Audience, now.Add(-time.Second))),
		"the console's audience": sign(claims("penstock.console", now.Add(time.Hour))),
		"one bit flipped":        part[0] + "." + encode(payload) + "." + part[2],
		"one byte cut off":       part[0] + "." + part[1] + "." + encode(signature[:len(signature)-1]),
		"revoked":                revoked.Token,
	} {
		e := f.want(http.StatusUnauthorized, f.get(token, "/v1/usage", ""))
		e.header.Del("Date")
		if first == nil {
			first = &e
		}
		if !reflect.DeepEqual(e, *first) {
			t.Errorf("%s: %+v, want as the first: %+v", name, e, *first)
		}
	}
}
