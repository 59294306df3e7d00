package main

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"penstock.dev/services/billing/access"
	"penstock.dev/services/billing/postgres"
	"penstock.dev/services/billing/topics"
	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/kafka"
)

type config struct {
	listen      string
	adminListen string
	databaseURL conf.Secret
	databaseMax int
	kafka       kafka.Knobs
	batch       int
	replicas    int // of the topic for what is set aside
	atRisk      time.Duration
	issuer      string
	prefix      string
	grace       time.Duration
	every       time.Duration
	timeout     time.Duration
	tokens      conf.Secret
	portalKeys  conf.Secret
	portalURL   string
	secure      bool // the portal is reached by https
	signing     []access.Key
	operators   []string // tokens
	check       bool
}

func knobs(c *config, getenv func(string) string) *conf.Set {
	s := conf.New("billing", getenv)
	s.String(&c.listen, "listen", "127.0.0.1:8096", "the API and the portal, host:port")
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9096", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	s.Secret(&c.databaseURL, "database-url", "PostgreSQL that holds the books, postgres://…; the user must own its tables")
	s.Int(&c.databaseMax, "database-connections", 10, "connections to PostgreSQL at most, 4-1000")
	c.kafka.Register(s)
	s.Int(&c.batch, "batch", 5000, "most events of one transaction, 1-50000")
	s.Int(&c.replicas, "topic-replicas", 0, "replicas of the topic for what is set aside when it is created, 0-9; 0 leaves it to the brokers")
	s.Duration(&c.atRisk, "lag-alarm", 5*24*time.Hour, "how long an event may wait uncounted before /ready fails and the log says so, 1m-168h; usage.v1 keeps 168h")
	s.String(&c.issuer, "issuer", "penstock", "who bills, 1-64 bytes; invoice numbers have no gaps per issuer")
	s.String(&c.prefix, "invoice-prefix", "INV", "beginning of invoice numbers, 1-16 of A-Z a-z 0-9; one for each issuer of a database")
	s.Duration(&c.grace, "grace", time.Hour, "between a period's end and its invoice, 0s-720h: what comes later is a line of the next one")
	s.Duration(&c.every, "finalize-every", time.Minute, "how often due invoices are looked for, 100ms-1h")
	s.Duration(&c.timeout, "request-timeout", 5*time.Second, "how long one request may wait for PostgreSQL, 100ms-1m; then 503")
	s.Secret(&c.tokens, "tokens", "bearer tokens of operators, who issue portal tokens: comma list, each at least 16 characters")
	s.Secret(&c.portalKeys, "portal-keys", "keys that sign portal tokens, comma list of id:seed; the seed is 32 bytes in base64; the first signs, all verify")
	s.String(&c.portalURL, "portal-url", "http://127.0.0.1:8096", "how customers reach this service, http(s)://host; with https cookies are for https alone")
	return s
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	err := c.parse(knobs(&c, getenv), args)
	return c, err
}

func (c *config) parse(s *conf.Set, args []string) error {
	if err := s.Parse(args); err != nil {
		return err
	}
	c.check = s.Check()
	return conf.Refuse(c.Validate())
}

var prefixes = regexp.MustCompile(`^[A-Za-z0-9]{1,16}$`)

// Validate returns every fault at once, and reads the keys.
func (c *config) Validate() error {
	var faults []error
	refuse := func(ok bool, knob, format string, a ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), fmt.Errorf(format, a...)))
		}
	}
	refuse(c.listen != "", "listen", "empty")
	refuse(c.adminListen != "", "admin-listen", "empty")
	refuse(c.databaseURL.Reveal() != "", "database-url", "empty")
	refuse(c.databaseMax >= 4 && c.databaseMax <= 1000, "database-connections", "%d is not 4-1000", c.databaseMax)
	refuse(c.batch >= 1 && c.batch <= 50_000, "batch", "%d is not 1-50000", c.batch)
	refuse(c.replicas >= 0 && c.replicas <= 9, "topic-replicas", "%d is not 0-9", c.replicas)
	refuse(within(c.atRisk, time.Minute, 7*24*time.Hour), "lag-alarm", "%v is not 1m-168h", c.atRisk)
	refuse(c.issuer != "" && len(c.issuer) <= 64, "issuer", "%q is not 1-64 bytes", c.issuer)
	refuse(prefixes.MatchString(c.prefix), "invoice-prefix", "%q is not 1-16 of A-Z a-z 0-9", c.prefix)
	refuse(within(c.grace, 0, 720*time.Hour), "grace", "%v is not 0s-720h", c.grace)
	refuse(within(c.every, 100*time.Millisecond, time.Hour), "finalize-every", "%v is not 100ms-1h", c.every)
	refuse(within(c.timeout, 100*time.Millisecond, time.Minute), "request-timeout", "%v is not 100ms-1m", c.timeout)
	secure, ok := base(c.portalURL)
	refuse(ok, "portal-url", "%q is not http(s)://host", c.portalURL)
	c.secure = secure
	var err error
	c.operators, err = operators(c.tokens)
	refuse(err == nil, "tokens", "%w", err)
	c.signing, err = access.ParseKeys(c.portalKeys.Reveal())
	refuse(err == nil, "portal-keys", "%w", err)
	return errors.Join(append(faults, c.kafka.Validate())...)
}

func within(v, least, most time.Duration) bool { return v >= least && v <= most }

// books is how the books are kept.
func (c *config) books() postgres.Config {
	return postgres.Config{URL: c.databaseURL.Reveal(), MaxConns: c.databaseMax, Issuer: c.issuer, Prefix: c.prefix, Grace: c.grace}
}

// counting is how events are counted.
func (c *config) counting() topics.Config {
	return topics.Config{Batch: c.batch, Replicas: int16(c.replicas), AtRisk: c.atRisk}
}
