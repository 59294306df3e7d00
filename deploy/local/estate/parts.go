package estate

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"penstock.dev/deploy/local/server"
)

// Stages.
const (
	servers   = iota // Redis, PostgreSQL, Kafka
	control          // rule-admin, which makes the tables that others read
	data             // everything else, but for
	searching        // the search store, which takes longest, and its indexer: beside all others
)

// ruleAdminDatabase is the one that rule-admin owns.
const ruleAdminDatabase = "rule_admin"

// stopService is longer than the 20 s in which a service stops by itself.
const stopService = 25 * time.Second

// needTools gets everything that Debian has in one call.
func (u *undertaking) needTools(ctx context.Context) error {
	var tools []server.Tool
	if u.v.RedisURL == "" {
		tools = append(tools, server.Redis)
	}
	if u.v.DatabaseURL == "" {
		tools = append(tools, server.Postgres)
	}
	if u.v.Kafka == Real && u.v.KafkaBrokers == "" || u.store() != "" {
		tools = append(tools, server.Java)
	}
	return server.Need(ctx, server.Run{Say: u.Say}, tools...)
}

// build compiles what will be started of this clone, one after the other: the
// compiler uses every core by itself.
func (u *undertaking) build(ctx context.Context) error {
	begun, built := time.Now(), 0
	for _, c := range []struct{ process, module, pkg string }{
		{RuleAdmin, "services/rule-admin", "."},
		{OutboxRelay, "services/outbox-relay", "."},
		{Gateway, "services/gateway", "."},
		{Sample, "deploy/local", "./sample"},
		{Watcher, "services/threshold-watcher", "."},
		{UsageIndexer, "services/usage-indexer", "."},
		{Checkpointer, "services/checkpointer", "."},
		{Billing, "services/billing", "."},
	} {
		if c.process == UsageIndexer && u.v.Search == WithoutSearch {
			continue
		}
		if slices.Contains(u.running, c.process) && (c.process != Gateway || u.v.Gateways == 1 || slices.Contains(u.running, Gateway2)) {
			continue
		}
		if _, err := server.Build(ctx, u.Root, c.module, c.pkg, server.Run{Say: u.Say}); err != nil {
			return fmt.Errorf("%s: %w", c.process, err)
		}
		built++
	}
	if built > 0 {
		tell(u.Say, "%-13s %-22s ready after %.1f s", "services", "compiled", time.Since(begun).Seconds())
	}
	return nil
}

// parts are the processes of this estate.
func (u *undertaking) parts() []part {
	var parts []part
	if u.v.RedisURL == "" {
		parts = append(parts, part{Redis, servers, u.ports(Redis), u.startRedis})
	}
	if u.v.DatabaseURL == "" {
		parts = append(parts, part{Postgres, servers, u.ports(Postgres), u.startPostgres})
	}
	switch {
	case u.v.KafkaBrokers != "":
	case u.v.Kafka == Real:
		parts = append(parts,
			part{Kafka, servers, u.ports(Kafka, controller), u.startKafka},
			part{Registry, servers, u.ports(Registry, registryKafka), u.startRegistry})
	default:
		parts = append(parts, part{Kafka, servers, u.ports(Kafka, Registry), u.startBroker})
	}
	parts = append(parts,
		part{RuleAdmin, control, u.ports(RuleAdmin, RuleAdmin+adminSuffix), u.startRuleAdmin},
		part{Sample, data, u.ports(Sample), u.startSample},
		part{OutboxRelay, data, u.ports(OutboxRelay + adminSuffix), u.startOutboxRelay},
		part{Watcher, data, u.ports(Watcher + adminSuffix), u.startWatcher},
		part{Checkpointer, data, u.ports(Checkpointer + adminSuffix), u.startCheckpointer},
		part{Billing, data, u.ports(Billing, Billing+adminSuffix), u.startBilling},
		part{Gateway, data, u.ports(Gateway, Gateway+grpcSuffix, Gateway+adminSuffix), u.gateway(Gateway)})
	if u.v.Gateways > 1 {
		parts = append(parts, part{Gateway2, data, u.ports(Gateway2, Gateway2+grpcSuffix, Gateway2+adminSuffix), u.gateway(Gateway2)})
	}
	return append(parts, u.searchParts()...)
}

