module penstock.dev/deploy/acceptance

go 1.26.0

require penstock.dev/deploy/local v0.0.0

replace (
	penstock.dev/deploy/local => ../local
	penstock.dev/schemas => ../../schemas
)
