# Each target creates its own virtual environment from python3, a C++ compiler and make; CMake and Ninja come from
# PyPI. A second run is quick: stamps in the environment record what is done. A failed step is retried.

PYTHON ?= python3
VENV   ?= .venv
# The peer for the Gloo column. `make TORCH= test` runs without it.
TORCH  ?= torch==2.13.0
ARGS   ?=
# The CPython versions for `make wheels`, such as "3.10 newest"; empty: all on this machine.
WHEELS ?=
# ON, OFF, or AUTO: GPU support if there are nvcc and a GPU.
PC_CUDA ?= AUTO
# A wheel of this commit that is installed instead of compiling one.
PREBUILT ?=
# Number of processes that run the tests, one file at a time each; 0: pytest alone. Three on two cores: tests also wait.
JOBS   ?= 3

BIN := $(VENV)/bin
# -I: use the installed package, not the source tree in this folder.
PY  := $(BIN)/python -I
PIP := $(BIN)/python -m pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_PROGRESS_BAR := off
export PIP_RETRIES ?= 2
export PIP_CONSTRAINT := $(abspath tools/constraints.txt)
# Thousands of processes load the same modules.
unexport PYTHONDONTWRITEBYTECODE
RECIPES := $(VENV)/recipes/bin/python
RAY := $(VENV)/ray/bin/python
CUDA := $(VENV)/cuda/bin/python
FRAMEWORKS := $(VENV)/frameworks/bin/python
JAX_OLDEST := $(VENV)/jax-oldest/bin/python
MXNET := $(VENV)/mxnet/bin/python
NOTEBOOK := $(VENV)/notebook/bin/python
DOCS := $(VENV)/site/bin/python
NEWEST_TORCH := $(VENV)/newest-torch/bin/python
NEWEST_FRAMEWORKS := $(VENV)/newest-frameworks/bin/python
# The requirements of the package and its extras, without the package itself, which is compiled meanwhile.
NEEDS = $(PIP) install --no-build-isolation --only-deps
WHEELS_PYTHON := $(VENV)/wheels/bin/python
WHEEL = $(PIP) -v wheel --no-build-isolation --no-deps --wheel-dir $(VENV)
# An installation by `make dev` is always current.
CURRENT := $(if $(wildcard $(VENV)/.dev),,$(VENV)/.installed)
SITE := import sysconfig; print(sysconfig.get_path('purelib'))
# Reports the progress of a long command, with the seconds since make started.
export STEP_START := $(shell date +%s)
STEP = $(PYTHON) tools/step.py $(1)

# Compiling needs the cores, installing packages the network: they run in parallel.
MAKEFLAGS += -j2
unexport MAKEFLAGS # or ninja, which editable installs start, looks for make's jobserver

SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake csrc pycollective bench -type f -not -name '*.pyc')

.DEFAULT_GOAL := help
.PHONY: help install environments demo test integration durations mutants stress nightly release quick style test-frameworks test-old-frameworks test-cuda test-ray test-ucx test-recipes versions newest wheels \
  notebook course site asan faults fuzz dev bench editable lint stubs sass gpu-carry docs clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

install: $(VENV)/.installed $(VENV)/.torch ## the package with all test requirements, in .venv

environments: $(addprefix $(VENV)/.,frameworks cuda recipes ray notebook site wheels) ## what other targets install when they are first made

demo: $(VENV)/.core $(VENV)/.demo ## data-parallel training under mpirun, then the topologies against Open MPI
	$(PY) -m pycollective demo $(ARGS)
	@echo "next: source $(VENV)/bin/activate; pycollective draw ring; docs/add-a-topology.md"

test: $(VENV)/.installed $(VENV)/.torch ## the library's tests (ARGS="-k ring -x" is passed to pytest)
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not integration" $(ARGS)

integration: $(VENV)/.installed $(VENV)/.torch ## the others: launchers, hosts, jobs, documents, programs, benchmarks, thread sanitizer
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m integration $(ARGS)

