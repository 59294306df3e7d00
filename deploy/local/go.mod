module penstock.dev/deploy/local

go 1.26
