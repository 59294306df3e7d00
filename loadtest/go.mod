module penstock.dev/loadtest

go 1.26

require (
	penstock.dev/deploy/local v0.0.0
	penstock.dev/schemas v0.0.0
)

replace (
	penstock.dev/deploy/local => ../deploy/local
	penstock.dev/schemas => ../schemas
)
