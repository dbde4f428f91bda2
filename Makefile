MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo install test test-unit test-slow test-languages setup-languages test-frameworks test-portable test-anywhere fuzz coverage mutants shape bench-sandbox bench-context bench-client bench-chaos bench-grading bench-environments bench-forgeries bundle docs docs-pages lint python clean

# .venv comes first on PATH, so that commands that the tests start find the same programs.
# Write bytecode even if PYTHONDONTWRITEBYTECODE is set: the tests start hundreds of interpreters.
in_venv := env -u PYTHONDONTWRITEBYTECODE PATH="$(CURDIR)/.venv/bin:$$PATH"

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## set up what is missing, then fix the bug in examples/ferry and print the patch
	@scripts/demo.sh

install: python ## install the command m3agent for your user, from this checkout (EXTRAS=acp,mcp)
	@scripts/install.sh '$(EXTRAS)'

# Some tests wait, and other programs may want the processors too. Each further worker would import all tests again.
workers := $(shell echo $$(( $$(nproc) > 4 ? 8 : 2 * $$(nproc) )))
pytest = $(in_venv) pytest -n $(workers) --dist worksteal
# The tests create and remove 100,000 small files. Use /dev/shm if it has 4 GB free and is not mounted noexec.
in_memory := $(shell [ -z "$$TMPDIR" ] && [ -w /dev/shm ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts && \
  [ "$$(df --output=avail /dev/shm | tail -1)" -gt 4000000 ] && echo TMPDIR=/dev/shm)
quality := PATH="$(CURDIR)/.setup/uv/bin:$$PATH" uv run --isolated --locked --group quality

test: setup ## set up what is missing, then run the tests that every change must pass (ARGS="-k name" and others)
	@$(in_memory) $(pytest) $(ARGS)

test-unit: workers = $(shell nproc) # these tests do not wait
test-unit: python ## run the quick tests: no sandbox, no server, no process except git; about a minute
	@$(in_memory) $(pytest) -m "not slow and not integration and not languages and not frameworks" $(ARGS)

test-slow: setup ## run the long tests
	@$(in_memory) $(pytest) -m slow $(ARGS)

setup-languages: setup ## install the toolchains and test runners of other languages (LANGUAGES="js go c")
	@scripts/languages.sh $(LANGUAGES)

# A language's tests are in the folder that is named after it, or in these.
folders_of_js := javascript
folders_of_c := ctest meson make_check
folders_of_shell := bats prove command
folders_of_ruby := ruby minitest rspec
folders_of_php := php phpunit
folders_of_java := java maven gradle
folders_of_elixir := elixir exunit
in_folders = $(foreach name,$(LANGUAGES),$(wildcard $(addprefix tests/ecosystems/,$(or $(folders_of_$(name)),$(name)))))

test-languages: setup-languages ## run the tests of other languages' test runners (LANGUAGES="js go c", ARGS="-k mocha" and others)
	@$(in_memory) $(pytest) --dist loadfile -m languages $(if $(LANGUAGES),$(in_folders) $(wildcard tests/ecosystems/test_*.py),tests/ecosystems) $(ARGS)

test-frameworks: setup ## run m3agent in the runners of others: Harbor, Verifiers, Inspect, NeMo Gym (ARGS="-k harbor")
	@$(in_venv) pytest -m frameworks tests/integrations $(ARGS)

test-portable: setup ## run the tests of the host's side without /proc and without calls that only Linux has (ARGS="tests/agent/fix")
	@$(in_venv) python scripts/quality/portable.py -n $(workers) --dist worksteal $(ARGS)

test-anywhere: setup ## run the tests with other clocks, dates, locales, users, paths and orders (ARGS="--unit --only clock,locale")
	@$(in_memory) $(in_venv) python -m scripts.quality.anywhere -n $(workers) --dist worksteal $(ARGS)

fuzz: setup ## run the property tests with fresh random examples and print each finding (MINUTES=10, ARGS="-k wire")
	@$(in_venv) python scripts/quality/fuzz.py --minutes $(or $(MINUTES),10) -n $(workers) $(ARGS)

coverage: setup ## measure line and branch coverage of make test, including the processes that the tests start
	@rm -rf .coverage && $(quality) coverage run -m pytest -n $(workers) --dist worksteal $(ARGS)
	@$(quality) coverage combine --quiet && $(quality) coverage report --skip-covered

mutants: setup ## insert faults into a module and check whether its tests detect them (ARGS="agent/loop/loop.py --tests tests/agent/loop/test_loop.py")
	@$(quality) python scripts/quality/mutants.py $(ARGS)

shape: python ## print how large and how dense the code is (ARGS="REVISION...": and was)
	@$(in_venv) python -m scripts.quality.shape $(ARGS)

bench-sandbox: setup ## measure the sandbox and compare it with other sandboxes (ARGS="--quick", "--json FILE" and others)
	@$(in_venv) python -m benchmarks.sandbox $(ARGS)

bench-context: setup ## measure packing a repository and compare it with other packers (REPO=path of a clone, ARGS="--rounds 9" and others)
	@$(in_venv) python -m benchmarks.context $(REPO) $(ARGS)

bench-client: setup ## measure the client's cost of a turn and compare it with mini-swe-agent (ARGS="--turns 50" and others)
	@$(in_venv) python -m benchmarks.client $(ARGS)

bench-grading: setup ## measure grading and compare it with the official harness (ARGS="ROWS --workers 2" and others)
	@$(in_venv) python -m benchmarks.grading $(ARGS)

bench-environments: setup ## build the environments of public projects and count the tests in them (ARGS="NAME ..." and others)
	@$(in_venv) python -m benchmarks.environments $(ARGS)

bench-forgeries: setup ## grade forged patches by m3agent's rules and by the official ones
	@$(in_venv) python -m benchmarks.forgeries $(ARGS)

bench-chaos: setup ## inject random faults into fixes and check that nothing is lost or left behind (ARGS="--runs 20", "--kinds disk" and others)
	@$(in_venv) python -m benchmarks.chaos $(ARGS)

docs: python ## build the site of the documentation into site/
	@$(in_venv) NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "The site is in site/index.html."

docs-pages: python ## generate pages and parts from the code and uv.lock: docs/commands.md, docs/settings.md, docs/licences.md, agent/api.py, docs/architecture.md, docs/serving.md, docs/fix.md, docs/benchmarks.md, README.md, docs/certificate.schema.json
	@$(in_venv) python scripts/docs/commands_page.py
	@$(in_venv) python -m scripts.docs.settings_page
	@$(in_venv) python -m scripts.docs.rooms --write
	@$(in_venv) python -m scripts.docs.serving_page
	@$(in_venv) python -m scripts.docs.certificate_schema
	@$(in_venv) python -m scripts.docs.rules_table
	@$(in_venv) python -m benchmarks.verdict_accuracy --write
	@PATH="$(CURDIR)/.setup/uv/bin:$$PATH" uv run --isolated --locked --no-dev --all-extras python scripts/docs/licences_page.py

lint: packages = --lint
lint: python ## check style and types
	@$(in_venv) ruff check
	@$(in_venv) ruff format --check
	@$(in_venv) lint-imports --no-cache --no-logo
	@$(in_venv) mypy
	@$(in_venv) basedpyright

setup: ## set up only (SETUP=no: install nothing system-wide)
	@scripts/setup.sh all

python:
	@scripts/setup.sh python $(packages)

bundle: python ## build one file that installs m3agent where nothing can be downloaded (ARGS="--arch aarch64")
	@PATH="$(CURDIR)/.setup/uv/bin:$$PATH" .venv/bin/python scripts/bundle/build.py $(ARGS)

clean: ## remove everything that set-up and builds made in this checkout
	rm -rf .venv .setup dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find agent cli tools sandbox serving evals util tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