// store is the search store that this estate starts, empty when it starts none.
func (u *undertaking) store() string {
	switch {
	case u.v.ElasticsearchURL != "" || u.v.Search == WithoutSearch:
		return ""
	case u.v.Search == WithOpenSearch:
		return OpenSearch
	default:
		return Elasticsearch
	}
}

func (u *undertaking) searchParts() []part {
	var parts []part
	if store := u.store(); store != "" {
		start := u.startElasticsearch
		if store == OpenSearch {
			start = u.startOpenSearch
		}
		parts = append(parts, part{store, searching, u.ports(search, searchTransport), start})
	}
	if u.v.Search != WithoutSearch {
		parts = append(parts, part{UsageIndexer, searching, u.ports(UsageIndexer + adminSuffix), u.startUsageIndexer})
	}
	return parts
}

func (u *undertaking) ports(names ...string) []int {
	ports := make([]int, len(names))
	for i, name := range names {
		ports[i] = u.state.Ports[name]
	}
	return ports
}

func (u *undertaking) addr(name string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(u.state.Ports[name]))
}

func (u *undertaking) startRedis(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartRedis(ctx, u.dir(Redis), server.RedisOptions{Port: u.state.Ports[Redis], AppendOnly: true, Run: run})
}

func (u *undertaking) startPostgres(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartPostgres(ctx, u.dir(Postgres), server.PostgresOptions{
		Port: u.state.Ports[Postgres], Volatile: u.Volatile, Databases: []string{ruleAdminDatabase}, Run: run,
	})
}

func (u *undertaking) startBroker(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartBroker(ctx, u.dir(Kafka), server.BrokerOptions{
		KafkaPort: u.state.Ports[Kafka], RegistryPort: u.state.Ports[Registry], Run: run,
	})
}

func (u *undertaking) startKafka(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartKafka(ctx, u.dir(Kafka), server.KafkaOptions{
		Port: u.state.Ports[Kafka], ControllerPort: u.state.Ports[controller], Run: run,
	})
}

// startRegistry runs the development broker for its registry only.
func (u *undertaking) startRegistry(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartBroker(ctx, u.dir(Registry), server.BrokerOptions{
		Name: Registry, KafkaPort: u.state.Ports[registryKafka], RegistryPort: u.state.Ports[Registry], Run: run,
	})
}

func (u *undertaking) startElasticsearch(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartElasticsearch(ctx, u.dir(Elasticsearch), server.ElasticsearchOptions{
		Port: u.state.Ports[search], TransportPort: u.state.Ports[searchTransport], Run: run,
	})
}

func (u *undertaking) startOpenSearch(ctx context.Context, run server.Run) (*server.Process, error) {
	return server.StartOpenSearch(ctx, u.dir(OpenSearch), server.OpenSearchOptions{
		Port: u.state.Ports[search], TransportPort: u.state.Ports[searchTransport], Run: run,
	})
}

func (u *undertaking) startSample(ctx context.Context, run server.Run) (*server.Process, error) {
	addr := u.addr(Sample)
	return server.Start(ctx, server.Spec{
		Name: Sample, Path: filepath.Join(u.Root, "bin", "sample"), Args: []string{"-listen", addr},
		Dir: u.dir(Sample), Addr: addr, URL: "http://" + addr,
		Ready: server.Answers200("http://" + addr + "/hits"), Run: run,
	})
}

func (u *undertaking) startRuleAdmin(ctx context.Context, run server.Run) (*server.Process, error) {
	return u.service(ctx, RuleAdmin, RuleAdmin, run, map[string]string{
		"LISTEN":          u.addr(RuleAdmin),
		"DATABASE_URL":    u.e.Env["DATABASE_URL"],
		"REDIS_URL":       u.e.Env["REDIS_URL"],
		"SCHEMA_REGISTRY": u.e.Env["SCHEMA_REGISTRY_URL"],
		"TOKENS":          "admin:admin:" + u.state.Tokens[adminToken] + ",readonly:readonly:" + u.state.Tokens[readonlyToken],
	})
}

