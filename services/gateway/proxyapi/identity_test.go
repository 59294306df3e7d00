package proxyapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/rule"
)

// TestIdentity guarantees who the upstream is told a caller is: the key's
// dimensions and never the caller's own word, in any spelling; that the
// credential stays at the gate; and that no key is not the same as a wrong one.
func TestIdentity(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.key("k1", "s3cret", "acme", "web", "u1")
	g.key("k2", "other", "globex", "", "")
	g.rate("per-tenant", rule.Tenant, 100, nil)
	const acme, globex, nobody = "acme/web/u1", "globex//", "//"

	tests := []struct {
		name    string
		headers []string
		status  int
		want    string // who, or the code of the refusal
		auth    string // the upstream's Authorization
	}{
		{"a bearer token is a key", []string{"Authorization", "Bearer s3cret"}, 200, acme, ""},
		{"in any case and spacing", []string{"Authorization", "bEaReR \t s3cret "}, 200, acme, ""},
		{"so is X-API-Key", []string{"X-Api-Key", "other"}, 200, globex, ""},
		{"the same twice is one", []string{"X-Api-Key", "s3cret", "Authorization", "Bearer s3cret"}, 200, acme, ""},
		{"two different ones are refused", []string{"X-Api-Key", "other", "Authorization", "Bearer s3cret"}, 400, "ambiguous-credentials", ""},
		{"also in one header", []string{"X-Api-Key", "other", "X-Api-Key", "s3cret"}, 400, "ambiguous-credentials", ""},
		{"an unknown key is not anonymous", []string{"X-Api-Key", "nope"}, 401, "unknown-key", ""},
		{"nor is an unknown token", []string{"Authorization", "Bearer nope"}, 401, "unknown-key", ""},
		{"nor an empty one", []string{"Authorization", "Bearer"}, 401, "unknown-key", ""},
		{"nor an empty key", []string{"X-Api-Key", ""}, 401, "unknown-key", ""},
		{"no key is anonymous", nil, 200, nobody, ""},
		{"another scheme is the upstream's", []string{"Authorization", "Basic dTpw"}, 200, nobody, "Basic dTpw"},
		{"also beside a key", []string{"Authorization", "Basic dTpw", "X-Api-Key", "s3cret"}, 200, acme, "Basic dTpw"},
		{"a scheme that begins like it is another", []string{"Authorization", "BearerX s3cret"}, 200, nobody, "BearerX s3cret"},
		{"a key in another spelling is none, and is not passed on", []string{"X_API_Key", "s3cret"}, 200, nobody, ""},
		{"claims are dropped", []string{"X-Api-Key", "s3cret", "X-Tenant-Id", "evil", "X-User-Id", "evil"}, 200, acme, ""},
		{"in every spelling", []string{
			"X-Api-Key", "other", "X_tenant_id", "evil", "X_USER_ID", "evil", "x-Application_id", "evil", "X.Application.Id", "evil", "X-User_Id", "evil",
		}, 200, globex, ""},
		{"of the anonymous too", []string{"X-Tenant-Id", "evil", "X_User_Id", "evil"}, 200, nobody, ""},
		{"naming them hop-by-hop changes nothing", []string{
			"Connection", "X-Tenant-Id, X-Application-Id, X-User-Id, X-Forwarded-For, X-Api-Key", "X-Api-Key", "s3cret",
		}, 200, acme, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := g.send("203.0.113.9", "GET", "/up/", tt.headers...)
			if tt.status != 200 {
				refused(t, w.Code, w.Header(), w.Body.String(), tt.status, tt.want)
				if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (tt.status == 401) {
					t.Errorf("challenge %q", challenge)
				}
				if w.Header().Get("X-RateLimit-Limit") != "" {
					t.Error("limits although no rule was evaluated")
				}
				return
			}
			h := echoed(t, w).Header
			if got := h.Get("X-Tenant-Id") + "/" + h.Get("X-Application-Id") + "/" + h.Get("X-User-Id"); got != tt.want {
				t.Errorf("the upstream was told %s, want %s", got, tt.want)
			}
			if h.Get("Authorization") != tt.auth || h.Get("X-Api-Key") != "" || h.Get("X-Forwarded-For") != "203.0.113.9" {
				t.Errorf("the upstream was sent %v, want Authorization %q", h, tt.auth)
			}
			for name, values := range h {
				if fmt.Sprint(values) == "[evil]" || strings.Contains(name, "_") {
					t.Errorf("the upstream was sent %s: %v", name, values)
				}
			}
		})
	}
}

