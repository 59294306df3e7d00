package proxyapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/gateway/tell"
)

// forward sends the request upstream and the answer back.
func (x *exchange) forward() {
	up, err := x.gate.pool.get(x.service.Upstream, x.service.ConnectTimeout)
	if err == nil {
		err = up.locate(&url.URL{}, x.target)
	}
	if err != nil {
		x.gate.deps.Log.Error("service cannot be reached", "service_id", x.service.ID, "error", err.Error())
		x.disappoint(unreachable)
		return
	}
	ctx, cancel := context.WithCancelCause(x.in.Context())
	rc := http.NewResponseController(&x.out)
	w := &watch{
		cancel: cancel, client: rc, patient: x.gate.cfg.ClientTimeout,
		slow: or(x.service.ResponseTimeout, x.gate.cfg.ResponseTimeout),
		idle: or(x.service.IdleTimeout, x.gate.cfg.IdleTimeout),
	}
	grpc := isGRPC(x.in)
	if grpc { // either side of a call may rest as long as a stream may
		w.patient = max(w.patient, w.idle)
	}
	_ = rc.SetWriteDeadline(time.Time{}) // the watch takes over
	out := x.in.WithContext(ctx)
	var body *upload
	if out.Body != nil && out.Body != http.NoBody {
		_ = rc.EnableFullDuplex() // the upstream may answer before it has read everything
		body = &upload{body: out.Body, w: w}
		out.Body = body
	}
	sent := time.Now()
	x.story.sent = sent
	proxy := httputil.ReverseProxy{
		Transport: up.carrier(grpc),
		Rewrite:   func(pr *httputil.ProxyRequest) { x.rewrite(pr, up) },
		ModifyResponse: func(res *http.Response) error {
			x.upstream, x.waited = res.StatusCode, time.Since(sent)
			return x.receive(res, w, body)
		},
		ErrorHandler: func(_ http.ResponseWriter, out *http.Request, err error) {
			x.waited = time.Since(sent)
			if unreached(err) {
				x.story.sent = time.Time{}
			}
			x.fail(context.Cause(out.Context()), body.stop(rc), err)
		},
		FlushInterval: -1,
		BufferPool:    &buffers,
		ErrorLog:      slog.NewLogLogger(x.gate.deps.Log.Handler(), slog.LevelDebug),
	}
	w.start()
	x.cut = true // unless ServeHTTP returns, which it does not when a body ends early
	defer func() { x.settle(w, context.Cause(ctx), body) }()
	proxy.ServeHTTP(&x.out, out)
	x.cut = false
}

// settle ends the watch and leaves the client's connection as the server
// expects it. Cause is why the exchange was ended early, if it was.
func (x *exchange) settle(w *watch, cause error, body *upload) {
	w.stop()
	if x.cut {
		x.gone = x.out.failed || errors.Is(cause, errClientStalled) || errors.Is(cause, context.Canceled)
	}
	if body.unread() {
		_ = body.stop(w.client)
		if !x.cut {
			_ = w.client.SetReadDeadline(time.Now().Add(lingerTime))
		}
	}
	if x.in.ProtoMajor == 1 { // for what is still buffered; the server sets its own for the next request
		_ = w.client.SetWriteDeadline(time.Now().Add(x.gate.cfg.ClientTimeout))
	}
}

// rewrite makes the upstream's request from the client's.
func (x *exchange) rewrite(pr *httputil.ProxyRequest, up *upstream) {
	pr.Out.Method = x.method
	_ = up.locate(pr.Out.URL, x.target) // tried before
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	pr.Out.Host = ""
	pr.Out.Trailer = nil // a late header could name another tenant
	h := pr.Out.Header
	if up := h.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		// Another protocol, such as h2c, would carry requests past the gate.
		delete(h, "Connection")
		delete(h, "Upgrade")
	}
	delete(h, "Http2-Settings")
	x.introduce(h)
}

// receive adds the gate's headers to the upstream's answer and puts its body
// under watch.
func (x *exchange) receive(res *http.Response, w *watch, body *upload) error {
	if x.decided && len(x.decision.Limits) > 0 || x.decision.Degraded {
		for _, name := range tell.Names {
			delete(res.Header, name)
		}
	}
	if x.service.CORS != nil {
		delete(res.Header, "Access-Control-Allow-Origin")
		delete(res.Header, "Access-Control-Allow-Credentials")
	}
	delete(res.Header, http.CanonicalHeaderKey(tell.Degraded))
	x.giveBack(res.StatusCode, false)
	x.dress(res.Header)
	w.streams()
	if res.StatusCode == http.StatusSwitchingProtocols {
		if rwc, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &tunnel{rwc, w}
		}
		x.tell(res.StatusCode) // a tunnel has no end that says more
		return nil
	}
	if body.unread() { // an answer that did not wait for the request is the connection's last
		x.last(res.Header)
	}
	res.Body = &download{res.Body, w, x}
	return nil
}

