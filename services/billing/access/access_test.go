package access_test

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/billing/access"
)

var noon = time.Date(2026, 7, 23, 12, 0, 0, 0, time.UTC)

func key(t testing.TB, id string, b byte) access.Key {
	t.Helper()
	k, err := access.NewKey(id, []byte(strings.Repeat(string(b), ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A book in memory.
type book struct {
	mu    sync.Mutex
	rows  map[string]*row
	codes map[access.Code]*code
	fails error
}

type row struct {
	grant   access.Grant
	parent  string
	revoked bool
}

type code struct {
	jti     string
	expires time.Time
	used    bool
}

func newBook() *book {
	return &book{rows: map[string]*row{}, codes: map[access.Code]*code{}}
}

func (b *book) Issue(_ context.Context, g access.Grant, c access.Code, expires time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[g.JTI] = &row{grant: g}
	b.codes[c] = &code{jti: g.JTI, expires: expires}
	return b.fails
}

func (b *book) Good(_ context.Context, jti string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.rows[jti]
	return ok && !r.revoked, b.fails
}

func (b *book) Revoke(_ context.Context, jti string, _ time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.rows[jti]; !ok {
		return access.ErrNotFound
	}
	for id, r := range b.rows {
		r.revoked = r.revoked || id == jti || r.parent == jti
	}
	return nil
}

func (b *book) Redeem(_ context.Context, c access.Code, session string, now time.Time) (access.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept, ok := b.codes[c]
	if !ok || kept.used || !now.Before(kept.expires) || b.rows[kept.jti].revoked {
		return access.Grant{}, access.ErrRefused
	}
	kept.used = true
	g := b.rows[kept.jti].grant
	g.JTI = session
	b.rows[session] = &row{grant: g, parent: kept.jti}
	return g, nil
}

// forge signs whatever it is given with Ed25519.
func forge(t *testing.T, k ed25519.PrivateKey, head, claims any) string {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(head) + "." + part(claims)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(k, []byte(text)))
}

type object = map[string]any

func ours() object { return object{"alg": "EdDSA", "typ": "JWT", "kid": "k1"} }

func good(jti string) object {
	return object{
		"iss": access.Issuer, "aud": access.Audience, "sub": "u1", "tenant": "acme", "jti": jti,
		"iat": noon.Unix(), "exp": noon.Add(time.Hour).Unix(),
	}
}

func with(o object, name string, v any) object {
	out := object{}
	for k, v := range o {
		out[k] = v
	}
	out[name] = v
	return out
}

// TestFC31 guarantees that only a token of ours, whole and in time, opens
// anything: what the token says about its own verification is never believed.
func TestFC31(t *testing.T) {
	t.Parallel()

	k := key(t, "k1", 'a')
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("a", ed25519.SeedSize)))
	b := newBook()
	gate, err := access.New([]access.Key{k}, b)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := gate.Issue(t.Context(), "acme", "u1", time.Hour, noon)
	if err != nil {
		t.Fatal(err)
	}
	jti := ticket.JTI
	parts := strings.Split(ticket.Token, ".")
	encode := base64.RawURLEncoding.EncodeToString
	unsigned := func(alg string) string {
		h, _ := json.Marshal(with(ours(), "alg", alg))
		return encode(h) + "." + parts[1] + "."
	}
	hs := func(alg string, secret []byte) string {
		h, _ := json.Marshal(with(ours(), "alg", alg))
		text := encode(h) + "." + parts[1]
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(text))
		return text + "." + encode(m.Sum(nil))
	}
	flipped := []byte(parts[1])
	flipped[20] ^= 1
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}

	refused := map[string]string{
		"algorithm none, empty signature":            unsigned("none"),
		"algorithm NoNe, empty signature":            unsigned("NoNe"),
		"symmetric, keyed with the public key":       hs("HS256", k.Public()),
		"expired one second ago":                     forge(t, private, ours(), with(good(jti), "exp", noon.Add(-time.Second).Unix())),
		"the admin console's audience":               forge(t, private, ours(), with(good(jti), "aud", "penstock.console")),
		"one bit of the payload flipped":             parts[0] + "." + string(flipped) + "." + parts[2],
		"one byte of the signature cut off":          parts[0] + "." + parts[1] + "." + encode(signature[:63]),
		"expires this instant":                       forge(t, private, ours(), with(good(jti), "exp", noon.Unix())),
		"no expiry":                                  forge(t, private, ours(), with(good(jti), "exp", 0)),
		"symmetric algorithm named over a signature": forge(t, private, with(ours(), "alg", "HS256"), good(jti)),
		"unknown key id":                             forge(t, private, with(ours(), "kid", "k2"), good(jti)),
		"a key of its own in the header":             forge(t, private, with(ours(), "jwk", object{"kty": "OKP"}), good(jti)),
		"several audiences":                          forge(t, private, ours(), with(good(jti), "aud", []string{access.Audience, "x"})),
		"another issuer":                             forge(t, private, ours(), with(good(jti), "iss", "else")),
		"no tenant":                                  forge(t, private, ours(), with(good(jti), "tenant", "")),
		"an id that was never issued":                forge(t, private, ours(), good("0")),
		"signed by another key":                      forge(t, ed25519.NewKeyFromSeed(make([]byte, 32)), ours(), good(jti)),
		"signature with padding":                     ticket.Token + "==",
		"four parts":                                 ticket.Token + ".e30",
		"two parts":                                  parts[0] + "." + parts[1],
		"nothing":                                    "",
		"too long":                                   ticket.Token + strings.Repeat("A", 1<<16),
	}
	// The last character of a signature has four bits that mean nothing: only one
	// spelling is ours.
	last := ticket.Token[len(ticket.Token)-1]
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") {
		if c != last {
			refused["signature ends in "+string(c)] = ticket.Token[:len(ticket.Token)-1] + string(c)
		}
	}
	for name, token := range refused {
		if _, err := gate.Verify(t.Context(), token, noon); !errors.Is(err, access.ErrRefused) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	for name, token := range map[string]string{"issued": ticket.Token, "forged with the right key": forge(t, private, ours(), good(jti))} {
		g, err := gate.Verify(t.Context(), token, noon)
		if err != nil || g.Tenant != "acme" || g.User != "u1" || g.JTI != jti {
			t.Errorf("%s: %+v, %v, want acme's", name, g, err)
		}
	}
}

