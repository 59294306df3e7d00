module penstock.dev/services/threshold-watcher

go 1.26.0

require (
	penstock.dev/schemas v0.0.0
	penstock.dev/services/internal v0.0.0
	pgregory.net/rapid v1.3.0
)

replace (
	penstock.dev/deploy/local => ../../deploy/local
	penstock.dev/schemas => ../../schemas
	penstock.dev/services/internal => ../internal
)