func (u *undertaking) startOutboxRelay(ctx context.Context, run server.Run) (*server.Process, error) {
	return u.service(ctx, OutboxRelay, OutboxRelay, run, map[string]string{
		"DATABASE_URL":  u.e.Env["DATABASE_URL"],
		"KAFKA_BROKERS": u.e.Env["KAFKA_BROKERS"],
	})
}

// startCheckpointer saves and sweeps often, so that whoever tries what a lost Redis
// comes to need not wait. Its tables are in a schema of their own.
func (u *undertaking) startCheckpointer(ctx context.Context, run server.Run) (*server.Process, error) {
	return u.service(ctx, Checkpointer, Checkpointer, run, map[string]string{
		"DATABASE_URL":     u.e.Env["DATABASE_URL"],
		"KAFKA_BROKERS":    u.e.Env["KAFKA_BROKERS"],
		"SCHEMA_REGISTRY":  u.e.Env["SCHEMA_REGISTRY_URL"],
		"REDIS_URL":        u.e.Env["REDIS_URL"],
		"CHECKPOINT_EVERY": "5s",
		"SWEEP_EVERY":      "5s",
	})
}

// startBilling makes invoices some seconds after their periods, so that whoever tries
// hourly plans sees them. Its tables are in a schema of their own.
func (u *undertaking) startBilling(ctx context.Context, run server.Run) (*server.Process, error) {
	return u.service(ctx, Billing, Billing, run, map[string]string{
		"LISTEN":          u.addr(Billing),
		"DATABASE_URL":    u.e.Env["DATABASE_URL"],
		"KAFKA_BROKERS":   u.e.Env["KAFKA_BROKERS"],
		"SCHEMA_REGISTRY": u.e.Env["SCHEMA_REGISTRY_URL"],
		"TOKENS":          u.state.Tokens[billingToken],
		"PORTAL_KEYS":     "estate:" + u.state.PortalKey,
		"PORTAL_URL":      "http://" + u.addr(Billing),
		"GRACE":           "5s",
		"FINALIZE_EVERY":  "1s",
	})
}

// startWatcher is noticed as soon as brokers allow when it is killed.
func (u *undertaking) startWatcher(ctx context.Context, run server.Run) (*server.Process, error) {
	return u.service(ctx, Watcher, Watcher, run, map[string]string{
		"KAFKA_BROKERS":       u.e.Env["KAFKA_BROKERS"],
		"SCHEMA_REGISTRY":     u.e.Env["SCHEMA_REGISTRY_URL"],
		"INSTANCE":            "estate",
		"SESSION_TIMEOUT":     "6s",
		"TRANSACTION_TIMEOUT": "6s",
	})
}

// startUsageIndexer makes documents that are found a second after the decision,
// on a store of one node, and keeps them until the estate's data is forgotten:
// events of any day can be tried.
func (u *undertaking) startUsageIndexer(ctx context.Context, run server.Run) (*server.Process, error) {
	store, err := url.Parse(u.e.Env["ELASTICSEARCH_URL"])
	if err != nil {
		return nil, fmt.Errorf("ELASTICSEARCH_URL: %w", err)
	}
	user := store.User
	store.User = nil
	password, _ := user.Password()
	return u.service(ctx, UsageIndexer, UsageIndexer, run, map[string]string{
		"KAFKA_BROKERS":          u.e.Env["KAFKA_BROKERS"],
		"SCHEMA_REGISTRY":        u.e.Env["SCHEMA_REGISTRY_URL"],
		"ELASTICSEARCH_URL":      store.String(),
		"ELASTICSEARCH_USER":     user.Username(),
		"ELASTICSEARCH_PASSWORD": password,
		"REFRESH":                "1s",
		"REPLICAS":               "0",
		"RETENTION":              "0",
	})
}

