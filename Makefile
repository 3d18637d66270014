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
FRAMEWORKS := $(VENV)/frameworks/bin/python
SITE := import sysconfig; print(sysconfig.get_path('purelib'))

# What compiles needs the cores, what installs packages the network: they go side by side.
MAKEFLAGS += -j2

SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake csrc pycollective bench -type f -not -name '*.pyc')

.DEFAULT_GOAL := help
.PHONY: help install demo test test-recipes versions asan faults bench lint stubs sass docs clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

install: $(VENV)/.installed $(VENV)/.torch ## the package with all that tests need, in .venv

demo: $(VENV)/.installed $(VENV)/.torch ## data-parallel training under mpirun, then the topologies against Open MPI and Gloo
	$(PY) -m pycollective.bench.demo $(ARGS)

test: $(VENV)/.installed $(VENV)/.torch ## the test suite (ARGS="-k ring -x" goes to pytest)
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

versions: $(VENV)/.wheel ## the wheel with the lowest and the newest versions of its dependencies
	$(BIN)/python tools/versions.py $(VENV)/wheel/*.whl $(VENV)/versions

asan: $(VENV)/.installed ## native and near-native tests under the address and undefined-behavior sanitizers
	JOBS=$(JOBS) $(PY) tools/asan.py $(ARGS)

faults: $(VENV)/.installed $(VENV)/.torch ## 300 trials that kill and stop ranks at random moments (ARGS="--count 20")
	cd tests && $(abspath $(BIN))/python -m faults.trials $(ARGS)

test-recipes: $(VENV)/.frameworks ## docs/recipes.md, with accelerate, Lightning and transformers from PyPI
	$(FRAMEWORKS) -c "import accelerate, lightning, transformers" # or the tests would skip what is missing
	$(FRAMEWORKS) -I -m pytest tests/docs/test_docs.py -k recipes $(ARGS)

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
	rm -f $(VENV)/.installed $(VENV)/.wheel

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

$(VENV)/.wheel: $(VENV)/.tools $(SOURCES)
	rm -rf $(VENV)/wheel
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir $(VENV)/wheel .
	@touch $@

# Of the extra `test`, without the package itself, which is not built yet.
$(VENV)/.needed: $(VENV)/.tools pyproject.toml tools/requirements.py
	$(BIN)/python tools/requirements.py test >$(VENV)/needed.txt
	$(PIP) install -r $(VENV)/needed.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.wheel $(VENV)/.needed
	$(PIP) install --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@touch $@

# After the others: of two pips in one environment neither knows what the other brings.
$(VENV)/.torch: | $(VENV)/.needed
	$(if $(TORCH),$(PIP) install "$(TORCH)" || { echo "no torch to be had: 'make TORCH= ...' goes without it" >&2; exit 1; },@echo "without torch")
	@touch $@

# An environment of its own that sees what is in the other one: these bring dozens of packages. torch stays as it is.
$(VENV)/.frameworks: pyproject.toml tools/requirements.py $(VENV)/.wheel | $(VENV)/.installed $(VENV)/.torch
	rm -rf $(VENV)/frameworks
	$(BIN)/python -m venv --without-pip $(VENV)/frameworks
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(SITE)")')" >"$$($(FRAMEWORKS) -c "$(SITE)")/outer.pth"
	$(BIN)/python tools/requirements.py frameworks >$(VENV)/frameworks.txt
	$(FRAMEWORKS) -m pip --disable-pip-version-check -qq install $(TORCH) -r $(VENV)/frameworks.txt
	@touch $@

$(VENV)/.lint: pyproject.toml tools/requirements.py | $(VENV)/.installed $(VENV)/.torch
	$(BIN)/python tools/requirements.py lint >$(VENV)/lint.txt
	$(PIP) install -r $(VENV)/lint.txt
	@touch $@