durations: $(VENV)/.installed $(VENV)/.torch ## what each test and each file of tests costs; build/durations.json has all
	mkdir -p build
	PC_TEST_COSTS=$(abspath build/durations.json) PYTHONPATH=$(abspath tools) $(BIN)/pytest -q -n $(JOBS) --dist loadfile -p durations $(ARGS)

mutants: $(VENV)/.installed $(VENV)/.torch ## seeded faults that the tests must notice (ARGS="refusal": part of a name)
	JOBS=$(JOBS) $(BIN)/python tools/mutants/run.py $(ARGS)

stress: $(VENV)/.installed $(VENV)/.torch ## the tests many times beside busy processes, hours (ARGS="--times 1")
	JOBS=$(JOBS) $(BIN)/python tools/stress.py $(ARGS)

nightly: ## the long checks, recorded in tests/nightly.json: mutants, trials, sanitizers, notebooks, versions, wheels, an hour of fuzz (ARGS="asan")
	env -u ARGS $(PYTHON) tools/nightly.py $(ARGS)

release: ## all tiers, then a commit and a tag with the changelog's notes, and wheels in dist (VERSION=0.2.0, ARGS=--dry-run)
	env -u ARGS $(PYTHON) tools/release.py $(or $(VERSION),$(error VERSION=0.2.0 or the like)) $(ARGS)

# A part of each layer: the language, every collective and its bits, messages, mismatches, the engine, hvd, SGD.
QUICK := $(addprefix tests/,schedule/test_compiler.py schedule/test_verifier.py comm/test_settings_table.py \
  $(addprefix comm/,collectives/test_reductions.py collectives/test_moving.py \
  collectives/test_bits.py::test_sizes_and_places test_nonblocking.py test_point_to_point.py \
  host/test_mismatch.py::test_a_value_that_a_rank_returns_before_it_is_told_is_right) \
  engine/test_works.py frameworks/torch/hvd/test_forms.py optim/test_sgd.py)

# git grep, which exits with 1 if it finds nothing, shows what it finds; the pattern ends with what to write instead.
PHRASES := git grep -nIiP -f tools/checks/phrases.txt -- . ':!CHANGELOG.md' ':!LICENSE' ':!tools/checks/phrases.txt'; test $$? -eq 1
CHECKS := $(foreach check,imports includes collectives,$(BIN)/python tools/checks/$(check).py && ){ $(PHRASES); }
HOUSE := $(CHECKS) && if [ -x $(BIN)/ruff ]; then \
  $(BIN)/ruff check . && $(BIN)/ruff format --check .; fi

# Installs only if nothing is installed; keeps an installation by `make dev`.
quick: $(if $(wildcard $(BIN)/pytest),,$(VENV)/.installed $(VENV)/.torch) ## the most important tests of what is installed, and what an edit breaks most often, half a minute
	@mkdir -p build # [5-, [8-: of so many ranks
	@{ $(HOUSE); } >build/checks.log 2>&1 & $(BIN)/pytest -q -n $(JOBS) --dist loadfile $(QUICK) -k "not ([5- or [8-)" $(ARGS); \
	  tests=$$?; wait $$! || { cat build/checks.log; exit 1; }; exit $$tests

NOT_TORCH := $(addprefix tests/frameworks/,test_*.py tensorflow keras jax)

