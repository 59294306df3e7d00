package proxyapi

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	idlePerUpstream   = 256              // connections kept open to one upstream
	idleConnTimeout   = 90 * time.Second // below the usual 2 min of servers, who close first otherwise
	maxResponseHeader = 256 << 10        // bytes
	continueTimeout   = time.Second      // until a body is sent to an upstream that ignores Expect
	forgetUpstream    = 10 * time.Minute // after its last use, when another one is made
)

// An upstream is one base URL and the connections to it.
type upstream struct {
	base *url.URL
	path string          // of base, escaped, without a slash at the end
	h1   *http.Transport // HTTP/1.1, and HTTP/2 over TLS where both sides can
	h2c  *http.Transport // HTTP/2 without TLS, for gRPC on an http base; nil on an https one
	used atomic.Int64    // when last, Unix seconds
}

// A pool keeps upstreams by what their connections depend on. A service whose
// definition changes simply asks for another one; what nobody asks for any
// more is forgotten.
type pool struct {
	connect time.Duration // of services that name no timeout

	known sync.Map // of upstreamKey to *upstream
	mu    sync.Mutex
}

type upstreamKey struct {
	base    string
	connect time.Duration
}

// get returns the upstream of a service.
func (p *pool) get(base string, connect time.Duration) (*upstream, error) {
	key := upstreamKey{base, or(connect, p.connect)}
	if u, ok := p.known.Load(key); ok {
		u := u.(*upstream)
		u.used.Store(time.Now().Unix())
		return u, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if u, ok := p.known.Load(key); ok {
		return u.(*upstream), nil
	}
	u, err := open(key)
	if err != nil {
		return nil, err
	}
	p.forget(time.Now().Add(-forgetUpstream))
	p.known.Store(key, u)
	return u, nil
}

// forget closes and drops what was last used before a time. Requests that are
// still running there end undisturbed.
func (p *pool) forget(before time.Time) {
	p.known.Range(func(key, value any) bool {
		if u := value.(*upstream); u.used.Load() < before.Unix() {
			p.known.Delete(key)
			u.close()
		}
		return true
	})
}

func open(key upstreamKey) (*upstream, error) {
	base, err := url.Parse(key.base)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, errors.New("upstream: neither an http nor an https URL")
	}
	u := &upstream{base: base, path: strings.TrimRight(base.EscapedPath(), "/"), h1: transport(key.connect)}
	u.used.Store(time.Now().Unix())
	u.h1.Protocols = new(http.Protocols)
	u.h1.Protocols.SetHTTP1(true)
	u.h1.Protocols.SetHTTP2(true)
	if base.Scheme == "http" {
		u.h2c = transport(key.connect)
		u.h2c.Protocols = new(http.Protocols)
		u.h2c.Protocols.SetUnencryptedHTTP2(true)
	}
	return u, nil
}

// transport returns a transport that adds nothing of its own: no proxy from
// the environment, no compression, no limit on running requests.
func transport(connect time.Duration) *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    connect,
		MaxIdleConnsPerHost:    idlePerUpstream,
		IdleConnTimeout:        idleConnTimeout,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: 30 * time.Second,
		},
	}
}

// carrier returns the transport for a request: gRPC needs HTTP/2.
func (u *upstream) carrier(grpc bool) *http.Transport {
	if grpc && u.h2c != nil {
		return u.h2c
	}
	return u.h1
}

// locate makes a request's URL point at a canonical path of the upstream, and
// leaves its query alone.
func (u *upstream) locate(to *url.URL, target string) error {
	raw := u.path + target
	path, err := url.PathUnescape(raw)
	if err != nil {
		return fmt.Errorf("upstream path: %w", err)
	}
	to.Scheme, to.Host, to.User = u.base.Scheme, u.base.Host, nil
	to.Opaque, to.OmitHost = "", false
	to.Path, to.RawPath = path, raw
	return nil
}

func (u *upstream) close() {
	u.h1.CloseIdleConnections()
	if u.h2c != nil {
		u.h2c.CloseIdleConnections()
	}
}

// close closes every idle connection.
func (p *pool) close() {
	p.known.Range(func(key, value any) bool {
		p.known.Delete(key)
		value.(*upstream).close()
		return true
	})
}
