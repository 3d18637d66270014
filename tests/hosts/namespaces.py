"""Hosts for tests, in network namespaces of this machine; the test is skipped where they cannot be made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hosts.simulated import Hosts
from launch import OPEN_MPI_SETTINGS, find_mpirun, run_command
from pycollective.bench.namespaces import why_not


def make_hosts(count: int, bandwidth: str = "", delay: str = "") -> Hosts:
    """Hosts, for a with statement."""
    if reason := why_not():
        pytest.skip(reason)
    return Hosts(count, bandwidth, delay)


def mpirun(
    hosts: Hosts,
    ranks: Sequence[int],
    words: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run words with so many ranks on each host, by Open MPI's mpirun.  What is late ends with the hosts."""
    program = find_mpirun()
    if program is None:
        pytest.skip("needs mpi4py and an mpirun")
    environment = {**os.environ, **OPEN_MPI_SETTINGS, "OMP_NUM_THREADS": "1", **(env or {})}
    command = hosts.mpirun(program, ranks, [str(word) for word in words])
    return run_command(*command, env=environment, timeout=timeout)
