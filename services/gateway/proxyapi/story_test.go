package proxyapi_test

import (
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/rule"
)

// TestUsage guarantees what is told of a proxied request: once of each that was
// decided, with what the upstream and the client got; of a key that nobody
// knows by its digest; and nothing of what was never decided.
func TestUsage(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/drop":
			panic(http.ErrAbortHandler)
		case "/odd":
			w.WriteHeader(599)
		case "/cut":
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	g.service("nowhere", "http://"+closed.Addr().String(), nil)
	g.service("cors", up.URL, func(s *decide.ServiceDef) { s.CORS = &decide.CORS{AllowedOrigins: []string{"*"}} })
	g.put(decide.EndpointKind, "item", &decide.EndpointDef{ID: "item", Service: "up", Path: "/items/{id}", Cost: 2})
	g.key("k1", "s3cret", "acme", "web", "u1")
	g.monthly("acme-month", 7)
	url := g.serve()
	digest := sha256.Sum256([]byte("s3cret"))

	type told struct {
		Verdict  decide.Verdict
		Status   int
		Upstream int // -1: not reached
		Tenant   string
		Rule     string
		Service  string
		Endpoint string
		Cost     int64
		Units    int64 // -1: no counter
	}
	for _, tt := range []struct {
		name, method, path string
		headers            []string
		want               *told
	}{
		{"a pass", "GET", "/up/items/17", []string{"X-API-Key", "s3cret"}, &told{"ALLOW", 200, 200, "acme", "acme-month", "up", "item", 2, 2}},
		{"what the upstream invents", "GET", "/up/odd", []string{"X-API-Key", "s3cret"}, &told{"ALLOW", 599, 599, "acme", "acme-month", "up", "", 1, 1}},
		{"no answer", "GET", "/up/drop", []string{"X-API-Key", "s3cret"}, &told{"ALLOW", 502, 0, "acme", "acme-month", "up", "", 1, 1}},
		{"an upstream that is not there", "GET", "/nowhere/", []string{"X-API-Key", "s3cret"}, &told{"ALLOW", 502, -1, "acme", "acme-month", "nowhere", "", 1, 1}},
		{"half an answer", "GET", "/up/cut", []string{"X-API-Key", "s3cret"}, &told{"ALLOW", 200, 200, "acme", "acme-month", "up", "", 1, 1}},
		{"a refusal", "GET", "/up/items/17", []string{"X-API-Key", "s3cret"}, &told{"DENY", 429, -1, "acme", "acme-month", "up", "item", 2, 0}},
		{"nobody", "GET", "/up/x", nil, &told{"ALLOW", 200, 200, "", "", "up", "", 1, -1}},
		{"a key that nobody knows", "GET", "/up/items/1", []string{"X-API-Key", "nope"}, &told{"DENY", 401, -1, "", "", "up", "item", 2, -1}},
		{"no service", "GET", "/none", nil, nil},
		{"an ambiguous path", "GET", "/up/%2f", nil, nil},
		{"two keys", "GET", "/up/x", []string{"X-API-Key", "a", "X-API-Key", "b"}, nil},
		{"a preflight", "OPTIONS", "/cors/x", []string{"Origin", "https://a.example", "Access-Control-Request-Method", "GET"}, nil},
	} {
		req := request(t, tt.method, url+tt.path, nil)
		for i := 0; i < len(tt.headers); i += 2 {
			req.Header.Add(tt.headers[i], tt.headers[i+1])
		}
		res := open(t, http.DefaultClient, req)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = g.exchange() // it has been accounted for, so it has been told of
		if tt.want == nil {
			if len(g.told) > 0 {
				t.Errorf("%s is told as %+v", tt.name, <-g.told)
			}
			continue
		}
		if len(g.told) != 1 {
			t.Errorf("%s is told %d times", tt.name, len(g.told))
			continue
		}
		u := <-g.told
		got := told{u.Verdict, u.Status, u.Upstream.Status, u.Tenant, u.RuleID, u.Service, u.Endpoint, u.Cost, -1}
		if !u.Upstream.Reached {
			got.Upstream = -1
		}
		for _, c := range u.AppendCounters(nil) {
			got.Units = c.Units
		}
		if got != *tt.want {
			t.Errorf("%s is told as %+v, want %+v", tt.name, got, *tt.want)
		}
		wantDigest := [32]byte{}
		if tt.headers != nil {
			wantDigest = sha256.Sum256([]byte(tt.headers[1]))
		}
		if u.KeyDigest != wantDigest || u.Tenant != "" && wantDigest != digest || u.Latency <= 0 || u.Address.String() != "127.0.0.1" ||
			u.Upstream.Reached && u.Upstream.Took <= 0 || u.Method != tt.method {
			t.Errorf("%s: %+v", tt.name, u)
		}
	}
}

// TestUsageOfGoneClients guarantees that a client which goes away is told of as
// 499, with its charge.
func TestUsageOfGoneClients(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 1)
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		<-r.Context().Done()
	})
	g := newGate(t, proxyapi.Config{})
	g.service("up", up.URL, nil)
	g.key("k1", "s3cret", "acme", "", "")
	g.monthly("acme-month", 7)
	abandon(t, g.serve()+"/up/", called)
	u := receive(t, g.told)
	if c := u.AppendCounters(nil); u.Status != proxyapi.Gone || u.Verdict != decide.VerdictAllow || len(c) != 1 || c[0].Units != 1 || !u.Upstream.Reached || u.Upstream.Status != 0 {
		t.Errorf("told as %+v", u)
	}
}

// TestUsageOfStreams guarantees that a tunnel is told of when it opens, and an
// answer that streams for long when the next bytes move: once each, while they
// go on.
func TestUsageOfStreams(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stream" {
			_, _ = io.WriteString(w, "short")
			return
		}
		w.WriteHeader(http.StatusCreated)
		for {
			_, _ = io.WriteString(w, "more")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case _, ok := <-more:
				if !ok {
					return
				}
			}
		}
	})
	g := newGate(t, proxyapi.Config{TellAfter: 20 * time.Millisecond})
	g.service("up", up.URL, nil)
	g.service("ws", newTunnel(t).URL, nil)
	g.rate("by-address", rule.IP, 10, nil)
	url := g.serve()

	res := open(t, http.DefaultClient, request(t, http.MethodGet, url+"/up/stream", nil))
	var u decide.Usage
	for buf := make([]byte, 4); ; {
		if _, err := io.ReadFull(res.Body, buf); err != nil {
			t.Fatal(err)
		}
		if len(g.told) > 0 {
			u = <-g.told
			break
		}
		more <- struct{}{}
	}
	if u.Status != 201 || u.Upstream.Status != 201 || u.Upstream.Took < 20*time.Millisecond || len(g.exchanges) != 0 {
		t.Errorf("told early as %+v", u)
	}
	close(more)
	_, _ = io.Copy(io.Discard, res.Body)
	_ = g.exchange()
	if len(g.told) > 0 {
		t.Errorf("told again as %+v", <-g.told)
	}

	conn, _, _ := dial(t, url, "/ws/", "websocket")
	u = receive(t, g.told)
	if u.Status != 101 || u.Upstream.Status != 101 || len(g.exchanges) != 0 {
		t.Errorf("a tunnel is told as %+v", u)
	}
	_ = conn.Close()
	if e := g.exchange(); e.Status != 101 {
		t.Errorf("accounted for %+v", e)
	}
	if len(g.told) > 0 {
		t.Errorf("told again as %+v", <-g.told)
	}
}
