# Everything lives in .venv and .stamps; `make clean` removes both. The second run of any target needs no network.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test processes at once: the heavy fault tests keep to two of them, the rest spread over all.
JOBS ?= 3
PYTEST ?=

# Options of the benchmark: --rounds, --count, --only.
BENCH ?=

# Options of the demo: --chaos, --broker auto, --csv FILE.
DEMO ?=

# How long a soak lasts, and the seed that its faults are drawn from.
MINUTES ?= 10
SEED ?= 1

# Which cells of the matrix (all by default), and where its Debian 13 lies, which is half a gigabyte and outlives `clean`.
CELLS ?=
MATRIX ?=
TRIXIE := /var/cache/postroad/trixie

.PHONY: help setup demo test sabotage examples soak matrix bench check docs tutorial lint types floors fmt clean

help: ## List what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .stamps/python .stamps/rabbitmq .stamps/faketime ## Virtual environment, dependencies, PostgreSQL (a wheel), RabbitMQ and libfaketime (Debian's packages, as root)

demo: .stamps/python ## Real flights from one service to another, over PostgreSQL alone: needs pip, and no RabbitMQ
	$(BIN)/postroad demo $(DEMO)

# Tests with real time limits share two cores with each other: what fails beside the others is run once more, alone, and
# has to pass then. What is broken fails twice.
test: setup ## The whole suite, in parallel, on servers that it starts by itself
	@$(BIN)/pytest -n $(JOBS) --dist=loadgroup $(PYTEST) || { \
	  echo "Once more, alone: what failed beside the others"; \
	  $(BIN)/pytest --last-failed --last-failed-no-failures=none $(PYTEST); }

sabotage: setup ## Each mechanism switched off in turn, by tests: every one must turn its test red
	PYTHONPATH=tests $(BIN)/pytest -p sabotage_report -m sabotage -n $(JOBS) --dist=loadgroup -q $(PYTEST)

examples: .stamps/python ## The services under examples/, as their pages say, each in a fresh virtual environment with the wheel
	PYTHONPATH=tests $(BIN)/python -m examples

soak: setup ## Traffic with faults drawn from SEED for MINUTES, and a checker that knows only the promises
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(MINUTES) --seed $(SEED)

matrix: setup .stamps/matrix ## The suites on other versions, on a cluster, behind poolers and through a failover (CELLS="a b", MATRIX=--json)
	PYTHONPATH=$(CURDIR)/tests$(if $(PYTHONPATH),:$(PYTHONPATH)) POSTROAD_TEST_MATRIX=$(TRIXIE) $(BIN)/python -m matrix $(addprefix --only ,$(CELLS)) $(MATRIX)

bench: setup .stamps/bench ## Rates against a hand-written floor and a peer, as ratios; benchmarks/results/latest.json
	$(BIN)/python benchmarks/run.py $(BENCH)

check: lint types floors docs test ## What CI runs

docs: .stamps/docs ## The site of docs/ into build/site; a link that leads nowhere fails
	$(BIN)/mkdocs build --strict --quiet

tutorial: ## The tutorial as it stands, in a fresh virtual environment that is removed again: two or three minutes
	$(PYTHON) tests/docs/walk.py

lint: .stamps/python ## All lint rules, and the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .stamps/python ## Strict types
	$(BIN)/mypy

floors: .stamps/python ## Imports point down the floors only
	$(BIN)/lint-imports

fmt: .stamps/python ## Format, and fix what can be fixed without judgement
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet . || true

clean: ## Remove the virtual environment and what was built
	rm -rf $(VENV) .stamps build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.stamps/python: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv is needed; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[run,embedded,dev]'
	@mkdir -p .stamps && touch $@

.stamps/docs: .stamps/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

.stamps/bench: .stamps/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

# Nothing is started: our nodes are private ones, and whatever policy the machine has is put back.
.stamps/rabbitmq: | .stamps/python
	@bash .ci/install-rabbitmq $(BIN)/python
	@mkdir -p .stamps && touch $@

# Preloaded by the soak into the processes whose clocks it steps.
.stamps/faketime:
	@bash .ci/install-faketime
	@mkdir -p .stamps && touch $@

.stamps/matrix: .ci/install-matrix .ci/in-tree
	@bash .ci/install-matrix $(TRIXIE)
	@mkdir -p .stamps && touch $@
