module penstock.dev/schemas

go 1.26
