"""pytest-benchmark cases for the overhead of a call, on a communicator of one rank: ``pytest bench``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pycollective.comm.world import init

Benchmark = Callable[..., Any]

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module")
def comm() -> Any:
    """This process alone: only the overhead of a call remains."""
    return init()


def test_allreduce(benchmark: Benchmark, comm: Any) -> None:
    x, out = np.ones(1, np.float32), np.empty(1, np.float32)
    benchmark(comm.allreduce, x, out)


def test_allreduce_new_result(benchmark: Benchmark, comm: Any) -> None:
    """Without ``out`` an array is allocated."""
    benchmark(comm.allreduce, np.ones(1, np.float32))


def test_allreduce_topology(benchmark: Benchmark, comm: Any) -> None:
    x, out = np.ones(1, np.float32), np.empty(1, np.float32)
    benchmark(lambda: comm.allreduce(x, out, topology="ring"))


def test_allreduce_prescale(benchmark: Benchmark, comm: Any) -> None:
    """The path of all rarely used options."""
    x, out = np.ones(1, np.float32), np.empty(1, np.float32)
    benchmark(lambda: comm.allreduce(x, out, prescale=0.5))


def test_broadcast(benchmark: Benchmark, comm: Any) -> None:
    x = np.ones(1, np.float32)
    benchmark(comm.broadcast, x, 0, x)


def test_allgather(benchmark: Benchmark, comm: Any) -> None:
    x, out = np.ones(1, np.float32), np.empty(1, np.float32)
    benchmark(comm.allgather, x, out)


def test_iallreduce(benchmark: Benchmark, comm: Any) -> None:
    """A handle created, served by the progress thread, and waited for."""
    x, out = np.ones(1, np.float32), np.empty(1, np.float32)
    benchmark(lambda: comm.iallreduce(x, out).wait())


def test_empty(benchmark: Benchmark, comm: Any) -> None:
    """A window of 4 KiB created and freed."""
    benchmark(comm.empty, 1024, np.float32)