// TestRevokedKey guarantees that a key which is gone from the catalogue is
// unknown at once.
func TestRevokedKey(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.key("k1", "s3cret", "acme", "", "")
	if w := g.send("203.0.113.9", "GET", "/up/", "X-Api-Key", "s3cret"); w.Code != 200 {
		t.Fatalf("answered %d, want 200", w.Code)
	}
	g.put(decide.KeyKind, "k1", nil)
	w := g.send("203.0.113.9", "GET", "/up/", "X-Api-Key", "s3cret")
	refused(t, w.Code, w.Header(), w.Body.String(), 401, "unknown-key")
}

// TestUserIsAnyText guarantees that a user whom no header could name reaches
// the upstream all the same, and no further header with it.
func TestUserIsAnyText(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	for user, want := range map[string]string{"jürgen": "jürgen", "a\r\nX-Tenant-Id: b": "a%0D%0AX-Tenant-Id:%20b", " x ": "%20x%20"} {
		g.key("k", "s3cret", "acme", "", user)
		e := echoed(t, g.send("203.0.113.9", "GET", "/up/", "X-Api-Key", "s3cret"))
		if got := e.Header.Get("X-User-Id"); got != want || e.Header.Get("X-Tenant-Id") != "acme" {
			t.Errorf("%q: the upstream was told %q of %q, want %q", user, got, e.Header.Get("X-Tenant-Id"), want)
		}
	}
}

// TestHeaders guarantees what else does and does not go upstream: nothing that
// names another request or another client than was decided on, nothing
// hop-by-hop, and everything else as it was.
func TestHeaders(t *testing.T) {
	t.Parallel()
	g := newGate(t, inside)
	g.service("up", newEcho(t).URL, nil)
	dropped := []string{
		"X-Original-Url", "X_Original_URL", "X-Rewrite-Url", "X-Http-Method-Override", "X_HTTP_Method_Override", "X-Http-Method",
		"X-Method-Override", "X-Forwarded-Prefix", "X-Forwarded-Uri", "X_Forwarded_For", "X-Forwarded-Port", "X-Forwarded", "Forwarded",
		"X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Original-Host", "X-Host", "X-Envoy-Original-Path", "Proxy",
		"Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Te", "X-Hop", "Upgrade",
	}
	headers := []string{"Connection", "close, X-Hop", "Accept", "text/plain", "Traceparent", "00-1-2-01", "Cookie", "a=b", "X-Request-Id", "r1", "Accept-Encoding", "br"}
	for _, name := range dropped {
		headers = append(headers, name, "evil")
	}
	e := echoed(t, g.send("203.0.113.9", "GET", "http://api.example.com:8080/up/x", headers...))
	for name, values := range e.Header {
		if fmt.Sprint(values) == "[evil]" {
			t.Errorf("the upstream was sent %s", name)
		}
	}
	for name, want := range map[string]string{
		"Accept": "text/plain", "Traceparent": "00-1-2-01", "Cookie": "a=b", "X-Request-Id": "r1", "Accept-Encoding": "br", "User-Agent": "",
		"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "api.example.com:8080", "X-Forwarded-Prefix": "/up",
	} {
		if got := e.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if e.Target != "/x" || strings.Contains(e.Host, "example") {
		t.Errorf("target %s, host %s; want the upstream's own host", e.Target, e.Host)
	}
	for _, tt := range []struct{ peer, proto, host, wantProto, wantHost string }{
		{"198.51.100.2", "gopher, https", "a.example, b.example", "https", "b.example"},
		{"198.51.100.2", "gopher", "", "http", "example.com"},
		{"203.0.113.9", "https", "b.example", "http", "example.com"},
	} {
		e := echoed(t, g.send(tt.peer, "GET", "/up/", "X-Forwarded-Proto", tt.proto, "X-Forwarded-Host", tt.host))
		if e.Header.Get("X-Forwarded-Proto") != tt.wantProto || e.Header.Get("X-Forwarded-Host") != tt.wantHost {
			t.Errorf("%+v: the upstream was told %s, %s", tt, e.Header.Get("X-Forwarded-Proto"), e.Header.Get("X-Forwarded-Host"))
		}
	}
}

// TestForwardedHeader guarantees that RFC 7239's header is read instead where
// the proxies in front write that one, and never both.
func TestForwardedHeader(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{Trusted: inside.Trusted, Forwarded: true})
	g.service("up", newEcho(t).URL, nil)
	e := echoed(t, g.send("198.51.100.2", "GET", "/up/", "Forwarded", "for=192.0.2.77, for=203.0.113.9;proto=https", "X-Forwarded-For", "192.0.2.9"))
	if got := e.Header.Get("X-Forwarded-For"); got != "203.0.113.9, 198.51.100.2" {
		t.Errorf("the upstream was told %q", got)
	}
}

