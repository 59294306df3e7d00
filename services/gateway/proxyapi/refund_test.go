package proxyapi_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
)

// refunding is a gate with an upstream whose endpoints give back for what they
// are named after, and one quota.
func refunding(t *testing.T, h http.HandlerFunc) (g *gate, url string) {
	t.Helper()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	g = newGate(t, proxyapi.Config{})
	g.service("up", upstreamOf(t, h).URL, func(s *decide.ServiceDef) { s.ResponseTimeout = 200 * time.Millisecond })
	g.service("nowhere", "http://"+closed.Addr().String(), nil)
	for _, on := range []string{"5xx", "503", "timeout", "502", "504", "404"} {
		g.put(decide.EndpointKind, "up-"+on, &decide.EndpointDef{ID: "up-" + on, Service: "up", Path: "/" + on + "/{x}", Cost: 3, RefundOn: []string{on}})
		g.put(decide.EndpointKind, "no-"+on, &decide.EndpointDef{ID: "no-" + on, Service: "nowhere", Path: "/" + on, Cost: 3, RefundOn: []string{on}})
	}
	g.put(decide.EndpointKind, "both", &decide.EndpointDef{ID: "both", Service: "up", Path: "/both/{x}", Cost: 3, RefundOn: []string{"timeout", "5xx"}})
	g.key("k1", "s3cret", "acme", "", "")
	g.monthly("acme-month", 1000)
	return g, g.serve()
}

// TestRefundOn guarantees which outcomes of an upstream give the charge back,
// and that it is given back whole, once, and told of after its decision.
func TestRefundOn(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	g, url := refunding(t, func(w http.ResponseWriter, r *http.Request) {
		var status int
		switch _, err := fmt.Sscanf(r.URL.Path[len(r.URL.Path)-3:], "%d", &status); {
		case err == nil:
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "sorry")
		case r.URL.Path[len(r.URL.Path)-3:] == "cut":
			panic(http.ErrAbortHandler)
		default:
			select {
			case <-r.Context().Done():
			case <-release:
			}
		}
	})
	defer close(release)
	for _, tt := range []struct {
		path   string
		status int
		refund bool
	}{
		{"/up/5xx/200", 200, false},
		{"/up/5xx/404", 404, false},
		{"/up/404/404", 404, true},
		{"/up/5xx/503", 503, true},
		{"/up/503/503", 503, true},
		{"/up/503/500", 500, false},
		{"/up/timeout/503", 503, false},
		{"/up/timeout/504", 504, false}, // the upstream answered, in time
		{"/up/504/504", 504, true},
		{"/up/both/500", 500, true},
		{"/up/5xx/cut", 502, true},
		{"/up/502/cut", 502, true},
		{"/up/timeout/cut", 502, false},
		{"/up/5xx/late", 504, true},
		{"/up/504/late", 504, true},
		{"/up/timeout/late", 504, true},
		{"/up/both/late", 504, true},
		{"/up/503/late", 504, false},
		{"/up/other/503", 503, false},
		{"/nowhere/5xx", 502, true},
		{"/nowhere/502", 502, true},
		{"/nowhere/timeout", 502, false},
	} {
		before := g.left()
		req := request(t, http.MethodGet, url+tt.path, nil)
		req.Header.Set("X-API-Key", "s3cret")
		res, _ := do(t, http.DefaultClient, req)
		_ = g.exchange()
		if res.StatusCode != tt.status {
			t.Errorf("%s: answered %d, want %d", tt.path, res.StatusCode, tt.status)
		}
		u := receive(t, g.told)
		if u.Verdict != decide.VerdictAllow || u.Status != tt.status {
			t.Errorf("%s is told as %+v", tt.path, u)
		}
		if !tt.refund {
			if left := g.left(); left == before || len(g.refunds) > 0 || len(g.told) > 0 {
				t.Errorf("%s: %d left of %d, %d refunds", tt.path, left, before, len(g.refunds))
			}
			continue
		}
		if !receive(t, g.refunds) {
			t.Errorf("%s: not given back", tt.path)
		}
		back := receive(t, g.told)
		c := back.AppendCounters(nil)
		if back.Verdict != decide.VerdictRefund || back.Decision != u.ID || back.Tenant != "acme" || len(c) != 1 || c[0].Units != -3 {
			t.Errorf("%s: then told %+v with %+v", tt.path, back, c)
		}
		if left := g.left(); left != before || len(g.refunds) > 0 || len(g.told) > 0 {
			t.Errorf("%s: %d left of %d, %d refunds more", tt.path, left, before, len(g.refunds))
		}
	}
}

