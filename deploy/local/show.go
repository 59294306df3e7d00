package main

import (
	"net/url"
	"strings"

	"penstock.dev/deploy/local/estate"
)

// showAddresses lists where everything is.
func showAddresses(s *screen, e *estate.Estate) {
	database, _, _ := strings.Cut(withoutPassword(e.Env["DATABASE_URL"]), "?")
	store := "Elasticsearch"
	if e.Process(estate.OpenSearch) != nil {
		store = "OpenSearch"
	}
	pairs := [][2]string{
		{"gateway", e.Env["GATEWAY_URL"]},
		{"second gateway", e.Env["GATEWAY_URL_2"]},
		{"gateway (gRPC)", e.Env["GATEWAY_GRPC"]},
		{"second gateway (gRPC)", e.Env["GATEWAY_GRPC_2"]},
		{"unprotected upstream", e.Env["UNPROTECTED_URL"]},
		{"rule-admin (REST)", e.Env["ADMIN_URL"]},
		{"billing (REST, portal)", e.Env["BILLING_URL"]},
		{"gateway's API reference", e.Env["GATEWAY_URL"] + "/v1/openapi.json"},
		{"rule-admin's API reference", e.Env["ADMIN_URL"] + "/openapi.json"},
		{"billing's API reference", e.Env["BILLING_URL"] + "/openapi.json"},
		{"gateway's metrics", e.Env["GATEWAY_METRICS_URL"] + "/metrics"},
		{"Kafka", e.Env["KAFKA_BROKERS"]},
		{"schema registry", e.Env["SCHEMA_REGISTRY_URL"]},
		{store, withoutPassword(e.Env["ELASTICSEARCH_URL"])},
		{"Redis", withoutPassword(e.Env["REDIS_URL"])},
		{"PostgreSQL", database},
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

func withoutPassword(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

const tries = `
  # twelve payments, of which acme may make ten at once
  for i in $(seq 12); do curl -s -o /dev/null -w '%{http_code} ' -X POST \
    -H "X-API-Key: $ACME_KEY" $GATEWAY_URL/payments/v1/pay; done; echo

  # every answer carries the limits
  curl -si -H "X-API-Key: $GLOBEX_KEY" "$GATEWAY_URL/search/v1/search?q=tea"

  # raise acme's limit, then pay again
  curl -s -X PUT -H "Authorization: Bearer $ADMIN_TOKEN" -H 'If-Match: *' \
    $ADMIN_URL/v1/rules/acme-burst --json '{"kind": "rate", "algorithm": "gcra",
    "subject": ["tenant"], "match": {"tenant": "acme", "service": "payments",
    "endpoint": "pay"}, "limit": 600, "window": "60s", "burst": 100}'

  # a decision without traffic; cost 0 asks and charges nothing
  curl -s -H "Authorization: Bearer $DECISION_TOKEN" \
    $GATEWAY_URL/v1/decisions --json '{"tenant": "acme", "service": "payments",
    "method": "POST", "path": "/v1/pay", "cost": 0}'`

// finds is shown when there is a search store.
const finds = `
  # who was refused during the last hour, and where
  curl -s "$ELASTICSEARCH_URL/ratelimit-usage-*/_search?filter_path=hits.hits" \
    --json '{"query": {"bool": {"filter": [{"term": {"statusCode": 429}},
    {"range": {"ts": {"gte": "now-1h"}}}]}}}'`

// showTries prints commands to copy into a shell, after those that read the
// estate's files from the directory under.
func showTries(s *screen, e *estate.Estate, under string, samples bool) {
	s.print("\n  In another shell, here:\n")
	s.print("  set -a; . %s/estate.env", under)
	if !samples {
		s.print("  set +a")
		return
	}
	s.print("  . %s/keys.env; set +a", under)
	s.print("%s", tries)
	if e.Env["ELASTICSEARCH_URL"] != "" {
		s.print("%s", finds)
	}
}
