package proxyapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.dev/services/gateway/decide"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/internal/limit"
	"penstock.dev/services/internal/period"
	"penstock.dev/services/internal/rule"
)

// patience bounds every wait of these tests. Nothing should take that long.
const patience = 10 * time.Second

// t0 is an hour before a month ends.
var t0 = time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)

// A gate is a data port over the real domain: a catalogue, and counters kept
// by the model on a clock that only tests move.
type gate struct {
	*proxyapi.Gate
	t       testing.TB
	book    *decide.Book
	decider *decide.Service

	mu        sync.Mutex
	now       time.Time
	state     limit.State
	down      bool // the store does not answer
	version   int64
	exchanges chan proxyapi.Exchange
	told      chan decide.Usage
	refunds   chan bool     // that were given, or not
	decided   int           // decisions, made or not
	asked     int           // corrections, answered or not
	hold      chan struct{} // corrections wait for it; nil: they do not
}

func newGate(t testing.TB, cfg proxyapi.Config) *gate {
	t.Helper()
	g := &gate{
		t: t, book: decide.NewBook(), now: t0, state: limit.NewState(),
		exchanges: make(chan proxyapi.Exchange, 100_000), told: make(chan decide.Usage, 100_000), refunds: make(chan bool, 100_000),
	}
	g.decider = decide.NewService(g.book, g, g.clock, decide.NewID, decide.Options{})
	g.Gate = proxyapi.New(cfg, g.deps())
	return g
}

// left is what a tenant has left of the first limit that it has.
func (g *gate) left() int64 {
	g.t.Helper()
	cost := int64(0)
	d, err := g.decider.Decide(g.t.Context(), decide.Query{Tenant: "acme", Cost: &cost})
	if err != nil || len(d.Limits) == 0 {
		g.t.Fatalf("%+v %v", d, err)
	}
	return d.Limits[0].Remaining
}

// abandon asks with a key, and goes away once the upstream was called.
func abandon(t testing.TB, url string, called chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", "s3cret")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	receive(t, called)
	cancel()
	<-done
}

// eventually polls until a condition holds, or fails the test.
func eventually(t testing.TB, holds func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
		<-tick.C
	}
}

func (g *gate) deps() proxyapi.Deps {
	debug := slog.New(slog.NewTextHandler(writer{}, &slog.HandlerOptions{Level: slog.LevelDebug})) // every line is made
	return proxyapi.Deps{
		Catalogue: func() proxyapi.Catalogue { return g.book.Current() },
		Decider:   g.decider,
		Meter:     g,
		Recorder:  g,
		Log:       debug,
	}
}

// A writer forgets.
type writer struct{}

func (writer) Write(p []byte) (int, error) { return len(p), nil }

// Decide is the counter store.
func (g *gate) Decide(_ context.Context, d limit.Decision) (limit.Answer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.decided++
	if g.down {
		return limit.Answer{}, context.DeadlineExceeded
	}
	return limit.Decide(g.state, g.now, d)
}

// decisions is how often the store was asked to decide.
func (g *gate) decisions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.decided
}

// DecideAll is the counter store.
func (g *gate) DecideAll(context.Context, []limit.Decision) ([]limit.Answer, []error) {
	panic("nothing of a proxy decides in batches")
}

// Correct is the counter store.
func (g *gate) Correct(_ context.Context, c limit.Correction) (limit.CorrectionAnswer, error) {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	if g.down {
		return limit.CorrectionAnswer{}, context.DeadlineExceeded
	}
	return limit.Correct(g.state, g.now, c)
}

func (g *gate) stopStore(down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = down
}

// corrections is how often the store was asked to correct.
func (g *gate) corrections() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// Refunded is the meter.
func (g *gate) Refunded(ok bool) { g.refunds <- ok }

// Proxied is the meter.
func (g *gate) Proxied(e proxyapi.Exchange) { g.exchanges <- e }

// Record is the recorder.
func (g *gate) Record(u decide.Usage) { g.told <- u }

func (g *gate) clock() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *gate) advance(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.now.Add(d)
}

// counters is how many counters the store holds.
func (g *gate) counters() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.state.Counters)
}

func (g *gate) put(kind decide.Kind, id string, object any) {
	g.version++
	g.book.Apply([]decide.Change{{Kind: kind, ID: id, Version: g.version, Object: object}})
}

// service registers a service; changes may be nil.
func (g *gate) service(id, upstream string, change func(*decide.ServiceDef)) {
	svc := &decide.ServiceDef{ID: id, Upstream: upstream, PathPrefix: "/" + id, StripPrefix: true}
	if change != nil {
		change(svc)
	}
	g.put(decide.ServiceKind, id, svc)
}

