package proxyapi_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/rule"
)

func upstreamOf(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// A reply is the head of an answer, and its body as it comes.
type reply struct {
	*http.Response
	Body io.Reader
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// open sends a request and returns as soon as its answer begins.
func open(t *testing.T, client *http.Client, req *http.Request) reply {
	t.Helper()
	res, err := client.Do(req) //nolint:bodyclose // closed when the test ends
	if err != nil {
		t.Fatal(err)
	}
	return whole(t, res)
}

// read reads an answer from a connection.
func read(t *testing.T, r *bufio.Reader) reply {
	t.Helper()
	res, err := http.ReadResponse(r, nil) //nolint:bodyclose // closed when the test ends
	if err != nil {
		t.Fatal(err)
	}
	return whole(t, res)
}

func whole(t *testing.T, res *http.Response) reply {
	t.Cleanup(func() { _ = res.Body.Close() })
	return reply{res, res.Body}
}

// rest is what is left of the body.
func (r reply) rest(t *testing.T) string {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func get(t *testing.T, client *http.Client, url string) (reply, string) {
	t.Helper()
	return do(t, client, request(t, http.MethodGet, url, nil))
}

func do(t *testing.T, client *http.Client, req *http.Request) (reply, string) {
	t.Helper()
	res := open(t, client, req)
	return res, res.rest(t)
}

// TestFC04 guarantees that server-sent events pass one by one: the upstream
// writes the next one only after the client has the one before, so none can
// have waited for another; and that the request is charged and accounted for
// once, with the limits on the answer.
func TestFC04(t *testing.T) {
	t.Parallel()
	got, end := make(chan string), make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			if event := receive(t, got); event != fmt.Sprintf("data: %d", i) {
				t.Errorf("event %d arrived as %q", i, event)
			}
		}
		<-end
	})
	g := newGate(t, proxyapi.Config{})
	g.service("events", up.URL, nil)
	g.rate("by-address", rule.IP, 10, nil)
	res := open(t, http.DefaultClient, request(t, http.MethodGet, g.serve()+"/events/", nil))
	if res.Header.Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("headers %v, want 9 remaining", res.Header)
	}
	lines := bufio.NewScanner(res.Body)
	for range 5 {
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		got <- lines.Text()
		lines.Scan() // the empty line
	}
	if len(g.exchanges) != 0 {
		t.Error("the exchange was accounted for while its stream was open")
	}
	close(end)
	_, _ = io.Copy(io.Discard, res.Body)
	if e := g.exchange(); e.Status != 200 || !e.Decided || len(g.exchanges) != 0 {
		t.Errorf("accounted for %+v and %d more, want one 200", e, len(g.exchanges))
	}
	if w := g.send("127.0.0.1", "HEAD", "/events/nothing"); w.Header().Get("X-RateLimit-Remaining") != "8" {
		t.Errorf("remaining %s after it, want 8: charged once", w.Header().Get("X-RateLimit-Remaining"))
	}
}

// dial opens a WebSocket, or another protocol, through the gate.
func dial(t *testing.T, url, path, protocol string) (net.Conn, *bufio.Reader, reply) {
	t.Helper()
	conn := connect(t, url)
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", path, protocol)
	r := bufio.NewReader(conn)
	return conn, r, read(t, r)
}

// connect opens a connection to the gate.
func connect(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// newTunnel is an upstream that switches to whatever protocol it is asked for
// and echoes.
func newTunnel(t *testing.T) *httptest.Server {
	return upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "no upgrade "+r.Header.Get("HTTP2-Settings"))
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-RateLimit-Limit: 1\r\n\r\n", r.Header.Get("Upgrade"))
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	})
}

