# Penstock. `make` lists the targets; README.md tells what they show.
#
# Variables are given on the command line and reach the programs as they are:
#   demo, up, down   CI=1  PORT_BASE=20000  KAFKA=real  GATEWAYS=2  SAMPLES=0  WIPE=1
#                    OPENSEARCH=1  SEARCH=0
#                    REDIS_URL=  DATABASE_URL=  KAFKA_BROKERS=  SCHEMA_REGISTRY_URL=  ELASTICSEARCH_URL=
#   acceptance       KAFKA=real
#   bench            ARGS='-only grpc_1rule_64,open_1000 -rounds 1 -verdict'
#   bench-all        ARGS='-benchtime 3s'
#   load             ARGS='-for 10s -env .run/estate.env'

MODULE     := penstock.dev
GO_VERSION := 1.26
SERVICES   := $(filter-out internal,$(notdir $(patsubst %/,%,$(wildcard services/*/))))
MODULES     = $(shell go list -m -f '{{.Dir}}')

# The race detector needs a C compiler; everything else needs only Go.
RACE       := $(if $(shell command -v gcc 2>/dev/null || command -v clang 2>/dev/null),-race)

CACHE      := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/penstock
LINT       := 2.15.0
LINTER     := $(CACHE)/tools/golangci-lint-$(LINT)

COMMA         := ,
SHELL         := /bin/bash
.SHELLFLAGS   := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# timed runs a command under a heading and says how long it took, also when it
# failed.
define timed
@echo "== $(1)"; began=$$SECONDS; code=0; { $(2); } || code=$$?; \
echo "== $(1): $$(( SECONDS - began )) s$$( [ $$code = 0 ] || echo ', FAILED')"; exit $$code
endef

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: check
check: # Says exactly what is missing before anything starts
	@command -v go >/dev/null || { echo "go is missing: Penstock needs Go $(GO_VERSION) or newer on the PATH (https://go.dev/doc/install)" >&2; exit 1; }; \
	have=$$(go env GOVERSION 2>/dev/null | sed -E 's/^go([0-9]+\.[0-9]+).*/\1/'); \
	[ -n "$$have" ] && [ "$$(printf '%s\n' $(GO_VERSION) "$$have" | sort -V | head -n 1)" = $(GO_VERSION) ] || \
	{ echo "go is too old: Penstock needs Go $(GO_VERSION) or newer, and $$(command -v go) is $$(GOTOOLCHAIN=local go version | cut -d' ' -f3) (https://go.dev/doc/install)" >&2; exit 1; }

.PHONY: demo
demo: bin/local ## Start everything, prove it on sample traffic, stay up until Ctrl-C (CI=1: exit by itself)
	@bin/local demo

.PHONY: up
up: bin/local ## Start everything in the background and write .run/estate.env
	@bin/local up

.PHONY: down
down: bin/local ## Stop what make up started (WIPE=1: and forget the data)
	@bin/local down

.PHONY: bin/local
bin/local: check
	@go build -C deploy/local -trimpath -o $(CURDIR)/bin/local .

.PHONY: build
build: check $(SERVICES:%=build-%) ## Build every service, each on its own
build-%:
	GOWORK=off go build -C services/$* -trimpath -o $(CURDIR)/bin/$* .

.PHONY: test
test: unit integration acceptance ## Run every test, against real servers

.PHONY: unit
unit: check arch ## Run the tests that need nothing but Go
	$(call timed,unit,go test $(RACE) -shuffle=on $(MODULE)/...)

.PHONY: integration
integration: check ## Run the tests of adapters on real Redis, PostgreSQL, Kafka, Elasticsearch and OpenSearch
	$(call timed,integration,go test $(RACE) -shuffle=on -count=1 -timeout 15m -tags integration -run Integration $(MODULE)/...)

.PHONY: acceptance
acceptance: build ## Run the tests of the whole system (KAFKA=real: on Apache Kafka, one node and three)
	$(call timed,acceptance,$(if $(filter real,$(KAFKA)),PENSTOCK_TEST_KAFKA=real) go test -count=1 -timeout 30m -tags acceptance$(if $(filter real,$(KAFKA)),$(COMMA)cluster) $(MODULE)/deploy/acceptance/...)

.PHONY: arch
arch: check ## Check who imports whom and the form of the papers (never from the test cache)
	$(call timed,arch,go test -count=1 $(MODULE)/services/internal/archtest)

.PHONY: lint
lint: check $(LINTER) ## Lint every module
	@code=0; for m in $(MODULES); do echo "== lint $${m#$(CURDIR)/}"; \
	(cd "$$m" && $(LINTER) run --allow-serial-runners --build-tags integration,acceptance,cluster ./...) || code=1; done; exit $$code

# The linter is built from its Go module, once for all clones.
$(LINTER):
	@echo "building golangci-lint v$(LINT) (about ten minutes, once)"; mkdir -p $(@D); \
	building=$$(mktemp -d $(@D)/building.XXXXXX); trap 'rm -rf "$$building"' EXIT; \
	GOBIN="$$building" GOWORK=off go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT); \
	mv "$$building/golangci-lint" $@

.PHONY: verify
verify: check ## Fail if a go.mod, a go.sum or a generated file is stale
	@code=0; for m in $(MODULES); do echo "== verify $${m#$(CURDIR)/}"; (cd "$$m" && GOWORK=off go mod tidy -diff) || code=1; done; exit $$code
	@state() { git diff HEAD; git ls-files -o --exclude-standard -z | xargs -0 -r sha256sum; }; \
	before=$$(state); echo "== verify generated files"; go generate $(MODULE)/...; \
	[ "$$before" = "$$(state)" ] || { git status --short; echo "generated files are stale: commit what go generate has just written" >&2; exit 1; }

.PHONY: bin/loadtest
bin/loadtest: check
	@go build -C loadtest -o $(CURDIR)/bin/loadtest .

.PHONY: bench
bench: bin/loadtest ## Measure decisions beside those of others (loadtest/README.md)
	@bin/loadtest bench $(ARGS)

.PHONY: bench-all
bench-all: bin/loadtest ## Run the benchmarks of every package, then measure the whole system beside Debezium
	$(call timed,bench-all,go test -run '^$$' -bench . -benchmem $(ARGS) $(MODULE)/...)
	@bin/loadtest propagation -debezium -rate 30
	@bin/loadtest decisions

.PHONY: load
load: bin/loadtest ## Send load to the whole system and judge the outcome
	@bin/loadtest propagation -verdict $(ARGS)
	@bin/loadtest decisions -verdict $(ARGS)
	@bin/loadtest frozen -verdict
	@bin/loadtest usage -verdict
	@bin/loadtest thresholds -verdict
	@bin/loadtest restore -verdict
