MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow bench-sandbox bench-context bench-client bench-chaos bench-grading bench-forgeries docs docs-pages lint python clean

# What was set up comes first, so that commands started by the tests find the same programs.
in_venv := PATH="$(CURDIR)/.venv/bin:$$PATH"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## set up what is missing, then fix the bug in examples/ferry and print the patch
	@scripts/demo.sh

test: setup ## set up what is missing, then run the tests, on as many cores as there are
	@$(in_venv) pytest -n "$$(nproc)" --maxprocesses 8 --dist loadfile

test-slow: setup ## run the long tests
	@if grep -rqE --include='*.py' 'mark\.slow' tests; then $(in_venv) pytest -m slow; else echo "there are no slow tests"; fi

bench-sandbox: setup ## measure the sandbox against its peers (ARGS="--quick", "--json FILE" and others)
	@$(in_venv) python benchmarks/sandbox.py $(ARGS)

bench-context: setup ## measure packing a repository against its peers (REPO=path of a clone, ARGS="--rounds 9" and others)
	@$(in_venv) python benchmarks/context.py $(REPO) $(ARGS)

bench-client: setup ## measure what a turn costs on our side beside mini-swe-agent (ARGS="--turns 50" and others)
	@$(in_venv) python benchmarks/client.py $(ARGS)

bench-grading: setup ## grade beside the official harness (ARGS="ROWS --workers 2" and others)
	@$(in_venv) python benchmarks/grading.py $(ARGS)

bench-forgeries: setup ## grade forged patches by our rules and the official ones
	@$(in_venv) python -m benchmarks.forgeries $(ARGS)

bench-chaos: setup ## hit fixes with random faults and see what is left (ARGS="--runs 20", "--kinds disk" and others)
	@$(in_venv) python -m benchmarks.chaos $(ARGS)

docs: python ## build the site of the documentation into site/
	@$(in_venv) NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "The site is in site/index.html."

docs-pages: python ## write the pages made from the code and the lock: docs/commands.md, docs/licences.md
	@$(in_venv) python scripts/docs/commands_page.py
	@PATH="$(CURDIR)/.setup/uv/bin:$$PATH" uv run --isolated --locked --no-dev --all-extras python scripts/docs/licences_page.py

lint: python ## check style and types
	@$(in_venv) ruff check
	@$(in_venv) ruff format --check
	@$(in_venv) mypy
	@$(in_venv) basedpyright

setup: ## set up only (SETUP=no: install nothing system-wide)
	@scripts/setup.sh all

python:
	@scripts/setup.sh python

clean: ## remove everything that set-up and builds made in this checkout
	rm -rf .venv .setup dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find agent tools sandbox serving evals tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
