# Everything runs from a virtual environment that the first target builds out of requirements.lock.

PYTHON ?= python3
VENV ?= .venv
DEMO_ARGS ?=
BENCH_ARGS ?= --rounds 1000 --seconds 3 --largest 100000
PYTEST_ARGS ?=
JOBS ?= 2
CHAOS_ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test deep check lint bench chaos format clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile
	@echo "PYTHON=$(PYTHON) (3.11 or later) builds VENV=$(VENV); DEMO_ARGS, BENCH_ARGS, CHAOS_ARGS, PYTEST_ARGS are passed on; JOBS=$(JOBS) tests at once"

demo: $(STAMP) ## start a small pool on this machine, ask it a few questions, show who answered and why
	$(VENV)/bin/lmpoolctl demo $(DEMO_ARGS)

test: lint ## everything CI runs: what `check` runs, then every test
	$(PY) -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

deep: $(STAMP) ## draw twenty times as many cases as CI does, other ones each time
	HYPOTHESIS_PROFILE=deep $(PY) -m pytest -n $(JOBS) --dist worksteal --timeout 3000 -m hypothesis \
	  tests/unit tests/store tests/daemon tests/transport $(PYTEST_ARGS)

check: lint ## format, lint, types, architecture and house rules: no servers, no models
	$(PY) -m pytest tests/house $(PYTEST_ARGS)

lint: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-cache

bench: $(STAMP) ## measure this machine, small sizes: routing, ingress, the matrix (tables, JSON, PNG in benchmarks/out)
	$(PY) -m benchmarks $(BENCH_ARGS)
	$(PY) -m benchmarks.paper e2e --requests 24 --chars 12 --repetitions 2 --fresh --out benchmarks/out

chaos: $(STAMP) ## ten minutes of kills, stops, broken links and late messages over a real pool, and a table
	$(PY) -m tests.chaos $(CHAOS_ARGS)

format: $(STAMP) ## rewrite the sources as `check` wants them
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean: ## remove what the other targets made, the environment included
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch's plain Linux wheel is a CUDA build: the lock leaves NVIDIA's libraries out, so where it
# cannot be imported without them they are fetched, as torch itself asks for them.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "LMPool needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	    "name another one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-input --no-deps -r requirements.lock
	$(PY) -c 'import torch' || $(PIP) install --no-input "$$(grep '^torch==' requirements.lock)"
	$(PIP) install --quiet --no-input --no-deps --no-build-isolation --editable .
	touch $(STAMP)
