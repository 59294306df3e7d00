package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"penstock.dev/services/internal/conf"
	"penstock.dev/services/internal/counters"
	"penstock.dev/services/internal/kafka"
	"penstock.dev/services/rule-admin/httpapi"
)

type config struct {
	listen      string
	adminListen string
	databaseURL conf.Secret
	databaseMax int
	kafka       kafka.Knobs // the registry only
	redisURL    conf.Secret // empty: no counter store
	cluster     bool
	tokens      conf.Secret
	timeout     time.Duration
	keep        time.Duration
	check       bool
}

func knobs(c *config, getenv func(string) string) *conf.Set {
	s := conf.New("rule-admin", getenv)
	s.String(&c.listen, "listen", "127.0.0.1:8090", "REST, host:port")
	s.String(&c.adminListen, "admin-listen", "127.0.0.1:9090", "admin port, host:port: /metrics, /live, /ready, /debug/pprof")
	s.Secret(&c.databaseURL, "database-url", "PostgreSQL that holds the catalogue, postgres://…; the user must own its tables")
	s.Int(&c.databaseMax, "database-connections", 10, "connections to PostgreSQL at most, 2-1000")
	c.kafka.Register(s, kafka.OnlyRegistry)
	s.Secret(&c.redisURL, "redis-url", "counter store, redis://[user:password@]host:port[/db], rediss:// or unix://; empty: usage answers 503, and no top-up expires")
	s.Bool(&c.cluster, "redis-cluster", false, "redis-url names a node of a Redis Cluster, and more of them as ?addr=host:port&addr=host:port")
	s.Secret(&c.tokens, "tokens", "bearer tokens, comma list of name:role:token; role admin or readonly, token at least 16 characters; the name is the audit's actor")
	s.Duration(&c.timeout, "request-timeout", 5*time.Second, "how long one request may wait for PostgreSQL, 100ms-1m; then 503")
	s.Duration(&c.keep, "outbox-keep", 7*24*time.Hour, "how long an outbox row stays after a newer one has replaced it, at least 1m; longer than the relay may be away")
	return s
}

func parseConfig(args []string, getenv func(string) string) (config, error) {
	var c config
	s := knobs(&c, getenv)
	if err := s.Parse(args); err != nil {
		return config{}, err
	}
	c.check = s.Check()
	return c, c.Validate()
}

// Validate returns every fault at once.
func (c config) Validate() error {
	var faults []error
	refuse := func(ok bool, knob, format string, a ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("-%s (%s): %w", knob, conf.Env(knob), fmt.Errorf(format, a...)))
		}
	}
	refuse(c.listen != "", "listen", "empty")
	refuse(c.adminListen != "", "admin-listen", "empty")
	refuse(c.databaseURL.Reveal() != "", "database-url", "empty")
	refuse(c.databaseMax >= 2 && c.databaseMax <= 1000, "database-connections", "%d is not 2-1000", c.databaseMax)
	faults = append(faults, c.kafka.Validate())
	if c.redisURL.Reveal() != "" {
		err := c.counters().Validate()
		refuse(err == nil, "redis-url", "%w", err)
	}
	refuse(c.redisURL.Reveal() != "" || !c.cluster, "redis-cluster", "needs -redis-url")
	refuse(c.timeout >= 100*time.Millisecond && c.timeout <= time.Minute, "request-timeout", "%v is not 100ms-1m", c.timeout)
	refuse(c.keep >= time.Minute, "outbox-keep", "%v is less than 1m", c.keep)
	_, err := parseTokens(c.tokens)
	refuse(err == nil, "tokens", "%w", err)
	return conf.Refuse(errors.Join(faults...))
}

// redisBudget is how long one call to the counter store may take: a page of
// usage reads thousands of counters.
const redisBudget = time.Second

func (c config) counters() counters.Config {
	return counters.Config{URL: c.redisURL.Reveal(), Cluster: c.cluster, Budget: redisBudget}
}

// minToken is the shortest token, in characters: guessing must be hopeless.
const minToken = 16

var actorName = regexp.MustCompile(`^[A-Za-z0-9._~@-]{1,64}$`)

// parseTokens reads name:role:token,… Its errors never repeat a token.
func parseTokens(list conf.Secret) ([]httpapi.Token, error) {
	var tokens []httpapi.Token
	seen := map[string]bool{}
	for item := range strings.SplitSeq(list.Reveal(), ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		name, rest, _ := strings.Cut(item, ":")
		role, secret, ok := strings.Cut(rest, ":")
		n := len(tokens) + 1
		switch {
		case !ok || !actorName.MatchString(name):
			return nil, fmt.Errorf("item %d is not name:role:token with a name of 1-64 of A-Z a-z 0-9 . _ ~ @ -", n)
		case role != httpapi.RoleAdmin && role != httpapi.RoleReadonly:
			return nil, fmt.Errorf("item %d, %s: role is not admin or readonly", n, name)
		case len(secret) < minToken || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
			return nil, fmt.Errorf("item %d, %s: token is not at least %d printable characters", n, name, minToken)
		case seen[secret]:
			return nil, fmt.Errorf("item %d, %s: token is another's too", n, name)
		}
		seen[secret] = true
		tokens = append(tokens, httpapi.Token{Actor: name, Role: role, Secret: secret})
	}
	if len(tokens) == 0 {
		return nil, errors.New("empty")
	}
	return tokens, nil
}
