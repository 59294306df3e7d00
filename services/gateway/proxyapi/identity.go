package proxyapi

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strings"

	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/tell"
)

// A caller is who a request comes from. The zero caller is anonymous: nothing
// is known of it but its address.
type caller struct {
	key    decide.Key
	digest [sha256.Size]byte // of the credential, when there is one
	bearer bool              // the credential is in Authorization
	known  bool              // the credential is a key's
	given  bool              // there is a credential
}

// A client is where a request comes from.
type client struct {
	address netip.Addr   // invalid when the peer has none, e.g. on a socket file
	trail   []netip.Addr // what the upstream is told, the client first
	trusted bool         // the peer is a trusted proxy
}

// identify finds the caller and the client's address.
func (x *exchange) identify() *problem {
	x.client = x.gate.clientOf(x.in)
	secret, p := x.caller.credential(x.in.Header)
	if p != nil || !x.caller.given {
		return p
	}
	x.caller.digest = sha256.Sum256([]byte(secret))
	x.caller.key, x.caller.known = x.rules.Key(x.caller.digest)
	if !x.caller.known {
		return unknownKey
	}
	return nil
}

var unknownKey = &problem{
	Status: http.StatusUnauthorized, Code: string(decide.UnknownKey), Title: tell.Title(decide.UnknownKey),
	Detail: tell.UnknownKey,
}

// credential reads the API key of a request: a Bearer token, or X-API-Key.
// Other schemes of Authorization are the upstream's business.
func (c *caller) credential(h http.Header) (secret string, p *problem) {
	take := func(value string) bool {
		value = strings.Trim(value, " \t")
		if c.given && value != secret {
			return false
		}
		secret, c.given = value, true
		return true
	}
	for _, v := range h["X-Api-Key"] {
		if !take(v) {
			return "", twoCredentials
		}
	}
	for _, v := range h["Authorization"] {
		if token, ok := bearer(v); ok {
			c.bearer = true
			if !take(token) {
				return "", twoCredentials
			}
		}
	}
	return secret, nil
}

var twoCredentials = &problem{
	Status: http.StatusBadRequest, Code: "ambiguous-credentials",
	Detail: "the request holds two different API keys (Authorization: Bearer, X-API-Key)",
	Errors: []fault{{"X-API-Key", "differs from another credential of the request"}},
}

// challenge is what a 401 asks for.
func (c *caller) challenge() string {
	if c.bearer {
		return `Bearer realm="penstock", error="invalid_token"`
	}
	return `Bearer realm="penstock"`
}

// bearer returns the token of an Authorization value of that scheme.
func bearer(value string) (token string, ok bool) {
	const scheme = "bearer"
	value = strings.TrimLeft(value, " \t")
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	token = value[len(scheme):]
	if token != "" && token[0] != ' ' && token[0] != '\t' {
		return "", false
	}
	return token, true
}

// clientOf finds where a request comes from: the peer, or whom a trusted peer
// names.
func (g *Gate) clientOf(r *http.Request) client {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return client{}
	}
	c := client{trusted: g.cfg.Trusted.Trust(peer.Addr())}
	if !c.trusted {
		c.address = peer.Addr().Unmap().WithZone("")
		return c
	}
	hops := canon.ForwardedFor(r.Header["X-Forwarded-For"])
	if g.cfg.Forwarded {
		hops = canon.Forwarded(r.Header["Forwarded"])
	}
	c.address, c.trail = g.cfg.Trusted.Client(peer.Addr(), hops)
	return c
}

// forwardedFor is the X-Forwarded-For that the upstream is sent.
func (c *client) forwardedFor() string {
	if !c.address.IsValid() {
		return ""
	}
	if len(c.trail) < 2 {
		return c.address.String()
	}
	b := make([]byte, 0, 48*len(c.trail))
	for i, a := range c.trail {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = a.AppendTo(b)
	}
	return string(b)
}