versions: $(VENV)/.wheel ## the wheel with the lowest and the newest versions of its dependencies
	PIP_CONSTRAINT= $(BIN)/python tools/wheels/versions.py $(VENV)/wheel/*.whl $(VENV)/versions

newest: $(VENV)/.wheel ## the newest release of every framework, installed each time: gigabytes
	$(call NEWEST,torch,torch accelerate lightning ray transformers)
	$(NEWEST_TORCH) -I -m pytest -n $(JOBS) --dist loadfile tests/frameworks/torch tests/examples/test_pytorch_ddp.py $(ARGS)
	$(NEWEST_TORCH) -I -m pytest -n $(JOBS) tests/docs/test_docs.py -k "torch or recipes or hvd or horovod" $(ARGS)
	RAY_USAGE_STATS_ENABLED=0 $(NEWEST_TORCH) -I -m pytest tests/frameworks/ray $(ARGS)
	$(call NEWEST,frameworks,tensorflow-cpu keras tf_keras jax optax)
	$(NEWEST_FRAMEWORKS) -I -m pytest -n $(JOBS) --dist loadfile $(NOT_TORCH) $(ARGS)

wheels: $(VENV)/.wheels ## an sdist and wheels for every CPython of this machine, tested in empty environments, in dist
	@PIP_CONSTRAINT= PATH="$(abspath $(BIN)):$$PATH" $(WHEELS_PYTHON) tools/wheels/make_wheels.py --out dist --for "$(WHEELS)" --tests $(filter-out tests/frameworks/torch/%,$(QUICK)) \
	  tests/comm/collectives/test_kernels.py tests/docs/test_docs.py::test_block_runs $(ARGS)

gpu-carry: ## what a machine with a GPU and without network needs, in build/gpu-carry: docs/gpu.md
	bench/gpu/prepare.sh $(ARGS)

asan: $(VENV)/.installed ## native and close-to-core tests under the address and undefined-behavior sanitizers
	JOBS=$(JOBS) $(PY) tools/asan.py $(ARGS)

faults: $(VENV)/.installed $(VENV)/.torch ## 300 trials that kill and stop ranks at random moments (ARGS="--count 20")
	cd tests && $(abspath $(BIN))/python -m faults.trials $(ARGS)
	cd tests && $(abspath $(BIN))/python -m hosts.trials $(ARGS)

fuzz: $(VENV)/.installed $(VENV)/.torch ## an hour of random tests with new seeds, which it prints (ARGS="--seconds 60 --seed 3")
	cd tests && $(abspath $(BIN))/python -m fuzz.campaign $(ARGS)

test-frameworks: $(VENV)/.frameworks ## TensorFlow, Keras and JAX from PyPI
	$(FRAMEWORKS) -I -c "import jax, keras, optax, tensorflow, tf_keras" 2>/dev/null # or the tests would skip what is missing
	$(OUTER_MPI) $(FRAMEWORKS) -I -m pytest -n $(JOBS) --dist loadfile $(NOT_TORCH) $(ARGS)
	COURSE=1 $(OUTER_MPI) $(FRAMEWORKS) -I -m pytest -n $(JOBS) tests/course/test_assess.py -k keras $(ARGS)
	$(OUTER_MPI) $(FRAMEWORKS) -I -m pytest -n $(JOBS) tests/docs/test_docs.py tests/examples -k "tensorflow or keras or jax" $(ARGS)

test-old-frameworks: $(VENV)/.jax-oldest $(VENV)/.mxnet ## the oldest JAX, and MXNet, whose last release is of 2022
	$(OUTER_MPI) $(JAX_OLDEST) -I -m pytest tests/frameworks/jax $(ARGS)
	if [ -x $(MXNET) ]; then $(MXNET) -I -m pytest tests/frameworks/mxnet $(ARGS); fi

# Apart from the others, since numba-cuda adds much to the start of every Python process.
test-cuda: $(VENV)/.cuda ## operators of one's own for GPU arrays, compiled and linked without a GPU
	$(CUDA) -I -c "import numba_cuda, cuda.bindings.nvjitlink" # or the tests would skip what is missing
	$(CUDA) -I -m pytest tests/gpu/comm/test_operators.py $(ARGS)

test-ray: $(VENV)/.ray ## RayExecutor on a Ray cluster of two nodes, with Ray from PyPI
	$(RAY) -I -c "import ray, torch" # or the tests would skip what is missing
	RAY_USAGE_STATS_ENABLED=0 $(RAY) -I -m pytest tests/frameworks/ray $(ARGS) # one process: its tests share the cluster
	RAY_USAGE_STATS_ENABLED=0 $(RAY) -I -m pytest tests/docs/test_docs.py -k ray $(ARGS)

# Over shared memory, ranks without an edge between them are told of different calls too late for that test.
test-ucx: $(VENV)/.installed $(VENV)/.torch ## the tests between hosts, over UCX instead of TCP
	PYCOLLECTIVE_LINK=ucx $(BIN)/pytest -n $(JOBS) --dist loadfile $(addprefix tests/comm/hosts/test_,virtual_hosts.py windows_between_hosts.py) \
	  $(addprefix tests/hosts/test_,$(addsuffix .py,ucx bits shrink namespaces launchers)) $(ARGS)
	PYCOLLECTIVE_LINK=ucx-shm $(BIN)/pytest -n $(JOBS) --dist loadfile tests/comm/hosts/test_virtual_hosts.py \
	  $(addprefix tests/hosts/test_,$(addsuffix .py,bits shrink launchers)) -k "not without_an_edge" $(ARGS)

test-recipes: $(VENV)/.recipes ## docs/torch-distributed.md and the launcher, with accelerate, Lightning and transformers from PyPI
	$(RECIPES) -c "import accelerate, lightning, transformers" # or the tests would skip what is missing
	$(OUTER_MPI) $(RECIPES) -I -m pytest tests/docs/test_docs.py tests/frameworks/torch/distributed/test_own_launcher.py -k "recipes or accelerate or lightning" $(ARGS)

notebook: $(VENV)/.notebook ## examples/tour.ipynb from examples/tour.py, executed; then the notebook tests
	$(NOTEBOOK) -I tools/notebooks.py
	$(NOTEBOOK) -I -m pytest tests/examples/test_notebook.py tests/examples/test_tour.py $(ARGS)

course: $(VENV)/.notebook $(VENV)/.torch ## the labs of examples/course, figures in course-out (ARGS="--quick", "--notebooks")
	$(OUTER_MPI) $(NOTEBOOK) -I examples/course --out course-out $(ARGS)

dev: editable $(VENV)/.torch ## an editable install: edits of Python take effect at once, edits of C++ are compiled at the next import

editable: $(VENV)/.needed
	@$(call STEP,"compiling for development") $(PIP) -v install --no-build-isolation --no-deps --force-reinstall \
	  -C editable.rebuild=true -C build-dir=build/dev -C cmake.define.PC_UNITY_BUILD=OFF -C cmake.define.PC_CUDA=OFF -e .
	@rm -f $(VENV)/.core $(VENV)/.wheel $(VENV)/.installed # the next 'make test' reinstalls the package
	@# scikit-build-core adds the folder above, for bench and examples: other clones there could be imported.
	@sed -i '\|^$(abspath ..)$$|d' $(VENV)/lib/python3*/site-packages/_editable_skbc_pycollective.pth
	@touch $(VENV)/.dev