// gateway listens on every address, so that 127.0.0.2 and so on can play other
// clients; only 127.0.0.1 is believed when it names a client.
func (u *undertaking) gateway(name string) func(context.Context, server.Run) (*server.Process, error) {
	return func(ctx context.Context, run server.Run) (*server.Process, error) {
		return u.service(ctx, name, Gateway, run, map[string]string{
			"LISTEN":          ":" + strconv.Itoa(u.state.Ports[name]),
			"GRPC_LISTEN":     ":" + strconv.Itoa(u.state.Ports[name+grpcSuffix]),
			"KAFKA_BROKERS":   u.e.Env["KAFKA_BROKERS"],
			"SCHEMA_REGISTRY": u.e.Env["SCHEMA_REGISTRY_URL"],
			"REDIS_URL":       u.e.Env["REDIS_URL"],
			"DECISION_TOKENS": u.state.Tokens[decisionToken],
			"RECEIPT_KEYS":    "estate:" + u.state.ReceiptKey,
			"TRUSTED_PROXIES": "127.0.0.1/32",
			"DATA_DIR":        filepath.Join(u.dir(name), "data"),
			"GATEWAY_ID":      name,
		})
	}
}

// service runs a service's binary with its knobs in the environment, and waits
// for /ready on its admin port.
func (u *undertaking) service(ctx context.Context, name, binary string, run server.Run, knobs map[string]string) (*server.Process, error) {
	admin := u.addr(name + adminSuffix)
	knobs["ADMIN_LISTEN"] = admin
	spec := server.Spec{
		Name: name, Path: filepath.Join(u.Root, "bin", binary), Env: u.knobs(knobs), Dir: u.dir(name),
		Ready:      server.Answers200("http://" + admin + "/ready"),
		StopWithin: stopService, Run: run,
	}
	if port := u.state.Ports[name]; port != 0 {
		spec.Addr = u.addr(name)
		spec.URL = "http://" + spec.Addr
	}
	return server.Start(ctx, spec)
}

// knobs are a service's environment: what the caller wants, and after it, so that it wins,
// what the estate needs.
func (u *undertaking) knobs(own map[string]string) []string {
	env := slices.Clone(u.Knobs)
	for _, knob := range slices.Sorted(maps.Keys(own)) {
		env = append(env, "PENSTOCK_"+knob+"="+own[knob])
	}
	return env
}

// env is what estate.env will hold: addresses and tokens of what there is.
func (u *undertaking) env() map[string]string {
	web := func(name string) string { return "http://" + u.addr(name) }
	env := map[string]string{
		"GATEWAY_URL":              web(Gateway),
		"GATEWAY_GRPC":             u.addr(Gateway + grpcSuffix),
		"GATEWAY_METRICS_URL":      web(Gateway + adminSuffix),
		"UNPROTECTED_URL":          web(Sample),
		"ADMIN_URL":                web(RuleAdmin),
		"RULE_ADMIN_METRICS_URL":   web(RuleAdmin + adminSuffix),
		"OUTBOX_RELAY_METRICS_URL": web(OutboxRelay + adminSuffix),
		"BILLING_URL":              web(Billing),
		"BILLING_METRICS_URL":      web(Billing + adminSuffix),
		"KAFKA_BROKERS":            u.addr(Kafka),
		"SCHEMA_REGISTRY_URL":      web(Registry),
		"REDIS_URL":                "redis://" + u.addr(Redis) + "/0",
		"DATABASE_URL":             "postgres://postgres@" + u.addr(Postgres) + "/" + ruleAdminDatabase + "?sslmode=disable",
	}
	env["THRESHOLD_WATCHER_METRICS_URL"], env["CHECKPOINTER_METRICS_URL"] = web(Watcher+adminSuffix), web(Checkpointer+adminSuffix)
	if u.v.Search != WithoutSearch {
		env["ELASTICSEARCH_URL"], env["USAGE_INDEXER_METRICS_URL"] = web(search), web(UsageIndexer+adminSuffix)
	}
	if u.v.Gateways > 1 {
		env["GATEWAY_URL_2"], env["GATEWAY_METRICS_URL_2"] = web(Gateway2), web(Gateway2+adminSuffix)
		env["GATEWAY_GRPC_2"] = u.addr(Gateway2 + grpcSuffix)
	}
	for name, value := range map[string]string{
		"KAFKA_BROKERS": u.v.KafkaBrokers, "SCHEMA_REGISTRY_URL": u.v.SchemaRegistryURL,
		"REDIS_URL": u.v.RedisURL, "DATABASE_URL": u.v.DatabaseURL, "ELASTICSEARCH_URL": u.v.ElasticsearchURL,
	} {
		if value != "" {
			env[name] = value
		}
	}
	for name, token := range u.state.Tokens {
		env[name] = token
	}
	return env
}
