package estate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// An entry is one object of the sample catalogue.
type entry struct {
	kind, id string
	body     Object
}

// sampleKeys are the API keys of the sample catalogue and the names under which
// their secrets are kept in keys.env.
func sampleKeys() []struct{ name, id, tenant, application, user string } {
	return []struct{ name, id, tenant, application, user string }{
		{"ACME_KEY", "acme-web-ada", "acme", "acme-web", "ada"},
		{"ACME_BATCH_KEY", "acme-batch", "acme", "acme-batch", ""},
		{"GLOBEX_KEY", "globex-shop", "globex", "globex-shop", "hank"},
		{"INITECH_KEY", "initech-tps", "initech", "initech-tps", "peter"},
	}
}

// catalogue is the sample catalogue without its API keys. What is referred to
// comes before what refers to it.
func catalogue(upstream string) []entry {
	entries := parties()
	for _, service := range []string{"payments", "search", "export"} {
		entries = append(entries, entry{"services", service, Object{
			"upstream": upstream, "path_prefix": "/" + service, "strip_prefix": true, "hosts": []string{},
		}})
	}
	return append(append(entries, endpoints()...), rules()...)
}

func parties() []entry {
	plan := func(id, name string, fee, included int) entry {
		return entry{"plans", id, Object{
			"name": name, "fee": Object{"amount": fee, "currency": "USD", "period": "month"},
			"included": Object{"api-calls": included},
			"overage": []Object{
				{"meter": "api-calls", "up_to": 10 * included, "unit_price": "0.00002"},
				{"meter": "api-calls", "unit_price": "0.00001"},
			},
		}}
	}
	tenant := func(id, name, plan, zone string) entry {
		return entry{"tenants", id, Object{"name": name, "plan": plan, "zone": zone, "currency": "USD"}}
	}
	application := func(id, tenant, name string) entry {
		return entry{"applications", id, Object{"tenant": tenant, "name": name}}
	}
	user := func(id, tenant, name string) entry {
		return entry{"users", id, Object{"tenant": tenant, "name": name}}
	}
	return []entry{
		plan("gold", "Gold", 9900, 100_000), plan("silver", "Silver", 2900, 20_000), plan("free", "Free", 0, 1000),
		tenant("acme", "Acme", "gold", "Europe/Istanbul"),
		tenant("globex", "Globex", "silver", "Europe/Berlin"),
		tenant("initech", "Initech", "free", "America/Chicago"),
		application("acme-web", "acme", "Web shop"), application("acme-batch", "acme", "Night batch"),
		application("globex-shop", "globex", "Shop"), application("initech-tps", "initech", "TPS reports"),
		user("ada", "acme", "Ada"), user("hank", "globex", "Hank"), user("peter", "initech", "Peter"),
	}
}

// Costs of the sample endpoints, in units.
const (
	light = 1
	heavy = 20
)

func endpoints() []entry {
	endpoint := func(id, service, method, path string, cost int) entry {
		return entry{"endpoints", id, Object{"service": service, "method": method, "path": path, "cost": cost}}
	}
	return []entry{
		{"endpoints", "pay", Object{
			"service": "payments", "method": http.MethodPost, "path": "/v1/pay", "cost": light,
			"refund_on": []string{"5xx", "timeout"},
		}},
		endpoint("payment", "payments", http.MethodGet, "/v1/payments/{id}", light),
		endpoint("search", "search", http.MethodGet, "/v1/search", light),
		endpoint("deep-search", "search", http.MethodPost, "/v1/search/deep", heavy),
		endpoint("export", "export", http.MethodPost, "/v1/export", heavy),
		endpoint("export-rows", "export", http.MethodGet, "/v1/exports/{id}", light),
	}
}