var (
	unreachable = &problem{
		Status: http.StatusBadGateway, Code: "upstream-unreachable",
		Detail: "the service could not be reached, or did not speak HTTP",
	}
	tooSlow = &problem{
		Status: http.StatusGatewayTimeout, Code: "upstream-timeout",
		Detail: "the service did not answer in time (its connect_timeout and response_timeout)",
	}
	clientSlow = &problem{
		Status: http.StatusRequestTimeout, Code: "request-timeout",
		Detail: "the request's body did not arrive in time",
	}
	clientGone = &problem{ // a client that has only closed its half of the connection reads it
		Status: Gone, Code: "client-gone",
		Detail: "the connection was closed before the answer",
	}
	unreadable = &problem{
		Status: http.StatusBadRequest, Code: "unreadable-body",
		Detail: "the request's body is not framed as its headers say",
	}
)

// fail answers when the upstream did not, if anybody is left to be answered.
// Cause is why the exchange was ended, if it was; broken, why the request's body
// ended early, if it did; err, what the transport says.
func (x *exchange) fail(cause, broken, err error) {
	if broken != nil || cause != nil {
		x.last(x.out.Header())
	}
	var timeout net.Error
	switch {
	case errors.Is(cause, errClientSlow):
		x.refuse(clientSlow)
	case errors.Is(cause, errUpstreamSlow):
		x.disappoint(tooSlow)
	case errors.Is(cause, errClosing):
		x.disappoint(closing)
	case cause != nil || errors.Is(broken, io.ErrUnexpectedEOF) || errors.As(broken, &timeout):
		x.gone = true
		x.refuse(clientGone)
	case broken != nil:
		x.refuse(unreadable)
	case errors.As(err, &timeout) && timeout.Timeout():
		x.disappoint(tooSlow)
	default:
		x.gate.deps.Log.Debug("upstream failed", "service_id", x.service.ID, "error", err.Error())
		x.disappoint(unreachable)
	}
}

// disappoint answers a request that passed and came to nothing without its
// client's doing.
func (x *exchange) disappoint(p *problem) {
	x.giveBack(p.Status, p == tooSlow)
	x.refuse(p)
}

const (
	discardTime = 500 * time.Millisecond // for a small body that nobody wants to arrive
	maxDiscard  = 64 << 10               // bytes that such a body may have
	lingerTime  = time.Second            // for the rest of a body before its connection is closed
)

// discard reads the body of a request that is refused, so that its connection
// can be used again. A body that is large, slow or of unknown length costs the
// connection: what is left of it must never be read as the next request.
func (x *exchange) discard() {
	r := x.in
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody {
		return
	}
	rc := http.NewResponseController(&x.out)
	_ = rc.EnableFullDuplex() // the server would wait for the body, for ever
	if r.ContentLength >= 0 && r.ContentLength <= maxDiscard && r.Header.Get("Expect") == "" {
		_ = rc.SetReadDeadline(time.Now().Add(discardTime))
		if n, err := io.Copy(io.Discard, r.Body); err == nil && n == r.ContentLength {
			_ = rc.SetReadDeadline(time.Time{})
			return
		}
	}
	_ = rc.SetReadDeadline(time.Now().Add(lingerTime))
	_ = rc.SetWriteDeadline(time.Now().Add(x.gate.cfg.ClientTimeout))
	x.last(x.out.Header())
}

// last makes the answer the last one on its connection.
func (x *exchange) last(h http.Header) {
	if x.in.ProtoMajor == 1 {
		h.Set("Connection", "close")
	}
}

// A response remembers what the client was answered.
type response struct {
	http.ResponseWriter
	status int
	failed bool // the client did not take it
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader takes note of the final status; others may come before.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.failed = w.failed || err != nil && !errors.Is(err, http.ErrBodyNotAllowed)
	return n, err
}

// FlushError flushes, for http.ResponseController.
func (w *response) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	w.failed = w.failed || err != nil && !errors.Is(err, http.ErrNotSupported)
	return err
}

// Hijack hands the connection over, for http.ResponseController. A tunnel is
// all that asks for it.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// bufferPool lends the buffers that bodies are copied through.
type bufferPool struct{ pool sync.Pool }

var buffers bufferPool

const bufferSize = 32 << 10

// Get returns a buffer of bufferSize bytes.
func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, bufferSize)
}

// Put takes a buffer back.
func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
