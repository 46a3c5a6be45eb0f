# One command each; `make` alone lists them. Each target bootstraps what it needs: nothing but root, Python 3.11 and Go
# (and Debian's packages, installed on demand) is expected on the machine.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
# `make gpu-kit PYTHON=3.11` names the Python of the machine with the GPU, not ours.
KIT_PYTHON := $(if $(filter 3.%,$(PYTHON)),$(PYTHON),3.12)
ifneq ($(filter 3.%,$(PYTHON)),)
override PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
# Keyed on the content: a checkout that only touches the file's date does not install again.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml localcluster/pyproject.toml requirements.lock | sha256sum | cut -c1-12)

# A file's tests run one after the other in one process; the fixtures of a file are made once. Tests wait as much as they
# compute: three processes for two cores.
SHARE := --dist loadfile --no-loadscope-reorder
BOTH_CORES := -n 3 $(SHARE)

APT := apt-get -y -q -o DPkg::Lock::Timeout=300

# uv reads SSL_CERT_FILE only, while machines behind an inspecting proxy usually set one of the other two.
CA_BUNDLE := $(firstword $(SSL_CERT_FILE) $(PIP_CERT) $(REQUESTS_CA_BUNDLE) $(wildcard /etc/ssl/certs/ca-certificates.crt))
ifneq ($(CA_BUNDLE),)
export SSL_CERT_FILE := $(CA_BUNDLE)
endif

# Else each process of pytest, Airflow and every program of a test compiles all that it imports again: a third of `make unit`.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test unit test-unit test-e2e test-full test-kubernetes test-gpu gpu-kit test-airflow-next matrix-airflow matrix-torch verify lint types imports bench anchor studies docs chart-docs lock release clean preflight parts python ready

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

demo: ready ## the whole story on this machine: build/demo/{report.json,timeline.svg}; KEEP=1 leaves it running; ENGINE=state; PRIVILEGES=node
	$(BIN)/singularityctl demo $(if $(ENGINE),--engine $(ENGINE)) $(if $(PRIVILEGES),--privileges $(PRIVILEGES)) $(if $(KEEP),--keep)

test: ready ## verify, then unit and end-to-end tests (starts its own cluster and Airflow)
	@$(MAKE) --no-print-directory -j2 -O verify
	@env $$($(BIN)/python -m localcluster.prepare --env) $(BIN)/pytest $(BOTH_CORES) -m "not full" --durations=60 --durations-min=3 tests/unit
	@env $$($(BIN)/python -m localcluster.prepare --env) $(BIN)/pytest -m "not full" tests/e2e

unit: $(STAMP) ## unit tests without root, Go or a cluster: what needs more is skipped with a sentence; 2.5 minutes
	@$(BIN)/pytest $(BOTH_CORES) -m "not full and not timed and not long" tests/unit

test-unit: ready ## all unit tests, with CRIU and torch
	@env $$($(BIN)/python -m localcluster.prepare --env) $(BIN)/pytest $(BOTH_CORES) tests/unit

test-e2e: ready ## end-to-end tests only
	$(BIN)/pytest -m "not full" tests/e2e

test-full: ready ## everything test does and the tests that take minutes (marker "full"), then the demo itself
	@$(MAKE) --no-print-directory -j2 -O verify
	@$(MAKE) --no-print-directory test-unit
	@env $$($(BIN)/python -m localcluster.prepare --env) $(BIN)/pytest tests/e2e
	@$(MAKE) --no-print-directory demo

test-kubernetes: ready ## policies and adoption on an API server of KUBERNETES=v1.33.13, which is built first: ten minutes on two cores
	@env $$($(BIN)/python -m localcluster.prepare --env --kubernetes $(or $(KUBERNETES),v1.33.13)) \
	  $(BIN)/pytest $(BOTH_CORES) tests/unit/kueue/test_policy_*.py tests/unit/kueue/test_adoption.py

test-gpu: $(STAMP) ## tests that need an NVIDIA GPU (driver 570 or newer), then figures; installs torch
	@ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "make: no NVIDIA GPU on this machine (/dev/nvidia0)" >&2; exit 1; }
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install -q torch
	@$(BIN)/pytest -m gpu -s tests/unit

gpu-kit: ready ## a folder that shows on any machine with a GPU whether moves work: build/gpu-kit; PYTHON=3.12
	@env $$($(BIN)/python -m localcluster.prepare --env) $(BIN)/python -m gpukit.build --python $(KIT_PYTHON)

AIRFLOW_NEXT ?= 3.4.0b2
NEXT := build/airflow-next
test-airflow-next: $(STAMP) ## the provider's unit tests on Airflow's newest pre-release (AIRFLOW_NEXT=3.4.0b2)
	@[ -x $(NEXT)/bin/python ] || $(BIN)/uv venv -q --python $(BIN)/python $(NEXT)
	@VIRTUAL_ENV=$(abspath $(NEXT)) $(BIN)/uv pip install -q "apache-airflow==$(AIRFLOW_NEXT)" \
	  -e ".[openlineage,kueue,proxy,dev]" -e ./localcluster scikit-learn
	@$(NEXT)/bin/pytest tests/unit/airflow