func rules() []entry {
	perMinute := func(plan string, limit, burst int) entry {
		return entry{"rules", plan + "-rate", Object{
			"name": plan + " plan: requests a minute", "enabled": true, "mode": "enforce",
			"kind": "rate", "algorithm": "gcra", "subject": []string{"tenant"}, "match": Object{"plan": plan},
			"limit": limit, "window": "60s", "burst": burst, "meter": "api-calls", "on_failure": "open",
		}}
	}
	return []entry{
		perMinute("gold", 6000, 600), perMinute("silver", 1200, 200), perMinute("free", 300, 100),
		{"rules", "acme-burst", Object{
			"name": "Acme: payments a minute", "enabled": true, "mode": "enforce",
			"kind": "rate", "algorithm": "gcra", "subject": []string{"tenant"},
			"match": Object{"tenant": "acme", "service": "payments", "endpoint": "pay"},
			"limit": 30, "window": "60s", "burst": 10, "meter": "api-calls", "on_failure": "open",
		}},
		{"rules", "free-month", Object{
			"name": "free plan: units a month", "enabled": true, "mode": "enforce",
			"kind": "quota", "algorithm": "quota", "subject": []string{"tenant"}, "match": Object{"plan": "free"},
			"limit": 1000, "period": Object{"unit": "month", "count": 1, "alignment": "calendar"},
			"meter": "api-calls", "on_failure": "closed", "thresholds": []int{80, 100},
		}},
		{"rules", "export-per-application", Object{
			"name": "heavy exports an application may run", "enabled": true, "mode": "enforce",
			"kind": "rate", "algorithm": "gcra", "subject": []string{"tenant", "application"},
			"match": Object{"service": "export"},
			"limit": 1200, "window": "1h", "burst": 400, "meter": "export-units", "on_failure": "open",
		}},
		{"rules", "search-per-user", Object{
			"name": "would cut users above 5 searches a second", "enabled": true, "mode": "shadow",
			"kind": "rate", "algorithm": "gcra", "subject": []string{"tenant", "user"},
			"match": Object{"service": "search"},
			"limit": 5, "window": "1s", "burst": 10, "meter": "searches", "on_failure": "open",
		}},
		{"rules", "blocked-network", Object{
			"name": "a network that is kept out", "enabled": true, "mode": "enforce",
			"kind": "block", "match": Object{"networks": []string{"203.0.113.0/24"}},
		}},
	}
}

// seed puts in what is missing of the sample catalogue, and changes nothing
// that is there: people may have edited it.
func (u *undertaking) seed(ctx context.Context) error {
	begun := time.Now()
	admin, created := u.e.Admin(), 0
	for _, e := range catalogue(u.e.Env["UNPROTECTED_URL"]) {
		_, _, err := admin.Get(ctx, e.kind, e.id)
		if errors.Is(err, ErrNotFound) {
			_, _, err = admin.Put(ctx, e.kind, e.id, "", e.body)
			created++
		}
		if err != nil {
			return fmt.Errorf("sample catalogue: %w", err)
		}
	}
	keys, err := u.seedKeys(ctx, admin)
	if err != nil {
		return fmt.Errorf("sample catalogue: %w", err)
	}
	if created += keys; created > 0 {
		tell(u.Say, "%-13s %-22s ready after %.1f s", "catalogue", fmt.Sprintf("%d objects", created), time.Since(begun).Seconds())
	}
	return nil
}

// seedKeys makes the API keys whose secrets are not known: a secret is shown
// once, when its key is made.
func (u *undertaking) seedKeys(ctx context.Context, admin *Admin) (created int, err error) {
	path := filepath.Join(u.Dir, keysFile)
	secrets, err := readEnv(path)
	if err != nil {
		return 0, err
	}
	for _, key := range sampleKeys() {
		_, _, err := admin.Get(ctx, "api-keys", key.id)
		switch {
		case err == nil && secrets[key.name] != "":
			continue
		case err == nil:
			err = admin.Delete(ctx, "api-keys", key.id)
		case errors.Is(err, ErrNotFound):
			err = nil
		}
		if err != nil {
			return created, err
		}
		body := Object{"tenant": key.tenant, "application": key.application}
		if key.user != "" {
			body["user"] = key.user
		}
		made, _, err := admin.Put(ctx, "api-keys", key.id, "", body)
		if err != nil {
			return created, err
		}
		secret, _ := made["secret"].(string)
		if secret == "" {
			return created, fmt.Errorf("PUT api-keys/%s answered no secret", key.id)
		}
		secrets[key.name] = secret
		created++
	}
	if created == 0 {
		return 0, nil
	}
	if err := writeEnv(path, "The API keys of the sample catalogue. Written by make up", secrets); err != nil {
		return created, err
	}
	keys := sampleKeys()
	return created, u.e.awaitKey(ctx, secrets[keys[len(keys)-1].name])
}

// Keys returns the secrets of the sample API keys by their names in keys.env.
func (e *Estate) Keys() (map[string]string, error) {
	return readEnv(filepath.Join(e.Dir, keysFile))
}
