package proxyapi

import (
	"net/http"
	"slices"
)

// preflightAge is how long a browser may remember a preflight's answer, in
// seconds.
const preflightAge = "600"

// preflight answers a browser that asks whether it may send a request from
// another origin. It reports whether the request was that. Nothing is decided
// and nothing charged: a preflight carries no credential.
func (x *exchange) preflight() bool {
	cors := x.service.CORS
	origin := x.in.Header.Get("Origin")
	if cors == nil || origin == "" {
		return false
	}
	switch {
	case slices.Contains(cors.AllowedOrigins, "*"):
		x.origin = "*"
	case slices.Contains(cors.AllowedOrigins, origin):
		x.origin = origin
	}
	method := x.in.Header.Get("Access-Control-Request-Method")
	if x.method != http.MethodOptions || method == "" {
		return false
	}
	h := x.out.Header()
	h.Add("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")
	if x.origin != "" {
		h.Set("Access-Control-Allow-Origin", x.origin)
		h.Set("Access-Control-Allow-Methods", method)
		if headers := x.in.Header.Get("Access-Control-Request-Headers"); headers != "" {
			h.Set("Access-Control-Allow-Headers", headers)
		}
		h.Set("Access-Control-Max-Age", preflightAge)
	}
	x.discard()
	x.out.WriteHeader(http.StatusNoContent)
	return true
}

// allowOrigin lets a script of an allowed origin read the answer and the
// limits in it. Cookies are not offered: callers are known by API keys.
func (x *exchange) allowOrigin(h http.Header) {
	if x.service == nil || x.service.CORS == nil {
		return
	}
	h.Add("Vary", "Origin")
	if x.origin != "" {
		h.Set("Access-Control-Allow-Origin", x.origin)
		h.Add("Access-Control-Expose-Headers", exposedHeaders)
	}
}