// TestFC04WebSocket guarantees that a WebSocket passes the same chain: 101 with
// our limits, then an echo in both directions; accounted for when it closes.
func TestFC04WebSocket(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("ws", newTunnel(t).URL, nil)
	g.rate("by-address", rule.IP, 10, nil)
	conn, r, res := dial(t, g.serve(), "/ws/chat", "websocket")
	if res.StatusCode != 101 || res.Header.Get("X-RateLimit-Limit") != "10" {
		t.Fatalf("answered %d %v, want 101 with our limit", res.StatusCode, res.Header)
	}
	for _, frame := range []string{"hello", "again"} {
		_, _ = io.WriteString(conn, frame)
		echo := make([]byte, len(frame))
		if _, err := io.ReadFull(r, echo); err != nil || string(echo) != frame {
			t.Fatalf("echo %q, %v", echo, err)
		}
	}
	_ = conn.Close()
	if e := g.exchange(); e.Status != 101 || e.Upstream != 101 {
		t.Errorf("accounted for %+v, want 101", e)
	}
}

// TestOnlyWebSockets guarantees that no other protocol is switched to: behind
// h2c, requests would pass the gate unseen.
func TestOnlyWebSockets(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("ws", newTunnel(t).URL, nil)
	url := g.serve()
	for _, protocol := range []string{"h2c", "TLS/1.2", "websocket, h2c"} {
		_, _, res := dial(t, url, "/ws/", protocol)
		if body, _ := io.ReadAll(io.LimitReader(res.Body, 11)); res.StatusCode != 200 || string(body) != "no upgrade " {
			t.Errorf("%s: answered %d %q, want an ordinary answer", protocol, res.StatusCode, body)
		}
	}
}

// TestFailures guarantees what a client is told when the upstream is not
// reached, breaks off or is too slow, with the limits that were evaluated, and
// that nothing is tried twice.
func TestFailures(t *testing.T) {
	t.Parallel()
	dead := httptest.NewServer(nil)
	dead.Close()
	calls := make(chan string, 16)
	hang := make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		calls <- r.URL.Path
		switch r.URL.Path {
		case "/hang":
			<-hang
		case "/drop":
			panic(http.ErrAbortHandler)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/silent":
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-hang
		}
	})
	t.Cleanup(func() { close(hang) }) // before the upstream waits for its handlers
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	g.service("slow", up.URL, func(s *decide.ServiceDef) { s.ResponseTimeout = 50 * time.Millisecond })
	g.service("idle", up.URL, func(s *decide.ServiceDef) { s.IdleTimeout = 50 * time.Millisecond })
	g.service("dead", dead.URL, nil)
	g.service("broken", "ftp://x", nil)
	g.rate("by-address", rule.IP, 1000, nil)
	url := g.serve()

	tests := []struct {
		name, path string
		status     int
		code       string
	}{
		{"nobody listens", "/dead/", 502, "upstream-unreachable"},
		{"the upstream is no HTTP URL", "/broken/", 502, "upstream-unreachable"},
		{"the upstream hangs up", "/up/drop", 502, "upstream-unreachable"},
		{"the upstream is too slow", "/slow/hang", 504, "upstream-timeout"},
	}
	for _, tt := range tests {
		res, body := get(t, http.DefaultClient, url+tt.path)
		refused(t, res.StatusCode, res.Header, body, tt.status, tt.code)
		if res.Header.Get("X-RateLimit-Limit") != "1000" || res.Header.Get("RateLimit") == "" {
			t.Errorf("%s: no limits in %v", tt.name, res.Header)
		}
		if e := g.exchange(); e.Status != tt.status || e.Upstream != 0 || !e.Decided {
			t.Errorf("%s: accounted for %+v", tt.name, e)
		}
	}
	for _, path := range []string{"/up/cut", "/idle/silent"} {
		res := open(t, http.DefaultClient, request(t, http.MethodGet, url+path, nil))
		if body, err := io.ReadAll(res.Body); err == nil || string(body) != "half" {
			t.Errorf("%s: read %q, %v; want half of it and an error", path, body, err)
		}
		if e := g.exchange(); e.Status != 200 || !e.Cut {
			t.Errorf("%s: accounted for %+v, want a cut 200", path, e)
		}
	}
	for _, want := range []string{"/drop", "/hang", "/cut", "/silent"} { // without their prefixes
		if got := receive(t, calls); got != want {
			t.Errorf("the upstream was asked for %s, want %s: once each", got, want)
		}
	}
	if len(calls) > 0 {
		t.Errorf("the upstream was asked for %s once more", <-calls)
	}
}

