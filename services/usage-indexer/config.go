package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"time"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/usage-indexer/esindex"
	"penstock.dev/services/usage-indexer/topics"
)

type config struct {
	kafka       kafka.Knobs
	store       esindex.Config
	flavor      string
	adminListen string
	writers     int
	aside       string
	replicas    int // of the topic for what is set aside
	check       bool
}

func knobs(c *config, getenv func(string) string) *conf.Set {
	s := conf.New("usage-indexer", getenv)
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9093", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	c.kafka.Register(s)
	s.Strings(&c.store.URLs, "elasticsearch-url", "http://127.0.0.1:9200", "Elasticsearch or OpenSearch, URL list of its nodes, used in turn")
	s.String(&c.store.User, "elasticsearch-user", "", "user there; empty: none")
	s.Secret(&c.store.Password, "elasticsearch-password", "password of that user")
	s.Secret(&c.store.APIKey, "elasticsearch-api-key", "API key there, base64 of id:key, instead of a user")
	s.String(&c.store.CAFile, "elasticsearch-ca-file", "", "PEM file of who may sign its certificates; empty: whom the system trusts")
	s.String(&c.flavor, "elasticsearch-flavor", string(esindex.Either), "which store must answer there: elasticsearch, opensearch, or auto for either")
	s.Duration(&c.store.Timeout, "elasticsearch-timeout", 30*time.Second, "for one request, 1s-10m; what is applied later is not applied twice")
	s.String(&c.store.Prefix, "index-prefix", "ratelimit-usage", "beginning of index names, before -YYYY.MM.DD, and name of the index template")
	s.Int(&c.store.Retention, "retention", 30, "days that documents are kept, 0-10000; 0 keeps them for ever")
	s.Int(&c.store.Replicas, "replicas", 1, "replicas of an index made from now on, 0-10")
	s.Duration(&c.store.Refresh, "refresh", 5*time.Second, "how soon a document is found, in an index made from now on, 100ms-10m")
	s.Int(&c.store.BatchDocs, "batch", 5000, "most documents of one request, 1-50000")
	s.Int(&c.store.BatchBytes, "batch-bytes", 8<<20, "most bytes of one request, 65536-104857600")
	s.Int(&c.writers, "writers", 2, "requests at the same time, 1-64")
	s.String(&c.aside, "dlq-topic", topics.Aside, "topic for records that cannot be indexed")
	s.Int(&c.replicas, "topic-replicas", 0, "replicas of that topic when it is created, 0-9; 0 leaves it to the brokers")
	return s
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	err := c.parse(knobs(&c, getenv), args)
	return c, err
}

func (c *config) parse(s *conf.Set, args []string, more ...func() error) error {
	if err := s.Parse(args); err != nil {
		return err
	}
	c.check = s.Check()
	c.store.Flavor = esindex.Flavor(c.flavor)
	faults := []error{c.Validate()}
	for _, m := range more {
		faults = append(faults, m())
	}
	return conf.Refuse(faults...)
}

// prefixes are what both stores take as the beginning of an index name, and of a
// template's.
var prefixes = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,99}$`)

// Validate returns every fault at once.
func (c *config) Validate() error {
	var faults []error
	refuse := func(ok bool, knob, format string, a ...any) {
		if !ok {
			faults = append(faults, fault(knob, format, a...))
		}
	}
	refuse(c.adminListen != "", "admin-listen", "empty")
	refuse(len(c.store.URLs) > 0, "elasticsearch-url", "empty")
	for i, u := range c.store.URLs {
		refuse(isURL(u), "elasticsearch-url", "item %d is not an http(s) URL of a host", i+1)
	}
	named, secret := c.store.User != "", c.store.Password.Reveal() != ""
	refuse(named == secret, "elasticsearch-password", "goes with -elasticsearch-user, and one of them is empty")
	refuse(c.store.APIKey.Reveal() == "" || !named, "elasticsearch-api-key", "is instead of -elasticsearch-user, and both are set")
	refuse(c.store.Flavor == esindex.Either || c.store.Flavor == esindex.Elasticsearch || c.store.Flavor == esindex.OpenSearch,
		"elasticsearch-flavor", "%q is not elasticsearch, opensearch or auto", c.flavor)
	refuse(within(c.store.Timeout, time.Second, 10*time.Minute), "elasticsearch-timeout", "%v is not 1s-10m", c.store.Timeout)
	refuse(prefixes.MatchString(c.store.Prefix), "index-prefix", "%q is not 1-100 of a-z 0-9 _ . -, beginning with a letter", c.store.Prefix)
	refuse(within(c.store.Retention, 0, 10_000), "retention", "%d is not 0-10000", c.store.Retention)
	refuse(within(c.store.Replicas, 0, 10), "replicas", "%d is not 0-10", c.store.Replicas)
	refuse(within(c.store.Refresh, 100*time.Millisecond, 10*time.Minute) && c.store.Refresh%time.Millisecond == 0,
		"refresh", "%v is not 100ms-10m in whole milliseconds", c.store.Refresh)
	refuse(within(c.store.BatchDocs, 1, 50_000), "batch", "%d is not 1-50000", c.store.BatchDocs)
	refuse(within(c.store.BatchBytes, 64<<10, 100<<20), "batch-bytes", "%d is not 65536-104857600", c.store.BatchBytes)
	refuse(within(c.writers, 1, 64), "writers", "%d is not 1-64", c.writers)
	refuse(topicNames.MatchString(c.aside), "dlq-topic", "%q is not 1-249 of a-z A-Z 0-9 . _ -", c.aside)
	refuse(within(c.replicas, 0, 9), "topic-replicas", "%d is not 0-9", c.replicas)
	return errors.Join(append(faults, c.kafka.Validate())...)
}

var topicNames = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func fault(knob, format string, a ...any) error {
	return fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), fmt.Errorf(format, a...))
}

func within[T int | time.Duration](v, least, most T) bool { return v >= least && v <= most }

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// indexing is what the domain of the service is told.
func (c *config) indexing() topics.Config {
	return topics.Config{Retention: c.store.Retention, Batch: c.store.BatchDocs, Writers: c.writers}
}
