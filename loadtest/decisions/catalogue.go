package decisions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"penstock.dev/deploy/local/estate"
	"penstock.dev/loadtest/system"
)

// The catalogue of the load: tenants with four rules each, and one service with
// one endpoint.
const (
	tenants = 20
	users   = 50 // of each tenant
	service = "loadtest-decisions"
	path    = "/v1/thing"
	// None of the limits is ever reached.
	perMinute = 10_000_000
	perMonth  = 1_000_000_000
)

type object = estate.Object

type catalogue struct {
	admin     *estate.Admin
	deciders  []*estate.Decider
	upstream  string
	questions [][]byte
	keys      []string // secrets
	limit     atomic.Int64
	made      []entry // in the order in which they were made
}

type entry struct{ kind, id string }

func tenant(i int) string { return fmt.Sprintf("loadtest-%02d", i%tenants) }

// makeCatalogue puts in what the load needs and waits until every gateway
// decides by it.
func makeCatalogue(ctx context.Context, s *system.System, upstream string) (*catalogue, error) {
	c := &catalogue{admin: s.Admin(), deciders: s.Deciders(), upstream: upstream}
	c.limit.Store(perMinute)
	err := c.make(ctx)
	if err == nil {
		err = c.awaitGateways(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.remove(context.WithoutCancel(ctx)))
	}
	for i := range tenants * users {
		q, err := json.Marshal(object{
			"tenant": tenant(i), "user": fmt.Sprintf("u%02d", i/tenants), "service": service,
			"method": http.MethodGet, "path": path, "client_ip": "192.0.2.7",
		})
		if err != nil {
			return nil, err
		}
		c.questions = append(c.questions, q)
	}
	return c, nil
}

func (c *catalogue) make(ctx context.Context) error {
	err := errors.Join(
		c.put(ctx, "services", service, object{"upstream": c.upstream, "path_prefix": "/" + service, "strip_prefix": true, "hosts": []string{}}),
		c.put(ctx, "endpoints", service, object{"service": service, "method": http.MethodGet, "path": path, "cost": 1}))
	for i := range tenants {
		id := tenant(i)
		err = errors.Join(err,
			c.put(ctx, "tenants", id, object{"name": "Load test", "zone": "Europe/Istanbul", "currency": "USD"}),
			c.put(ctx, "applications", id, object{"tenant": id, "name": "Load test"}))
		if err == nil {
			err = c.putKey(ctx, id)
		}
		for name, rule := range rules(id) {
			if err == nil {
				err = c.put(ctx, "rules", id+name, rule)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rules are those of one tenant: a rate of the tenant, one of its users, a
// monthly quota, and a rule that only watches.
func rules(tenant string) map[string]object {
	with := func(o object) object {
		o["name"], o["enabled"], o["match"] = "load test", true, object{"tenant": tenant}
		return o
	}
	return map[string]object{
		"-rate": with(rate("enforce", "tenant")),
		"-user": with(rate("enforce", "tenant", "user")),
		"-month": with(object{
			"mode": "enforce", "kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "limit": perMonth,
			"meter": "api-calls", "on_failure": "closed", "period": object{"unit": "month", "count": 1, "alignment": "calendar"},
		}),
		"-watch": with(rate("shadow", "tenant", "ip")),
	}
}

func rate(mode string, subject ...string) object {
	return object{
		"mode": mode, "kind": "rate", "algorithm": "gcra", "subject": subject, "limit": perMinute, "window": "60s",
		"burst": perMinute, "meter": "api-calls", "on_failure": "open",
	}
}

// put creates or replaces an object.
func (c *catalogue) put(ctx context.Context, kind, id string, o object) error {
	tag := "*"
	_, _, err := c.admin.Get(ctx, kind, id)
	if errors.Is(err, estate.ErrNotFound) {
		tag, err = "", nil
	}
	if err == nil {
		_, _, err = c.admin.Put(ctx, kind, id, tag, o)
	}
	if err == nil {
		c.made = append(c.made, entry{kind, id})
	}
	return err
}

// putKey makes an API key: its secret is shown once, when it is made.
func (c *catalogue) putKey(ctx context.Context, tenant string) error {
	if err := c.admin.Delete(ctx, "api-keys", tenant); err != nil && !errors.Is(err, estate.ErrNotFound) {
		return err
	}
	made, _, err := c.admin.Put(ctx, "api-keys", tenant, "", object{"tenant": tenant, "application": tenant})
	if err != nil {
		return err
	}
	secret, ok := made["secret"].(string)
	if !ok {
		return fmt.Errorf("API key %s came without a secret", tenant)
	}
	c.keys = append(c.keys, secret)
	c.made = append(c.made, entry{"api-keys", tenant})
	return nil
}

// remove deletes what was made, last first.
func (c *catalogue) remove(ctx context.Context) error {
	var errs []error
	for i := len(c.made) - 1; i >= 0; i-- {
		if err := c.admin.Delete(ctx, c.made[i].kind, c.made[i].id); !errors.Is(err, estate.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// change gives one of the rules another limit.
func (c *catalogue) change(ctx context.Context, i int) error {
	id := tenant(i)
	o := rules(id)["-rate"]
	o["limit"] = c.limit.Add(1)
	_, _, err := c.admin.Put(ctx, "rules", id+"-rate", "*", o)
	return err
}