// TestRefundOfRefusals guarantees that a request which was refused, or passed
// without the store, gives nothing back: nothing was charged.
func TestRefundOfRefusals(t *testing.T) {
	t.Parallel()
	g, url := refunding(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	g.put(decide.EndpointKind, "dear", &decide.EndpointDef{ID: "dear", Service: "up", Path: "/dear", Cost: 1001, RefundOn: []string{"4xx", "5xx"}})
	for i, key := range []string{"s3cret", "nope", "", "s3cret"} {
		if i == 3 {
			g.stopStore(true)
		}
		req := request(t, http.MethodGet, url+"/up/dear", nil)
		if key != "" {
			req.Header.Set("X-API-Key", key)
		}
		_, _ = do(t, http.DefaultClient, req)
		_ = g.exchange()
	}
	if g.corrections() != 0 {
		t.Errorf("%d refunds were asked for", g.corrections())
	}
}

// TestRefundOfStreams guarantees that a charge is given back as soon as the
// upstream's status is known, while the answer still streams, and told of when
// its decision has been; and that the answer does not wait for the store.
func TestRefundOfStreams(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	g, url := refunding(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		<-end
	})
	hold := make(chan struct{})
	g.mu.Lock()
	g.hold = hold
	g.mu.Unlock()
	req := request(t, http.MethodGet, url+"/up/5xx/stream", nil)
	req.Header.Set("X-API-Key", "s3cret")
	res := open(t, http.DefaultClient, req) // while the store holds the refund
	close(hold)
	if !receive(t, g.refunds) {
		t.Error("not given back")
	}
	if n := g.left(); n != 1000 || len(g.exchanges) != 0 || len(g.told) != 0 {
		t.Errorf("while it streams: %d left, %d exchanges, %d told", n, len(g.exchanges), len(g.told))
	}
	close(end)
	_ = res.rest(t)
	if first, second := receive(t, g.told), receive(t, g.told); first.Verdict != decide.VerdictAllow || second.Verdict != decide.VerdictRefund {
		t.Errorf("told %s, then %s", first.Verdict, second.Verdict)
	}
}

// TestNoRefundForGoneClients guarantees that a client which goes away keeps its
// charge, whatever the upstream would have said.
func TestNoRefundForGoneClients(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 1)
	g, url := refunding(t, func(_ http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		<-r.Context().Done()
	})
	abandon(t, url+"/up/both/wait", called)
	if u := receive(t, g.told); u.Status != proxyapi.Gone {
		t.Errorf("told %+v", u)
	}
	if g.corrections() != 0 || g.left() != 997 {
		t.Errorf("%d refunds, %d left", g.corrections(), g.left())
	}
}

// TestRefundWaitsForTheStore guarantees that a store which does not answer is
// asked again, and gives back once.
func TestRefundWaitsForTheStore(t *testing.T) {
	t.Parallel()
	g, url := refunding(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	hold := make(chan struct{})
	g.mu.Lock()
	g.hold = hold
	g.mu.Unlock()
	req := request(t, http.MethodGet, url+"/up/5xx/x", nil)
	req.Header.Set("X-API-Key", "s3cret")
	_, _ = do(t, http.DefaultClient, req)
	g.stopStore(true)
	close(hold)
	eventually(t, func() bool { return g.corrections() > 0 }, "a first try")
	g.stopStore(false)
	if !receive(t, g.refunds) || g.left() != 1000 || g.corrections() < 2 || len(g.refunds) > 0 {
		t.Errorf("%d left after %d tries", g.left(), g.corrections())
	}
}

// TestRefundsAtTheEnd guarantees that closing the gate gives back what it can,
// and counts what it cannot without waiting for a store that is away.
func TestRefundsAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		g := newGate(t, proxyapi.Config{})
		g.service("up", up.URL, nil)
		g.put(decide.EndpointKind, "x", &decide.EndpointDef{ID: "x", Service: "up", Path: "/x", RefundOn: []string{"503"}, Cost: 1})
		g.key("k1", "s3cret", "acme", "", "")
		g.monthly("acme-month", 1000)
		url, stop := g.start()
		hold := make(chan struct{})
		g.mu.Lock()
		g.hold = hold
		g.mu.Unlock()
		req := request(t, http.MethodGet, url+"/up/x", nil)
		req.Header.Set("X-API-Key", "s3cret")
		_, _ = do(t, http.DefaultClient, req)
		g.stopStore(down)
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		close(hold)
		if err := receive(t, ended); err != nil {
			t.Errorf("store away %v: %v", down, err)
		}
		if ok := receive(t, g.refunds); ok == down {
			t.Errorf("store away %v, and given back %v", down, ok)
		}
	}
}

// TestRefundThatHangs guarantees that closing the gate ends with a store that
// never answers, and says what was left.
func TestRefundThatHangs(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("up", upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }).URL, nil)
	g.put(decide.EndpointKind, "x", &decide.EndpointDef{ID: "x", Service: "up", Path: "/x", RefundOn: []string{"503"}, Cost: 1})
	g.key("k1", "s3cret", "acme", "", "")
	g.monthly("acme-month", 1000)
	hold := make(chan struct{})
	defer close(hold)
	g.mu.Lock()
	g.hold = hold
	g.mu.Unlock()
	if w := g.send("203.0.113.9", "GET", "/up/x", "X-Api-Key", "s3cret"); w.Code != 503 {
		t.Fatalf("answered %d", w.Code)
	}
	if left := g.DrainRefunds(time.Second); left != 1 {
		t.Errorf("%d left, want 1", left)
	}
}
