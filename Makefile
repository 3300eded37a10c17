# One command a target; `make help` lists them. PYTHON=python3.12 make install takes another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help install demo test soak lint bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv with the stayer command in it
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make install PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) # alone and first: one large choice less for the resolver
	@echo "installing the rest"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install ## carry the quickstart job from text to a registered model
	$(BIN)/stayer run deployments/jobs/quickstart.yaml

test: install ## run the tests, without the long fault campaigns
	$(BIN)/python -m pytest -m "not soak"

soak: install ## run the long fault campaigns
	$(BIN)/python -m pytest -m soak

lint: install ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install ## run benchmarks/<part>/*.py; each prints one JSON object a line
	@set -e; found=; for script in benchmarks/*/*.py; do \
		test -e "$$script" || continue; found=yes; echo "# $$script" >&2; $(BIN)/python "$$script"; \
	done; test -n "$$found" || echo "there is no benchmark yet: benchmarks/<part>/*.py matches nothing"

clean: ## remove .venv, caches and build output; .stayer with your runs stays
	rm -rf $(VENV) build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.stayer/*' -prune -exec rm -rf {} +
