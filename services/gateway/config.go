package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"penstock.dev/services/gateway/canon"
	"penstock.dev/services/gateway/grpcapi"
	"penstock.dev/services/gateway/proxyapi"
	"penstock.dev/services/gateway/receipt"
	"penstock.dev/services/gateway/topics"
	"penstock.dev/services/gateway/topics/usage"
	"penstock.dev/services/internal/boot"
	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
)

// A config is the knobs of the gateway. Their meaning, units and defaults are
// in knobs, their reasons here.
type config struct {
	listen      string
	grpcListen  string // apart: a face that only trusted callers use
	grpcEngine  string // the one of ours costs a tenth; the other has streams
	adminListen string // apart from traffic, and on loopback unless somebody decides otherwise
	gatewayID   string

	broker      kafka.Knobs
	redisURL    conf.Secret   // may hold a password
	redisBudget time.Duration // what a client waits at most because of us
	denyCache   int           // 720 bytes each, and 430 more for each limit of several
	leases      int           // about a kilobyte each
	cluster     bool          // said and not found out: a start must not wait for Redis
	adopt       bool          // only where there is no checkpointer: what a store lost is sold again
	unsafe      string        // a warning by default: a gateway that does not start protects nobody

	decisionTokens []string // from a secret: who holds one may spend any tenant's limits
	receiptKeys    conf.Secret
	trusted        []string // nobody by default: a header is only a claim
	forwarded      bool

	dataDir       string
	snapshotWait  time.Duration // the log is the truth and usually there within a second
	snapshotEvery time.Duration // bounds what a kill costs, and the writing

	usageBuffer   int           // seconds of a busy gateway's events, until the disk takes over
	usageSpool    int           // how long an outage of Kafka may last
	usageLinger   time.Duration // an event is no answer: it may wait for company
	usageSync     time.Duration // what an outage of Kafka and a power cut together may cost
	hashAddresses conf.Secret   // who may see usage.v1 need not see addresses
	topicReplicas int

	connectTimeout  time.Duration
	responseTimeout time.Duration
	idleTimeout     time.Duration
	drain           time.Duration // below boot.Grace, which is for all parts

	check    bool
	proxies  canon.Proxies // trusted, parsed
	receipts receipt.Keys  // receiptKeys, parsed
}

// What is done about an unsafe counter store.
const (
	warnUnsafe   = "warn"
	refuseUnsafe = "refuse"
)

// Bounds of the knobs about usage events, in bytes.
const (
	minBuffer, maxBuffer = 4 << 20, 4 << 30
	minSpool, maxSpool   = 16 << 20, 1 << 40
)

const (
	maxDenyCache = 1 << 24
	maxLeases    = 1 << 20
)

// minToken is the least length of a decision token and of the secret of
// addresses, in bytes: 128 random bits in base64 have 22.
const minToken = 16

