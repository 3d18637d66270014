"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import seeds
from speed import deadline

from pycollective.schedule.language import registry

HERE = Path(__file__).parent

# With it, print() writes the text and the end of the line separately: lines of ranks that share a pipe get mixed.
os.environ.pop("PYTHONUNBUFFERED", None)
# An idle thread of NumPy's OpenBLAS spins for a tenth of a second in each process that loads it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


LONG_FILES = (
    "native/test_native.py",
    "docs/test_docs.py",
    "gpu/comm/test_numerics.py",
    "bench/test_sweep.py",
    "schedule/test_topologies.py",
    "examples/test_pytorch_digits.py",
    "faults/test_trials.py",
    "frameworks/torch/hvd/test_horovod_scripts.py",
    "examples/test_pytorch_ddp.py",
    "bench/test_demo.py",
    "hosts/test_trials.py",
    "examples/test_digits.py",
    "engine/test_hosts.py",
    "gpu/comm/nccl/test_rail.py",
    "security/test_hosts.py",
    "elastic/test_jobs.py",
    "hosts/test_bad_input.py",
    "frameworks/torch/distributed/test_launchers.py",
)
"""Files that take longest, in this order first: one that begins last would leave the other processes idle."""


INTEGRATION = (
    "bench/",
    "cli/test_run_hosts.py",
    "cli/test_ssh.py",
    "comm/bootstrap/test_from_mpi.py",
    "comm/bootstrap/test_launchers.py",
    "comm/hosts/test_hosts.py",
    "course/",
    "docs/",
    "elastic/test_horovod_run.py",
    "elastic/test_hosts.py",
    "elastic/test_jobs.py",
    "engine/test_hosts.py",
    "examples/",
    "faults/",
    "gpu/comm/nccl/test_rail.py",
    "gpu/test_all_steps.py",
    "gpu/test_bench.py",
    "gpu/test_sass.py",
    "hosts/",
    "security/test_hosts.py",
    "security/test_neighbours.py",
    "frameworks/torch/distributed/test_hosts.py",
    "frameworks/torch/distributed/test_launchers.py",
    "frameworks/torch/distributed/test_own_launcher.py",
    "frameworks/torch/hvd/test_horovod_scripts.py",
    "frameworks/torch/hvd/test_starting.py",
    "frameworks/torch/test_hosts.py",
)
"""Launchers, hosts in namespaces, jobs, documents, programs, benchmarks: `make integration`, not `make test`."""


seeds.load_profile()


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads it
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("timeout", None) is None:
        config.option.timeout = deadline(float(config.getini("timeout")))
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # pytest-xdist begins with the files of most tests, which are quick
        config.option.maxworkerrestart = "0"  # a process that ends within the last test would be waited for forever


def is_integration(path: Path) -> bool:
    return path.relative_to(HERE).as_posix().startswith(INTEGRATION)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` does not import what it does not run: SciPy and scikit-learn take seconds."""
    chosen = config.option.markexpr == "not integration" and collection_path.is_file()
    return True if chosen and is_integration(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before the choice by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {str(HERE / name): place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(str(item.path), len(places)))  # others stay in order
    for item in items:
        sanitized = "sanitized" in getattr(item, "fixturenames", ())
        if sanitized or is_integration(item.path):
            item.add_marker(pytest.mark.integration)
        limit = item.get_closest_marker("timeout")
        if limit is not None and limit.args:
            item.add_marker(pytest.mark.timeout(deadline(limit.args[0]), **limit.kwargs), append=False)


gc.set_threshold(20_000, 20, 20)  # with the default, a tenth of the time goes into collections


@pytest.fixture(autouse=True, scope="module")
def _collections_are_quick() -> None:
    """Collections of garbage skip what earlier files and pytest hold: thousands of tests, and torch's modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _only_our_topologies_remain() -> Iterator[None]:
    """Topologies that a test registers are removed after it."""
    registry.names()
    before, homes = dict(registry._registered), dict(registry._homes)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._homes.clear()
    registry._homes.update(homes)