// TestClientGone guarantees that a client which goes away is accounted for as
// 499, that its upstream request is cancelled, and that nothing is retried.
func TestClientGone(t *testing.T) {
	t.Parallel()
	called, gone := make(chan struct{}, 4), make(chan struct{}, 4)
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_ = http.NewResponseController(w).Flush()
		}
		called <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	g.rate("by-address", rule.IP, 10, nil)
	url := g.serve()
	for _, path := range []string{"/up/wait", "/up/stream"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}()
		receive(t, called)
		cancel()
		receive(t, gone)
		<-done
		if e := g.exchange(); e.Status != proxyapi.Gone || !e.Decided || e.Cut {
			t.Errorf("%s: accounted for %+v, want %d", path, e, proxyapi.Gone)
		}
		if len(called) != 0 {
			t.Errorf("%s: tried again", path)
		}
	}
}

// TestHalfClosedClient guarantees that a client which only closes its half of
// the connection is not told that all went well.
func TestHalfClosedClient(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	conn := connect(t, g.serve())
	_, _ = io.WriteString(conn, "GET /up/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 499 ") {
		t.Errorf("answered %q, %v", all, err)
	}
	if e := g.exchange(); e.Status != proxyapi.Gone {
		t.Errorf("accounted for %+v", e)
	}
}

// TestBodiesStream guarantees that neither direction is kept: the upstream has
// the first part of an upload before the client sends the second, and the
// client has the answer to it.
func TestBodiesStream(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		buf := make([]byte, 5)
		for {
			n, err := io.ReadFull(r.Body, buf)
			if n > 0 {
				_, _ = w.Write(bytes.ToUpper(buf[:n]))
				_ = http.NewResponseController(w).Flush()
			}
			if err != nil {
				return
			}
		}
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	pr, pw := io.Pipe()
	go func() { _, _ = io.WriteString(pw, "first") }()
	res := open(t, http.DefaultClient, request(t, http.MethodPost, g.serve()+"/up/", pr))
	for _, part := range []string{"FIRST", "LATER"} {
		buf := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != part {
			t.Fatalf("read %q, %v, want %s", buf, err, part)
		}
		if part == "FIRST" {
			_, _ = io.WriteString(pw, "later")
		}
	}
	_ = pw.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
}

// TestLargeUpload guarantees that a body far larger than any buffer arrives
// whole.
func TestLargeUpload(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, " ", err, " ", r.ContentLength)
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	req := request(t, http.MethodPost, g.serve()+"/up/", io.LimitReader(zeros{}, size))
	req.ContentLength = size
	if _, body := do(t, http.DefaultClient, req); body != fmt.Sprint(size, " <nil> ", size) {
		t.Errorf("the upstream got %s", body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestSlowClient guarantees that a client which does not send its body is told
// so and let go, and one that is refused does not hold the connection by not
// sending its body either.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	g := newGate(t, proxyapi.Config{ClientTimeout: 50 * time.Millisecond})
	g.service("up", up.URL, nil)
	g.rate("by-address", rule.IP, 1, nil)
	url := g.serve()
	for _, want := range []struct {
		status int
		code   string
	}{{408, "request-timeout"}, {429, "rate-limited"}} {
		conn := connect(t, url)
		_, _ = io.WriteString(conn, "POST /up/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nsome")
		r := bufio.NewReader(conn)
		res := read(t, r)
		refused(t, res.StatusCode, res.Header, res.rest(t), want.status, want.code)
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%d: the connection stays open: %v", want.status, err)
		}
	}
}

