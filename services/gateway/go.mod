module penstock.dev/services/gateway

go 1.26.0

require (
	penstock.dev/schemas v0.0.0
	penstock.dev/services/internal v0.0.0
)

require github.com/google/go-cmp v0.7.0 // indirect

replace (
	penstock.dev/deploy/local => ../../deploy/local
	penstock.dev/schemas => ../../schemas
	penstock.dev/services/internal => ../internal
)