func knobs(c *config, tokens *conf.Secret, getenv func(string) string) *conf.Set {
	s := conf.New("gateway", getenv)
	s.String(&c.listen, "listen", ":8080", "data port, host:port: proxied traffic and /v1/decisions, HTTP/1.1 and HTTP/2 without TLS")
	s.String(&c.grpcListen, "grpc-listen", "", "port of the gRPC faces, host:port, HTTP/2 without TLS; empty: none")
	s.String(&c.grpcEngine, "grpc-engine", string(grpcapi.H2), "what serves the gRPC faces: h2, or grpc-go, which also has reflection and health's Watch")
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9080", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	s.String(&c.gatewayID, "gateway-id", "gateway", "name of this gateway among others, in its log and at Kafka; 1-64 of A-Z a-z 0-9 . _ -")
	c.broker.Register(s)
	s.Secret(&c.redisURL, "redis-url", "counter store, redis://[user:password@]host:port[/db], rediss:// or unix://")
	s.Duration(&c.redisBudget, "redis-budget", counters.DefaultBudget, "longest wait for the counter store per decision, 1ms-10s; then the rules' failure modes decide")
	s.Int(&c.denyCache, "deny-cache", 65536, "denials that are repeated for as long as they hold, 1 s at most, without asking the counter store, 1-16777216; 0: none")
	s.Int(&c.leases, "leases", 16384, "counters of rules with a lease of which units are held in this gateway at a time, 1-1048576; 0: every request asks the counter store")
	s.Bool(&c.cluster, "redis-cluster", false, "redis-url names a node of a Redis Cluster, and more of them as ?addr=host:port&addr=host:port")
	s.Bool(&c.adopt, "adopt-store", false, "for a system without a checkpointer: count on in a counter store that was emptied, replaced or restarted, with what it holds; false: quotas and wallets are left to their failure modes until the checkpointer has restored it")
	s.String(&c.unsafe, "unsafe-store", warnUnsafe, "what to do about a counter store that deletes counters when its memory is full, or keeps no append-only file while there are wallets: warn, or refuse to start")
	s.Secret(tokens, "decision-tokens", "bearer tokens of trusted callers of /v1/decisions and of gRPC, comma-separated, 16 bytes or more each; none: nobody may ask")
	s.Secret(&c.receiptKeys, "receipt-keys", "keys of receipts, id:secret,id2:secret2, secrets of 16 bytes or more, the same for all gateways: the first signs, all verify; none: no receipts, so no refund and no settlement is asked for")
	s.Strings(&c.trusted, "trusted-proxies", "", "networks in CIDR notation whose X-Forwarded-For is believed, and that may ask the rate limit service without a token; none by default")
	s.Bool(&c.forwarded, "forwarded", false, "trusted proxies say the client in Forwarded (RFC 7239) and not in X-Forwarded-For")
	s.String(&c.dataDir, "data-dir", "data", "directory of the rules' snapshot and of usage events on disk, made when missing, of this gateway alone; empty: neither, and no start without Kafka")
	s.Duration(&c.snapshotWait, "snapshot-wait", 3*time.Second, "time for reading rules.v1 at the start before the snapshot decides, 0s-10m")
	s.Duration(&c.snapshotEvery, "snapshot-every", 5*time.Second, "least time between two snapshots, 1s-1h; writing takes a twentieth of the time at most")
	s.Int(&c.usageBuffer, "usage-buffer", 32<<20, "memory for usage events that Kafka does not have yet, bytes, 4194304-4294967296; 393216 a partition at least")
	s.Int(&c.usageSpool, "usage-spool", 1<<30, "disk for usage events while Kafka is away, bytes, 16777216-1099511627776, below data-dir; 0: none")
	s.Duration(&c.usageLinger, "usage-linger", 5*time.Millisecond, "time a usage event waits for company before it is sent, 0s-1s")
	s.Duration(&c.usageSync, "usage-sync", time.Second, "least time between two syncs of usage events on disk, 10ms-1m")
	s.Secret(&c.hashAddresses, "hash-addresses", "secret of 16 bytes or more under which usage events tell client addresses as an HMAC, the same for all gateways; none: as they are")
	s.Int(&c.topicReplicas, "topic-replicas", 0, "replicas of usage.v1 when the gateway creates it, 0-9; 0 leaves it to the brokers")
	s.Duration(&c.connectTimeout, "connect-timeout", 5*time.Second, "longest wait for a connection to an upstream, 1ms-10m; a service may name its own")
	s.Duration(&c.responseTimeout, "response-timeout", 60*time.Second, "longest wait for an upstream's headers, 1ms-1h; a service may name its own")
	s.Duration(&c.idleTimeout, "idle-timeout", 5*time.Minute, "longest silence of a running stream, 1ms-24h; a service may name its own")
	s.Duration(&c.drain, "drain", 10*time.Second, "time for requests in flight when the gateway stops, 100ms-15s; then they are cut")
	return s
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	var tokens conf.Secret
	s := knobs(&c, &tokens, getenv)
	if err := s.Parse(args); err != nil {
		return config{}, err
	}
	c.check = s.Check()
	for token := range strings.SplitSeq(tokens.Reveal(), ",") {
		if token = strings.TrimSpace(token); token != "" {
			c.decisionTokens = append(c.decisionTokens, token)
		}
	}
	return c, c.Validate()
}

// Validate returns every fault at once, and fills in what is derived.
func (c *config) Validate() error {
	var faults []error
	refuse := func(err error, knob string) {
		if err != nil {
			faults = append(faults, fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), err))
		}
	}
	refuse(hostPort(c.listen), "listen")
	if c.grpcListen != "" {
		refuse(hostPort(c.grpcListen), "grpc-listen")
	}
	if e := grpcapi.Engine(c.grpcEngine); e != grpcapi.H2 && e != grpcapi.GRPCGo {
		refuse(fmt.Errorf("%q is not %s or %s", e, grpcapi.H2, grpcapi.GRPCGo), "grpc-engine")
	}
	refuse(hostPort(c.adminListen), "admin-listen")
	refuse(name(c.gatewayID), "gateway-id")
	if c.unsafe != warnUnsafe && c.unsafe != refuseUnsafe {
		refuse(fmt.Errorf("%q is not warn or refuse", c.unsafe), "unsafe-store")
	}
	faults = append(faults, c.broker.Validate())
	if c.redisURL.Reveal() == "" {
		refuse(errors.New("empty"), "redis-url")
	} else {
		refuse(counters.Config{URL: c.redisURL.Reveal(), Budget: counters.DefaultBudget, Cluster: c.cluster}.Validate(), "redis-url")
	}
	var err error
	c.receipts, err = receipt.ParseKeys(c.receiptKeys.Reveal())
	refuse(err, "receipt-keys")
	for _, token := range c.decisionTokens {
		if len(token) < minToken {
			refuse(fmt.Errorf("one has %d bytes, want at least %d", len(token), minToken), "decision-tokens")
		}
	}
	c.proxies = nil
	for _, text := range c.trusted {
		n, err := netip.ParsePrefix(text)
		refuse(err, "trusted-proxies")
		if err == nil {
			c.proxies = append(c.proxies, n.Masked())
		}
	}
	if n := len(c.hashAddresses.Reveal()); n > 0 && n < minToken {
		refuse(fmt.Errorf("has %d bytes, want at least %d", n, minToken), "hash-addresses")
	}
	for _, f := range append(c.durations(), c.numbers()...) {
		refuse(f.err, f.knob)
	}
	return conf.Refuse(errors.Join(faults...))
}

