package proxyapi_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/rule"
)

var inside = proxyapi.Config{Trusted: canon.Proxies{netip.MustParsePrefix("198.51.100.0/24")}}

// TestFC01 guarantees that a forged forwarding header hands out no fresh
// counters: the client is the right-most address that is not a trusted
// proxy's, and only a trusted peer is believed.
func TestFC01(t *testing.T) {
	t.Parallel()
	g := newGate(t, inside)
	g.service("export", newEcho(t).URL, nil)
	g.rate("by-address", rule.IP, 5, nil)

	var got []int
	for i := range 20 {
		w := g.send("203.0.113.9", "GET", "/export/", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i+1))
		got = append(got, w.Code)
		if w.Code == http.StatusOK && echoed(t, w).Header.Get("X-Forwarded-For") != "203.0.113.9" {
			t.Errorf("the upstream was told %q", echoed(t, w).Header.Get("X-Forwarded-For"))
		}
	}
	if want := slices.Concat(slices.Repeat([]int{200}, 5), slices.Repeat([]int{429}, 15)); !slices.Equal(got, want) {
		t.Errorf("answered %v, want %v", got, want)
	}
	for _, list := range []string{"192.0.2.77, 203.0.113.9", "abc, , 203.0.113.9"} {
		if w := g.send("198.51.100.2", "GET", "/export/", "X-Forwarded-For", list); w.Code != 429 {
			t.Errorf("X-Forwarded-For %q from a trusted peer: %d, want 429 as the same client", list, w.Code)
		}
	}
	if n := g.counters(); n != 1 {
		t.Errorf("%d counters, want 1", n)
	}
	w := g.send("198.51.100.2", "GET", "/export/", "X-Forwarded-For", "192.0.2.77, 203.0.113.10")
	if got := echoed(t, w).Header.Get("X-Forwarded-For"); got != "203.0.113.10, 198.51.100.2" {
		t.Errorf("the upstream was told %q, want the client and the proxies that were passed", got)
	}
}

// TestFC02 guarantees that one IPv6 customer, who has a whole /64, has one
// counter, however its addresses are written.
func TestFC02(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("export", newEcho(t).URL, nil)
	g.rate("by-address", rule.IP, 10, nil)

	count := map[int]int{}
	for i := range 40 {
		count[g.send(fmt.Sprintf("2001:db8:1:2:%x::%x", i, i+1), "GET", "/export/").Code]++
	}
	if count[200] != 10 || count[429] != 30 || g.counters() != 1 {
		t.Errorf("first subnet: %v with %d counters, want 10 × 200 and 30 × 429 with 1", count, g.counters())
	}
	if w := g.send("2001:db8:1:3::1", "GET", "/export/"); w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != "9" {
		t.Errorf("second subnet: %d with %s remaining, want 200 with 9", w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
	if w := g.send("2001:DB8:1:2:0:0:0:1", "GET", "/export/"); w.Code != 429 {
		t.Errorf("long spelling: %d, want 429 as the first subnet", w.Code)
	}
}

// TestFC03 guarantees that the limiter and the upstream agree about what the
// path is: every spelling of one path is charged to one counter, ambiguous ones
// are refused, and the upstream receives the path that was matched.
func TestFC03(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "/svc"} {
		t.Run("behind prefix "+prefix, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, proxyapi.Config{})
			g.service("export", newEcho(t).URL, func(s *decide.ServiceDef) { s.PathPrefix = prefix })
			g.put(decide.EndpointKind, "export", &decide.EndpointDef{ID: "export", Service: "export", Path: "/v1/export", Cost: 1})
			spellings := []string{"/v1/export", "/v1//export", "/v1/export/", "/v1/./export", "/v1/x/../export", "/v1/%65xport", "/v1/export;a=1"}
			sent := []string{"/v1/export", "/v1/export", "/v1/export/", "/v1/export", "/v1/export", "/v1/export", "/v1/export;a=1"}

			// Any two of them pass, and then none.
			for first := range spellings {
				g.rate("two", rule.IP, 2, func(r *rule.Rule) { r.Match.Endpoint = "export" })
				client := fmt.Sprintf("203.0.113.%d", first+1)
				for i := range spellings {
					at := (first + i) % len(spellings)
					w := g.send(client, "GET", prefix+spellings[at]+"?q=%2e%2e/%zz;&&")
					if i >= 2 {
						if w.Code != 429 {
							t.Errorf("%s as number %d: %d, want 429", spellings[at], i+1, w.Code)
						}
						continue
					}
					if got := echoed(t, w).Target; got != sent[at]+"?q=%2e%2e/%zz;&&" {
						t.Errorf("%s: the upstream received %s, want %s and the query as it was", spellings[at], got, sent[at])
					}
				}
			}
			if n := g.counters(); n != len(spellings) {
				t.Errorf("%d counters for %d clients, want one each", n, len(spellings))
			}
			for _, ambiguous := range []string{
				"/v1%2Fexport", "/v1/%252e%252e/v1/export", "/v1%5Cexport", "/v1/export%00", "/v1/%2e%2e/%2e%2e/export",
				"/v1/..;/export", "/../export",
			} {
				w := g.send("203.0.113.99", "GET", prefix+ambiguous)
				refused(t, w.Code, w.Header(), w.Body.String(), 400, "ambiguous-path")
			}
		})
	}
}