// TestHeaderBounds guarantees that headers without end, in length or in time,
// cost the gate next to nothing.
func TestHeaderBounds(t *testing.T) {
	t.Parallel()
	long, slow := newGate(t, proxyapi.Config{MaxHeaderBytes: 8 << 10}), newGate(t, proxyapi.Config{HeaderTimeout: 50 * time.Millisecond})
	status, _ := wire(t, long.serve())("GET /up/ HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a", 64<<10) + "\r\n\r\n")
	if status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("long headers: %d, want 431", status)
	}
	conn := connect(t, slow.serve())
	_, _ = io.WriteString(conn, "GET /up/ HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	if all, err := io.ReadAll(conn); err != nil || strings.Contains(string(all), "200") {
		t.Errorf("slow headers: %q, %v; want the connection closed", all, err)
	}
}

// TestSilentTunnel guarantees that a WebSocket on which nobody says anything
// ends after the service's idle timeout, and not while somebody does.
func TestSilentTunnel(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("ws", newTunnel(t).URL, func(s *decide.ServiceDef) { s.IdleTimeout = time.Second })
	conn, r, _ := dial(t, g.serve(), "/ws/", "websocket")
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 15 { // longer than the timeout
		<-tick.C
		_, _ = io.WriteString(conn, ".")
		if _, err := r.ReadByte(); err != nil {
			t.Fatalf("cut while in use: %v", err)
		}
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("read %v, want the end", err)
	}
}

// TestUpstreamsAreForgotten guarantees that connections are kept by what they
// depend on, and not for ever: a changed service gets others.
func TestUpstreamsAreForgotten(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	up := newEcho(t).URL
	for i, change := range []func(*decide.ServiceDef){
		nil,
		func(s *decide.ServiceDef) { s.ResponseTimeout = time.Second },
		func(s *decide.ServiceDef) { s.ConnectTimeout = time.Second },
		func(s *decide.ServiceDef) { s.Upstream = up + "/base" },
	} {
		g.service("up", up, change)
		echoed(t, g.send("203.0.113.9", "GET", "/up/"))
		if want := []int{1, 1, 2, 3}[i]; g.Upstreams() != want {
			t.Errorf("%d upstreams after change %d, want %d", g.Upstreams(), i, want)
		}
	}
	if g.Forget(time.Now().Add(-time.Minute)); g.Upstreams() != 3 {
		t.Errorf("%d upstreams, want 3: they were just used", g.Upstreams())
	}
	if g.Forget(time.Now().Add(time.Minute)); g.Upstreams() != 0 {
		t.Errorf("%d upstreams, want none", g.Upstreams())
	}
	echoed(t, g.send("203.0.113.9", "GET", "/up/"))
}

// TestStalledClient guarantees that a client which does not take its answer is
// let go, and accounted for as gone.
func TestStalledClient(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, zeros{}) })
	g := newGate(t, proxyapi.Config{ClientTimeout: 50 * time.Millisecond})
	g.service("up", up.URL, nil)
	conn := connect(t, g.serve())
	_, _ = io.WriteString(conn, "GET /up/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if e := g.exchange(); e.Status != proxyapi.Gone {
		t.Errorf("accounted for %+v, want %d", e, proxyapi.Gone)
	}
}

// TestExpectContinue guarantees that a client which asks before it sends is
// answered by the upstream: it is not told to go on when the upstream refuses.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			http.Error(w, "no", http.StatusExpectationFailed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	url := g.serve()
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: patience}}
	t.Cleanup(client.CloseIdleConnections)
	for path, want := range map[string]string{"/up/yes": "200 body continued", "/up/no": "417 no\n not continued"} {
		continued := " not continued"
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued = " continued" }})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		res, body := do(t, client, req)
		if got := fmt.Sprint(res.StatusCode, " ", body, continued); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestEarlyHints guarantees that informational answers pass and do not cost the
