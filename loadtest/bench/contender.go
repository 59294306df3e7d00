package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/deploy/local/server"
	"penstock.dev/loadtest/client"
	"penstock.dev/loadtest/system"
	"penstock.dev/loadtest/wire"
)

// A contender is one of those that are measured.
type contender struct {
	process *server.Process
	http    string // host:port of its decision API; empty: none
	admin   string // URL of its metrics; empty: none
	// load fills in what is sent and how it is judged.
	load func(t turn, l *wire.Load) error
	// run is what measures it instead of a load.
	run func(ctx context.Context, t turn, o Options) (Sample, error)
	// charged counts in Redis what a turn has charged, for each of its rules; nil:
	// nothing is counted.
	charged func(ctx context.Context, t turn) ([]int64, error)
	weight  int  // decisions of a request
	conns   int  // instead of the scenario's; 0: those
	calm    bool // Redis is not stopped
}

// decider asks the contender's decision API.
func (c *contender) decider(b *bench) *estate.Decider {
	return &estate.Decider{URL: "http://" + c.http, Token: b.system.Env["DECISION_TOKEN"]}
}

// EnvoyVersion is the newest commit of envoyproxy/ratelimit that its module
// proxy had when this was written; it has no releases.
const EnvoyVersion = "v1.4.1-0.20260122083618-3fb702589d36"

// A bench is everything that is measured, and measures.
type bench struct {
	dir        string
	root       string
	say        func(format string, args ...any)
	system     *system.System
	redis      *server.Process
	store      *redis.Client
	contenders map[string]*contender
	started    []*server.Process // besides the system's
}

// open starts everything. What has started is closed by close, also after an
// error.
func (b *bench) open(ctx context.Context, o system.Options) (err error) {
	run := server.Run{Say: o.Say}
	if b.root, b.dir, err = system.Scratch(); err != nil {
		return err
	}
	if b.redis, err = server.StartRedis(ctx, filepath.Join(b.dir, "redis"), server.RedisOptions{Run: run}); err != nil {
		return err
	}
	b.started = append(b.started, b.redis)
	b.store = redis.NewClient(&redis.Options{Addr: b.redis.Addr, ReadTimeout: 30 * time.Second})
	o.RedisURL = b.redis.URL
	if b.system, err = system.Open(ctx, o); err != nil {
		return err
	}
	b.contenders = map[string]*contender{}
	for _, start := range []func(context.Context, server.Run) error{b.startOurs, b.startEnvoy, b.startPeers, b.startRaw} {
		if err := start(ctx, run); err != nil {
			return err
		}
	}
	return b.settle(ctx)
}

