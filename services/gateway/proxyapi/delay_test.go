package proxyapi_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/rule"
)

// waiting makes a rule a queue that lets one request a second through, and
// holds others for up to a minute.
func waiting(r *rule.Rule) {
	r.Algorithm, r.Limit, r.Window, r.Burst, r.MaxDelay = rule.LeakyBucket, 1, time.Second, 10, time.Minute
}

// TestQueue guarantees that a request waits for its turn before it is
// forwarded, and that the wait is told apart from the upstream's.
func TestQueue(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{ClientTimeout: 100 * time.Millisecond}) // shorter than the wait
	g.service("up", newEcho(t).URL, nil)
	g.rate("queue", rule.IP, 5, func(r *rule.Rule) { waiting(r); r.Limit = 5 })
	url := g.serve()
	for i, atLeast := range []time.Duration{0, 200 * time.Millisecond} {
		began := time.Now()
		res, body := do(t, http.DefaultClient, request(t, http.MethodPost, url+"/up/x", strings.NewReader("hello")))
		took := time.Since(began)
		e := g.exchange()
		if res.StatusCode != 200 || !strings.Contains(body, "hello") || took < atLeast || e.Queued < atLeast || (e.Queued > 0) != (atLeast > 0) || e.Waited > took-atLeast {
			t.Errorf("request %d: %d %s after %v, %+v; want a wait of %v", i, res.StatusCode, body, took, e, atLeast)
		}
		if u := receive(t, g.told); u.Verdict != decide.VerdictAllow || u.Latency > 150*time.Millisecond || u.Upstream.Took > took-atLeast {
			t.Errorf("request %d is told as %+v", i, u)
		}
	}
}

// TestQueueEndsWithClient guarantees that a client which goes away leaves the
// queue at once, never reaches the upstream, and is told of as 499 with its
// charge, whatever its endpoint gives back.
func TestQueueEndsWithClient(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 2)
	g := newGate(t, proxyapi.Config{})
	g.service("up", upstreamOf(t, func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }).URL, nil)
	g.put(decide.EndpointKind, "x", &decide.EndpointDef{ID: "x", Service: "up", Path: "/x", Cost: 1, RefundOn: []string{"4xx", "5xx", "499"}})
	g.rate("queue", rule.IP, 1, func(r *rule.Rule) { waiting(r); r.Window = time.Minute })
	url := g.serve()
	_, _ = do(t, http.DefaultClient, request(t, http.MethodGet, url+"/up/x", nil))
	receive(t, reached)
	_, _ = g.exchange(), receive(t, g.told)

	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/up/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	eventually(t, func() bool { return g.decisions() == 2 }, "second decision")
	cancel()
	<-done
	u := receive(t, g.told)
	e := g.exchange()
	if u.Status != proxyapi.Gone || u.Upstream.Reached || e.Status != proxyapi.Gone || e.Queued > patience || len(reached) > 0 || g.corrections() != 0 {
		t.Errorf("told %+v, accounted for %+v, %d corrections", u, e, g.corrections())
	}
}

// TestQueueEndsWithGate guarantees that a gate which closes waits for those in
// its queues as long as for others, and then tells them to come back; and that
// the charge is given back where 503 gives it back.
func TestQueueEndsWithGate(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{Drain: 50 * time.Millisecond})
	g.service("up", newEcho(t).URL, nil)
	g.put(decide.EndpointKind, "x", &decide.EndpointDef{ID: "x", Service: "up", Path: "/x", Cost: 1, RefundOn: []string{"5xx"}})
	g.rate("queue", rule.IP, 1, func(r *rule.Rule) { waiting(r); r.Window = time.Minute })
	url, stop := g.start()
	_, _ = do(t, http.DefaultClient, request(t, http.MethodGet, url+"/up/x", nil))
	answered := make(chan int, 1)
	go func() {
		res, err := http.DefaultClient.Do(request(t, http.MethodPost, url+"/up/x", strings.NewReader("hello")))
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.Header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
		}
		answered <- res.StatusCode
	}()
	eventually(t, func() bool { return g.decisions() == 2 }, "second decision")
	if err := stop(); err != nil {
		t.Error(err)
	}
	if code := receive(t, answered); code != 503 || !receive(t, g.refunds) {
		t.Errorf("answered %d", code)
	}
}