// final one its limits.
func TestEarlyHints(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "ok")
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	g.rate("by-address", rule.IP, 10, nil)
	var hints []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, h))
		return nil
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.serve()+"/up/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, body := do(t, http.DefaultClient, req)
	if len(hints) != 1 || !strings.HasPrefix(hints[0], "103 map[Link:") {
		t.Errorf("hints %v", hints)
	}
	if res.StatusCode != 200 || body != "ok" || res.Header.Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("answered %d %q %v", res.StatusCode, body, res.Header)
	}
	if e := g.exchange(); e.Status != 200 {
		t.Errorf("accounted for %+v", e)
	}
}

// TestHead guarantees that HEAD is charged, forwarded and answered without a
// body, refused or not.
func TestHead(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1234")
		w.Header().Set("X-Method", r.Method)
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	g.put(decide.EndpointKind, "export", &decide.EndpointDef{ID: "export", Service: "up", Method: "GET", Path: "/export", Cost: 5})
	g.rate("by-address", rule.IP, 9, func(r *rule.Rule) { r.Match.Endpoint = "export" })
	url := g.serve()
	res := open(t, http.DefaultClient, request(t, http.MethodHead, url+"/up/export", nil))
	if res.StatusCode != 200 || res.ContentLength != 1234 || res.Header.Get("X-Method") != "HEAD" || res.Header.Get("X-RateLimit-Remaining") != "4" {
		t.Errorf("answered %d, %d bytes, %v; want 200 at the cost of GET", res.StatusCode, res.ContentLength, res.Header)
	}
	res = open(t, http.DefaultClient, request(t, http.MethodHead, url+"/up/export", nil))
	if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
		t.Errorf("answered %d %v, want 429 with a wait", res.StatusCode, res.Header)
	}
}

// http2 returns a client that speaks HTTP/2 without TLS.
func http2(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// newGRPC is an upstream that speaks HTTP/2 without TLS alone, and echoes every
// message of a call as it arrives.
func newGRPC(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("X-Proto", fmt.Sprint(r.Proto, " ", r.Header.Get("Te"), " ", r.URL.Path))
		buf := make([]byte, 10)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				break
			}
			_, _ = w.Write(buf)
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "fine")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// TestGRPC guarantees a bidirectional gRPC call through the gate: HTTP/2 on
// both sides, messages as they come, trailers announced and not; and that a
// refusal is the status of the call, which is all that a gRPC client reads.
func TestGRPC(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("echo", newGRPC(t).URL, func(s *decide.ServiceDef) { s.PathPrefix, s.StripPrefix = "/pkg.Echo", false })
	g.rate("by-address", rule.IP, 1, nil)
	url, client := g.serve(), http2(t)
	call := func() (reply, *io.PipeWriter) {
		pr, pw := io.Pipe()
		req := request(t, http.MethodPost, url+"/pkg.Echo/Talk", pr)
		req.Header.Set("Content-Type", "application/grpc+proto")
		req.Header.Set("Te", "trailers")
		go func() { _, _ = io.WriteString(pw, "\x00\x00\x00\x00\x05hello") }()
		return open(t, client, req), pw
	}
	res, pw := call()
	if res.ProtoMajor != 2 || res.Header.Get("X-Proto") != "HTTP/2.0 trailers /pkg.Echo/Talk" || res.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("answered %s %v", res.Proto, res.Header)
	}
	for _, message := range []string{"\x00\x00\x00\x00\x05hello", "\x00\x00\x00\x00\x05world"} {
		buf := make([]byte, 10)
		if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != message {
			t.Fatalf("read %q, %v, want %q", buf, err, message)
		}
		if message[5] == 'h' {
			_, _ = io.WriteString(pw, "\x00\x00\x00\x00\x05world")
		}
	}
	_ = pw.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
	if res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("Grpc-Message") != "fine" {
		t.Errorf("trailers %v, want status 0 and its message", res.Trailer)
	}

	res, _ = call()
	body := res.rest(t)
	status := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
	if res.StatusCode != 200 || status != "8" || len(body) > 0 || res.Header.Get("Retry-After") != "60" ||
		!strings.HasPrefix(res.Header.Get("Grpc-Message"), "rate-limited: rule by-address") {
		t.Errorf("refused with %d, status %q, %v, %q; want the call's status 8", res.StatusCode, status, res.Header, body)
	}
	g.exchange()
	if e := g.exchange(); e.Decision.Status != 429 {
		t.Errorf("accounted for %+v", e)
	}
}

