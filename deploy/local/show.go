package main

import (
	"penstock.dev/deploy/local/estate"
)

// showAddresses lists where everything is.
func showAddresses(s *screen, e *estate.Estate) {
	pairs := [][2]string{
		{"gateway", e.Env["GATEWAY_URL"]},
		{"second gateway", e.Env["GATEWAY_URL_2"]},
		{"the same upstream, unprotected", e.Env["UNPROTECTED_URL"]},
		{"rule-admin (REST)", e.Env["ADMIN_URL"]},
		{"metrics of the gateway", e.Env["GATEWAY_METRICS_URL"] + "/metrics"},
		{"Kafka", e.Env["KAFKA_BROKERS"]},
		{"schema registry", e.Env["SCHEMA_REGISTRY_URL"]},
		{"Redis", e.Env["REDIS_URL"]},
		{"PostgreSQL", e.Env["DATABASE_URL"]},
	}
	shown := pairs[:0]
	for _, p := range pairs {
		if p[1] != "" {
			shown = append(shown, p)
		}
	}
	s.print("")
	s.list(shown)
}

// showTries prints commands to copy: with the values in them, or with the names
// of estate.env and keys.env.
func showTries(s *screen, e *estate.Estate, values bool) {
	keys, err := e.Keys()
	if err != nil || len(keys) == 0 {
		return
	}
	v := func(name string) string {
		switch {
		case !values:
			return "$" + name
		case keys[name] != "":
			return keys[name]
		default:
			return e.Env[name]
		}
	}
	s.print("\n  Things to try:")
	s.print("\n  # twelve payments, of which acme may make ten at once")
	s.print("  for i in $(seq 12); do curl -s -o /dev/null -w '%%{http_code} ' -X POST \\")
	s.print("    -H \"X-API-Key: %s\" %s/payments/v1/pay; done; echo", v("ACME_KEY"), v("GATEWAY_URL"))
	s.print("\n  # the limits on every answer")
	s.print("  curl -si -H \"X-API-Key: %s\" \"%s/search/v1/search?q=tea\"", v("GLOBEX_KEY"), v("GATEWAY_URL"))
	s.print("\n  # raise the limit, then pay again")
	s.print("  curl -s -H \"Authorization: Bearer %s\" \\\n    %s/v1/rules/acme-burst", v("ADMIN_TOKEN"), v("ADMIN_URL"))
	s.print("  curl -s -X PUT -H \"Authorization: Bearer %s\" -H 'If-Match: *' \\\n    %s/v1/rules/acme-burst -d '{\"kind\": \"rate\", \"algorithm\": \"gcra\",", v("ADMIN_TOKEN"), v("ADMIN_URL"))
	s.print("    \"subject\": [\"tenant\"], \"match\": {\"tenant\": \"acme\", \"service\": \"payments\",")
	s.print("    \"endpoint\": \"pay\"}, \"limit\": 600, \"window\": \"60s\", \"burst\": 100}'")
	s.print("\n  # a decision without traffic (cost 0 only asks)")
	s.print("  curl -s -H \"Authorization: Bearer %s\" %s/v1/decisions \\", v("DECISION_TOKEN"), v("GATEWAY_URL"))
	s.print("    -d '{\"tenant\": \"acme\", \"service\": \"payments\", \"method\": \"POST\",")
	s.print("    \"path\": \"/v1/pay\", \"cost\": 0}'")
}
