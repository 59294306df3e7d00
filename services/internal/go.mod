module penstock.dev/services/internal

go 1.26

require penstock.dev/deploy/local v0.0.0

replace penstock.dev/deploy/local => ../../deploy/local