// TestHTTP2 guarantees HTTP/2 for clients, with TLS and with prior knowledge,
// whatever the upstream speaks, and HTTP/2 to an upstream that offers it.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	up.EnableHTTP2 = true
	up.StartTLS()
	t.Cleanup(up.Close)
	g := newGate(t, proxyapi.Config{TLS: &tls.Config{Certificates: up.TLS.Certificates}})
	g.service("plain", upstreamOf(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }).URL, nil)
	url := strings.Replace(g.serve(), "http:", "https:", 1)
	tr := up.Client().Transport.(*http.Transport).Clone()
	tr.ForceAttemptHTTP2 = true
	t.Cleanup(tr.CloseIdleConnections)
	if res, body := get(t, &http.Client{Transport: tr}, url+"/plain/"); res.Proto != "HTTP/2.0" || body != "HTTP/1.1" {
		t.Errorf("over TLS: %s with %q from upstream, want HTTP/2.0 with HTTP/1.1", res.Proto, body)
	}
	h := newGate(t, proxyapi.Config{})
	h.service("plain", upstreamOf(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }).URL, nil)
	if res, body := get(t, http2(t), h.serve()+"/plain/"); res.Proto != "HTTP/2.0" || body != "HTTP/1.1" {
		t.Errorf("prior knowledge: %s with %q from upstream, want HTTP/2.0 with HTTP/1.1", res.Proto, body)
	}
}

// TestDrain guarantees an orderly end: what is running ends, what arrives is
// refused, tunnels and endless streams are cut when the time is over, and the
// data port returns only when all of it is accounted for.
func TestDrain(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}, 8), make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		if r.URL.Path == "/endless" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		<-release
		_, _ = io.WriteString(w, "done")
	})
	g := newGate(t, proxyapi.Config{Drain: 2 * time.Second})
	g.service("up", up.URL, nil)
	g.service("ws", newTunnel(t).URL, nil)
	url, stop := g.start()

	answered := make(chan string, 1)
	go func() {
		res, err := http.Get(url + "/up/slow")
		if err != nil {
			answered <- err.Error()
			return
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		answered <- fmt.Sprint(res.StatusCode, " ", string(body))
	}()
	receive(t, started)
	stream := open(t, http.DefaultClient, request(t, http.MethodGet, url+"/up/endless", nil))
	receive(t, started)
	_, tunnel, _ := dial(t, url, "/ws/", "websocket")

	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for refusal := false; !refusal; { // until the gate has noticed
		w := g.send("203.0.113.9", "GET", "/nowhere")
		if refusal = w.Code == 503; refusal {
			refused(t, w.Code, w.Header(), w.Body.String(), 503, "shutting-down")
			if w.Header().Get("Retry-After") != "1" || w.Header().Get("Connection") != "close" {
				t.Errorf("refused with %v", w.Header())
			}
		}
	}
	close(release)
	if got := receive(t, answered); got != "200 done" {
		t.Errorf("the running request ended with %s", got)
	}
	if _, err := tunnel.ReadByte(); err == nil {
		t.Error("the tunnel is still open")
	}
	if _, err := io.ReadAll(stream.Body); err == nil {
		t.Error("the endless stream ended as if it were complete")
	}
	if err := receive(t, stopped); err != nil {
		t.Errorf("data port: %v", err)
	}
	count := map[string]int{}
	for len(g.exchanges) > 0 {
		if e := g.exchange(); e.Status != 404 {
			count[fmt.Sprint(e.Status, e.Cut)]++
		}
	}
	if count["200 false"] != 1 || count["200 true"] != 1 || count["101 false"] != 1 {
		t.Errorf("accounted for %v, want a whole 200, a cut 200 and a 101", count)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
		_ = conn.Close()
		t.Error("the port still answers")
	}
}
