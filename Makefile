# The two commands: `make up` starts a cluster, `make test` sets up and runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODES ?= 3
DATA ?= data
PORT ?= 9092

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

.PHONY: help up demo test lint unit soak bench bench-spark clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	$(BIN)/python -m compileall -q src # once, instead of in each node
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

up: $(VENV)/.installed ## install and start three nodes (options: NODES, DATA, PORT)
	@exec $(BIN)/riverrun up --nodes $(NODES) --data $(DATA) --port $(PORT)

$(VENV)/.installed-spark: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[spark]'
	touch $@

demo: $(VENV)/.installed-spark ## three nodes, a clickstream, a pipeline to a table, a killed node, and the proof
	@exec $(BIN)/python examples/demo.py

lint: $(VENV)/.installed-test ## ruff, mypy and import-linter
	$(BIN)/ruff check src tests tools examples
	$(BIN)/ruff format --check src tests tools examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# Libraries in the simulated world iterate sets, so the hash seed is fixed. Tests of the simulation and of
# Spark measure no time and run in parallel.
PYTEST := PYTHONHASHSEED=0 $(BIN)/pytest
UNIT := $(addprefix tests/,client cluster coordinator metadata model ports raft records replication server storage wire)
unit: $(VENV)/.installed-test ## run the unit tests: no processes, no Spark, under a minute
	$(PYTEST) -q -n 2 -m 'not peer and not slow' $(wildcard $(UNIT))

test: $(VENV)/.installed-test ## set up and run all checks and tests
	@$(BIN)/python -m tests.prepare & preparing=$$!; trap 'kill $$preparing 2>/dev/null' EXIT; \
	$(MAKE) --no-print-directory lint && wait
	@failed=; set -x; \
	$(PYTEST) --ignore tests/simulation --ignore tests/spark || failed=yes; \
	$(PYTEST) tests/simulation -n 2 || failed=yes; \
	$(PYTEST) tests/spark -n 2 --dist loadgroup || failed=yes; \
	test -z "$$failed"

soak: $(VENV)/.installed-test ## thousands of simulated worlds, then faults on one node and on three
	$(BIN)/riverrun simulate --seeds 1..2000
	$(BIN)/riverrun simulate --nodes 3 --seeds 1..1000
	$(BIN)/riverrun simulate --nodes 5 --seeds 1..300
	$(BIN)/python -m tools.soak --minutes 10
	$(BIN)/riverrun chaos run all --minutes 10 --report chaos.html

bench: $(VENV)/.installed-test ## compare with Apache Kafka on this machine
	$(BIN)/riverrun bench compare

bench-spark: $(VENV)/.installed-test ## compare with Spark's own Kafka connector on this machine
	$(BIN)/python -m tools.bench_spark

clean: ## remove the virtualenv and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
