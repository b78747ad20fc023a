# The two commands: `make up` starts a cluster, `make test` sets up and runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODES ?= 3
DATA ?= data
PORT ?= 9092

# On a terminal, pip shows its progress.
QUIET := $(if $(shell test -t 2 && echo yes),,--quiet)
INSTALL = $(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --constraint constraints.txt
FAILED = { echo "Failed. Run the same command again to continue; if that fails, run 'make clean' first." >&2; exit 1; }

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

.PHONY: help up demo dist docs test lint unit soak bench bench-spark clean

# A virtualenv whose creation was interrupted has no working pip; it is created again.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "riverrun needs Python 3.11 or newer; for example: make up PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -c 'import pip._internal.commands.install' 2>/dev/null || \
		{ echo "Creating the virtualenv $(VENV) (some seconds)"; $(PYTHON) -m venv --clear $(VENV); } || $(FAILED)
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing riverrun into $(VENV) (17 packages, about 65 MB, half a minute)"
	@$(INSTALL) --editable . || $(FAILED)
	@$(BIN)/python -m compileall -q src # once, instead of in each node
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing the dependencies of the tests, with Spark (about 1.2 GB, some minutes)"
	@$(INSTALL) --editable '.[test]' || $(FAILED)
	@touch $@

$(VENV)/.installed-spark: $(VENV)/.installed
	@echo "Installing Spark (about 1 GB, some minutes)"
	@$(INSTALL) --editable '.[spark]' || $(FAILED)
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing MkDocs (about 110 MB, half a minute)"
	@$(INSTALL) --editable '.[docs]' || $(FAILED)
	@touch $@

up: $(VENV)/.installed ## install and start three nodes (options: NODES, DATA, PORT)
	@exec $(BIN)/riverrun up --nodes $(NODES) --data $(DATA) --port $(PORT)

demo: $(VENV)/.installed-spark ## three nodes, a clickstream, a pipeline, a killed node, and the proof (option: PORT)
	@exec $(BIN)/python examples/demo.py $(if $(filter file,$(origin PORT)),,--port $(PORT))

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
	$(BIN)/riverrun simulate --nodes 3 --transactions --seeds 1..1000
	$(BIN)/riverrun simulate --nodes 4 --moves --seeds 1..100
	$(BIN)/riverrun simulate --nodes 3 --secure --seeds 1..100
	$(BIN)/python -m tools.soak --minutes 10
	$(BIN)/riverrun chaos run all --minutes 10 --report chaos.html
	$(BIN)/riverrun chaos run all --minutes 10 --secure --report chaos-secure.html

bench: $(VENV)/.installed-test ## compare with Apache Kafka on this machine
	$(BIN)/riverrun bench compare

bench-spark: $(VENV)/.installed-test ## compare with Spark's own Kafka connector on this machine
	$(BIN)/python -m tools.bench_spark

dist: $(VENV)/.installed ## build the wheel and the sdist into dist/
	@$(INSTALL) hatchling || $(FAILED)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

docs: $(VENV)/.installed-docs ## build the site of the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove the virtualenv and the caches
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache
