package h2

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// A Config says what a Server takes and how much of it. Zero means the value
// in brackets.
type Config struct {
	Methods []string     // paths that are served, such as "/penstock.decision.v1.Decisions/Decide"; at least one
	TLS     *tls.Config  // nil: plain TCP with prior knowledge; otherwise ALPN h2 and nothing else
	Log     *slog.Logger // required

	MaxConns    int // open connections of the server [10000]; more are closed at once
	MaxStreams  int // calls of a connection that are open or still with the handler [1024]
	MaxHeaders  int // bytes of a request's header list as §6.5.2 counts them [8192]
	MaxRequest  int // bytes of a request's message [1 MiB]
	MaxBuffered int // bytes of requests that a connection keeps [8 MiB]; what goes beyond is RESOURCE_EXHAUSTED
	MaxUnsent   int // bytes of answers that wait for a connection's peer [8 MiB]; what goes beyond is RESOURCE_EXHAUSTED

	Handshake time.Duration // from accept to the client's SETTINGS, and for a header block to be complete [10s]
	Idle      time.Duration // without a stream, until GOAWAY [15m]
	Body      time.Duration // from a request's headers to its end [30s]
	Write     time.Duration // without progress of a write, or of an answer whose window is closed [20s]
	Grace     time.Duration // from GOAWAY to the end of every connection [10s]

	Control Budget // PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA and unknown frames [{4000, 1000}]
	Resets  Budget // streams that the peer resets, or makes us reset [{1000, 100}]
}

// A Budget bounds what a peer may send that is no work. Answers give some
// back: a busy peer may do more of it than one that does nothing else. A peer
// that has used it up is sent GOAWAY with ENHANCE_YOUR_CALM.
type Budget struct {
	Burst     int // at once
	PerSecond int // how much of it comes back
}

var errConfig = errors.New("h2: bad configuration")

// filled is the configuration with its defaults, or what is wrong with it.
func (c Config) filled() (Config, error) {
	for _, n := range []struct {
		field *int
		value int
	}{
		{&c.MaxConns, 10000},
		{&c.MaxStreams, 1024},
		{&c.MaxHeaders, 8192},
		{&c.MaxRequest, 1 << 20},
		{&c.MaxBuffered, 8 << 20},
		{&c.MaxUnsent, 8 << 20},
		{&c.Control.Burst, 4000},
		{&c.Control.PerSecond, 1000},
		{&c.Resets.Burst, 1000},
		{&c.Resets.PerSecond, 100},
	} {
		if *n.field < 0 || *n.field > maxWindow {
			return c, fmt.Errorf("%w: a bound is %d", errConfig, *n.field)
		}
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	for _, d := range []struct{ field, value *time.Duration }{
		{&c.Handshake, new(10 * time.Second)},
		{&c.Idle, new(15 * time.Minute)},
		{&c.Body, new(30 * time.Second)},
		{&c.Write, new(20 * time.Second)},
		{&c.Grace, new(10 * time.Second)},
	} {
		if *d.field < 0 {
			return c, fmt.Errorf("%w: a time is %s", errConfig, *d.field)
		}
		if *d.field == 0 {
			*d.field = *d.value
		}
	}
	if len(c.Methods) == 0 || slices.Contains(c.Methods, "") || c.Log == nil {
		return c, fmt.Errorf("%w: methods and a log are required", errConfig)
	}
	if c.TLS != nil {
		c.TLS = secured(c.TLS)
	}
	return c, nil
}

// tick is how often times are looked at: often enough for the shortest.
func (c *Config) tick() time.Duration {
	shortest := min(c.Handshake, c.Idle, c.Body, c.Write, c.Grace)
	return min(max(shortest/8, 10*time.Millisecond), time.Second)
}

// secured is a configuration of TLS that speaks h2 alone, with nothing that
// RFC 9113 §9.2 forbids.
func secured(given *tls.Config) *tls.Config {
	t := given.Clone()
	t.NextProtos = []string{"h2"}
	t.MinVersion = max(t.MinVersion, tls.VersionTLS12)
	t.Renegotiation = tls.RenegotiateNever
	t.CipherSuites = []uint16{ // of TLS 1.2; those of 1.3 are all good
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
	return t
}