// TestFC05 guarantees of every rate Retry-After in whole seconds, rounded up and
// never 0, and that waiting exactly so long is enough.
func TestFC05(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		algorithm rule.Algorithm
		until     time.Duration // the next may pass
		remaining string        // then
	}{
		{rule.FixedWindow, time.Minute, "4"},
		{rule.SlidingWindowLog, time.Minute, "4"},
		{rule.SlidingWindowCounter, 72 * time.Second, "0"}, // 4 of the last window's 5 count
		{rule.GCRA, 12 * time.Second, "0"},                 // one every 12 s
		{rule.TokenBucket, 12 * time.Second, "0"},
		{rule.LeakyBucket, 12 * time.Second, "0"},
	} {
		t.Run(string(tt.algorithm), func(t *testing.T) {
			t.Parallel()
			g := newGate(t, proxyapi.Config{})
			g.service("export", newEcho(t).URL, nil)
			g.rate("five", rule.IP, 5, func(r *rule.Rule) {
				if r.Algorithm = tt.algorithm; !tt.algorithm.Bucket() {
					r.Burst = 0
				}
			})
			send := func() (int, string, string) {
				w := g.send("203.0.113.9", "GET", "/export/")
				return w.Code, w.Header().Get("Retry-After"), w.Header().Get("X-RateLimit-Remaining")
			}
			for range 5 {
				if code, _, _ := send(); code != 200 {
					t.Fatalf("answered %d within the limit", code)
				}
			}
			g.advance(tt.until - 1_400*time.Millisecond)
			if code, retry, _ := send(); code != 429 || retry != "2" {
				t.Errorf("1.4 s before: %d, Retry-After %q, want 429, 2", code, retry)
			}
			g.advance(1_350 * time.Millisecond) // 50 ms left
			if code, retry, _ := send(); code != 429 || retry != "1" {
				t.Errorf("50 ms before: %d, Retry-After %q, want 429, 1", code, retry)
			}
			g.advance(time.Second)
			if code, retry, remaining := send(); code != 200 || retry != "" || remaining != tt.remaining {
				t.Errorf("after the wait: %d, Retry-After %q, %s left; want 200 without, and %s", code, retry, remaining, tt.remaining)
			}
		})
	}
}

// TestFC05Quota guarantees that a monthly quota which is used up an hour before
// the month ends answers 429, and to come back in 3,600 seconds.
func TestFC05Quota(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("export", newEcho(t).URL, nil)
	g.key("k1", "secret", "acme", "", "")
	g.monthly("acme-month", 1)
	send := func() (int, http.Header, string) {
		w := g.send("203.0.113.9", "GET", "/export/", "X-Api-Key", "secret")
		return w.Code, w.Header(), w.Body.String()
	}
	if code, h, _ := send(); code != 200 || h.Get("X-RateLimit-Reset") != "3600" || h.Get("RateLimit-Policy") != `"acme-month";q=1;w=2592000` {
		t.Errorf("answered %d %v", code, h)
	}
	code, h, body := send()
	p := refused(t, code, h, body, 429, "quota-exceeded")
	if got := h.Get("Retry-After"); got != "3600" {
		t.Errorf("Retry-After %q, want 3600", got)
	}
	if !strings.Contains(p.Detail, "acme-month") || !slices.Equal(p.Violated, []string{"acme-month"}) {
		t.Errorf("the refusal does not name the rule: %s", body)
	}
	g.advance(time.Hour)
	if code, _, _ := send(); code != 200 {
		t.Errorf("after the wait: %d, want 200", code)
	}
}

