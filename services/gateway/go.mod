module penstock.dev/services/gateway

go 1.26.0

require (
	github.com/prometheus/client_golang v1.25.0
	penstock.dev/services/internal v0.0.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/go-cmp v0.7.0
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.23.0 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	penstock.dev/deploy/local v0.0.0 // indirect
)

replace (
	penstock.dev/deploy/local => ../../deploy/local
	penstock.dev/schemas => ../../schemas
	penstock.dev/services/internal => ../internal
)
