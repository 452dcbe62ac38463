# `make help` lists the verbs; each installs what it needs.
PYTHON ?=
VENV := .venv
STAMP := $(VENV)/.installed
JARS := .jars/.verified
SOURCES := pipeline_assets resources sample_export

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast dev check lock

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml
	@python=$$(PYTHON="$(PYTHON)" sh deploy/preflight.sh) && { test -x $(VENV)/bin/python || "$$python" -m venv $(VENV); }
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(JARS): $(STAMP) resources/jars.py
	@$(VENV)/bin/python -m resources.jars && touch $@

setup: $(STAMP) $(JARS) ## Install the locked packages into .venv and fetch the pinned jars

demo: setup ## Load two weeks of sample exports, load them again, recover a lost part, and show the account
	@$(VENV)/bin/python -m sample_export.demo

test: setup ## Run all tests
	@$(VENV)/bin/python -m pytest -n 2 --dist loadfile

test-fast: setup ## Run the tests that need no Spark
	@$(VENV)/bin/python -m pytest -m "not slow" -q

dev: setup ## Start the Dagster webserver and daemon on port 3000 (PORT=...)
	@sh deploy/dev.sh

check: setup ## Lint, formatting, types, import rings, Dockerfile
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/hadolint Dockerfile

lock: setup ## Compile requirements.lock again
	@$(VENV)/bin/uv pip compile pyproject.toml --extra dev --generate-hashes --no-emit-index-url --no-header --universal --quiet --output-file requirements.lock
