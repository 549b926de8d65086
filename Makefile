# Common tasks of the project. `make` prints them.
.DEFAULT_GOAL := help

help: ## print this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build a static bin/lmosd
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/lmosd ./cmd/lmosd

dist: ## make packages, archives, sums and bills of materials in dist/out (VERSION=1.2.3)
	cd dist && go run .

demo: ## run a scripted demo on this machine
	go run ./cmd/lmosd demo

test: ## run the tests
	go test ./...

race: ## run the tests with the race detector
	go test -race ./...

fuzz: ## run every fuzz target for a minute
	scripts/fuzz 60s

bench: ## measure lmosd beside other systems (docs/benchmarks.md)
	cd bench && go run .

check: ## what CI runs
	bash .ci/run

.PHONY: help build dist demo test race fuzz bench check
