# `make help` prints each target with its `##` line.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
RUST := $(shell find rust -name '*.rs' -not -path 'rust/fuzz/*') rust/core/Cargo.toml rust/binding/Cargo.toml Cargo.toml Cargo.lock
TOOLS := .cache/bin
KUSTOMIZE := $(TOOLS)/kustomize
PYTEST := $(PY) -m pytest

.PHONY: help build demo test test-rust test-python lint fmt deny bench soak siege fuzz services test-clients test-engines test-kube test-image lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: requirements-dev.lock
	@echo "installing the Python packages ..."
	@test -x $(PY) || python3 -m venv $(VENV)
	@$(PY) -m pip install -q --disable-pip-version-check "pip>=25.1"  # knows dependency groups, which maturin asks it for
	@$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(RUST) pyproject.toml
	@echo "building the extension in release mode (minutes the first time) ..."
	@$(VENV)/bin/maturin develop --release --locked --quiet >/dev/null
	@touch $@

build: $(VENV)/.built  ## create .venv and build the extension in release mode

demo: build  ## run the proxy with three simulated backends, stream one message; ONCE=1 stops after it
	@$(VENV)/bin/ferrule demo $(if $(ONCE),--once)

test: test-rust test-python  ## run all tests, Rust and Python

test-rust:  ## run the Rust tests
	cargo test --locked --quiet -p ferrule-core

test-python: build services $(KUSTOMIZE) .cache/sdk-0.75/.done  ## run the Python tests
	$(PYTEST) -m "not slow and not live" --ignore tests/clients --ignore tests/engines

lint: $(VENV)/.built  ## run cargo fmt, clippy, ruff, mypy, import-linter, stubtest
	cargo fmt --check
	cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
	$(VENV)/bin/ruff check python tests bench k8s
	$(VENV)/bin/ruff format --check python tests bench k8s
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m mypy.stubtest ferrule._core

fmt: $(VENV)/.installed  ## format Rust and Python
	cargo fmt
	$(VENV)/bin/ruff check --fix-only -q python tests bench k8s
	$(VENV)/bin/ruff format python tests bench k8s

bench: build  ## compare with a direct connection, nginx and installed peers (under 10 minutes)
	bench/peers.sh
	$(PY) bench/run.py

deny: $(TOOLS)/cargo-deny  ## check licences, bans and sources of the Rust crates (builds cargo-deny the first time)
	$(TOOLS)/cargo-deny check bans licenses sources

$(TOOLS)/cargo-deny:
	@echo "building cargo-deny (minutes) ..."
	@cargo install --locked --quiet cargo-deny --root .cache

soak: build  ## run 300 streams for ten minutes, a fifth aborted; prints the growth of memory and descriptors
	$(PY) bench/soak.py

siege: build services  ## run attackers, floods and failing machines at full length, and print the measurements
	$(PYTEST) tests/resilience -m slow -rP

fuzz:  ## run each fuzz target for SECONDS (60): make fuzz SECONDS=60
	rust/fuzz/run.sh $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)

test-clients: build  ## run Claude Code, the SDKs and other clients against the proxy (some need node)
	tests/clients/install.sh
	$(PYTEST) tests/clients -o timeout=300

test-engines: build  ## run a real vLLM and llama.cpp behind the proxy (downloads gigabytes the first time)
	tests/engines/install.sh
	$(PYTEST) tests/engines -o timeout=600

test-kube: build $(TOOLS)/kube-apiserver $(KUSTOMIZE)  ## test manifests and discovery against a real kube-apiserver
	tests/services.sh etcd-server openssl
	$(PYTEST) tests/k8s/test_apiserver.py

test-image: build  ## run the Dockerfile's steps in a clean directory (minutes)
	FERRULE_TEST_IMAGE=1 $(PYTEST) tests/k8s/test_image.py

services:  ## install the services that tests start: Redis, Prometheus, Chromium
	@tests/services.sh redis-server prometheus chromium fonts-dejavu-core nginx-light

$(KUSTOMIZE):
	@mkdir -p $(TOOLS)
	@if command -v go >/dev/null; then GOBIN=$(CURDIR)/$(TOOLS) go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1; else echo "no go: the manifests' tests need kustomize or kubectl" >&2; fi

$(TOOLS)/kube-apiserver: tests/k8s/apiserver/go.mod tests/k8s/apiserver/main.go
	@mkdir -p $(TOOLS)
	cd tests/k8s/apiserver && go build -trimpath -ldflags "-s -w" -o $(CURDIR)/$(TOOLS)/kube-apiserver .

.cache/sdk-0.75/.done:
	@python3 -m venv .cache/sdk-0.75 && .cache/sdk-0.75/bin/pip install -q --disable-pip-version-check anthropic==0.75.0 && touch $@

lock: $(VENV)/.installed  ## update the lock files
	cargo update --quiet
	$(VENV)/bin/pip install -q uv
	$(VENV)/bin/uv pip compile pyproject.toml --generate-hashes --no-header --no-annotate --python-version 3.11 -q -U -o requirements.lock
	$(VENV)/bin/uv pip compile pyproject.toml --group dev --generate-hashes --no-header --no-annotate --python-version 3.11 -q -U -o requirements-dev.lock

clean:  ## remove build outputs
	rm -rf target $(VENV) python/ferrule/_core*.so
