package proxyapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/decide"
)

// A Catalogue is what the gate must know before it asks for a decision. It is
// one revision: a decide.Snapshot.
type Catalogue interface {
	Key(digest [32]byte) (decide.Key, bool)
	Route(host, path string) (svc *decide.ServiceDef, rest string, ok bool)
	// Endpoint is that of a path behind its service's prefix, or nil.
	Endpoint(service, method, path string) *decide.EndpointDef
	// UnknownKey is the refusal of a request whose key is not in the catalogue.
	UnknownKey(q decide.Query, at time.Time) decide.Decision
}

// A Decider decides, and gives back what it charged: a decide.Service.
type Decider interface {
	Decide(ctx context.Context, q decide.Query) (decide.Decision, error)
	Refund(ctx context.Context, r decide.Receipt, id string, units int64) (decide.Correction, error)
}

// Own is what the gateway itself answers on the data port: the decision API.
type Own interface {
	http.Handler
	// Serves reports whether a path is one of its own, exactly as written.
	Serves(path string) bool
}

// A Meter is told of every request that was not the gateway's own, once, when
// it has been answered, and of every charge that was to be given back. It must
// not block.
type Meter interface {
	Proxied(Exchange)
	Refunded(ok bool)
}

// A Recorder is told of every decision that makes an event, once: when its
// exchange has ended, or earlier where that takes long; and then of its refund.
// It must not block. What u points to must not change any more.
type Recorder interface {
	Record(u decide.Usage)
}

// Gone is the status of an exchange whose client went away before it was
// answered in full.
const Gone = 499

// An Exchange is what became of one request.
type Exchange struct {
	Decision decide.Decision // of a request that was decided, else zero
	Decided  bool
	Service  string // id; empty when none was found
	Status   int    // what the client was answered, or Gone
	Cut      bool   // the upstream, or the gate's own closing, ended the answer early
	Upstream int    // the upstream's status; 0 when it gave none
	Took     time.Duration
	Queued   time.Duration // part of Took: in the queue of a leaky bucket
	Waited   time.Duration // part of Took: until the upstream's headers, or its failure
}

// Deps is what a Gate works with. All are required but Own, Meter and Recorder.
type Deps struct {
	Catalogue func() Catalogue // the one in force
	Decider   Decider
	Own       Own
	Meter     Meter
	Recorder  Recorder
	Log       *slog.Logger
}

// A Gate is the handler of the data port. It is safe for concurrent use.
type Gate struct {
	cfg  Config
	deps Deps
	pool pool
	back refunds
	busy sync.RWMutex // held for reading by every request, for writing once the gate is closed
}

// New returns a gate. It starts nothing.
func New(cfg Config, deps Deps) *Gate {
	g := &Gate{cfg: cfg.withDefaults(), deps: deps, back: newRefunds()}
	g.pool.connect = g.cfg.ConnectTimeout
	return g
}

// ServeHTTP answers one request of the data port.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.busy.TryRLock() {
		w.Header().Set("Connection", "close") // on HTTP/2: no further streams
		refuse(w, r, closing)
		return
	}
	defer g.busy.RUnlock()

	rules := g.deps.Catalogue()
	if g.own(rules, r) {
		g.deps.Own.ServeHTTP(w, r)
		return
	}
	x := &exchange{gate: g, rules: rules, start: time.Now(), in: r, out: response{ResponseWriter: w}}
	defer x.account()
	x.serve()
}

// own reports whether the request is for the gateway's own API: its paths are
// reserved on every host but those that a service claims.
func (g *Gate) own(rules Catalogue, r *http.Request) bool {
	if g.deps.Own == nil || !g.deps.Own.Serves(r.URL.Path) {
		return false
	}
	svc, _, ok := rules.Route(canon.Host(r.Host), r.URL.Path)
	return !ok || len(svc.Hosts) == 0
}

// An exchange is one request on its way through the gate.
type exchange struct {
	gate  *Gate
	rules Catalogue
	start time.Time
	in    *http.Request
	out   response

	method  string
	service *decide.ServiceDef
	target  string // the path behind the service's prefix, as the upstream is sent it
	rest    string // the same, as endpoints are written
	caller  caller
	client  client
	origin  string // allowed by the service's CORS, else empty

	decision decide.Decision
	decided  bool
	story    story
	refunded bool          // the charge is given back, or was tried to be
	queued   time.Duration // in the queue of a leaky bucket
	upstream int           // status
	waited   time.Duration // until the upstream's headers
	gone     bool          // the client went away
	cut      bool          // the answer ended early
}

// serve takes the request through every step. Each step that ends the exchange
// has answered it.
func (x *exchange) serve() {
	if p := x.route(); p != nil {
		x.turnAway(p)
		return
	}
	if x.preflight() {
		return
	}
	if p := x.identify(); p != nil {
		if p == unknownKey {
			at := time.Now()
			d := x.rules.UnknownKey(x.query(), at)
			x.note(&d, time.Since(at))
		}
		x.turnAway(p)
		return
	}
	if !x.decide() || !x.queue() {
		return
	}
	x.forward()
}

