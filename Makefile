# `make help` lists the verbs; each installs what it needs.
PYTHON ?=
VENV := .venv
STAMP := $(VENV)/.installed
JARS := .jars/.verified
CLASSES := .jars/classes.jsa
NATIVE := $(VENV)/.native

DEMO_embedded := sample_export.demo
DEMO_cluster := local_stack.demo
DEMO := $(DEMO_$(or $(PROFILE),embedded))

# Set in many images; then each of our processes, workers too, compiles all modules anew: 1 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up down stack-test test test-full test-fast crash-matrix two-writers lost-workers readers faults mutations canaries fuzz bench labs images dev size check audit sbom lock wheel wheel-test

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The lock is complete, hence --no-deps: pip 23, which Python 3.11 brings, refuses a locked package that another asks for with an extra.
$(STAMP): requirements.lock pyproject.toml
	@python=$$(PYTHON="$(PYTHON)" sh deploy/preflight.sh) && { test -x $(VENV)/bin/python || "$$python" -m venv $(VENV); }
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Everything runs without it as well, only slower, so a machine without cargo is told and goes on.
$(NATIVE): $(STAMP) $(wildcard native/src/*.rs) native/Cargo.toml native/Cargo.lock native/build.sh
	@sh native/build.sh $(VENV) && touch $@

$(JARS): $(STAMP) resources/spark/jars.py | $(NATIVE)
	@$(VENV)/bin/python -m resources.spark.jars && touch $@

setup: $(STAMP) ## Install the locked packages into .venv, fetch and verify the pinned jars, build the native scanner where cargo is, prepare the JVM's classes
	@sh native/build.sh $(VENV) && touch $(NATIVE)
	@$(VENV)/bin/python -m resources.spark.jars && touch $(JARS)
	@$(MAKE) --no-print-directory $(CLASSES)

demo: $(CLASSES) ## Load two weeks of sample exports, load them again, recover a lost part, and show the account (PROFILE=cluster: on what `make up` started)
	@$(if $(DEMO),,$(error PROFILE=$(PROFILE) is none of the demo's profiles: write PROFILE=cluster, or leave it out))$(VENV)/bin/python -m $(DEMO)

up: $(CLASSES) ## Start a whole deployment on this machine: PostgreSQL, S3, a Spark cluster, Dagster (STACK_PORT_...=...)
	@$(VENV)/bin/python -m local_stack up $(ARGS)

down: $(JARS) ## End it; its data stays in data/stack (ARGS=--wipe: goes too)
	@$(VENV)/bin/python -m local_stack down $(ARGS)

# Everything runs without it as well, only slower, so a JVM that cannot make one stops nothing.
$(CLASSES): $(JARS)
	-@$(VENV)/bin/python -m resources.spark.jars classes

test: $(CLASSES) ## Run all tests
	@$(VENV)/bin/python -m pytest -n 3 --dist worksteal --durations 40

test-full: $(CLASSES) ## Run the random histories as long as is claimed for them (about half an hour)
	@$(VENV)/bin/python -m pytest -s --full tests/scenarios/test_random_histories.py

stack-test: $(CLASSES) ## Start what `make up` starts in a folder of its own, load a day on it, end it and look for leftovers (some minutes)
	@$(VENV)/bin/python -m pytest --full tests/scenarios/test_local_stack.py

crash-matrix: $(CLASSES) ## Kill a load at every point x table, and what writes to landing; start again both ways
	@$(VENV)/bin/python -m pytest -n 2 --full tests/scenarios/test_crash_matrix.py tests/scenarios/test_landing_crash_matrix.py

two-writers: $(CLASSES) ## Let writers meet in 300 random rounds, on SQLite and on PostgreSQL (about two and a half hours; ARGS=...)
	@$(VENV)/bin/python -m tests.two_writers $(ARGS)

lost-workers: $(CLASSES) ## Lose executors and workers of a Spark cluster in the middle of loads, and meet unfit ones (a quarter of an hour)
	@$(VENV)/bin/python -m pytest --full tests/scenarios/test_cluster.py

readers: $(CLASSES) ## Read in a loop beside 300 publishes for each catalog and promise: does all agree in every cut (hours; ARGS=...)
	@$(VENV)/bin/python -m tests.readers $(ARGS)

faults: $(CLASSES) ## Let S3, PostgreSQL, disks, workers and the clock fail under a real load, and print the table (most of an hour; ARGS=...)
	@$(VENV)/bin/python -m tests.faults $(ARGS)

mutations: $(CLASSES) ## Break the line that upholds each law and see a test fail (about twenty minutes)
	@$(VENV)/bin/python -m tests.mutations $(ARGS)

canaries: $(CLASSES) ## Load and fail with a canary in every secret, then search all that was written (some minutes)
	@$(VENV)/bin/python -m tests.canaries

fuzz: $(JARS) ## Damage lines for the native scanner under an address sanitizer, and compare it with Python's parser (minutes; ARGS=...)
	@$(VENV)/bin/python -m tests.scanner_fuzz $(ARGS)

bench: $(CLASSES) ## Compare with five other ways of loading the same files (about an hour on two cores; ARGS=...)
	@$(VENV)/bin/python -m benchmarks $(ARGS)

labs: $(CLASSES) ## Learn by doing: three labs on the real pipeline, their stories and one page (a few minutes)
	@$(VENV)/bin/python -m labs $(ARGS)

images: $(CLASSES) ## Take the pictures in docs/images anew, through a real browser
	@$(VENV)/bin/python -m pytest --images tests/browser/test_ui.py tests/browser/test_health_report.py tests/browser/test_labs_page.py
	@test ! -f data/.demo || $(VENV)/bin/python -m tests.browser.after_demo

test-fast: $(JARS) ## Run the tests that need no Spark
	@$(VENV)/bin/python -m pytest -m "not slow" -q

dev: $(CLASSES) ## Start the Dagster webserver and daemon on port 3000 of this machine (PORT=..., READ_ONLY=1)
	@$(VENV)/bin/tidemark dev

# What an earlier build left would go into the wheel as well, and `pip install dist/*.whl` takes one version.
wheel: $(STAMP) ## Build the wheel that users install: dist/*.whl
	@rm -rf build/lib build/bdist.* dist/tidemark_pipeline-*.whl
	@$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --wheel-dir dist .
	@ls dist/tidemark_pipeline-*.whl

wheel-test: wheel $(CLASSES) ## Install the wheel into empty environments, and do there what a user does (a few minutes; ARGS=...)
	@$(VENV)/bin/python -m tests.wheel $(ARGS)

size: $(STAMP) ## Count the code by folder, against its budget (ARGS=--loads: also the functions of ours that a load runs)
	@$(VENV)/bin/python -m tests.size $(ARGS)

check: $(JARS) ## Lint, formatting, layers, types, size, Dockerfile, licences, known holes in what is locked (OFFLINE=1: not those)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/lint-imports --no-cache
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/hadolint Dockerfile
	@$(VENV)/bin/python -m tests.size
	@$(VENV)/bin/python -m supply_chain.licences
	@$(VENV)/bin/python -m supply_chain.vulnerabilities $(if $(OFFLINE),--offline)

audit: $(JARS) ## Licences and known holes of all components; fails where the network is out of reach
	@$(VENV)/bin/python -m supply_chain.licences
	@$(VENV)/bin/python -m supply_chain.vulnerabilities --required

sbom: $(JARS) ## List all components, packages and jars with their hashes, beside the wheel: dist/*.cdx.json
	@$(VENV)/bin/python -m supply_chain.sbom

lock: $(JARS) ## Compile requirements.lock again, and the part of it that an image installs
	@$(VENV)/bin/uv pip compile pyproject.toml --extra dev --generate-hashes --no-emit-index-url --no-header --universal --quiet --output-file requirements.lock
	@sed 's/ \\$$//; /^ /d' requirements.lock > requirements.pins
	@$(VENV)/bin/uv pip compile pyproject.toml --constraint requirements.pins --generate-hashes --no-emit-index-url --no-header --no-annotate --universal --quiet --output-file deploy/build/requirements.lock; \
		status=$$?; rm -f requirements.pins; exit $$status
