package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"penstock.dev/deploy/local/estate"
)

type object = estate.Object

// burst is what passes at once under every rule but the one that denies: more
// than one run asks for. A unit takes so long to come back, 36 s and more, that
// what was charged during a run can be told from what is left.
const burst = 1000

// rules are those of each service, all of which apply to each of its requests.
func rules() map[string][]object {
	const day = 24 * time.Hour
	all := map[string][]object{
		"bench-1": {rate("open", 100, time.Hour, burst, "tenant", "user")},
		"bench-6": {
			rate("open", 100, time.Hour, burst, "tenant", "user"),
			rate("open", 50, 30*time.Minute, burst, "tenant", "ip"),
			rate("open", 2000, day, burst, "tenant", "application"),
			rate("open", 10_000, 7*day, burst, "tenant", "application", "user"),
			rate("open", 500, 6*time.Hour, burst, "tenant", "user", "ip"),
			rate("open", 50_000, 30*day, burst, "tenant", "application", "ip"),
		},
		"bench-denied": {rate("open", 1, day, 1, "tenant", "user")},
		"bench-hot":    {rate("open", 100, time.Hour, 1000*burst, "tenant", "user")},
		"bench-leased": {rate("open", 100, time.Hour, 1000*burst, "tenant", "user")},
	}
	all["bench-leased"][0]["lease"] = object{"units": 100, "ttl": "1s"}
	for _, service := range frozenServices {
		mode := strings.TrimPrefix(service, "bench-")
		all[service] = []object{rate(mode, 1_000_000, time.Second, 1000*burst, "tenant", "user")}
	}
	return all
}

func rate(onFailure string, limit int, window time.Duration, burst int, subject ...string) object {
	return object{
		"name": "bench", "mode": "enforce", "enabled": true, "kind": "rate", "algorithm": "gcra", "subject": subject,
		"limit": limit, "window": fmt.Sprintf("%ds", int(window.Seconds())), "burst": burst, "meter": "api-calls", "on_failure": onFailure,
	}
}

// rooms are what the counters of a service's rules hold at most.
func rooms(service string) []int64 {
	var all []int64
	for _, rule := range rules()[service] {
		n, _ := rule["burst"].(int)
		all = append(all, int64(n))
	}
	return all
}

// putCatalogue puts in tenants, services and rules, and waits until each of the
// gateways decides by them.
func putCatalogue(ctx context.Context, admin *estate.Admin, gateways ...*estate.Decider) error {
	for i := range tenants {
		if _, _, err := admin.Put(ctx, "tenants", tenant(i), "", object{"name": "Bench", "zone": "UTC", "currency": "USD"}); err != nil {
			return err
		}
	}
	for service, list := range rules() {
		if _, _, err := admin.Put(ctx, "services", service, "", object{
			"upstream": "http://127.0.0.1:9", "path_prefix": "/" + service, "strip_prefix": true, "hosts": []string{},
		}); err != nil {
			return err
		}
		for i, rule := range list {
			rule["match"] = object{"service": service}
			if _, _, err := admin.Put(ctx, "rules", fmt.Sprintf("%s-%d", service, i), "", rule); err != nil {
				return err
			}
		}
	}
	for _, d := range gateways {
		if err := await(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// await waits until a gateway decides by all rules.
func await(ctx context.Context, d *estate.Decider) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for service, list := range rules() {
		question := turn{Scenario: Scenario{Service: service, Rules: len(list), Keys: 1}}.question(0)
		question["cost"], question["method"] = 0, http.MethodGet
		for {
			got, err := d.Decide(ctx, question)
			if err == nil && len(got.Limits) == len(list) {
				break
			}
			select {
			case <-ctx.Done():
				return errors.Join(fmt.Errorf("%s does not decide by the rules of %s: %+v", d.URL, service, got), err)
			case <-tick.C:
			}
		}
	}
	return nil
}

// envoyConfig is the same limits for envoyproxy/ratelimit, whose windows are
// fixed: none of them is reached but the one that denies.
const envoyConfig = `domain: %s
descriptors:
`

// envoyFiles are its files by domain.
func envoyFiles() map[string]string {
	limit := func(k int, unit string, units int) string {
		return fmt.Sprintf("  - key: k%d\n    rate_limit: {unit: %s, requests_per_unit: %d}\n", k, unit, units)
	}
	files := map[string]string{
		"bench-1":      limit(0, "hour", 1_000_000),
		"bench-denied": limit(0, "day", 1),
	}
	for k, unit := range []string{"hour", "minute", "hour", "day", "minute", "hour"} {
		files["bench-6"] += limit(k, unit, 1_000_000)
	}
	for domain := range files {
		files[domain] = fmt.Sprintf(envoyConfig, domain) + files[domain]
	}
	return files
}
