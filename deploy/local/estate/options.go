package estate

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"penstock.dev/deploy/local/server"
)

// The two kinds of Kafka.
const (
	Embedded = "embedded" // the development broker of deploy/local
	Real     = "real"     // Apache Kafka
)

// What decisions are searched in.
const (
	WithElasticsearch = "elasticsearch"
	WithOpenSearch    = "opensearch"
	WithoutSearch     = "none" // no store and no usage-indexer
)

// DefaultPortBase is where the ports of `make up` begin. DemoPortBase is the
// demo's, so that it can run beside it.
const (
	DefaultPortBase = 18000
	DemoPortBase    = 18500
)

// Options say which estate is wanted, and how it is run.
type Options struct {
	Root string // the clone; empty means the one around the working directory
	Dir  string // of the estate; empty means .run in the clone
	// Detach lets the processes outlive this one. Otherwise they die with it.
	Detach bool
	// Volatile trades durability against a crash of the machine for speed.
	Volatile bool
	Say      func(string) // progress; nil drops it
	// Knobs are PENSTOCK_NAME=value for every service that this call starts. Those that
	// the estate sets itself win.
	Knobs []string

	// What follows is kept with the data: the variables of make.

	PortBase int    // ports PortBase to PortBase+99; 0 picks free ones
	Gateways int    // 1 or 2; 0 means 1
	Samples  bool   // a sample catalogue, put in when it is not there
	Kafka    string // Embedded or Real; empty means Embedded
	// Search is WithElasticsearch, WithOpenSearch or WithoutSearch. Empty means
	// WithoutSearch, which is up 10 s sooner, unless ElasticsearchURL is given.
	Search string

	// Servers that somebody else runs; the estate then starts none of that kind.
	RedisURL          string
	DatabaseURL       string
	KafkaBrokers      string // comma-separated
	SchemaRegistryURL string // required with KafkaBrokers
	ElasticsearchURL  string // of an Elasticsearch or OpenSearch; may hold user and password
}

// variables are the part of Options that belongs to an estate's data.
type variables struct {
	PortBase          int    `json:"port_base"`
	Gateways          int    `json:"gateways"`
	Samples           bool   `json:"samples"`
	Kafka             string `json:"kafka"`
	Search            string `json:"search"`
	RedisURL          string `json:"redis_url,omitempty"`
	DatabaseURL       string `json:"database_url,omitempty"`
	KafkaBrokers      string `json:"kafka_brokers,omitempty"`
	SchemaRegistryURL string `json:"schema_registry_url,omitempty"`
	ElasticsearchURL  string `json:"elasticsearch_url,omitempty"`
}

func (o Options) variables() variables {
	o = o.withDefaults()
	return variables{
		o.PortBase, o.Gateways, o.Samples, o.Kafka, o.Search,
		o.RedisURL, o.DatabaseURL, o.KafkaBrokers, o.SchemaRegistryURL, o.ElasticsearchURL,
	}
}

func (o Options) withDefaults() Options {
	if o.Gateways == 0 {
		o.Gateways = 1
	}
	if o.Kafka == "" {
		o.Kafka = Embedded
	}
	if o.Search == "" && o.ElasticsearchURL != "" {
		o.Search = WithElasticsearch
	}
	o.Search = cmp.Or(o.Search, WithoutSearch)
	return o
}

// located fills in where the clone and the estate are.
func (o Options) located() (Options, error) {
	var err error
	if o.Root == "" {
		if o.Root, err = server.Root(); err != nil {
			return o, err
		}
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(o.Root, ".run")
	}
	o.Dir, err = filepath.Abs(o.Dir)
	return o, err
}

// Validate returns every fault at once.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	refuse := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	refuse(o.PortBase == 0 || o.PortBase >= 1024 && o.PortBase+portBlock <= 1<<16,
		"PORT_BASE=%d: want 1024 to %d", o.PortBase, 1<<16-portBlock)
	refuse(o.Gateways == 1 || o.Gateways == 2, "GATEWAYS=%d: want 1 or 2", o.Gateways)
	refuse(o.Kafka == Embedded || o.Kafka == Real, "KAFKA=%s: want %s or %s", o.Kafka, Embedded, Real)
	refuse((o.KafkaBrokers == "") == (o.SchemaRegistryURL == ""),
		"KAFKA_BROKERS and SCHEMA_REGISTRY_URL are given together or not at all")
	refuse(o.Search == WithElasticsearch || o.Search == WithOpenSearch || o.Search == WithoutSearch,
		"search store %s: want %s, %s or %s", o.Search, WithElasticsearch, WithOpenSearch, WithoutSearch)
	refuse(o.ElasticsearchURL == "" || o.Search == WithElasticsearch,
		"ELASTICSEARCH_URL is given without OPENSEARCH=1 or SEARCH=0")
	refuse(urlOf(o.RedisURL, "redis", "rediss"), "REDIS_URL: want redis://host:port/0")
	refuse(urlOf(o.DatabaseURL, "postgres", "postgresql"), "DATABASE_URL: want postgres://user@host:port/database")
	refuse(urlOf(o.SchemaRegistryURL, "http", "https"), "SCHEMA_REGISTRY_URL: want http://host:port")
	refuse(urlOf(o.ElasticsearchURL, "http", "https"), "ELASTICSEARCH_URL: want http://host:port")
	return errors.Join(faults...)
}

// urlOf reports whether s is empty or a URL of one of the schemes.
func urlOf(s string, schemes ...string) bool {
	u, err := url.Parse(s)
	return s == "" || err == nil && u.Host != "" && strings.Contains(" "+strings.Join(schemes, " ")+" ", " "+u.Scheme+" ")
}

// portBlock is how many ports from PortBase belong to an estate.
const portBlock = 100

// offsets lay out the block. Clients' ports come first, servers' from 10,
// admin ports from 20.
func offsets() map[string]int {
	return map[string]int{
		Gateway: 0, Gateway2: 1, Sample: 2, RuleAdmin: 3, Billing: 4,
		Gateway + grpcSuffix: 5, Gateway2 + grpcSuffix: 6,
		Redis: 10, Postgres: 11, Kafka: 12, Registry: 13, controller: 14, registryKafka: 15,
		search: 16, searchTransport: 17,
		Gateway + adminSuffix: 20, Gateway2 + adminSuffix: 21,
		RuleAdmin + adminSuffix: 22, OutboxRelay + adminSuffix: 23,
		UsageIndexer + adminSuffix: 24, Watcher + adminSuffix: 25, Checkpointer + adminSuffix: 26, Billing + adminSuffix: 27,
	}
}

// Ports that belong to no process's name.
const (
	controller      = "kafka-controller"
	registryKafka   = "registry-kafka"   // what the development broker opens besides its registry
	search          = "search"           // Elasticsearch or OpenSearch
	searchTransport = "search-transport" // what either opens besides
	adminSuffix     = "-admin"
	grpcSuffix      = "-grpc" // the gRPC faces of a gateway
)