matrix-airflow: $(STAMP) ## the provider's unit tests on older versions of Airflow, a table: build/airflow-matrix; ONLY=3.2.2
	@$(BIN)/python tests/airflow_matrix.py $(ONLY)

matrix-torch: ready ## the programs' suite on torch 2.6 to the newest, a table: build/torch-matrix; ONLY=2.8.0; 5 GB of disk for each
	@$(BIN)/python tests/torch_matrix.py $(ONLY)

verify: lint types imports docs ## lint, types, the import contracts and the documentation site

lint: $(STAMP) ## ruff, and what it has no rule for
	$(BIN)/ruff check .
	$(BIN)/python tests/checks.py

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy
	@# What runs in the user's interpreter, which may be older than ours.
	$(BIN)/mypy --python-version 3.10 -p singularity_proxy.agent -p singularity_proxy.launcher -p singularity_proxy.protocol

imports: $(STAMP) ## which package may import which
	$(BIN)/lint-imports

bench: ready ## measure: build/bench/figures.json
	@if [ -f benchmarks/__main__.py ]; then $(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)); \
	else echo "There are no benchmarks yet."; exit 1; fi

anchor: ready ## our operator and Airflow's own in the same trouble: build/anchor/anchor.{json,md}; ONLY=scenario,scenario
	$(BIN)/python -m benchmarks.anchor $(if $(ONLY),--only $(ONLY))

studies: $(STAMP) ## what policies are worth on simulated clusters: build/studies; QUICK=1, ONLY=scenario,scenario, GO_ON=1, DOCS=1
	$(BIN)/python -m benchmarks.cluster study $(if $(QUICK),--quick) $(if $(GO_ON),--go-on) $(if $(ONLY),--only "$(ONLY)") $(if $(DOCS),--docs docs)

docs: $(STAMP) ## the documentation site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/search_words.py build/site/search/search_index.json

chart-docs: $(STAMP) ## charts/singularity/README.md, from the chart's values, and the dashboards, from docs/dashboards.py
	$(BIN)/python docs/chart_reference.py
	$(BIN)/python docs/dashboards.py

release: $(STAMP) ## what a release consists of, as far as that needs no registry: build/release; BASE=debian:forky-slim@sha256:... HELM=helm
	@$(BIN)/python images/release.py --base "$(BASE)" --helm "$(or $(HELM),helm)" --uv $(BIN)/uv

lock: $(STAMP) ## take the newest versions that pyproject.toml allows into requirements.lock, and from there into the images
	@{ grep '^#' requirements.lock; echo scikit-learn | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-header --no-emit-index-url --extra openlineage --extra kueue --extra proxy --extra dev pyproject.toml -; } >$(VENV)/lock
	@mv $(VENV)/lock requirements.lock
	@for image in agent:proxy controller:kueue; do file=images/$${image%:*}.lock; \
	  { grep '^#' $$file; $(BIN)/python images/extra.py $${image#*:} | $(BIN)/uv pip compile -q --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url -c requirements.lock -; } >$(VENV)/lock && mv $(VENV)/lock $$file; done

clean: ## remove build outputs and the virtual environment; clusters and the cache outside the checkout stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache $(VENV)
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- bootstrap ----------------------------------------------------------------------------------------------------
preflight:
	@[ "$$(id -u)" = 0 ] || { echo "make: a real cluster needs root on this machine; run as root (sudo -E make ...)" >&2; exit 1; }

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  command -v apt-get >/dev/null || { echo "make: Python's venv module is missing; install it (Debian: python3-venv)" >&2; exit 1; }; \
	  echo "Python's venv module is missing: installing Debian's python3-venv"; \
	  $(APT) install python3-venv || { $(APT) update && $(APT) install python3-venv; }; }

# A demo needs no server of the gs protocol, which takes a minute to compile.
PARTS_OF := $(if $(filter-out demo,$(MAKECMDGOALS)),,--demo)

# Go compiles while Python packages download: the longest parts of a cold start overlap.
ready: preflight python
	@+$(MAKE) --no-print-directory -j2 PARTS_OF="$(PARTS_OF)" $(STAMP) parts

parts: preflight
	@$(PYTHON) -m localcluster.prepare $(PARTS_OF)

$(STAMP): pyproject.toml localcluster/pyproject.toml requirements.lock | python
	@echo "Python packages into $(VENV) (first time: one to three minutes)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -q --upgrade uv
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install -q --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install -q --no-deps -e . -e ./localcluster
	@rm -f $(VENV)/.installed-*
	@touch $@
