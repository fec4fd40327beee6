# Everything runs through uv. Where it is missing, `make` gets it into .cache/uv by itself.
.PHONY: docs dist demo test test-slow test-all scale-test lint check fmt kill explore fuzz bench scale-bench recall agentdojo soak image service-test setup axe clean help
SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .cache/uv/bin/uv)
PYTHON ?= $(shell command -v python3)
export UV_PYTHON_DOWNLOADS := never
# Byte-code halves the start-up time of the big libraries.
export UV_COMPILE_BYTECODE := 1
unexport PYTHONDONTWRITEBYTECODE

demo: setup        ## talk to the bot through a real Matrix server and a real mail server on this machine (ARGS=--tour shows it)
	@.venv/bin/squidbot demo $(ARGS)

# Most tests wait for servers, processes and disks: two processors are busy with four workers at a time.
PYTEST := .venv/bin/pytest -q -n 4 --dist loadfile --no-loadscope-reorder

test: lint         ## unit, contract and property tests, and one of each kind on real servers and under kills
	$(PYTEST) -m 'not slow'

test-slow: setup   ## what `make test` leaves out
	$(PYTEST) -m slow

test-all: lint     ## everything that must hold, in more than an hour
	$(PYTEST)

scale-test: setup  ## the queue in PostgreSQL: contract, races, faults, kills (its own servers; says what it skips, and why)
	$(PYTEST) -rs $(wildcard tests/*/test_*postgres*.py tests/kill/test_cluster*.py tests/kill/test_lease*.py tests/kill/test_takeover.py tests/kill/test_rolling_restart.py tests/kill/test_database_silent.py)

lint: setup        ## style and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

check: lint        ## style, types, import directions, file sizes
	.venv/bin/pytest -q tests/unit/test_architecture.py

kill: setup        ## at least 1,000 SIGKILLs at named and seeded moments; goes on where it was broken off (ARGS="--seed 7")
	PYTHONPATH=.:deploy .venv/bin/python -m tests.kill $(ARGS)

explore: setup    ## property tests with examples that are new each time
	SQUIDBOT_EXPLORE=1 .venv/bin/pytest -q tests/property tests/contract --timeout 3600

fuzz: setup        ## bad input for the parsers of mail, a minute for each
	$(UV) run --no-sync --with 'atheris==3.0.0' python -m tests.fuzz --seconds 60

bench: setup       ## speed and size, as ratios against floors measured beside them
	.venv/bin/python -m tests.bench

recall: setup      ## how often the search finds what was said, beside baselines (seconds, minutes with the extra recall; ARGS="--seeds 20 --missed")
	PYTHONPATH=. .venv/bin/python -m tests.recall $(ARGS)

agentdojo:         ## the injections of AgentDojo against a model that obeys everything (an environment of its own; 5 minutes)
	@test -x .cache/agentdojo/bin/python || $(PYTHON) -m venv .cache/agentdojo
	@.cache/agentdojo/bin/python -m pip install -q -r tests/agentdojo/requirements.txt
	PYTHONPATH=. .cache/agentdojo/bin/python -m tests.agentdojo --docs $(ARGS)

scale-bench: setup ## a daemon on PostgreSQL, many conversations, a slow model (2 minutes; goes on where it was broken off)
	PYTHONPATH=.:deploy .venv/bin/python -m tests.scale $(ARGS)

soak: setup        ## half an hour under load on real servers: does anything grow? (SOAK_MINUTES, SOAK_PER_SECOND)
	PYTHONPATH=.:deploy .venv/bin/python -u -m tests.soak

image:             ## build the container image squidbot (needs Docker with BuildKit)
	DOCKER_BUILDKIT=1 docker build -t squidbot .

DIST ?= dist
dist: $(UV)       ## source archive, wheel and bills of materials in dist/; the same commit makes the same bytes
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(UV) build -q --python $(PYTHON) --out-dir $(DIST)
	$(UV) export -q --frozen --no-dev --all-extras --format cyclonedx1.5 | $(WITHOUT_NONCE) >$(DIST)/wheel.cdx.json
	$(UV) export -q --frozen --no-dev $(IMAGE_EXTRAS) --format cyclonedx1.5 | $(WITHOUT_NONCE) >$(DIST)/image.cdx.json
# The time and a number at random, which CycloneDX leaves to whoever writes it.
WITHOUT_NONCE = grep -v -e '"serialNumber":' -e '"timestamp":'
IMAGE_EXTRAS = --extra dav --extra mcp --extra pdf --extra pictures --extra postgres --extra s3

service-test: setup ## prove image, compose file and systemd unit for real (needs root on Debian; eight minutes)
	@deploy/service-test-needs
	SQUIDBOT_DEPLOY_TESTS=1 .venv/bin/pytest -q -rs tests/deploy

docs: | $(UV)      ## render the manual with a search in site/ (look at it with: python3 -m http.server -d site)
	@rm -rf site .cache/manual && mkdir -p .cache/manual/pages
	@git ls-files -z ':(top,glob)*.md' docs deploy config.example.yaml | xargs -0 cp --parents -t .cache/manual/pages
	@cp zensical.toml .cache/manual
	@cd .cache/manual && $(abspath $(UV)) run -q --no-project --with 'zensical==$(ZENSICAL)' zensical build --strict
	@mv .cache/manual/site site
ZENSICAL := 0.0.73

fmt: setup         ## put the style right where that can be done by itself
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

setup: .venv/.ready ## make the environment in .venv, which all others do by themselves

.venv/.ready: pyproject.toml uv.lock | $(UV)
	@echo "Setting up the environment in .venv (one or two minutes the first time)…"
	@$(UV) sync -q --frozen --python $(PYTHON)
	@touch $@
	@echo "The environment is ready."

.cache/uv/bin/uv:
	@echo "Getting uv, the package installer, into .cache/uv…"
	@$(PYTHON) -m venv .cache/uv && .cache/uv/bin/python -m pip install -q --disable-pip-version-check 'uv>=0.9'

axe: .cache/axe/.ready ## get axe-core, with which the tests of the console look for barriers (needs npm)

.cache/axe/.ready:
	@npm install --silent --ignore-scripts --no-audit --no-fund --prefix .cache/axe axe-core@4.14.1
	@touch $@

clean:             ## remove the environment and all caches in this folder
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache

help:              ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