func (b *bench) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for i := len(b.started) - 1; i > 0; i-- { // Redis last
		errs = append(errs, b.started[i].Stop(ctx))
	}
	if b.system != nil {
		errs = append(errs, b.system.Close(ctx))
	}
	if b.redis != nil {
		errs = append(errs, b.store.Close(), b.redis.Stop(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// settle puts in the rules, and stops what no decision needs: what is left of
// the system is Redis, the broker and the gateways.
func (b *bench) settle(ctx context.Context) error {
	if err := putCatalogue(ctx, b.system.Admin(), b.contenders[ours].decider(b), b.contenders[oursGRPC].decider(b)); err != nil {
		return err
	}
	for _, name := range []string{
		estate.Gateway, estate.Billing, estate.Checkpointer, estate.Watcher, estate.Sample, estate.OutboxRelay, estate.RuleAdmin, estate.Postgres,
	} {
		if p := b.system.Process(name); p != nil {
			if err := p.Stop(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// addresses are n free ones.
func addresses(ctx context.Context, n int) ([]string, error) {
	var all []string
	for range n {
		port, err := server.FreePort(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, "127.0.0.1:"+strconv.Itoa(port))
	}
	return all, nil
}

// startOurs starts a gateway for each engine of its gRPC port, configured as the
// system's own is.
func (b *bench) startOurs(ctx context.Context, _ server.Run) error {
	for _, g := range []struct{ name, engine, other string }{{ours, "h2", oursGRPC}, {oursGRPC, "grpc-go", ours}} {
		at, err := addresses(ctx, 3)
		if err != nil {
			return err
		}
		dir := filepath.Join(b.dir, g.name)
		p, err := b.system.Process(estate.Gateway).Another(ctx, dir, []string{
			"PENSTOCK_LISTEN=" + at[0], "PENSTOCK_GRPC_LISTEN=" + at[1], "PENSTOCK_ADMIN_LISTEN=" + at[2],
			"PENSTOCK_GRPC_ENGINE=" + g.engine, "PENSTOCK_GATEWAY_ID=" + g.name, "PENSTOCK_DATA_DIR=" + filepath.Join(dir, "data"),
		}, server.Answers200("http://"+at[2]+"/ready"))
		if err != nil {
			return err
		}
		b.started = append(b.started, p)
		b.contenders[g.name] = &contender{
			process: p, http: at[0], admin: "http://" + at[2], weight: 1, load: b.loadOurs(at[0], at[1]),
			charged: func(ctx context.Context, t turn) ([]int64, error) { return b.chargedOurs(ctx, g.other, t) },
		}
	}
	many, calm := *b.contenders[ours], *b.contenders[ours]
	many.weight, many.conns, many.load = batch, 8, b.loadBatch(many.http)
	calm.calm = true
	b.contenders[oursBatch], b.contenders[oursCalm] = &many, &calm
	return nil
}

func (b *bench) loadOurs(http, grpc string) func(t turn, l *wire.Load) error {
	return func(t turn, l *wire.Load) error {
		if t.HTTP {
			l.Addr, l.Judge = http, judgeDecisions(1)
			return fill(l, t, func(i int) ([]byte, error) {
				body, err := json.Marshal(t.question(i))
				return post(http, "/v1/decisions", b.system.Env["DECISION_TOKEN"], body), err
			})
		}
		l.Addr, l.Method, l.Judge = grpc, method, judgeRateLimit(1)
		if t.Frozen {
			l.Judge = judgeFrozen
		}
		return fill(l, t, t.limited)
	}
}

// loadBatch asks for many decisions at once: request i for those about the
// subjects from i on.
func (b *bench) loadBatch(http string) func(t turn, l *wire.Load) error {
	return func(t turn, l *wire.Load) error {
		l.Addr, l.Judge = http, judgeDecisions(batch)
		return fill(l, t, func(i int) ([]byte, error) { return b.batchOf(http, t, i, 1) })
	}
}

// batchOf is a request for decisions about subjects i and following, of that
// cost.
func (b *bench) batchOf(host string, t turn, i, cost int) ([]byte, error) {
	questions := make([]map[string]any, batch)
	for k := range questions {
		questions[k] = t.question((i + k) % t.Keys)
		questions[k]["cost"] = cost
	}
	body, err := json.Marshal(map[string]any{"decisions": questions})
	return post(host, "/v1/decisions:batch", b.system.Env["DECISION_TOKEN"], body), err
}

// fill writes the requests.
func fill(l *wire.Load, t turn, request func(i int) ([]byte, error)) (err error) {
	l.Requests = make([][]byte, t.Keys)
	for i := range l.Requests {
		if l.Requests[i], err = request(i); err != nil {
			return err
		}
	}
	return nil
}

// chargedOurs asks a gateway that was not measured what is left of every
// counter: it knows nothing but what Redis does.
func (b *bench) chargedOurs(ctx context.Context, other string, t turn) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	at, rooms := b.contenders[other].http, rooms(t.Service)
	c, err := client.New("http://" + at)
	if err != nil {
		return nil, err
	}
	defer c.CloseIdle()
	charged := make([]int64, t.Rules)
	for i := 0; i < t.Keys; i += batch {
		request, err := b.batchOf(at, t, i, 0)
		if err != nil {
			return nil, err
		}
		var some []int64
		for some == nil { // a look charges nothing, and may be taken again
			err := c.Do(ctx, request, func(status int, body []byte) (err error) {
				some, err = t.charges(rooms, status, body)
				return err
			})
			if err = errors.Join(err, ctx.Err()); err != nil {
				return nil, err
			}
		}
		for k := range charged {
			charged[k] += some[k]
		}
	}
	return charged, nil
}

// charges reads the answer to a batch of looks: the units that are missing of
// each rule's room; nil where Redis did not answer.
func (t turn) charges(rooms []int64, status int, body []byte) ([]int64, error) {
	var answer struct {
		Decisions []struct {
			Degraded bool `json:"degraded"`
			Limits   []struct {
				RuleID    string `json:"rule_id"`
				Remaining int64  `json:"remaining"`
			} `json:"limits"`
		} `json:"decisions"`
	}
	if status != 200 {
		return nil, fmt.Errorf("POST /v1/decisions:batch: %d: %s", status, body)
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	charged := make([]int64, t.Rules)
	for _, d := range answer.Decisions {
		if d.Degraded {
			return nil, nil
		}
		if len(d.Limits) != t.Rules {
			return nil, fmt.Errorf("%d limits, want %d: %+v", len(d.Limits), t.Rules, d)
		}
		for _, l := range d.Limits {
			k, err := strconv.Atoi(strings.TrimPrefix(l.RuleID, t.Service+"-"))
			if err != nil || k < 0 || k >= t.Rules {
				return nil, fmt.Errorf("%s is no rule of %s", l.RuleID, t.Service)
			}
			charged[k] += rooms[k] - l.Remaining
		}
	}
	return charged, nil
}

// startEnvoy builds and starts envoyproxy/ratelimit.
func (b *bench) startEnvoy(ctx context.Context, run server.Run) error {
	path, err := server.Install(ctx, "ratelimit", "github.com/envoyproxy/ratelimit/src/service_cmd", EnvoyVersion, run)
	if err != nil {
		return err
	}
	at, err := addresses(ctx, 3)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, envoy)
	config := filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		return err
	}
	for domain, text := range envoyFiles() {
		if err := os.WriteFile(filepath.Join(config, domain+".yaml"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	env := []string{
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + b.redis.Addr,
		"LOCAL_CACHE_SIZE_IN_BYTES=33554432", // for what it denies
		"DISABLE_STATS=true", "USE_STATSD=false", "LOG_LEVEL=error",
	}
	for i, name := range []string{"", "GRPC_", "DEBUG_"} {
		env = append(env, name+"HOST=127.0.0.1", name+"PORT="+at[i][len("127.0.0.1:"):])
	}
	p, err := server.Start(ctx, server.Spec{
		Name: envoy, Path: path, Dir: dir, Env: env, Ready: server.Answers200("http://" + at[0] + "/healthcheck"), Run: run,
	})
	if err != nil {
		return err
	}
	b.started = append(b.started, p)
	b.contenders[envoy] = &contender{process: p, weight: 1, charged: b.chargedEnvoy, load: func(t turn, l *wire.Load) error {
		if t.HTTP {
			l.Addr, l.Judge = at[0], judgeEnvoyJSON
			return fill(l, t, func(i int) ([]byte, error) {
				body, err := t.envoyJSON(i)
				return post(at[0], "/json", "none", body), err
			})
		}
		l.Addr, l.Method, l.Judge = at[1], method, judgeRateLimit(t.Rules)
		return fill(l, t, t.limitedEach)
	}}
	return nil
}

// startPeers starts the naive design and the empty server.
func (b *bench) startPeers(ctx context.Context, run server.Run) error {
	path, err := server.Build(ctx, b.root, "loadtest", "./peer", run)
	if err != nil {
		return err
	}
	for _, name := range []string{naive, empty} {
		at, err := addresses(ctx, 2)
		if err != nil {
			return err
		}
		args := []string{"-grpc", at[0]}
		c := &contender{weight: 1}
		if name == naive {
			args = append(args, "-http", at[1], "-redis", b.redis.Addr)
			c.charged = b.chargedNaive
		}
		if c.process, err = server.Start(ctx, server.Spec{
			Name: name, Path: path, Args: args, Dir: filepath.Join(b.dir, name), Ready: listens(at[0]), Run: run,
		}); err != nil {
			return err
		}
		b.started = append(b.started, c.process)
		b.contenders[name] = c
		c.load = func(t turn, l *wire.Load) error {
			if t.HTTP {
				return b.loadOurs(at[1], "")(t, l)
			}
			l.Addr, l.Method, l.Judge = at[0], method, judgeRateLimit(t.Rules)
			return fill(l, t, t.limitedEach)
		}
	}
	return nil
}
