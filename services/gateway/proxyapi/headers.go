package proxyapi

import (
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"penstock.dev/services/gateway/canon"
)

// forged are the headers, in canon's spelling, by which an upstream could be
// told another caller, another client or another request than was decided on.
// No client's copy is forwarded. What is true of them is set again.
var forged = func() map[string]bool {
	m := map[string]bool{}
	for _, names := range []string{
		// who calls
		"x-tenant-id x-application-id x-user-id x-api-key",
		// from where
		"forwarded x-forwarded x-real-ip x-client-ip client-ip x-cluster-client-ip true-client-ip cf-connecting-ip cf-connecting-ipv6",
		"fastly-client-ip x-original-forwarded-for x-originating-ip x-remote-ip x-remote-addr x-envoy-external-address x-azure-clientip",
		// for what
		"x-original-url x-original-uri x-original-path x-original-method x-original-host x-rewrite-url x-rewrite-uri",
		"x-http-method-override x-http-method x-method-override x-envoy-original-path x-envoy-original-host x-envoy-original-method",
		"x-host x-http-host-override x-http-path-override",
		// CGI makes HTTP_PROXY of it, which clients of the upstream obey
		"proxy",
	} {
		for name := range strings.FieldsSeq(names) {
			m[name] = true
		}
	}
	return m
}()

// forgedPrefix begins a family of headers of that kind: -For, -Host, -Proto,
// -Port, -Prefix, -Uri, -Method, -User and what else is in use.
const forgedPrefix = "x-forwarded-"

// strip removes a client's forged headers in any spelling.
func strip(h http.Header) {
	var buf [64]byte
	for name := range h {
		folded := canon.AppendHeader(buf[:0], name)
		if forged[string(folded)] || len(folded) > len(forgedPrefix) && string(folded[:len(forgedPrefix)]) == forgedPrefix {
			delete(h, name)
		}
	}
}

// introduce rewrites the headers of a request that goes upstream: without
// credential and forgeries, and with what the gate knows.
func (x *exchange) introduce(h http.Header) {
	if x.caller.given {
		spend(h)
	}
	strip(h)
	if x.caller.known {
		set(h, "X-Tenant-Id", x.caller.key.Tenant)
		set(h, "X-Application-Id", x.caller.key.Application)
		set(h, "X-User-Id", x.caller.key.User)
	}
	set(h, "X-Forwarded-For", x.client.forwardedFor())
	set(h, "X-Forwarded-Proto", x.scheme())
	set(h, "X-Forwarded-Host", x.host())
	if x.service.StripPrefix {
		set(h, "X-Forwarded-Prefix", strings.TrimRight(x.service.PathPrefix, "/"))
	}
}

// set sets a header unless the value is empty. What no header may hold is
// escaped as in a URL, and so is a value that looks escaped, so that no two
// values look alike: users are any text.
func set(h http.Header, name, value string) {
	if value == "" {
		return
	}
	if strings.Contains(value, "%") || strings.ContainsFunc(value, unicode.IsControl) || value[0] == ' ' || value[len(value)-1] == ' ' {
		value = url.PathEscape(value)
	}
	h[name] = []string{value}
}

// spend removes the Bearer values of Authorization and keeps the others.
func spend(h http.Header) {
	values := h["Authorization"]
	var kept []string
	for _, v := range values {
		if _, ok := bearer(v); !ok {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		delete(h, "Authorization")
		return
	}
	h["Authorization"] = kept
}

// scheme is how the client spoke to the outermost proxy that is trusted.
func (x *exchange) scheme() string {
	if x.client.trusted {
		switch proto := strings.ToLower(last(x.in.Header["X-Forwarded-Proto"])); proto {
		case "http", "https", "ws", "wss":
			return proto
		}
	}
	if x.in.TLS != nil {
		return "https"
	}
	return "http"
}

// host is the one that the client asked for.
func (x *exchange) host() string {
	if x.client.trusted {
		if host := last(x.in.Header["X-Forwarded-Host"]); host != "" {
			return host
		}
	}
	return x.in.Host
}

// last returns the last element of a list header: what the nearest proxy says.
func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	v := values[len(values)-1]
	return strings.Trim(v[strings.LastIndexByte(v, ',')+1:], " \t")
}