bench: $(VENV)/.installed $(VENV)/.torch ## the sweep (ARGS="--help" lists the options)
	$(BIN)/pycollective bench $(ARGS)
	$(BIN)/pytest bench

# First what needs no compiled package.
lint: style $(CURRENT) ## ruff, mypy, pyright, clang-format, shellcheck, hadolint, imports and includes, and the stubs
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(CHECKS)
	$(STUBS)
	for stub in build/stubs/pycollective/*; do diff -u pycollective/$${stub##*/} $$stub || { echo "run 'make stubs'" >&2; exit 1; }; done

style: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/shellcheck --severity=warning .ci/run bench/gpu/*.sh examples/cluster/job.sbatch
	$(BIN)/hadolint examples/cluster/Dockerfile

# Of the compiled modules that are installed.
STUBS = rm -rf build/stubs; $(PY) -c "import importlib.util as u; [print(name) for name in ('pycollective._core', 'pycollective._cuda') \
  if u.find_spec(name)]" | xargs $(PY) -m pybind11_stubgen --exit-code --output-dir build/stubs

stubs: $(CURRENT) $(VENV)/.lint ## pycollective/_core.pyi and _cuda.pyi, after a change of csrc/bindings
	$(STUBS)
	cp build/stubs/pycollective/* pycollective

sass: $(VENV)/.installed ## checks the machine code of the GPU kernels: rules, registers and spills
	$(PY) tools/checks/sass.py $(ARGS)

docs: $(CURRENT) ## the generated pages of docs/: tables, and drawings of the topologies
	$(BIN)/python tools/docs/make_docs.py docs

site: $(VENV)/.site ## the documentation as a website, in build/site; broken links and undocumented names fail
	@# Not --quiet: strict counts only the warnings that are shown.
	@PATH="$(abspath $(VENV)/site/bin):$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(DOCS) -I -m mkdocs build

clean: ## build products and caches
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .benchmarks .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf
	rm -f $(VENV)/.installed $(VENV)/.wheel $(VENV)/.core $(VENV)/.dev

distclean: clean ## the same, and removes the environment
	rm -rf $(VENV)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than 3.10; set PYTHON=" >&2; exit 1; }
	@$(call STEP,"making the environment $(VENV)") $(PYTHON) -m venv $(VENV)
	@touch $@

# The build requirements are in the environment itself: without pip's build isolation CMake keeps its cache.
# pip 26.2 is the first with --only-deps.
$(VENV)/.tools: $(VENV)/.made
	@$(call STEP,"installing the build tools") $(PIP) install "pip>=26.2" "scikit-build-core>=0.10" "pybind11>=3.1,<3.2" \
	  "setuptools-scm>=8" cmake ninja
	@touch $@

# The package without GPU support, which is enough for the demo.
$(VENV)/.core: $(VENV)/.tools $(SOURCES)
	@rm -rf $(VENV)/core
	@$(if $(PREBUILT),install -D -t $(VENV)/core $(PREBUILT),$(call STEP,"compiling the core") $(WHEEL)/core -C cmake.define.PC_CUDA=OFF .)
	@$(call STEP,"installing the core") $(PIP) install --no-deps --force-reinstall $(VENV)/core/*.whl
	@touch $@

$(VENV)/.demo: $(VENV)/.tools pyproject.toml tools/constraints.txt
	@$(call STEP,"installing the demo's packages") $(NEEDS) ".[examples]"
	@touch $@

# In the build folder of the core, so that only the GPU extension is added.
$(VENV)/.wheel: $(VENV)/.core
	@rm -rf $(VENV)/wheel
	@$(if $(PREBUILT),install -D -t $(VENV)/wheel $(PREBUILT),$(call STEP,"compiling the GPU side") $(WHEEL)/wheel -C cmake.define.PC_CUDA=$(PC_CUDA) .)
	@touch $@

$(VENV)/.needed: $(VENV)/.tools pyproject.toml tools/constraints.txt
	@$(call STEP,"installing what the package needs") $(NEEDS) ".[bench,examples,numba]"
	@$(call STEP,"installing the tests' packages") $(PIP) install --group test
	@touch $@ $(VENV)/.demo

$(VENV)/.installed: $(VENV)/.wheel $(VENV)/.needed
	@$(call STEP,"installing the package") $(PIP) install --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@rm -f $(VENV)/.dev
	@touch $@

# After the others: two concurrent pips in one environment do not know what the other installs.
$(VENV)/.torch: | $(VENV)/.needed
	@$(if $(TORCH),$(call STEP,"installing $(TORCH)") $(PIP) install "$(TORCH)" || { echo "Without torch: 'make TORCH= ...'" >&2; exit 1; },echo "without torch")
	@touch $@

# Separate environments that see the packages of the main one: these install dozens of packages. torch stays as it is.
# Most of their modules are never loaded, so that bytecode is made at the first import: making all of it takes longer than
# the rest of an installation. Argument: the name of the environment.
define INNER
	@rm -rf $(VENV)/$(1)
	@$(BIN)/python -m venv --without-pip $(VENV)/$(1)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c "$(SITE)")')" >"$$($(VENV)/$(1)/bin/python -c "$(SITE)")/outer.pth"
endef

# An environment of its own, without constraints; what holds back a package that is listed as outdated is what needs it.
# Arguments: the last part of its name, what it is for.
define NEWEST
	@rm -rf $(VENV)/newest-$(1)
	@$(BIN)/python -m venv --without-pip $(VENV)/newest-$(1)
	@PIP_CONSTRAINT=/dev/null $(call STEP,"installing $(2)") $(PIP) --python $(VENV)/newest-$(1)/bin/python install \
	  --no-compile --upgrade $(2) --group test "$$(echo $(VENV)/wheel/*.whl)[mpi,plot]"
	@$(PIP) --python $(VENV)/newest-$(1)/bin/python list --outdated
endef

# mpi4py finds mpirun and the library of the main environment only if told where they are.
OUTER_MPI = PATH="$(abspath $(BIN)):$$PATH" MPI4PY_LIBMPI=$(abspath $(VENV))/lib/libmpi.so.40

$(VENV)/.recipes: pyproject.toml $(VENV)/.wheel | $(VENV)/.installed $(VENV)/.torch
	$(call INNER,recipes)
	@$(call STEP,"installing trainers") $(RECIPES) -m pip install --no-compile $(TORCH) --group recipes
	@touch $@

$(VENV)/.ray: pyproject.toml $(VENV)/.wheel | $(VENV)/.installed $(VENV)/.torch
	$(call INNER,ray)
	@$(call STEP,"installing Ray") $(RAY) -m pip install --no-compile $(TORCH) --group ray
	@touch $@

$(VENV)/.cuda: pyproject.toml $(VENV)/.wheel | $(VENV)/.installed $(VENV)/.torch
	$(call INNER,cuda)
	@$(call STEP,"installing numba-cuda") $(CUDA) -m pip install --no-compile --no-build-isolation --only-deps ".[cuda]"
	@touch $@

$(VENV)/.frameworks: pyproject.toml $(VENV)/.wheel | $(VENV)/.installed $(VENV)/.torch
	$(call INNER,frameworks)
	@$(call STEP,"installing TensorFlow Keras and JAX") $(FRAMEWORKS) -m pip install --no-compile $(TORCH) --group frameworks
	@touch $@

$(VENV)/.jax-oldest: pyproject.toml $(VENV)/.wheel | $(VENV)/.installed
	$(call INNER,jax-oldest)
	@$(call STEP,"installing the oldest JAX") $(JAX_OLDEST) -m pip install --no-compile --group jax-oldest
	@touch $@

$(VENV)/.mxnet: pyproject.toml $(VENV)/.wheel
	@rm -rf $(VENV)/mxnet
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(BIN)/python -m venv --without-pip $(VENV)/mxnet && \
	  $(call STEP,"installing MXNet") $(BIN)/python -m pip --python $(MXNET) install --no-compile --group mxnet $(VENV)/wheel/*.whl; \
	else echo "skipped: MXNet, which needs Python 3.11 or older" >&2; fi
	@touch $@

$(VENV)/.notebook: pyproject.toml $(VENV)/.wheel | $(VENV)/.installed
	$(call INNER,notebook)
	@$(call STEP,"installing what notebooks need") $(NOTEBOOK) -m pip install --no-compile --group notebook
	@touch $@

$(VENV)/.site: pyproject.toml | $(VENV)/.installed
	$(call INNER,site)
	@$(call STEP,"installing the site's packages") $(DOCS) -m pip install --no-compile --group docs
	@touch $@

$(VENV)/.wheels: pyproject.toml $(VENV)/.tools
	$(call INNER,wheels)
	@$(call STEP,"installing what builds wheels") $(WHEELS_PYTHON) -m pip install --no-compile --group wheels
	@touch $@

$(VENV)/.lint: pyproject.toml | $(VENV)/.needed $(VENV)/.torch
	@$(call STEP,"installing the linters") $(PIP) install --group lint
	@touch $@
