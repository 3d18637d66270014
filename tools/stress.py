"""Repeats the tests while a process on each core is busy: what fails then depends on luck.

`make stress`: `make test` ten times, then the tests that failed once and never again, 200 times each. ARGS="--times 1"
makes it a tenth of that; further arguments are passed to the pytest of `make test`. This file is also the plugin that
repeats tests.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTEST = Path(sysconfig.get_path("scripts")) / "pytest"
FAILED_ONCE = (
    "tests/comm/host/test_mismatch.py::test_any_two_different_calls",
    "tests/comm/hosts/test_connections.py::test_another_program_listens",
    "tests/comm/hosts/test_windows_between_hosts.py::test_a_rank_that_ends_is_named",
    "tests/comm/test_nonblocking.py::test_threads_of_the_core_take_no_signals",
    "tests/frameworks/torch/test_shared_tensors.py::test_data_parallel_trains_with_the_same_bits",
    "tests/gpu/comm/nccl/test_nccl.py::test_a_peer_is_killed",
    "tests/gpu/comm/test_virtual.py::test_replays_are_ordered",
    "tests/gpu/comm/test_waiting_peers.py::test_memory_of_a_plan_is_not_reused_while_its_call_is_in_flight",
    "tests/hosts/test_launchers.py",
    "tests/security/test_neighbours.py",
)
"""Files, or single tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run each test PC_TEST_REPEAT times, not in a row."""
    items[:] = items * int(os.environ["PC_TEST_REPEAT"])


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def passes(*words: str, **variables: str) -> bool:
    command = [str(PYTEST), "-q", *words]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--times", type=int, default=10, help="how often all are repeated; single ones 20 times as often"
    )
    options, rest = parser.parse_known_args()
    with busy_cores():
        jobs = os.environ.get("JOBS", "2")
        all_of_them = ("-n", jobs, "--dist", "loadfile", "-m", "not integration", *rest)
        results = [passes(*all_of_them) for _ in range(options.times)]
        single = {"PC_TEST_REPEAT": str(20 * options.times), "PYTHONPATH": str(ROOT / "tools")}
        results += [passes("-x", "-p", "stress", *FAILED_ONCE, **single)]
    print(f"{results.count(False)} of {len(results)} runs failed")
    return not all(results)


if __name__ == "__main__":
    sys.exit(main())
