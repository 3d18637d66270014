# Everything here makes its own virtual environment from python3, a C++ compiler and make; CMake and Ninja come from
# PyPI. A second run is quick: stamps in the environment say what is done.

PYTHON ?= python3
VENV   ?= .venv
# The peer for the Gloo column. `make TORCH= test` goes without.
TORCH  ?= torch==2.13.0
ARGS   ?=
# Processes that share the tests, a file each at a time; 0: pytest alone.
JOBS   ?= 2

BIN := $(VENV)/bin
# -I: not the source tree beside us but the package as it was installed.
PY  := $(BIN)/python -I
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake csrc pycollective bench -type f -not -name '*.pyc')

.DEFAULT_GOAL := help
.PHONY: help install demo test bench lint stubs sass docs clean distclean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## the package with all that tests need, in .venv

demo: $(VENV)/.installed $(VENV)/.torch ## data-parallel training under mpirun, then the topologies against Open MPI and Gloo
	$(PY) -m pycollective.bench.demo $(ARGS)

test: $(VENV)/.installed $(VENV)/.torch ## the test suite (ARGS="-k ring -x" goes to pytest)
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

bench: $(VENV)/.installed $(VENV)/.torch ## the sweep (ARGS="--help" shows what it takes)
	$(BIN)/pycollective bench $(ARGS)
	$(BIN)/pytest bench

lint: $(VENV)/.installed $(VENV)/.lint ## ruff, mypy, clang-format, the layers and the stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python tools/layers.py
	$(PY) tools/make_stubs.py --check

stubs: $(VENV)/.installed $(VENV)/.lint ## pycollective/_core.pyi and _cuda.pyi, after a change of csrc/bindings
	$(PY) tools/make_stubs.py

sass: $(VENV)/.installed ## the machine code of the GPU kernels: its rules, registers and spills
	$(PY) tools/sass.py $(ARGS)

docs: $(VENV)/.installed ## the generated pages of docs/: tables, and drawings of the topologies
	$(PY) tools/docs.py docs
	$(PY) tools/figures.py docs/images

clean: ## build products and caches
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .benchmarks .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf
	rm -f $(VENV)/.installed

distclean: clean ## the same, and the environment
	rm -rf $(VENV)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than 3.10; set PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# What the build needs lies in the environment itself: without pip's build isolation CMake keeps its cache.
$(VENV)/.tools: $(VENV)/.made
	$(PIP) install "scikit-build-core>=0.10" "pybind11>=3.1,<3.2" cmake ninja
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(SOURCES)
	$(PIP) install --no-build-isolation ".[test]"
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	$(if $(TORCH),$(PIP) install "$(TORCH)" || { echo "no torch to be had: 'make TORCH= ...' goes without it" >&2; exit 1; },@echo "without torch")
	@touch $@

# The extra `lint` of pyproject.toml, from the metadata of the installed package: no second list of versions.
REQUIRED = import importlib.metadata as m; print(*[r.split(";")[0] for r in m.requires("pycollective") if "lint" in r.partition(";")[2]])

$(VENV)/.lint: pyproject.toml | $(VENV)/.installed
	$(PIP) install $$($(PY) -c '$(REQUIRED)')
	@touch $@
