package proxyapi

import (
	"crypto/tls"
	"time"

	"penstock.dev/services/gateway/canon"
)

// Config is how the data port behaves. A zero field means its default, unless
// it says otherwise.
type Config struct {
	Listen string      // host:port; no default
	TLS    *tls.Config // nil: plain text, HTTP/1.1 and HTTP/2 with prior knowledge

	Trusted   canon.Proxies // networks whose word about the client is taken; none by default
	Forwarded bool          // they say it in Forwarded (RFC 7239) and not in X-Forwarded-For

	// Of services that name none. Each is the longest wait for one thing.
	ConnectTimeout  time.Duration // for a connection to the upstream; 5 s
	ResponseTimeout time.Duration // for the upstream's headers, once it has all that was sent; 60 s
	IdleTimeout     time.Duration // for the next byte of a running stream, in either direction; 5 min

	HeaderTimeout    time.Duration // for a request's headers; 10 s
	ClientTimeout    time.Duration // for the client to send the next part of a body, or to take an answer's; 60 s
	KeepAliveTimeout time.Duration // for the next request on a connection; 120 s
	MaxHeaderBytes   int           // of a request's line and headers together; 64 KiB

	TellAfter time.Duration // how long an answer may stream before its event is made with what is known by then; 10 s

	Drain time.Duration // for requests in flight when the gate closes; then they are cut; 10 s
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.ConnectTimeout, 5 * time.Second},
		{&c.ResponseTimeout, 60 * time.Second},
		{&c.IdleTimeout, 5 * time.Minute},
		{&c.HeaderTimeout, 10 * time.Second},
		{&c.ClientTimeout, 60 * time.Second},
		{&c.KeepAliveTimeout, 120 * time.Second},
		{&c.TellAfter, 10 * time.Second},
		{&c.Drain, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.MaxHeaderBytes == 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	return c
}

// or returns a service's own timeout, or the default.
func or(own, def time.Duration) time.Duration {
	if own > 0 {
		return own
	}
	return def
}