// route finds the service, and the one path that is matched and forwarded.
func (x *exchange) route() *problem {
	u := x.in.URL
	x.method = canon.Method(x.in.Method)
	if x.method == http.MethodConnect {
		return &problem{Status: http.StatusMethodNotAllowed, Code: "method-not-allowed", Detail: "this gateway opens no tunnels"}
	}
	raw := u.RawPath // as it was sent, when it differs from the default escaping
	if raw == "" {
		raw = u.EscapedPath()
	}
	if raw == "" && u.Host != "" { // the absolute form of a server's root
		raw = "/"
	}
	if u.Opaque != "" || strings.ContainsAny(u.RawQuery, " #") {
		return &problem{Status: http.StatusBadRequest, Code: "ambiguous-path", Detail: "the request target is not one path and one query"}
	}
	path, err := canon.ParsePath(raw)
	if err != nil {
		return &problem{Status: http.StatusBadRequest, Code: "ambiguous-path", Detail: err.Error(), Errors: []fault{{"path", err.Error()}}}
	}
	host := canon.Host(x.in.Host)
	if path.Climbs(func(match string) int { return x.depth(host, match) }) {
		return &problem{Status: http.StatusBadRequest, Code: "ambiguous-path", Detail: canon.ErrClimbs.Error(), Errors: []fault{{"path", canon.ErrClimbs.Error()}}}
	}
	svc, rest, ok := x.rules.Route(host, path.Match)
	if !ok {
		return &problem{
			Status: http.StatusNotFound, Code: "unknown-service",
			Detail: "no service is registered for this host and path (services: hosts, path_prefix)",
		}
	}
	x.service, x.rest, x.target = svc, rest, path.Upstream
	if svc.StripPrefix {
		x.target = path.Behind(canon.Segments(svc.PathPrefix))
	}
	return nil
}

// depth is how many segments the prefix of a path's service has.
func (x *exchange) depth(host, path string) int {
	svc, _, ok := x.rules.Route(host, path)
	if !ok {
		return 0
	}
	return canon.Segments(svc.PathPrefix)
}

// decide asks for a decision and answers a request that does not pass. It
// reports whether the request passes.
func (x *exchange) decide() bool {
	began := time.Now()
	d, err := x.gate.deps.Decider.Decide(x.in.Context(), x.query())
	if err != nil {
		if x.in.Context().Err() != nil {
			x.gone = true
			x.refuse(clientGone)
			return false
		}
		x.gate.deps.Log.Error("request not decided", "service_id", x.service.ID, "error", err.Error())
		x.turnAway(&problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "the request could not be decided"})
		return false
	}
	x.decision, x.decided = d, true
	x.note(&d, time.Since(began))
	if d.Outcome == decide.Allow {
		return true
	}
	x.turnAway(denial(&d))
	return false
}

// query is the request as decisions are made about it.
func (x *exchange) query() decide.Query {
	return decide.Query{
		Tenant: x.caller.key.Tenant, Application: x.caller.key.Application, User: x.caller.key.User, APIKey: x.caller.key.ID,
		Address: canon.Group(x.client.address),
		Service: x.service.ID, Method: x.method, Path: x.rest,
	}
}

// refuse answers in the upstream's stead.
func (x *exchange) refuse(p *problem) {
	h := x.out.Header()
	x.dress(h)
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", x.caller.challenge())
	}
	refuse(&x.out, x.in, p)
}

// turnAway refuses a request whose body nobody has begun to read.
func (x *exchange) turnAway(p *problem) {
	x.discard()
	x.refuse(p)
}

// dress adds what every answer carries: the limits, where a rule was
// evaluated, and what another origin may read.
func (x *exchange) dress(h http.Header) {
	if x.decided {
		setLimits(h, &x.decision)
	}
	x.allowOrigin(h)
}

// account tells the recorder, the meter and the debug log what became of the
// request. It runs also when the reverse proxy aborts the connection.
func (x *exchange) account() {
	e := Exchange{
		Decision: x.decision, Decided: x.decided, Status: x.out.status, Upstream: x.upstream,
		Took: time.Since(x.start), Queued: x.queued, Waited: x.waited,
	}
	if x.service != nil {
		e.Service = x.service.ID
	}
	if x.gone || e.Status == 0 {
		e.Status = Gone
	}
	e.Cut = x.cut && !x.gone
	x.tell(e.Status)
	if m := x.gate.deps.Meter; m != nil {
		m.Proxied(e)
	}
	if log := x.gate.deps.Log; log.Enabled(x.in.Context(), slog.LevelDebug) {
		log.Debug("request answered", "method", x.method, "service_id", e.Service, "status", e.Status,
			"upstream_status", e.Upstream, "took", e.Took.String())
	}
}