// TestMethodHasOneSpelling guarantees that "post" is matched and sent as POST:
// some frameworks fold it, and a rule must not be passed that way.
func TestMethodHasOneSpelling(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "up", Method: "POST", Path: "/pay", Cost: 1})
	g.rate("pay", rule.IP, 2, func(r *rule.Rule) { r.Match.Endpoint = "pay" })
	for i, method := range []string{"POST", "post", "PoSt"} {
		w := g.send("203.0.113.9", method, "/up/pay")
		if i == 2 {
			refused(t, w.Code, w.Header(), w.Body.String(), 429, "rate-limited")
		} else if e := echoed(t, w); e.Method != "POST" {
			t.Errorf("%s was sent as %s", method, e.Method)
		}
	}
	if w := g.send("203.0.113.9", "GET", "/up/pay", "X-Http-Method-Override", "POST"); w.Code != 200 || echoed(t, w).Method != "GET" {
		t.Errorf("an override was heard: %d %s", w.Code, w.Body)
	}
}

// TestRouting guarantees how a service is found: by host before by prefix, the
// longest prefix first, and 404 where none is.
func TestRouting(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	named := func(name string) string {
		return upstreamOf(t, func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, name, " ", r.RequestURI) }).URL
	}
	g.service("hosted", named("hosted"), func(s *decide.ServiceDef) { s.Hosts, s.PathPrefix = []string{"api.example.com", "[2001:db8::1]"}, "" })
	g.service("a", named("a")+"/base/", nil)
	g.service("deep", named("deep")+"/base", func(s *decide.ServiceDef) { s.PathPrefix = "/a/deep/" })
	g.service("whole", named("whole")+"/base?x=1", func(s *decide.ServiceDef) { s.PathPrefix, s.StripPrefix = "/whole", false })
	for _, tt := range []struct{ target, want string }{
		{"http://api.example.com/a/x", "hosted /a/x"},
		{"http://API.example.com.:8080/a/x", "hosted /a/x"},
		{"http://[2001:DB8:0::1]:80/a/x", "hosted /a/x"},
		{"http://api.example.com", "hosted /"},
		{"/a/x", "a /base/x"},
		{"/a", "a /base/"},
		{"/a/?", "a /base/?"},
		{"/a/x?y=1&z=%2F;", "a /base/x?y=1&z=%2F;"},
		{"/a/deeper", "a /base/deeper"},
		{"/a/deep/x", "deep /base/x"},
		{"/a//deep/x/", "deep /base/x/"},
		{"/whole/caf%c3%a9", "whole /base/whole/caf%C3%A9"},
	} {
		if w := g.send("203.0.113.9", "GET", tt.target); w.Body.String() != tt.want {
			t.Errorf("%s: %d %s, want %s", tt.target, w.Code, w.Body, tt.want)
		}
	}
	for _, target := range []string{"/", "/b", "/aa", "http://other.example.com/"} {
		w := g.send("203.0.113.9", "GET", target)
		refused(t, w.Code, w.Header(), w.Body.String(), 404, "unknown-service")
	}
}

// TestOwn guarantees that the gateway's own paths are reserved, exactly as
// written, on every host but those that a service claims.
func TestOwn(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	deps := g.deps()
	deps.Own = own{}
	g.Gate = proxyapi.New(proxyapi.Config{}, deps)
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "service") }).URL
	g.service("hosted", up, func(s *decide.ServiceDef) { s.Hosts, s.PathPrefix = []string{"api.example.com"}, "" })
	g.service("v1", up, nil)
	for target, want := range map[string]string{
		"/v1/decisions": "own", "http://other.example.com/v1/decisions?x": "own", "http://api.example.com/v1/decisions": "service",
		"/v1/decisions/": "service", "/v1//decisions": "service", "/v1/%64ecisions/x": "service",
	} {
		if w := g.send("203.0.113.9", "POST", target); w.Body.String() != want {
			t.Errorf("%s: %d %s, want %s", target, w.Code, w.Body, want)
		}
	}
}

type own struct{}

func (own) Serves(path string) bool { return path == "/v1/decisions" }

func (own) ServeHTTP(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "own") }

// wire sends bytes to the gate as they are and returns the answer's status and
// body; more reads the next answer on the same connection.
func wire(t *testing.T, url string) (say func(request string) (status int, body string)) {
	t.Helper()
	conn := connect(t, url)
	r := bufio.NewReader(conn)
	return func(request string) (int, string) {
		_, _ = io.WriteString(conn, request)
		res := read(t, r)
		return res.StatusCode, res.rest(t)
	}
}