func (g *gate) key(id, secret, tenant, application, user string) {
	g.put(decide.KeyKind, id, &decide.Key{ID: id, Tenant: tenant, Application: application, User: user, Digest: sha256.Sum256([]byte(secret))})
}

// rate adds a GCRA rule of so many units a minute, all of which may pass at
// once.
func (g *gate) rate(id string, subject rule.Subject, units int64, change func(*rule.Rule)) {
	r := &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Rate, Algorithm: rule.GCRA, Subject: subject, Meter: "api-calls",
		Limit: units, Window: time.Minute, Burst: units, OnFailure: rule.Open,
	}
	if change != nil {
		change(r)
	}
	g.put(decide.RuleKind, id, r)
}

func (g *gate) monthly(id string, units int64) {
	g.put(decide.RuleKind, id, &rule.Rule{
		ID: id, Enabled: true, Mode: rule.Enforce, Kind: rule.Quota, Algorithm: rule.CalendarQuota, Subject: rule.Tenant, Meter: "api-calls",
		Limit: units, Period: &period.Spec{Unit: period.Month, Count: 1, Alignment: period.Calendar}, OnFailure: rule.Closed,
	})
}

// wallet adds a prepaid wallet of a tenant's credits and what it was granted.
func (g *gate) wallet(tenant string, granted int64) {
	g.put(decide.WalletKind, tenant+":credits", &decide.Wallet{Tenant: tenant, Meter: "credits", Granted: granted})
	g.put(decide.RuleKind, tenant+"-wallet", &rule.Rule{
		ID: tenant + "-wallet", Enabled: true, Mode: rule.Enforce, Kind: rule.Wallet, Algorithm: rule.OverdraftWallet, Wallet: rule.Prepaid,
		Subject: rule.Tenant, Match: rule.Match{Tenant: tenant}, Meter: "credits", OnFailure: rule.Closed,
	})
}

// serve puts the gate on a free port and returns its URL. The data port is
// drained when the test ends.
func (g *gate) serve() (url string) {
	url, stop := g.start()
	g.t.Cleanup(func() {
		if err := stop(); err != nil {
			g.t.Errorf("data port: %v", err)
		}
	})
	return url
}

func (g *gate) start() (url string, stop func() error) {
	g.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.ServeOn(ctx, ln) }()
	return "http://" + ln.Addr().String(), sync.OnceValue(func() error {
		cancel()
		return <-done
	})
}

// exchange is the next one that was accounted for.
func (g *gate) exchange() proxyapi.Exchange {
	g.t.Helper()
	return receive(g.t, g.exchanges)
}

// receive takes from a channel, or fails the test.
func receive[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("nothing came within %v", patience)
	}
	return v
}

// send asks the handler directly, as a client at an address.
func (g *gate) send(peer, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/", nil)
	u, err := url.ParseRequestURI(target) // as a server reads it from the wire
	if err != nil {
		g.t.Fatal(err)
	}
	if r.URL, r.RequestURI = u, target; u.Host != "" {
		r.Host = u.Host
	}
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(peer), 4711).String()
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1])
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

// A problem is the body of a refusal.
type problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Code     string `json:"code"`
	Errors   []struct{ Field, Message string }
	Violated []string `json:"violated-policies"`
}

// refused checks that an answer is a problem of that status and code.
func refused(t testing.TB, status int, h http.Header, body string, want int, code string) (p problem) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%d %q: %v", status, body, err)
	}
	if !strings.HasSuffix(body, "}\n") {
		t.Errorf("%q does not end its line", body)
	}
	if status != want || p.Status != want || p.Code != code || h.Get("Content-Type") != "application/problem+json" {
		t.Errorf("answered %d %q %s, want %d %s", status, h.Get("Content-Type"), body, want, code)
	}
	if p.Type != "https://penstock.dev/problems/"+code || p.Title == "" || p.Title == http.StatusText(want) || p.Detail == "" || p.Errors == nil {
		t.Errorf("problem is incomplete: %s", body)
	}
	return p
}

// An echo upstream answers with what it was sent.
type echo struct {
	Method, Target, Host string
	Header               http.Header
	Body                 string
}

func newEcho(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(echo{r.Method, r.RequestURI, r.Host, r.Header, string(body)})
	}))
	t.Cleanup(s.Close)
	return s
}

// echoed reads what the upstream was sent.
func echoed(t *testing.T, w *httptest.ResponseRecorder) (e echo) {
	t.Helper()
	if w.Code != http.StatusOK {
		t.Fatalf("answered %d %s, want 200", w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return e
}
