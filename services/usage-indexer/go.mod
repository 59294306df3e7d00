module penstock.dev/services/usage-indexer

go 1.26.0

require (
	github.com/elastic/elastic-transport-go/v8 v8.9.0
	github.com/elastic/go-elasticsearch/v8 v8.19.7
	github.com/google/go-cmp v0.7.0
	github.com/prometheus/client_golang v1.25.0
	penstock.dev/deploy/local v0.0.0
	penstock.dev/schemas v0.0.0
	penstock.dev/services/internal v0.0.0
	pgregory.net/rapid v1.3.0
)

replace (
	penstock.dev/deploy/local => ../../deploy/local
	penstock.dev/schemas => ../../schemas
	penstock.dev/services/internal => ../internal
)