// A fault is what is wrong with a knob.
type fault struct {
	knob string
	err  error
}

// durations are the faults of the knobs that are one.
func (c *config) durations() (faults []fault) {
	for _, d := range []struct {
		knob          string
		value         time.Duration
		least, atMost time.Duration
	}{
		{"redis-budget", c.redisBudget, counters.MinBudget, counters.MaxBudget},
		{"snapshot-wait", c.snapshotWait, 0, 10 * time.Minute},
		{"snapshot-every", c.snapshotEvery, time.Second, time.Hour},
		{"usage-linger", c.usageLinger, 0, time.Second},
		{"usage-sync", c.usageSync, 10 * time.Millisecond, time.Minute},
		{"connect-timeout", c.connectTimeout, time.Millisecond, 10 * time.Minute},
		{"response-timeout", c.responseTimeout, time.Millisecond, time.Hour},
		{"idle-timeout", c.idleTimeout, time.Millisecond, 24 * time.Hour},
		{"drain", c.drain, 100 * time.Millisecond, 15 * time.Second},
	} {
		if d.value < d.least || d.value > d.atMost {
			faults = append(faults, fault{d.knob, fmt.Errorf("%v, want %v to %v", d.value, d.least, d.atMost)})
		}
	}
	return faults
}

// numbers are the faults of the knobs that are one.
func (c *config) numbers() (faults []fault) {
	for _, n := range []struct {
		knob                 string
		value, least, atMost int
	}{
		{"deny-cache", c.denyCache, 0, maxDenyCache},
		{"leases", c.leases, 0, maxLeases},
		{"usage-buffer", c.usageBuffer, minBuffer, maxBuffer},
		{"usage-spool", c.usageSpool, minSpool, maxSpool},
		{"topic-replicas", c.topicReplicas, 0, 9},
	} {
		off := n.knob == "usage-spool" && n.value == 0
		if !off && (n.value < n.least || n.value > n.atMost) {
			faults = append(faults, fault{n.knob, fmt.Errorf("%d, want %d to %d", n.value, n.least, n.atMost)})
		}
	}
	return faults
}

func hostPort(s string) error {
	_, _, err := net.SplitHostPort(s)
	return err
}

func name(s string) error {
	marks := strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
	if s == "" || len(s) > 64 || marks != "" {
		return fmt.Errorf("%q is not 1-64 of A-Z a-z 0-9 . _ -", s)
	}
	return nil
}

func (c *config) kafka() kafka.Config {
	return usage.Producing(c.broker.Config(c.gatewayID))
}

func (c *config) usage(stopping <-chan struct{}) usage.Config {
	u := usage.Config{
		Gateway: c.gatewayID, Buffer: c.usageBuffer, Spool: int64(c.usageSpool), Linger: c.usageLinger, Sync: c.usageSync,
		Secret: c.hashAddresses.Reveal(), Replicas: int16(c.topicReplicas), Stopping: stopping, Grace: boot.Grace,
	}
	if c.dataDir != "" {
		u.Dir = filepath.Join(c.dataDir, "usage")
	}
	return u
}

func (c *config) counters() counters.Config {
	return counters.Config{URL: c.redisURL.Reveal(), Budget: c.redisBudget, Cluster: c.cluster, Adopt: c.adopt}
}

func (c *config) rules() topics.Config {
	return topics.Config{Dir: c.dataDir, Wait: c.snapshotWait, Every: c.snapshotEvery}
}

func (c *config) grpc() grpcapi.Config {
	return grpcapi.Config{Engine: grpcapi.Engine(c.grpcEngine), Listen: c.grpcListen, Drain: c.drain}
}

func (c *config) proxy() proxyapi.Config {
	return proxyapi.Config{
		Listen: c.listen, Trusted: c.proxies, Forwarded: c.forwarded,
		ConnectTimeout: c.connectTimeout, ResponseTimeout: c.responseTimeout, IdleTimeout: c.idleTimeout, Drain: c.drain,
	}
}
