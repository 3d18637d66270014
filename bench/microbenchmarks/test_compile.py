"""pytest-benchmark cases for the compiler and the verifier: ``pytest bench``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pycollective import schedule
from pycollective.schedule import Placement
from pycollective.schedule.verifier.verifier import verify

Benchmark = Callable[..., Any]

pytestmark = pytest.mark.benchmark
TOPOLOGIES = schedule.names()


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_compile_allreduce(benchmark: Benchmark, topology: str, ranks: int) -> None:
    """A program traced and compiled, without caches."""

    def compile_uncached() -> schedule.Schedule:
        return schedule.compile_program(schedule.trace(topology, "allreduce", ranks), Placement.WINDOW)

    assert benchmark(compile_uncached).size == ranks


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_verify_allreduce(benchmark: Benchmark, topology: str) -> None:
    """The proof for 8 ranks, as on first use of a user's topology."""
    compiled = schedule.compile(topology, "allreduce", 8, placement=Placement.STAGED)
    benchmark(verify, compiled)


def test_table(benchmark: Benchmark) -> None:
    """A rank's flat table for 8 ranks, in the executor's format."""
    compiled = schedule.compile("ring", "allreduce", 8)
    benchmark(compiled.table, 3)


def test_compile_remembered(benchmark: Benchmark) -> None:
    """Take the same schedule from the cache."""
    schedule.compile("ring", "allreduce", 8)
    benchmark(schedule.compile, "ring", "allreduce", 8)