// TestTargets guarantees what becomes of every form of request target as it
// comes over the wire.
func TestTargets(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", upstreamOf(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) }).URL,
		func(s *decide.ServiceDef) { s.Hosts, s.PathPrefix = []string{"api.example.com"}, "" })
	url := g.serve()
	for _, tt := range []struct {
		line, host string
		status     int
		body       string
	}{
		{"GET /x?y", "api.example.com", 200, "/x?y"},
		{"GET http://api.example.com/x?y", "ignored.example.com", 200, "/x?y"},
		{"GET http://api.example.com", "ignored.example.com", 200, "/"},
		{"GET //x//y", "api.example.com", 200, "/x/y"},
		{"GET /x#y", "api.example.com", 400, "ambiguous-path"},
		{"GET /x?y#z", "api.example.com", 400, "ambiguous-path"},
		{"GET http:x", "api.example.com", 400, "ambiguous-path"},
		{"GET *", "api.example.com", 400, "ambiguous-path"},
		{"OPTIONS *", "api.example.com", 200, ""},
		{"CONNECT api.example.com:80", "api.example.com", 405, "method-not-allowed"},
		{`GET /x\..\y`, "api.example.com", 400, "ambiguous-path"},
		{"GET /x%2f..%2fy", "api.example.com", 400, "ambiguous-path"},
		{"GET /x%zz", "api.example.com", 400, "400 Bad Request"},
		{"GET /x\x00", "api.example.com", 400, "400 Bad Request"},
	} {
		status, body := wire(t, url)(tt.line + " HTTP/1.1\r\nHost: " + tt.host + "\r\n\r\n")
		if status != tt.status || tt.status == 200 && body != tt.body || !strings.Contains(body, tt.body) {
			t.Errorf("%s: %d %s, want %d %s", tt.line, status, body, tt.status, tt.body)
		}
	}
}

// TestRefusedBodies guarantees that a refusal keeps the connection when the
// body is small and there, and that what is left of one is never read as the
// next request.
func TestRefusedBodies(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", newEcho(t).URL, nil)
	g.rate("none", rule.IP, 0, nil)
	url := g.serve()
	say := wire(t, url)
	for range 3 {
		if status, _ := say("POST /up/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"); status != 429 {
			t.Fatalf("answered %d, want 429", status)
		}
	}
	inner := "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
	conn := connect(t, url)
	_, _ = io.WriteString(conn, "POST /up/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"+inner)
	all, _ := io.ReadAll(conn)
	if n := strings.Count(string(all), "HTTP/1.1 "); n != 1 || !strings.Contains(string(all), "Connection: close") {
		t.Errorf("%d answers, want one that closes:\n%s", n, all)
	}
}

// FuzzStrip guarantees that no spelling of an identity header survives that a
// gateway interface (upper case, everything else an underscore) would read as
// ours.
func FuzzStrip(f *testing.F) {
	for _, name := range []string{"X-Tenant-Id", "x_tenant_id", "X.User~Id", "X-Forwarded-For", "X_Forwarded_anything", "Accept"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		h := http.Header{name: {"evil"}}
		proxyapi.Strip(h)
		variable := strings.Map(func(r rune) rune {
			if 'a' <= r && r <= 'z' {
				return r - 'a' + 'A'
			}
			if 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
				return r
			}
			return '_'
		}, name)
		switch variable {
		case "X_TENANT_ID", "X_APPLICATION_ID", "X_USER_ID", "X_API_KEY", "X_FORWARDED_FOR", "X_HTTP_METHOD_OVERRIDE", "X_ORIGINAL_URL", "X_REWRITE_URL":
			if len(h) > 0 {
				t.Fatalf("%q survived", name)
			}
		}
	})
}

// BenchmarkGate measures a request that passes, and one that is refused, from
// the handler to the recorder, without the network and with the model for a
// store.
func BenchmarkGate(b *testing.B) {
	g := newGate(b, inside)
	g.service("payments", "http://127.0.0.1:1", nil)
	g.key("k1", "s3cret", "acme", "web", "u1")
	g.put(decide.EndpointKind, "pay", &decide.EndpointDef{ID: "pay", Service: "payments", Method: "POST", Path: "/v1/pay", Cost: 1})
	g.rate("acme-burst", rule.Tenant, 0, nil)
	g.rate("acme-pay", rule.Tenant, 0, func(r *rule.Rule) { r.Match.Endpoint, r.Window = "pay", time.Hour })
	r := httptest.NewRequest("POST", "/payments/v1/pay", nil)
	r.Header.Set("Authorization", "Bearer s3cret")
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != 429 {
			b.Fatal(w.Code)
		}
		<-g.exchanges
	}
}