// TestFC11 guarantees that a cost of exactly the capacity is told to wait, and
// passes after that; and that one above it is told that no wait helps.
func TestFC11(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []rule.Algorithm{rule.GCRA, rule.TokenBucket} {
		g := newGate(t, proxyapi.Config{})
		g.service("up", newEcho(t).URL, nil)
		for cost := int64(10); cost <= 11; cost++ {
			id := fmt.Sprint("c", cost)
			g.put(decide.EndpointKind, id, &decide.EndpointDef{ID: id, Service: "up", Path: "/" + id, Cost: cost})
		}
		g.rate("ten", rule.IP, 10, func(r *rule.Rule) { r.Algorithm, r.Window = algorithm, 10*time.Second })
		if w := g.send("203.0.113.9", "GET", "/up/c10"); w.Code != 200 {
			t.Fatalf("%s: answered %d", algorithm, w.Code)
		}
		w := g.send("203.0.113.9", "GET", "/up/c10")
		refused(t, w.Code, w.Header(), w.Body.String(), 429, "rate-limited")
		if got := w.Header().Get("Retry-After"); got != "10" {
			t.Errorf("%s: cost 10: Retry-After %q, want 10", algorithm, got)
		}
		w = g.send("203.0.113.9", "GET", "/up/c11")
		p := refused(t, w.Code, w.Header(), w.Body.String(), 429, "cost-exceeds-limit")
		if w.Header().Get("Retry-After") != "" || !strings.Contains(p.Detail, "above what can ever pass") {
			t.Errorf("%s: cost 11: %v %s", algorithm, w.Header(), w.Body)
		}
		g.advance(10 * time.Second)
		if w = g.send("203.0.113.9", "GET", "/up/c10"); w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("%s: after the wait: %d %v", algorithm, w.Code, w.Header())
		}
		g.rate("ten", rule.IP, 0, nil)
		for range 100 {
			if w = g.send("203.0.113.10", "GET", "/up/c10"); w.Code != 429 || w.Header().Get("Retry-After") != "" {
				t.Fatalf("%s: limit 0: %d %v", algorithm, w.Code, w.Header())
			}
		}
	}
}

// TestFC33 guarantees that what is kept does not grow with paths, keys and
// methods: one upstream, and no counter that no rule asks for. (That metrics do
// not grow is observe's test.)
func TestFC33(t *testing.T) {
	t.Parallel()
	g := newGate(t, proxyapi.Config{})
	g.service("export", newEcho(t).URL, nil)
	g.rate("by-address", rule.IP, 100, nil)
	for i := range 10_000 {
		g.send("203.0.113.9", "GET", fmt.Sprintf("/export/%d", i))
		g.send("203.0.113.9", "GET", "/export/", "X-Api-Key", fmt.Sprint(i))
		if i < 1_000 {
			g.send("203.0.113.9", fmt.Sprintf("M%d", i), "/export/")
		}
	}
	if len(g.exchanges) != 21_000 || g.counters() != 1 || g.Upstreams() != 1 {
		t.Errorf("%d exchanges, %d counters, %d upstreams; want 21000, 1, 1", len(g.exchanges), g.counters(), g.Upstreams())
	}
	count := map[int]int{}
	for range 21_000 {
		count[g.exchange().Status]++
	}
	if count[200] != 100 || count[401] != 10_000 || count[429] != 10_900 {
		t.Errorf("answered %v, want 100 × 200, 10000 × 401 and 10900 × 429", count)
	}
}
