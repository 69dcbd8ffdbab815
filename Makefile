# Everything a developer runs. `make` alone lists the targets.

# Tools are pinned here; buf in scripts/generate.sh, the protobuf plugins in go.mod.
GOLANGCI_LINT_VERSION := 2.15.0

# One static binary: no cgo, no paths of the building machine. Its version is
# what Go records in it (`go version -m bin/weir`).
BUILD := CGO_ENABLED=0 go build -trimpath -ldflags='-s -w'

.DEFAULT_GOAL := help

# Every target is a command, none is a file.
MAKEFLAGS += --no-print-directory
.PHONY: $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/weir
	$(BUILD) -o bin/weir ./cmd/weir

dev: build ## run a coordinator, three regions and traffic in one process (needs Go only)
	./bin/weir dev --traffic

test: ## run every test with -race on real Redis and PostgreSQL (needs Docker)
	@scripts/test.sh -race ./...

cover: ## run every test and write coverage.out
	@scripts/test.sh -coverpkg=./... -coverprofile=coverage.out ./...
	@go tool cover -func=coverage.out | tail -n 1

bench: ## run the Go benchmarks, one package at a time
	go test -p 1 -run '^$$' -bench . -benchmem ./...

soak: ## run the outage tests at full length (a minute each instead of seconds), and 20,000 fault schedules
	@WEIR_TEST_OUTAGE=60s scripts/test.sh -run 'Away' -timeout 30m ./internal/app ./chaos
	WEIR_FUZZ_SCHEDULES=20000 go test -timeout 4h -run 'TestNoScheduleBreaksTheLimit' ./coordinator ./coordinator/faulttest

chaos: ## break real processes and networks twenty times in each way and print the tables (half an hour)
	@rm -f bin/chaos.md && mkdir -p bin
	@WEIR_CHAOS_ROUNDS=20 WEIR_CHAOS_REPORT=$(CURDIR)/bin/chaos.md WEIR_TEST_OUTAGE=60s scripts/test.sh -timeout 90m ./chaos; \
		code=$$?; cat bin/chaos.md; exit $$code

fuzz: ## fuzz each parser for five minutes
	go test -run '^$$' -fuzz '^FuzzParse$$' -fuzztime 5m ./policystore/document
	go test -run '^$$' -fuzz '^FuzzApply$$' -fuzztime 5m ./internal/rpc

lint: ## run go vet, gofmt and golangci-lint
	@scripts/lint.sh $(GOLANGCI_LINT_VERSION)

generate: ## write gen/ from proto/
	scripts/generate.sh

checkgenerate: ## fail when gen/ is not what proto/ generates
	scripts/generate.sh --check

images: ## build the images the tests run, from Debian packages
	@scripts/images.sh

image: build ## build the production image weir:dev
	tar -c -C bin weir -C ../deploy/images/weir Dockerfile | docker build -t weir:dev -

clean: ## remove what the targets above built
	rm -rf bin coverage.out