// TestRevoked guarantees that a revoked token opens nothing, nor does a session
// that grew from it, and that signing out of a session leaves the token.
func TestRevoked(t *testing.T) {
	t.Parallel()

	b := newBook()
	gate, err := access.New([]access.Key{key(t, "k1", 'a')}, b)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := gate.Issue(t.Context(), "acme", "u1", 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	if want := noon.Add(access.DefaultTTL); !ticket.ExpiresAt.Equal(want) {
		t.Errorf("expires %v, want %v", ticket.ExpiresAt, want)
	}
	session, token, err := gate.Redeem(t.Context(), ticket.Code, noon.Add(59*time.Second))
	if err != nil || session.JTI == ticket.JTI || !session.ExpiresAt.Equal(ticket.ExpiresAt) || session.Tenant != "acme" {
		t.Fatalf("redeem: %+v, %v", session, err)
	}
	for name, c := range map[string]string{"used": ticket.Code, "unknown": "0", "none": "", "the token": ticket.Token} {
		if _, _, err := gate.Redeem(t.Context(), c, noon); !errors.Is(err, access.ErrRefused) {
			t.Errorf("code %s: %v, want it refused", name, err)
		}
	}
	open := func(token string, want bool) {
		t.Helper()
		if _, err := gate.Verify(t.Context(), token, noon); (err == nil) != want {
			t.Errorf("verify: %v, want open %v", err, want)
		}
	}
	open(token, true)
	if err := gate.Revoke(t.Context(), session.JTI, noon); err != nil {
		t.Fatal(err)
	}
	open(token, false)
	open(ticket.Token, true)

	second, err := gate.Issue(t.Context(), "acme", "u1", time.Hour, noon)
	if err != nil {
		t.Fatal(err)
	}
	_, token, err = gate.Redeem(t.Context(), second.Code, noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := gate.Revoke(t.Context(), second.JTI, noon); err != nil {
		t.Fatal(err)
	}
	open(token, false)
	open(second.Token, false)
	if err := gate.Revoke(t.Context(), "0", noon); !errors.Is(err, access.ErrNotFound) {
		t.Errorf("revoking what was never issued: %v, want not found", err)
	}

	b.fails = errors.New("down")
	if _, err := gate.Verify(t.Context(), ticket.Token, noon); err == nil || errors.Is(err, access.ErrRefused) {
		t.Errorf("a book that cannot be read: %v, want an error that is no refusal", err)
	}
}

// TestCodeExpires guarantees that a code is good for a minute and no longer.
func TestCodeExpires(t *testing.T) {
	t.Parallel()

	gate, err := access.New([]access.Key{key(t, "k1", 'a')}, newBook())
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := gate.Issue(t.Context(), "acme", "u1", 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := gate.Redeem(t.Context(), ticket.Code, noon.Add(access.CodeTTL)); !errors.Is(err, access.ErrRefused) {
		t.Errorf("after a minute: %v, want it refused", err)
	}
	if _, _, err := gate.Redeem(t.Context(), ticket.Code, noon.Add(access.CodeTTL-time.Nanosecond)); err != nil {
		t.Errorf("just before: %v", err)
	}
}

// TestRotation guarantees that a key is changed without ending what the older
// one signed, until that one is taken away.
func TestRotation(t *testing.T) {
	t.Parallel()

	older, newer := key(t, "2026-06", 'a'), key(t, "2026-07", 'b')
	b := newBook()
	gate := func(keys ...access.Key) *access.Gate {
		g, err := access.New(keys, b)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	before, err := gate(older).Issue(t.Context(), "acme", "u1", 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	both := gate(newer, older)
	after, err := both.Issue(t.Context(), "acme", "u1", 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		gate  *access.Gate
		token string
		open  bool
	}{
		{"older key's token, both keys", both, before.Token, true},
		{"newer key's token, both keys", both, after.Token, true},
		{"newer key's token, older key alone", gate(older), after.Token, false},
		{"older key's token, newer key alone", gate(newer), before.Token, false},
	}
	for _, tt := range tests {
		if _, err := tt.gate.Verify(t.Context(), tt.token, noon); (err == nil) != tt.open {
			t.Errorf("%s: %v, want open %v", tt.name, err, tt.open)
		}
	}
}

// TestIssueBounds guarantees that no token is for nobody or for ever.
func TestIssueBounds(t *testing.T) {
	t.Parallel()

	gate, err := access.New([]access.Key{key(t, "k1", 'a')}, newBook())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, tenant, user string
		ttl                time.Duration
		ok                 bool
	}{
		{"a second", "acme", "u1", time.Second, true},
		{"the most", "acme", "", access.MaxTTL, true},
		{"no tenant", "", "u1", time.Hour, false},
		{"a tenant too long", strings.Repeat("a", 257), "u1", time.Hour, false},
		{"a user too long", "acme", strings.Repeat("a", 257), time.Hour, false},
		{"negative", "acme", "u1", -time.Second, false},
		{"beyond the most", "acme", "u1", access.MaxTTL + time.Second, false},
		{"part of a second", "acme", "u1", time.Millisecond, false},
	}
	for _, tt := range tests {
		_, err := gate.Issue(t.Context(), tt.tenant, tt.user, tt.ttl, noon)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, access.ErrInvalid) {
			t.Errorf("%s: %v, want ok %v", tt.name, err, tt.ok)
		}
	}
}

// TestParseKeys guarantees that a wrong list of keys is refused without showing
// a seed.
func TestParseKeys(t *testing.T) {
	t.Parallel()

	seed := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\xfb", 32)))
	url := base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("\xfb", 32)))
	keys, err := access.ParseKeys("b:" + seed + ", a:" + url)
	if err != nil || len(keys) != 2 || keys[0].ID != "b" || !keys[0].Public().Equal(keys[1].Public()) {
		t.Fatalf("keys %v, %v, want b and a, alike", keys, err)
	}
	for _, text := range []string{"", seed, "a:", "a:" + seed[:20], "a:*" + seed, "a b:" + seed, "a:" + seed + ",a:" + url} {
		_, err := access.ParseKeys(text)
		if err == nil {
			t.Errorf("%q is taken", text)
		} else if strings.Contains(err.Error(), seed[:20]) {
			t.Errorf("the error shows the seed: %v", err)
		}
	}
}

// FuzzRead guarantees that what was not signed is refused and nothing panics.
func FuzzRead(f *testing.F) {
	k := key(f, "k1", 'a')
	token, err := k.Sign(access.Grant{JTI: "1", Tenant: "acme", IssuedAt: noon, ExpiresAt: noon.Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := access.Read(s, []access.Key{k}, noon); (err == nil) != (s == token) {
			t.Errorf("%q: %v", s, err)
		}
	})
}
